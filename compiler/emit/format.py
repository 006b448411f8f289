"""The last step: black, with the mode spelled out so that a user's own settings change nothing."""

from __future__ import annotations

import black
from black.mode import Mode, TargetVersion

MODE = Mode(
    target_versions={TargetVersion.PY311},
    line_length=100,
    string_normalization=True,
    magic_trailing_comma=True,
    preview=False,
)


def format_source(source: str) -> str:
    return black.format_str(source, mode=MODE)
