"""The binary log as it comes from the server: a replica's connection, and events in a buffer."""

from __future__ import annotations

import struct
import time
import uuid
from typing import Any

import numpy as np
import pyarrow as pa

from ..kernels import binlog as kernel
from .log import SourceError, TransientError
from .mysql_address import READ_SECS, Address
from .mysql_gtid import Executed, MariadbGtids, MysqlGtids
from .mysql_packets import rotated
from .mysql_server import replica_id

HEARTBEAT_SECS = 15
AT_ONCE = 8 << 20  # bytes that are worth a pass
LINGER_SECS = 0.002  # for more of a stream that runs
MOST_EVENTS = 1 << 17
_FIRST_ROOM = 2 * AT_ONCE
FURTHEST = 0xFFFFFFFF  # offset that can be asked for
_REGISTER, _DUMP, _DUMP_GTID = 0x15, 0x12, 0x1E


class Broken(SourceError):
    """Bytes that are no events: `at` is the number of the event among those at hand."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at


class Frames:
    """A buffer with the events in it; those at hand are `events[:count]`, a row of numbers each."""

    def __init__(self, room: int = _FIRST_ROOM) -> None:
        self.data: Any = np.empty(room, np.uint8)
        self.events: Any = np.zeros((MOST_EVENTS, kernel.EVENT_WIDTH), np.int64)
        self.count = 0
        self._framed = 0  # bytes that are whole events, or were
        self._stop = 0
        self._status = kernel.MORE

    def body(self, index: int, tail: int = 0) -> bytes:
        """An event without its header, and without so many bytes of checksum."""
        start, stop = self.events[index, kernel.START], self.events[index, kernel.STOP]
        return bytes(self.data[start + kernel.HEADER : stop - tail])

    def whole(self, index: int) -> bytes:
        start, stop = self.events[index, kernel.START], self.events[index, kernel.STOP]
        return bytes(self.data[start:stop])

    def length(self, index: int) -> int:
        return int(self.events[index, kernel.STOP] - self.events[index, kernel.START])

    def ends(self, before: int) -> Any:
        """Where the events at hand end in their files, when the last one before ended at `before`.

        The log tells the last four bytes of it.
        """
        made = np.zeros(self.count, np.int64)
        turns = np.flatnonzero(self.events[: self.count, kernel.TYPE] == kernel.ROTATE) + 1
        for first, last in zip([0, *turns.tolist()], [*turns.tolist(), self.count], strict=True):
            found = self.events[first:last, kernel.POS]
            real = found != 0
            real &= self.events[first:last, kernel.FLAGS] & kernel.ARTIFICIAL == 0
            told = np.concatenate([[before & 0xFFFFFFFF], found[real]])
            wraps = np.cumsum(np.diff(told, prepend=told[0]) < -0x80000000)
            whole = (before & ~0xFFFFFFFF) + told + (wraps << 32)
            made[first:last] = whole[np.cumsum(real)]
            before = 4
        return made

    def size(self, first: int) -> int:
        """Bytes from this event on."""
        if first >= self.count:
            return 0
        return int(self._framed - self.events[first, kernel.START])

    def drop(self, count: int) -> None:
        """Forgets so many of the events."""
        if count == 0:
            return
        lead = self._lead
        begin = (
            self._framed if count >= self.count else int(self.events[count, kernel.START]) - lead
        )
        left = self.count - count
        self.events[:left] = self.events[count : self.count]
        self.events[:left, kernel.START : kernel.STOP + 1] -= begin
        self.count = left
        self.data[: self._stop - begin] = self.data[begin : self._stop]
        self._stop -= begin
        self._framed -= begin

    _lead = 0  # bytes before an event in the buffer
    _kernel = kernel.FRAME_BARE

    def _make_room(self) -> Any:
        if len(self.data) - self._stop < AT_ONCE:
            larger = np.empty(2 * len(self.data), np.uint8)
            larger[: self._stop] = self.data[: self._stop]
            self.data = larger
        return memoryview(self.data)[self._stop :]

    def _frame(self) -> None:
        if self._status in (kernel.MORE, kernel.FULL):
            run = self._kernel.after(1 + (self._stop - self._framed) // 64) or self._kernel.plain
            self.count, self._framed, self._status = run(
                self.data, self._framed, self._stop, self.events, self.count
            )


class Unpacked(Frames):
    """The events inside a compressed transaction, taken out a piece at a time."""

    def __init__(self, payload: bytes, index: int) -> None:
        super().__init__()
        self._index = index  # of the event that holds it all
        kind, at = _payload(payload, index)
        reader = pa.BufferReader(pa.py_buffer(payload).slice(at))
        if kind == 0:
            self._input: Any = pa.CompressedInputStream(reader, "zstd")
        elif kind == 255:
            self._input = reader
        else:
            raise Broken(f"a transaction is compressed in a way that is not known ({kind})", index)

    def fill(self) -> bool:
        """Takes out more; False when there is no more."""
        if self._status == kernel.FULL:
            self._frame()
            if self._status != kernel.BROKEN:
                return True
        room = self._make_room()
        try:
            got = self._input.readinto(room[:AT_ONCE])
        except OSError as error:
            what = f"a compressed transaction is damaged: {error}"
            raise Broken(what, self._index) from None
        self._stop += got
        self._frame()
        full = self._status == kernel.FULL
        if self._status == kernel.BROKEN or (not got and not full and self._framed < self._stop):
            raise Broken("a compressed transaction is damaged", self._index)
        return bool(got) or full


class Dump(Frames):
    """A connection that the server takes for a replica's."""

    _lead = 5  # the packet's header and the byte that says that all is well
    _kernel = kernel.FRAME

    def __init__(self, address: Address, mariadb: bool, source_id: str) -> None:
        super().__init__()
        self._address = address
        self._mariadb = mariadb
        self._source = source_id
        self._number = replica_id(source_id)
        self._connection = address.connect()
        self._heard = time.monotonic()
        self._lost: TransientError | None = None
        self._until = self._at = 0
        self._set_up()

    def close(self) -> None:
        # Not a polite close: the server would send the rest of what it has before it listens.
        self._connection._force_close()

    # --- asking ----------------------------------------------------------------------------

    def _set_up(self) -> None:
        period = HEARTBEAT_SECS * 1_000_000_000
        settings = [
            "@master_binlog_checksum = @@global.binlog_checksum",
            f"@master_heartbeat_period = {period}",
        ]
        if self._mariadb:
            settings.append("@mariadb_slave_capability = 4")
        else:
            # The server ends the stream of an earlier connection with the same name.
            name = uuid.uuid5(uuid.NAMESPACE_URL, f"dfc:{self._source}")
            settings += [
                "@source_binlog_checksum = @@global.binlog_checksum",
                f"@source_heartbeat_period = {period}",
                f"@slave_uuid = '{name}'",
                f"@replica_uuid = '{name}'",
            ]
        self._run("SET " + ", ".join(settings))
        body = struct.pack("<IBBBHII", self._number, 0, 0, 0, 0, 0, 0)
        with self._address.guarded():
            try:
                self._connection._execute_command(_REGISTER, body)
                self._connection._read_packet()
            except Exception as error:
                if error.args and error.args[0] in (1045, 1227):
                    raise SourceError(
                        f"server {self._address}: the user `{self._address.user}` may not read the "
                        "binary log: GRANT REPLICATION SLAVE ON *.* TO it"
                    ) from None
                raise

    def _run(self, sql: str) -> None:
        with self._address.guarded(), self._connection.cursor() as cursor:
            cursor.execute(sql)

    def from_file(self, file: str, offset: int) -> None:
        # The question has four bytes for the offset, and files grow beyond them: a transaction is
        # never in two. Such a file is read from its start, up to the place in silence.
        self._until = offset if offset > FURTHEST else 0
        self._at = 4
        start = 4 if self._until else offset
        self._send(_DUMP, struct.pack("<IHI", start, 0, self._number) + file.encode())

    def from_gtids(self, done: Executed) -> None:
        """Everything but these transactions."""
        if isinstance(done, MariadbGtids):
            self._run(
                f"SET @slave_connect_state = '{done}', @slave_gtid_strict_mode = 1,"
                " @slave_gtid_ignore_duplicates = 0"
            )
            self._send(_DUMP, struct.pack("<IHI", 4, 0, self._number))
            return
        assert isinstance(done, MysqlGtids)
        known = done.encode()
        head = struct.pack("<HIIQI", 0, self._number, 0, 4, len(known))
        self._send(_DUMP_GTID, head + known)

    def _send(self, command: int, body: bytes) -> None:
        with self._address.guarded():
            self._connection._execute_command(command, body)
        self._socket = self._connection._sock
        self._heard = time.monotonic()

    # --- listening -------------------------------------------------------------------------

    def fill(self, wait: float) -> bool:
        """Waits for events; whether any bytes came. An error of the server comes after its events."""
        if self._status == kernel.FULL:
            self._frame()
            if self._until:
                self._leave_out()
            return True
        if self._status != kernel.MORE:
            if self.count == 0:
                self._end()
            return False
        if self._lost is not None:
            raise self._lost
        if not self._receive(wait):
            if time.monotonic() - self._heard > READ_SECS:
                raise TransientError(
                    f"server {self._address}: no word for {READ_SECS} s, not even a heartbeat"
                )
            return False
        until = self._stop + AT_ONCE
        try:
            while self._stop < until and self._receive(LINGER_SECS):
                pass
        except TransientError as error:
            self._lost = error  # why it hung up may be in what has come
        self._frame()
        if self._until:
            self._leave_out()
        if self.count == 0 and self._status not in (kernel.MORE, kernel.FULL):
            self._end()
        return True

    def _leave_out(self) -> None:
        """Takes away events before the place that was asked for, as if the server had begun there."""
        if self.count == 0:
            return
        ends, kinds = self.ends(self._at), self.events[: self.count, kernel.TYPE]
        opening = int(self._at == 4 and kinds[0] == kernel.ROTATE)
        if opening:
            start, stop = self.events[0, kernel.START], self.events[0, kernel.STOP]
            told = rotated(bytes(self.data[start:stop]), self._until)
            self.data[start:stop] = np.frombuffer(told, np.uint8)
        # The file's name and format have to be known; the server sends both first.
        later = np.cumsum(kinds == kernel.ROTATE) > opening  # in the next file
        passed = (ends <= self._until) & ~later
        begins = passed & (kinds == kernel.FORMAT)
        self.events[: self.count][begins, kernel.FLAGS] |= kernel.ARTIFICIAL
        passed[:opening] = False
        left = np.flatnonzero(~passed | begins)
        self.events[: len(left)] = self.events[left]
        self._at, self.count = int(ends[-1]), len(left)
        if self._at >= self._until or later.any():
            self._until = 0
        if self.count == 0:  # otherwise the bytes go with the events
            self.data[: self._stop - self._framed] = self.data[self._framed : self._stop]
            self._stop -= self._framed
            self._framed = 0

    def _receive(self, wait: float) -> bool:
        room = self._make_room()
        self._socket.settimeout(max(wait, 0.0005))
        try:
            got = self._socket.recv_into(room)
        except TimeoutError:
            return False
        except OSError as error:
            raise TransientError(f"server {self._address}: connection lost: {error}") from None
        if got == 0:
            raise TransientError(f"server {self._address}: connection lost")
        self._stop += got
        self._heard = time.monotonic()
        return True

    def _end(self) -> None:
        """What the server said instead of an event."""
        if self._status == kernel.END:
            raise TransientError(f"server {self._address}: it ended the stream")
        if self._status == kernel.BROKEN:
            raise Broken("the stream is damaged: no event is where one should begin", 0)
        at = self._framed + 5
        size = int.from_bytes(bytes(self.data[self._framed : self._framed + 3]), "little")
        packet = bytes(self.data[at : self._framed + 4 + size])
        if len(packet) < 2:
            raise Broken("the stream is damaged: an empty packet", 0)
        number = int.from_bytes(packet[:2], "little")
        text = packet[2:]
        if text[:1] == b"#":
            text = text[6:]
        raise self._said(number, text.decode("utf-8", "replace"))

    def _said(self, number: int, text: str) -> SourceError:
        where = f"server {self._address}"
        if "same server" in text or "same server_uuid" in text or number == 4052:
            return SourceError(
                f"{where}: another replica has connected with the number {self._number}, which "
                f"follows from the source id `{self._source}`: every pipeline on a server needs a "
                f"source id of its own ({text})"
            )
        if number == 1236:
            return Refused(f"{where}: {text} ({number})")
        if number in (1045, 1227):
            return SourceError(
                f"{where}: the user `{self._address.user}` may not read the binary log: GRANT "
                f"REPLICATION SLAVE ON *.* TO it ({text})"
            )
        return self._address.error(self._connection_error(number, text))

    @staticmethod
    def _connection_error(number: int, text: str) -> Exception:
        return Exception(number, text)


class Refused(SourceError):
    """The server cannot send the log from the place that was asked for."""


def _payload(data: bytes, index: int) -> tuple[int, int]:
    """How a compressed transaction is compressed, and where that begins."""
    at, kind = 0, -1

    def number() -> int:
        nonlocal at
        first = data[at]
        width = {252: 2, 253: 3, 254: 8}.get(first, 0)
        value = int.from_bytes(data[at + 1 : at + 1 + width], "little") if width else first
        at += 1 + width
        return value

    try:
        while field := number():
            length = number()
            if field == 2:
                behind = at + length
                kind = number()
                at = behind
            else:
                at += length
    except IndexError:
        raise Broken("a compressed transaction is damaged", index) from None
    return kind, at
