from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.events import Events
from dfc_runtime.kernels.jsontext import Values, values
from dfc_runtime.ledger import Ledger
from dfc_runtime.processors import (
    all_of,
    any_of,
    field,
    op_in,
    table_in,
)
from dfc_runtime.processors.fields import _ABSENT, _identical, _order, _same
from hypothesis import given, settings
from hypothesis import strategies as st


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


def test_each_path_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[tuple[str, ...]] = []

    def counted(texts: pa.Array, path: tuple[str, ...]) -> Values:
        looked_up.append(path)
        return values(texts, path)

    monkeypatch.setattr("dfc_runtime.events.values", counted)
    e = events({"a": 1, "b": 1}, {"a": 2, "b": 2}, None, before=[{"a": 0}, {"a": 2}, None])
    kept = e.where(any_of(field(e, "a").eq(1), field(e, "b").gt(1)), field(e, "a").exists())
    assert len(kept) == 2
    assert looked_up == [("a",), ("b",)]
    changed = kept.where(field(kept, "a").changed(), field(kept, "b").eq(1))
    assert changed.after.text.to_pylist() == ['{"a": 1, "b": 1}']
    replaced = kept.with_columns(after='{"a": 9}')
    assert field(replaced, "a").eq(9).to_pylist() == [True, True]


def test_dropped_events_are_counted_under_the_filter() -> None:
    batch = pa.record_batch({"position": ["1", "2", "3", "4"], "op": ["c", "u", None, "c"]})
    e = Events(batch, pipeline="p")
    assert e.where(op_in(e, "c"), id="keep").position.to_pylist() == ["1", "4"]
    assert e.ledger.counts == {("keep", "dropped"): 2}
    e.where(op_in(e, "c"))
    e.where(op_in(e, "c", "u", None), id="all")
    assert e.ledger.counts == {("keep", "dropped"): 2}
    again = Events(batch, pipeline="p", ledger=Ledger(counted="2"))
    again.where(op_in(again, "c"), id="keep")
    assert again.ledger.counts == {("keep", "dropped"): 1}, "events that come again count once"
    without = Events(batch.select(["op"]), pipeline="p")
    assert len(without.where(op_in(without, "c"), id="keep")) == 2
    assert without.ledger.counts == {}


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


# --- whole columns against one value at a time -------------------------------------------------


class Raw(str):
    """JSON text that goes into a row as it is."""


HUGE = 10**400
SCALARS: list[Any] = [
    0, 1, -1, 5, 1.5, 2**53 + 1, 2**60, 1e308, HUGE, -HUGE, True, False,
    "", "a", "ab", "5", "é", "\ufffd", "true", "z" * 40,
]  # fmt: skip
WRITTEN = [
    "-0",
    "0.0",
    "1.0",
    "1.00",
    "1e0",
    "1E400",
    "-1e400",
    '"\\u0061"',
    '"\\ud83d\\ude00"',
    "5.0",
]
PLAIN = st.sampled_from(SCALARS)
INNER: st.SearchStrategy[Any] = st.recursive(
    PLAIN | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner),
    max_leaves=4,
)
VALUES = INNER | st.sampled_from(WRITTEN).map(Raw)
MEMBERS = st.none() | st.dictionaries(st.sampled_from(["a", "b"]), VALUES)


def written(row: dict[str, Any] | None) -> str | None:
    if row is None:
        return None
    members = [
        f'"{key}": {value if isinstance(value, Raw) else json.dumps(value)}'
        for key, value in row.items()
    ]
    return "{" + ", ".join(members) + "}"


def rows(images: list[tuple[str | None, str | None]]) -> Events:
    columns = {
        "before": pa.array([before for before, _ in images], pa.string()),
        "after": pa.array([after for _, after in images], pa.string()),
    }
    return Events(pa.record_batch(columns), pipeline="p")


def one_by_one(test: Any, images: list[tuple[str | None, str | None]], missing: bool) -> list[bool]:
    result = []
    for _, after in images:
        value = json.loads(after).get("a") if after else None
        result.append(missing if value is None else test(value))
    return result


@given(
    st.lists(st.tuples(MEMBERS.map(written), MEMBERS.map(written)), min_size=1, max_size=8),
    INNER.filter(lambda value: value is not None),
    PLAIN,
)
@settings(max_examples=300, deadline=None)
def test_masks_say_what_a_test_of_each_value_says(
    images: list[tuple[str | None, str | None]], other: Any, second: Any
) -> None:
    a = field(rows(images), "a")

    def check(mask: pa.Array, test: Any, missing: bool = False) -> None:
        assert mask.null_count == 0
        assert mask.to_pylist() == one_by_one(test, images, missing)

    check(a.exists(), lambda v: True)
    check(a.not_exists(), lambda v: False, True)
    check(a.eq(other), lambda v: _same(v, other))
    check(a.ne(other), lambda v: not _same(v, other))
    check(a.gt(second), lambda v: _order(v, second) == 1)
    check(a.gte(second), lambda v: _order(v, second) in (0, 1))
    check(a.lt(second), lambda v: _order(v, second) == -1)
    check(a.lte(second), lambda v: _order(v, second) in (-1, 0))
    check(a.is_in(other, second), lambda v: _same(v, other) or _same(v, second))
    check(a.not_in(other, second), lambda v: not (_same(v, other) or _same(v, second)), True)
    check(
        a.contains(second),
        lambda v: (
            isinstance(second, str) and second in v
            if isinstance(v, str)
            else isinstance(v, list) and any(_same(item, second) for item in v)
        ),
    )
    check(a.regex("^[a-z]"), lambda v: isinstance(v, str) and v[:1].islower() and v[:1].isascii())
    expected = []
    for before, after in images:
        if before is None or after is None:
            expected.append(True)
            continue
        old, new = (json.loads(image).get("a", _ABSENT) for image in (before, after))
        missing = old is _ABSENT or new is _ABSENT
        expected.append(old is not new if missing else not _identical(old, new))
    assert a.changed().to_pylist() == expected


def test_halves_of_surrogate_pairs() -> None:
    """They have no UTF-8 form: for comparing they are U+FFFD, but a change is seen."""
    images: list[tuple[str | None, str | None]] = [
        ('{"a":"\\ud800"}', '{"a":"\\ud801"}'),
        ('{"a":"\\ud800"}', '{"a":"\\uD800"}'),
        ('{"a":"\ufffd"}', '{"a":"\ufffd"}'),
    ]
    assert field(rows(images), "a").changed().to_pylist() == [True, False, False]
    assert field(rows(images), "a").gt("a").to_pylist() == [True] * 3
    assert field(rows(images), "a").eq("\ufffd").to_pylist() == [True] * 3


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="Extra data"):
        field(rows([(None, '{"a":1x}')]), "a").gt(0)
