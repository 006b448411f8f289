from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.events import Events
from dfc_runtime.processors import (
    all_of,
    any_of,
    field,
    op_in,
    table_in,
)


def events(*after: Any, before: Any = ()) -> Events:
    def texts(values: Any) -> pa.Array:
        return pa.array([None if v is None else json.dumps(v) for v in values], pa.string())

    columns = {"after": texts(after), "before": texts(before or [None] * len(after))}
    return Events(pa.record_batch(columns), pipeline="p")


def test_op_and_table() -> None:
    batch = pa.record_batch(
        {
            "op": ["c", "u", "d"],
            "db": ["shop", "shop", "app"],
            "schema": pa.array([None, None, "public"], pa.string()),
            "table": ["orders", "logs", "users"],
        }
    )
    e = Events(batch, pipeline="p")
    assert op_in(e, "c", "d").to_pylist() == [True, False, True]
    assert table_in(e, include=["shop.*"]).to_pylist() == [True, True, False]
    assert table_in(e, include=["public.users", "app.none"]).to_pylist() == [False, False, True]
    assert table_in(e, exclude=["logs", "public.*"]).to_pylist() == [True, False, False]
    assert table_in(e, include=["*"], exclude=["shop.logs"]).to_pylist() == [True, False, True]
    without = Events(batch.select(["op", "db", "table"]), pipeline="p")
    assert table_in(without, include=["orders"]).to_pylist() == [True, False, False]


ROWS = [{"a": {"b": 5}}, {"a": {"b": 5.0}}, {"a": {"b": "5"}}, {"a": {"b": None}}, {"a": 1}, None]


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("exists", (), [1, 1, 1, 0, 0, 0]),
        ("not_exists", (), [0, 0, 0, 1, 1, 1]),
        ("eq", (5,), [1, 1, 0, 0, 0, 0]),
        ("eq", ("5",), [0, 0, 1, 0, 0, 0]),
        ("eq", (None,), [0, 0, 0, 0, 0, 0]),
        ("ne", (5,), [0, 0, 1, 0, 0, 0]),
        ("gt", (4,), [1, 1, 0, 0, 0, 0]),
        ("gt", ("4",), [0, 0, 1, 0, 0, 0]),
        ("gte", (5,), [1, 1, 0, 0, 0, 0]),
        ("lt", (5,), [0, 0, 0, 0, 0, 0]),
        ("lte", (5,), [1, 1, 0, 0, 0, 0]),
        ("is_in", (1, 5), [1, 1, 0, 0, 0, 0]),
        ("is_in", ("5", 9), [0, 0, 1, 0, 0, 0]),
        ("is_in", (["5", 5],), [0, 0, 0, 0, 0, 0]),
        ("not_in", (1, 5), [0, 0, 1, 1, 1, 1]),
        ("regex", ("^5$",), [0, 0, 1, 0, 0, 0]),
    ],
)
def test_field(method: str, arguments: tuple[Any, ...], expected: list[int]) -> None:
    mask = getattr(field(events(*ROWS), "a.b"), method)(*arguments)
    assert mask.to_pylist() == [bool(x) for x in expected]
    assert mask.null_count == 0


def test_booleans_are_not_numbers() -> None:
    assert field(events({"a": True}, {"a": 1}), "a").eq(1).to_pylist() == [False, True]
    assert field(events({"a": True}, {"a": 1}), "a").eq(True).to_pylist() == [True, False]


def test_lists_compare_as_lists() -> None:
    e = events({"t": [1, 2]}, {"t": 1}, {"t": [1.0, 2]})
    assert field(e, "t").is_in([1, 2]).to_pylist() == [True, False, True]
    assert field(e, "t").not_in([1, 2]).to_pylist() == [False, True, False]
    assert field(e, "t").is_in([1, 2], 1).to_pylist() == [True, True, True]


def test_integers_beyond_floats_compare_exactly() -> None:
    huge = 10**400
    e = events({"t": huge}, {"t": -huge}, {"t": 1}, {"t": 1.5e308})
    assert field(e, "t").gt(5).to_pylist() == [True, False, False, True]
    assert field(e, "t").gt(huge).to_pylist() == [False] * 4
    assert field(e, "t").lte(huge).to_pylist() == [True] * 4
    assert field(e, "t").eq(huge).to_pylist() == [True, False, False, False]
    assert field(e, "t").is_in(huge + 1, -huge).to_pylist() == [False, True, False, False]
    endless = Events(pa.record_batch({"after": ['{"t":' + "9" * 5000 + "}"]}), pipeline="p")
    assert field(endless, "t").gt(huge).to_pylist() == [True]


def test_patterns_are_those_of_python() -> None:
    e = events({"t": "abab"}, {"t": "abba"}, {"t": "xaby"}, {"t": 5})
    assert field(e, "t").regex(r"^(ab)\1$").to_pylist() == [True, False, False, False]
    assert field(e, "t").regex(r"(?<=x)ab").to_pylist() == [False, False, True, False]


def test_each_row_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        "dfc_runtime.events.parse_json", lambda text: read.append(text) or json.loads(text)
    )
    e = events({"a": 1, "b": 1}, {"a": 2, "b": 2}, None, before=[{"a": 0}, {"a": 2}, None])
    kept = e.where(any_of(field(e, "a").eq(1), field(e, "b").gt(1)), field(e, "a").exists())
    assert len(kept) == 2 and len(read) == 2
    changed = kept.where(field(kept, "a").changed(), field(kept, "b").eq(1))
    assert changed.after.text.to_pylist() == ['{"a": 1, "b": 1}']
    assert len(read) == 4, "a later filter reads only what no earlier one has"
    replaced = kept.with_columns(after='{"a": 9}')
    assert field(replaced, "a").eq(9).to_pylist() == [True, True]


def test_contains() -> None:
    e = events({"t": "hello"}, {"t": ["x", 1]}, {"t": 5}, {})
    assert field(e, "t").contains("ell").to_pylist() == [True, False, False, False]
    assert field(e, "t").contains(1.0).to_pylist() == [False, True, False, False]


def test_changed() -> None:
    big = 2**60
    e = events(
        {"a": 1}, {"a": 2}, {"a": 1}, None, {"b": 1}, {"a": None}, {"a": big + 1},
        before=[{"a": 1}, {"a": 1}, None, {"a": 1}, {"c": 1}, {}, {"a": big}],
    )  # fmt: skip
    assert field(e, "a").changed().to_pylist() == [False, True, True, True, False, True, True]


def test_steps_of_a_path_may_hold_dots() -> None:
    e = events({"a.b": {"c": 1}})
    assert field(e, "a.b", "c").eq(1).to_pylist() == [True]


def test_combining() -> None:
    a, b = pa.array([True, True, False]), pa.array([True, False, False])
    assert all_of(a, b).to_pylist() == [True, False, False]
    assert any_of(a, b).to_pylist() == [True, True, False]
