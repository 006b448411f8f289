"""Rows of a SELECT, as MySQL's binary protocol has them, turned into rows as the log has them.

What the log's rows become is decided in one place, by `mysql_rows`; so a row that is read becomes what
the log would have made of it. Only the framing of values differs: sizes, dates and times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import Kernel, n64
from .jsontext import copy

u = np.uint64

# What is done with a value: operation, bytes in the image, bytes of it for parts of a second.
FIXED, SIZED, BITS, DATE, DATETIME, TIMESTAMP, TIME = range(7)
WIDTH = 3
# How a call ended: more bytes are needed, the images have no room, the rows are through, the server
# says an error, a row of several packets, no row where one should be.
MORE, FULL, END, FAILED, LONG, BROKEN = range(6)
EXTRA = 16  # bytes that a value takes at most in an image beyond those in its packet

_MOST = 0xFFFFFF  # bytes of a packet that has a continuation


def frame_images(
    data: Any, at: int, stop: int, columns: Any, out: Any, used: int, rows: int
) -> tuple[int, int, int, int]:
    """Packets of data[at:stop] as images in out[used:]; how it ended, and the new at, used, rows."""
    spare = EXTRA * (len(columns) + 1)
    while True:
        if stop - at < 5:
            return MORE, at, used, rows
        size = n64(data[u(at)]) | n64(data[u(at + 1)]) << 8 | n64(data[u(at + 2)]) << 16
        first = data[u(at + 4)]
        if size == _MOST:
            return LONG, at, used, rows
        if stop - at < 4 + size:
            return MORE, at, used, rows
        if first == 0xFE and size < 9:
            return END, at, used, rows
        if first == 0xFF:
            return FAILED, at, used, rows
        if first != 0:
            return BROKEN, at, used, rows
        if used + size + spare > len(out):
            return FULL, at, used, rows
        done = put_image(data, at + 5, at + 4 + size, columns, out, used)
        if done < 0:
            return BROKEN, at, used, rows
        used = done
        at += 4 + size
        rows += 1


def put_image(data: Any, at: int, end: int, columns: Any, out: Any, used: int) -> int:
    """One row behind its first byte; -1 when it is none of these columns."""
    count = len(columns)
    bits = at
    at += (count + 9) // 8
    if at > end:
        return -1
    nulls = used
    for i in range((count + 7) // 8):
        out[u(used + i)] = 0
    used += (count + 7) // 8
    for c in range(count):
        if data[u(bits + ((c + 2) >> 3))] >> ((c + 2) & 7) & 1:
            out[u(nulls + (c >> 3))] |= 1 << (c & 7)
            continue
        op = columns[c, 0]
        width = columns[c, 1]
        if op == FIXED:
            if end - at < width:
                return -1
            for i in range(width):
                out[u(used + i)] = data[u(at + i)]
            at += width
            used += width
            continue
        if at >= end:
            return -1
        size = n64(data[u(at)])
        at += 1
        if op <= BITS and size > 250:
            more = 2 if size == 252 else 3 if size == 253 else 8 if size == 254 else -1
            if more < 0 or end - at < more:
                return -1
            size = 0
            for i in range(min(more, 7)):
                size |= n64(data[u(at + i)]) << 8 * i
            at += more
        if size > end - at:
            return -1
        if op == SIZED:
            for i in range(4):
                out[u(used + i)] = size >> 8 * i & 255
            used += 4
            if size > 256:
                out[used : used + size] = data[at : at + size]
                used += size
            else:
                used = copy(data, at, at + size, out, used)
        elif op == BITS:
            if size > width:
                return -1
            for i in range(width - size):
                out[u(used + i)] = 0
            used = copy(data, at, at + size, out, used + width - size)
        else:
            used = put_temporal(data, at, size, op, columns[c, 2], out, used)
            if used < 0:
                return -1
        at += size
    return used if at == end else -1


def put_temporal(data: Any, at: int, size: int, op: int, part: int, out: Any, used: int) -> int:
    """A date or time as the log packs it; -1 when its size is none that there is."""
    if size != 0 and size != 4 and size != 7 and size != 8 and size != 11 and size != 12:
        return -1
    if op == TIME:
        negative = False
        moment = n64(0)
        micros = n64(0)
        if size > 0:
            if size < 8 or size == 11:
                return -1
            negative = data[u(at)] != 0
            hour = 24 * little(data, at + 1, 4) + n64(data[u(at + 5)])
            moment = hour << 12 | n64(data[u(at + 6)]) << 6 | n64(data[u(at + 7)])
            if size == 12:
                micros = little(data, at + 8, 4)
        moment = moment << 8 * part | parts_of(micros, part)
        zero = n64(0x800000) << 8 * part
        return put_big(out, used, zero - moment if negative else zero + moment, 3 + part)
    year = n64(0)
    month = n64(0)
    day = n64(0)
    clock = n64(0)
    seconds = n64(0)
    micros = n64(0)
    if size >= 4:
        year = little(data, at, 2)
        month = n64(data[u(at + 2)])
        day = n64(data[u(at + 3)])
    if size >= 7:
        hour = n64(data[u(at + 4)])
        minute = n64(data[u(at + 5)])
        second = n64(data[u(at + 6)])
        clock = hour << 12 | minute << 6 | second
        seconds = 3600 * hour + 60 * minute + second
    if size == 11:
        micros = little(data, at + 7, 4)
    elif size == 8 or size == 12:
        return -1
    if op == DATE:
        packed = year << 9 | month << 5 | day
        for i in range(3):
            out[u(used + i)] = packed >> 8 * i & 255
        return used + 3
    if op == DATETIME:
        packed = n64(1) << 39 | (13 * year + month) << 22 | day << 17 | clock
        used = put_big(out, used, packed, 5)
    else:
        moment = n64(0)
        if year > 0:
            # Days since 1970, in years that begin in March.
            early = 1 if month <= 2 else 0
            years = year - early
            of_year = (153 * (month - 3 + 12 * early) + 2) // 5 + day - 1
            era = years // 400
            of_era = years - 400 * era
            days = 365 * of_era + of_era // 4 - of_era // 100 + of_year
            moment = 86400 * (146097 * era + days - 719468) + seconds
        used = put_big(out, used, moment, 4)
    return put_big(out, used, parts_of(micros, part), part)


def parts_of(micros: int, part: int) -> int:
    """Parts of a second in the unit of so many bytes: two decimal digits each."""
    for _ in range(3 - part):
        micros //= 100
    return micros


def little(data: Any, at: int, count: int) -> int:
    value = n64(0)
    for i in range(count):
        value |= n64(data[u(at + i)]) << 8 * i
    return value


def put_big(out: Any, used: int, value: int, count: int) -> int:
    for i in range(count):
        out[u(used + i)] = value >> 8 * (count - 1 - i) & 255
    return used + count


_HELPERS = (copy, parts_of, little, put_big, put_temporal)
FRAME = Kernel(frame_images, *_HELPERS, put_image)
IMAGE = Kernel(put_image, *_HELPERS)  # for rows of several packets
