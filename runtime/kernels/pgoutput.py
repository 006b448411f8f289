"""Messages of pgoutput, PostgreSQL's replication format, as columns: what each is and where it stands.

A run of messages comes as one buffer with the place of each. Rows (insert, update, delete) are told
by numbers alone and never become Python objects; what describes them does, when it is asked for.
Protocol versions 1 to 4: with streamed transactions (2), prepared ones (3), and the times of
aborted ones (4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .jit import Kernel
from .postgres_messages import (
    BEGIN,
    COMMIT,
    LEFT_OVER,
    RELATION,
    SHORT,
    UNIX,
    WHERE,
    FrameError,
    Parsed,
    Relation,
    parse,
)

KEY, OLD = b"KO"  # what an old row holds: the columns of its replica identity, or all of them

# Rows of the table that the kernel fills, with a column for each message.
(
    _KIND, _XID, _TOP, _OID, _VERSION, _LSN, _END, _TIME, _ORDINAL, _OLD_KIND, _OLD_AT, _NEW_AT,
    _STREAMED,
) = range(13)  # fmt: skip

# What the kernel remembers from one run of messages to the next.
_STREAM, _OPEN, _OPEN_XID, _OPEN_LSN, _OPEN_TIME, _DONE, _NEXT = range(7)

_OUT_OF_BOUNDS, _SHORT, _UNKNOWN, _NOT_HERE, _NOT_DESCRIBED, _NO_TUPLE, _BAD_FIELD, _LEFT_OVER = (
    range(1, 9)
)
_PROBLEMS = {
    _OUT_OF_BOUNDS: "it does not lie in the buffer",
    _SHORT: SHORT,
    _UNKNOWN: "its kind is not known",
    _NOT_HERE: "its kind cannot stand here",
    _NOT_DESCRIBED: "its table was not described before",
    _NO_TUPLE: "a row is expected",
    _BAD_FIELD: "a field is neither null, unchanged, text nor binary, or has no length",
    _LEFT_OVER: LEFT_OVER,
}


class Split:
    """A run of messages by columns: one entry of each array for each message.

    kind       first byte of the message
    xid        transaction it belongs to; inside a streamed one perhaps a subtransaction of it
    top        the whole transaction: the same as xid but for such subtransactions
    oid        of the table of a row, and of Relation and Type
    version    which of `relations` describes a row; -1 for other messages
    lsn        final LSN of the transaction for all that is in it, 0 in streamed ones; of Origin, and of
               a Message outside transactions, their own; of all kinds of commit that of the commit
    end_lsn    of all kinds of commit: where the log goes on
    time       commit time, microseconds since 1970; 0 in streamed transactions
    ordinal    how many changes the transaction has before this one; a truncate counts once for
               each of its tables
    old_kind   KEY, OLD or 0: what `old_at` is
    old_at     offset in `data` of the old row, 0 for none
    new_at     the same for the new row
    """

    def __init__(self, data: Any, starts: Any, stops: Any, table: Any) -> None:
        self.data = data
        self.starts, self.stops = starts, stops
        self.kind, self.xid, self.top, self.oid = table[:4]
        self.version, self.lsn, self.end_lsn, self.time = table[4:8]
        self.ordinal, self.old_kind, self.old_at, self.new_at, self._streamed = table[8:]
        self.relations: list[Relation] = []
        self.described: list[int] = []  # the message that each came with; -1 for those known before

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def rows(self) -> Any:
        """Which messages are rows."""
        return np.flatnonzero(self.version >= 0)

    @property
    def others(self) -> Any:
        """Which messages are neither rows nor begin nor commit: those worth a call of `parse`."""
        known = (self.version >= 0) | (self.kind == BEGIN) | (self.kind == COMMIT)
        return np.flatnonzero(~known)

    def groups(self) -> Iterator[tuple[Relation, Any]]:
        """The rows of each table in each of its versions, by their message numbers in order."""
        rows = self.rows
        versions = self.version[rows]
        counts = np.bincount(versions, minlength=len(self.relations))
        present = np.flatnonzero(counts)
        if len(present) == 1:
            yield self.relations[present[0]], rows
            return
        rows = rows[np.argsort(versions, kind="stable")]
        ends = np.cumsum(counts)
        for version in present:
            end = int(ends[version])
            yield self.relations[version], rows[end - int(counts[version]) : end]

    def relation(self, oid: int, message: int) -> Relation | None:
        """A table as it is described where this message stands."""
        for place in range(len(self.relations) - 1, -1, -1):
            if self.relations[place].oid == oid and self.described[place] < message:
                return self.relations[place]
        return None

    def parse(self, message: int) -> Parsed:
        """A message that is no row as an object."""
        start, stop = int(self.starts[message]), int(self.stops[message])
        return parse(self.data[start:stop].tobytes(), message, bool(self._streamed[message]))


class Splitter:
    """Reads the messages of one connection, in their order; `way` as for `kernel_by`."""

    def __init__(self, way: str = "") -> None:
        self._way = way
        self._state = np.zeros(7, np.int64)
        self._relations: dict[int, Relation] = {}  # by OID, as they are now
        self._same: dict[Relation, Relation] = {}

    @property
    def relations(self) -> dict[int, Relation]:
        """The tables that were described so far, by OID."""
        return dict(self._relations)

    @property
    def inside(self) -> bool:
        """Whether the last message left a transaction, or a piece of a streamed one, open."""
        return bool(self._state[_OPEN] or self._state[_STREAM])

    def split(self, data: bytes | bytearray | memoryview, starts: Any, stops: Any) -> Split:
        """Messages data[starts[i]:stops[i]], as they came in; FrameError leaves all as it was."""
        content = np.frombuffer(data, np.uint8)
        starts, stops = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(
            stops, np.int64
        )
        count = len(starts)
        for array in (content, starts, stops):
            array.flags.writeable = False
        if count and (starts.min() < 0 or stops.max() > len(content) or (starts >= stops).any()):
            wrong = (starts < 0) | (stops > len(content)) | (starts >= stops)
            message = int(np.flatnonzero(wrong)[0])
            raise FrameError(WHERE, message, 0, _PROBLEMS[_OUT_OF_BOUNDS])
        described = np.flatnonzero(content[starts] == RELATION) if count else starts
        known = list(self._relations)
        oids, versions = _slots(known, len(known) + len(described))
        state, problem = self._state.copy(), np.zeros(3, np.int64)
        state[_NEXT] = len(known)
        table = np.zeros((13, count), np.int64)
        # As Python it is some 25 times as slow as what others have instead: compiled that much sooner.
        run = kernel_by(SPLIT, self._way, 25 * count) or split_messages
        run(content, starts, stops, state, oids, versions, table, problem)
        if problem[0]:
            message = int(problem[1])
            raise FrameError(
                WHERE, message, int(problem[2] - starts[message]), _PROBLEMS[int(problem[0])]
            )
        beyond = (table[_LSN] < 0) | (table[_END] < 0)
        if beyond.any():
            message = int(np.flatnonzero(beyond)[0])
            raise FrameError(WHERE, message, 1, "there is no such place in a log")
        result = Split(content, starts, stops, table)
        result.relations = list(self._relations.values())
        result.described = [-1] * len(result.relations) + described.tolist()
        current = dict(self._relations)
        for place in described.tolist():
            relation = result.parse(place)
            assert isinstance(relation, Relation)
            # Sent again after each reconnection and in each streamed transaction: mostly the same.
            relation = self._same.setdefault(relation, relation)
            result.relations.append(relation)
            current[relation.oid] = relation
        self._state, self._relations = state, current
        self._same = {relation: relation for relation in current.values()}
        return result


def kernel_by(kernel: Kernel, way: str, rows: int) -> Callable[..., Any] | None:
    """Which function does it: `compiled`, or `plain` as it stands; None for what Python has instead.

    Unless a test says which, that is decided by how many rows there were so far.
    """
    if way == "plain":
        return kernel.plain
    if way == "compiled":
        return kernel.compiled()
    return None if way else kernel.after(rows)


def joined(frames: Sequence[bytes], skip: int = 0) -> tuple[bytes, Any, Any]:
    """Frames as one buffer with starts and stops, less the first `skip` bytes of each.

    A frame of COPY_BOTH has 25 bytes before its message: `w`, two LSNs and a time.
    """
    ends = np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)))
    starts = np.empty(len(frames), np.int64)
    if len(frames):
        starts[0], starts[1:] = 0, ends[:-1]
    return b"".join(frames), starts + skip, ends


def _slots(known: list[int], most: int) -> tuple[Any, Any]:
    """A table of OIDs and their versions, at most half full with `most` of them."""
    size = 16
    while size < 2 * most:
        size *= 2
    oids, versions = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    for version, oid in enumerate(known):
        slot = slot_of(oids, oid)
        oids[slot], versions[slot] = oid, version
    return oids, versions


# --- kernel ----------------------------------------------------------------------------------


def be2(data: Any, at: int) -> Any:
    return (np.int64(data[at]) << 8) | np.int64(data[at + 1])


def be4(data: Any, at: int) -> Any:
    high = (np.int64(data[at]) << 24) | (np.int64(data[at + 1]) << 16)
    return high | (np.int64(data[at + 2]) << 8) | np.int64(data[at + 3])


def be8(data: Any, at: int) -> Any:
    return (be4(data, at) << 32) | be4(data, at + 4)


def slot_of(oids: Any, oid: int) -> int:
    """Where the table has this OID, or would have it."""
    slot = (oid * 40503) & (len(oids) - 1)
    while oids[slot] != -1 and oids[slot] != oid:
        slot = (slot + 1) & (len(oids) - 1)
    return slot


def tuple_end(data: Any, at: int, stop: int, problem: Any) -> int:
    """Behind the row that begins at `at`; -1 with `problem` told."""
    if at + 2 > stop:
        problem[0], problem[2] = _SHORT, at
        return -1
    count = be2(data, at)
    at += 2
    for _ in range(count):
        if at >= stop:
            problem[0], problem[2] = _SHORT, at
            return -1
        kind = data[at]
        if kind == 110 or kind == 117:  # n, u
            at += 1
            continue
        if kind != 116 and kind != 98:  # t, b
            problem[0], problem[2] = _BAD_FIELD, at
            return -1
        if at + 5 > stop:
            problem[0], problem[2] = _SHORT, at
            return -1
        size = be4(data, at + 1)
        if size > stop - at - 5:
            problem[0], problem[2] = _SHORT, at
            return -1
        at += 5 + size
    return at


def split_messages(
    data: Any,
    starts: Any,
    stops: Any,
    state: Any,
    oids: Any,
    versions: Any,
    table: Any,
    problem: Any,
) -> None:
    """Fills `table`; problem[0] is not 0 when message problem[1] is wrong at byte problem[2]."""
    for message in range(len(starts)):
        at = starts[message]
        stop = stops[message]
        kind = data[at]
        table[_KIND, message] = kind
        table[_VERSION, message] = -1
        problem[1] = message
        problem[2] = at
        at += 1
        if kind == 73 or kind == 85 or kind == 68:  # I U D
            if state[_STREAM] != 0:
                if at + 4 > stop:
                    problem[0] = _SHORT
                    return
                table[_XID, message] = be4(data, at)
                table[_TOP, message] = state[_STREAM]
                table[_STREAMED, message] = 1
                at += 4
            elif state[_OPEN] != 0:
                table[_XID, message] = state[_OPEN_XID]
                table[_TOP, message] = state[_OPEN_XID]
                table[_LSN, message] = state[_OPEN_LSN]
                table[_TIME, message] = state[_OPEN_TIME]
                table[_ORDINAL, message] = state[_DONE]
                state[_DONE] += 1
            else:
                problem[0] = _NOT_HERE
                return
            problem[2] = at
            if at + 5 > stop:
                problem[0] = _SHORT
                return
            oid = be4(data, at)
            slot = slot_of(oids, oid)
            if oids[slot] != oid:
                problem[0] = _NOT_DESCRIBED
                return
            table[_OID, message] = oid
            table[_VERSION, message] = versions[slot]
            at += 4
            mark = data[at]
            at += 1
            if (mark == 75 or mark == 79) and kind != 73:  # K O
                table[_OLD_KIND, message] = mark
                table[_OLD_AT, message] = at
                at = tuple_end(data, at, stop, problem)
                if at < 0:
                    return
                if kind == 68:
                    problem[2] = at
                    if at != stop:
                        problem[0] = _LEFT_OVER
                        return
                    continue
                problem[2] = at
                if at >= stop:
                    problem[0] = _SHORT
                    return
                mark = data[at]
                at += 1
            if mark != 78 or kind == 68:  # N
                problem[0] = _NO_TUPLE
                return
            table[_NEW_AT, message] = at
            at = tuple_end(data, at, stop, problem)
            if at < 0:
                return
            problem[2] = at
            if at != stop:
                problem[0] = _LEFT_OVER
                return
        elif kind == 66 or kind == 98:  # B: lsn time xid; b: lsn end time xid gid
            skip = 0 if kind == 66 else 8
            if at + 20 + skip > stop:
                problem[0] = _SHORT
                return
            if state[_OPEN] != 0 or state[_STREAM] != 0:
                problem[0] = _NOT_HERE
                return
            state[_OPEN] = 1
            state[_OPEN_LSN] = be8(data, at)
            state[_OPEN_TIME] = be8(data, at + 8 + skip) + UNIX
            state[_OPEN_XID] = be4(data, at + 16 + skip)
            state[_DONE] = 0
            table[_XID, message] = state[_OPEN_XID]
            table[_TOP, message] = state[_OPEN_XID]
            table[_LSN, message] = state[_OPEN_LSN]
            table[_TIME, message] = state[_OPEN_TIME]
        elif kind == 67 or kind == 80:  # C: flags lsn end time; P: the same, xid gid
            if at + 25 > stop:
                problem[0] = _SHORT
                return
            if state[_OPEN] == 0:
                problem[0] = _NOT_HERE
                return
            table[_XID, message] = state[_OPEN_XID]
            table[_TOP, message] = state[_OPEN_XID]
            table[_LSN, message] = be8(data, at + 1)
            table[_END, message] = be8(data, at + 9)
            table[_TIME, message] = be8(data, at + 17) + UNIX
            table[_ORDINAL, message] = state[_DONE]
            state[_OPEN] = 0
        elif kind == 82 or kind == 89 or kind == 84 or kind == 77:  # R Y T M
            if state[_STREAM] != 0:
                if at + 4 > stop:
                    problem[0] = _SHORT
                    return
                table[_XID, message] = be4(data, at)
                table[_TOP, message] = state[_STREAM]
                table[_STREAMED, message] = 1
                at += 4
            elif state[_OPEN] != 0:
                table[_XID, message] = state[_OPEN_XID]
                table[_TOP, message] = state[_OPEN_XID]
                table[_LSN, message] = state[_OPEN_LSN]
                table[_TIME, message] = state[_OPEN_TIME]
                table[_ORDINAL, message] = state[_DONE]
            elif kind != 77:
                problem[0] = _NOT_HERE
                return
            problem[2] = at
            if at + 5 > stop:
                problem[0] = _SHORT
                return
            if kind == 82 or kind == 89:
                oid = be4(data, at)
                table[_OID, message] = oid
                if kind == 82:
                    slot = slot_of(oids, oid)
                    oids[slot] = oid
                    versions[slot] = state[_NEXT]
                    state[_NEXT] += 1
            elif kind == 84:
                count = be4(data, at)
                if stop - at - 5 != 4 * count:
                    problem[0] = _SHORT
                    return
                state[_DONE] += count
            else:
                if at + 9 > stop:
                    problem[0] = _SHORT
                    return
                if data[at] & 1:
                    state[_DONE] += 1
                elif state[_STREAM] != 0:
                    problem[0] = _NOT_HERE
                    return
                else:  # whatever is open, this is no part of it
                    table[_LSN, message] = be8(data, at + 1)
                    table[_XID, message] = 0
                    table[_TOP, message] = 0
                    table[_TIME, message] = 0
                    table[_ORDINAL, message] = 0
        elif kind == 83:  # S: xid first
            if at + 5 > stop:
                problem[0] = _SHORT
                return
            if state[_OPEN] != 0 or state[_STREAM] != 0 or be4(data, at) == 0:
                problem[0] = _NOT_HERE
                return
            state[_STREAM] = be4(data, at)
            table[_XID, message] = state[_STREAM]
            table[_TOP, message] = state[_STREAM]
        elif kind == 69:  # E
            if state[_STREAM] == 0:
                problem[0] = _NOT_HERE
                return
            table[_XID, message] = state[_STREAM]
            table[_TOP, message] = state[_STREAM]
            state[_STREAM] = 0
        elif kind == 99 or kind == 65:  # c: xid flags lsn end time; A: xid sub_xid [lsn time]
            if at + (29 if kind == 99 else 8) > stop:
                problem[0] = _SHORT
                return
            if state[_OPEN] != 0 or state[_STREAM] != 0:
                problem[0] = _NOT_HERE
                return
            table[_TOP, message] = be4(data, at)
            if kind == 99:
                table[_XID, message] = be4(data, at)
                table[_LSN, message] = be8(data, at + 5)
                table[_END, message] = be8(data, at + 13)
                table[_TIME, message] = be8(data, at + 21) + UNIX
            else:
                table[_XID, message] = be4(data, at + 4)
        elif (
            kind == 75 or kind == 114 or kind == 112
        ):  # K p: flags lsn end time xid gid; r: 2 times
            skip = 8 if kind == 114 else 0
            if at + 29 + skip > stop:
                problem[0] = _SHORT
                return
            if state[_OPEN] != 0 or state[_STREAM] != 0:
                problem[0] = _NOT_HERE
                return
            table[_XID, message] = be4(data, at + 25 + skip)
            table[_TOP, message] = be4(data, at + 25 + skip)
            table[_LSN, message] = be8(data, at + 1)
            table[_END, message] = be8(data, at + 9)
            table[_TIME, message] = be8(data, at + 17 + skip) + UNIX
        elif kind == 79:  # O: lsn name
            if at + 9 > stop:
                problem[0] = _SHORT
                return
            table[_XID, message] = state[_OPEN_XID] if state[_OPEN] else state[_STREAM]
            table[_TOP, message] = table[_XID, message]
            table[_LSN, message] = be8(data, at)
        else:
            problem[0] = _UNKNOWN
            return


SPLIT = Kernel(split_messages, be2, be4, be8, slot_of, tuple_end)
