"""Reads the shadow tables that triggers fill, as Arrow batches in the order of change ids."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .. import ids
from .log import SourceError, logger
from .settings import ReaderSettings
from .turso_database import Database, transaction
from .turso_events import EventBuilder, fetch, hex_column, no_garbage_collection
from .turso_install import Installer, check_start, warn_of_absent
from .turso_schema import Idle, captured, quote, table_names
from .turso_triggers import CONSUMERS, LAYOUTS, SEQUENCE, shadow
from .turso_values import json_object, register

WINDOW = 32_768  # change ids looked at in one read transaction
WINDOW_BYTES = 32 << 20
CLEAN_ROWS = 4096  # in one write transaction: some milliseconds
CLEAN_BUSY_SECS = 0.1


@dataclass(frozen=True, slots=True)
class _Layout:
    """The columns of a table for the changes in (since, until]."""

    table: str
    since: int
    until: int
    columns: tuple[str, ...]
    key: tuple[str, ...]
    version: str


class TriggerLog:
    """The log of a SQLite file in triggers mode. Every change counts as a transaction of its own:
    SQLite does not tell where one ends."""

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
        self._consumer = f"{settings.pipeline}/{settings.id}"
        self._builder = EventBuilder(settings)
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._installer: Installer | None = None
        self._layouts: list[_Layout] = []
        self._schema = -1
        self._at = 0
        self._next_poll = 0.0
        self._quiet_version: int | None = None  # of the data when nothing was left to read
        self._last_event = 0
        self._clean_to = 0

    @property
    def position(self) -> str:
        return f"{self._at:016x}"

    def open(self, start: str) -> str:
        self.close()
        at = _change_id(start)
        with self._database.guarded():
            if self._database.writable() and not self._settings.guest:
                self._writer = self._database.connect(write=True)
                self._installer = Installer(self._writer, self._patterns, self._consumer)
                self._schema = self._installer.ensure(at or 0)
                warn_of_absent(self._writer, self._consumer)
            self._reader = self._database.connect()
            self._idle.look(table_names(self._reader))
            self._reader.text_factory = bytes
            register(self._reader)
            if not _installed(self._reader):
                why = (
                    "a dry run makes none: run the pipeline once"
                    if self._settings.guest
                    else "they cannot be made: make file and folder writable, "
                    "or use cdc_mode: polling"
                )
                raise SourceError(
                    f"database {self._database.path} has no change triggers yet, and {why}"
                )
            self._at = self._last_event = check_start(self._reader, at, self._settings)
            if self._writer is not None:
                # Clean-up must not stand in anybody's way: it comes back later instead.
                self._writer.execute(f"PRAGMA busy_timeout = {int(CLEAN_BUSY_SECS * 1000)}")
            self._load_layouts()
        self._next_poll, self._quiet_version = 0.0, None
        return self.position

    def close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = self._installer = None

    def head(self) -> str:
        with self._database.guarded():
            return f"{self._last_id():016x}"

    def ceiling(self) -> str:
        return self.head()

    def copied(self) -> bool:
        return True

    def quiet(self) -> float:
        return max(0.0, self._next_poll - time.monotonic())

    def read(self, wait: float) -> list[pa.RecordBatch]:
        until = time.monotonic() + wait
        while True:
            pause = min(self._next_poll, until) - time.monotonic()
            if pause > 0 and not self._clean(0.05):
                time.sleep(max(0.0, min(self._next_poll, until) - time.monotonic()))
            if time.monotonic() >= self._next_poll:
                with self._database.guarded(), no_garbage_collection():
                    batches = self._poll()
                if batches:
                    return batches
            if time.monotonic() >= until:
                return []

    def durable(self, position: str) -> None:
        """Notes how far this pipeline is, and removes what no pipeline on the file needs."""
        held = _change_id(position) or 0
        if held >= self._last_event:
            held = max(held, self._at)  # the rest was not ours: it need not wait for us
        if self._writer is None or self._installer is None:
            return
        try:
            self._writer.execute(
                f"UPDATE {CONSUMERS} SET position = max(position, ?), seen_ms = ?"
                " WHERE pipeline = ?",
                (held, time.time_ns() // 1_000_000, self._consumer),
            )
            row = self._writer.execute(f"SELECT min(position) FROM {CONSUMERS}").fetchone()
        except sqlite3.OperationalError as error:
            logger.debug("clean-up waits: %s", error)
            return
        self._clean_to = row[0] or 0
        self._clean(0.5)

    # --- reading -------------------------------------------------------------------------

    def _poll(self) -> list[pa.RecordBatch]:
        db = self._connection()
        version = int(db.execute("PRAGMA data_version").fetchone()[0])
        if version == self._quiet_version:
            self._next_poll = time.monotonic() + self._poll_secs
            return []
        self._follow_schema()
        batches: list[pa.RecordBatch] = []
        with transaction(db, "DEFERRED"):
            head = self._last_id()
            if head < self._at:
                raise SourceError(
                    f"the database's last change is {head}, but {self._at} has been read: the file "
                    "was restored or replaced. To read this one from its beginning, "
                    f"{self._settings.how_to_reset}"
                )
            if int(db.execute("PRAGMA schema_version").fetchone()[0]) != self._schema:
                return []  # changed between the two looks: begin again
            if head > self._at:
                batches = self._window(head)
        if self._at >= head:
            self._quiet_version = version
            self._next_poll = time.monotonic() + self._poll_secs
        return batches

    def _follow_schema(self) -> None:
        """New tables and columns get their triggers before anything behind them is read."""
        db = self._connection()
        for _ in range(10):
            version = int(db.execute("PRAGMA schema_version").fetchone()[0])
            if version == self._schema:
                return
            if self._writer is None or self._installer is None:
                self._schema = version
            else:
                self._writer.execute("PRAGMA busy_timeout = 5000")
                try:
                    self._schema = self._installer.ensure()
                finally:
                    self._writer.execute(f"PRAGMA busy_timeout = {int(CLEAN_BUSY_SECS * 1000)}")
            self._load_layouts()

    def _load_layouts(self) -> None:
        rows = (
            self._connection()
            .execute(
                f"SELECT tbl, since, columns, keys, version FROM {LAYOUTS} ORDER BY tbl, layout"
            )
            .fetchall()
        )
        layouts: list[_Layout] = []
        for number, (table, since, columns, key, version) in enumerate(rows):
            last = number + 1 == len(rows) or rows[number + 1][0] != table
            until = (1 << 63) - 1 if last else rows[number + 1][1]
            if captured(table.decode(), self._patterns):
                layouts.append(
                    _Layout(
                        table.decode(),
                        since,
                        until,
                        tuple(json.loads(columns)),
                        tuple(json.loads(key)),
                        version.decode(),
                    )
                )
        self._layouts = layouts

    def _window(self, head: int) -> list[pa.RecordBatch]:
        """The changes in (at, until], from all tables; moves `at`."""
        until = min(head, self._at + WINDOW)
        parts: list[tuple[np.ndarray, pa.RecordBatch]] = []
        for layout in self._layouts:
            if layout.since < until and layout.until > self._at:
                part, cut = self._part(layout, until)
                until = min(until, cut)
                if part is not None:
                    parts.append(part)
        if not parts:
            # A stretch of other tables' changes, or one that was cleaned up: jump over it.
            self._at = head if until == head else max(until, self._first_behind(until, head))
            return []
        self._at = until
        kept = []
        for numbers, batch in parts:
            below = int(np.searchsorted(numbers, until, side="right"))
            if below:
                kept.append((numbers[:below], batch.slice(0, below)))
        self._last_event = max(int(numbers[-1]) for numbers, _ in kept)
        if len(kept) == 1:
            return [kept[0][1]]
        order = np.argsort(np.concatenate([numbers for numbers, _ in kept]), kind="stable")
        merged = pa.Table.from_batches([batch for _, batch in kept]).combine_chunks()
        return merged.take(pa.array(order)).combine_chunks().to_batches()

    def _first_behind(self, until: int, head: int) -> int:
        db, first = self._connection(), head
        for table in {layout.table for layout in self._layouts}:
            row = db.execute(
                f"SELECT min(change_id) FROM {quote(shadow(table))} WHERE change_id > ?", (until,)
            ).fetchone()
            if row[0] is not None:
                first = min(first, row[0] - 1)
        return first

    def _part(
        self, layout: _Layout, until: int, careful: bool = False
    ) -> tuple[tuple[np.ndarray, pa.RecordBatch] | None, int]:
        """One table's changes of the window, and where the window must end for its size."""
        first, last = max(self._at, layout.since), min(until, layout.until)
        cursor = self._connection().execute(self._select(layout, careful), (first, last))
        rows, cut = fetch(cursor, WINDOW_BYTES)
        if not rows:
            return None, until
        if cut:
            until = rows[-1][0]
        columns = list(zip(*rows, strict=True))
        numbers = np.array(columns[0], dtype=np.int64)
        try:
            batch = self._batch(layout, numbers, columns)
        except pa.ArrowInvalid:
            if careful:
                raise
            return self._part(layout, until, careful=True)
        return (numbers, batch), until

    def _select(self, layout: _Layout, careful: bool) -> str:
        count = len(layout.columns)
        before = json_object(layout.columns, [f"b{i}" for i in range(count)], careful)
        after = json_object(layout.columns, [f"a{i}" for i in range(count)], careful)
        places = [layout.columns.index(name) for name in layout.key]
        values = [f"CASE op WHEN 'd' THEN b{i} ELSE a{i} END" for i in places]
        key = json_object(layout.key, values, careful)
        wanted = {
            "before": f"CASE WHEN op IN ('u', 'd') THEN {before} END",
            "after": f"CASE WHEN op <> 'd' THEN {after} END",
            "primary_key": key if layout.key else "NULL",
        }
        expressions = [wanted[name] for name in self._builder.texts]
        return (
            f"SELECT {', '.join(['change_id', 'op', 'ts_ms', *expressions])}"
            f" FROM {quote(shadow(layout.table))}"
            " WHERE change_id > ? AND change_id <= ? ORDER BY change_id"
        )

    def _batch(
        self, layout: _Layout, numbers: np.ndarray, columns: list[tuple[object, ...]]
    ) -> pa.RecordBatch:
        source = self._settings.id
        return self._builder.batch(
            table=layout.table,
            position=hex_column(numbers),
            op=columns[1],
            ts_ms=columns[2],
            texts=columns[3:],
            sequence=pa.array(numbers).cast(pa.string()),
            schema_version=layout.version,
            event_ids=lambda: ids.turso_rows(source, numbers.tolist()),
        )

    def _last_id(self) -> int:
        return int(self._connection().execute(f"SELECT n FROM {SEQUENCE}").fetchone()[0])

    def _connection(self) -> sqlite3.Connection:
        if self._reader is None:
            raise SourceError("the log is not open")
        return self._reader

    # --- clean-up ------------------------------------------------------------------------

    def _clean(self, seconds: float) -> bool:
        """Deletes confirmed changes, a short write transaction at a time; False when done."""
        if self._writer is None or self._clean_to == 0:
            return False
        until = time.monotonic() + seconds
        try:
            tables = self._writer.execute(f"SELECT DISTINCT tbl FROM {LAYOUTS}").fetchall()
            for (table,) in tables:
                name = quote(shadow(table))
                while self._clean_some(name):
                    if time.monotonic() >= until:
                        return True
        except sqlite3.OperationalError as error:
            logger.debug("clean-up waits: %s", error)
        self._clean_to = 0
        return False

    def _clean_some(self, name: str) -> bool:
        assert self._writer is not None
        first = self._writer.execute(f"SELECT min(change_id) FROM {name}").fetchone()[0]
        if first is None or first > self._clean_to:
            return False
        last = min(self._clean_to, first + CLEAN_ROWS)
        with transaction(self._writer):
            self._writer.execute(f"DELETE FROM {name} WHERE change_id <= ?", (last,))
            self._writer.execute(f"UPDATE {SEQUENCE} SET cleaned = max(cleaned, ?)", (last,))
        return True


def _change_id(position: str) -> int | None:
    if not position:
        return None
    try:
        return int(position, 16)
    except ValueError:
        raise SourceError(f"{position!r} is not a position of a Turso source") from None


def _installed(connection: sqlite3.Connection) -> bool:
    return (
        connection.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_df_cdc_seq'"
        ).fetchone()
        is not None
    )
