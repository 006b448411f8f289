"""Tables of a real PostgreSQL read in chunks inside an exported snapshot, while others write."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from dfc_runtime.sources.log import SourceError
from dfc_runtime.sources.postgres_chunks import ChunkedTable, enter
from dfc_runtime.sources.postgres_types import session_options
from dfc_runtime.sources.snapshot import Outdated

from .postgres_captures import WAYS, Capture, capture
from .services import Postgres


@pytest.fixture
def log(postgres_server: Postgres) -> Iterator[Capture]:
    with capture(postgres_server) as made:
        yield made


class Snapshot:
    """A snapshot that a session exports, and sessions that import it."""

    def __init__(self, server: Postgres, log: Capture) -> None:
        self._server, self._log = server, log
        self._open: list[psycopg.Connection[Any]] = []
        self._holder = self._connect()
        self._holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        self.name = self._holder.execute("SELECT pg_export_snapshot()").fetchone()[0]  # type: ignore[index]

    def _connect(self) -> psycopg.Connection[Any]:
        made = psycopg.connect(self._server.dsn, autocommit=True, options=session_options())
        self._open.append(made)
        return made

    def session(self) -> psycopg.Connection[Any]:
        made = self._connect()
        enter(made, self.name)
        return made

    def table(self, name: str, **more: Any) -> ChunkedTable:
        ((oid,),) = self._log.execute("SELECT %s::regclass::oid::int8", name)
        return ChunkedTable(self.session(), oid, **more)

    def close(self) -> None:
        for connection in self._open:
            connection.close()


@contextmanager
def exported(server: Postgres, log: Capture) -> Iterator[Snapshot]:
    made = Snapshot(server, log)
    try:
        yield made
    finally:
        made.close()


def chunks(table: ChunkedTable, session: Any, size: int) -> list[tuple[Any, Any]]:
    """The ends of all chunks, kept as JSON in between."""
    made, after = [], None
    for _ in range(10_000):
        upto, last = table.next(session, after, size)
        made.append((after, upto))
        if last:
            return made
        after = json.loads(json.dumps(upto))
    raise AssertionError("there is no last chunk")


def rows(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [text for batch in batches for text in batch.column("after").to_pylist()]


@pytest.mark.parametrize("kind", ["citext", "ltree"])
@pytest.mark.parametrize("key", ["id", "id, n", "n, id"])
def test_keys_of_types_of_extensions_are_compared_as_their_index_does(
    postgres_server: Postgres, log: Capture, kind: str, key: str
) -> None:
    log.execute(f"CREATE EXTENSION IF NOT EXISTS {kind} SCHEMA public")
    log.execute(f"CREATE TABLE t (id {kind}, n int, PRIMARY KEY ({key}))")
    log.execute(
        "INSERT INTO t SELECT (CASE WHEN i % 2 = 0 THEN 'key' ELSE 'KEY' END || i)::"
        f"{kind}, i % 3 FROM generate_series(1, 200) i"
    )
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t")
        ends = chunks(table, session, 16)
        found = [row for end in ends for row in rows(table.read(session, *end))]
    assert len(ends) == 13
    assert len(found) == len(set(found)) == 200


def test_chunks_by_key_hold_every_row_of_the_snapshot_once(
    postgres_server: Postgres, log: Capture
) -> None:
    log.execute('CREATE TABLE t (a text COLLATE "C", x jsonb, b numeric(6,2), PRIMARY KEY (b, a))')
    log.execute(
        "INSERT INTO t SELECT 'k'' %s' || i % 7, '{\"i\": 1}', i / 7 FROM generate_series(1, 1000) i"
    )
    expected = [a for (a,) in log.execute("SELECT to_json(t)->>'a' FROM t ORDER BY b, a")]
    with exported(postgres_server, log) as snapshot:
        session = snapshot.session()
        table = snapshot.table("t")
        log.execute("DELETE FROM t WHERE b > 3; INSERT INTO t VALUES ('later', '1', -5)")
        ends = chunks(table, session, 64)
        assert len(ends) == 16
        read, keys = [], []
        random.Random(1).shuffle(order := list(range(len(ends))))
        found: dict[int, list[str]] = {}
        for place in order:  # any order, on any session
            batches = list(table.read(snapshot.session(), *ends[place]))
            found[place] = rows(iter(batches))
            keys += [key for batch in batches for key in batch.column("key").to_pylist()]
        for place in range(len(ends)):
            read += found[place]
            assert len(found[place]) <= 64
        assert [json.loads(row)["a"] for row in read] == expected
        assert len(set(keys)) == 1000
        assert read[0] == '{"a":"k\' %s1","x":{"i":1},"b":"0.00"}'


@pytest.mark.postgres_14
def test_chunks_by_page_hold_every_row_of_a_table_without_a_key(
    postgres_server: Postgres, log: Capture
) -> None:
    log.execute("CREATE TABLE t (i int, x text); ALTER TABLE t REPLICA IDENTITY FULL")
    log.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i")
    log.execute("DELETE FROM t WHERE i % 3 = 0")
    log.connection.execute(f"ANALYZE {log.name}.t")  # type: ignore[arg-type]
    with exported(postgres_server, log) as snapshot:
        session = snapshot.session()
        table = snapshot.table("t")
        assert table.rows(session) == 3333 + 1
        log.execute("UPDATE t SET x = 'y'; INSERT INTO t SELECT 0 FROM generate_series(1, 5000)")
        ends = chunks(table, session, 300)
        assert len(ends) >= 10
        parts = [rows(table.read(session, *end)) for end in ends]
        read = [json.loads(row) for part in parts for row in part]
        assert [row["i"] for row in read] == [i for i in range(1, 5001) if i % 3]
        assert {row["x"] for row in read} == {"x" * 100}
        assert max(map(len, parts)) < 600
        assert [rows(table.read(session, *end)) for end in ends] == parts  # the same each time


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (i)"])
def test_partitions_are_read_as_one_table(
    postgres_server: Postgres, log: Capture, key: str
) -> None:
    log.execute(
        f"CREATE TABLE t (i int, x text{key}) PARTITION BY RANGE (i);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (400);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (400) TO (1000) PARTITION BY RANGE (i);"
        'CREATE TABLE "T {2}a" (x text, i int NOT NULL);'
        'ALTER TABLE t2 ATTACH PARTITION "T {2}a" FOR VALUES FROM (400) TO (700);'
        "CREATE TABLE t2b PARTITION OF t2 FOR VALUES FROM (700) TO (1000);"
        "INSERT INTO t SELECT i, 'x' || i FROM generate_series(0, 999) i"
    )
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t")
        ends = chunks(table, session, 150)
        read = [row for end in ends for row in rows(table.read(session, *end))]
        assert sorted(read) == sorted(f'{{"i":{i},"x":"x{i}"}}' for i in range(1000))


def test_tables_that_inherit_are_not_read_with_their_parent(
    postgres_server: Postgres, log: Capture
) -> None:
    log.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE child () INHERITS (t)")
    log.execute("INSERT INTO t VALUES (1); INSERT INTO child VALUES (2)")
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t")
        assert rows(table.read(session, None, None)) == ['{"i":1}']


@pytest.mark.parametrize("kind", [
    ("int8", "i * 1000000007::int8"), ("text", "md5(i::text)"), ("uuid", "md5(i::text)::uuid"),
    ("timestamptz", "'2024-01-01Z'::timestamptz + i * interval '0.000001 s'"), ("bytea", "decode(md5(i::text), 'hex')"),
    ("float8", "i / 7.0"), ("char(12)", "'a' || i"), ('"d {0}"', "i"), ("mood", "('m' || i % 2)::mood"), ("inet", "'10.0.0.0'::inet + i"),
    ("pair", "ROW(i, 'x' || i)::pair"), ("int4[]", "ARRAY[i, 1]"), ("bool", "i % 2 = 0"),
], ids=lambda kind: kind[0])  # fmt: skip
def test_keys_of_many_types(postgres_server: Postgres, log: Capture, kind: tuple[str, str]) -> None:
    log.execute('CREATE DOMAIN "d {0}" AS int; CREATE TYPE pair AS (a int, b text)')
    log.execute("CREATE TYPE mood AS ENUM ('m1', 'm0')")
    log.execute(f"CREATE TABLE t (k {kind[0]} PRIMARY KEY)")
    log.execute(f"INSERT INTO t SELECT DISTINCT {kind[1]} FROM generate_series(1, 50) i")
    ((count,),) = log.execute("SELECT count(*) FROM t")
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t")
        whole = rows(table.read(session, None, None))
        assert len(whole) == count
        for size in (1, 7, 50, 51):
            ends = chunks(table, session, size)
            assert len(ends) == -(-count // size)
            assert [row for end in ends for row in rows(table.read(session, *end))] == whole


@pytest.mark.parametrize("way", WAYS)
def test_a_row_is_the_same_in_the_log_and_in_the_snapshot(
    postgres_server: Postgres, log: Capture, way: str
) -> None:
    log.execute(
        "CREATE TABLE t (id int PRIMARY KEY, gone int, a text[], g int GENERATED ALWAYS AS (id) STORED)"
    )
    log.execute("ALTER TABLE t DROP gone")
    log.execute("INSERT INTO t VALUES (1, '{a,\"b\\\\c\\tx\",NULL}'), (2, NULL)")
    streamed = log.decoded("t", (0,), way=way)
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t", way=way)
        for piece in (1, 1 << 20):
            (batch,) = (
                pa.Table.from_batches(table.read(session, None, None, piece))
                .combine_chunks()
                .to_batches()
            )
            assert batch.column("after").to_pylist() == streamed.after.to_pylist()
            assert batch.column("key").to_pylist() == streamed.key.to_pylist()


def test_pieces_are_bounded_and_a_reader_may_stop_in_the_middle(
    postgres_server: Postgres, log: Capture
) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    log.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t")
        batches = table.read(session, None, None, 100_000)
        first = next(batches)
        assert 90 <= len(first) <= 110
        batches.close()
        assert session.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        session = snapshot.session()
        assert rows(table.read(session, ["19999"], None)) == [f'{{"id":20000,"x":"{"x" * 1000}"}}']


@pytest.mark.parametrize(
    "what", ["TRUNCATE t", "ALTER TABLE t ALTER i TYPE int8", "VACUUM FULL {}.t"]
)
@pytest.mark.parametrize("key", ["", " PRIMARY KEY"])
def test_a_table_that_was_rewritten_since_is_refused(
    postgres_server: Postgres, log: Capture, what: str, key: str
) -> None:
    """It would look empty, or have its rows elsewhere."""
    log.execute(f"CREATE TABLE t (i int{key}); INSERT INTO t VALUES (1)")
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t")
        if what.startswith("VACUUM"):
            log.connection.execute(what.format(log.name))  # type: ignore[arg-type]
        else:
            log.execute(what)
        with pytest.raises(Outdated, match="was rewritten"):
            list(table.read(session, None, None))


def test_an_error_in_the_middle_of_copy_is_told(postgres_server: Postgres, log: Capture) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    log.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t")
        batches = table.read(session, None, None, 50_000)
        next(batches)
        log.execute("SELECT pg_terminate_backend(%s)", session.info.backend_pid)
        with pytest.raises((SourceError, psycopg.OperationalError)):
            list(batches)


def test_columns_that_are_not_published_are_left_out(
    postgres_server: Postgres, log: Capture
) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, secret text, x int)")
    log.execute("INSERT INTO t VALUES (1, 's', 2)")
    with exported(postgres_server, log) as snapshot:
        session, table = snapshot.session(), snapshot.table("t", columns=["x", "id"])
        assert rows(table.read(session, None, None)) == ['{"id":1,"x":2}']
        with pytest.raises(SourceError, match="has no column nope"):
            snapshot.table("t", columns=["id", "nope"])
