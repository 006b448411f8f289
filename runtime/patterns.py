"""Table patterns, the same for sources and processors.

`db.table` is split at its first dot; a bare name means that table under any qualifier. Case counts.
`*` and `%` stand for any run of characters; `_` stands for one character, but only in a pattern
with `%`, where SQL's LIKE is meant: elsewhere it is a letter of so many table names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache


def _regex(pattern: str, like: bool) -> str:
    parts = []
    for character in pattern:
        if character in "*%":
            parts.append(".*")
        elif character == "_" and like:
            parts.append(".")
        else:
            parts.append(re.escape(character))
    return "".join(parts)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> tuple[re.Pattern[str] | None, re.Pattern[str]]:
    like = "%" in pattern
    qualifier, dot, table = pattern.partition(".")
    if not dot:
        return None, re.compile(_regex(pattern, like), re.DOTALL)
    return (
        re.compile(_regex(qualifier, like), re.DOTALL),
        re.compile(_regex(table, like), re.DOTALL),
    )


def matches(pattern: str, qualifier: str | None, table: str) -> bool:
    """Whether `pattern` means the table `qualifier.table`."""
    first, second = _compiled(pattern)
    if first is not None and first.fullmatch(qualifier or "") is None:
        return False
    return second.fullmatch(table) is not None


def selected(
    qualifier: str | None, table: str, include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> bool:
    """Whether the lists take this table: exclude wins, an empty include means every table."""
    if any(matches(pattern, qualifier, table) for pattern in exclude):
        return False
    patterns = tuple(include)
    return not patterns or any(matches(pattern, qualifier, table) for pattern in patterns)
