from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.kernels import jit, jsontext
from dfc_runtime.kernels.jit import WORTH_COMPILING, Kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from .jitted import jitted

NAMES = st.sampled_from(["a", "b", "id", "ä", 'q"', "\\", "", "a.b", "\u2028", "😀"])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['\n\t"\\/\b\f\r', "é😀", "}{][,:", "null"]
)


class Members(list[tuple[str, Any]]):
    """An object as written: keys may come twice."""


class Raw(str):
    """JSON text that goes into a document as it is."""


NUMBERS = st.sampled_from(
    ["1.0", "1.00", "-0", "1e5", "18446744073709551615", "123456789012345678901234567890", "0.10"]
).map(Raw)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3)
    | st.lists(st.tuples(NAMES, inner), max_size=4).map(Members),
    max_leaves=12,
)


def text(value: Any, ascii_only: bool, gap: str) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Members):
        members = [
            f"{json.dumps(key, ensure_ascii=ascii_only)}{gap}:{gap}{text(item, ascii_only, gap)}"
            for key, item in value
        ]
        return "{" + gap + f"{gap},{gap}".join(members) + gap + "}"
    if isinstance(value, list):
        inner = f"{gap},".join(text(item, ascii_only, gap) for item in value)
        return f"[{gap}{inner}{gap}]"
    return json.dumps(value, ensure_ascii=ascii_only)


DOCUMENTS = (
    st.builds(text, VALUES, st.booleans(), st.sampled_from(["", "", " ", "\n\t "])) | st.none()
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)


@given(st.lists(DOCUMENTS, max_size=6), PATHS, st.integers(0, 2))
@settings(max_examples=400, deadline=None)
def test_kernel_and_scanner_agree(
    documents: list[str | None], path: tuple[str, ...], skip: int
) -> None:
    column = pa.array(documents, pa.string()).slice(min(skip, len(documents)))
    expected = jsontext.values_python(column, path)
    found = jsontext.values_buffers(column, path)
    found.text.validate(full=True)
    assert found.text.to_pylist() == expected.text.to_pylist()
    assert found.kind.tolist() == expected.kind.tolist()


@given(VALUES, PATHS)
@settings(max_examples=300, deadline=None)
def test_scanner_agrees_with_the_json_module(value: Any, path: tuple[str, ...]) -> None:
    document = text(value, True, " ")
    parsed = json.loads(document)
    for name in path:
        parsed = parsed.get(name) if isinstance(parsed, dict) else None
    found, kind = jsontext.value_at(document, path)
    if parsed is None:
        assert found is None and kind in (jsontext.MISSING, jsontext.NULL)
    elif isinstance(parsed, str):
        assert found == parsed and kind == jsontext.STRING
    else:
        assert found is not None and json.loads(found) == parsed and kind == ord(found[0])


def both(document: str, *path: str) -> str | None:
    column = pa.array([document])
    one = jsontext.values_python(column, path).text[0].as_py()
    other = jsontext.values_buffers(column, path).text[0].as_py()
    assert one == other
    return one  # type: ignore[no-any-return]


def test_values_keep_their_text() -> None:
    assert both('{"a":1.00}', "a") == "1.00"
    assert both('{"a":18446744073709551615}', "a") == "18446744073709551615"
    assert both('{"a": {"b": [1, 2 ]} }', "a") == '{"b": [1, 2 ]}'
    assert both('{"a":{"b":true}}', "a", "b") == "true"
    assert both('{"a":""}', "a") == ""


def test_missing_and_null_are_null() -> None:
    assert both('{"a":null}', "a") is None
    assert both('{"a":1}', "b") is None
    assert both('{"a":1}', "a", "b") is None
    assert both("[1]", "a") is None
    assert both("{}", "a") is None


def test_last_of_duplicate_keys_counts() -> None:
    assert both('{"a":1,"b":2,"a":3}', "a") == "3"
    assert both('{"a":{"b":1},"a":2}', "a", "b") is None
    assert both('{"a":1,"\\u0061":2}', "a") == "2"


def test_escapes() -> None:
    assert both('{"a":"\\ud83d\\ude00\\n\\/\\""}', "a") == '😀\n/"'
    assert both('{"a":"\\ud83d x"}', "a") == "\ufffd x"
    assert both('{"a":"\\udE00\\uD83d"}', "a") == "\ufffd\ufffd"
    assert both('{"k\\"":"v"}', 'k"') == "v"


def test_compiled_kernel_agrees() -> None:
    kernel = jitted(jsontext.KERNEL)
    documents = [f'{{"id":{i},"n":{{"x":"v\\u00e9 {i}"}},"z":[{{"id":9}}]}}' for i in range(500)]
    documents += [None, "{}"]
    column = pa.array(documents, pa.string())
    for path in [("id",), ("n", "x"), ("n",), ("z",), ("none",)]:
        found = jsontext.values_buffers(column, path, kernel)
        expected = jsontext.values_python(column, path)
        assert found.text.equals(expected.text)
        assert found.kind.tolist() == expected.kind.tolist()


def test_null_and_missing_differ_in_kind() -> None:
    column = pa.array(['{"a":null}', "{}", None, '{"a":-1}', '{"a":""}', '{"a":{}}', '{"a":[]}'])
    for found in (jsontext.values_python, jsontext.values_buffers):
        assert bytes(found(column, ("a",)).kind) == b'n\0\0-"{['


def test_depth_is_no_matter() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    document = f'{{"a":{deep},"b":1}}'
    assert jsontext.value_at(document, ("b",)) == ("1", ord("1"))
    assert jsontext.value_at(document, ("a",)) == (deep, jsontext.LIST)
    found = jsontext.values_buffers(pa.array([document]), ("b",), jitted(jsontext.KERNEL))
    assert found.text.to_pylist() == ["1"]


def test_switched_off_compiler_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFC_JIT", "0")
    kernel = Kernel(jsontext.scan_rows, *jsontext.KERNEL._helpers)
    kernel.seen = WORTH_COMPILING
    monkeypatch.setattr(jsontext, "KERNEL", kernel)
    assert jsontext.extract(pa.array(['{"a":1}']), ("a",)).to_pylist() == ["1"]
    assert kernel.compiled() is None


def test_few_rows_are_not_worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a machine where no earlier run has left it: then a fifth of the rows would do.
    monkeypatch.setattr(jit, "stored", lambda _: False)
    kernel = Kernel(jsontext.scan_rows, *jsontext.KERNEL._helpers)
    assert kernel.after(WORTH_COMPILING - 1) is None
    assert kernel.after(1) is not None
