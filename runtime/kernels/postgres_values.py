"""Values without parts: PostgreSQL's text of one value to JSON, written by kernels.

Each function reads data[at:end], writes to out[used:] and returns the new end of what is written,
or -1 for a text that its type does not have; what was written then does not count. `out` has room
for six times the text and 64 bytes more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import postgres_text, postgres_times
from .jsontext import copy, u
from .postgres_program import (
    BOOL,
    BYTES,
    DATE,
    FLOAT,
    HSTORE,
    INTEGER,
    JSON,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    WIDE,
)
from .postgres_text import HEX, is_infinite, is_utf8, put_bytes, put_char, put_text
from .postgres_times import put_moment, put_time

WIDEST = np.frombuffer(b"9007199254740992", np.uint8)  # 2^53, the last that all readers can hold


def put_integer(data: Any, at: int, end: int, out: Any, used: int, op: int) -> int:
    first = at
    if at < end and data[at] == 45:
        at += 1
    size = end - at
    if size < 1 or (data[at] == 48 and size > 1):
        return -1
    for i in range(at, end):
        c = data[u(i)]
        if c < 48 or c > 57:
            return -1
    quoted = False
    if op == WIDE and size >= 16:
        quoted = size > 16
        if not quoted:
            i = 0
            while i < 16 and data[at + i] == WIDEST[i]:
                i += 1
            quoted = i < 16 and data[at + i] > WIDEST[i]
    if quoted:
        out[used] = 34
        used += 1
    while first < end:  # too short for wide moves to pay
        out[u(used)] = data[u(first)]
        first += 1
        used += 1
    if quoted:
        out[used] = 34
        used += 1
    return used


def number_end(data: Any, at: int, end: int) -> int:
    """Behind the JSON number that begins at `at`; -1 where there is none."""
    if at < end and data[at] == 45:
        at += 1
    first = at
    while at < end and 48 <= data[u(at)] <= 57:
        at += 1
    if at == first or (data[first] == 48 and at - first > 1):
        return -1
    if at < end and data[at] == 46:
        first = at + 1
        at += 1
        while at < end and 48 <= data[u(at)] <= 57:
            at += 1
        if at == first:
            return -1
    if at < end and (data[at] == 101 or data[at] == 69):
        at += 1
        if at < end and (data[at] == 43 or data[at] == 45):
            at += 1
        first = at
        while at < end and 48 <= data[u(at)] <= 57:
            at += 1
        if at == first:
            return -1
    return at


def put_float(data: Any, at: int, end: int, out: Any, used: int) -> int:
    size = end - at
    if number_end(data, at, end) == end:
        return copy(data, at, end, out, used)
    nan = size == 3 and data[at] == 78 and data[at + 1] == 97 and data[at + 2] == 78
    if nan or is_infinite(data, at, end, 73):
        return put_text(data, at, end, out, used)
    return -1


def put_json(data: Any, at: int, end: int, out: Any, used: int, scratch: Any, top: int) -> int:
    """The document as it is, less the space between its parts; it is read as strictly as JSON is.

    Documents are as deep as they like: what is open is noted in `scratch`, behind `top`.
    """
    if not is_utf8(data, at, end):
        return -1
    bottom = top
    value, first_value, key, first_key, behind = 0, 1, 2, 3, 4  # what comes next
    state = value
    while at < end:
        c = data[u(at)]
        if c == 32 or c == 9 or c == 10 or c == 13:
            at += 1
        elif c == 34 and state != behind:
            out[u(used)] = 34
            used += 1
            at += 1
            while True:
                if at >= end:
                    return -1
                c = data[u(at)]
                if c < 32:
                    return -1
                out[u(used)] = c
                used += 1
                at += 1
                if c == 34:
                    break
                if c != 92:
                    continue
                if at >= end:
                    return -1
                c = data[at]
                out[used] = c
                used += 1
                at += 1
                if c == 117:
                    if at + 4 > end:
                        return -1
                    for _ in range(4):
                        if HEX[data[at]] > 15:
                            return -1
                        out[used] = data[at]
                        used += 1
                        at += 1
                elif not (
                    c == 34
                    or c == 92
                    or c == 47
                    or c == 98
                    or c == 102
                    or c == 110
                    or c == 114
                    or c == 116
                ):
                    return -1
            if state in (key, first_key):
                while at < end and (
                    data[at] == 32 or data[at] == 9 or data[at] == 10 or data[at] == 13
                ):
                    at += 1
                if at >= end or data[at] != 58:
                    return -1
                out[used] = 58
                used += 1
                at += 1
                state = value
            else:
                state = behind
        elif (c == 123 or c == 91) and state in (value, first_value):
            scratch[top] = c + 2  # what closes it
            top += 1
            out[used] = c
            used += 1
            at += 1
            state = first_key if c == 123 else first_value
        elif c == 125 or c == 93:
            if top == bottom or scratch[top - 1] != c:
                return -1
            if state != behind and state != (first_key if c == 125 else first_value):
                return -1
            top -= 1
            out[used] = c
            used += 1
            at += 1
            state = behind
        elif c == 44:
            if state != behind or top == bottom:
                return -1
            out[used] = c
            used += 1
            at += 1
            state = key if scratch[top - 1] == 125 else value
        elif state in (value, first_value):
            if c == 116 or c == 102 or c == 110:  # true false null
                size = 5 if c == 102 else 4
                if at + size > end:
                    return -1
                a = data[at + 1]
                b = data[at + 2]
                d = data[at + 3]
                if c == 116:
                    sound = a == 114 and b == 117 and d == 101
                elif c == 110:
                    sound = a == 117 and b == 108 and d == 108
                else:
                    sound = a == 97 and b == 108 and d == 115 and data[at + 4] == 101
                if not sound:
                    return -1
                stop = at + size
            else:
                stop = number_end(data, at, end)
                if stop < 0:
                    return -1
            while at < stop:
                out[u(used)] = data[u(at)]
                used += 1
                at += 1
            state = behind
        else:
            return -1
    return used if state == behind and top == bottom else -1


def put_hstore(data: Any, at: int, end: int, out: Any, used: int) -> int:
    """`"a"=>"1", "b"=>NULL` as an object."""
    if not is_utf8(data, at, end):
        return -1
    out[used] = 123
    used += 1
    first = True
    while at < end:
        if not first:
            if at + 2 > end or data[at] != 44 or data[at + 1] != 32:
                return -1
            at += 2
            out[used] = 44
            used += 1
        first = False
        for part in range(2):
            if part == 1:
                if at + 2 > end or data[at] != 61 or data[at + 1] != 62:
                    return -1
                at += 2
                out[used] = 58
                used += 1
                if at + 4 <= end and data[at] == 78:  # NULL
                    if data[at + 1] != 85 or data[at + 2] != 76 or data[at + 3] != 76:
                        return -1
                    out[used] = 110
                    out[used + 1] = 117
                    out[used + 2] = 108
                    out[used + 3] = 108
                    at += 4
                    used += 4
                    break
            if at >= end or data[at] != 34:
                return -1
            at += 1
            out[used] = 34
            used += 1
            while True:
                if at >= end:
                    return -1
                c = data[at]
                at += 1
                if c == 34:
                    break
                if c == 92:
                    if at >= end:
                        return -1
                    c = data[at]
                    at += 1
                used = put_char(c, out, used)
            out[used] = 34
            used += 1
    out[used] = 125
    return used + 1


def put_scalar(
    node: Any, data: Any, at: int, end: int, out: Any, used: int, scratch: Any, top: int
) -> int:
    """A value of any type without parts; `scratch` is free from `top` for the text's length."""
    op = node[0]
    if op == TEXT:
        return put_text(data, at, end, out, used)
    if op == INTEGER or op == WIDE:
        return put_integer(data, at, end, out, used, op)
    if op == TIMESTAMP or op == TIMESTAMPTZ or op == DATE:
        return put_moment(data, at, end, out, used, op, node[5])
    if op == BOOL:
        if end - at != 1 or (data[at] != 116 and data[at] != 102):
            return -1
        if data[at] == 116:
            out[used] = 116
            out[used + 1] = 114
            out[used + 2] = 117
        else:
            out[used] = 102
            out[used + 1] = 97
            out[used + 2] = 108
            out[used + 3] = 115
            used += 1
        out[used + 3] = 101
        return used + 4
    if op == FLOAT:
        return put_float(data, at, end, out, used)
    if op == JSON:
        return put_json(data, at, end, out, used, scratch, top)
    if op == BYTES:
        return put_bytes(data, at, end, out, used, scratch, top)
    if op == TIME or op == TIMETZ:
        return put_time(data, at, end, out, used, op == TIMETZ, node[5])
    if op == HSTORE:
        return put_hstore(data, at, end, out, used)
    return -1


HELPERS = (
    *postgres_text.HELPERS,
    *postgres_times.HELPERS,
    put_integer,
    number_end,
    put_float,
    put_json,
    put_hstore,
    put_scalar,
)
