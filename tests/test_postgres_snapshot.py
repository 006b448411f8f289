"""A copy of tables in the log of a real PostgreSQL, while others write to them."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from dfc_runtime import ids
from dfc_runtime.sources import PostgresSource, Snapshot
from dfc_runtime.sources.log import SourceError
from dfc_runtime.sources.postgres_copy import with_snapshot
from dfc_runtime.sources.postgres_retention import preflight
from dfc_runtime.sources.postgres_visible import Visible
from dfc_runtime.sources.settings import ReaderSettings
from dfc_runtime.sources.snapshot import SnapshotLog
from dfc_runtime.sources.snapshot_events import CopiedRows
from dfc_runtime.storage import Storage

from .mysql_logs import wait_for
from .postgres_logs import Shop, drain, shop
from .services import Postgres
from .snapshots import Sink, Writing, copied, opened, through


@pytest.fixture
def db(postgres_server: Postgres) -> Iterator[Shop]:
    with shop(postgres_server) as made:
        yield made


def snapshot(
    db: Shop,
    *tables: str,
    storage: Path | None = None,
    mode: str = "initial",
    size: int = 50,
    within: bool = True,
    columns: str = "",
    **more: Any,
) -> SnapshotLog:
    copy = Snapshot(mode=mode, chunk_size=size, intra_table_parallel=within, max_parallel_chunks=2)
    source: PostgresSource = db.source(
        tables=tuple(f"public.{table}" for table in tables or ("*",)), snapshot=copy, **more
    )
    settings = ReaderSettings(
        pipeline="p" if storage else "",
        id="shop",
        storage=Storage("sqlite", str(storage)) if storage else None,
        **({"columns": tuple(columns.split())} if columns else {}),
    )
    return with_snapshot(source, copy, settings)


KINDS = {
    "numbers": ("id int PRIMARY KEY, v int", ""),
    "names": ('id text COLLATE "und-x-icu" PRIMARY KEY, v int', "ALTER TABLE names REPLICA IDENTITY FULL"),
    "pairs": ("a varchar(9), b smallint, v int, PRIMARY KEY (b, a)", ""),
    "moments": ("v int, id timestamptz(3) PRIMARY KEY", ""),
    "parts": (
        "id bigint PRIMARY KEY, v int) PARTITION BY RANGE (id",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (400);"
        "CREATE TABLE parts_2 (v int, id bigint NOT NULL);"
        "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (400) TO (MAXVALUE)",
    ),
    'Odd "name".x': (
        'id uuid PRIMARY KEY, v int, "Twice %s" int GENERATED ALWAYS AS (v % 1000 * 2) STORED',
        "",
    ),
    "bags": ("id int, v int", "ALTER TABLE bags REPLICA IDENTITY FULL"),
}  # fmt: skip


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def values_of(kind: str, number: int) -> dict[str, Any]:
    """A key by its number; not in the order of the key."""
    word = "".join("aäBzÉ'"[int(digit) % 6] for digit in str(number))
    match kind:
        case "names":
            return {"id": f"{word}{number}"}
        case "pairs":
            return {"a": word[:5], "b": number % 7}
        case "moments":
            return {
                "id": f"2024-01-{1 + number % 28:02d} 00:{number % 60:02d}:01.{number % 1000:03d}Z"
            }
        case 'Odd "name".x':
            return {"id": f"{number * 7919 % 65536:08x}-0000-1000-8000-{number:012x}"}
    return {"id": number * 3}


def fill(db: Shop, kind: str, count: int) -> None:
    columns, then = KINDS[kind]
    db.execute(f"CREATE TABLE {quoted(kind)} ({columns})")
    if then:
        db.execute(then)
    rows = {tuple(values_of(kind, n).values()): n for n in range(count)}
    names = ", ".join(values_of(kind, 0))
    marks = ", ".join(["%s"] * (1 + len(values_of(kind, 0))))
    with db.connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {quoted(kind)} ({names}, v) VALUES ({marks})",  # type: ignore[arg-type]
            [(*key, n) for key, n in rows.items()],
        )


class Changes(Writing):
    """Inserts, updates, deletes and moves of keys; another one of them may be in the way."""

    def __init__(self, db: Shop, seed: int, count: int, kinds: tuple[str, ...]) -> None:
        super().__init__(seed)
        self.connection = psycopg.connect(db.dsn, autocommit=True)
        # Transactions that are visible before they are on the disk.
        self.connection.execute(f"SET synchronous_commit = {'off' if seed % 2 else 'on'}")  # type: ignore[call-overload]
        self.count, self.kinds = count, kinds

    def transaction(self, changes: int) -> None:
        try:
            with self.connection.transaction():
                for number in range(changes):
                    # Every second one in a transaction inside, with an id of its own.
                    with self.connection.transaction() if number % 2 else _nothing():
                        self.change()
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            pass

    def change(self) -> None:
        kind = self.random.choice(self.kinds)
        table = quoted(kind)
        key = values_of(kind, self.random.randrange(2 * self.count))
        other = values_of(kind, self.random.randrange(2 * self.count))
        where = " AND ".join(f"{name} = %s" for name in key)
        number = self.random.randrange(10**9)
        match self.random.randrange(4):
            case 0:
                marks = ", ".join(["%s"] * len(key))
                sql = f"INSERT INTO {table} ({', '.join(key)}, v) VALUES ({marks}, %s) ON CONFLICT DO NOTHING"
                given = (*key.values(), number)
            case 1:
                sql, given = f"UPDATE {table} SET v = %s WHERE {where}", (number, *key.values())
            case 2:
                sql, given = f"DELETE FROM {table} WHERE {where}", tuple(key.values())
            case _:
                sets = ", ".join(f"{name} = %s" for name in other)
                sql = f"UPDATE {table} SET {sets} WHERE {where}"
                given = (*other.values(), *key.values())
        self.connection.execute(sql, given)  # type: ignore[call-overload]


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def truth(db: Shop, kind: str) -> Counter[str]:
    """The table as another client shows it, in the form that events have."""
    names = {"moments": "v id", "pairs": "a b v"}.get(kind, "id v").split()
    shown = {
        "moments": """v, to_char(id AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')""",
        'Odd "name".x': "id::text, v",
    }.get(kind, ", ".join(names))
    return Counter(
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, separators=(",", ":"))
        for row in db.execute(f"SELECT {shown} FROM {quoted(kind)}")
    )


def assert_same(db: Shop, sink: Sink, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        rows = +sink.bags[kind] if kind in sink.bags else Counter(sink.rows[kind].values())
        assert rows == truth(db, kind), kind


def writers(db: Shop, seed: int, kinds: tuple[str, ...]) -> list[Changes]:
    made = [Changes(db, 2 * seed + n, 300, kinds) for n in range(2)]
    for one in made:
        one.start()
    return made


@pytest.mark.parametrize(("seed", "size"), [(1, 7), (2, 60), (3, 1000)])
def test_the_copy_and_the_changes_give_the_table(db: Shop, seed: int, size: int) -> None:
    kinds = tuple(KINDS)
    for kind in kinds:
        fill(db, kind, 300)
    sink, changes = Sink(("bags",)), writers(db, seed, kinds)
    with opened(snapshot(db, size=size)) as log:
        while not log.copied():
            sink.take(log.read(0.2))
        for one in changes:
            one.end()
        for found in through(log):
            sink.take(found)
    assert sum(one.done for one in changes) > 20, "there was something to go wrong"
    assert_same(db, sink, kinds)
    assert set(sink.copied.values()) == {1}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_copy_that_is_cut_off_again_and_again_gives_the_table(
    db: Shop, seed: int, tmp_path: Path
) -> None:
    kinds, dice = tuple(KINDS), random.Random(seed)
    for kind in kinds:
        fill(db, kind, 300)
    sink, changes = Sink(("bags",)), writers(db, seed, kinds)
    for _ in range(6):
        log = snapshot(db, size=dice.choice((20, 70)), storage=tmp_path / "state.db")
        with opened(log, sink.position):
            for _ in range(dice.randrange(40)):
                sink.take(log.read(0.05))
                log.durable(sink.position) if sink.position else None
        sink.open = []
    for one in changes:
        one.end()
    with opened(snapshot(db, storage=tmp_path / "state.db"), sink.position) as log:
        for found in through(log):
            sink.take(found)
    assert_same(db, sink, kinds)
    assert set(sink.copied.values()) == {1}


def test_what_is_in_the_log_and_not_visible_yet_is_not_copied_over(
    db: Shop, tmp_path: Path
) -> None:
    """A commit that waits for a standby: sent long before anybody sees it in the table."""
    db.execute("CREATE TABLE numbers (id int PRIMARY KEY, v int)")
    db.execute("INSERT INTO numbers SELECT i, 0 FROM generate_series(1, 20) i")
    admin = psycopg.connect(db.server.dsn, autocommit=True)
    sink = Sink()

    def write() -> None:
        with db.other() as other:
            other.execute("UPDATE numbers SET v = 1 WHERE id = 7")

    def waiting() -> Any:
        found = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = %s",
            (db.name,),
        ).fetchall()
        return [pid for (pid,) in found]

    def release() -> None:
        for pid in waiting():
            admin.execute("SELECT pg_cancel_backend(%s)", (pid,))

    writer, timer = threading.Thread(target=write), threading.Timer(1.5, release)
    with opened(snapshot(db, size=5, within=False)) as log:
        try:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            admin.execute("SELECT pg_reload_conf()")
            wait_for(lambda: db.execute("SHOW synchronous_standby_names") == [("nobody",)])
            writer.start()
            wait_for(waiting)
            timer.start()
            while not log.copied():
                sink.take(log.read(0.05))
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
            timer.join()
            writer.join()
            admin.close()
        for found in through(log):
            sink.take(found)
    assert Counter(sink.rows["numbers"].values()) == truth(db, "numbers")


def test_a_copied_row_is_byte_for_byte_what_the_log_makes_of_it(db: Shop) -> None:
    db.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'sö')",
        "CREATE DOMAIN price AS numeric(9,2)",
        """CREATE TABLE kinds (b bytea, k text, id int, PRIMARY KEY (id, k), n numeric, p price,
           f real, d double precision, j json, jb jsonb, t text, ts timestamp, tz timestamptz,
           da date, m mood, a int[], ta text[][], u uuid, r int4range, ok boolean, i interval,
           "Odd ""%s" money, inet inet, g int GENERATED ALWAYS AS (id * 2) STORED)""",
    )
    with db.opened(tables=("public.kinds",)) as log:
        db.execute(
            r"""INSERT INTO kinds VALUES ('\x00ff5c6e', E'a\t"\\''', 1, 'NaN', 1.5, 1.1, 'infinity',
                '{"a" : [1, 2.50]}', '{"a": null}', repeat('long ä', 40000), '2024-02-29 12:00:00.5',
                '2024-02-29 12:00:00.123456+02', '0044-03-15 BC', 'sö', '{1,NULL,3}',
                '{{a,"b,"},{NULL,"\""}}', '123e4567-e89b-12d3-a456-426655440000', '[1,5)', true,
                '1 year 2 days 03:00:01.5', '12.50', '::1/64')""",
            "INSERT INTO kinds (id, k) VALUES (2, '')",
            "INSERT INTO kinds (id, k, t) VALUES (3, 'ü', '\\N')",
        )
        told = [row for batch in drain(log) for row in batch.to_pylist()]
    rows = copied(snapshot(db, "kinds", size=2))
    rows = [row for row in rows if row["op"] == "r"]
    assert len(rows) == len(told) == 3
    for one, row in zip(told, rows, strict=True):
        for name in ("after", "primary_key", "db", "schema", "table"):
            assert row[name] == one[name], name
    assert "g" not in json.loads(rows[0]["after"]) and len(rows[0]["after"]) > 240_000


def test_keys_of_any_type_are_compared_by_the_server(db: Shop) -> None:
    """Chunks of one row each: whatever the type of the key, none is left out or comes twice."""
    keys = {
        "numeric": ["-1.5", "0", "1.0000000001", "NaN"],
        "real": ["-0.1", "0.1", "1.1", "infinity"],
        "float8": ["0.1", "0.30000000000000004", "-1e300"],
        'text COLLATE "und-x-icu"': ["", "a", "B", "ß", "ü", "z'\"\\", "😀", "%s"],
        "bytea": ["", "\\x00", "\\xff", "a'"],
        "char(4)": ["a", "b  c"],
        "date": ["0044-03-15 BC", "2024-01-01", "infinity"],
        "timestamp": ["2024-03-31 01:30:00.000001", "0044-03-15 BC"],
        "interval": ["1 mon", "31 days", "-1 sec"],
        "boolean": ["t", "f"],
        "inet": ["::1", "10.0.0.0/8", "10.0.0.1"],
        "mood": ["z", "a", "m"],
        "int[]": ["{1,2}", "{1}", "{}"],
        "jsonb": ['{"a": 1}', "[]", "null"],
    }
    db.execute("CREATE TYPE mood AS ENUM ('z', 'a', 'm')")
    wanted: Counter[tuple[str, int]] = Counter()
    for number, (kind, given) in enumerate(keys.items()):
        name = f"k{number}"
        db.execute(f"CREATE TABLE {name} (o int, k {kind}, n int, PRIMARY KEY (o, k))")
        for n, value in enumerate(given):
            cast = kind.partition(" ")[0]
            db.connection.execute(
                f"INSERT INTO {name} SELECT o, %s::text::{cast}, %s FROM generate_series(1, 2) o",  # type: ignore[arg-type]
                (value, n),
            )
            wanted[name, n] = 2
    rows = copied(snapshot(db, size=1))
    assert Counter((row["table"], json.loads(row["after"])["n"]) for row in rows) == wanted


def test_a_table_that_is_altered_or_emptied_or_dropped_meanwhile_is_no_failure(db: Shop) -> None:
    for kind in ("numbers", "names", "moments", "pairs", "bags"):
        fill(db, kind, 200)
    steps = {
        3: ("ALTER TABLE numbers ADD COLUMN more int DEFAULT 5", "UPDATE numbers SET v = v + 1"),
        5: ("TRUNCATE moments", "INSERT INTO moments VALUES (1, '2024-01-01')"),
        6: ("DROP TABLE names", "ALTER TABLE pairs ALTER COLUMN v TYPE bigint"),
        8: ("ALTER TABLE numbers DROP COLUMN more", "UPDATE numbers SET v = v + 1 WHERE id > 90"),
        9: ("VACUUM FULL pairs", "UPDATE pairs SET v = 1 WHERE b = 3"),
    }
    sink, asked = Sink(("bags",)), 0
    with opened(snapshot(db, size=10, within=False)) as log:
        for count, found in enumerate(through(log)):
            sink.take(found)
            asked += count in steps and not log.copied()
            db.execute(*steps.get(count, ()))
    assert asked == len(steps), "all of it came in the middle"
    for kind in ("moments", "pairs"):
        assert Counter(sink.rows[kind].values()) == truth(db, kind)
    assert +sink.bags["bags"] == truth(db, "bags")
    told = {json.loads(text)["id"]: json.loads(text)["v"] for text in sink.rows["numbers"].values()}
    assert told == dict(db.execute("SELECT id, v FROM numbers"))


def test_a_key_that_changes_meanwhile_stops_the_copy(db: Shop) -> None:
    fill(db, "numbers", 100)
    with (
        opened(snapshot(db, size=10, within=False)) as log,
        pytest.raises(SourceError, match=r"the key of table public.numbers has changed"),
    ):
        log.read(0.2)
        db.execute("ALTER TABLE numbers DROP CONSTRAINT numbers_pkey, ADD PRIMARY KEY (v)")
        for _ in through(log):
            pass


def test_a_publication_of_some_rows_and_columns_is_copied_as_such(db: Shop) -> None:
    if db.connection.info.server_version < 150000:
        pytest.skip("publications of PostgreSQL 14 have whole tables")
    fill(db, "numbers", 30)
    fill(db, "parts", 30)
    db.execute("ALTER TABLE numbers ADD COLUMN secret text DEFAULT 'x'")
    db.execute(
        f"CREATE PUBLICATION {db.name} FOR TABLE numbers (v, id) WHERE (id % 2 = 0 OR id = 3), parts"
        " WITH (publish_via_partition_root = true)",
        f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')",
    )
    rows = copied(snapshot(db, "numbers", "parts", size=4, manage=False))
    numbers = [json.loads(row["after"]) for row in rows if row["table"] == "numbers"]
    assert [row["id"] for row in numbers] == [
        id for id in range(0, 90, 3) if id % 2 == 0 or id == 3
    ]
    assert all(set(row) == {"id", "v"} for row in numbers)
    assert sum(row["table"] == "parts" for row in rows) == 30


def test_initial_copies_once_and_always_at_every_start(db: Shop, tmp_path: Path) -> None:
    fill(db, "numbers", 30)

    def run(mode: str, start: str) -> tuple[str, list[dict[str, Any]]]:
        with opened(snapshot(db, mode=mode, storage=tmp_path / "a.db"), start) as log:
            found = [row for got in through(log) for b in got for row in b.to_pylist()]
        return (found[-1]["position"] if found else start), found

    position, first = run("initial", "")
    assert [row["op"] for row in first] == ["r"] * 30
    assert run("initial", position) == (position, [])
    position, second = run("always", position)
    assert [row["op"] for row in second] == ["r"] * 30
    assert [r["after"] for r in first] == [r["after"] for r in second]
    assert not {r["event_id"] for r in first} & {r["event_id"] for r in second}, "another copy"


def test_copied_rows_are_marked_and_have_ids_that_stay(db: Shop) -> None:
    db.execute("CREATE TABLE pairs (a text, b int, PRIMARY KEY (a, b))")
    db.execute("INSERT INTO pairs VALUES ('x', 1), ('y', 2)")
    first, again = copied(snapshot(db, "pairs")), copied(snapshot(db, "pairs"))
    source = json.loads(first[0]["source"])
    assert source["snapshot"] == "true" and "lsn" not in source
    assert (source["db"], source["schema"], source["table"]) == (db.name, "public", "pairs")
    assert [row["event_id"] for row in first] == [row["event_id"] for row in again]
    assert len({row["event_id"] for row in first}) == 2
    assert [row["tx_end"] for row in first] == [False, True]
    assert all(row["before"] is None and row["transaction"] is None for row in first)


def test_connections_of_the_copy_end_with_it(db: Shop) -> None:
    fill(db, "numbers", 200)

    def count() -> int:
        (found,) = db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'dfc'"
        )
        return int(found[0])

    with opened(snapshot(db, size=10)) as log:
        for _ in range(3):
            log.read(0.05)
        assert count() > 2
        for _ in through(log):
            pass
        wait_for(lambda: count() == 2)  # the stream, and the one beside it
    with opened(snapshot(db, size=10)) as log:
        log.read(0.05)  # ended in the middle
    wait_for(lambda: count() == 0)


def test_transactions_are_told_apart_by_ids_that_wrap() -> None:
    visible = Visible.parse("4294967290:4294967300:4294967291,4294967297")
    assert visible.has(4294967289) and visible.has(4294967290)
    assert not visible.has(4294967291)
    assert visible.has(0) and not visible.has(1) and visible.has(3)
    assert not visible.has(4) and not visible.has(100)
    assert Visible.parse("10:10:").has(9)


@pytest.mark.parametrize(
    "values",
    [[1, -5, 2**63], ["a", "", 'q"\\', "ü\n"], [True, None, 1.5], [[1, "x"], {"a": 1}], ["x", 1]],
)
def test_ids_of_many_rows_are_those_of_each(values: list[Any]) -> None:
    def texts(value: Any) -> list[str]:
        parsed = json.loads(json.dumps(value), parse_int=str, parse_float=str)
        return [parsed if isinstance(parsed, str) else json.dumps(parsed)]

    def row(**key: Any) -> str:
        return json.dumps(key, ensure_ascii=False, separators=(",", ":"))

    alone = pa.array([row(**{'i"d': value}) for value in values])
    pairs = pa.array([row(a=value, b="}") for value in values])
    rows = CopiedRows(ReaderSettings(), "postgresql", 3)

    def each(*keys: list[str]) -> list[str]:
        return [ids.snapshot_row(3, "d", "t", key) for key in keys]

    assert rows._ids("d", "t", alone).to_pylist() == each(*map(texts, values))
    assert rows._ids("d", "t", pairs).to_pylist() == each(*([*texts(v), "}"] for v in values))
    assert rows._ids("d", "t", alone.slice(1)).to_pylist() == each(*map(texts, values[1:]))


@pytest.mark.parametrize(
    ("limit", "size", "said"),
    [(-1, 10**12, ""), (100, 20 << 20, ""), (100, 25 << 20, "50 %"), (100, 40 << 20, "HIGH RISK")],
)
def test_a_slot_that_may_hold_too_little_is_told_before(
    limit: int, size: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    preflight(limit, size, "shop")
    assert (said in caplog.text) if said else not caplog.text
    assert ("HIGH" in said) == ("HIGH" in caplog.text)
