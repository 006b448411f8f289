"""Delivery inside the plan: one task per lane takes events, one row per sink and lane comes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .abreast import Abreast
from .batch import Batch, Cutter, sizes
from .deadletters import DeadLetters
from .errors import ConfigError, DfcError, Fenced, ProcessorError, SinkError, reason
from .events import SEGMENT, Events
from .follow import follow, mapped
from .lean import without_pandas
from .ledger import Ledger
from .outlet import Outlet, behind
from .policy import CommitPolicy
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
    patience: float | None = None  # how long it may hold others up once there are enough of them


def standing_text(sinks: dict[str, Standing], policy: CommitPolicy, follow_secs: float = 0) -> str:
    known = {name: astuple(s) for name, s in sinks.items()}
    return json.dumps([known, astuple(policy), follow_secs])


def standing_of(text: str | None) -> tuple[dict[str, Standing], CommitPolicy | None, float]:
    """How the sinks stand, the policy, and how long a task may go on with segments that come later."""
    if not text:
        return {}, None, 0
    known, (mode, names, needed), follow_secs = json.loads(text)
    sinks = {name: Standing(tuple(at), *rest) for name, (at, *rest) in known.items()}
    return sinks, CommitPolicy(mode, tuple(names), needed), follow_secs


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
    sink_deadline_secs: float | None = None  # how long a sink may take for a batch

    def run(
        self,
        batches: Iterator[pa.RecordBatch | None],
        lane: int,
        standing: dict[str, Standing],
        policy: CommitPolicy | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Delivers one lane's share of an epoch, and gives the acks when it is through.

        None among the batches says that more may come, and that it is worth committing meanwhile.
        """
        outlets = []
        for sink in self.sinks:
            known = standing.get(sink.id, Standing(("",) * self.lanes))
            where = Lane(self.pipeline, lane, self.lanes, known.positions[lane])
            outlets.append(
                Outlet(sink, where, known.positions[lane], known.away, self.dead, known.patience)
            )
        taking_part = [outlet for outlet in outlets if outlet.error is None]
        counted = standing.get(SOURCE_ROW, Standing(("",) * self.lanes)).positions[lane]
        read: dict[str, Any] = {"events": 0, "bytes": 0, "position": "", "ts_ms": None}
        # What ends the job is told by way of the ack: Spark would run the task again and again, to the
        # same end, and what was said before would be lost.
        ledger, failure = Ledger(counted), None
        enough = policy.met if policy is not None else lambda through: False
        abreast = Abreast(outlets, self.batch.max_inflight, self.sink_deadline_secs, enough)
        try:
            abreast.each(Outlet.open)
            cutter = Cutter(self.batch)
            for rows in batches:
                if rows is None:
                    abreast.drain()
                    if (last := cutter.finish()) is not None:
                        abreast.each(Outlet.commit, last)
                        cutter = Cutter(self.batch)
                    if any(outlet.error is not None for outlet in taking_part):
                        break  # the driver has to know before it is tried again
                    continue
                if rows.num_rows == 0:
                    continue
                lowest = min((o.position for o in outlets if o.error is None), default=None)
                read["position"] = rows.column("position")[-1].as_py()
                if lowest is not None and read["position"] <= min(lowest, counted):
                    continue  # the epoch before has followed the reader as far as this
                pieces = cutter.cut(rows)
                _count(read, rows, counted)
                if lowest is None:
                    continue
                try:
                    events = self._processed(rows, lowest, ledger)
                except ProcessorError as error:
                    failure = reason(error)
                    break
                except SinkError as error:  # there is no room for a dead letter
                    abreast.each(Outlet.fail, error)
                    continue
                abreast.deliver(events, pieces)
            last = cutter.finish()
            if last is not None and failure is None:
                abreast.each(Outlet.commit, last)
            abreast.each(Outlet.tick)
        except (ConfigError, Fenced) as error:
            failure = reason(error)
        finally:
            acks = [outlet.ack() for outlet in outlets]
            abreast.close()
        acks.append(
            {"sink": SOURCE_ROW, "lane": lane, "error": failure, "ledger": ledger.text(), **read}
        )
        yield pa.RecordBatch.from_pylist(acks, ACK_SCHEMA)

    def _processed(self, rows: pa.RecordBatch, lowest: str, ledger: Ledger) -> Events:
        """The events above every sink's position, through the processors, in log order."""
        events = Events(rows, pipeline=self.pipeline, tenant=self.tenant, ledger=ledger)
        events = events.slice(behind(events.position, lowest), len(events))
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

            without_pandas()
            context = TaskContext.get()
            assert context is not None
            standing, policy, follow_secs = standing_of(context.getLocalProperty(STANDING))
            lane = context.partitionId()
            return self.run(unpacked(batches, follow_secs), lane, standing, policy)

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


def unpacked(
    batches: Iterator[pa.RecordBatch], follow_secs: float = 0
) -> Iterator[pa.RecordBatch | None]:
    """Events as they are, or out of segments: rows that stand for many events each.

    A row of the only column `segment` is the path of an Arrow file (`file:...`) or an Arrow stream
    itself. Spark then carries a few bytes, and does not copy each event from columns to rows and
    back to columns on its way to the sinks. Behind the last file come, for `follow_secs`, those that
    the reader has made since.
    """
    path = ""
    for batch in batches:
        if batch.schema.names != [SEGMENT]:
            yield batch
            continue
        for value in batch.column(0):
            data = value.as_buffer()
            if data[:5].to_pybytes() == b"file:":
                path = data[5:].to_pybytes().decode()
                yield from mapped(path)
            else:
                with pa.ipc.open_stream(data) as stream:
                    yield from stream
    yield from follow(path, follow_secs)


def _count(read: dict[str, Any], rows: pa.RecordBatch, counted: str) -> None:
    """Adds up what is new: events up to `counted` were settled before, and come once more."""
    positions = rows.column("position")
    new = behind(positions, counted)
    read["events"] += rows.num_rows - new
    read["bytes"] += int(sizes(rows)[new:].sum())
    index = rows.schema.get_field_index("ts_ms")
    if index >= 0:
        read["ts_ms"] = rows.column(index)[rows.num_rows - 1].as_py()
