"""What dfc has to say about a spec: one list for all stages, rendered as text or JSON.

Codes never change their meaning. 1xx: the file and its text; 2xx: the shape the schema asks for;
3xx: templates; 4xx: rules between fields; 5xx: rules between files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .span import Span


@dataclass(frozen=True, slots=True)
class Diagnostic:
    code: str
    span: Span
    message: str
    help: str = ""
    severity: str = "error"

    def text(self) -> str:
        line = printable(f"{self.span}: {self.severity}[{self.code}]: {self.message}")
        return f"{line}\n  help: {printable(self.help)}" if self.help else line


MOST = 1_000  # errors that anybody reads; a file of a million mistakes is some other file


class Enough(Exception):
    """So many errors have been found that the rest need not be looked for."""


@dataclass
class Diagnostics:
    """Collects; every stage adds to the same list, so that all errors come at once."""

    found: list[Diagnostic] = field(default_factory=list)

    def error(self, code: str, span: Span, message: str, help: str = "") -> None:
        self.found.append(Diagnostic(code, span, message, help))
        if len(self.found) >= MOST:
            raise Enough

    def warning(self, code: str, span: Span, message: str, help: str = "") -> None:
        self.found.append(Diagnostic(code, span, message, help, "warning"))

    @property
    def failed(self) -> bool:
        return any(d.severity == "error" for d in self.found)

    def __iter__(self) -> Iterator[Diagnostic]:
        ordered = sorted(self.found, key=lambda d: (d.span, d.code, d.message))
        return iter(dict.fromkeys(ordered))

    def text(self) -> str:
        return "".join(f"{d.text()}\n" for d in self)

    def json(self) -> str:
        rows = [
            {
                "code": d.code,
                "severity": d.severity,
                "file": d.span.file,
                "line": d.span.line,
                "col": d.span.col,
                "message": d.message,
                "help": d.help or None,
            }
            for d in self
        ]
        return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"


def printable(text: str) -> str:
    """One line for a terminal or a comment, whatever the spec holds: texts may be hostile."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quote(text: str, most: int = 60) -> str:
    return f"`{text if len(text) <= most else text[: most - 1] + '…'}`"


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that is closest, if it is close enough to be a slip of the fingers."""
    folded = word.lower().replace("-", "_")
    best: tuple[int, int, str] | None = None
    for candidate in known:
        other = candidate.lower().replace("-", "_")
        limit = max(1, min(len(other), len(folded)) // 3)
        distance = _distance(folded, other, limit)
        # Of two that are as close, the one that begins the same: fingers slip later in a word.
        same = next((i for i, (a, b) in enumerate(zip(folded, other, strict=False)) if a != b), 99)
        rank = (distance, -same, candidate)
        if distance <= limit and (best is None or rank[:2] < best[:2]):
            best = rank
    return best[2] if best else None


def _distance(a: str, b: str, limit: int) -> int:
    """Edits (with swaps of neighbours) between two words; anything above `limit` is just more."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before_last: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(row[j - 1] + 1, last[j] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before_last[j - 2] + 1)
            row.append(cost)
        before_last, last = last, row
    return last[-1]
