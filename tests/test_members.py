from __future__ import annotations

import json

import pyarrow as pa
import pytest
from dfc_runtime.kernels import members
from hypothesis import given, settings
from hypothesis import strategies as st

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
    pytest.importorskip("numba")
    column = pa.array(documents, pa.string())
    split, gather = members.SPLIT.compiled(), members.GATHER.compiled()
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
