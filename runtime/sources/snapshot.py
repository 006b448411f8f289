"""Rows that are there already, copied in chunks while the log is read.

A chunk is what one query sees of a range of keys. It is put into the stream where that view stands in
the log: behind every change that the view has, before every change that it has not. So each row's last
word in the stream is the true one, without locks, however long the copying takes, and the log never
waits for more than a chunk.

The place of a chunk is kept before its rows are handed out. After a crash the same chunk comes at the
same place, read anew, and a sink that has it drops it; one that has a part of it gets all of it again.
What such a chunk shows too early is said again by the changes behind it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..storage import Backend
from .log import KeptLog, LogReader, TransientError, logger
from .snapshot_spool import Spool
from .turso_events import hex_column

NAMESPACE = "snapshots"
MOST_THREADS = 64
_TELL_SECS = 5.0
_NAP_SECS = 0.05
_GLANCE_SECS = 0.001
_VISIBLE_SECS = 60.0  # for changes of the log to be in the tables
_WAITING_CHUNKS = 2  # that are read and wait for their place, beside those that are being read
_AT_ONCE_BYTES = 64 << 20  # of a chunk, in one result of read
_BEHIND_ALL = "~"

Key = list[Any]


class Outdated(Exception):
    """A view that can no longer be read, or says too little: another one has to be opened."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a table whose key is behind `after`, up to and with `upto`; None leaves an end open."""

    id: int
    table: str
    after: Key | None
    upto: Key | None
    last: bool  # of its table
    position: str = ""  # where it stands in the log; "" until a view was opened
    number: int = 0  # tells chunks at one position apart
    again: int = 0  # how often its table was begun anew in this copy
    handed: int = 0  # times that it was handed out anew

    @property
    def place(self) -> str:
        """Sorts behind what stands at the position itself, and before what follows it."""
        return f"{self.position}-s{self.number:06x}"

    @property
    def end(self) -> str:
        """The position of its last row, whatever their number."""
        return f"{self.place}.{_LAST_ROW}"


_LAST_ROW = "f" * 16
_ROW_BITS = 40  # above them, the times that a chunk was handed out


class View(Protocol):
    """What one connection sees of a chunk, from the moment that it was opened."""

    @property
    def position(self) -> str:
        """Where in the log it stands: it has all changes up to here, but for what it misses."""

    def missed(self, changes: pa.RecordBatch) -> set[str]:
        """Keys of rows that it shows as they were before these changes, which stand before it.

        Raises Outdated when that cannot be told by rows.
        """

    def read(self) -> Iterator[pa.RecordBatch]:
        """Its rows in the order of the key, with every column that events have."""

    def close(self) -> None:
        """Ends it; also in the middle."""


class Tables(Protocol):
    """The tables of a database, as far as copying them goes; every method in any thread."""

    def captured(self) -> list[str]:
        """The tables to copy, in an order that stays."""

    def rows(self, table: str) -> int:
        """About how many rows a table has."""

    def keyed(self, table: str) -> bool:
        """Whether its rows can be told apart, so that one that comes twice does no harm."""

    def next(self, table: str, after: Key | None, size: int) -> tuple[Key | None, bool]:
        """The key that ends a chunk of so many rows, and whether it is the table's last."""

    def view(self, chunk: Chunk) -> View:
        """Opens a view of its own."""

    def close(self) -> None:
        """Lets every connection go, also those of views that are being read."""


class LateTables(Protocol):
    """Tables that the log has only from some place on, so that they have to be copied as well."""

    def ready(self) -> list[str]:
        """Those whose copy may begin."""

    def taken(self, name: str) -> None:
        """The copy has it on its list, which is kept."""


class Copied:
    """How far a copy has come, kept so that it can go on."""

    def __init__(
        self,
        generation: int,
        number: int,
        tables: list[str],
        again: dict[str, int] | None = None,
        anew: bool = False,
    ) -> None:
        self.generation = generation
        self.number = number  # of its next chunk: one that was used never comes again
        self.tables = tables
        self.again = again or {}  # by table, how often it was begun anew
        self.anew = anew  # another copy has to take its place
        self.chunks: dict[int, Chunk] = {}
        self.unplaced: dict[int, Chunk] = {}
        self.last: dict[str, Chunk] = {}  # by table

    def keep(self, chunk: Chunk) -> None:
        self.chunks[chunk.id] = chunk
        self.unplaced.pop(chunk.id, None)
        self.number = max(self.number, chunk.number + 1)
        if chunk.again != self.again.get(chunk.table, 0):
            return
        if not chunk.position:
            self.unplaced[chunk.id] = chunk
        if chunk.table not in self.last or self.last[chunk.table].id <= chunk.id:
            self.last[chunk.table] = chunk

    def begin(self, table: str) -> None:
        """Has it copied, or copied anew."""
        if table not in self.tables:
            self.tables.append(table)
            return
        self.again[table] = self.again.get(table, 0) + 1
        self.last.pop(table, None)
        self.unplaced = {n: c for n, c in self.unplaced.items() if c.table != table}

    @property
    def planned(self) -> bool:
        return all(table in self.last and self.last[table].last for table in self.tables)

    @property
    def through(self) -> bool:
        """Whether every chunk there is has a place."""
        return self.planned and not self.unplaced


_HEAD = ("generation", "number", "tables", "again", "anew")


def begin_anew(storage: Backend, pipeline: str, source: str) -> None:
    """Has the next run copy the tables anew, as for sinks that were all told to begin anew."""
    notes = Notes(storage, f"{pipeline}/{source}")
    known = notes.load()
    if known is not None:
        known.anew = True
        notes.begin(known)


class Notes:
    """Progress in storage; without one it is kept nowhere."""

    def __init__(self, storage: Backend | None, name: str) -> None:
        self._storage = storage
        self._name = name

    def load(self) -> Copied | None:
        head = None if self._storage is None else self._storage.get(NAMESPACE, self._name)
        if self._storage is None or head is None:
            return None
        copied = Copied(**json.loads(head))
        for value in self._storage.items(NAMESPACE, self._prefix(copied)).values():
            copied.keep(Chunk(**json.loads(value)))
        return copied

    def begin(self, copied: Copied) -> None:
        if self._storage is not None:
            head = {n: getattr(copied, n) for n in _HEAD}
            self._storage.put(NAMESPACE, self._name, json.dumps(head).encode())

    def put(self, copied: Copied, chunk: Chunk) -> None:
        if self._storage is not None:
            key = f"{self._prefix(copied)}{chunk.id:08x}"
            self._storage.put(NAMESPACE, key, json.dumps(asdict(chunk)).encode())

    def forget(self, copied: Copied) -> None:
        """Of an older copy that another one replaces."""
        if self._storage is not None:
            for key in self._storage.items(NAMESPACE, self._prefix(copied)):
                self._storage.delete(NAMESPACE, key)

    def _prefix(self, copied: Copied) -> str:
        return f"{self._name}::{copied.generation}::"


@dataclass
class _Copy:
    """A chunk that a thread reads, or has read."""

    chunk: Chunk
    spool: Spool
    view: View | None = None
    missed: set[str] = field(default_factory=set)
    future: Future[None] | None = None


class SnapshotLog:
    """A log with a copy of the tables in it; itself a log.

    `log` must build what views look at in changes, and `primary_key`. Chunks of at most `tables_at_once`
    tables are read at once, of one table at most `chunks_at_once`; a few more wait for their place.
    """

    def __init__(
        self,
        log: LogReader,
        tables: Callable[[int], Tables],
        storage: Backend | None,
        name: str,
        *,
        mode: str,
        chunk_size: int,
        tables_at_once: int,
        chunks_at_once: int = 1,
        folder: str = "",
        late: LateTables | None = None,
    ) -> None:
        self._log = log
        self._late = late
        self._make_tables = tables  # for a generation
        self._notes = Notes(storage, name)
        self._mode = mode
        self._chunk_size = chunk_size
        self._tables_at_once = tables_at_once
        self._chunks_at_once = chunks_at_once
        self._folder = folder
        self._due = mode == "always"  # a new copy has to begin, once in a run
        self._turn = threading.Condition()
        self._reading = False
        self._opening = 0
        self._news = 0  # counts what threads have come to
        self._pool: ThreadPoolExecutor | None = None
        self._planners: ThreadPoolExecutor | None = None
        self._tables: Tables | None = None
        self._copied = Copied(0, 1, [])
        self._furthest = ""  # end of the furthest chunk that had a place when the log was opened
        self._memory: Copied | None = None  # what storage would hold, for a run that keeps nothing
        self._at_once = 1
        self._clear("")

    def _clear(self, at: str) -> None:
        self._handed = at
        self._held: deque[pa.RecordBatch] = deque()  # read, and behind a chunk that is not through
        self._waiting: deque[Chunk] = deque()  # have a place, and are to be read again
        self._line: deque[Chunk] = deque()  # chunks with a place, in the order of the stream
        self._copies: dict[int, _Copy] = {}
        self._plans: dict[str, Future[tuple[Key | None, bool]]] = {}  # by table
        self._leaving: Iterator[pa.RecordBatch] | None = None  # rows of the chunk that goes out
        self._done = True
        self._began = self._told = time.monotonic()
        self._rows = self._expected = 0

    # --- LogReader ---------------------------------------------------------------------------

    @property
    def position(self) -> str:
        return self._handed

    def copied(self) -> bool:
        return self._done

    def open(self, start: str) -> str:
        at = self._log.open(in_stream(start))
        self._clear(max(start, at))
        known = self._memory or self._notes.load()
        if self._due or (known is None and not start) or (known is not None and known.anew):
            known = self._begin(known)
        if known is None:
            return self._handed  # the pipeline has run without a copy
        self._due, self._copied, self._memory = False, known, known
        placed = sorted((c for c in known.chunks.values() if c.position), key=lambda c: c.place)
        self._furthest = placed[-1].end if placed else ""
        again = [chunk for chunk in placed if chunk.end > start]
        if again:
            # They may stand before the place where the log begins, for a sink that has nothing yet.
            self._handed = start
        self._done = not again and known.through
        if not self._done:
            self._tables = self._tables or self._make_tables(known.generation)
            for chunk in [chunk for chunk in again if not self._tables.keyed(chunk.table)]:
                # At its old place it would show rows that the log tells of once more behind it.
                again.remove(chunk)
                self._keep(replace(chunk, position="", number=0))
            self._waiting, self._line = deque(again), deque(again)
            self._hire()
        return self._handed

    def _hire(self) -> None:
        """Threads that copy."""
        copied = self._copied
        self._tables = self._tables or self._make_tables(copied.generation)
        at_once = min(self._tables_at_once, max(1, len(copied.tables))) * self._chunks_at_once
        self._at_once = min(at_once, MOST_THREADS)
        self._pool = ThreadPoolExecutor(self._at_once, "dfc-snapshot")
        self._planners = ThreadPoolExecutor(min(self._at_once, 2), "dfc-snapshot-plan")
        self._expected = sum(self._tables.rows(table) for table in copied.tables)

    def _take_late(self, late: LateTables) -> None:
        """Tables that came while others were read are copied too."""
        names = late.ready()
        if not names:
            return
        if self._memory is None:  # the pipeline has run without a copy so far
            self._copied = self._memory = Copied(1, 1, [])
        with self._turn:  # threads note their chunks
            for name in names:
                self._copied.begin(name)
                self._plans.pop(name, None)
        self._notes.begin(self._copied)
        for name in names:
            late.taken(name)
            logger.info("snapshot: %s is copied too, it came later", name)
        if self._done:
            self._done = False
            self._began = time.monotonic()
            self._hire()

    def quiet(self) -> float:
        return self._log.quiet() if self._done else 0.0

    def head(self) -> str:
        return self._log.head()

    def ceiling(self) -> str:
        # A sink may have more of the copy than storage knew when the job was killed.
        return max(self._log.ceiling(), self._handed, self._furthest)

    def durable(self, position: str) -> None:
        self._log.durable(in_stream(position))

    def untouched(self) -> None:
        if isinstance(self._log, KeptLog):
            self._log.untouched()

    def close(self) -> None:
        with self._turn:
            self._reading = False
            self._turn.notify_all()
        self._let_go()
        for copy in self._copies.values():
            copy.spool.close()
        self._log.close()

    def _let_go(self) -> None:
        """Of threads and connections that only copying needs."""
        if self._tables is not None:
            self._tables.close()  # first: threads that wait for rows wake up
            self._tables = None
        for pool in (self._pool, self._planners):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._planners = None

    def read(self, wait: float) -> list[pa.RecordBatch]:
        if self._late is not None and self._leaving is None:
            self._take_late(self._late)
        if self._done:
            batches = self._log.read(wait)
            self._handed = max(self._log.position, self._handed)
            return batches
        if self._leaving is not None:
            return self._rows_on_their_way()
        news = self._news
        self._hear()
        self._send_out()
        self._tell()
        first = self._line[0] if self._line else None
        with self._log_alone():
            # Only a chunk that is there and before its place has to wait for the log.
            early = first and self._is_read(first) and self._log.position < first.position
            out = self._changes(_NAP_SECS / 5 if early else _GLANCE_SECS)
        if out:
            return out
        if self._line and self._is_due(self._line[0]):
            return self._placed(self._line[0])
        if self._is_through():
            self._done = True
            self._tell(last=True)
            self._let_go()
            return []
        with self._turn:
            if self._news == news:
                self._turn.wait(min(wait, _NAP_SECS))
        return []

    # --- the stream --------------------------------------------------------------------------

    def _changes(self, wait: float) -> list[pa.RecordBatch]:
        """Changes that stand before the next chunk."""
        if not self._held:
            self._held.extend(batch for batch in self._log.read(wait) if batch.num_rows)
        limit = self._line[0].position if self._line else _BEHIND_ALL
        out: list[pa.RecordBatch] = []
        while self._held:
            batch = self._held[0]
            count = _at_or_before(batch["position"], limit)
            if count < batch.num_rows:
                if count:
                    out.append(batch.slice(0, count))
                    self._held[0] = batch.slice(count)
                break
            out.append(self._held.popleft())
        if out:
            self._handed = max(self._handed, out[-1]["position"][-1].as_py())
        elif not self._held:
            self._handed = max(self._handed, min(self._log.position, limit))
        for batch in out:
            self._note_missed(batch)
        return out

    def _note_missed(self, batch: pa.RecordBatch) -> None:
        for copy in list(self._copies.values()):
            if copy.view is not None:
                try:
                    copy.missed |= copy.view.missed(batch)
                except Outdated:
                    self._withdraw(copy)

    def _is_due(self, chunk: Chunk) -> bool:
        """Whether all that stands before a chunk is out, and its rows are there."""
        if not self._is_read(chunk):
            return False
        if self._held and self._held[0]["position"][0].as_py() <= chunk.position:
            return False
        return self._log.position >= chunk.position

    def _is_read(self, chunk: Chunk) -> bool:
        copy = self._copies.get(chunk.id)
        if copy is None or copy.future is None or not copy.future.done():
            return False
        return copy.future.exception() is None  # one is heard in a moment

    def _placed(self, chunk: Chunk) -> list[pa.RecordBatch]:
        self._line.popleft()
        copy = self._copies[chunk.id]
        if copy.view is None:
            # Rows may be gone since it was read first, and others would bear their numbers: whoever has
            # a part of it gets all of it once more.
            copy.chunk = replace(chunk, handed=chunk.handed + 1)
            self._keep(copy.chunk)
        self._leaving = self._with_places(copy)
        return self._rows_on_their_way()

    def _rows_on_their_way(self) -> list[pa.RecordBatch]:
        """The next rows of a chunk; a large one takes several results."""
        assert self._leaving is not None
        out: list[pa.RecordBatch] = []
        size = 0
        for batch in self._leaving:
            out.append(batch)
            size += batch.nbytes
            self._rows += batch.num_rows
            self._handed = batch["position"][-1].as_py()
            if size >= _AT_ONCE_BYTES:
                return out
        self._leaving = None
        return out

    def _with_places(self, copy: _Copy) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk with their positions, in one transaction; none that is out of date."""
        chunk, kept = copy.chunk, None
        row = chunk.handed << _ROW_BITS
        for batch in copy.spool:
            if copy.missed:
                stale = pc.is_in(batch["primary_key"], pa.array(sorted(copy.missed), pa.string()))
                batch = batch.filter(pc.invert(stale))
            if batch.num_rows == 0:
                continue
            if kept is not None:
                yield _placed_at(kept, chunk, row, False)
                row += kept.num_rows
            kept = batch
        if kept is not None:
            yield _placed_at(kept, chunk, row, True)
        self._handed = max(self._handed, chunk.end)
        copy.spool.close()
        del self._copies[chunk.id]

    # --- the chunks --------------------------------------------------------------------------

    def _begin(self, older: Copied | None) -> Copied:
        generation = 1 if older is None else older.generation + 1
        self._tables = self._make_tables(generation)
        number = 1 if older is None else older.number
        copied = Copied(generation, number, self._tables.captured())
        self._notes.begin(copied)
        if older is not None:
            self._notes.forget(older)
        return copied

    def _send_out(self) -> None:
        """Gives the threads chunks to read, as long as there are any and there is room."""
        while len(self._copies) < self._at_once + _WAITING_CHUNKS:
            chunk = self._next_chunk()
            if chunk is None:
                return
            assert self._pool is not None
            copy = _Copy(chunk, Spool(self._folder))
            self._copies[chunk.id] = copy
            copy.future = self._pool.submit(self._read, copy)
            copy.future.add_done_callback(self._tell_news)

    def _tell_news(self, _: object) -> None:
        with self._turn:
            self._news += 1
            self._turn.notify_all()

    def _next_chunk(self) -> Chunk | None:
        if self._waiting:
            return self._waiting.popleft()
        # Behind those that have a place: a new one stands behind all of them.
        for chunk in list(self._copied.unplaced.values()):
            if chunk.id not in self._copies:
                return chunk
        assert self._tables is not None
        busy = Counter(
            copy.chunk.table
            for copy in self._copies.values()
            if copy.future is None or not copy.future.done()
        )
        if sum(busy.values()) >= self._at_once:
            return None
        for table in self._copied.tables:
            last = self._copied.last.get(table)
            if (last is not None and last.last) or busy[table] >= self._chunks_at_once:
                continue
            if table not in busy and len(busy) >= self._tables_at_once:
                continue
            planned = self._planned(table, None if last is None else last.upto)
            if planned is None:
                continue
            again = self._copied.again.get(table, 0)
            chunk = Chunk(len(self._copied.chunks) + 1, table, *planned, again=again)
            self._keep(chunk)
            if not chunk.last:
                self._planned(table, chunk.upto)  # while this one is read
            return chunk
        return None

    def _planned(self, table: str, after: Key | None) -> tuple[Key | None, Key | None, bool] | None:
        """Both ends of the next chunk and whether it is the last; None while that is looked for."""
        if table not in self._plans:
            assert self._tables is not None and self._planners is not None
            plan = self._planners.submit(self._tables.next, table, after, self._chunk_size)
            self._plans[table] = plan
            plan.add_done_callback(self._tell_news)
        if not self._plans[table].done():
            return None
        upto, ends = self._plans.pop(table).result()
        # The last one is open at its end: read again, it has what came behind that too.
        return after, None if ends else upto, ends

    def _hear(self) -> None:
        """What the threads have met with."""
        for copy in list(self._copies.values()):
            assert copy.future is not None
            if copy.future.done() and copy.future.exception() is not None:
                try:
                    copy.future.result()
                except Outdated:
                    self._withdraw(copy)

    def _read(self, copy: _Copy) -> None:
        """In a thread: opens a view while the log stands still, then reads it."""
        tables = self._tables
        assert tables is not None
        if copy.chunk.position:
            view = tables.view(copy.chunk)
        else:
            with self._log_still():
                until = time.monotonic() + _VISIBLE_SECS
                view = tables.view(copy.chunk)
                while view.position < in_stream(self._handed):
                    # A server may send changes a moment before others can see them.
                    view.close()
                    if time.monotonic() > until:
                        raise TransientError(
                            f"snapshot: changes up to {in_stream(self._handed)} came from the log, and "
                            f"after {_VISIBLE_SECS:.0f} s the tables have them up to {view.position} only"
                        )
                    time.sleep(_NAP_SECS / 10)
                    view = tables.view(copy.chunk)
                number = self._copied.number
                copy.chunk = replace(copy.chunk, position=view.position, number=number)
                self._keep(copy.chunk)
                copy.view = view
                self._line.append(copy.chunk)
        try:
            for batch in view.read():
                copy.spool.put(batch)
        finally:
            view.close()

    def _withdraw(self, copy: _Copy) -> None:
        """Has a chunk read again, at another place unless it had its place before."""
        assert copy.future is not None
        copy.future.add_done_callback(lambda _: copy.spool.close())
        chunk = copy.chunk
        del self._copies[chunk.id]
        if copy.view is None:
            self._waiting.appendleft(chunk)
            return
        self._line.remove(chunk)
        self._keep(replace(chunk, position="", number=0))

    def _keep(self, chunk: Chunk) -> None:
        self._copied.keep(chunk)
        self._notes.put(self._copied, chunk)

    def _is_through(self) -> bool:
        return not self._line and not self._copies and self._copied.through

    # --- turns: the log is not read while a view is opened -------------------------------------

    @contextmanager
    def _log_alone(self) -> Iterator[None]:
        with self._turn:
            while self._opening:
                self._turn.wait()
            self._reading = True
        try:
            yield
        finally:
            with self._turn:
                self._reading = False
                self._turn.notify_all()

    @contextmanager
    def _log_still(self) -> Iterator[None]:
        with self._turn:
            self._opening += 1
            while self._reading:
                self._turn.wait()
            # One after the other: numbers have to grow as positions do.
            try:
                yield
            finally:
                self._opening -= 1
                self._turn.notify_all()

    def _tell(self, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now < self._told + _TELL_SECS:
            return
        self._told = now
        seconds = now - self._began
        if last:
            logger.info("snapshot: done, %s rows in %.0f s", f"{self._rows:,}", seconds)
            return
        share = min(self._rows / self._expected, 1.0) if self._expected else 0.0
        left = f", about {seconds / share - seconds:,.0f} s to go" if share > 0.01 else ""
        logger.info(
            "snapshot: %s of about %s rows (%.0f %%)%s",
            f"{self._rows:,}",
            f"{self._expected:,}",
            100 * share,
            left,
        )


def in_stream(position: str) -> str:
    """The position in the log itself, of one that may be inside a chunk."""
    return position.partition("-s")[0]


def _at_or_before(positions: pa.Array, limit: str) -> int:
    """How many of the sorted positions are at or before this one."""
    if len(positions) == 0 or positions[-1].as_py() <= limit:
        return len(positions)
    return int(np.searchsorted(np.asarray(positions.to_pylist()), limit, side="right"))


def _placed_at(batch: pa.RecordBatch, chunk: Chunk, row: int, last: bool) -> pa.RecordBatch:
    count = batch.num_rows
    numbers = np.arange(row, row + count, dtype=np.uint64)
    if last:
        numbers[-1] = np.uint64(0xFFFFFFFFFFFFFFFF)
    place = pc.binary_join_element_wise(chunk.place, hex_column(numbers), ".")
    columns = {"position": place}
    if "tx_end" in batch.schema.names:
        ends = np.zeros(count, bool)
        ends[-1] = last
        columns["tx_end"] = pa.array(ends)
    for name, values in columns.items():
        index = batch.schema.get_field_index(name)
        batch = batch.set_column(index, batch.schema.field(index), values)
    return batch
