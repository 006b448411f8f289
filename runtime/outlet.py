"""One sink in one task: what it takes of each batch, and what becomes of its failures."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .batch import Piece, sizes
from .deadletters import DeadLetters, letters_of
from .errors import DfcError, Rejected, RoutingError, SinkError, reason
from .events import Events
from .messages import Messages, identity, routing_error
from .sinks.base import Lane, Sink


@dataclass
class Outlet:
    """One sink in one task: what it has taken, and the error that took it out of the epoch."""

    sink: Sink
    lane: Lane
    position: str
    error: str | None = None
    dead: DeadLetters | None = None  # where events go that the sink can never take
    patience: float | None = None  # how long others wait for it that need not; None: they do
    lasting: bool = False
    events: int = 0
    bytes: int = 0
    ts_ms: int | None = None
    opened: bool = False
    since: float | None = None  # when the unit that it is busy with began
    late: bool = False  # given up while it is busy: what it holds is its own thread's to let go
    _unit: tuple[int, int, int | None] = field(default=(0, 0, None))
    # Around `since` and `late`: who is given up has not come back, and lets go by itself.
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        if self.error is None:
            with self._guard():
                if self._key in _LATE:  # two at once would write in each other's way
                    raise SinkError("the batch that took too long is still under way")
                self.position = max(self.sink.open(self.lane), self.position)
                self.opened = True

    def deliver(self, events: Events, pieces: Sequence[Piece]) -> None:
        """Writes the events above the own position, and commits at the ends of units."""
        if self.error is None:
            with self._guard():
                self._deliver(events, pieces)

    def commit(self, position: str) -> None:
        if self.error is None and position > self.position:
            with self._guard():
                self._commit(position)

    def tick(self) -> None:
        if self.error is None:
            with self._guard():
                self.sink.tick()

    def fail(self, error: SinkError) -> None:
        """Takes the sink out of the epoch for a reason that is not its own."""
        if self.error is None:
            with self._guard():
                raise error

    def close(self) -> None:
        with self._guard():
            self._close()

    def _close(self) -> None:
        if self.opened:
            self.opened = False
            with contextlib.suppress(Exception):
                self.sink.close()

    def give_up(self, why: str) -> None:
        """Takes the sink out of the epoch while a call to it has not come back."""
        with self._turn:
            if self.since is None:
                return  # it just has
            self.error, self.late = why, True
            _LATE.add(self._key)
            with contextlib.suppress(Exception):
                self.sink.give_up()

    @property
    def _key(self) -> tuple[str, str, int]:
        return self.lane.pipeline, self.sink.id, self.lane.index

    def _deliver(self, events: Events, pieces: Sequence[Piece]) -> None:
        live = events.slice(behind(events.position, self.position), len(events))
        if self.sink.filter is not None:
            live = self.sink.filter.apply(live)
        messages = self.sink.messages(live) if len(live) else None
        if messages is not None and self.dead is not None:
            messages, live = self._routed(messages, live)
        count = len(live)
        unrouted = messages.unrouted(count) if messages is not None else 0
        weights = sizes(live.batch) if count else None
        at = 0
        for piece in pieces:
            if self.late:
                return
            stop = count if piece.position is None else behind(live.position, piece.position)
            if messages is not None and stop > at:
                if unrouted < stop:
                    raise routing_error(live, unrouted, self.sink.id)
                self._write(messages.slice(at, stop), live.slice(at, stop))
                done, size, ts_ms = self._unit
                if live.has("ts_ms"):
                    ts_ms = live.ts_ms[stop - 1].as_py()
                assert weights is not None
                self._unit = (done + stop - at, size + int(weights[at:stop].sum()), ts_ms)
            at = max(at, stop)
            if piece.position is not None and piece.position > self.position and not self.late:
                self._commit(piece.position)

    def _routed(self, messages: Messages, events: Events) -> tuple[Messages, Events]:
        """Without the events that have no destination, which become dead letters."""
        assert self.dead is not None
        if messages.unrouted(len(events)) == len(events):
            return messages, events
        lost = pc.is_null(messages.column("to", len(events)))
        rows = [row for row, is_lost in enumerate(lost.to_pylist()) if is_lost]
        errors = [str(routing_error(events, row, self.sink.id)) for row in rows]
        self.dead.put(letters_of(events, rows, self.sink.id, "routing error", errors))
        kept = pc.invert(lost)
        return messages.where(kept), events.where(kept)

    def _write(self, messages: Messages, events: Events) -> None:
        while len(events):
            try:
                self.sink.write(messages, events)
                return
            except Rejected as error:
                named = {
                    row: f"sink `{self.sink.id}`: event {identity(events, row)}: {why}"
                    for row, why in error.rows.items()
                }
                if self.dead is None:
                    raise Rejected(named) from None
                rows, errors = list(named), list(named.values())
                self.dead.put(letters_of(events, rows, self.sink.id, "rejected", errors))
                kept = pa.array([row not in named for row in range(len(events))], pa.bool_())
                messages, events = messages.where(kept), events.where(kept)

    def _commit(self, position: str) -> None:
        self.sink.commit(position)
        self.position = position
        done, size, ts_ms = self._unit
        self.events += done
        self.bytes += size
        self.ts_ms = self.ts_ms if ts_ms is None else ts_ms
        self._unit = (0, 0, None)
        self.since = time.monotonic()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """One sink's failure is its own: it is noted, and the others go on."""
        self.since = time.monotonic()
        try:
            yield
        except Exception as error:
            if isinstance(error, DfcError) and not isinstance(error, SinkError | RoutingError):
                raise  # the job itself is wrong, and trying again will not mend it
            self.error = reason(error, self.sink.secrets)
            # The same event has the same destination next time, which is none, or the same size.
            self.lasting = isinstance(error, RoutingError | Rejected)
            if self.opened:
                with contextlib.suppress(Exception):
                    self.sink.abort()
        finally:
            with self._turn:
                self.since = None
            if self.late:
                if self._unit[0]:
                    with contextlib.suppress(Exception):
                        self.sink.abort()
                # After an open or a commit that went well there is something to keep: a client
                # that took long to connect would do so each time.
                self._close()
                _LATE.discard(self._key)

    def ack(self) -> dict[str, Any]:
        output = self.sink.output() if self.opened and not self.late else None
        return {
            "sink": self.sink.id,
            "lane": self.lane.index,
            "position": self.position,
            "events": self.events,
            "bytes": self.bytes,
            "ts_ms": self.ts_ms,
            "output": output,
            "error": self.error,
            "lasting": self.lasting,
        }


# Lanes with a call that did not come back in time, and is still under way in this process.
_LATE: set[tuple[str, str, int]] = set()


def behind(positions: pa.Array, position: str) -> int:
    """How many of the sorted positions are at or before this one."""
    if len(positions) == 0 or positions[0].as_py() > position:
        return 0
    low, high = 1, len(positions)
    while low < high:
        middle = (low + high) // 2
        if positions[middle].as_py() > position:
            high = middle
        else:
            low = middle + 1
    return low
