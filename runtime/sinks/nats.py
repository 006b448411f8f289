"""NATS sink: JetStream, where every event is stored once (see nats_stream.py), or core NATS.

Without `stream` the events are published to whoever listens. The server's word that it has read them
is all there is to wait for, and storage alone knows how far the sink is.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import ClassVar

from ..errors import ConfigError, SinkError
from ..events import Events
from ..messages import Messages
from .base import Lane, Sink, SinkFilter
from .nats_client import Connection
from .nats_frames import Rows, rows_of
from .nats_login import Login, addresses, check_signing
from .nats_stream import StreamWriter

# What a lane leaves behind for its next epoch in this process: logging in takes longer than a unit.
_KEPT: dict[tuple[object, ...], tuple[Connection, StreamWriter | None]] = {}


class NatsSink(Sink):
    """`to` is the subject of each event."""

    kind: ClassVar[str] = "nats"

    def __init__(
        self,
        id: str,
        messages: Callable[[Events], Messages],
        *,
        required: bool = True,
        filter: SinkFilter | None = None,
        url: str,
        stream: str | None = None,
        send_timeout_secs: int = 5,
        batch_timeout_secs: int = 30,
        connect_timeout_secs: int = 10,
        credentials_file: str | None = None,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(id, messages, required=required, filter=filter)
        self.url = url
        self.stream = stream
        self.send_timeout_secs = send_timeout_secs
        self.batch_timeout_secs = batch_timeout_secs
        self.connect_timeout_secs = connect_timeout_secs
        # Absolute, because a worker's current folder is not the driver's.
        self.credentials_file = os.path.abspath(credentials_file) if credentials_file else None
        self.username = username
        self.password = password
        self.token = token
        self._lane = Lane("")
        self._connection: Connection | None = None
        self._writer: StreamWriter | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        inside = re.findall(r"(?:^|[/,\s])([^/,\s@]+)@", self.url)
        parts = [part for text in inside for part in (text, text.partition(":")[2])]
        url = [self.url] if inside else []
        return tuple(text for text in (*url, *parts, self.password, self.token) if text)

    def check(self) -> None:
        try:
            addresses(self.url)
            if self.credentials_file is not None:
                check_signing()
                if not os.access(self.credentials_file, os.R_OK):
                    raise ConfigError(f"credentials file {self.credentials_file} cannot be read")
        except ConfigError as error:
            raise ConfigError(f"sink `{self.id}`: {error}") from None
        if self.stream is not None and not re.fullmatch(r"[^\s.*>/\\]+", self.stream):
            raise ConfigError(f"sink `{self.id}`: `{self.stream}` cannot be the name of a stream")

    def open(self, lane: Lane) -> str:
        self._lane = lane
        connection, writer = _KEPT.pop(self._place(), (None, None))
        if connection is not None and not connection.idle():
            connection.close()
            connection = writer = None
        if connection is None:
            connection = self._connect(lane)
        self._connection, self._writer = connection, writer
        if self.stream is None:
            return ""
        try:
            if writer is None:
                self._writer = writer = self._stream_writer(connection, self.stream, lane)
            return writer.open(lane.known)
        except BaseException:
            self.abort()
            raise

    def write(self, messages: Messages, events: Events) -> None:
        if len(events) == 0:
            return
        connection = self._opened()
        if self._writer is not None:
            self._writer.write(self._rows(self._writer, messages, events))
            return
        largest = int(connection.info.get("max_payload", 1_048_576))
        rows = rows_of(messages, events, f"{self._lane.pipeline}/{self.id}|", largest)
        data, _ = rows.frames(connection.inbox)
        end = time.monotonic() + self.batch_timeout_secs
        outcome = connection.publish_and_flush(data, self.send_timeout_secs, end)
        if outcome.refused:
            subject = rows.subject(min(outcome.refused))
            raise SinkError(
                f"nobody listens to subject `{subject}`, so its events would be lost; "
                "with `stream` set, JetStream keeps them"
            )

    def _rows(self, writer: StreamWriter, messages: Messages, events: Events) -> Rows:
        return rows_of(messages, events, writer.owner, writer.largest)

    def commit(self, position: str) -> None:
        self._opened()
        if self._writer is not None:
            self._writer.commit(position)

    def redeliver(self, messages: Messages, events: Events, position: str, mark: str) -> None:
        if self._writer is None:
            self.write(messages, events)
        else:
            self._writer.redeliver(self._rows(self._writer, messages, events))

    def redelivered(self) -> str:
        # No mark is stored in one with the events. Which of them are there is seen, and those are
        # left out when they come again.
        if self._writer is not None:
            self._writer.find_redelivered()
        return ""

    def move(self, pipeline: str, lanes: int, position: str) -> None:
        if self.stream is not None:
            lane = Lane(pipeline, 0, lanes)
            connection = self._connect(lane)
            try:
                self._stream_writer(connection, self.stream, lane).move(position)
            finally:
                connection.close()

    def abort(self) -> None:
        # Answers to what was sent may still come, so the connection is of no use any more.
        if self._connection is not None:
            self._connection.close()
        self._connection = self._writer = None

    def close(self) -> None:
        if self._writer is not None and self._writer.unfinished:
            self.abort()  # the next writer has to look for what this one has put there
        if self._connection is not None:
            _KEPT[self._place()] = (self._connection, self._writer)
        self._connection = self._writer = None

    def _connect(self, lane: Lane) -> Connection:
        name = f"dfc {lane.pipeline}/{self.id}/{lane.index}"
        login = Login(self.username, self.password, self.token, self.credentials_file)
        return Connection.open(self.url, login, name, self.connect_timeout_secs)

    def _stream_writer(self, connection: Connection, stream: str, lane: Lane) -> StreamWriter:
        times = (self.send_timeout_secs, self.batch_timeout_secs)
        return StreamWriter(connection, stream, self.id, lane, *times)

    def _opened(self) -> Connection:
        if self._connection is None:
            raise SinkError(f"sink `{self.id}` is not open")
        return self._connection

    def _place(self) -> tuple[object, ...]:
        lane = (self._lane.pipeline, self._lane.index, self._lane.count)
        login = (self.url, self.credentials_file, self.username, self.password, self.token)
        times = (self.send_timeout_secs, self.batch_timeout_secs)
        return (os.getpid(), self.id, self.stream, *lane, *login, *times)
