"""What dfc says about broken specs, byte for byte: place, message and help of every rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dfc.compiler.cli import main

from .goldens import GOLDEN, check_folder

FOLDERS = sorted((GOLDEN / "errors").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_broken_spec_is_refused_with_its_golden_words(
    folder: Path,
    update_golden: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    code = main(["validate", *sorted(p.name for p in folder.glob("*.yaml"))])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert "fault of dfc" not in err
    assert "hunter2" not in err, "a secret was shown"
    check_folder(folder, {"stderr.txt": err}, update_golden)


def test_every_diagnostic_code_has_a_golden() -> None:
    """A rule without a golden is a rule nobody has read the words of."""
    said: set[str] = set()
    for path in (GOLDEN / "errors").glob("*/stderr.txt"):
        said.update(re.findall(r"DFC\d{3}", path.read_text("utf-8")))
    compiler = GOLDEN.parent / "compiler"
    written: set[str] = set()
    for path in compiler.rglob("*.py"):
        written.update(re.findall(r'"(DFC\d{3})"', path.read_text("utf-8")))
    assert written - said == EXEMPT


# DFC101 needs a file of megabytes, the others are warnings: all have tests of their own.
EXEMPT = {"DFC101", "DFC421", "DFC502"}
