"""Messages of pgoutput that are no rows, as objects: tables, types, begins and ends of transactions."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ..errors import DfcError

# Kinds of messages, by their first byte.
BEGIN, COMMIT, ORIGIN, RELATION, TYPE, TRUNCATE, MESSAGE = b"BCORYTM"
INSERT, UPDATE, DELETE = b"IUD"
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = b"SEcA"
BEGIN_PREPARE, PREPARE, COMMIT_PREPARED, ROLLBACK_PREPARED, STREAM_PREPARE = b"bPKrp"

UNIX = 946_684_800_000_000  # microseconds from 1970 to 2000, where the clock of the server begins
SHORT = "it ends too early"
LEFT_OVER = "there is more than its last field"


WHERE = "pgoutput: message"


class FrameError(DfcError):
    """A message that is not as the protocol has it: damaged on its way, or of a kind unknown here."""

    def __init__(self, what: str, number: int, offset: int, why: str) -> None:
        self.what, self.number, self.offset, self.why = what, number, offset, why
        super().__init__(
            f"{what} {number} cannot be read at byte {offset}: {why};"
            " the connection has to be made anew"
        )

    def __reduce__(self) -> tuple[type[FrameError], tuple[str, int, int, str]]:
        return FrameError, (self.what, self.number, self.offset, self.why)


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type: int  # OID
    modifier: int
    key: bool  # part of the replica identity


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the rows behind this message have it; equal for equal tables."""

    oid: int
    schema: str
    name: str
    identity: str  # d, n, f or i, as pg_class.relreplident
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    lsn: int  # of the commit
    time: int  # microseconds since 1970, as all times here
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    lsn: int
    end_lsn: int
    time: int


@dataclass(frozen=True, slots=True)
class Origin:
    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class Type:
    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """What pg_logical_emit_message wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StreamStart:
    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    pass


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    lsn: int
    end_lsn: int
    time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    xid: int
    sub_xid: int  # the same as `xid` when all of it is void
    lsn: int | None  # protocol 4, streaming `parallel`
    time: int | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of a two-phase commit: `kind` tells which."""

    kind: int
    lsn: int
    end_lsn: int
    time: int  # for a rollback that of the rollback
    xid: int
    gid: str


Parsed = (
    Relation
    | Begin
    | Commit
    | Origin
    | Type
    | Truncate
    | Message
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | Prepared
)


def parse(content: bytes, number: int, streamed: bool) -> Parsed:
    """A message as an object; one of a streamed transaction says which one it belongs to."""
    return _Reader(content, number).message(streamed)


class _Reader:
    """Fields of one message, one after the other."""

    def __init__(self, content: bytes, number: int) -> None:
        self._bytes = content
        self._at = 0
        self._message = number

    def message(self, streamed: bool) -> Parsed:
        kind = self._take("B")
        if streamed and kind in (RELATION, TYPE, TRUNCATE, MESSAGE):
            self._take("I")
        match kind:
            case 82:
                parsed: Parsed = self._relation()
            case 66:
                lsn, time, xid = self._all("QqI")
                parsed = Begin(lsn, time + UNIX, xid)
            case 67:
                _, lsn, end, time = self._all("BQQq")
                parsed = Commit(lsn, end, time + UNIX)
            case 79:
                parsed = Origin(self._take("Q"), self._text())
            case 89:
                parsed = Type(self._take("I"), self._text(), self._text())
            case 84:
                count, flags = self._all("IB")
                relations = self._all(f"{count}I") if count else ()
                parsed = Truncate(relations, bool(flags & 1), bool(flags & 2))
            case 77:
                flags, lsn = self._all("BQ")
                prefix, size = self._text(), self._take("I")
                (content,) = self._all(f"{size}s")
                parsed = Message(bool(flags & 1), lsn, prefix, content)
            case 83:
                xid, first = self._all("IB")
                parsed = StreamStart(xid, first == 1)
            case 69:
                parsed = StreamStop()
            case 99:
                xid, _, lsn, end, time = self._all("IBQQq")
                parsed = StreamCommit(xid, lsn, end, time + UNIX)
            case 65:
                xid, sub_xid = self._all("II")
                aborted: tuple[int | None, int | None] = (None, None)
                if self._at < len(self._bytes):
                    lsn, time = self._all("Qq")
                    aborted = lsn, time + UNIX
                parsed = StreamAbort(xid, sub_xid, *aborted)
            case 98:
                lsn, end, time, xid = self._all("QQqI")
                parsed = Prepared(kind, lsn, end, time + UNIX, xid, self._text())
            case 80 | 75 | 112:
                _, lsn, end, time, xid = self._all("BQQqI")
                parsed = Prepared(kind, lsn, end, time + UNIX, xid, self._text())
            case 114:
                _, lsn, end, _, time, xid = self._all("BQQqqI")
                parsed = Prepared(kind, lsn, end, time + UNIX, xid, self._text())
            case _:
                raise FrameError(WHERE, self._message, 0, "it is a row, which is no object")
        if self._at != len(self._bytes):
            raise FrameError(WHERE, self._message, self._at, LEFT_OVER)
        return parsed

    def _relation(self) -> Relation:
        oid, schema, name = self._take("I"), self._text(), self._text()
        identity, count = self._all("BH")
        columns = []
        for _ in range(count):
            flags, column = self._take("B"), self._text()
            kind, modifier = self._all("Ii")
            columns.append(RelationColumn(column, kind, modifier, bool(flags & 1)))
        # An empty name of a schema stands for pg_catalog.
        return Relation(oid, schema or "pg_catalog", name, chr(identity), tuple(columns))

    def _all(self, form: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from(">" + form, self._bytes, self._at)
        except struct.error:
            raise FrameError(WHERE, self._message, self._at, SHORT) from None
        self._at += struct.calcsize(">" + form)
        return values

    def _take(self, form: str) -> Any:
        return self._all(form)[0]

    def _text(self) -> str:
        end = self._bytes.find(b"\0", self._at)
        if end < 0:
            raise FrameError(WHERE, self._message, self._at, SHORT)
        text = self._bytes[self._at : end]
        self._at = end + 1
        # A server whose own encoding is SQL_ASCII may send anything.
        return text.decode("utf-8", "backslashreplace")
