"""Segments: runs of whole transactions as Arrow, cut by lane, on their way from a log to Spark.

The log is read by one thread in Spark's driver-side source process, ahead of the epochs, so that
`latestOffset` only looks at what is ready and `read` only maps a file. Offsets are
{"position": ..., "tick": ...}; an epoch is a run of whole segments.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from ..events import SEGMENT
from ..follow import STOP, mapped, segment_name
from ..lean import without_pandas
from . import lanes
from .log import LogReader, SourceError
from .settings import ReaderSettings

if TYPE_CHECKING:
    from .pump import Pump

MIB = 1 << 20
AHEAD_BYTES, AHEAD_SEGMENTS = 256 * MIB, 1024
EPOCH_ROWS, EPOCH_BYTES = 1_000_000, 256 * MIB
# Carried inside the task itself, whose size Spark limits (spark.rpc.message.maxSize, 128 MiB).
INLINE_EPOCH_BYTES = 32 * MIB
LONG_POLL_SECS = 0.1  # Spark would ask some 90 times a second otherwise

Offset = dict[str, Any]
Piece = str | bytes | None  # the path of an Arrow file, an Arrow stream itself, or nothing


@dataclass(frozen=True, slots=True)
class Segment:
    """Everything behind the previous segment, up to and with position `end`."""

    end: str
    rows: int
    bytes: int
    pieces: tuple[Piece, ...]  # by lane
    whole: bool = True  # whether a transaction ends with it


class SegmentStore:
    """Segments between the thread that reads the log (`put`) and Spark's calls (all others)."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings
        self._segments: list[Segment] = []
        self._changed = threading.Condition()
        self._taken = ""  # end of the youngest epoch; what lies behind it is read ahead
        # In the names of files, since another query may have left some in the same folder.
        self._mark = secrets.token_hex(6)
        self._count = 0
        self._crowded = False  # a segment waits for room
        self._folder = settings.folder
        self._own_folder = False
        self.end = ""  # of the youngest segment ever put
        self.finished = False  # nothing will be put any more
        self.stopped = False
        self.error: SourceError | None = None
        inline = settings.carry == "inline"
        self.epoch_bytes = INLINE_EPOCH_BYTES if inline else EPOCH_BYTES
        self.ahead_bytes = 2 * INLINE_EPOCH_BYTES if inline else AHEAD_BYTES

    def put(self, batches: list[pa.RecordBatch], end: str, whole: bool = True) -> None:
        """Adds a segment, once there is room for it; one that is not whole ends inside a transaction."""
        segment = self._write(batches, end, whole)
        with self._changed:
            while not self.stopped:
                ahead = [s.bytes for s in self._segments if s.end > self._taken]
                # A segment larger than the whole bound may pass alone, or nothing ever would.
                if not ahead or (
                    len(ahead) < AHEAD_SEGMENTS and sum(ahead) + segment.bytes <= self.ahead_bytes
                ):
                    break
                self._crowded = True
                self._changed.notify_all()
                self._changed.wait(1)
            self._crowded = False
            self._segments.append(segment)
            self.end = end
            self._changed.notify_all()

    def reached(self, end: str) -> None:
        """All that there is up to `end` has been put."""
        with self._changed:
            self.end = max(self.end, end)
            self._changed.notify_all()

    def finish(self, error: SourceError | None = None) -> None:
        with self._changed:
            self.finished, self.error = True, error
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Returns early when something changed."""
        with self._changed:
            self._changed.wait(seconds)

    def epoch_end(self, start: str) -> str | None:
        """Where an epoch behind `start` should end; None without anything to read.

        At the end of a transaction, unless a single one is more than an epoch or the store can hold.
        """
        with self._changed:
            rows = size = 0
            end = inside = None
            for segment in self._segments:
                if segment.end <= start:
                    continue
                rows, size = rows + segment.rows, size + segment.bytes
                full = rows > EPOCH_ROWS or size > self.epoch_bytes
                if full and (end or inside) is not None:
                    return end or inside
                if segment.whole:
                    end = segment.end
                inside = segment.end
            return inside if end is None and self._crowded else end

    def take(self, start: str, end: str) -> list[list[Piece]]:
        """The pieces of an epoch by lane; what ends at or before `start` is forgotten."""
        with self._changed:
            old = [s for s in self._segments if s.end <= start]
            self._segments = [s for s in self._segments if s.end > start]
            self._taken = max(self._taken, end)
            epoch = [s for s in self._segments if s.end <= end]
            self._changed.notify_all()
        for piece in (piece for segment in old for piece in segment.pieces):
            if isinstance(piece, str):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(piece)
        return [[s.pieces[lane] for s in epoch] for lane in range(self._settings.lanes)]

    def clean(self) -> None:
        if self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, batches: list[pa.RecordBatch], end: str, whole: bool) -> Segment:
        count, settings = self._settings.lanes, self._settings
        shares: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        for batch in batches:
            for lane, share in enumerate(lanes.split(batch, count, settings.lane_key)):
                if share is not None:
                    shares[lane].append(share.select(settings.schema.names))
        pieces = tuple(self._piece(lane, share, whole) for lane, share in enumerate(shares))
        self._count += 1
        size = sum(
            os.path.getsize(piece) if isinstance(piece, str) else len(piece or b"")
            for piece in pieces
        )
        return Segment(end, sum(b.num_rows for b in batches), size, pieces, whole)

    def _piece(self, lane: int, batches: list[pa.RecordBatch], whole: bool) -> Piece:
        if not batches:
            return None
        schema = self._settings.schema
        if self._settings.carry == "inline":
            sink = pa.BufferOutputStream()
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_stream(sink, schema, options=options) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            return sink.getvalue().to_pybytes()
        if not self._folder:
            self._folder, self._own_folder = tempfile.mkdtemp(prefix="dfc-segments-"), True
        os.makedirs(self._folder, exist_ok=True)
        name = segment_name(self._mark, self._count, lane, whole)
        path = os.path.abspath(os.path.join(self._folder, name))
        # A task may be waiting for just this name, and must not find half of it.
        with pa.OSFile(f"{path}.new", "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        os.rename(f"{path}.new", path)
        return path


class LanePartition(InputPartition):
    """One lane's share of an epoch."""

    def __init__(self, lane: int, pieces: list[Piece]) -> None:
        super().__init__(lane)
        self.pieces = tuple(piece for piece in pieces if piece is not None)


class SegmentReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Base of all dfc sources; a subclass says how to make its log.

    Spark builds it in several processes and pickles it: nothing is opened before the first offset
    is asked for, and only then does a thread start.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.settings = ReaderSettings.parse(options)
        self._once = False
        self._store: SegmentStore | None = None
        self._pump: Pump | None = None
        self._tick_at = 0.0

    @abstractmethod
    def log(self) -> LogReader:
        """A log that is not open yet."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None, "_pump": None}

    def initialOffset(self) -> Offset:
        start = self.settings.start
        if self.settings.folder:
            # A job that starts its query over says here where this one begins.
            with contextlib.suppress(FileNotFoundError), open(self._note("start")) as file:
                start = file.read()
        return {"position": start, "tick": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._once = True

    def latestOffset(self, start: Offset, limit: object = None) -> Offset:
        store = self._started(start["position"])
        patience = time.monotonic() + LONG_POLL_SECS
        while not self._stop_asked():
            end = store.epoch_end(start["position"])
            if end is not None:
                self._tick_at = time.monotonic() + self.settings.tick_secs
                return {"position": end, "tick": start["tick"]}
            if store.error is not None:
                raise store.error
            left = patience - time.monotonic()
            if store.finished or (left <= 0 and not self._once):
                break
            # With --once Spark takes an unchanged offset for the end, so only the end may give it.
            store.wait(left if not self._once else 0.5)
        if self._tick_due() and not self._once and not self._stop_asked():
            self._tick_at = time.monotonic() + self.settings.tick_secs
            return {"position": start["position"], "tick": start["tick"] + 1}
        return start

    def partitions(self, start: Offset, end: Offset) -> list[LanePartition]:
        # A query that comes back with its own checkpoint asks for its last epoch once more.
        store = self._started(start["position"], end["position"])
        while store.end < end["position"] and not store.finished:
            store.wait(1)
        if store.end < end["position"] and store.error is not None:
            raise store.error
        pieces = store.take(start["position"], end["position"])
        return [LanePartition(lane, share) for lane, share in enumerate(pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LanePartition)
        if self.settings.packed:
            # A job opens segments where it delivers them: Spark need not take them apart.
            rows = [p if isinstance(p, bytes) else f"file:{p}".encode() for p in partition.pieces]
            if rows:
                yield pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], names=[SEGMENT])
            return
        for piece in partition.pieces:
            if isinstance(piece, bytes):
                with pa.ipc.open_stream(piece) as stream:
                    yield from stream
            else:
                yield from mapped(piece)

    def commit(self, end: Offset) -> None:
        if self._pump is not None:
            self._pump.committed = end["position"]

    def stop(self) -> None:
        if self._store is not None:
            self._store.stop()
            self._store.clean()

    def _started(self, start: str, cut: str = "") -> SegmentStore:
        if self._store is None:
            # Only here: the thread's module knows the store's.
            from .pump import Pump

            without_pandas()
            self._store = SegmentStore(self.settings)
            self._store.end = start
            self._pump = Pump(self.log, self._store, self.settings, start, cut, self._once)
            self._tick_at = time.monotonic() + self.settings.tick_secs
            self._pump.start()
        return self._store

    def _tick_due(self) -> bool:
        return self.settings.tick_secs > 0 and time.monotonic() >= self._tick_at

    def _stop_asked(self) -> bool:
        return bool(self.settings.folder) and os.path.exists(self._note(STOP))

    def _note(self, name: str) -> str:
        """A file by which the job speaks to the reader."""
        return os.path.join(self.settings.folder, name)
