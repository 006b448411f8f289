"""Positions of the postgres source: texts that compare bytewise as the log runs.

    TIMELINE.LSN           before whatever the server commits at LSN or behind it
    TIMELINE.LSN.ORDINAL   a change of the transaction whose commit record is at LSN

The timeline is the one on which the record was written, so that a change has the same position on
every server that has it, and what a server has lost in a failover can be told. A message outside
any transaction stands one byte before its record's end, where no commit record can begin. Rows
copied by a snapshot that is exact at TIMELINE.LSN are to stand at TIMELINE.LSN-s..., behind it and
before the changes at that place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .log import SourceError

_FORM = re.compile(r"([0-9a-f]{8})\.([0-9a-f]{16})(?:\.([0-9a-f]{8})|(-s.*))?")
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_LENGTH = 34
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    timeline: int
    lsn: int
    ordinal: int = -1

    def __str__(self) -> str:
        start = f"{self.timeline:08x}.{self.lsn:016x}"
        return start if self.ordinal < 0 else f"{start}.{self.ordinal:08x}"


def parse(position: str) -> Place:
    found = _FORM.fullmatch(position)
    if found is None:
        raise SourceError(f"{position!r} is not a position of a postgres source")
    ordinal = -1 if found[3] is None else int(found[3], 16)
    return Place(int(found[1], 16), int(found[2], 16), ordinal)


def lsn_text(lsn: int) -> str:
    """As PostgreSQL prints it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    found = _LSN.fullmatch(text)
    if found is None:
        raise SourceError(f"{text!r} is not a log position; one looks like 0/16B6C50")
    return int(found[1], 16) << 32 | int(found[2], 16)


@dataclass(frozen=True, slots=True)
class History:
    """The timelines of a server: `ended` are those before `timeline`, each with where it ended."""

    timeline: int
    ended: tuple[tuple[int, int], ...] = ()

    def of(self, lsn: int) -> int:
        """The timeline on which the record at `lsn` was written."""
        for timeline, end in self.ended:
            if lsn < end:
                return timeline
        return self.timeline

    def place(self, lsn: int) -> Place:
        return Place(self.of(lsn), lsn)

    def knows(self, place: Place) -> str:
        """Why the server may lack something up to `place`; "" when it has all of it."""
        if place.timeline == self.timeline:
            return ""
        for timeline, end in self.ended:
            if timeline == place.timeline:
                if place.lsn <= end:
                    return ""
                return (
                    f"it left timeline {timeline} at {lsn_text(end)}, before the position "
                    f"{lsn_text(place.lsn)} that was read there"
                )
        return f"its history has no timeline {place.timeline}"


def parse_history(timeline: int, content: str) -> History:
    """From the file that TIMELINE_HISTORY sends: a line for each timeline that ended."""
    ended = []
    for line in content.splitlines():
        parts = line.partition("#")[0].split()
        if len(parts) >= 2 and parts[0].isdigit():
            ended.append((int(parts[0]), parse_lsn(parts[1])))
    return History(timeline, tuple(ended))


def positions(history: History, lsns: Any, ordinals: Any) -> pa.Array:
    """Positions of changes, one for each number in the arrays."""
    count = len(lsns)
    text = np.empty((count, _LENGTH), np.uint8)
    text[:, 8] = text[:, 25] = ord(".")
    timelines = np.full(count, history.timeline, np.int64)
    for timeline, end in reversed(history.ended):
        timelines[lsns < end] = timeline
    _hex(text, 0, 8, timelines)
    _hex(text, 9, 16, lsns)
    _hex(text, 26, 8, ordinals)
    ends = np.arange(0, _LENGTH * count + 1, _LENGTH, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(text))


def lsn_texts(lsns: Any) -> pa.Array:
    """The numbers as PostgreSQL prints them; few of many are different."""
    values, inverse = np.unique(lsns, return_inverse=True)
    texts = pa.array([lsn_text(int(value)) for value in values], pa.string())
    return spread(texts, inverse)


def spread(values: pa.Array, index: Any) -> pa.Array:
    if len(values) == 1:
        return pa.repeat(values[0], len(index))
    return values.take(pa.array(index))


def _hex(text: Any, at: int, width: int, numbers: Any) -> None:
    if len(numbers) and numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        # As in a large transaction: one number for all.
        text[:, at : at + width] = np.frombuffer(f"{int(numbers[0]):0{width}x}".encode(), np.uint8)
        return
    left = numbers.astype(np.int64)
    for place in range(at + width - 1, at - 1, -1):
        text[:, place] = _DIGITS[left & 15]
        left = left >> 4


def without_page_header(lsn: int, segment: int, block: int = 8192) -> int:
    """The end of the last record, for a position at which the next one would begin.

    Where a page is full, the server tells the place behind the next page's header; no record ends there.
    """
    if lsn % segment == 40:
        return lsn - 40
    return lsn - 24 if lsn % block == 24 else lsn


def smallest(places: Sequence[Place]) -> Place:
    return min(places, key=str)
