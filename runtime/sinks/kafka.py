"""Kafka sink: one message per event, with an idempotent producer or in transactions.

With `exactly_once` a unit is one transaction, which also holds the lane's position; see
kafka_positions.py. Without it a unit counts once the brokers have acknowledged all of it, and the
position is storage's: a crash in between repeats the unit.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import Rejected, SinkError
from ..events import Events
from ..messages import Messages
from . import kafka_client
from .base import Lane, Sink, SinkFilter
from .kafka_client import Client, Headers, Settings
from .kafka_limits import fingerprint
from .kafka_positions import TOPIC as POSITIONS
from .kafka_positions import Transactional

_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_SECRET = re.compile(r"password|secret|token|\.pem|jaas|oauthbearer\.config|keytab")
_CHUNK_EVENTS, _CHUNK_BYTES = 2_000, 8_388_608  # what is handed to the client at once
# The client's own estimates of what a message takes beside its key, value and headers.
_OVERHEAD, _HEADER_OVERHEAD = 36, 10
_AROUND = 200  # more than a batch of one takes beside its message


class KafkaSink(Sink):
    """`to` is the topic of each event; a null value is a tombstone."""

    kind: ClassVar[str] = "kafka"

    def __init__(
        self,
        id: str,
        messages: Callable[[Events], Messages],
        *,
        required: bool = True,
        filter: SinkFilter | None = None,
        brokers: str,
        exactly_once: bool = False,
        send_timeout_secs: int = 30,
        client_conf: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(id, messages, required=required, filter=filter)
        self.brokers = brokers
        self.exactly_once = exactly_once
        self.send_timeout_secs = send_timeout_secs
        self.client_conf = dict(client_conf or {})
        # Made on the driver and carried to the workers: they are one runner, and fence all others.
        self.run = uuid.uuid4().hex
        self._client: Client | None = None
        self._began = False  # something of the open unit has been handed to the client

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(v for k, v in self.client_conf.items() if _SECRET.search(k))

    @property
    def _settings(self) -> Settings:
        return Settings(
            self.id, self.brokers, self.exactly_once, self.send_timeout_secs, self.client_conf
        )

    def check(self) -> None:
        kafka_client.check(self._settings)

    # --- a lane's task -----------------------------------------------------------------------

    def open(self, lane: Lane) -> str:
        self._discard()
        kind = Transactional if self.exactly_once else Client
        self._client = kind.take(self._settings, lane, self.run)
        return self._client.position

    def write(self, messages: Messages, events: Events) -> None:
        count = len(events)
        if count == 0:
            return
        client = self._opened()
        headers = _headers(messages, count)
        weights = _weights(messages, headers, count)
        parts = _by_topic(messages)
        _check(parts, weights, client.settings.max_bytes)
        _check_limits(parts, weights, messages, client)
        for topic, _ in parts:
            client.ensure(topic)
        if not self._began:
            client.begin()
            self._began = True
        for topic, rows in parts:
            value, key = messages.value, messages.key
            given, sizes = headers, weights
            if rows is not None:
                value, key = _taken(value, rows), _taken(key, rows)
                given = None if given is None else [given[row] for row in rows]
                sizes = weights[rows]
            self._send(client, topic, value, key, given, sizes)

    def commit(self, position: str) -> None:
        if not self._began:
            # Nothing to hold for these events: the position goes down with the next that has.
            return
        self._opened().commit(position)
        self._began = False

    def redeliver(self, messages: Messages, events: Events, position: str, mark: str) -> None:
        self.write(messages, events)
        if self._began:
            self._opened().commit(position, mark)
            self._began = False

    def redelivered(self) -> str:
        return self._opened().redelivered

    def move(self, pipeline: str, lanes: int, position: str) -> None:
        if self.exactly_once:
            Transactional(self._settings, Lane(pipeline, 0, lanes), self.run, move_to=position)

    def abort(self) -> None:
        client, self._client = self._client, None
        self._began = False
        if client is not None:
            client.abort()

    def give_up(self) -> None:
        client = self._client
        if client is not None and not self.exactly_once:
            # Nobody fences them: they would come to stand behind what somebody else sends next.
            client.producer.purge(wait=False)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        if self._began:
            self._began = False
            client.abort()
        else:
            client.keep()

    # --- messages ----------------------------------------------------------------------------

    def _opened(self) -> Client:
        if self._client is None:
            raise SinkError(f"sink `{self.id}` is not open")
        return self._client

    def _discard(self) -> None:
        """What a task that ended without close() has left."""
        if self._client is not None:
            self.abort()

    def _send(
        self,
        client: Client,
        topic: str,
        value: Any,
        key: Any,
        headers: Sequence[Headers | None] | None,
        weights: Any,
    ) -> None:
        """Hands over rows of one topic, a few at a time so that the client's queue has room."""
        total = len(weights)
        ends = np.cumsum(weights)
        start = 0
        most, most_bytes = client.settings.chunk(_CHUNK_EVENTS, _CHUNK_BYTES)
        while start < total:
            before = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, before + most_bytes, "right"))
            stop = min(max(fitting, start + 1), start + most, total)
            client.make_room(stop - start, int(ends[stop - 1]) - before)
            client.send(
                topic,
                _part(value, start, stop),
                _part(key, start, stop),
                None if headers is None else headers[start:stop],
                stop - start,
            )
            start = stop


def _by_topic(messages: Messages) -> list[tuple[str, Any]]:
    """Topics with their rows, in log order within each; None stands for all rows."""
    if messages.to is None or isinstance(messages.to, str):
        return [(messages.to or "", None)]
    encoded = pc.dictionary_encode(pc.fill_null(messages.to, ""))
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return [(names[0], None)]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(names) + 1))
    return [
        (name, rows)
        for code, name in enumerate(names)
        if len(rows := order[starts[code] : starts[code + 1]])
    ]


def _check(parts: list[tuple[str, Any]], weights: Any, limit: int) -> None:
    """Raises Rejected for what no broker would take, before anything is on its way."""
    refused = {
        int(row): f"its message takes {int(weights[row])} bytes, and the client sends no more than "
        f"{limit}; `client_conf` may raise `message.max.bytes`, with the topic's "
        "`max.message.bytes` at least as high"
        for row in np.flatnonzero(weights > limit)
    }
    for topic, rows in parts:
        if not _TOPIC.fullmatch(topic) or topic == POSITIONS:
            which = range(len(weights)) if rows is None else rows.tolist()
            refused |= dict.fromkeys(which, f"not a topic for events: {topic!r}")
    if refused:
        raise Rejected(dict(sorted(refused.items())))


def _check_limits(
    parts: list[tuple[str, Any]], weights: Any, messages: Messages, client: Client
) -> None:
    """Raises Rejected for what a topic has refused before, and would refuse again."""
    refused: dict[int, str] = {}
    for topic, rows in parts:
        known = client.too_large(topic)
        if not known:
            continue
        limit = client.limits.topics[topic]
        large = np.flatnonzero(weights + _AROUND > limit)
        for row in large if rows is None else np.intersect1d(large, rows):
            key, value = (_text_at(text, int(row)) for text in (messages.key, messages.value))
            if fingerprint(key, value) in known:
                refused[int(row)] = (
                    f"its message of {len(value)} bytes is too large for topic {topic}, which "
                    f"takes {limit} (`max.message.bytes`)"
                )
    if refused:
        raise Rejected(dict(sorted(refused.items())))


def _text_at(text: Any, row: int) -> bytes:
    part = text[row].as_py() if isinstance(text, pa.Array) else text
    return (part or "").encode()


def _taken(text: Any, rows: Any) -> Any:
    return text.take(pa.array(rows)) if isinstance(text, pa.Array) else text


def _part(text: Any, start: int, stop: int) -> Any:
    return text.slice(start, stop - start) if isinstance(text, pa.Array) else text


def _headers(messages: Messages, count: int) -> list[Headers | None] | None:
    """Each row's headers, None when no row has any."""
    text = messages.headers
    if text is None:
        return None
    if isinstance(text, str):
        return [_pairs(text)] * count
    if text.null_count == len(text):
        return None
    return [None if each is None else _pairs(each) for each in text.to_pylist()]


def _pairs(text: str) -> Headers:
    # JSON can spell halves of characters, which no bytes stand for.
    return [
        (name.encode(errors="replace").decode(), _text(value).encode(errors="replace"))
        for name, value in json.loads(text).items()
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _weights(messages: Messages, headers: list[Headers | None] | None, count: int) -> Any:
    """Bytes that each message takes in the client's count."""
    total = np.full(count, _OVERHEAD, np.int64)
    for text in (messages.value, messages.key):
        if isinstance(text, pa.Array):
            lengths = pc.fill_null(pc.binary_length(text), 0)
            total += lengths.to_numpy(zero_copy_only=False)
        elif text is not None:
            total += len(text.encode())
    if headers is not None:
        total += np.fromiter(
            (
                sum(len(n.encode()) + len(v) + _HEADER_OVERHEAD for n, v in pairs or ())
                for pairs in headers
            ),
            np.int64,
            count,
        )
    return total
