"""Polling mode: finds new rows by their rowid, in any SQLite file that can be read.

It sees inserts only, and only rows whose rowid is above all earlier ones of their table: no
updates, no deletes, no row that takes a freed or a smaller rowid, and no row that is gone again
before the next look. An event shows the row as it was when it was read; a replay reads it again
and shows what it is by then, or nothing if it was deleted. Events carry the time of the look.
A table that is dropped and made again under its name is followed only from the highest rowid seen
before. Tables without rowid cannot be read this way.

Every look at a table that found rows is written down (number, table, range of rowids) before its
rows go out, so that a restart repeats the same order: a position is the number of the look and the
rowid inside it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import ids
from .log import SourceError, logger
from .settings import ReaderSettings
from .turso_database import Database
from .turso_events import EventBuilder, fetch, hex_column, no_garbage_collection
from .turso_schema import Idle, Table, captured, quote, read_table, table_names
from .turso_values import json_object, register

ROWS = 20_000  # of one look at a table
BYTES = 32 << 20  # of one batch
NAMESPACE = "polls"
_LOWEST = -(1 << 63)
_BIAS = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class Poll:
    """One look at one table: the rows in (above, upto] that are there."""

    number: int
    table: str
    above: int
    upto: int
    ts_ms: int

    def encode(self) -> bytes:
        return json.dumps([self.number, self.table, self.above, self.upto, self.ts_ms]).encode()

    @property
    def end(self) -> str:
        return f"{self.number:08x}{self.upto + (1 << 63):016x}"


class PollNotes:
    """The looks that no sink can do without, and how far each table had been read before them."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._key = f"{settings.pipeline}/{settings.id}"
        self._storage = settings.storage.open() if settings.storage else None
        self.polls: deque[tuple[int, Poll]] = deque()
        self.read: dict[str, int] = {}  # highest rowid by table, of all looks
        self._dropped: dict[str, int] = {}  # the same, of the looks that are no longer kept
        self.number = 0
        if self._storage is None:
            return
        saved = self._storage.get(NAMESPACE, self._key)
        if saved is not None:
            state = json.loads(saved)
            self.number, self._dropped = state["number"], state["read"]
            self.read.update(self._dropped)
        for entry, value in self._storage.peek(NAMESPACE, self._key, 1 << 31):
            poll = Poll(*json.loads(value))
            if poll.number > self.number:
                self._take(entry, poll)

    def add(self, table: str, upto: int) -> Poll:
        poll = Poll(
            self.number + 1,
            table,
            self.read.get(table, _LOWEST),
            upto,
            time.time_ns() // 1_000_000,
        )
        entry = 0
        if self._storage is not None:
            entry = self._storage.push(NAMESPACE, self._key, poll.encode())
        self._take(entry, poll)
        return poll

    def drop(self, position: str) -> None:
        """Forgets looks that every sink holds all rows of."""
        done = None
        while self.polls and self.polls[0][1].end <= position:
            done = self.polls.popleft()
            self._dropped[done[1].table] = done[1].upto
        if done is not None and self._storage is not None:
            # In this order: a look kept too long is told by its number, one lost would be missed.
            state = {"number": done[1].number, "read": self._dropped}
            self._storage.put(NAMESPACE, self._key, json.dumps(state).encode())
            self._storage.ack(NAMESPACE, self._key, done[0])

    def close(self) -> None:
        if self._storage is not None:
            self._storage.close()

    def _take(self, entry: int, poll: Poll) -> None:
        self.polls.append((entry, poll))
        self.number = poll.number
        self.read[poll.table] = poll.upto


class PollingLog:
    """The log of a SQLite file in polling mode."""

    def __init__(
        self,
        database: Database,
        settings: ReaderSettings,
        tables: tuple[str, ...],
        poll_secs: float,
    ) -> None:
        self._database = database
        self._settings = settings
        self._patterns = tables
        self._poll_secs = poll_secs
        self._idle = Idle(tables)
        self._builder = EventBuilder(settings)
        self._db: sqlite3.Connection | None = None
        self._notes: PollNotes | None = None
        self._replay: deque[Poll] = deque()
        self._tables: dict[str, Table] = {}
        self._refused: set[str] = set()
        self._schema = -1
        self._position = ""
        self._next_poll = 0.0

    @property
    def position(self) -> str:
        return self._position

    def open(self, start: str) -> str:
        self.close()
        if start and len(start) != 24:
            raise SourceError(
                f"{start!r} is not a position of the polling mode. To begin again in this mode, "
                f"{self._settings.how_to_reset}"
            )
        self._db = self._database.connect()
        self._db.text_factory = bytes
        with self._database.guarded():
            register(self._db)
        self._notes = PollNotes(self._settings)
        if start and int(start[:8], 16) > self._notes.number:
            self._strange(start)
        self._replay = deque(poll for _, poll in self._notes.polls if poll.end > start)
        self._position, self._schema, self._next_poll = start, -1, 0.0
        return start

    def _strange(self, start: str) -> None:
        """A position from looks that are not in our notes."""
        assert self._notes is not None
        if not self._settings.guest:
            raise SourceError(
                "the stored position is not in the notes of earlier looks, which polling needs to "
                "go on: give it the same storage as before. To begin again, "
                f"{self._settings.how_to_reset}"
            )
        logger.info("a dry run does not know what was read before: it shows all rows")
        self._notes.number = int(start[:8], 16)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        if self._notes is not None:
            self._notes.close()
        self._db = self._notes = None

    def head(self) -> str:
        """Notes what is there now, so that the rows have positions."""
        with self._database.guarded():
            self._look(all_rows=True)
        last = self._replay[-1].end if self._replay else ""
        return max(last, self._position)

    def ceiling(self) -> str:
        """By the notes alone: looks are noted before their rows go out."""
        _, notes = self._open()
        return f"{notes.number:08x}{'f' * 16}"

    def copied(self) -> bool:
        return True

    def quiet(self) -> float:
        return 0.0 if self._replay else max(0.0, self._next_poll - time.monotonic())

    def read(self, wait: float) -> list[pa.RecordBatch]:
        until = time.monotonic() + wait
        while True:
            with self._database.guarded(), no_garbage_collection():
                if self._replay:
                    batch = self._rows(self._replay[0])
                    if self._position >= self._replay[0].end:
                        self._replay.popleft()
                    if batch is not None:
                        return [batch]
                elif time.monotonic() >= self._next_poll:
                    self._next_poll = time.monotonic() + self._poll_secs
                    self._look()
            if self._replay:
                continue
            left = until - time.monotonic()
            if left <= 0:
                return []
            time.sleep(max(0.0, min(left, self._next_poll - time.monotonic())))

    def durable(self, position: str) -> None:
        if self._notes is not None and not self._settings.guest:
            self._notes.drop(position)

    # --- looking -------------------------------------------------------------------------

    def _look(self, all_rows: bool = False) -> None:
        """Notes the ranges of rowids that are new."""
        db, notes = self._open()
        self._follow_schema(db)
        for name, table in self._tables.items():
            while True:
                above = notes.read.get(name, _LOWEST)
                upto = self._upto(db, table, above)
                if upto is None:
                    break
                self._replay.append(notes.add(name, upto))
                if not all_rows and len(self._replay) > 8:
                    self._next_poll = 0.0  # there is more, but memory has its bounds
                    return

    def _upto(self, db: sqlite3.Connection, table: Table, above: int) -> int | None:
        """The rowid that ends the next stretch of at most so many rows."""
        name, rowid = quote(table.name), table.rowid
        compare = ">=" if above == _LOWEST else ">"  # the lowest of all rowids is one, too
        row = db.execute(
            f"SELECT {rowid} FROM {name} WHERE {rowid} {compare} ? ORDER BY {rowid}"
            f" LIMIT 1 OFFSET {ROWS - 1}",
            (above,),
        ).fetchone()
        if row is not None:
            return int(row[0])
        last = db.execute(f"SELECT max({rowid}) FROM {name}").fetchone()[0]
        return None if last is None or (last <= above and above != _LOWEST) else int(last)

    def _follow_schema(self, db: sqlite3.Connection) -> None:
        version = int(db.execute("PRAGMA schema_version").fetchone()[0])
        if version == self._schema:
            return
        self._tables = {}
        db.text_factory = str
        try:
            names = table_names(db)
            self._idle.look(names)
            for name in names:
                if not captured(name, self._patterns):
                    continue
                table = read_table(db, name)
                if table.rowid is not None:
                    self._tables[name] = table
                elif name not in self._refused:
                    self._refused.add(name)
                    self._refuse(name)
        finally:
            db.text_factory = bytes
        self._schema = version

    def _refuse(self, name: str) -> None:
        why = (
            f"table {name} has no rowid, so polling cannot tell its new rows: "
            "use cdc_mode: triggers"
        )
        if name in self._patterns:
            raise SourceError(f"{why}, or leave the table out")
        logger.warning("%s; it is left out", why)  # taken along by a wildcard

    # --- reading -------------------------------------------------------------------------

    def _rows(self, poll: Poll, careful: bool = False) -> pa.RecordBatch | None:
        """The rows of a look, or as many as memory should hold; moves the position."""
        db, _ = self._open()
        self._follow_schema(db)
        table = self._tables.get(poll.table)
        if table is None:
            self._position = poll.end
            return None  # dropped since
        names = [column.name for column in table.columns]
        texts = {
            "before": "NULL",
            "after": json_object(names, [quote(name) for name in names], careful),
            "primary_key": (
                json_object(table.key, [quote(name) for name in table.key], careful)
                if table.key
                else "NULL"
            ),
        }
        wanted = ", ".join([table.rowid or "rowid", *(texts[n] for n in self._builder.texts)])
        above = poll.above
        if self._position[:8] == f"{poll.number:08x}":
            above = int(self._position[8:], 16) - (1 << 63)  # stopped in the middle of it
        compare = ">=" if above == _LOWEST else ">"
        cursor = db.execute(
            f"SELECT {wanted} FROM {quote(poll.table)} WHERE {table.rowid} {compare} ?"
            f" AND {table.rowid} <= ? ORDER BY {table.rowid}",
            (above, poll.upto),
        )
        rows, cut = fetch(cursor, BYTES)
        if not rows:
            self._position = poll.end
            return None
        columns = list(zip(*rows, strict=True))
        try:
            batch = self._batch(poll, table, columns)
            self._position = batch["position"][-1].as_py() if cut else poll.end
            return batch
        except pa.ArrowInvalid:
            if careful:
                raise
            return self._rows(poll, careful=True)

    def _batch(self, poll: Poll, table: Table, columns: list[tuple[object, ...]]) -> pa.RecordBatch:
        rowids = np.array(columns[0], dtype=np.int64)
        count = len(rowids)
        source, name = self._settings.id, poll.table
        return self._builder.batch(
            table=name,
            position=pc.binary_join_element_wise(
                f"{poll.number:08x}", hex_column(rowids.view(np.uint64) + _BIAS), ""
            ),
            op=[b"c"] * count,
            ts_ms=[poll.ts_ms] * count,
            texts=columns[1:],
            sequence=pa.array(rowids).cast(pa.string()),
            schema_version=table.version(),
            event_ids=lambda: [
                ids.turso_polled_row(source, name, rowid) for rowid in rowids.tolist()
            ],
        )

    def _open(self) -> tuple[sqlite3.Connection, PollNotes]:
        if self._db is None or self._notes is None:
            raise SourceError("the log is not open")
        return self._db, self._notes
