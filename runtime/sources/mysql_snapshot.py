"""Tables of MySQL and MariaDB as a snapshot reads them: views without locks, whose place is known.

MariaDB says exactly where in its log a consistent read stands. MySQL does not: there the transactions
that were surely committed before the read are known by their GTIDs, and the log's end a moment after
it; rows that others have changed up to that end are left to the log, which has told of them already.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..kernels import mysql_images, mysql_rowloop, mysql_rows
from . import mysql_chunks as chunks
from .log import LogReader, SourceError, TransientError, logger
from .mysql_address import Address
from .mysql_cursor import Connection
from .mysql_gtid import MysqlGtids
from .mysql_retention import preflight
from .mysql_selected import Selected, quoted_name, selected, unquoted_name
from .mysql_server import SYSTEM, Captured
from .snapshot import Chunk, Key, Outdated
from .snapshot_events import CopiedRows

# A table that was altered or emptied since the view was opened, and a lock that was waited for.
_CHANGED, _GONE, _LOCKED = (1412, 1054, 1072, 1176, 1615), (1146, 1049, 1051), (1205, 1213)
_CHUNK_BYTES = 64 << 20  # what a chunk should not exceed by far, whatever chunk_size says
_VISIBLE_SECS = 30.0
_WORTH_COMPILING = 5_000  # rows: some seconds of the Python way
_BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_EXACT = (
    "SHOW SESSION STATUS WHERE Variable_name IN"
    " ('binlog_snapshot_file', 'binlog_snapshot_position')"
)

Place = Callable[[str, int], str]  # file and offset as a position of the log


class Heard:
    """A log that remembers which transactions it has handed out and nobody has seen in tables yet.

    MySQL sends a transaction to replicas a moment before a SELECT can see it.
    """

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._gtids = MysqlGtids()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, wait: float) -> list[pa.RecordBatch]:
        batches = self._log.read(wait)
        with self._lock:
            for batch in batches:
                for text in pc.unique(batch["tx_id"]).to_pylist():
                    source, _, number = (text or "").rpartition(":")
                    # MariaDB's have no colon; those without a GTID have a file before it.
                    if re.match("[0-9a-f]{8}-", source):
                        self._gtids.add(source, int(number), int(number))
        return batches

    def gtids(self) -> str:
        with self._lock:
            return str(self._gtids)

    def seen(self, gtids: str) -> None:
        """These need not be looked at again."""
        with self._lock:
            if str(self._gtids) == gtids:
                self._gtids = MysqlGtids()


class MysqlTables:
    """The captured tables of a server; `generation` counts the copies that a source has made."""

    def __init__(
        self,
        address: Address,
        captured: Captured,
        place: Place,
        heard: Heard,
        rows: CopiedRows,
        threads: int,
        source_id: str,
        wide: str,
    ) -> None:
        self._address = address
        self._captured = captured
        self._place = place
        self._heard = heard
        self.copied_rows = rows
        self._threads = threads
        self._source_id = source_id
        self.wide = wide
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._closed = False
        self._selected: dict[str, Selected] = {}
        self._definitions: dict[str, str] = {}
        with self._lent() as connection:
            version = str(connection.query("SELECT VERSION()")[0][0])
            self.mariadb = "mariadb" in version.lower()
            self._where = _EXACT
            if not self.mariadb:
                self._require_gtids(connection)
                newer = tuple(map(int, re.findall(r"\d+", version)[:2])) >= (8, 2)
                self._where = "SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS"
        self._estimates = self._counted()

    # --- Tables ----------------------------------------------------------------------------

    def captured(self) -> list[str]:
        names = list(self._estimates)
        size = sum(size for _, size in self._estimates.values())
        preflight(self._ask, size, self._threads, self._source_id)
        for name in names:
            with self._lent() as connection, suppress_gone(name):
                if self._known(connection, name).key:
                    continue
                logger.warning(
                    "snapshot: table %s has neither a primary key nor a unique one without nulls: it "
                    "is read in one piece, and from its start again after a crash",
                    name,
                )
        return names

    def rows(self, table: str) -> int:
        return self._estimates.get(table, (0, 0))[0]

    def keyed(self, table: str) -> bool:
        with self._lent() as connection, suppress_gone(table):
            return bool(self._known(connection, table).key)
        return True

    def next(self, table: str, after: Key | None, size: int) -> tuple[Key | None, bool]:
        rows, size_bytes = self._estimates.get(table, (0, 0))
        if rows:
            size = max(1, min(size, _CHUNK_BYTES // max(1, size_bytes // rows)))
        with self._lent() as connection:
            try:
                return chunks.end_of(connection.query, self._known(connection, table), after, size)
            except SourceError as error:
                if number_of(error) in _GONE:
                    return None, True
                if number_of(error) in _CHANGED:
                    self._forget(table)
                    return self.next(table, after, size)
                raise

    def view(self, chunk: Chunk) -> MysqlView:
        connection = self._take()
        try:
            return self._opened(connection, chunk)
        except BaseException:
            self.give(connection)
            raise

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections, self._open = list(self._open), set()
            self._idle = []
        for connection in connections:
            connection.close()

    # --- views -----------------------------------------------------------------------------

    def _opened(self, connection: Connection, chunk: Chunk) -> MysqlView:
        try:
            table = None
            with suppress_gone(chunk.table):
                table = self._known(connection, chunk.table)
            known = None if self.mariadb else self._committed(connection)
            # From the third on nobody can alter the table before the transaction ends; whether
            # somebody has since it was looked at, its definition tells.
            held = [f"SELECT 1 FROM {chunk.table} LIMIT 0", f"SHOW CREATE TABLE {chunk.table}"]
            _, where, *rest = connection.queries(_BEGIN, self._where, *(held if table else ()))
            if self.mariadb:
                found = {str(name).lower(): str(value) for name, value in where}
                file, offset = found["binlog_snapshot_file"], found["binlog_snapshot_position"]
            else:
                file, offset = where[0][:2]
            position = self._place(str(file), int(offset))
            if table and _definition(rest[1]) != self._definitions.get(chunk.table):
                self._forget(chunk.table)
                raise Outdated
        except SourceError as error:
            if number_of(error) in (*_CHANGED, *_GONE, *_LOCKED):
                self._forget(chunk.table)
                raise Outdated from None
            raise
        return MysqlView(self, connection, chunk, table, position, known)

    def _known(self, connection: Connection, name: str) -> Selected:
        """A table as it was when it was last looked at."""
        found = self._selected.get(name)
        if found is None:
            definition = _definition(connection.query(f"SHOW CREATE TABLE {name}"))
            found = selected(connection.query, self.mariadb, *unquoted_name(name))
            with self._lock:
                self._definitions[name], self._selected[name] = definition, found
        return found

    def _forget(self, name: str) -> None:
        with self._lock:
            self._selected.pop(name, None)

    def _committed(self, connection: Connection) -> MysqlGtids:
        """Transactions that every read from now on sees: at least those that were handed out."""
        until = time.monotonic() + _VISIBLE_SECS
        while True:
            handed = self._heard.gtids()
            text = str(connection.query("SELECT @@GLOBAL.gtid_executed")[0][0])
            known = MysqlGtids("".join(text.split()))
            if MysqlGtids(handed).within(known):
                self._heard.seen(handed)
                return known
            if time.monotonic() > until:
                raise TransientError(
                    f"server {self._address}: transactions of its log are not in its tables after "
                    f"{_VISIBLE_SECS:.0f} s"
                )
            time.sleep(0.002)

    def _require_gtids(self, connection: Connection) -> None:
        mode = str(connection.query("SELECT @@GLOBAL.gtid_mode")[0][0])
        if mode != "ON":
            raise SourceError(
                f"server {self._address}: a snapshot without locks needs gtid_mode=ON on MySQL, and "
                f"it is {mode}: SET GLOBAL enforce_gtid_consistency = ON, then gtid_mode = "
                "OFF_PERMISSIVE, ON_PERMISSIVE and ON, one after the other; or set `snapshot.mode: "
                "never`"
            )

    # --- tables and connections --------------------------------------------------------------

    def _counted(self) -> dict[str, tuple[int, int]]:
        """Rows and bytes of the tables to copy, as the server estimates them."""
        with self._lent() as connection:
            found = connection.query(
                "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH, ENGINE"
                " FROM information_schema.TABLES"
                " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
                " ORDER BY TABLE_SCHEMA, TABLE_NAME"
            )
        made: dict[str, tuple[int, int]] = {}
        for db, table, rows, size, engine in found:
            if str(db).lower() in SYSTEM or not self._captured(str(db), str(table)):
                continue
            if self._captured.is_outbox(str(db), str(table)):
                continue  # messages that were sent long ago are no rows to copy
            name = quoted_name(str(db), str(table))
            made[name] = (int(rows or 0), int(size or 0))
            if str(engine) not in ("InnoDB", "BLACKHOLE", "ROCKSDB", "TokuDB"):
                logger.warning(
                    "snapshot: table %s has the engine %s, without consistent reads: rows that "
                    "change while it is copied may come a moment early, and once more from the log",
                    name,
                    engine,
                )
        if sum(rows for rows, _ in made.values()) >= _WORTH_COMPILING:
            # Here, where one thread is at work.
            mysql_images.FRAME.compiled()
            mysql_rowloop.KERNEL.compiled()
        return made

    def _ask(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lent() as connection:
            return connection.query(sql, *values)

    @contextmanager
    def _lent(self) -> Iterator[Connection]:
        connection = self._take()
        try:
            yield connection
        finally:
            self.give(connection)

    def _take(self) -> Connection:
        with self._lock:
            if self._closed:
                raise TransientError("the snapshot was ended")
            if self._idle:
                return self._idle.pop()
        made = Connection(self._address)
        with self._lock:
            self._open.add(made)
            closed = self._closed
        if closed:
            made.close()
        return made

    def give(self, connection: Connection) -> None:
        """Back for the next one, unless something was left in the middle."""
        try:
            if connection.usable:
                connection.query("ROLLBACK")
        except SourceError:
            connection.close()
        with self._lock:
            if connection.usable and not self._closed:
                self._idle.append(connection)
                return
            self._open.discard(connection)
        connection.close()


class MysqlView:
    """A chunk as one transaction sees it."""

    def __init__(
        self,
        tables: MysqlTables,
        connection: Connection,
        chunk: Chunk,
        table: Selected | None,
        position: str,
        known: MysqlGtids | None,
    ) -> None:
        self._tables = tables
        self._connection: Connection | None = connection
        self._chunk = chunk
        self._table = table
        self._known = known  # None where the position is exact
        self._lock = threading.Lock()
        self.position = position

    def missed(self, changes: pa.RecordBatch) -> set[str]:
        if self._known is None:
            return set()
        db, name = unquoted_name(self._chunk.table)
        mine = pc.and_(pc.equal(changes["db"], db), pc.equal(changes["table"], name))
        if not pc.any(mine).as_py():
            return set()
        found: set[str] = set()
        columns = ("op", "primary_key", "before", "tx_id", "ddl")
        kept = changes.filter(mine).select([c for c in columns if c in changes.schema.names])
        for row in kept.to_pylist():
            source, _, number = (row["tx_id"] or "").rpartition(":")
            if self._known.has(source, int(number)):
                continue
            key = row["primary_key"]
            if row["op"] not in ("c", "u", "d") or row.get("ddl") or key is None:
                raise Outdated
            if row["op"] == "u" and _moved(key, row["before"]):
                raise Outdated
            found.add(key)
        return found

    def read(self) -> Iterator[pa.RecordBatch]:
        connection, table = self._connection, self._table
        if connection is None or table is None:
            return
        decoder = mysql_rows.RowDecoder(table.columns, table.key, self._tables.wide)
        head = (len(table.fields) + 7) // 8
        make = self._tables.copied_rows.of(table.db, table.table)
        sql = chunks.select(table, self._chunk.after, self._chunk.upto)
        try:
            for images in connection.images(sql, table.operations, head):
                images.data[:head] = 255  # every column is there
                made = decoder.rows(images.data, [head], [images.used], mysql_rows.INSERT)
                yield make(made.key, made.after)
        except SourceError as error:
            if number_of(error) in (*_CHANGED, *_GONE, *_LOCKED):
                raise Outdated from None
            raise

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._tables.give(connection)


def _definition(shown: list[tuple[Any, ...]]) -> str:
    """All that is to be known of a table's columns and keys, as one text."""
    return re.sub(r" AUTO_INCREMENT=\d+", "", str(shown[0][1]))


@contextmanager
def suppress_gone(name: str) -> Iterator[None]:
    """For a table that was dropped or renamed since the copy began: the log tells of that."""
    try:
        yield
    except SourceError as error:
        if number_of(error) not in _GONE:
            raise
        logger.warning("snapshot: table %s is gone: nothing of it is copied", name)


def number_of(error: SourceError) -> int:
    """The server's number of an error, 0 for none."""
    found = re.search(r"\((\d{4})\)$", str(error))
    return int(found[1]) if found else 0


def _moved(key: str, before: str | None) -> bool:
    """Whether an update has changed the key; told by the texts of the values."""
    if before is None:
        return True
    old = json.loads(before, parse_int=str, parse_float=str)
    new = json.loads(key, parse_int=str, parse_float=str)
    return Counter(map(str, new)) != Counter(n for n in new if n in old and old[n] == new[n])
