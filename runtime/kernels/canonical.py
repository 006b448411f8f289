"""Which JSON texts a script engine would print just as they are, once it has read them.

A text that is not told so may still be: the engine finds out itself, which costs it far more than
this kernel. There is no Python way for that reason; without numba nothing is told of any text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from .jit import Kernel
from .jsontext import buffers

_DEEPEST = 32
_MOST_KEYS = 512  # of one text; the table of them is twice as large


def canonical(texts: pa.Array) -> Any:
    """A mask of the texts that are known to survive the way through an engine byte for byte."""
    kernel = KERNEL.after(len(texts))
    return None if kernel is None else canonical_buffers(texts, kernel)


def canonical_buffers(texts: pa.Array, kernel: Callable[..., Any] | None = None) -> Any:
    data, offsets, valid = buffers(texts)
    told = np.zeros(len(texts), np.uint8)
    table = np.zeros(2 * _MOST_KEYS, np.uint64)
    stamps = np.zeros(2 * _MOST_KEYS, np.int64)
    with np.errstate(over="ignore"):  # hashes wrap around; the compiled kernel does so unasked
        (kernel or canonical_rows)(data, offsets, valid, table, stamps, told)
    return told.astype(bool)


def number_end(data: Any, at: int, stop: int) -> int:
    """Behind a number that is printed as it is written; -1 for one that may not be."""
    negative = data[at] == 45
    if negative:
        at += 1
    begin = at
    while at < stop and 48 <= data[at] <= 57:
        at += 1
    digits = at - begin
    if digits == 0 or digits > 15 or (digits > 1 and data[begin] == 48):
        return -1
    zero = digits == 1 and data[begin] == 48
    if at < stop and data[at] == 46:
        point = at
        at += 1
        while at < stop and 48 <= data[at] <= 57:
            at += 1
        places = at - point - 1
        # Fifteen digits in all come back as they were; very small numbers get an exponent, and a
        # last 0 is not printed.
        if places == 0 or places > 6 or digits + places > 15 or data[at - 1] == 48:
            return -1
    elif negative and zero:
        return -1
    if at < stop and (data[at] == 101 or data[at] == 69):
        return -1
    return at


def canonical_rows(data: Any, offsets: Any, valid: Any, table: Any, stamps: Any, told: Any) -> None:
    inside = np.zeros(_DEEPEST + 1, np.int64)  # by depth: number of the object, 0 in a list
    for row in range(len(valid)):
        if valid[row] == 0:
            continue
        at = int(offsets[row])
        stop = int(offsets[row + 1])
        depth = 0
        objects = 0
        keys = 0
        fine = at < stop and data[at] == 123
        expects_key = False
        while fine and at < stop:
            c = data[at]
            if c == 123:
                depth += 1
                objects += 1
                if depth > _DEEPEST:
                    fine = False
                    break
                inside[depth] = objects
                expects_key = True
                at += 1
            elif c == 91:
                depth += 1
                if depth > _DEEPEST:
                    fine = False
                    break
                inside[depth] = 0
                expects_key = False
                at += 1
            elif c == 125 or c == 93:
                depth -= 1
                if depth < 0:
                    fine = False
                    break
                expects_key = False
                at += 1
            elif c == 44:
                expects_key = inside[depth] > 0
                at += 1
            elif c == 58:
                expects_key = False
                at += 1
            elif c == 34:
                at += 1
                begin = at
                # The same key in two objects is no repetition: the object is part of the mark.
                mark = np.uint64(14695981039346656037) ^ np.uint64(inside[depth])
                mark *= np.uint64(1099511628211)
                number = True
                while at < stop and data[at] != 34:
                    c = data[at]
                    if c < 32:
                        fine = False
                        break
                    if c == 92:
                        at += 1
                        e = data[at] if at < stop else 0
                        # " \ b f n r t; anything else is written in another way
                        if not (
                            e == 34
                            or e == 92
                            or e == 98
                            or e == 102
                            or e == 110
                            or e == 114
                            or e == 116
                        ):
                            fine = False
                            break
                        mark = (mark ^ np.uint64(e)) * np.uint64(1099511628211)
                    if c < 48 or c > 57:
                        number = False
                    mark = (mark ^ np.uint64(c)) * np.uint64(1099511628211)
                    at += 1
                if not fine or at >= stop:
                    fine = False
                    break
                if expects_key:
                    # Keys that are numbers are put first by the language, and of two that are the
                    # same one is lost.
                    keys += 1
                    if (number and at > begin) or keys > _MOST_KEYS:
                        fine = False
                        break
                    slot: Any = np.int64(mark % np.uint64(len(table)))
                    while stamps[slot] == row + 1:
                        if table[slot] == mark:
                            fine = False
                            break
                        slot = slot + 1 if slot + 1 < len(table) else 0
                    if not fine:
                        break
                    stamps[slot] = row + 1
                    table[slot] = mark
                at += 1
            elif c == 45 or 48 <= c <= 57:
                at = number_end(data, at, stop)
                fine = at >= 0
            elif c == 116 or c == 110:
                at += 4
            elif c == 102:
                at += 5
            else:
                fine = False
        if fine and depth == 0 and at == stop:
            told[row] = 1


KERNEL = Kernel(canonical_rows, number_end)
