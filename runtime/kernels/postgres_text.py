"""Strings and bytes of PostgreSQL as JSON, for the kernels beside this one.

Each `put` function reads data[at:end], writes to out[used:] and returns the new end of what is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jsontext import copy, u

_BAD = 255
HEX = np.full(256, _BAD, np.uint8)  # what a hex digit counts
HEX[list(b"0123456789abcdef")] = HEX[list(b"0123456789ABCDEF")] = range(16)
BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
BASE64_HEAD = np.frombuffer(b'{"_base64":"', np.uint8)
SHORT = np.zeros(32, np.uint8)  # escapes of one letter
SHORT[[8, 9, 10, 12, 13]] = list(b"btnfr")


def is_utf8(data: Any, at: int, end: int) -> bool:
    high = False
    for i in range(end - at):
        high |= data[u(at + i)] > 127
    while high and at < end:
        c = data[u(at)]
        at += 1
        if c < 128:
            continue
        if 0xC2 <= c < 0xE0:
            more = 1
        elif 0xE0 <= c < 0xF0:
            more = 2
        elif 0xF0 <= c < 0xF5:
            more = 3
        else:
            return False
        if at + more > end:
            return False
        d = data[u(at)]
        if (
            (c == 0xE0 and d < 0xA0)
            or (c == 0xED and d > 0x9F)
            or (c == 0xF0 and d < 0x90)
            or (c == 0xF4 and d > 0x8F)
        ):
            return False
        for _ in range(more):
            if data[u(at)] & 0xC0 != 0x80:
                return False
            at += 1
    return True


INFINITY = np.frombuffer(b"nfinity", np.uint8)


def is_infinite(data: Any, at: int, end: int, letter: int) -> bool:
    """`infinity`, `-infinity`, with this as their first letter."""
    if at < end and data[at] == 45:
        at += 1
    if end - at != 8 or data[at] != letter:
        return False
    same = True
    for i in range(7):
        same &= data[at + 1 + i] == INFINITY[i]
    return same


def put_char(c: int, out: Any, used: int) -> int:
    """One byte inside a JSON string."""
    if c == 34 or c == 92:
        out[used] = 92
        out[used + 1] = c
        return used + 2
    if c >= 32:
        out[used] = c
        return used + 1
    out[used] = 92
    if SHORT[c]:
        out[used + 1] = SHORT[c]
        return used + 2
    out[used + 1] = 117
    out[used + 2] = 48
    out[used + 3] = 48
    out[used + 4] = DIGITS[c >> 4]
    out[used + 5] = DIGITS[c & 15]
    return used + 6


def put_text(data: Any, at: int, end: int, out: Any, used: int) -> int:
    """A string; bytes that are no UTF-8, as SQL_ASCII databases have them, are shown as bytes."""
    special = False
    high = False
    for i in range(end - at):
        c = data[u(at + i)]
        special |= (c < 32) | (c == 34) | (c == 92)
        high |= c > 127
    if high and not is_utf8(data, at, end):
        return put_base64(data, at, end, out, used)
    out[used] = 34
    used += 1
    if special:
        for i in range(end - at):
            used = put_char(data[u(at + i)], out, used)
    else:
        used = copy(data, at, end, out, used)
    out[used] = 34
    return used + 1


def put_base64(data: Any, at: int, end: int, out: Any, used: int) -> int:
    used = copy(BASE64_HEAD, 0, len(BASE64_HEAD), out, used)
    while at + 3 <= end:
        a = data[u(at)]
        b = data[u(at + 1)]
        c = data[u(at + 2)]
        out[u(used)] = BASE64[a >> 2]
        out[u(used + 1)] = BASE64[(a & 3) << 4 | b >> 4]
        out[u(used + 2)] = BASE64[(b & 15) << 2 | c >> 6]
        out[u(used + 3)] = BASE64[c & 63]
        at += 3
        used += 4
    if at < end:
        a = data[at]
        b = data[at + 1] if at + 1 < end else np.uint8(0)
        out[used] = BASE64[a >> 2]
        out[used + 1] = BASE64[(a & 3) << 4 | b >> 4]
        out[used + 2] = BASE64[(b & 15) << 2] if at + 1 < end else 61
        out[used + 3] = 61
        used += 4
    out[used] = 34
    out[used + 1] = 125
    return used + 2


def put_bytes(data: Any, at: int, end: int, out: Any, used: int, scratch: Any, top: int) -> int:
    r"""Bytes of their hex form, `\x00ff`."""
    if end - at < 2 or data[at] != 92 or data[at + 1] != 120 or (end - at) & 1:
        return -1
    at += 2
    size = (end - at) // 2
    bad = np.uint8(0)
    for i in range(size):
        a = HEX[data[u(at + 2 * i)]]
        b = HEX[data[u(at + 2 * i + 1)]]
        bad |= (a | b) & 0xF0
        scratch[u(top + i)] = a << 4 | b & 15
    if bad:
        return -1
    return put_base64(scratch, top, top + size, out, used)


HELPERS = (copy, is_utf8, is_infinite, put_char, put_base64, put_text, put_bytes)
