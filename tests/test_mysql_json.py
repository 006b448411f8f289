"""MySQL's binary JSON, from bytes made by an encoder of the tests."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from dfc_runtime.kernels.mysql_json import patched
from dfc_runtime.kernels.mysql_rowloop import decode_rows
from dfc_runtime.kernels.mysql_rows import INSERT, PARTIAL_UPDATE, RowDecoder, RowError
from dfc_runtime.sources.mysql_columns import JSON, LONG, Column
from hypothesis import given, settings
from hypothesis import strategies as st

from .mysql_documents import Opaque, difference, encode

COLUMNS = (Column("id", LONG, 0), Column("j", JSON, 4))
ID = struct.pack("<i", 7)
_letters = st.text(st.characters(codec="utf-8"), max_size=5)
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([2**15, -(2**15) - 1, 2**16, 2**31, 2**32, -(2**31) - 1])
    | _letters,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_letters, inner, max_size=4),
    max_leaves=12,
)


def sized(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def told(document: bytes) -> str:
    """The document as it comes out of a row."""
    body = b"\x03" + b"\0" + ID + sized(document)
    made = RowDecoder(COLUMNS).rows(body, [1], [len(body)], INSERT, by=decode_rows)
    assert made.after is not None
    text: str = made.after[0].as_py()
    assert text.startswith('{"id":7,"j":') and text.endswith("}")
    return text[len('{"id":7,"j":') : -1]


def as_stored(value: Any) -> Any:
    """Keys as the server keeps them: the shorter first."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda k: (len(k.encode()), k.encode()))
        return {key: as_stored(value[key]) for key in keys}
    return [as_stored(item) for item in value] if isinstance(value, list) else value


def text_of(value: Any) -> str:
    return json.dumps(as_stored(value), ensure_ascii=False, separators=(",", ":"))


@settings(max_examples=120, deadline=None)
@given(documents, st.booleans())
def test_documents_small_and_large(value: Any, large: bool) -> None:
    assert told(encode(value, large)) == text_of(value)


def test_a_document_beyond_64_kib() -> None:
    value = {"a": ["x" * 40000, "y" * 40000, 70000, 2**33, None], "b": {"c": list(range(3000))}}
    assert told(encode(value)) == text_of(value)


def test_the_deepest_document_that_the_server_takes() -> None:
    value: Any = []
    for _ in range(99):
        value = [value]
    assert told(encode(value)) == "[" * 100 + "]" * 100


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.5, "1.5"), (100.0, "100.0"), (1e15, "1e15"), (1e14, "100000000000000.0"), (-0.0, "-0.0"),
     (0.1, "0.1"), (1e-14, "0.00000000000001"), (1e-15, "0.000000000000001"), (1e-16, "1e-16"),
     (1.7976931348623157e308, "1.7976931348623157e308"), (5e-324, "5e-324")],
)  # fmt: skip
def test_floats_as_the_server_writes_them(number: float, text: str) -> None:
    assert told(encode(number)) == text


def _moment(date: int, clock: int, micros: int = 0) -> bytes:
    return struct.pack("<q", (date << 17 | clock) << 24 | micros)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Opaque(246, b"\x05\x02\x80\x7b\x2d"), "123.45"),
        (Opaque(246, b"\x05\x02\x7f\x84\xd2"), "-123.45"),
        (Opaque(10, _moment((2024 * 13 + 2) << 5 | 29, 0)), '"2024-02-29"'),
        (
            Opaque(12, _moment((2024 * 13 + 2) << 5 | 29, 1 << 12 | 2 << 6 | 3, 4)),
            '"2024-02-29 01:02:03.000004"',
        ),
        (Opaque(11, struct.pack("<q", -((12 << 12 | 34 << 6 | 56) << 24 | 789000))), '"-12:34:56.789000"'),
        (Opaque(11, _moment(0, 838 << 12 | 59 << 6 | 59)), '"838:59:59.000000"'),
        (Opaque(253, b"\1\2\xff"), '"base64:type253:AQL/"'),
        (Opaque(15, b""), '"base64:type15:"'),
    ],
)  # fmt: skip
def test_values_of_other_types_inside_a_document(value: Opaque, text: str) -> None:
    assert told(encode(value)) == text
    assert told(encode({"k": [value]})) == f'{{"k":[{text}]}}'


def test_an_empty_value_is_null() -> None:
    assert told(b"") == "null"


# --- differences -------------------------------------------------------------------------------

DOCUMENT = {"a": 1, "b": [1, 2, {"c": "d"}], 'k "y': {"é": None}}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ([(0, "$.a", 2)], {**DOCUMENT, "a": 2}),
        ([(0, "$", [1])], [1]),
        ([(1, "$.new", {"x": 1.5})], {**DOCUMENT, "new": {"x": 1.5}}),
        ([(2, "$.a")], {k: v for k, v in DOCUMENT.items() if k != "a"}),
        ([(2, "$.b[0]"), (0, "$.b[1].c", "é")], {**DOCUMENT, "b": [2, {"c": "é"}]}),
        ([(1, "$.b[1]", "in")], {**DOCUMENT, "b": [1, "in", 2, {"c": "d"}]}),
        ([(0, '$."k \\"y"."é"', True)], {**DOCUMENT, 'k "y': {"é": True}}),
        ([], DOCUMENT),
    ],
)
def test_documents_that_came_as_differences(changes: list[Any], wanted: Any) -> None:
    data = b"".join(difference(*change) for change in changes)
    assert patched(encode(DOCUMENT), data) == text_of(wanted).encode()


def partial_update(document: bytes | None, changes: bytes) -> tuple[str, str]:
    """Both sides of an update whose second document came as differences."""
    shown = b"\x03" if document is not None else b"\x01"
    before = b"\0" + ID + (sized(document) if document is not None else b"")
    after = b"\x01" + b"\x01" + b"\0" + ID + sized(changes)
    body = shown + b"\x03" + before + after
    made = RowDecoder(COLUMNS, (0,)).rows(body, [2], [len(body)], PARTIAL_UPDATE, by=decode_rows)
    assert made.before is not None and made.after is not None and made.key is not None
    assert made.key.to_pylist() == ['{"id":7}']
    return made.before[0].as_py(), made.after[0].as_py()


def test_a_partial_update_gives_whole_documents() -> None:
    before, after = partial_update(encode({"a": 1}), difference(1, "$.b", [True]))
    assert (before, after) == ('{"id":7,"j":{"a":1}}', '{"id":7,"j":{"a":1,"b":[true]}}')


def test_without_the_document_the_differences_are_told() -> None:
    _, after = partial_update(None, difference(0, "$.a", 5) + difference(2, "$.b"))
    wanted = [{"op": "replace", "path": "$.a", "value": 5}, {"op": "remove", "path": "$.b"}]
    assert json.loads(after) == {"id": 7, "j": {"_json_diff": wanted}}


@pytest.mark.parametrize(
    "changes",
    [b"\x03\x01$", b"\x00\x05$.a", difference(0, "$.zzz[0]", 1), difference(0, "a", 1),
     difference(2, "$"), difference(1, "$.a", 1), b"\x00\x03$.a\x02\x0c\xff"],
)  # fmt: skip
def test_differences_that_do_not_fit_are_an_error(changes: bytes) -> None:
    with pytest.raises(RowError, match="row event 0 cannot be read at byte"):
        partial_update(encode({"a": 1}), changes)


@settings(max_examples=150, deadline=None)
@given(documents, st.integers(0, 2**32), st.binary(min_size=1, max_size=3), st.booleans())
def test_damaged_documents_are_errors_or_json(
    value: Any, place: int, patch: bytes, cut: bool
) -> None:
    document = encode([value, "text", 2.5, {"a": value}])
    at = place % len(document)
    damaged = document[:at] + (b"" if cut else patch + document[at + len(patch) :])
    try:
        made = told(damaged)
    except RowError as error:
        assert error.event == 0
    else:
        json.loads(made)
    done = patched(encode([1]), bytes((0, 1)) + b"$" + bytes((min(len(damaged), 250),)) + damaged)
    assert done is None or json.loads(done) is not Ellipsis


def test_documents_that_point_into_themselves_end() -> None:
    # Every element of the array is the array again.
    count = 60
    head = struct.pack("<HH", count, 4 + 3 * count) + (b"\x02" + struct.pack("<H", 0)) * count
    with pytest.raises(RowError, match="JSON document is damaged"):
        told(b"\x02" + head)
    assert np.frombuffer(head, np.uint8).size == 4 + 3 * count
