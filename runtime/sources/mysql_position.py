"""Positions of the mysql source: texts that compare bytewise as the log runs.

    ERA.FILE.OFFSET           before the transaction that begins there
    ERA.FILE.OFFSET.EVENTROW  a row (or statement) of the transaction that begins at OFFSET

ERA counts how often the numbering of files began anew: with another server. EVENT numbers the rows
events of the transaction and ROW the rows of such an event, so that a place inside a transaction can
be found again from its beginning, where alone reading can start. Rows copied by a snapshot that is
exact at ERA.FILE.OFFSET are to stand at ERA.FILE.OFFSET-s..., which sorts behind it and before the
next transaction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .log import SourceError

_FORM = re.compile(
    r"([0-9a-f]{4})\.([0-9a-f]{8})\.([0-9a-f]{10})(?:\.([0-9a-f]{7})([0-9a-f]{7})|(-s.*))?"
)
_LENGTH = 39
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    era: int
    file: int
    offset: int
    event: int = -1
    row: int = 0

    def __str__(self) -> str:
        start = f"{self.era:04x}.{self.file:08x}.{self.offset:010x}"
        return start if self.event < 0 else f"{start}.{self.event:07x}{self.row:07x}"

    @property
    def ordinal(self) -> int:
        """Event and row as one number."""
        return self.event << 28 | self.row

    @property
    def start(self) -> Place:
        """Before the transaction."""
        return Place(self.era, self.file, self.offset)


def parse(position: str) -> Place:
    found = _FORM.fullmatch(position)
    if found is None:
        raise SourceError(f"{position!r} is not a position of a mysql source")
    era, file, offset = (int(part, 16) for part in found.groups()[:3])
    if found[4] is None:
        return Place(era, file, offset)
    return Place(era, file, offset, int(found[4], 16), int(found[5], 16))


def positions(era: int, file: int, offsets: Any, events: Any, rows: Any) -> pa.Array:
    """Positions of rows, one for each number in the arrays."""
    count = len(offsets)
    text = np.empty((count, _LENGTH), np.uint8)
    text[:, :14] = np.frombuffer(f"{era:04x}.{file:08x}.".encode(), np.uint8)
    text[:, 24] = ord(".")
    _hex(text, 14, 10, offsets)
    _hex(text, 25, 7, events)
    _hex(text, 32, 7, rows)
    ends = np.arange(0, _LENGTH * count + 1, _LENGTH, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(text))


def _hex(text: Any, at: int, width: int, numbers: Any) -> None:
    if len(numbers) and numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        # As in a large transaction: one number for all.
        text[:, at : at + width] = np.frombuffer(f"{int(numbers[0]):0{width}x}".encode(), np.uint8)
        return
    left = numbers.astype(np.int64)
    for place in range(at + width - 1, at - 1, -1):
        text[:, place] = _DIGITS[left & 15]
        left = left >> 4


def file_number(name: str) -> tuple[str, int, int]:
    """Base name, number and digits of a file of the log."""
    base, _, digits = name.rpartition(".")
    if not base or not digits.isdigit():
        raise SourceError(f"the binary log has a file of an unusual name: {name!r}")
    return base, int(digits), len(digits)
