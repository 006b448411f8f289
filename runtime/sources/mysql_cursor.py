"""A SELECT whose rows stay bytes: prepared, so that values come in binary, and read in large pieces."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..kernels import mysql_images as kernel
from .log import SourceError, TransientError
from .mysql_address import READ_SECS, Address

_PREPARE, _EXECUTE, _CLOSE, _OPTION = 0x16, 0x17, 0x19, 0x1B
AT_ONCE = 1 << 20  # bytes that are read at most in one go
_ROOM = 1 << 21

# Rows as they are stored, in UTC, for as long as they take; waiting for nobody's lock for long.
_SESSION = (
    "SET SESSION sql_mode = '', time_zone = '+00:00', character_set_results = NULL,"
    " net_write_timeout = 600, lock_wait_timeout = 10, sql_select_limit = DEFAULT"
)
_NO_LIMIT = {
    True: "SET SESSION max_statement_time = 0",
    False: "SET SESSION max_execution_time = 0",
}


@dataclass(frozen=True, slots=True)
class Images:
    """Rows as the log has them, one after the other in data[:used], behind `head` spare bytes."""

    data: Any
    head: int
    used: int
    rows: int


class Connection:
    """One connection that reads tables."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection = address.connect()
        self._closed = False
        self._busy = False  # a result is on its way
        with address.guarded():
            # Several statements in one go.
            self._connection._execute_command(_OPTION, b"\0\0")
            self._connection._read_packet()
        self.query(_SESSION)
        self.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        mariadb = "mariadb" in str(self.query("SELECT VERSION()")[0][0]).lower()
        self.query(_NO_LIMIT[mariadb])

    @property
    def usable(self) -> bool:
        """Whether it can be given another question."""
        return not (self._closed or self._busy)

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.address.guarded(), self._connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def queries(self, *statements: str) -> list[list[tuple[Any, ...]]]:
        """The results of several statements, for the time of one."""
        with self.address.guarded(), self._connection.cursor() as cursor:
            cursor.execute("; ".join(statements))
            found = [list(cursor.fetchall())]
            while cursor.nextset():
                found.append(list(cursor.fetchall()))
            return found

    def close(self) -> None:
        """From any thread: one that waits for rows wakes up."""
        self._closed = True
        sock = self._connection._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._connection._force_close()

    # --- rows ------------------------------------------------------------------------------

    def images(self, sql: str, columns: Any, head: int) -> Iterator[Images]:
        """The rows of a SELECT; `columns` are its operations. What comes is good until the next."""
        with self.address.guarded():
            statement, count = self._prepare(sql)
            if count != len(columns):
                raise SourceError(f"a SELECT of {len(columns)} columns came back with {count}")
            self._connection._execute_command(_EXECUTE, struct.pack("<IBI", statement, 0, 1))
            self._busy = True
            for _ in range(1 + count + 1):  # how many columns, each of them, and their end
                self._connection._read_packet()
            self._connection._sock.settimeout(READ_SECS)
            yield from _Stream(self, self._connection, columns, head)
            self._busy = False
            self._connection._execute_command(_CLOSE, struct.pack("<I", statement))

    def _prepare(self, sql: str) -> tuple[int, int]:
        self._connection._execute_command(_PREPARE, sql)
        packet = self._connection._read_packet()
        statement, columns, parameters = struct.unpack_from("<IHH", packet.get_all_data(), 1)
        for count in (parameters, columns):
            for _ in range(count + 1 if count else 0):
                self._connection._read_packet()
        return statement, columns


class _Stream:
    """The packets of a result behind its columns."""

    def __init__(self, owner: Connection, connection: Any, columns: Any, head: int) -> None:
        self._owner = owner
        self._connection = connection
        self._columns = columns
        self._head = head
        self._data: Any = np.empty(_ROOM, np.uint8)
        self._at = self._stop = 0
        self._begun = False

    def __iter__(self) -> Iterator[Images]:
        out = np.empty(2 * _ROOM, np.uint8)
        used, rows = self._head, 0
        while True:
            seen = max(1, (self._stop - self._at) // 64)
            run = kernel.FRAME.after(seen) or kernel.frame_images
            status, self._at, used, rows = run(
                self._data, self._at, self._stop, self._columns, out, used, rows
            )
            if status == kernel.MORE:
                self._receive()
                continue
            if status == kernel.FULL and rows == 0:
                out = np.empty(2 * len(out), np.uint8)
                continue
            if status in (kernel.FULL, kernel.END, kernel.LONG) and rows:
                yield Images(out, self._head, used, rows)
                used, rows = self._head, 0
            if status == kernel.END:
                return
            if status == kernel.LONG:
                yield self._long_row()
            elif status == kernel.FAILED:
                self._fail()
            elif status == kernel.BROKEN:
                raise SourceError(f"server {self._owner.address}: a row is not of its columns")

    def _receive(self) -> None:
        left = self._stop - self._at
        if self._at and len(self._data) - self._stop < AT_ONCE:
            self._data[:left] = self._data[self._at : self._stop].copy()
            self._at, self._stop = 0, left
        if len(self._data) - self._stop < AT_ONCE:
            larger = np.empty(2 * len(self._data), np.uint8)
            larger[:left] = self._data[self._at : self._stop]
            self._data, self._at, self._stop = larger, 0, left
        room = memoryview(self._data)[self._stop :]
        # What there is, and no more: whether the end is among it only the kernel can tell.
        if self._begun:
            got = self._connection._sock.recv_into(room)
        else:
            # Behind the columns the library may have read some already.
            file = self._connection._rfile
            first = file.read(len(file.peek(1)))
            got = len(first)
            room[:got] = first
            self._begun = True
        if not got:
            raise TransientError(f"server {self._owner.address}: connection lost")
        self._stop += got

    def _long_row(self) -> Images:
        """A row of 16 MiB or more, whose packets have to be put together."""
        parts = []
        while True:
            while self._stop - self._at < 4:
                self._receive()
            size = int.from_bytes(bytes(self._data[self._at : self._at + 3]), "little")
            while self._stop - self._at < 4 + size:
                self._receive()
            parts.append(self._data[self._at + 4 : self._at + 4 + size].copy())
            self._at += 4 + size
            if size < 0xFFFFFF:
                break
        row = np.concatenate(parts)
        out = np.empty(self._head + len(row) + kernel.EXTRA * (len(self._columns) + 1), np.uint8)
        run = kernel.IMAGE.after(len(row)) or kernel.put_image
        used = run(row, 1, len(row), self._columns, out, self._head)
        if used < 0 or row[0] != 0:
            raise SourceError(f"server {self._owner.address}: a row is not of its columns")
        return Images(out, self._head, int(used), 1)

    def _fail(self) -> None:
        size = int.from_bytes(bytes(self._data[self._at : self._at + 3]), "little")
        packet = bytes(self._data[self._at + 4 : self._at + 4 + size])
        number = int.from_bytes(packet[1:3], "little")
        text = packet[3:]
        if text[:1] == b"#":
            text = text[6:]
        raise self._owner.address.error(Exception(number, text.decode("utf-8", "replace")))
