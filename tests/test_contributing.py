"""The map in docs/contributing.md shows the modules there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("folder", ["compiler", "runtime"])
def test_layout_table_names_every_module_once(folder: str) -> None:
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    section = text.split(f"### {folder}\n", 1)[1].split("\n#", 1)[0]
    listed = re.findall(r"^\| `([^`]+\.py)` \|", section, re.MULTILINE)
    there = [p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob("*.py")]
    assert not set(there) - set(listed), "modules without a line in docs/contributing.md"
    assert not set(listed) - set(there), "docs/contributing.md names modules that are gone"
    assert len(listed) == len(there), "docs/contributing.md names a module twice"
