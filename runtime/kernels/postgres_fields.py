"""Where the fields of rows lie: of pgoutput's tuples, and of the lines that COPY gives.

Both become the same two arrays, so that everything behind them is one way for stream and snapshot.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from .jit import Kernel
from .pgoutput import Split, be2, be4, kernel_by
from .postgres_messages import WHERE, FrameError

# Sizes of fields that have no text.
NULL, UNCHANGED, ABSENT = -1, -2, -3

MOST = 2**31 - 1  # bytes of one buffer: offsets have 32 bits


@dataclass(frozen=True, slots=True)
class Fields:
    """Offset and size of each field in `data`, by row and column; `present` tells which rows are there."""

    data: Any
    starts: Any
    sizes: Any
    present: Any


def tuples(
    split: Split, rows: Any, key: Any, way: str = "", whole: bool = True
) -> tuple[Fields | None, Fields]:
    """Fields of the old and the new rows of these messages, which are of one table.

    `key` tells for each column whether it is part of the replica identity; without `whole` no old row
    holds more than that, whatever the messages say. Fields that an update has left unchanged are taken
    from the old row, where that has them. Without any old row the first result is None.
    """
    data = split.data
    if len(data) > MOST:
        raise FrameError(WHERE, 0, 0, "more than 2 GiB were read at once")
    shape = len(rows), len(key)
    problem = np.zeros(3, np.int64)
    old_at, new_at = split.old_at[rows], split.new_at[rows]
    only_key = (split.old_kind[rows] == 75) | (not whole)
    run = kernel_by(TUPLES, way, len(rows)) or _tuple_fields_python
    old = None
    starts, sizes = np.zeros(shape, np.int32), np.full(shape, ABSENT, np.int32)
    if old_at.any():
        old_starts, old_sizes = np.zeros(shape, np.int32), np.full(shape, ABSENT, np.int32)
        run(data, old_at, only_key, key, old_starts, old_sizes, starts, sizes, problem)
        _check(split, rows, problem)
        old = Fields(data, old_starts, old_sizes, old_at > 0)
        run(data, new_at, only_key & False, key, starts, sizes, old_starts, old_sizes, problem)
    else:
        run(data, new_at, only_key & False, key, starts, sizes, starts, sizes, problem)
    _check(split, rows, problem)
    return old, Fields(data, starts, sizes, new_at > 0)


def _check(split: Split, rows: Any, problem: Any) -> None:
    if problem[0]:
        message = int(rows[problem[1]])
        offset = int(problem[2] - split.starts[message])
        why = (
            "its row has another number of columns than its table"
            if problem[0] == 1
            else "a field is binary, which was not asked for"
        )
        raise FrameError(WHERE, message, offset, why)


def tuple_fields(
    data: Any,
    ats: Any,
    only_key: Any,
    key: Any,
    starts: Any,
    sizes: Any,
    other_starts: Any,
    other_sizes: Any,
    problem: Any,
) -> None:
    """Notes the fields of the rows at `ats`; unchanged ones as the other image has them."""
    count = len(key)
    for row in range(len(ats)):
        at = ats[row]
        if at == 0:
            continue
        if be2(data, at) != count:
            problem[0] = 1
            problem[1] = row
            problem[2] = at
            return
        at += 2
        for column in range(count):
            kind = data[at]
            at += 1
            size = NULL
            if kind == 116:
                size = be4(data, at)
                at += 4
                starts[row, column] = at
                at += size
            elif kind == 117:
                size = UNCHANGED
                if other_sizes[row, column] >= 0:
                    starts[row, column] = other_starts[row, column]
                    size = other_sizes[row, column]
            elif kind != 110:
                problem[0] = 2
                problem[1] = row
                problem[2] = at - 1
                return
            # The server sends nulls for what is not part of the key.
            if not only_key[row] or key[column]:
                sizes[row, column] = size


TUPLES = Kernel(tuple_fields, be2, be4)
_two_bytes, _four_bytes = struct.Struct(">H").unpack_from, struct.Struct(">I").unpack_from


def _tuple_fields_python(
    data: Any,
    ats: Any,
    only_key: Any,
    key: Any,
    starts: Any,
    sizes: Any,
    other_starts: Any,
    other_sizes: Any,
    problem: Any,
) -> None:
    """The same with the tools of Python, for few rows."""
    view, is_key = memoryview(data), key.tolist()
    for row, (at, partial) in enumerate(zip(ats.tolist(), only_key.tolist(), strict=True)):
        if at == 0:
            continue
        if _two_bytes(view, at)[0] != len(is_key):
            problem[:] = 1, row, at
            return
        at += 2
        own_starts, own_sizes = [], []
        for column, wanted in enumerate(is_key):
            kind = view[at]
            at += 1
            start, size = 0, NULL
            if kind == 116:
                (size,) = _four_bytes(view, at)
                start = at + 4
                at = start + size
            elif kind == 117:
                size = UNCHANGED
                if other_sizes[row, column] >= 0:
                    start, size = other_starts[row, column], other_sizes[row, column]
            elif kind != 110:
                problem[:] = 2, row, at - 1
                return
            own_starts.append(start)
            own_sizes.append(size if wanted or not partial else ABSENT)
        starts[row], sizes[row] = own_starts, own_sizes


# --- COPY ------------------------------------------------------------------------------------


def lines(data: bytes | bytearray | memoryview, count: int, way: str = "") -> tuple[Fields, int]:
    """Fields of the whole lines in COPY's text format, and how many bytes these lines take.

    What is behind the last line's end belongs in front of the next piece of data.
    """
    if len(data) > MOST:
        raise FrameError(_LINE, 0, 0, "more than 2 GiB were read at once")
    rows = int(np.count_nonzero(np.frombuffer(data, np.uint8) == 10))
    kernel = kernel_by(LINES, way, rows)
    if kernel is None:
        return _lines_python(bytes(data), count)
    content = np.array(np.frombuffer(data, np.uint8))  # a copy: escapes are undone in place
    starts, sizes = np.zeros((rows, count), np.int32), np.full((rows, count), NULL, np.int32)
    problem = np.zeros(3, np.int64)
    used = int(kernel(content, rows, count, starts, sizes, problem))
    if problem[0]:
        why = _COUNT if problem[0] == 1 else _ESCAPE
        raise FrameError(_LINE, int(problem[1]), int(problem[2]), why)
    content.flags.writeable = False
    return Fields(content, starts, sizes, np.ones(rows, np.bool_)), used


_PLAIN = {98: 8, 102: 12, 110: 10, 114: 13, 116: 9, 118: 11}


def _lines_python(data: bytes, count: int) -> tuple[Fields, int]:
    """The same with the tools of Python, for few rows."""
    whole = data.rfind(b"\n") + 1
    rows = data[:whole].split(b"\n")[:-1]
    starts = np.zeros((len(rows), count), np.int32)
    sizes = np.full((len(rows), count), NULL, np.int32)
    parts: list[bytes] = []
    used = 0
    for row, line in enumerate(rows):
        fields = line.split(b"\t") if count or line else []
        if len(fields) != count:
            raise FrameError(_LINE, row, _place(fields, count), _COUNT)
        for column, field in enumerate(fields):
            if field == b"\\N":
                continue
            if b"\\" in field:
                if (len(field) - len(field.rstrip(b"\\"))) % 2:
                    offset = sum(map(len, fields[: column + 1])) + column
                    raise FrameError(_LINE, row, offset, _ESCAPE)
                field = _unescaped(field)
            starts[row, column], sizes[row, column] = used, len(field)
            parts.append(field)
            used += len(field)
    content = np.frombuffer(b"".join(parts) or b"\0", np.uint8)
    return Fields(content, starts, sizes, np.ones(len(rows), np.bool_)), whole


_LINE = "COPY: line"
_COUNT = "it has another number of columns than its table"
_ESCAPE = "a backslash has nothing behind it"


def _place(fields: list[bytes], count: int) -> int:
    """Where a line goes wrong: its end, or the first field too many."""
    return sum(len(field) + 1 for field in fields[:count]) - (len(fields) <= count)


def _unescaped(field: bytes) -> bytes:
    first, *rest = field.split(b"\\\\")

    def plain(part: bytes) -> bytes:
        head, *escapes = part.split(b"\\")
        return head + b"".join(bytes([_PLAIN.get(e[0], e[0])]) + e[1:] for e in escapes)

    return b"\\".join(map(plain, (first, *rest)))


def line_fields(data: Any, rows: int, count: int, starts: Any, sizes: Any, problem: Any) -> int:
    """Notes the fields of each line and undoes their escapes; the number of bytes read."""
    at = 0
    for row in range(rows):
        line = at
        column = 0
        problem[1] = row
        if count == 0:
            if data[at] != 10:
                problem[0] = 1
                problem[2] = 0
                return at
            at += 1
            continue
        while True:
            begin = at
            c = data[at]
            while c != 9 and c != 10 and c != 92:
                at += 1
                c = data[at]
            end = at
            null = False
            if c == 92:
                while c != 9 and c != 10:
                    if c == 92:
                        at += 1
                        c = data[at]
                        if c == 9 or c == 10:
                            problem[0] = 2
                            problem[2] = at - line
                            return at
                        if (
                            c == 78
                            and at == begin + 1
                            and (data[at + 1] == 9 or data[at + 1] == 10)
                        ):
                            null = True
                        elif c == 98:
                            c = 8
                        elif c == 102:
                            c = 12
                        elif c == 110:
                            c = 10
                        elif c == 114:
                            c = 13
                        elif c == 116:
                            c = 9
                        elif c == 118:
                            c = 11
                    data[end] = c
                    end += 1
                    at += 1
                    c = data[at]
            if column == count:
                problem[0] = 1
                problem[2] = begin - line
                return at
            starts[row, column] = begin
            if not null:
                sizes[row, column] = end - begin
            column += 1
            at += 1
            if c == 10:
                break
        if column != count:
            problem[0] = 1
            problem[2] = at - 1 - line
            return at
    return at


LINES = Kernel(line_fields)
