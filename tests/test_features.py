"""Jobs say at their start what they need; a runtime that lacks it names all of it."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
from dfc_runtime import features
from dfc_runtime.errors import ConfigError, DfcError, Unavailable

from .goldens import CASES


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(Unavailable) as refused:
        features.check_needs(("turso_native", "filter", "schema_sensing", "connection_policy"))
    assert str(refused.value) == (
        "`cdc_mode: native` and `schema_sensing` and `connection_policy` are not built yet"
    )


def test_every_check_is_made_and_all_that_failed_is_said() -> None:
    made = []

    def check(error: DfcError | None) -> Callable[[], None]:
        def run() -> None:
            made.append(error)
            if error is not None:
                raise error

        return run

    kafka = Unavailable("the kafka sink is not built yet")
    redis = Unavailable("the redis sink is not built yet")
    folder = ConfigError("sink `a`: /x is not writable")
    features.check_all([check(None)])
    with pytest.raises(Unavailable, match=r"^the kafka sink is not built yet$"):
        features.check_all([check(kafka), check(None)])
    made.clear()
    with pytest.raises(Unavailable) as refused:
        features.check_all([check(kafka), check(None), check(redis), check(kafka)])
    assert str(refused.value) == f"{kafka}; {redis}" and len(made) == 4
    with pytest.raises(ConfigError, match=f"^{kafka}; {folder}$"):
        features.check_all([check(kafka), check(folder)])


def test_what_is_built_passes() -> None:
    features.check_needs(tuple(features.BUILT))


def test_a_newer_compiler_is_recognised() -> None:
    with pytest.raises(Unavailable, match="compiled by a newer dfc"):
        features.check_needs(("dfc_oracle",))
    with pytest.raises(Unavailable, match="newer dfc; `schema_sensing` is not built"):
        features.check_needs(("dfc_oracle", "schema_sensing"))


def test_every_need_of_every_golden_is_known() -> None:
    """No option is ignored: what a job asks for is either there or refused by name."""
    asked: set[str] = set()
    for case in CASES:
        for node in ast.walk(ast.parse((case.folder / "job.py").read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "needs":
                asked |= set(ast.literal_eval(node.value))
    assert asked == set(features._LATER) | (features.BUILT & asked)
