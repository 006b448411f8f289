"""Where a piece of a spec stands in its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """One place in one file; lines and columns count from 1, in characters."""

    file: str
    line: int
    col: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"

    def short(self) -> str:
        """Without folders and column: the same wherever the spec lies."""
        return f"{PurePath(self.file).name}:{self.line}"

    def right(self, columns: int) -> Span:
        return Span(self.file, self.line, self.col + columns)
