"""Jobs say at their start what they need; a runtime that lacks it names all of it."""

from __future__ import annotations

import ast

import pytest
from dfc_runtime import features
from dfc_runtime.errors import Unavailable

from .goldens import CASES


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(Unavailable) as refused:
        features.check_needs(("dfc_mysql", "filter", "javascript", "journal"))
    assert str(refused.value) == (
        "the mysql source and the javascript processor and the dead letter queue (`journal`) "
        "are not built yet"
    )


def test_what_is_built_passes() -> None:
    features.check_needs(tuple(features.BUILT))


def test_a_newer_compiler_is_recognised() -> None:
    with pytest.raises(Unavailable, match="compiled by a newer dfc"):
        features.check_needs(("dfc_oracle",))


def test_every_need_of_every_golden_is_known() -> None:
    """No option is ignored: what a job asks for is either there or refused by name."""
    asked: set[str] = set()
    for case in CASES:
        for node in ast.walk(ast.parse((case.folder / "job.py").read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "needs":
                asked |= set(ast.literal_eval(node.value))
    assert asked == set(features._LATER) | (features.BUILT & asked)
