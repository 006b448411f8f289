"""Several paths of one column, and numbers: kernels, plain and compiled, against the Python way."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dfc_runtime.kernels import documents, jsontext, members
from dfc_runtime.kernels.documents import Documents
from hypothesis import given, settings
from hypothesis import strategies as st

from .jitted import jitted
from .test_jsontext import DOCUMENTS, PATHS
from .test_processors import (
    test_masks_say_what_a_test_of_each_value_says as masks_say_what_a_test_of_each_value_says,
)

KERNELS = (members.SPLIT, members.GATHER, members.BEGIN, documents.NUMBERS)


def compiled() -> list[Any]:
    return [jitted(kernel) for kernel in KERNELS]


@given(st.lists(DOCUMENTS, min_size=1, max_size=6), st.lists(PATHS, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_kernels_and_scanner_agree(texts: list[str | None], paths: list[tuple[str, ...]]) -> None:
    column = pa.array(texts, pa.string())
    for kernels in ([], compiled()):
        asked = Documents(column)
        for path in paths:
            expected = jsontext.values_python(column, path)
            found = asked.values_buffers(path, *kernels)
            found.text.validate(full=True)
            assert found.text.to_pylist() == expected.text.to_pylist()
            assert found.kind.tolist() == expected.kind.tolist()
            np.testing.assert_array_equal(found.floats(), expected.floats())


NUMBERS = (
    st.integers().map(str)
    | st.integers(-(10**16), 10**16).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(json.dumps)
    | st.decimals(-(10**9), 10**9, places=6).map(str)
    | st.sampled_from(["-0", "0.0", "-0.0", "1e5", "1E-400", "0.1", "999999999999999", "1e400"])
    | st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?", fullmatch=True)
)


@given(st.lists(NUMBERS, min_size=1, max_size=6))
@settings(max_examples=500, deadline=None)
def test_numbers_are_the_nearest_floats(numbers: list[str]) -> None:
    column = pa.array([f'{{"n":{number} }}' for number in numbers] + ['{"n":"5"}', "{}"])
    expected = [float(number) for number in numbers]
    for kernels in ([], compiled()):
        floats = Documents(column).values_buffers(("n",), *kernels).floats()
        assert floats[:-2].tolist() == expected
        assert [math.copysign(1, f) for f in floats[:-2]] == [math.copysign(1, f) for f in expected]
        assert np.isnan(floats[-2:]).all()


@pytest.mark.parametrize("text", ["1x", "-", "1.", ".5", "1.2.3", "--1", "1-", "0x1", "01", "1e"])
def test_what_only_begins_like_a_number_is_not_read(text: str) -> None:
    column = pa.array([f'{{"n":{text}}}'])
    expected = jsontext.values_buffers(column, ("n",)).floats()
    for kernels in ([], compiled()):
        floats = Documents(column).values_buffers(("n",), *kernels).floats()
        assert (floats is None) == (expected is None)
        assert floats is None or np.array_equal(floats, expected, equal_nan=True)


def test_names_asked_for_before_are_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_asked", {})
    passes: list[tuple[str, ...]] = []

    def counted(texts: pa.Array, names: tuple[str, ...], *kernels: Any) -> Any:
        passes.append(names)
        return members.find_buffers(texts, names, *kernels)

    monkeypatch.setattr(documents, "find_buffers", counted)
    column = pa.array(['{"a":1,"b":{"c":2}}'])
    for _ in range(2):
        asked = Documents(column)
        for path, text in ((("a",), "1"), (("b", "c"), "2"), (("b",), '{"c":2}')):
            assert asked.values_buffers(path).text.to_pylist() == [text]
    assert passes == [("a",), ("a", "b"), ("a", "b")]
    for n in range(40):
        Documents(column).values_buffers((f"n{n}",))
    assert len(documents._asked) <= documents._MOST_NAMES


def test_few_rows_take_the_python_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents.NUMBERS, "seen", 0)
    monkeypatch.setattr(documents.NUMBERS, "_compiled", None)
    found = Documents(pa.array(['{"a":1}', None])).values(("a",))
    assert type(found) is jsontext.Values
    assert found.text.to_pylist() == ["1", None]
    assert type(Documents(pa.array([None, None], pa.string())).values(("a",))) is jsontext.Values


def test_masks_are_the_same_by_kernels() -> None:
    assert None not in compiled()  # from here on they are taken, however few the rows
    masks_say_what_a_test_of_each_value_says()
