"""A text that is called canonical comes back from a script engine byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import quickjs
from dfc_runtime.kernels.canonical import KERNEL, canonical_buffers
from hypothesis import given, settings
from hypothesis import strategies as st

from .jitted import jitted

CONTEXT = quickjs.Context()
BACK = CONTEXT.eval("(text) => JSON.stringify(JSON.parse(text))")
WAYS = pytest.mark.parametrize("compiled", [False, True])


def told(*texts: str | None, compiled: bool = False) -> list[bool]:
    kernel = jitted(KERNEL) if compiled else None
    mask = canonical_buffers(pa.array(texts, pa.string()), kernel)
    return [bool(one) for one in mask]


@WAYS
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a":1,"b":-12,"c":0,"d":0.5,"e":-1.25,"f":999999999999999}',
        '{"a":[1,2,{"b":[]}],"c":{"a":{}},"d":null,"e":true,"f":false}',
        '{"a":"say \\"hi\\"\\n\\t\\\\","ü":"日本語 😀","":1}',
        '{"a":{"k":1},"b":{"k":1},"k":[{"k":1},{"k":2}]}',
        '{"1a":1,"a1":2,"-1":3}',
    ],
)
def test_ordinary_rows_are_canonical(text: str, compiled: bool) -> None:
    assert BACK(text) == text
    assert told(text, compiled=compiled) == [True]


@WAYS
@pytest.mark.parametrize(
    "text",
    [
        '{"a":1.0}',
        '{"a":9007199254740993}',
        '{"a":1e5}',
        '{"a":-0}',
        '{"a":0.0000001}',
        '{"a":1234567890.1234567}',
        '{"10":1,"2":2}',
        '{"a":{"0":1}}',
        '{"a":1,"a":2}',
        '{"x":{"a":1,"b":2,"a":3}}',
        '{"a": 1}',
        '{"a":"\\u00e9"}',
        '{"a":"\\/"}',
        '{"a":"\\ud800"}',
        '[{"a":1}]',
        '{"a":1}x',
        '{"a":"open',
        '{"a":1}}',
        '{"a"',
        "",
        '{"a":' + "[" * 40 + "]" * 40 + "}",
    ],
)
def test_whatever_may_come_back_otherwise_is_not(text: str, compiled: bool) -> None:
    assert told(text, None, '{"a":1}', compiled=compiled) == [False, False, True]


def test_very_many_keys_are_left_to_the_engine() -> None:
    text = json.dumps({f"k{n}": n for n in range(2_000)}, separators=(",", ":"))
    assert told(text, compiled=True) == [False]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["1.0", "x"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=3) | st.sampled_from(["1", "01", "a"]), inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=400, deadline=None)
@given(row=st.dictionaries(st.text(max_size=3), values, max_size=5), odd=st.sampled_from(["", "1.0", "e", " ", '"a":1,']), at=st.integers(0, 40))  # fmt: skip
def test_what_is_told_is_true(row: dict[str, Any], odd: str, at: int) -> None:
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    text = text[:at] + odd + text[at:]
    text = text.encode("utf-8", "replace").decode()
    (plain,) = told(text)
    assert [plain] == told(text, compiled=True)
    if plain:
        try:
            json.loads(text)
        except ValueError:
            return  # not JSON at all, which no source writes
        assert BACK(text) == text
