"""Text, bytes and addresses of MySQL and MariaDB as JSON, written by functions that kernels call.

A writer puts its text to out[used:], where the caller has made room, and returns the new end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import mysql_charsets
from .jit import n64
from .jsontext import copy
from .mysql_values import big_endian, put_number

u = np.uint64
_0 = u(0)
_PAIRS, _MORE = 256, 256 + 65536  # see mysql_charsets
_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_WRAP = np.frombuffer(b'{"_base64":"', np.uint8)

ESCAPED = 6  # bytes that one byte of text takes at most

# Readings of text, as mysql_charsets has them.
_UTF8, _TABLE, _UTF16, _UTF16LE, _UTF32 = (
    mysql_charsets.UTF8,
    mysql_charsets.TABLE,
    mysql_charsets.UTF16,
    mysql_charsets.UTF16LE,
    mysql_charsets.UTF32,
)
UUID, INET6, INET4 = range(3)  # kinds of addresses


def put_base64(data: Any, at: int, end: int, padding: int, out: Any, used: int) -> int:
    """Bytes, and zero bytes behind them, as an object that says so."""
    used = copy(_WRAP, 0, len(_WRAP), out, used)
    used = put_base64_text(data, at, end, padding, out, used)
    out[u(used)] = 34
    out[u(used + 1)] = 125
    return used + 2


def put_base64_text(data: Any, at: int, end: int, padding: int, out: Any, used: int) -> int:
    while end - at >= 3:
        group = u(data[u(at)]) << u(16) | u(data[u(at + 1)]) << u(8) | u(data[u(at + 2)])
        out[u(used)] = _BASE64[group >> u(18)]
        out[u(used + 1)] = _BASE64[group >> u(12) & u(63)]
        out[u(used + 2)] = _BASE64[group >> u(6) & u(63)]
        out[u(used + 3)] = _BASE64[group & u(63)]
        used += 4
        at += 3
    left = end - at + padding
    while left > 0:
        group = _0
        for i in range(3):
            group <<= u(8)
            if at + i < end:
                group |= u(data[u(at + i)])
        at += 3
        out[u(used)] = _BASE64[group >> u(18)]
        out[u(used + 1)] = _BASE64[group >> u(12) & u(63)]
        out[u(used + 2)] = _BASE64[group >> u(6) & u(63)] if left > 1 else 61
        out[u(used + 3)] = _BASE64[group & u(63)] if left > 2 else 61
        used += 4
        left -= 3
    return used


def put_escaped(out: Any, used: int, c: int) -> int:
    """A letter of ASCII inside a JSON string."""
    if c >= 32 and c != 34 and c != 92:
        out[u(used)] = c
        return used + 1
    out[u(used)] = 92
    short = 0
    if c == 34 or c == 92:
        short = c
    elif c == 8:
        short = 98
    elif c == 9:
        short = 116
    elif c == 10:
        short = 110
    elif c == 12:
        short = 102
    elif c == 13:
        short = 114
    if short:
        out[u(used + 1)] = short
        return used + 2
    out[u(used + 1)], out[u(used + 2)], out[u(used + 3)] = 117, 48, 48
    out[u(used + 4)] = _HEX[u(c >> 4)]
    out[u(used + 5)] = _HEX[u(c & 15)]
    return used + 6


def put_letter(out: Any, used: int, c: int) -> int:
    """A letter inside a JSON string, in UTF-8."""
    if c < 128:
        return put_escaped(out, used, c)
    if c < 0x800:
        out[u(used)] = 0xC0 | c >> 6
        out[u(used + 1)] = 0x80 | c & 63
        return used + 2
    if c < 0x10000:
        out[u(used)] = 0xE0 | c >> 12
        out[u(used + 1)] = 0x80 | c >> 6 & 63
        out[u(used + 2)] = 0x80 | c & 63
        return used + 3
    out[u(used)] = 0xF0 | c >> 18
    out[u(used + 1)] = 0x80 | c >> 12 & 63
    out[u(used + 2)] = 0x80 | c >> 6 & 63
    out[u(used + 3)] = 0x80 | c & 63
    return used + 4


def put_utf8(data: Any, at: int, end: int, out: Any, used: int) -> int:
    """The content of a JSON string; -1 for what is no UTF-8."""
    odd = False
    for i in range(end - at):
        c = data[u(at + i)]
        odd |= (c < 32) | (c == 34) | (c == 92) | (c > 126)
    if not odd:
        return copy(data, at, end, out, used)
    while at < end:
        c = n64(data[u(at)])
        if c < 128:
            if c >= 32 and c != 34 and c != 92:
                out[u(used)] = c
                used += 1
            else:
                used = put_escaped(out, used, c)
            at += 1
            continue
        if 0xC2 <= c < 0xE0:
            more = 1
        elif 0xE0 <= c < 0xF0:
            more = 2
        elif 0xF0 <= c < 0xF5:
            more = 3
        else:
            return -1
        if at + more >= end:
            return -1
        second = n64(data[u(at + 1)])
        if (
            (c == 0xE0 and second < 0xA0)
            or (c == 0xED and second > 0x9F)
            or (c == 0xF0 and second < 0x90)
            or (c == 0xF4 and second > 0x8F)
        ):
            return -1
        out[u(used)] = c
        for i in range(1, more + 1):
            c = n64(data[u(at + i)])
            if c & 0xC0 != 0x80:
                return -1
            out[u(used + i)] = c
        used += more + 1
        at += more + 1
    return used


def put_by_table(data: Any, at: int, end: int, table: Any, base: int, out: Any, used: int) -> int:
    """The same for a charset by its table; -1 for what has no letter in it."""
    while at < end:
        first = n64(data[u(at)])
        letter = n64(table[u(base + first)])
        at += 1
        if letter < -1:
            left = end - at
            second = n64(data[u(at)]) if left > 0 else 0
            if letter == -2 and left > 0:
                letter = n64(table[u(base + _PAIRS + (first << 8 | second))])
                at += 1
            elif letter == -3 and left > 1:
                third = n64(data[u(at + 1)])
                letter = n64(table[u(base + _MORE + (second << 8 | third))])
                at += 2
            elif letter == -4 and left > 0 and not 48 <= second <= 57:
                letter = n64(table[u(base + _PAIRS + (first << 8 | second))])
                at += 1
            elif letter == -4 and left > 2:
                third = n64(data[u(at + 1)]) - 0x81
                fourth = n64(data[u(at + 2)]) - 48
                at += 3
                if not (0 <= third < 126 and 0 <= fourth < 10):
                    return -1
                number = (((first - 0x81) * 10 + second - 48) * 126 + third) * 10 + fourth
                if number < 39420:
                    letter = n64(table[u(base + _MORE + number)])
                elif 189000 <= number < 189000 + 0x100000:
                    letter = number - 189000 + 0x10000
        if letter < 0:
            return -1
        used = put_letter(out, used, letter)
    return used


def put_units(data: Any, at: int, end: int, reading: int, out: Any, used: int) -> int:
    """The same for UTF-16 and UTF-32."""
    size = 4 if reading == _UTF32 else 2
    if (end - at) % size != 0:
        return -1
    while at < end:
        if size == 4:
            letter = n64(big_endian(data, at, 4))
        elif reading == _UTF16:
            letter = n64(data[u(at)]) << 8 | n64(data[u(at + 1)])
        else:
            letter = n64(data[u(at + 1)]) << 8 | n64(data[u(at)])
        at += size
        if 0xD800 <= letter < 0xDC00 and size == 2 and at < end:
            if reading == _UTF16:
                low = n64(data[u(at)]) << 8 | n64(data[u(at + 1)])
            else:
                low = n64(data[u(at + 1)]) << 8 | n64(data[u(at)])
            at += 2
            if not 0xDC00 <= low < 0xE000:
                return -1
            letter = 0x10000 + ((letter - 0xD800) << 10) + (low - 0xDC00)
        elif 0xD800 <= letter < 0xE000:
            return -1
        if letter > 0x10FFFF:
            return -1
        used = put_letter(out, used, letter)
    return used


def put_text(
    data: Any, at: int, end: int, reading: int, table: Any, base: int, out: Any, used: int
) -> int:
    """Text as a JSON string; as bytes where it is none of its charset."""
    out[u(used)] = 34
    if reading == _UTF8:
        done = put_utf8(data, at, end, out, used + 1)
    elif reading == _TABLE:
        done = put_by_table(data, at, end, table, base, out, used + 1)
    else:
        done = put_units(data, at, end, reading, out, used + 1)
    if done < 0:
        return put_base64(data, at, end, 0, out, used)
    out[u(done)] = 34
    return done + 1


def put_address(data: Any, at: int, end: int, kind: int, out: Any, used: int) -> int:
    """A UUID or an address as text; zero bytes at its end are not stored."""
    out[u(used)] = 34
    used += 1
    size = 4 if kind == INET4 else 16
    zeros = 0  # the longest run of zero groups, if only of one: INET6 shows it as `::`
    first = -1
    if kind == INET6:
        run = 0
        for group in range(8):
            place = at + 2 * group
            high = n64(data[u(place)]) if place < end else 0
            low = n64(data[u(place + 1)]) if place + 1 < end else 0
            run = run + 1 if high == 0 and low == 0 else 0
            if run > zeros:
                zeros = run
                first = group - run + 1
    i = 0
    # ::a.b.c.d and ::ffff:a.b.c.d end as an IPv4 address does
    four = False
    if kind == INET6 and first == 0:
        if zeros == 6:
            four = True
        elif zeros == 5:
            four = end - at >= 12 and data[u(at + 10)] == 255 and data[u(at + 11)] == 255
    while i < size:
        byte = n64(data[u(at + i)]) if at + i < end else 0
        if kind == INET4 or (four and i >= 12):
            if i > 0 and i != 12:
                out[u(used)] = 46
                used += 1
            used = put_number(out, used, u(byte))
            i += 1
        elif kind == UUID:
            if i == 4 or i == 6 or i == 8 or i == 10:
                out[u(used)] = 45
                used += 1
            used = put_hex(out, used, byte >> 4)
            used = put_hex(out, used, byte & 15)
            i += 1
        elif i == 2 * first:
            out[u(used)] = 58
            used += 1
            i += 2 * zeros
            if i == 16 or (four and i == 12):
                out[u(used)] = 58
                used += 1
        else:
            if i > 0:
                out[u(used)] = 58
                used += 1
            low = n64(data[u(at + i + 1)]) if at + i + 1 < end else 0
            group = byte << 8 | low
            started = False
            for shift in range(12, -1, -4):
                digit = group >> shift & 15
                if digit > 0 or started or shift == 0:
                    used = put_hex(out, used, digit)
                    started = True
            i += 2
            if four and i == 12:
                out[u(used)] = 58
                used += 1
    out[u(used)] = 34
    return used + 1


def put_hex(out: Any, used: int, digit: int) -> int:
    out[u(used)] = 48 + digit if digit < 10 else 87 + digit
    return used + 1


TEXT_WRITERS = (
    put_base64_text,
    put_base64,
    put_escaped,
    put_letter,
    put_utf8,
    put_by_table,
    put_units,
    put_text,
    put_hex,
    put_address,
)
