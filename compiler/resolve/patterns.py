"""Table patterns at compile time: may one pattern reach what another captures?"""

from __future__ import annotations

import re


def is_wild(pattern: str) -> bool:
    return "%" in pattern or "*" in pattern


def captures(captured: tuple[str, ...], pattern: str) -> bool:
    """True if the tables captured by some pattern can include one that `pattern` means."""
    if not captured:
        return True
    return any(_meet(other, pattern) for other in captured)


def _meet(a: str, b: str) -> bool:
    if not is_wild(a):
        return _matches(b, a)
    if not is_wild(b):
        return _matches(a, b)
    return True  # two wildcards: which tables there are is only known at run time


def _matches(pattern: str, table: str) -> bool:
    """A name without qualifier stands for that table under any qualifier."""
    if "." not in pattern:
        table = table.rpartition(".")[2]
    elif "." not in table:
        pattern = pattern.rpartition(".")[2]
    return re.fullmatch(_regex(pattern), table) is not None


def _regex(pattern: str) -> str:
    like = "%" in pattern  # `_` is a wildcard of LIKE patterns only: table names are full of it
    pieces = {"%": "[^.]*", "*": "[^.]*", **({"_": "[^.]"} if like else {})}
    return "".join(pieces.get(c, re.escape(c)) for c in pattern)
