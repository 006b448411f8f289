"""Tables of PostgreSQL as a snapshot reads them: each chunk in a transaction of its own.

A chunk's place is the end of the log a moment after its transaction has taken its snapshot: everything that
the transaction sees stands before it. What stands before it and is not seen is told by transaction ids.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from .log import SourceError, TransientError, logger
from .postgres_address import Address, Connection, Denied
from .postgres_chunks import IN_ORDER, ChunkedTable
from .postgres_pool import Pool
from .postgres_position import parse
from .postgres_publication import Table, tables
from .postgres_retention import preflight
from .postgres_server import Server, head, settled
from .postgres_visible import Heard, Visible
from .snapshot import Chunk, Key, Outdated
from .snapshot_events import CopiedRows

_CHUNK_BYTES = 64 << 20  # what a chunk should not exceed by far, whatever chunk_size says
_VISIBLE_SECS = 30.0
_GENERATED = 180000  # server version from which a publication can have generated columns
_UNCHANGED = '{"_unchanged":true}'
# The lock first: what is looked at in the snapshot then is the table that is read.
_BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = '2s';"
    # Rather an error than rows that a policy hides.
    f" SET LOCAL statement_timeout = 0; SET LOCAL row_security = off; {IN_ORDER}; LOCK TABLE {{}} IN ACCESS SHARE MODE"
)
_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


@dataclass(frozen=True, slots=True)
class _Size:
    rows: int
    bytes: int


class PostgresTables:
    """The captured tables of a database.

    expect      the position of a place in the log, which somebody will wait for
    may_write   whether messages may be written to the log
    """

    def __init__(
        self,
        address: Address,
        server: Server,
        publication: str,
        patterns: tuple[str, ...],
        heard: Heard,
        expect: Callable[[int], str],
        rows: CopiedRows,
        *,
        source_id: str,
        wide: bool,
        may_write: bool,
    ) -> None:
        if server.standby:
            raise SourceError(
                f"postgres {address} is a standby, of which snapshots are not built: read the primary, or "
                "set `snapshot.mode: never`"
            )
        self.address = address
        self.server = server
        self.copied_rows = rows
        self.pool = Pool(address)
        self._publication = publication
        self._patterns = patterns
        self._heard = heard
        self._expect = expect
        self._source_id = source_id
        self._wide = wide
        self._may_write = may_write
        self._lock = threading.Lock()
        self._described: dict[str, ChunkedTable] = {}  # for planning, where an old one does no harm
        with self.pool.lent() as connection:
            found = tables(address, connection, publication, patterns)
            self._tables = {table.sql: table for table in found if table.logged and table.published}
            self._sizes = _sizes(connection, self._tables.values())
        heard.listen(self._visible_now)

    # --- Tables ------------------------------------------------------------------------------

    def captured(self) -> list[str]:
        with self.pool.lent() as connection:
            row = connection.execute(
                "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'"
            ).fetchone()
        size = sum(size.bytes for size in self._sizes.values())
        preflight(int(row[0]) if row else -1, size, self._source_id)
        for table in self._tables.values():
            if not table.has_key:
                logger.warning(
                    "snapshot: table %s has no primary key: it is read in one piece, and from its start "
                    "again after a crash",
                    table.shown,
                )
        return list(self._tables)

    def rows(self, table: str) -> int:
        return self._sizes[table].rows if table in self._sizes else 0

    def keyed(self, table: str) -> bool:
        with self.pool.lent() as connection:
            found = self._describe(connection, table)
        return found is None or bool(found.key)

    def next(self, table: str, after: Key | None, size: int) -> tuple[Key | None, bool]:
        known = self._sizes.get(table)
        if known is not None and known.rows:
            size = max(1, min(size, _CHUNK_BYTES // max(1, known.bytes // known.rows)))
        with self.pool.lent() as connection:
            found = self._describe(connection, table)
            if found is None or not found.key:
                # Rows without a key may move to where they would be met twice, so they are not cut.
                return None, True
            try:
                upto, last = found.next(connection, values(found, after), size)
            except (*_GONE, psycopg.errors.UndefinedColumn):
                found = None
            if found is not None:
                return _named(found, upto), last
        with self._lock:
            self._described.pop(table, None)
        return self.next(table, after, size)

    def view(self, chunk: Chunk) -> PostgresView:
        until = time.monotonic() + _VISIBLE_SECS
        connection = self.pool.take()
        try:
            with self.address.guarded():
                visible = self._entered(connection, chunk.table)
                while self._heard.unseen(visible):
                    # Written to the log and sent, but not visible yet: it will be in a moment.
                    if time.monotonic() > until:
                        raise TransientError(
                            f"postgres {self.address}: transactions of its log are not visible after "
                            f"{_VISIBLE_SECS:.0f} s; does it wait for a synchronous standby?"
                        )
                    connection.rollback()
                    time.sleep(0.002)
                    visible = self._entered(connection, chunk.table)
            position = chunk.position
            if position:
                self._expect(parse(position).lsn)
            else:
                position = self._expect(self._end_of_log())
        except BaseException:
            self.pool.give(connection)
            raise
        return PostgresView(self, connection, chunk, position, visible)

    def close(self) -> None:
        self._heard.listen(None)
        self.pool.close()

    # --- views -------------------------------------------------------------------------------

    def _entered(self, connection: Connection, table: str) -> Visible:
        """Begins the transaction; a table that is gone is no table to lock."""
        try:
            connection.execute(_BEGIN.format(table))
        except _GONE:
            connection.rollback()
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        except psycopg.errors.LockNotAvailable:
            raise Outdated from None
        return _visible(connection)

    def _end_of_log(self) -> int:
        with self.pool.lent() as connection:
            if self._may_write:
                return settled(self.address, connection, self.server)
            return head(self.address, connection, self.server)

    def _visible_now(self) -> Visible:
        with self.pool.lent() as connection:
            return _visible(connection)

    def _describe(self, connection: Connection, name: str) -> ChunkedTable | None:
        with self._lock:
            found = self._described.get(name)
        if found is None:
            found = self.described(connection, name)
            if found is not None:
                with self._lock:
                    self._described[name] = found
        return found

    def described(self, connection: Connection, name: str) -> ChunkedTable | None:
        """A table as it is now, with what its publication has of it; None for one that is gone."""
        row = connection.execute(
            "SELECT c.oid::pg_catalog.int8, pg_catalog.to_jsonb(p)"
            " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " LEFT JOIN pg_catalog.pg_publication_tables p ON p.pubname = %s"
            "   AND p.schemaname = n.nspname AND p.tablename = c.relname"
            " WHERE c.oid = pg_catalog.to_regclass(%s)",
            (self._publication, name),
        ).fetchone()
        if row is None:
            logger.warning("snapshot: table %s is gone: nothing of it is copied", name)
            return None
        oid, told = row
        listed = (told or {}).get("attnames")  # from 15 on, as the condition for rows
        condition = (told or {}).get("rowfilter") or ""
        return ChunkedTable(
            connection,
            oid,
            listed,
            condition,
            generated=self.server.version >= _GENERATED,
            wide=self._wide,
        )


class PostgresView:
    """A chunk as one transaction sees it."""

    def __init__(
        self,
        tables: PostgresTables,
        connection: Connection,
        chunk: Chunk,
        position: str,
        visible: Visible,
    ) -> None:
        self._tables = tables
        self._connection: Connection | None = connection
        self._chunk = chunk
        self._visible = visible
        self._lock = threading.Lock()
        self._table = unquoted(chunk.table)
        self.position = position

    def missed(self, changes: pa.RecordBatch) -> set[str]:
        schema, name = self._table
        mine = pc.and_(pc.equal(changes["schema"], schema), pc.equal(changes["table"], name))
        if not pc.any(mine).as_py():
            return set()
        kept = changes.filter(mine)
        found: set[str] = set()
        unseen = [
            xid
            for xid in pc.unique(kept["tx_id"]).to_pylist()
            if xid is not None and not self._visible.has(int(xid))
        ]
        if not unseen:
            return found
        kept = kept.filter(pc.is_in(kept["tx_id"], pa.array(unseen, pa.string())))
        columns = ("op", "primary_key", "before", "after")
        for row in kept.select(columns).to_pylist():
            key = row["primary_key"]
            if row["op"] not in ("c", "u", "d") or key is None:
                raise Outdated
            if row["op"] == "u" and _moved(key, row["before"]):
                raise Outdated
            if _UNCHANGED in (row["after"] or ""):
                raise Outdated  # only a copy has the whole row
            found.add(key)
        return found

    def read(self) -> Iterator[pa.RecordBatch]:
        connection, tables = self._connection, self._tables
        if connection is None:
            return
        with tables.address.guarded():
            table = tables.described(connection, self._chunk.table)
            if table is None:
                return
            make = tables.copied_rows.of(
                tables.server.database, table.name, table.schema, self._chunk.again
            )
            after, upto = values(table, self._chunk.after), values(table, self._chunk.upto)
            try:
                for batch in table.read(connection, after, upto):
                    yield make(batch["key"] if table.key else None, batch["after"])
            except psycopg.errors.InsufficientPrivilege as error:
                raise Denied(
                    f"postgres {tables.address}: {error.diag.message_primary}; to copy {table.shown} the "
                    "login needs SELECT there, and BYPASSRLS where policies hide rows"
                ) from None

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._tables.pool.give(connection)


def unquoted(name: str) -> tuple[str, str]:
    """Schema and table of a name that Table.sql has made."""
    schema, table = re.findall(r'"((?:[^"]|"")*)"', name)
    return schema.replace('""', '"'), table.replace('""', '"')


def values(table: ChunkedTable, key: Key | None) -> Key | None:
    """A key without the names that it is kept with."""
    if key is None:
        return None
    if [name for name, _ in key] != [column.name for column in table.key]:
        raise SourceError(
            f"the key of table {table.shown} has changed while its rows were copied, so the copy cannot "
            "go on: start the pipeline under a new metadata.name"
        )
    return [value for _, value in key]


def _named(table: ChunkedTable, key: Key | None) -> Key | None:
    if key is None:
        return None
    return [[column.name, value] for column, value in zip(table.key, key, strict=True)]


def _visible(connection: Connection) -> Visible:
    row = connection.execute("SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text").fetchone()
    assert row is not None
    return Visible.parse(row[0])


def _sizes(connection: Connection, found: Any) -> dict[str, _Size]:
    """Rows and bytes of tables with their partitions, as the server's statistics have them."""
    by_oid: dict[int, Table] = {table.oid: table for table in found}
    rows = connection.execute(
        "SELECT t.oid, sum(p.rows)::pg_catalog.int8, sum(p.size)::pg_catalog.int8"
        " FROM pg_catalog.unnest(%s::pg_catalog.int8[]) t(oid) CROSS JOIN LATERAL ("
        "  SELECT pg_catalog.pg_table_size(c.oid) AS size,"
        "   pg_catalog.pg_relation_size(c.oid)"
        "    / pg_catalog.current_setting('block_size')::pg_catalog.int8"
        "    * CASE WHEN c.relpages > 0 AND c.reltuples >= 0"
        "      THEN c.reltuples / c.relpages ELSE 50 END AS rows"
        "  FROM pg_catalog.pg_class c WHERE c.relkind = 'r' AND (c.oid = t.oid OR c.oid IN"
        "   (SELECT l.relid FROM pg_catalog.pg_partition_tree(t.oid::pg_catalog.oid) l"
        "    WHERE l.isleaf))) p GROUP BY t.oid",
        (list(by_oid),),
    ).fetchall()
    return {by_oid[oid].sql: _Size(int(count), int(size)) for oid, count, size in rows}


def _moved(key: str, before: str | None) -> bool:
    """Whether an update has changed the key; a before image may hold all, the key alone or be none."""
    if before is None:
        return False
    old, new = (json.loads(text, parse_int=str, parse_float=str) for text in (before, key))
    return any(name not in old or old[name] != value for name, value in new.items())
