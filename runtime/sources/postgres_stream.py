"""The stream of changes of one slot: a thread that receives ahead and keeps the server informed.

The thread alone uses the connection. It reads until so many bytes wait for whoever takes them, and tells the
server at all times that somebody is there and how far the log may be forgotten, also while nobody
takes anything.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from psycopg import pq
from psycopg.pq.abc import PGconn

from ..kernels.pgoutput import joined
from ..kernels.postgres_messages import UNIX
from .log import SourceError, TransientError
from .postgres_address import Address
from .postgres_position import lsn_text
from .postgres_server import Server, command, consume, quoted, result_error

HEADER = 25  # bytes before the message in a frame: `w`, two LSNs and a time
AHEAD_BYTES = 64 << 20
AT_ONCE_BYTES = 8 << 20
_STATUS = struct.Struct(">cQQQqB")
_KEEPALIVE = struct.Struct(">QqB")
_DATA, _ALIVE = b"wk"
_SILENCE_SECS = 60.0  # at least


@dataclass(slots=True)
class Run:
    """Messages in their order: data[starts[i]:stops[i]]; `lsns` tell where each is in the log.

    `wal_end` is not 0 when the server has said, behind all of them, how far it has read its log.
    """

    data: Any
    starts: Any
    stops: Any
    lsns: Any
    wal_end: int = 0


@dataclass(slots=True)
class _Chunk:
    frames: list[Any] = field(default_factory=list)
    size: int = 0
    wal_end: int = 0


class Stream:
    """`patience` multiplies the time for which the server may say nothing, as it does over much log that is
    not ours."""

    def __init__(
        self, address: Address, connection: PGconn, interval: float, patience: int = 1
    ) -> None:
        self._address = address
        self._patience = patience
        self._limit = _SILENCE_SECS  # in seconds
        self.silent = False  # it ended because the server said nothing
        self._connection = connection
        self._interval = max(1.0, min(interval, 10.0))
        self._changed = threading.Condition()
        self._chunks: deque[_Chunk] = deque()
        self._waiting = 0  # bytes in chunks
        self._error: SourceError | None = None
        self._closed = False
        self._received = 0
        self._flushed = 0
        self._ask = False
        self._due = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="dfc-postgres", daemon=True)

    def start(self, server: Server, slot: str, lsn: int, publication: str, messages: bool) -> None:
        """Begins at `lsn`: with the first transaction whose commit record is there or behind it."""
        options = {"proto_version": "1", "publication_names": quoted(publication)}
        if server.streams:
            options.update(proto_version="2", streaming="on")
            if messages:
                options["messages"] = "true"
        given = ", ".join(f"{name} {_literal(value)}" for name, value in options.items())
        command(
            self._address,
            self._connection,
            f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn_text(lsn)} ({given})",
        )
        self._connection.nonblocking = 1
        self._received = lsn
        self._limit = silence(server.sender_timeout, self._patience, self._interval)
        self._thread.start()

    def take(self, wait: float) -> Run | None:
        """What has been received, in order, or None after `wait` seconds without anything."""
        until = time.monotonic() + wait
        with self._changed:
            while not self._chunks:
                if self._error is not None:
                    raise self._error
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            chunks: list[_Chunk] = []
            size = 0
            while self._chunks and (not chunks or size + self._chunks[0].size <= AT_ONCE_BYTES):
                chunk = self._chunks.popleft()
                chunks.append(chunk)
                size += chunk.size
            full = self._waiting >= AHEAD_BYTES
            self._waiting -= size
        if full:
            self._wake()
        frames = chunks[0].frames
        if len(chunks) > 1:
            frames = [frame for chunk in chunks for frame in chunk.frames]
        return _run(frames, chunks[-1].wal_end)

    def confirm(self, lsn: int) -> None:
        """The server need not keep what is before `lsn`."""
        if lsn > self._flushed:
            self._flushed = lsn
            self._due = True
            self._wake()

    def ask(self) -> None:
        """Has the server say how far it is."""
        self._ask = True
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(10)
        with contextlib.suppress(Exception):
            self._connection.finish()
        for handle in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(handle)

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except SourceError as error:
            self._fail(error)
        except Exception as error:
            self._fail(TransientError(f"postgres {self._address}: {type(error).__name__}: {error}"))

    def _fail(self, error: SourceError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _serve(self) -> None:
        connection, socket = self._connection, self._connection.socket
        next_status = time.monotonic()
        heard = time.monotonic()
        more = True  # what libpq has read already does not wake a select
        while not self._closed:
            now = time.monotonic()
            if self._due or now >= next_status:
                asking = self._ask or now >= next_status
                self._due = self._ask = False
                next_status = now + self._interval
                self._tell(asking)
            elif self._ask:
                self._ask = False
                self._tell(True)
            room = self._waiting < AHEAD_BYTES
            timeout = 0 if more and room else max(0.0, next_status - now)
            sockets = [socket, self._wake_read] if room else [self._wake_read]
            ready, _, _ = select.select(sockets, [], [], timeout)
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            if socket in ready:
                consume(self._address, connection)
                heard = time.monotonic()
            if room:
                more = self._drain()
            if not room:
                heard = time.monotonic()
            elif time.monotonic() - heard > self._limit:
                self.silent = True
                raise TransientError(
                    f"postgres {self._address} has not said anything for {self._limit:.0f} s"
                )

    def _drain(self) -> bool:
        """Takes what libpq has; True when there may be more at once."""
        get = self._connection.get_copy_data
        chunk = _Chunk()
        frames = chunk.frames
        size, wal_end, replies = 0, 0, False
        state = 1
        while size < AT_ONCE_BYTES:
            state, data = get(1)
            if state <= 0:
                break
            kind = data[0]
            if kind == _DATA:
                frames.append(data)
                size += state
                wal_end = 0
            elif kind == _ALIVE and state >= 18:
                wal_end, _, wanted = _KEEPALIVE.unpack_from(data, 1)
                replies = replies or bool(wanted)
                self._received = max(self._received, wal_end)
            else:
                raise TransientError(
                    f"postgres {self._address}: a frame that is no part of the protocol behind "
                    f"{lsn_text(self._received)}"
                )
        if frames:
            last = frames[-1]
            if len(last) <= HEADER:
                raise TransientError(
                    f"postgres {self._address}: an empty frame behind {lsn_text(self._received)}"
                )
            self._received = max(self._received, int.from_bytes(last[1:9], "big"))
        if frames or wal_end:
            chunk.size, chunk.wal_end = size + 200 * len(frames), wal_end
            with self._changed:
                self._chunks.append(chunk)
                self._waiting += chunk.size
                self._changed.notify_all()
        if replies:
            self._due = True
        if state < 0:
            self._ended()
        return state > 0

    def _ended(self) -> None:
        while (result := self._connection.get_result()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise result_error(self._address, result)
        raise TransientError(f"postgres {self._address} has ended the stream")

    def _tell(self, asking: bool) -> None:
        clock = time.time_ns() // 1000 - UNIX
        flushed = self._flushed
        message = _STATUS.pack(b"r", self._received, flushed, flushed, clock, asking)
        with self._address.guarded():
            self._connection.put_copy_data(message)
            until = time.monotonic() + self._limit
            while self._connection.flush():
                if time.monotonic() > until:
                    self.silent = True
                    raise TransientError(f"postgres {self._address} takes no messages any more")
                select.select([self._connection.socket], [self._connection.socket], [], 0.5)
                self._connection.consume_input()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")


def silence(sender_timeout: float, patience: int, interval: float) -> float:
    """Seconds after which a server that says nothing is taken for gone, by its own idea of that."""
    if sender_timeout == 0:
        return math.inf
    return patience * max(_SILENCE_SECS, sender_timeout, 3 * interval)


def _run(frames: Sequence[Any], wal_end: int) -> Run:
    data, starts, stops = joined(frames, HEADER)
    content = np.frombuffer(data, np.uint8)
    heads = starts[:, None] + np.arange(1 - HEADER, 9 - HEADER)
    lsns = content[heads].astype(np.int64) @ (1 << np.arange(56, -8, -8, dtype=np.int64))
    return Run(data, starts, stops, lsns, wal_end)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
