"""The kernel that reads rows of the log: bytes of many row events to JSON texts.

It is one long loop over events, rows and columns, because a call for each value, with all that it
may need, would take as long as the work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import Kernel, n64
from .mysql_json import DEEPEST, JSON_WRITERS, put_json, put_json_text
from .mysql_layout import (
    C_A,
    C_B,
    C_KEY,
    C_NAME,
    C_NAME_END,
    C_OP,
    C_ROOM,
    C_SIZE,
    OP_BIT,
    OP_BYTES,
    OP_COMPRESSED,
    OP_DATE,
    OP_DATETIME,
    OP_DECIMAL,
    OP_DOUBLE,
    OP_ENUM,
    OP_FLOAT,
    OP_JSON,
    OP_JSON_TEXT,
    OP_SET,
    OP_SIGNED,
    OP_SIZED,
    OP_TEXT,
    OP_TIME,
    OP_TIMESTAMP,
    OP_UNSIGNED,
    OP_UUID,
    OP_VECTOR,
    OP_YEAR,
)
from .mysql_oldtimes import put_old_time
from .mysql_text import TEXT_WRITERS, put_address, put_base64, put_text
from .mysql_values import (
    FIXED,
    WRITERS,
    big_endian,
    copy,
    little_endian,
    put_clock,
    put_date,
    put_decimal,
    put_float,
    put_fraction,
    put_integer,
    put_label,
    put_moment,
    put_number,
    put_time,
    put_word,
)

INSERT, UPDATE, DELETE, PARTIAL_UPDATE = range(4)

u = np.uint64
_0, _1, _8 = u(0), u(1), u(8)

TRUNCATED, UNKNOWN_LABEL, BAD_JSON, TOO_LARGE, BAD_VALUE = 1, 2, 3, 4, 5
LARGEST = 2**31 - 1  # bytes of texts that 32-bit offsets can tell


# Loops, not slices: numba takes longer to compile one slice than all of these.


def more_bytes(out: Any, used: int, room: int) -> Any:
    """A larger buffer with the same beginning."""
    made = np.empty(max(2 * len(out), used + room), np.uint8)
    copy(out, 0, used, made, 0)
    return made


def more_ends(ends: Any) -> Any:
    made = np.zeros(2 * len(ends), np.int32)
    for i in range(len(ends)):
        made[i] = ends[i]
    return made


def more_numbers(numbers: Any) -> Any:
    made = np.zeros(2 * len(numbers), np.int64)
    for i in range(len(numbers)):
        made[i] = numbers[i]
    return made


def more_left(left: Any) -> Any:
    made = np.zeros((2 * len(left) + 16, 6), np.int64)
    for i in range(len(left)):
        for j in range(6):
            made[i, j] = left[i, j]
    return made


def decode_rows(
    data: Any,
    starts: Any,
    stops: Any,
    kinds: Any,
    present_before: Any,
    present_after: Any,
    columns: Any,
    json: Any,
    names: Any,
    labels: Any,
    label_ends: Any,
    tables: Any,
    tens: Any,
    keys: int,
    wide: bool,
    expected: int,
    most: int,
) -> Any:
    """Status, event and offset of an error; rows; then the texts before, after and of the key."""
    count = len(columns)
    bitmap = (count + 7) // 8
    any_before = False
    any_after = False
    for event in range(len(starts)):
        any_before |= kinds[event] != INSERT
        any_after |= kinds[event] != DELETE
    out_before = np.empty(most if any_before else 64, np.uint8)
    out_after = np.empty(most if any_after else 64, np.uint8)
    out_key = np.empty(most // 4 if keys > 0 else 64, np.uint8)
    used_before = 0
    used_after = 0
    used_key = 0
    ends_before = np.zeros(expected + 1, np.int32)
    ends_after = np.zeros(expected + 1, np.int32)
    ends_key = np.zeros(expected + 1, np.int32)
    event_of = np.zeros(expected + 1, np.int64)
    row_of = np.zeros(expected + 1, np.int64)
    left_before = np.zeros((1, 6), np.int64)
    left_after = np.zeros((1, 6), np.int64)
    open_before = 0
    open_after = 0
    key_at = np.zeros((keys + 1, 3), np.int64)  # side, begin and end of each value of the key
    old_json = np.zeros((count + 1, 2), np.int64)  # where documents were in the image before
    stack = np.zeros((DEEPEST, 5), np.int64)
    rows = 0
    status = 0
    event = 0
    at = 0
    while event < len(starts):
        at = starts[event]
        stop = stops[event]
        kind = kinds[event]
        if at < 0 or stop < at or stop > len(data):
            status = TRUNCATED
            break
        bits_before = present_before[event]
        bits_after = present_after[event]
        if kind != INSERT and (bits_before < 0 or bits_before + bitmap > len(data)):
            status = TRUNCATED
            break
        if kind != DELETE and (bits_after < 0 or bits_after + bitmap > len(data)):
            status = TRUNCATED
            break
        shown_before = 0
        shown_after = 0
        documents = 0
        for c in range(count):
            if kind != INSERT:
                shown_before += n64(data[u(bits_before + (c >> 3))] >> (c & 7) & 1)
            if kind != DELETE:
                shown_after += n64(data[u(bits_after + (c >> 3))] >> (c & 7) & 1)
                documents += n64(json[c])
        ordinal = 0
        # An event whose images have no column holds one row all the same.
        while status == 0 and (at < stop or ordinal == 0):
            begin = at
            for k in range(keys):
                key_at[k, 0] = -1
            for side in range(2):
                if side == 0:
                    if kind == INSERT:
                        continue
                    out = out_before
                    used = used_before
                    bits = bits_before
                    shown = shown_before
                else:
                    if kind == DELETE:
                        continue
                    out = out_after
                    used = used_after
                    bits = bits_after
                    shown = shown_after
                partial = -1  # where the bits of documents that came as differences are
                if side == 1 and kind == PARTIAL_UPDATE:
                    if at >= stop:
                        status = TRUNCATED
                        break
                    options = data[u(at)]
                    at += 1
                    if options > 1:
                        status = BAD_VALUE
                        break
                    if options == 1:
                        partial = at
                        at += (documents + 7) // 8
                nulls = at
                at += (shown + 7) // 8
                if at > stop:
                    status = TRUNCATED
                    break
                if used + FIXED > len(out):
                    out = more_bytes(out, used, FIXED)
                out[u(used)] = 123
                used += 1
                slot = 0
                document = 0
                comma = False
                for c in range(count):
                    difference = False
                    if partial >= 0 and json[c] == 1:
                        difference = data[u(partial + (document >> 3))] >> (document & 7) & 1 == 1
                        document += 1
                    if data[u(bits + (c >> 3))] >> (c & 7) & 1 == 0:
                        if side == 0:
                            old_json[c, 0] = -1
                        continue
                    null = data[u(nulls + (slot >> 3))] >> (slot & 7) & 1
                    slot += 1
                    room = columns[c, C_ROOM]
                    if used + room > len(out):
                        out = more_bytes(out, used, room)
                    start = used
                    name = columns[c, C_NAME]
                    name_end = columns[c, C_NAME_END]
                    if comma:
                        out[u(used)] = 44
                        used += 1
                    used = copy(names, name, name_end, out, used)
                    value_at = used
                    op = columns[c, C_OP]
                    if null == 1:
                        used = put_word(out, used, 110)
                        if side == 0:
                            old_json[c, 0] = -1
                    else:
                        size = columns[c, C_SIZE]
                        if at + size > stop:
                            status = TRUNCATED
                            break
                        if op > OP_SIZED:
                            length = n64(little_endian(data, at, size))
                            at += size
                            if length > stop - at:
                                status = TRUNCATED
                                break
                            end = at + length
                            if op == OP_TEXT:
                                room = 6 * length + FIXED
                                if used + room > len(out):
                                    out = more_bytes(out, used, room)
                                reading = columns[c, C_A]
                                base = columns[c, C_B]
                                used = put_text(data, at, end, reading, tables, base, out, used)
                            elif op == OP_BYTES:
                                padding = max(columns[c, C_A] - length, 0)
                                room = 2 * (length + padding) + FIXED
                                if used + room > len(out):
                                    out = more_bytes(out, used, room)
                                used = put_base64(data, at, end, padding, out, used)
                            elif difference or op == OP_COMPRESSED:
                                if side == 0:
                                    if open_before == len(left_before):
                                        left_before = more_left(left_before)
                                    left = left_before
                                    place = open_before
                                    open_before += 1
                                else:
                                    if open_after == len(left_after):
                                        left_after = more_left(left_after)
                                    left = left_after
                                    place = open_after
                                    open_after += 1
                                left[place, 0] = used
                                left[place, 1] = c
                                left[place, 2] = at
                                left[place, 3] = end
                                left[place, 4] = old_json[c, 0]
                                left[place, 5] = old_json[c, 1]
                            elif op == OP_JSON:
                                room = 6 * length + FIXED
                                if used + room > len(out):
                                    out = more_bytes(out, used, room)
                                if side == 0:
                                    old_json[c, 0] = at
                                    old_json[c, 1] = end
                                used = put_json(data, at, end, out, used, stack, tens)
                                if used < 0:
                                    status = BAD_JSON
                                    break
                            elif op == OP_JSON_TEXT:
                                room = 6 * length + FIXED
                                if used + room > len(out):
                                    out = more_bytes(out, used, room)
                                done = put_json_text(data, at, end, out, used, stack)
                                if done < 0:
                                    done = put_text(data, at, end, 0, tables, 0, out, used)
                                used = done
                            elif op == OP_VECTOR:
                                room = 6 * length + FIXED
                                if used + room > len(out):
                                    out = more_bytes(out, used, room)
                                if length & 3 != 0:
                                    status = BAD_VALUE
                                    break
                                out[u(used)] = 91
                                used += 1
                                for i in range(length // 4):
                                    if i > 0:
                                        out[u(used)] = 44
                                        used += 1
                                    raw = little_endian(data, at + 4 * i, 4)
                                    used = put_float(out, used, raw, False, False, tens)
                                out[u(used)] = 93
                                used += 1
                            else:
                                if length > columns[c, C_A]:
                                    status = BAD_VALUE
                                    break
                                used = put_address(data, at, end, op - OP_UUID, out, used)
                            at = end
                        elif op <= OP_UNSIGNED:
                            raw = little_endian(data, at, size)
                            negative = False
                            if op == OP_SIGNED and raw >> (_8 * u(size) - _1) != _0:
                                negative = True
                                raw = _0 - raw if size == 8 else (_1 << u(8 * size)) - raw
                            used = put_integer(out, used, negative, raw, wide)
                        elif op == OP_DECIMAL:
                            out[u(used)] = 34
                            whole = columns[c, C_A]
                            scale = columns[c, C_B]
                            used = put_decimal(data, at, whole, scale, out, used + 1)
                            out[u(used)] = 34
                            used += 1
                        elif op == OP_DATETIME:
                            packed = big_endian(data, at, 5)
                            moment = n64(packed & u(0x7FFFFFFFFF))
                            part = columns[c, C_B]
                            micros = big_endian(data, at + 5, part)
                            for _ in range(3 - part):
                                micros *= u(100)
                            months = moment >> 22
                            out[u(used)] = 34
                            used = put_date(
                                out, used + 1, months // 13, months % 13, moment >> 17 & 31
                            )
                            used = put_clock(
                                out, used, moment >> 12 & 31, moment >> 6 & 63, moment & 63
                            )
                            used = put_fraction(out, used, micros, columns[c, C_A])
                            out[u(used)] = 34
                            used += 1
                        elif op == OP_TIMESTAMP:
                            out[u(used)] = 34
                            moment = n64(big_endian(data, at, 4))
                            used = put_moment(out, used + 1, moment)
                            part = columns[c, C_B]
                            micros = big_endian(data, at + 4, part)
                            for _ in range(3 - part):
                                micros *= u(100)
                            used = put_fraction(out, used, micros, columns[c, C_A])
                            out[u(used)] = 90
                            out[u(used + 1)] = 34
                            used += 2
                        elif op == OP_DATE:
                            raw = little_endian(data, at, 3)
                            packed_date = n64(raw)
                            out[u(used)] = 34
                            used = put_date(
                                out,
                                used + 1,
                                packed_date >> 9,
                                packed_date >> 5 & 15,
                                packed_date & 31,
                            )
                            out[u(used)] = 34
                            used += 1
                        elif op == OP_TIME:
                            part = columns[c, C_B]
                            moment = n64(big_endian(data, at, size)) - (0x800000 << 8 * part)
                            negative = moment < 0
                            moment = abs(moment)
                            micros = u(moment & ((1 << 8 * part) - 1))
                            for _ in range(3 - part):
                                micros *= u(100)
                            moment >>= 8 * part
                            used = put_time(
                                out,
                                used,
                                negative,
                                moment >> 12 & 1023,
                                moment >> 6 & 63,
                                moment & 63,
                            )
                            used = put_fraction(out, used, micros, columns[c, C_A])
                            out[u(used)] = 34
                            used += 1
                        elif op == OP_DOUBLE:
                            raw = little_endian(data, at, 8)
                            used = put_float(out, used, raw, True, False, tens)
                        elif op == OP_FLOAT:
                            raw = little_endian(data, at, 4)
                            used = put_float(out, used, raw, False, False, tens)
                        elif op == OP_ENUM or op == OP_SET:
                            raw = little_endian(data, at, size)
                            base = columns[c, C_A]
                            known = columns[c, C_B]
                            if op == OP_ENUM:
                                if raw > u(known):
                                    status = UNKNOWN_LABEL
                                    break
                                used = put_label(labels, label_ends, base + n64(raw), out, used)
                            else:
                                if known < 64 and raw >> u(known) != _0:
                                    status = UNKNOWN_LABEL
                                    break
                                out[u(used)] = 34
                                used += 1
                                further = False
                                for i in range(known):
                                    if raw >> u(i) & _1 != _0:
                                        if further:
                                            out[u(used)] = 44
                                            used += 1
                                        used = put_label(labels, label_ends, base + i, out, used)
                                        further = True
                                out[u(used)] = 34
                                used += 1
                        elif op == OP_BIT:
                            raw = big_endian(data, at, size)
                            if columns[c, C_A] == 1:
                                used = put_word(out, used, 116 if raw & _1 != _0 else 102)
                            else:
                                used = put_integer(out, used, False, raw, wide)
                        elif op == OP_YEAR:
                            year = n64(data[u(at)])
                            used = put_number(out, used, u(year + 1900 if year > 0 else 0))
                        else:
                            used = put_old_time(data, at, size, op, columns[c, C_A], out, used)
                        if op <= OP_SIZED:
                            at += size
                    key = columns[c, C_KEY]
                    if key >= 0:
                        key_at[key, 0] = side
                        key_at[key, 1] = value_at
                        key_at[key, 2] = used
                    if name == name_end:
                        used = start
                    else:
                        comma = True
                if status != 0:
                    break
                out[u(used)] = 125
                used += 1
                if side == 0:
                    out_before = out
                    used_before = used
                else:
                    out_after = out
                    used_after = used
            if status != 0:
                break
            if keys > 0:
                room = 2 + 3 * keys
                for k in range(keys):
                    room += key_at[k, 2] - key_at[k, 1]
                for c in range(count):
                    if columns[c, C_KEY] >= 0:
                        room += columns[c, C_NAME_END] - columns[c, C_NAME]
                if used_key + room > len(out_key):
                    out_key = more_bytes(out_key, used_key, room)
                out_key[u(used_key)] = 123
                used_key += 1
                comma = False
                for k in range(keys):
                    if key_at[k, 0] < 0:
                        continue
                    if comma:
                        out_key[u(used_key)] = 44
                        used_key += 1
                    comma = True
                    for c in range(count):
                        if columns[c, C_KEY] == k:
                            name = columns[c, C_NAME]
                            name_end = columns[c, C_NAME_END]
                            used_key = copy(names, name, name_end, out_key, used_key)
                    if key_at[k, 0] == 0:
                        used_key = copy(out_before, key_at[k, 1], key_at[k, 2], out_key, used_key)
                    else:
                        used_key = copy(out_after, key_at[k, 1], key_at[k, 2], out_key, used_key)
                out_key[u(used_key)] = 125
                used_key += 1
            if max(used_before, used_after, used_key) > LARGEST:
                status = TOO_LARGE
                break
            if rows + 1 >= len(ends_after):
                ends_before = more_ends(ends_before)
                ends_after = more_ends(ends_after)
                ends_key = more_ends(ends_key)
                event_of = more_numbers(event_of)
                row_of = more_numbers(row_of)
            event_of[rows] = event
            row_of[rows] = ordinal
            rows += 1
            ends_before[rows] = used_before
            ends_after[rows] = used_after
            ends_key[rows] = used_key
            ordinal += 1
            if at == begin:
                break
        if status == 0 and at < stop:
            status = TRUNCATED
        if status != 0:
            break
        event += 1
    return (
        status,
        event,
        at,
        rows,
        (out_before, ends_before, used_before, left_before, open_before),
        (out_after, ends_after, used_after, left_after, open_after),
        (out_key, ends_key, used_key),
        event_of,
        row_of,
    )


KERNEL = Kernel(
    decode_rows,
    *WRITERS,
    *TEXT_WRITERS,
    *JSON_WRITERS,
    put_old_time,
    more_bytes,
    more_ends,
    more_numbers,
    more_left,
    worth_compiling=2_000,  # two seconds of the Python way
    name="the decoder of rows",
    takes="about half a minute, in which no events come",
)
