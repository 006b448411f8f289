from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from dfc_runtime.kernels import members
from dfc_runtime.kernels.jsontext import extract
from hypothesis import given, settings
from hypothesis import strategies as st

from .jitted import jitted
from .test_jsontext import DOCUMENTS, NAMES

SOME = st.lists(NAMES, min_size=1, max_size=4, unique=True)


@given(st.lists(DOCUMENTS, max_size=6), SOME, st.integers(0, 2))
@settings(max_examples=400, deadline=None)
def test_kernel_and_scanner_agree(documents: list[str | None], names: list[str], skip: int) -> None:
    column = pa.array(documents, pa.string()).slice(min(skip, len(documents)))
    expected = members.find_python(column, names)
    found = members.find_buffers(column, names)
    for name in names:
        found[name].text.validate(full=True)
        assert found[name].text.to_pylist() == expected[name].text.to_pylist()
        assert found[name].kind.tolist() == expected[name].kind.tolist()
    rest = members.without_buffers(column, names)
    rest.validate(full=True)
    assert rest.to_pylist() == members.without_python(column, names).to_pylist()


@given(st.lists(DOCUMENTS, max_size=6), SOME)
@settings(max_examples=200, deadline=None)
def test_compiled_kernels_agree_too(documents: list[str | None], names: list[str]) -> None:
    column = pa.array(documents, pa.string())
    split, gather = jitted(members.SPLIT), jitted(members.GATHER)
    found = members.find_buffers(column, names, split, gather)
    for name, member in members.find_python(column, names).items():
        assert found[name].text.to_pylist() == member.text.to_pylist()
    rest = members.without_buffers(column, names, split)
    assert rest.to_pylist() == members.without_python(column, names).to_pylist()


@given(DOCUMENTS, SOME)
@settings(max_examples=300, deadline=None)
def test_members_are_those_of_the_json_module(document: str | None, names: list[str]) -> None:
    parsed = json.loads(document) if document else None
    values = parsed if isinstance(parsed, dict) else {}
    column = pa.array([document], pa.string())
    for name, member in members.find_python(column, names).items():
        (text,) = member.text.to_pylist()
        assert (text is not None) is (name in values)
        assert text is None or json.loads(text) == values[name]
    (rest,) = members.without_python(column, names).to_pylist()
    assert json.loads(rest) == {k: v for k, v in values.items() if k not in names}


@given(st.lists(st.text(st.sampled_from('{}[]",:\\u0 1an\x01é'), max_size=14), max_size=4))
@settings(max_examples=500, deadline=None)
def test_kernel_stays_within_its_buffers_whatever_the_text(texts: list[str]) -> None:
    """The plain function raises where the compiled one would read or write beside an array."""
    column = pa.array(texts, pa.string())
    members.find_buffers(column, ("a", "", "1"))
    members.without_buffers(column, ("a",))


def test_deep_texts_and_long_integers_have_members() -> None:
    deep, long = "[" * 100_000 + "]" * 100_000, "9" * 5_000
    column = pa.array([f'{{"a":{deep},"b":{long}}}'])
    for found in (members.find_python(column, ("b",)), members.find_buffers(column, ("b",))):
        assert found["b"].text.to_pylist() == [long]


def test_few_rows_are_not_worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members.SPLIT, "seen", 0)
    monkeypatch.setattr(members.SPLIT, "_compiled", None)
    column = pa.array(['{"a":1,"b":2}'])
    assert members.find(column, ("a", "a"))["a"].text.to_pylist() == ["1"]
    assert members.without(column, ("a",)).to_pylist() == ['{"b":2}']
    assert members.SPLIT._compiled is None


def test_half_a_surrogate_pair_is_not_the_replacement_character() -> None:
    column = pa.array(['{"\\ud800":1}'])
    for found in (
        members.find_python(column, ("\ufffd",)),
        members.find_buffers(column, ("\ufffd",)),
    ):
        assert found["\ufffd"].text.to_pylist() == [None]


# --- what is made of members -------------------------------------------------------------------


def three_ways(column: pa.Array, names: list[str]) -> list[dict[str, members.Member]]:
    kernels = [jitted(k) for k in (members.SPLIT, members.GATHER, members.BEGIN)]
    return [
        members.find_python(column, names),
        members.find_buffers(column, names),
        members.find_buffers(column, names, *kernels),
    ]


@given(st.lists(DOCUMENTS, min_size=1, max_size=6), st.data())
@settings(max_examples=200, deadline=None)
def test_members_as_templates_insert_them(documents: list[str | None], data: st.DataObject) -> None:
    column = pa.array(documents, pa.string())
    expected = extract(column, ("a",)).to_pylist()
    gone = data.draw(st.lists(st.booleans(), min_size=len(column), max_size=len(column)))
    for found in three_ways(column, ["a", "b"]):
        one, other = found["a"], found["b"]
        one.plain.validate(full=True)
        assert one.plain.to_pylist() == expected
        left = one.without(np.array(gone))
        kept = [None if no else text for no, text in zip(gone, one.text.to_pylist(), strict=True)]
        assert left.text.to_pylist() == kept
        either = [b if a is None else a for a, b in zip(kept, other.text.to_pylist(), strict=True)]
        assert left.otherwise(other).text.to_pylist() == either
        assert bytes(left.otherwise(other).kind) == bytes(ord(t[0]) if t else 0 for t in either)


@given(st.lists(DOCUMENTS, min_size=1, max_size=6), SOME)
@settings(max_examples=300, deadline=None)
def test_scalars_are_written_as_strings(documents: list[str | None], names: list[str]) -> None:
    column = pa.array(documents, pa.string())
    _, plain, compiled = three_ways(column, names)
    expected: list[str] = []
    copied = True
    for document in documents:
        parsed = json.loads(document, parse_float=str, parse_int=str) if document else None
        row = parsed if isinstance(parsed, dict) else {}
        texts = {n: row[n] for n in names if isinstance(row.get(n), str | bool)}
        copied &= not any(
            isinstance(t, str) and json.dumps(t, ensure_ascii=False)[1:-1] != t
            for t in texts.values()
        )
        parts = {n: t if isinstance(t, str) else json.dumps(t) for n, t in texts.items()}
        expected.append(json.dumps({**parts, "z": 1}, ensure_ascii=False, separators=(",", ":")))
    for found, kernel in ((plain, None), (compiled, jitted(members.WRITE))):
        result = members.as_strings_buffers(found, '"z":1', kernel)
        if result is not None:
            result.validate(full=True)
            assert result.to_pylist() == expected
        elif copied:
            # Nothing that has to have escapes, but something that was written with them.
            assert any("\\" in document for document in documents if document)


@given(st.lists(st.text("ab\u00e9", max_size=9) | st.none(), max_size=6), st.integers(0, 2))
@settings(max_examples=400, deadline=None)
def test_first_place_is_cut(texts: list[str | None], skip: int) -> None:
    column = pa.array(texts, pa.string()).slice(min(skip, len(texts)))
    for part in ("a", "ab", "aab", "abab", "\u00e9a"):
        rest, cuts = members.cut_python(column, part)
        assert rest.to_pylist() == [t and t.replace(part, "", 1) for t in column.to_pylist()]
        assert cuts == sum(part in t for t in column.to_pylist() if t)
        for kernel in (None, jitted(members.CUT)):
            found, count = members.cut_buffers(column, part, kernel)
            found.validate(full=True)
            assert (found.to_pylist(), count) == (rest.to_pylist(), cuts)
