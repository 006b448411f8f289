"""A column of JSON texts that is asked for one path after the other, as filters do.

All that filters ask for is found in one pass. They ask for it one by one, but they ask the same of
every batch: names that were asked for before are looked for together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from .jit import Kernel
from .jsontext import Values, u, values
from .members import BEGIN, GATHER, SPLIT, Member, find_buffers

_MOST_NAMES = 16
_asked: dict[str, None] = {}  # in this process, latest last


class Documents:
    """Lookups in one column, which remember what they found on the way."""

    def __init__(self, texts: pa.Array) -> None:
        self.texts = texts
        self._found: dict[str, Member] = {}

    def values(self, path: tuple[str, ...]) -> Values:
        rows = len(self.texts)
        kernels = [kernel.after(rows) for kernel in (SPLIT, GATHER, BEGIN, NUMBERS)]
        if None in kernels or self.texts.null_count == rows:
            return values(self.texts, path)
        return self.values_buffers(path, *kernels)

    def values_buffers(
        self,
        path: tuple[str, ...],
        split: Callable[..., Any] | None = None,
        gather: Callable[..., Any] | None = None,
        begin: Callable[..., Any] | None = None,
        numbers: Callable[..., Any] | None = None,
    ) -> Values:
        """The same by kernels, compiled or, in tests, as plain functions."""
        name, *rest = path
        if name not in self._found:
            if len(_asked) >= _MOST_NAMES and name not in _asked:
                _asked.clear()
            _asked[name] = None
            self._found = find_buffers(self.texts, tuple(_asked), split, gather, begin)
        member = self._found[name]
        return values(member.text, tuple(rest)) if rest else MemberValues(member, numbers)


class MemberValues(Values):
    """Values that are neither copied nor read as numbers before somebody asks."""

    def __init__(self, member: Member, numbers: Callable[..., Any] | None = None) -> None:
        self.kind = member.kind
        self._member = member
        self._numbers = numbers or number_rows

    @cached_property
    def text(self) -> pa.Array:
        return self._member.plain

    def floats(self) -> Any:
        found = self._member
        floats = np.full(len(self.kind), np.nan)
        left = np.zeros(len(self.kind), np.bool_)
        if self._numbers(found.data, found.starts, found.ends, found.kind, _POWERS, floats, left):
            rows = np.flatnonzero(left)
            others = Values(self.text.take(pa.array(rows)), self.kind[rows]).floats()
            if others is None:
                return None
            floats[rows] = others
        return floats


_DIGITS = 15
_POWERS = 10.0 ** np.arange(_DIGITS + 1)


def number_rows(
    data: Any, starts: Any, ends: Any, kinds: Any, powers: Any, floats: Any, left: Any
) -> int:
    """Reads short decimal numbers, and notes which are `left`; how many these are.

    Up to 15 digits and a power of ten are exact as floats, and their quotient is rounded once: it is
    the float that is nearest to the number, as for any other reader.
    """
    count = 0
    for row in range(len(kinds)):
        kind = kinds[row]
        if kind != 45 and (kind < 48 or kind > 57):
            continue
        at = int(starts[row])
        end = int(ends[row])
        if kind == 45:
            at += 1
        digits = 0
        decimals = 0
        whole = 0
        sound = at < end and (data[at] != 48 or at + 1 == end or data[at + 1] == 46)
        while at < end and digits <= len(powers):
            c = int(data[u(at)])
            if c == 46 and decimals == 0 and digits > 0 and at + 1 < end:
                decimals = digits
            elif c < 48 or c > 57:
                sound = False
                break
            else:
                whole = whole * 10 + c - 48
                digits += 1
            at += 1
        if not sound or digits >= len(powers):
            left[row] = True
            count += 1
            continue
        value = float(whole)
        if decimals > 0:
            value /= powers[digits - decimals]
        floats[row] = -value if kind == 45 else value
    return count


NUMBERS = Kernel(number_rows)
