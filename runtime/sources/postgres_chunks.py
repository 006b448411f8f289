"""A table of PostgreSQL read in chunks, as one snapshot has it.

Chunks are ranges of the primary key, or of pages where there is none. COPY gives the rows of one as text, and
the decoder of the log makes columns of them: a row has the same bytes as if it were streamed. Whoever reads
needs a connection that is inside a snapshot; those that enter the same one see the same rows.

What a key says about a chunk's ends has to outlive the process, so it is JSON: the text of each column of the
primary key, or the partition and the number of a page.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import pq, sql
from psycopg.pq.abc import PGconn

from ..kernels.postgres_messages import Relation, RelationColumn
from ..kernels.postgres_rows import TupleDecoder
from .log import SourceError, TransientError
from .postgres_address import as_stored
from .postgres_keys import beyond, primary_key
from .postgres_types import Types, types_query
from .snapshot import Key, Outdated

Connection = psycopg.Connection[Any]

PIECE = 4 << 20  # bytes of COPY that are decoded at once; a row that is longer is one piece
_LONGEST_WAIT = 600.0  # seconds without a byte from the server
_PAGES_BY_RANGE = 140000  # server version from which a range of pages is read without the others
# Rows must come in the same order each time they are read: not from several workers, and not from where
# another scan happens to be.
IN_ORDER = "SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL synchronize_seqscans = off"
SCHEMA = pa.schema([("key", pa.string()), ("after", pa.string())])


def enter(connection: Connection, snapshot: str) -> None:
    """Begins the transaction that sees what the snapshot does; its end is the caller's."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    connection.execute(IN_ORDER)


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: int
    modifier: int
    generated: bool


_Part = tuple[int, sql.Identifier]  # a table that rows stand in


class ChunkedTable:
    """A table as a snapshot describes it; for as many connections inside that snapshot as there are.

    columns   names of those that events have; all but generated ones when it is None, as a publication
              without a list of columns has it
    generated whether those may be generated ones; without, such are left out
    rows      the condition in SQL for rows that events have; "" for all of them
    wide      as for TupleDecoder
    """

    def __init__(
        self,
        connection: Connection,
        oid: int,
        columns: Sequence[str] | None = None,
        rows: str = "",
        *,
        generated: bool = True,
        wide: bool = False,
        way: str = "",
    ) -> None:
        self.oid = oid
        self._rows = sql.SQL("({})").format(sql.SQL(rows)) if rows else None
        row = connection.execute(
            "SELECT n.nspname, c.relname, c.relkind::pg_catalog.text FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
            (oid,),
        ).fetchone()
        if row is None:
            raise Outdated(f"there is no table with the OID {oid} in the snapshot")
        self.schema, self.name, kind = row
        self._partitioned = kind == "p"
        found = _columns(connection, oid)
        wanted = [c.name for c in found if not c.generated] if columns is None else list(columns)
        by_name = {column.name: column for column in found}
        if lacking := [name for name in wanted if name not in by_name]:
            raise SourceError(f"table {self.shown} has no column {', '.join(lacking)}")
        if not generated:
            wanted = [name for name in wanted if not by_name[name].generated]
        self._columns = [column for column in found if column.name in set(wanted)]
        self.key = tuple(primary_key(connection, oid))
        self._decoder = self._make_decoder(connection, wide, way)

    def _make_decoder(self, connection: Connection, wide: bool, way: str) -> TupleDecoder:
        names = [column.name for column in self._columns]
        described = tuple(RelationColumn(c.name, c.type, c.modifier, False) for c in self._columns)
        relation = Relation(self.oid, self.schema, self.name, "d", described)
        types = Types()
        query: Any = types_query(types.missing(column.type for column in described))
        types.load(text for (text,) in connection.execute(query))
        keyed = all(column.name in names for column in self.key)
        places = [names.index(column.name) for column in self.key] if keyed else []
        want = ("after", "key")
        return TupleDecoder(types.columns(relation), places, wide=wide, want=want, way=way)

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    def rows(self, connection: Connection) -> int:
        """About how many rows there are, as the server's statistics have it."""
        total = 0
        for part, _ in self._parts(connection):
            pages, by_page = _density(connection, part)
            total += round(pages * by_page)
        return total

    def next(self, connection: Connection, after: Key | None, size: int) -> tuple[Key | None, bool]:
        """The key that ends a chunk of about so many rows, and whether it is the last one.

        The last chunk is open at its end: the snapshot has no row behind it.
        """
        if self.key:
            return self._next_key(connection, after, size)
        return self._next_page(connection, after, size)

    def read(
        self, connection: Connection, after: Key | None, upto: Key | None, piece: int = PIECE
    ) -> Iterator[pa.RecordBatch]:
        """The rows behind `after`, up to and with `upto`, in an order that stays; columns `key`, `after`.

        Raises Outdated when the table was rewritten since the snapshot, which then shows no row of it.
        Whoever stops before the end has lost the connection's transaction with it.
        """
        buffer = bytearray()
        parts = self._parts(connection)
        self._lock(connection, parts)
        queries = [query.as_bytes(connection) for query in self._queries(parts, after, upto)]
        with as_stored(connection):
            for query in queries:
                for _ in _copied(connection.pgconn, query, buffer, piece):
                    decoded, used = self._decoder.copied(bytes(buffer))
                    del buffer[:used]
                    if len(decoded.after or ()):
                        arrays = [decoded.key, decoded.after]
                        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
                if buffer:
                    raise SourceError(f"COPY of table {self.shown} ended in the middle of a row")

    # --- ranges ------------------------------------------------------------------------------

    def _next_key(
        self, connection: Connection, after: Key | None, size: int
    ) -> tuple[Key | None, bool]:
        names = [sql.Identifier(column.name) for column in self.key]
        query = sql.SQL("SELECT {} FROM {} t{} ORDER BY {} OFFSET {} LIMIT 2").format(
            sql.SQL(", ").join(sql.SQL("t.{}::pg_catalog.text").format(name) for name in names),
            self._from(),
            self._where(after, None),
            self._order(),
            sql.Literal(max(size, 1) - 1),
        )
        found = connection.execute(query).fetchall()
        return (list(found[0]), False) if len(found) == 2 else (None, True)

    def _next_page(
        self, connection: Connection, after: Key | None, size: int
    ) -> tuple[Key | None, bool]:
        parts = [oid for oid, _ in self._parts(connection)]
        place = 0
        done = 0
        if after is not None:
            if after[0] not in parts:
                raise Outdated(f"table {self.shown} has other partitions than before")
            place, done = parts.index(after[0]), after[1]
        while place < len(parts):
            pages, by_page = _density(connection, parts[place])
            ranged = connection.info.server_version >= _PAGES_BY_RANGE
            step = max(int(size / max(by_page, 1e-9)), 1) if ranged else pages
            if done + step < pages:
                return [parts[place], done + step], False
            place, done = place + 1, 0
            if place < len(parts):
                return [parts[place], 0], False
        return None, True

    def _queries(
        self, parts: list[_Part], after: Key | None, upto: Key | None
    ) -> Iterator[sql.Composed]:
        names = sql.SQL(", ").join(
            sql.SQL("t.{}").format(sql.Identifier(c.name)) for c in self._columns
        )
        if self.key:
            yield sql.SQL("COPY (SELECT {} FROM {} t{} ORDER BY {}) TO STDOUT").format(
                names, self._from(), self._where(after, upto), self._order()
            )
            return
        oids = [oid for oid, _ in parts]
        first = oids.index(after[0]) if after is not None else 0
        last = oids.index(upto[0]) if upto is not None else len(parts) - 1
        for place in range(first, last + 1):
            low = after[1] if after is not None and place == first else 0
            conditions: list[sql.Composable] = [self._rows] if self._rows else []
            if low:
                conditions.append(sql.SQL("t.ctid >= {}").format(_page(low)))
            if upto is not None and place == last:
                if upto[1] == 0:
                    continue
                conditions.append(sql.SQL("t.ctid < {}").format(_page(upto[1])))
            where = sql.SQL(" WHERE ") if conditions else sql.SQL("")
            yield sql.SQL("COPY (SELECT {} FROM ONLY {} t{}{}) TO STDOUT").format(
                names,
                parts[place][1],
                where,
                sql.SQL(" AND ").join(conditions),
            )

    def _from(self) -> sql.Composable:
        # Tables that inherit are tables of their own; partitions are not.
        only = "" if self._partitioned else "ONLY "
        return sql.SQL(only) + sql.Identifier(self.schema, self.name)

    def _order(self) -> sql.Composable:
        return sql.SQL(", ").join(
            sql.SQL("t.{}").format(sql.Identifier(column.name)) for column in self.key
        )

    def _where(self, after: Key | None, upto: Key | None) -> sql.Composable:
        conditions: list[sql.Composable] = [self._rows] if self._rows else []
        for sign, ends in ((">", after), ("<=", upto)):
            if ends is not None:
                conditions.append(beyond(self.key, sign, ends))
        if not conditions:
            return sql.SQL("")
        return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)

    # --- what is stored ----------------------------------------------------------------------

    def _parts(self, connection: Connection) -> list[_Part]:
        """The tables that rows stand in: itself, or the partitions that have none themselves."""
        found = connection.execute(
            "SELECT c.oid::pg_catalog.int8, n.nspname, c.relname"
            " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind = 'r' AND (c.oid = %(oid)s OR c.oid IN"
            " (SELECT p.relid FROM pg_catalog.pg_partition_tree(%(oid)s) p WHERE p.isleaf))"
            " ORDER BY c.oid",
            {"oid": self.oid},
        )
        return [(oid, sql.Identifier(schema, name)) for oid, schema, name in found]

    def _lock(self, connection: Connection, parts: list[_Part]) -> None:
        """Keeps the table from being rewritten from now on, and finds out whether it was before.

        TRUNCATE and some forms of ALTER TABLE leave nothing for older snapshots to see, and VACUUM FULL
        moves rows to other pages. The catalog as the snapshot has it names another file then.
        """
        names = [self._from()] if self.key else [name for _, name in parts]
        for name in names:
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(name))
        moved = connection.execute(
            "SELECT c.relname FROM pg_catalog.pg_class c WHERE c.oid = ANY(%s)"
            " AND c.relfilenode IS DISTINCT FROM pg_catalog.pg_relation_filenode(c.oid)",
            ([oid for oid, _ in parts],),
        ).fetchall()
        if moved:
            raise Outdated(
                f"table {self.shown} was rewritten after the snapshot began (TRUNCATE, ALTER TABLE, VACUUM"
                " FULL or CLUSTER), and cannot be read as it was: it has to be copied anew"
            )


def _columns(connection: Connection, oid: int) -> list[_Column]:
    rows = connection.execute(
        "SELECT a.attname, a.atttypid::pg_catalog.int8, a.atttypmod, a.attgenerated <> ''"
        " FROM pg_catalog.pg_attribute a"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (oid,),
    )
    return [_Column(*row) for row in rows]


def _density(connection: Connection, oid: int) -> tuple[int, float]:
    """How many pages a table has now, and about how many rows each; 50 where nothing is known."""
    row = connection.execute(
        "SELECT pg_catalog.pg_relation_size(c.oid)"
        " / pg_catalog.current_setting('block_size')::pg_catalog.int8,"
        " c.reltuples / NULLIF(c.relpages, 0) FROM pg_catalog.pg_class c WHERE c.oid = %s",
        (oid,),
    ).fetchone()
    pages, by_page = row or (0, None)
    return int(pages or 0), (
        max(float(by_page), 0.01) if by_page is not None and by_page >= 0 else 50.0
    )


def _page(number: int) -> sql.Composable:
    return sql.SQL("{}::pg_catalog.tid").format(sql.Literal(f"({int(number)},0)"))


# --- COPY ------------------------------------------------------------------------------------


def _copied(pgconn: PGconn, query: bytes, buffer: bytearray, piece: int) -> Iterator[None]:
    """Adds what COPY gives to `buffer`, and stops each time that it has this size, and at the end.

    The server waits meanwhile. A row is an object of libpq for a moment; kept until there are many, they
    would cost four times as much.
    """
    begun = pgconn.exec_(query)
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(begun)
    take, over = pgconn.get_copy_data, False
    try:
        while not over:
            count, view = take(1)
            if count > 0:
                buffer += view
                if len(buffer) < piece:
                    continue
            elif count == 0:
                if not select.select([pgconn.socket], [], [], _LONGEST_WAIT)[0]:
                    raise TransientError(
                        f"COPY: nothing came from the server for {_LONGEST_WAIT:.0f} s"
                    )
                pgconn.consume_input()
                continue
            else:
                over = True
            if buffer:
                yield
        result = pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COMMAND_OK:
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
            raise TransientError("COPY ended early")
    finally:
        if not over and pgconn.status == pq.ConnStatus.OK:
            with suppress(psycopg.Error):  # of a query that was ended, or a connection that broke
                pgconn.get_cancel().cancel()
                while take(0)[0] > 0:
                    pass
        while pgconn.get_result() is not None:
            pass
