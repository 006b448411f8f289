from __future__ import annotations

import pickle

import pytest
from dfc_runtime.env import Env, expand
from dfc_runtime.errors import MissingEnv


def test_every_missing_name_is_in_the_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFC_A", "secret-value")
    for name in ("DFC_B", "DFC_C"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(MissingEnv) as caught:
        Env.require(("DFC_C", "DFC_A", "DFC_B"))
    assert caught.value.names == ("DFC_B", "DFC_C")
    assert "secret-value" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain", "plain"),
        ("${HOST}:${PORT:-99}", "db:99"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY}", ""),
        ("$$${HOST}", "$db"),
        ("$${HOST}", "${HOST}"),
        ("${source.table}", "${source.table}"),
        ("${HOST:-}", "db"),
        ("${NONE:-}", ""),
    ],
)
def test_fill(text: str, filled: str) -> None:
    assert Env({"HOST": "db", "EMPTY": ""}).fill(text) == filled


def test_fill_names_what_is_missing() -> None:
    with pytest.raises(MissingEnv, match="A, B"):
        Env({}).fill("${B}${A}${B}")


def test_expand_reads_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFC_X", "1")
    assert expand("a${DFC_X}") == "a1"


def test_values_do_not_show() -> None:
    assert "hidden" not in repr(Env({"A": "hidden"}))


def test_only_what_the_job_uses_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMED", "FILLED", "ASKED", "LOOKED", "OTHER"):
        monkeypatch.setenv(f"DFC_{name}", f"value of {name}")
    monkeypatch.delenv("DFC_NONE", raising=False)
    env = Env.require(["DFC_NAMED"])
    env.fill("${DFC_FILLED} ${DFC_NONE:-x}")
    assert env["DFC_ASKED"] and "DFC_LOOKED" in env and "DFC_NONE" not in env
    data = pickle.dumps(env)
    there = pickle.loads(data)
    assert set(there) == {"DFC_NAMED", "DFC_FILLED", "DFC_ASKED", "DFC_LOOKED"}
    assert b"OTHER" not in data
    assert there.fill("${DFC_FILLED}, ${DFC_NONE:-x}") == "value of FILLED, x"
    assert env["DFC_OTHER"] == "value of OTHER", "here it is still there"
