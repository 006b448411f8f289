"""The stream of a MySQL or MariaDB server taken apart: packets to events, events to row areas.

Everything is an array of numbers that point into the bytes as they came; a Python object for each
event would take longer than all the rest. What is not usual (DDL, a new file, XA and so on) stops
`follow`, and the caller sees to it.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from .jit import Kernel

# Columns of an event: where it lies in the buffer, and what its header says.
TYPE, START, STOP, POS, TIME, SERVER, FLAGS = range(7)
EVENT_WIDTH = 7
HEADER = 19

# What `frame` found at the place where it ended.
MORE, FULL, ERROR, END, BROKEN = range(5)

# Columns of a rows event.
(
    R_EVENT,
    R_TX,
    R_NUMBER,  # among the rows events and statements of its transaction
    R_MAP,  # hash of its table map
    R_MAP_AT,  # event that is the table map; -1 when that is no longer there
    R_GROUP,  # hash that is equal for events that can be decoded together
    R_KIND,
    R_WAY,
    R_BITS,  # where the columns that are present are marked
    R_WIDTH,  # number of columns
    R_BEGIN,  # where the rows begin
    R_STOP,
    R_POS,  # end of the event in its file
) = range(13)
ROW_WIDTH = 13
INSERT, UPDATE, DELETE = range(3)
PLAIN, PARTIAL, COMPRESSED = range(3)

# Columns of a transaction; T_AT is the event that names it, -1 when that is no longer there.
T_START, T_NUMBER, T_KEY, T_AT, T_MICROS, T_TIME, T_SERVER, T_END = range(8)
TX_WIDTH = 8

# What `follow` keeps from call to call.
(
    S_POS,  # end of the last event in its file
    S_IN,  # inside a transaction
    S_ALONE,  # ... that ends with its only statement
    S_NUMBER,  # rows events and statements of it so far
    S_MAPS,  # table maps of the statement
    S_ROWS,  # rows events so far
    S_TXS,  # transactions so far
    S_TAIL,  # bytes of checksum behind each event
    S_DONE_EVENT,  # everything before it is whole transactions
    S_DONE_ROWS,
    S_DONE_TXS,
    S_DONE_POS,
) = range(12)
STATE_WIDTH = 12
MOST_MAPS = 4096  # tables of one statement

# Event types by name, as far as they matter here and to the reader.
QUERY, STOP_EVENT, ROTATE, INTVAR, FORMAT, XID = 2, 3, 4, 5, 15, 16
TABLE_MAP, INCIDENT, HEARTBEAT, ROWS_QUERY = 19, 26, 27, 29
GTID, ANONYMOUS, PREVIOUS_GTIDS, XA_PREPARE, PARTIAL_UPDATE = 33, 34, 35, 38, 39
PAYLOAD, HEARTBEAT_2, GTID_TAGGED = 40, 41, 42
ANNOTATE, CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION = 160, 161, 162, 163, 164
QUERY_COMPRESSED = 165
ARTIFICIAL, IGNORABLE = 0x20, 0x80

# Why `follow` stopped: at its end, at something for the caller, or at something wrong.
AT_END, ODD, NO_ROOM, TORN, NO_MAP, SHORT = range(6)


def little(data: Any, at: int, width: int) -> int:
    value = 0
    for i in range(width):
        value |= int(data[at + i]) << (8 * i)
    return value


def note(data: Any, at: int, size: int, events: Any, count: int) -> None:
    events[count, TYPE] = data[at + 4]
    events[count, START] = at
    events[count, STOP] = at + size
    events[count, POS] = little(data, at + 13, 4)
    events[count, TIME] = little(data, at, 4)
    events[count, SERVER] = little(data, at + 5, 4)
    events[count, FLAGS] = little(data, at + 17, 2)


def frame(data: Any, at: int, stop: int, events: Any, count: int) -> tuple[int, int, int]:
    """Events of whole packets from `at` on: how many there are, where it ended, and why there.

    An event of 16 MiB or more comes in several packets; the headers between them are squeezed out.
    """
    room = len(events)
    while stop - at >= 5:
        if count == room:
            return count, at, FULL
        size = little(data, at, 3)
        body, behind = at + 4, at + 4 + size
        if size == 0xFFFFFF:
            pieces, more = 1, True
            while more:  # only when all of it is there is anything moved
                if stop - behind < 4:
                    return count, at, MORE
                length = little(data, behind, 3)
                more = length == 0xFFFFFF
                behind += 4 + length
                pieces += 1
                if behind > stop:
                    return count, at, MORE
            to, source = body + 0xFFFFFF, body + 0xFFFFFF
            for _ in range(pieces - 1):
                length = little(data, source, 3)
                data[to : to + length] = data[source + 4 : source + 4 + length]
                to, source = to + length, source + 4 + length
            size = to - body
        elif behind > stop:
            return count, at, MORE
        if size == 0 or data[body] == 0xFF:
            return count, at, ERROR
        if data[body] == 0xFE and size < 9:
            return count, at, END
        if data[body] != 0 or size < 1 + HEADER or little(data, body + 10, 4) != size - 1:
            return count, at, BROKEN
        note(data, body + 1, size - 1, events, count)
        count += 1
        at = behind
    return count, at, MORE


def frame_bare(data: Any, at: int, stop: int, events: Any, count: int) -> tuple[int, int, int]:
    """The same for events that lie end to end, as inside a compressed transaction."""
    room = len(events)
    while stop - at >= HEADER:
        if count == room:
            return count, at, FULL
        size = little(data, at + 9, 4)
        if size < HEADER:
            return count, at, BROKEN
        if stop - at < size:
            return count, at, MORE
        note(data, at, size, events, count)
        count += 1
        at += size
    return count, at, MORE


def checksums(data: Any, events: Any, first: int, last: int, tables: Any) -> int:
    """The first event of [first, last) whose CRC32 is wrong; -1 when all are right."""
    for i in range(first, last):
        at, stop = events[i, START], events[i, STOP] - 4
        if stop < at:
            return i
        crc = np.uint32(0xFFFFFFFF)
        while stop - at >= 8:
            low = crc ^ (
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            )
            crc = (
                tables[7, low & np.uint32(255)]
                ^ tables[6, (low >> np.uint32(8)) & np.uint32(255)]
                ^ tables[5, (low >> np.uint32(16)) & np.uint32(255)]
                ^ tables[4, low >> np.uint32(24)]
                ^ tables[3, data[at + 4]]
                ^ tables[2, data[at + 5]]
                ^ tables[1, data[at + 6]]
                ^ tables[0, data[at + 7]]
            )
            at += 8
        while at < stop:
            crc = tables[0, (crc ^ np.uint32(data[at])) & np.uint32(255)] ^ (crc >> np.uint32(8))
            at += 1
        if (crc ^ np.uint32(0xFFFFFFFF)) != np.uint32(little(data, stop, 4)):
            return i
    return -1


def checksums_python(data: Any, events: Any, first: int, last: int) -> int:
    view = memoryview(data)
    for i in range(first, last):
        at, stop = int(events[i, START]), int(events[i, STOP]) - 4
        if stop < at or zlib.crc32(view[at:stop]) != little(data, stop, 4):
            return i
    return -1


def mixed(data: Any, at: int, stop: int, seed: int) -> int:
    """A hash of bytes in 62 bits: two of 31 bits, whose products fit into 64."""
    first, second = (seed >> 31) & 0x7FFFFFFF, seed & 0x7FFFFFFF
    for i in range(at, stop):
        byte = int(data[i]) + 1
        first = ((first ^ byte) * 1000003 + 97) & 0x7FFFFFFF
        second = ((second + byte) * 69069 + 12345) & 0x7FFFFFFF
    return first << 31 | second


def is_word(data: Any, at: int, stop: int, word: Any) -> bool:
    """Whether this is the word, in whatever case."""
    if stop - at != len(word):
        return False
    for i in range(len(word)):
        if data[at + i] != word[i] and data[at + i] != word[i] + 32:
            return False
    return True


def follow(
    data: Any,
    events: Any,
    at: int,
    count: int,
    state: Any,
    rows: Any,
    txs: Any,
    maps: Any,
    begin: Any,
    commit: Any,
) -> tuple[int, int]:
    """Walks events [at, count): fills `rows` and `txs`; returns where it stopped, and why."""
    tail = state[S_TAIL]
    while at < count:
        kind, start, stop = events[at, TYPE], events[at, START], events[at, STOP] - tail
        body = start + HEADER
        if stop < body:
            return at, SHORT
        if state[S_ROWS] >= len(rows) or state[S_TXS] + 1 >= len(txs):
            return at, NO_ROOM
        size = events[at, STOP] - start
        end = events[at, POS]
        artificial = events[at, FLAGS] & ARTIFICIAL
        before = state[S_POS]
        after = before
        if end != 0 and not artificial:
            # Four bytes of a number that may be larger: it only grows.
            after = (before & ~0xFFFFFFFF) | end
            if after < before - 0x80000000:
                after += 0x100000000
        elif not artificial:
            after = before + size
        done = False
        if kind == XID:
            done = True
        elif kind == TABLE_MAP:
            if stop < body + 8 or state[S_MAPS] >= MOST_MAPS:
                return at, SHORT
            number = little(data, body, 6)
            slot = state[S_MAPS]
            for i in range(state[S_MAPS]):
                if maps[i, 0] == number:
                    slot = i
            if slot == state[S_MAPS]:
                state[S_MAPS] += 1
            maps[slot, 0] = number
            maps[slot, 1] = mixed(data, body + 8, stop, 1)
            maps[slot, 2] = at
        elif 23 <= kind <= 25 or 30 <= kind <= 32 or kind == PARTIAL_UPDATE or 166 <= kind <= 171:
            place = body + 8
            if stop < place + 1:
                return at, SHORT
            number = little(data, body, 6)
            closing = data[body + 6] & 1
            version_2 = 30 <= kind <= 39 or kind >= 169
            if version_2:
                if stop < place + 3:
                    return at, SHORT
                place += little(data, place, 2)
            if place >= stop:
                return at, SHORT
            width = int(data[place])
            place += 1
            if width > 250:
                if width != 252 or place + 2 > stop:
                    return at, SHORT
                width = little(data, place, 2)
                place += 2
            if kind == PARTIAL_UPDATE:
                change, way = UPDATE, PARTIAL
            elif kind >= 166:
                change, way = (kind - 166) % 3, COMPRESSED
            else:
                change, way = kind - (30 if version_2 else 23), PLAIN
            bits = place
            place += (width + 7) // 8 * (2 if change == UPDATE else 1)
            if place > stop:
                return at, SHORT
            state[S_NUMBER] += 1
            found = -1
            for i in range(state[S_MAPS] - 1, -1, -1):
                if maps[i, 0] == number:
                    found = i
                    break
            if found >= 0 and stop > place:
                row = state[S_ROWS]
                rows[row, R_EVENT] = at
                rows[row, R_TX] = state[S_TXS]
                rows[row, R_NUMBER] = state[S_NUMBER]
                rows[row, R_MAP] = maps[found, 1]
                rows[row, R_MAP_AT] = maps[found, 2]
                rows[row, R_GROUP] = mixed(data, bits, place, maps[found, 1] ^ (change * 3 + way))
                rows[row, R_KIND] = change
                rows[row, R_WAY] = way
                rows[row, R_BITS] = bits
                rows[row, R_WIDTH] = width
                rows[row, R_BEGIN] = place
                rows[row, R_STOP] = stop
                rows[row, R_POS] = after
                state[S_ROWS] = row + 1
            elif stop > place:
                return at, NO_MAP
            if closing:
                state[S_MAPS] = 0
        elif kind == GTID or kind == ANONYMOUS or kind == MARIADB_GTID:
            if state[S_IN]:
                return at, TORN
            tx = state[S_TXS]
            state[S_IN], state[S_NUMBER], state[S_MAPS] = 1, 0, 0
            txs[tx, T_START] = after - size
            txs[tx, T_AT] = at
            txs[tx, T_TIME] = events[at, TIME]
            txs[tx, T_SERVER] = events[at, SERVER]
            txs[tx, T_MICROS] = 0
            txs[tx, T_END] = 0
            if kind == MARIADB_GTID:
                if stop < body + 13:
                    return at, SHORT
                txs[tx, T_NUMBER] = little(data, body, 8)
                txs[tx, T_KEY] = little(data, body + 8, 4) << 32 | events[at, SERVER]
                flags = data[body + 12]
                state[S_ALONE] = flags & 1
                if flags & 0xC0:
                    return at, ODD  # one of the two parts of an XA transaction
            else:
                if stop < body + 25:
                    return at, SHORT
                state[S_ALONE] = 1  # until a BEGIN says otherwise
                if kind == GTID:
                    txs[tx, T_NUMBER] = little(data, body + 17, 8)
                    txs[tx, T_KEY] = mixed(data, body + 1, body + 17, 2)
                else:
                    txs[tx, T_NUMBER] = 0
                    txs[tx, T_KEY] = 0
                if stop >= body + 49 and data[body + 25] == 2:
                    micros = little(data, body + 42, 7)
                    if micros >> 55 and stop >= body + 56:
                        micros = little(data, body + 49, 7)  # of the server where it was made
                    txs[tx, T_MICROS] = micros & 0x7FFFFFFFFFFFFF
        elif kind == QUERY:
            if stop < body + 13:
                return at, SHORT
            text = body + 13 + little(data, body + 11, 2) + int(data[body + 8]) + 1
            if text > stop:
                return at, SHORT
            if state[S_IN] and is_word(data, text, stop, begin):
                state[S_ALONE] = 0
            elif state[S_IN] and is_word(data, text, stop, commit):
                done = True
            else:
                return at, ODD
        elif (
            kind == ANNOTATE
            or kind == ROWS_QUERY
            or kind == CHECKPOINT
            or kind == GTID_LIST
            or kind == PREVIOUS_GTIDS
            or kind == START_ENCRYPTION
            or kind == STOP_EVENT
            or kind == INTVAR
            or 13 <= kind <= 14
            or (events[at, FLAGS] & IGNORABLE and kind < 38)
        ):
            pass
        else:
            return at, ODD
        state[S_POS] = after
        at += 1
        if done:
            if not state[S_IN]:
                return at - 1, TORN
            txs[state[S_TXS], T_END] = after
            state[S_TXS] += 1
            state[S_IN], state[S_MAPS] = 0, 0
        if not state[S_IN]:
            state[S_DONE_EVENT] = at
            state[S_DONE_ROWS] = state[S_ROWS]
            state[S_DONE_TXS] = state[S_TXS]
            state[S_DONE_POS] = state[S_POS]
    return at, AT_END


def crc_tables() -> Any:
    """For eight bytes at a time."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for byte in range(256):
        crc = int(tables[0, byte])
        for step in range(1, 8):
            crc = int(tables[0, crc & 255]) ^ (crc >> 8)
            tables[step, byte] = crc
    return tables


FRAME = Kernel(frame, little, note)
FRAME_BARE = Kernel(frame_bare, little, note)
CHECKSUMS = Kernel(checksums, little)
FOLLOW = Kernel(follow, little, mixed, is_word)
BEGIN_WORD = np.frombuffer(b"BEGIN", np.uint8)
COMMIT_WORD = np.frombuffer(b"COMMIT", np.uint8)
CRC_TABLES = crc_tables()
