"""Delivery inside the plan: one task per lane takes events, one row per sink and lane comes back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .batch import Batch, Cutter, Piece, sizes
from .deadletters import DeadLetters, letters_of
from .errors import DfcError, ProcessorError, Rejected, RoutingError, SinkError
from .events import SEGMENT, Events
from .ledger import Ledger
from .messages import Messages, identity, routing_error
from .sinks.base import Lane, Sink

ACKS = (
    "sink string, lane int, position string, events bigint, bytes bigint, ts_ms bigint, "
    "output string, error string, lasting boolean, ledger string"
)
ACK_SCHEMA = pa.schema(
    [
        ("sink", pa.string()),
        ("lane", pa.int32()),
        ("position", pa.string()),
        ("events", pa.int64()),
        ("bytes", pa.int64()),
        ("ts_ms", pa.int64()),
        ("output", pa.string()),
        ("error", pa.string()),
        ("lasting", pa.bool_()),  # the error comes again however often it is tried
        ("ledger", pa.string()),  # of the source's row: what the processors have to say
    ]
)
SOURCE_ROW = ""  # instead of a sink's id: what the lane has read, whoever took it
STANDING = "dfc.standing"  # job property by which the driver tells the tasks where sinks stand

Process = Callable[[Events], Events]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the driver knows of a sink when it runs an epoch."""

    positions: tuple[str, ...]  # by lane
    away: str | None = None  # why the sink takes no part in this epoch


def standing_text(sinks: dict[str, Standing]) -> str:
    return json.dumps({name: [s.positions, s.away] for name, s in sinks.items()})


def standing_of(text: str | None) -> dict[str, Standing]:
    known = json.loads(text) if text else {}
    return {name: Standing(tuple(positions), away) for name, (positions, away) in known.items()}


@dataclass
class Outlet:
    """One sink in one task: what it has taken, and the error that took it out of the epoch."""

    sink: Sink
    lane: Lane
    position: str
    error: str | None = None
    dead: DeadLetters | None = None  # where events go that the sink can never take
    lasting: bool = False
    events: int = 0
    bytes: int = 0
    ts_ms: int | None = None
    opened: bool = False
    _unit: tuple[int, int, int | None] = field(default=(0, 0, None))

    def open(self) -> None:
        if self.error is None:
            with self._guard():
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

    def close(self) -> None:
        if self.opened:
            self.opened = False
            with contextlib.suppress(Exception):
                self.sink.close()

    def _deliver(self, events: Events, pieces: Sequence[Piece]) -> None:
        live = events.slice(_behind(events.position, self.position), len(events))
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
            stop = count if piece.position is None else _behind(live.position, piece.position)
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
            if piece.position is not None and piece.position > self.position:
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

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """One sink's failure is its own: it is noted, and the others go on."""
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

    def ack(self) -> dict[str, Any]:
        output = self.sink.output() if self.opened else None
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


@dataclass(frozen=True)
class Delivery:
    """The function that mapInArrow runs; it travels to the workers with everything it needs."""

    pipeline: str
    tenant: str | None
    lanes: int
    process: Process
    sinks: tuple[Sink, ...]
    batch: Batch
    dead: DeadLetters | None = None

    def run(
        self, batches: Iterator[pa.RecordBatch], lane: int, standing: dict[str, Standing]
    ) -> Iterator[pa.RecordBatch]:
        """Delivers one lane's share of an epoch, and gives the acks when it is through."""
        outlets = []
        for sink in self.sinks:
            known = standing.get(sink.id, Standing(("",) * self.lanes))
            where = Lane(self.pipeline, lane, self.lanes, known.positions[lane])
            outlets.append(Outlet(sink, where, known.positions[lane], known.away, self.dead))
        counted = standing.get(SOURCE_ROW, Standing(("",) * self.lanes)).positions[lane]
        read = {"events": 0, "bytes": 0, "position": "", "ts_ms": None}
        ledger, failure = Ledger(counted), None
        # Sinks wait for networks and disks: each in a thread of its own they wait at the same time.
        pool = ThreadPoolExecutor(len(outlets), "dfc-sink") if len(outlets) > 1 else None

        def abreast(step: Callable[..., None], *arguments: Any) -> None:
            if pool is None:
                for outlet in outlets:
                    step(outlet, *arguments)
                return
            steps = [pool.submit(step, outlet, *arguments) for outlet in outlets]
            wait(steps)  # all of them, before one that failed is heard
            for one in steps:
                one.result()

        try:
            abreast(Outlet.open)
            cutter = Cutter(self.batch)
            for rows in batches:
                if rows.num_rows == 0:
                    continue
                pieces = cutter.cut(rows)
                _count(read, rows, counted)
                lowest = min((o.position for o in outlets if o.error is None), default=None)
                if lowest is None:
                    continue
                try:
                    events = self._processed(rows, lowest, ledger)
                except ProcessorError as error:
                    # Told by way of the ack: Spark would run the task again, to the same end, and
                    # what was said before would be lost.
                    failure = reason(error)
                    break
                except SinkError as error:  # there is no room for a dead letter
                    for outlet in outlets:
                        outlet.error = outlet.error or reason(error)
                    continue
                abreast(Outlet.deliver, events, pieces)
            last = cutter.finish()
            if last is not None and failure is None:
                abreast(Outlet.commit, last)
            abreast(Outlet.tick)
            acks = [outlet.ack() for outlet in outlets]
        finally:
            abreast(Outlet.close)
            if pool is not None:
                pool.shutdown()
        acks.append(
            {"sink": SOURCE_ROW, "lane": lane, "error": failure, "ledger": ledger.text(), **read}
        )
        yield pa.RecordBatch.from_pylist(acks, ACK_SCHEMA)

    def _processed(self, rows: pa.RecordBatch, lowest: str, ledger: Ledger) -> Events:
        """The events above every sink's position, through the processors, in log order."""
        events = Events(rows, pipeline=self.pipeline, tenant=self.tenant, ledger=ledger)
        events = events.slice(_behind(events.position, lowest), len(events))
        if len(events) == 0:
            return events
        result = through(self.process, events)
        letters, ledger.dead = ledger.dead, []
        if letters and self.dead is None:
            # Nothing is dropped in silence.
            raise ProcessorError(f"{letters[0].error}; there is no dead letter queue to put it in")
        if letters and self.dead is not None:
            self.dead.put(letters)
        return result

    def in_plan(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """For mapInArrow: the lane is the partition, and the driver's word comes with the job."""

        def deliver(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            standing = standing_of(context.getLocalProperty(STANDING))
            return self.run(unpacked(batches), context.partitionId(), standing)

        return deliver


def through(process: Process, events: Events) -> Events:
    """The events through the processors, in log order."""
    try:
        result = process(events)
    except DfcError:
        raise
    except Exception as error:
        raise ProcessorError(f"a processor failed: {reason(error)}") from error
    positions = result.position
    if result is not events and len(result) > 1:
        falls = pc.less(positions.slice(1), positions.slice(0, len(positions) - 1))
        if falls.true_count:
            # Units are found by position, so events go back to the order of the log.
            result = result.take(pc.sort_indices(positions))
    return result


def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events as they are, or out of segments: rows that stand for many events each.

    A row of the only column `segment` is the path of an Arrow file (`file:...`) or an Arrow stream
    itself. Spark then carries a few bytes, and does not copy each event from columns to rows and
    back to columns on its way to the sinks.
    """
    for batch in batches:
        if batch.schema.names != [SEGMENT]:
            yield batch
            continue
        for value in batch.column(0):
            data = value.as_buffer()
            if data[:5].to_pybytes() == b"file:":
                with pa.memory_map(data[5:].to_pybytes().decode()) as file:
                    segment = pa.ipc.open_file(file)
                    for index in range(segment.num_record_batches):
                        yield segment.get_batch(index)
            else:
                with pa.ipc.open_stream(data) as stream:
                    yield from stream


def reason(error: BaseException, secrets: Sequence[str] = ()) -> str:
    """An exception as one line, without the texts that must not be shown."""
    text = " ".join(str(error).split())
    if not isinstance(error, DfcError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


def _behind(positions: pa.Array, position: str) -> int:
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


def _count(read: dict[str, Any], rows: pa.RecordBatch, counted: str) -> None:
    """Adds up what is new: events up to `counted` were settled before, and come once more."""
    positions = rows.column("position")
    new = _behind(positions, counted)
    read["events"] += rows.num_rows - new
    read["bytes"] += int(sizes(rows)[new:].sum())
    read["position"] = positions[rows.num_rows - 1].as_py()
    index = rows.schema.get_field_index("ts_ms")
    if index >= 0:
        read["ts_ms"] = rows.column(index)[rows.num_rows - 1].as_py()
