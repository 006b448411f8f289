"""Events of the postgres source, from a real server."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dfc_runtime import ids
from dfc_runtime.sources import Snapshot, SourceError, postgres_large
from dfc_runtime.sources import postgres_log as log_module
from dfc_runtime.sources.postgres_copy import with_snapshot
from dfc_runtime.sources.settings import ReaderSettings

from .postgres_logs import Shop, _drop, drain, events, read, shop
from .services import Postgres
from .services.fixtures import Services

INSERT_ONE = "INSERT INTO orders VALUES (1)"
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, note text)"


@pytest.fixture
def db(postgres_server: Postgres) -> Iterator[Shop]:
    with shop(postgres_server, ORDERS) as made:
        yield made


def pick(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(event[name] for name in names) for event in found]


def test_changes_come_in_order_with_their_images_under_default_identity(db: Shop) -> None:
    with db.opened() as log:
        db.execute(
            "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
            "UPDATE orders SET note = 'c' WHERE id = 1",
            "UPDATE orders SET id = 3 WHERE id = 1",
            "DELETE FROM orders WHERE id = 2",
            "TRUNCATE orders",
        )
        got = read(log)
    assert pick(got, "op", "before", "after", "primary_key") == [
        ("c", None, {"id": 1, "note": "a"}, {"id": 1}),
        ("c", None, {"id": 2, "note": "b"}, {"id": 2}),
        ("u", None, {"id": 1, "note": "c"}, {"id": 1}),
        ("u", {"id": 1}, {"id": 3, "note": "c"}, {"id": 3}),
        ("d", {"id": 2}, None, {"id": 2}),
        ("t", None, None, None),
    ]
    assert [event["tx_end"] for event in got] == [False, True, True, True, True, True]
    assert got[-1]["ddl"] == {"sql": "TRUNCATE", "cascade": False, "restart_identity": False}
    assert [event["position"] for event in got] == sorted(event["position"] for event in got)


def test_before_image_is_whole_under_full_identity(db: Shop) -> None:
    db.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    with db.opened() as log:
        db.execute(
            "INSERT INTO orders VALUES (1, 'a')",
            "UPDATE orders SET note = NULL",
            "DELETE FROM orders",
        )
        got = read(log)
    assert pick(got, "op", "before", "after", "primary_key")[1:] == [
        ("u", {"id": 1, "note": "a"}, {"id": 1, "note": None}, {"id": 1}),
        ("d", {"id": 1, "note": None}, None, {"id": 1}),
    ]


def test_source_and_transaction_tell_where_a_change_stands(db: Shop) -> None:
    with db.opened() as log:
        with db.connection.transaction():
            db.execute("CREATE TABLE items (id int PRIMARY KEY)")
            ((xid,),) = db.execute("SELECT pg_current_xact_id()::text")
        time.sleep(0.01)
        with db.connection.transaction():
            ((xid,),) = db.execute("SELECT pg_current_xact_id()::text")
            db.execute("INSERT INTO orders VALUES (1, 'a')", "INSERT INTO orders VALUES (2, 'b')")
        got = read(log)
    ((system,),) = db.execute("SELECT system_identifier FROM pg_control_system()")
    ((oid,),) = db.execute("SELECT 'orders'::regclass::oid::int")
    first, second = got
    source = first["source"]
    assert list(source) == [
        *("version", "connector", "name", "ts_ms", "db", "schema", "table"),
        *("lsn", "txId", "ts_us"),
    ]
    assert (source["connector"], source["db"], source["schema"], source["table"]) == (
        "postgresql",
        db.name,
        "public",
        "orders",
    )
    assert source["txId"] == int(xid)
    assert source["ts_us"] // 1000 == source["ts_ms"] == first["ts_ms"]
    assert abs(first["ts_ms"] / 1000 - time.time()) < 60
    high, low = source["lsn"].split("/")
    lsn = int(high, 16) << 32 | int(low, 16)
    assert first["position"] == f"00000001.{lsn:016x}.00000000"
    assert [event["transaction"] for event in got] == [
        {"id": xid, "total_order": 1, "data_collection_order": 1},
        {"id": xid, "total_order": 2, "data_collection_order": 2},
    ]
    assert first["tx_id"] == xid
    assert second["event_id"] == ids.postgres_row(system, lsn, oid, 1)


def test_orders_in_a_transaction_count_by_table(db: Shop) -> None:
    db.execute("CREATE TABLE items (id int PRIMARY KEY)")
    with db.opened() as log:
        with db.connection.transaction():
            for number in range(3):
                db.execute(
                    f"INSERT INTO orders VALUES ({number})", f"INSERT INTO items VALUES ({number})"
                )
        db.execute("INSERT INTO items VALUES (9)")
        got = read(log)
    orders = [(e["table"], *list(e["transaction"].values())[1:]) for e in got]
    assert orders == [
        ("orders", 1, 1),
        ("items", 2, 1),
        ("orders", 3, 2),
        ("items", 4, 2),
        ("orders", 5, 3),
        ("items", 6, 3),
        ("items", 1, 1),
    ]


def test_tables_are_taken_by_pattern_whatever_their_case_and_quotes(db: Shop) -> None:
    db.execute(
        'CREATE SCHEMA "My Shop"',
        'CREATE TABLE "My Shop"."Line.Items" ("Id" int PRIMARY KEY, "a""b" text)',
        "CREATE TABLE audit (id int PRIMARY KEY)",
    )
    with db.opened(tables=("My Shop.Line.*", "public.order_")) as log:
        db.execute(
            "INSERT INTO orders VALUES (1)",
            "INSERT INTO audit VALUES (1)",
            """INSERT INTO "My Shop"."Line.Items" VALUES (1, '''"')""",
        )
        got = read(log)
    assert pick(got, "schema", "table", "after") == [
        ("My Shop", "Line.Items", {"Id": 1, 'a"b': "'\""})
    ]


def test_partitions_come_under_the_name_of_their_table(db: Shop) -> None:
    db.execute(
        "CREATE TABLE days (day int, id int, PRIMARY KEY (day, id)) PARTITION BY LIST (day)",
        "CREATE TABLE days_1 PARTITION OF days FOR VALUES IN (1)",
    )
    with db.opened(tables=("public.days",)) as log:
        db.execute("INSERT INTO days VALUES (1, 7)")
        db.execute("CREATE TABLE days_2 PARTITION OF days FOR VALUES IN (2)")
        db.execute("INSERT INTO days VALUES (2, 8)", "UPDATE days SET day = 1 WHERE id = 8")
        got = read(log)
    assert {event["table"] for event in got} == {"days"}
    assert pick(got, "op", "primary_key")[:2] == [
        ("c", {"day": 1, "id": 7}),
        ("c", {"day": 2, "id": 8}),
    ]


def test_truncate_of_several_tables_is_an_event_of_each(db: Shop) -> None:
    db.execute("CREATE TABLE items (id int PRIMARY KEY, o int REFERENCES orders)")
    with db.opened() as log:
        db.execute("INSERT INTO orders VALUES (1)", "TRUNCATE orders RESTART IDENTITY CASCADE")
        got = read(log)[1:]
    assert sorted(event["table"] for event in got) == ["items", "orders"]
    assert [event["op"] for event in got] == ["t", "t"]
    assert [event["tx_end"] for event in got] == [False, True]
    assert all(e["ddl"]["cascade"] and e["ddl"]["restart_identity"] for e in got)
    assert len({event["position"] for event in got}) == len({e["event_id"] for e in got}) == 2


def test_unchanged_large_values_are_marked_or_taken_from_the_before_image(db: Shop) -> None:
    db.execute(
        "CREATE TABLE texts (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE texts ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO texts VALUES (1, repeat('x', 10000), 0)",
    )
    with db.opened(tables=("texts",)) as log:
        db.execute("UPDATE texts SET n = 1")
        db.execute("ALTER TABLE texts REPLICA IDENTITY FULL")
        db.execute("UPDATE texts SET n = 2")
        marked, filled = read(log)
    assert marked["after"] == {"id": 1, "big": {"_unchanged": True}, "n": 1}
    assert filled["after"] == filled["before"] | {"n": 2} == {"id": 1, "big": "x" * 10000, "n": 2}
    assert "reselected" not in filled["source"]


def test_reselect_reads_unchanged_values_and_says_so(db: Shop) -> None:
    db.execute(
        "CREATE TABLE texts (a int, k text, big text, doc jsonb, n numeric, PRIMARY KEY (k, a))",
        "ALTER TABLE texts ALTER big SET STORAGE EXTERNAL, ALTER doc SET STORAGE EXTERNAL",
        "INSERT INTO texts SELECT g, 'it''s ' || g, repeat('x', 10000),"
        """ jsonb_build_object('_unchanged', true, 'y', repeat('y', 10000)), 1.50
        FROM generate_series(1, 3) g""",
    )
    with db.opened(tables=("texts",), reselect=True) as log:
        db.execute("UPDATE texts SET n = a + 0.10", "DELETE FROM texts WHERE a = 2")
        first, gone, third, _ = read(log)
    doc = {"y": "y" * 10000, "_unchanged": True}
    row = {"a": 1, "k": "it's 1", "big": "x" * 10000, "doc": doc, "n": "1.10"}
    assert first["after"] == row and list(first["after"]) == list(row)
    assert third["after"] == row | {"a": 3, "k": "it's 3", "n": "3.10"}
    assert first["source"]["reselected"] == ["big", "doc"]
    assert gone["after"]["big"] == gone["after"]["doc"] == {"_unchanged": True}
    assert "reselected" not in gone["source"]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("int[]", "{1,NULL}"),
        ("place", '("a ""b""",2)'),
        ("date", "0044-03-15 BC"),
        ("bytea", "\\x00ff"),
        ("citext", "It's"),
        ("ltree", "Top.Science"),
        ("mood", "so so"),
    ],
)
def test_reselect_finds_rows_by_keys_of_any_type(db: Shop, kind: str, key: str) -> None:
    db.execute(
        "CREATE EXTENSION citext",
        "CREATE EXTENSION ltree",
        "CREATE TYPE place AS (a text, b int)",
        "CREATE TYPE mood AS ENUM ('so so')",
        f"CREATE TABLE texts (id {kind} PRIMARY KEY, big text, n int)",
        "ALTER TABLE texts ALTER big SET STORAGE EXTERNAL",
    )
    db.connection.execute("INSERT INTO texts VALUES (%s, repeat('x', 10000), 1)", (key,))
    db.execute("CREATE TABLE more () INHERITS (texts)", "INSERT INTO more SELECT id FROM texts")
    with db.opened(tables=("texts",), reselect=True) as log:
        db.execute("UPDATE ONLY texts SET n = 2")
        (event,) = read(log)
    assert event["after"]["big"] == "x" * 10000


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE texts RENAME big TO large",
        "ALTER TABLE texts DROP COLUMN big",
        "DROP TABLE texts",
        "ALTER TABLE texts ALTER big TYPE jsonb USING to_jsonb(big)",
        "ALTER TABLE texts RENAME TO other",
        "ALTER TABLE texts DROP CONSTRAINT texts_pkey",
        "REVOKE SELECT ON texts FROM {name}",
    ],
)
def test_reselect_of_a_table_that_is_another_one_keeps_the_mark(
    db: Shop, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    db.execute(
        "CREATE TABLE texts (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE texts ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO texts SELECT g, repeat('x', 10000), 1 FROM generate_series(1, 3) g",
        f"CREATE ROLE {db.name} LOGIN REPLICATION PASSWORD 'p'",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {db.name}",
        f"CREATE PUBLICATION {db.name} FOR TABLE texts WITH (publish_via_partition_root = true)",
    )
    try:
        dsn = f"postgres://{db.name}:p@{db.dsn.split('@')[1]}"
        with db.opened(dsn=dsn, tables=("texts",), reselect=True) as log:
            db.execute("UPDATE texts SET n = 2", change.format(name=db.name))
            db.execute("CREATE TABLE IF NOT EXISTS texts (id int PRIMARY KEY, big text, n int)")
            found = read(log)
    finally:
        db.execute(f"DROP OWNED BY {db.name} CASCADE", f"DROP ROLE {db.name}")
    assert [event["after"]["big"] for event in found[:3]] == [{"_unchanged": True}] * 3
    assert caplog.text.count("values that the log leaves out cannot be read there") == 1


def test_looking_at_types_again_makes_no_version_of_a_table(db: Shop, tmp_path: Path) -> None:
    kept = {"pipeline": "p", "storage": str(tmp_path / "state.db")}
    db.execute(
        "CREATE TYPE mood AS ENUM ('good')",
        "CREATE TABLE moods (id bigint PRIMARY KEY, at timestamptz(3), kind mood, ok bool, n int[])",
    )
    start = ""
    with db.opened(settings=kept, tables=("moods",)) as log:
        db.execute("INSERT INTO moods VALUES (1, now(), 'good')")
        (first,) = read(log)
        for _ in range(2):
            log._tables.refresh(log.position)  # type: ignore[union-attr]
        db.execute("INSERT INTO moods VALUES (2, now(), 'good')")
        (second,) = read(log)
        start = second["position"]
    assert first["schema_version"] == second["schema_version"]
    with db.opened(start, settings=kept, tables=("moods",), on_schema_drift="halt") as log:
        log._tables.refresh(log.position)  # type: ignore[union-attr]
        db.execute("INSERT INTO moods VALUES (3, now(), 'good')")
        (third,) = read(log)
        log._tables.refresh(log.position)  # type: ignore[union-attr]
        assert third["schema_version"] == first["schema_version"]
        db.execute("ALTER TYPE mood ADD VALUE 'bad'")
        with pytest.raises(
            SourceError, match=r"kind from public.mood .good. to public.mood .good, bad."
        ):
            log._tables.refresh(log.position)  # type: ignore[union-attr]


def test_truncate_has_the_version_that_the_table_had_then(db: Shop) -> None:
    with db.opened() as log:
        with db.connection.transaction():
            db.execute(
                "INSERT INTO orders VALUES (1)",
                "TRUNCATE orders",
                "ALTER TABLE orders ADD COLUMN more int",
                "INSERT INTO orders VALUES (2)",
            )
        versions = [event["schema_version"] for event in read(log)]
    assert versions[0] == versions[1] != versions[2]


# --- messages --------------------------------------------------------------------------------


@pytest.mark.postgres_14
@pytest.mark.parametrize(("prefixes", "found"), [(("*",), 1), (("%",), 1), (("*", "dfc"), 2)])
def test_own_messages_are_events_only_where_named(
    db: Shop, prefixes: tuple[str, ...], found: int
) -> None:
    with db.opened(outbox_prefixes=prefixes) as log:
        db.execute(
            "SELECT pg_logical_emit_message(true, 'dfc', '')",
            "SELECT pg_logical_emit_message(true, 'other', '{}')",
        )
        assert len(read(log)) == found


@pytest.mark.postgres_14
def test_messages_with_the_prefix_are_marked_for_the_outbox(db: Shop) -> None:
    with db.opened(outbox_prefixes=("outbox", "mail*")) as log:
        with db.connection.transaction():
            db.execute(
                "INSERT INTO orders VALUES (1)",
                "SELECT pg_logical_emit_message(true, 'outbox', '{\"a\": [1.00,\n \"b c\"]}')",
                "SELECT pg_logical_emit_message(true, 'other', '{}')",
                "INSERT INTO orders VALUES (2)",
            )
        db.execute(
            "SELECT pg_logical_emit_message(false, 'mail.out', 'no json')", "TRUNCATE orders"
        )
        batches = drain(log)
        got = events(batches)
    assert pick(got, "op", "schema", "table", "tx_end") == [
        ("c", "public", "orders", False),
        ("c", "__outbox", "outbox", False),
        ("c", "public", "orders", True),
        ("c", "__outbox", "mail.out", True),
        ("t", "public", "orders", True),
    ]
    assert batches[0]["after"][1].as_py() == '{"a":[1.00,"b c"]}'
    assert got[3]["after"] == "no json"
    assert got[3]["transaction"] is None and "txId" not in got[3]["source"]
    assert '"schema":"__outbox","table":"outbox"' in batches[0]["source"][1].as_py()
    assert all(event["event_id"].startswith("dfid:v1:msg:") for event in (got[1], got[3]))
    assert got[1]["position"][:-8] == got[0]["position"][:-8]


@pytest.mark.postgres_14
def test_message_outside_transactions_keeps_its_place_when_reading_begins_behind_it(
    db: Shop,
) -> None:
    with db.opened(outbox_prefixes=("outbox",)) as log:
        db.execute(
            "SELECT pg_logical_emit_message(false, 'outbox', '{\"n\":1}')",
            "INSERT INTO orders VALUES (1)",
            "SELECT pg_logical_emit_message(false, 'outbox', '{\"n\":2}')",
            "INSERT INTO orders VALUES (2)",
        )
        whole = read(log)
    for count, event in enumerate(whole, 1):
        with db.opened(event["position"], outbox_prefixes=("outbox",)) as log:
            rest = read(log)
        assert pick(rest, "position", "after") == pick(whole[count:], "position", "after")


@pytest.mark.postgres_14
def test_message_that_is_not_on_disk_keeps_nobody_waiting(db: Shop) -> None:
    with db.opened(outbox_prefixes=("outbox",)) as log:
        db.execute(
            INSERT_ONE, "SELECT pg_logical_emit_message(false, 'outbox', repeat('x', 100000))"
        )
        assert len(read(log)) in (1, 2)
        db.execute("INSERT INTO orders VALUES (2)")
        read(log)


# --- transactions ----------------------------------------------------------------------------


def test_reading_may_begin_inside_a_transaction(db: Shop) -> None:
    db.execute("CREATE TABLE items (id int PRIMARY KEY)")
    with db.opened() as log:
        with db.connection.transaction():
            db.execute("INSERT INTO orders VALUES (1)", "INSERT INTO items VALUES (1)")
            db.execute("TRUNCATE orders, items", "INSERT INTO orders VALUES (2)")
        db.execute("INSERT INTO orders VALUES (3)")
        whole = read(log)
    assert len(whole) == 6
    for count, event in enumerate(whole, 1):
        with db.opened(event["position"]) as log:
            rest = read(log)
        assert pick(rest, "position", "event_id", "tx_end") == pick(
            whole[count:], "position", "event_id", "tx_end"
        )


@pytest.fixture
def streaming(services: Services) -> Iterator[Shop]:
    """A server that sends transactions in pieces as soon as they are a little large."""
    server = services.start(Postgres, config={"logical_decoding_work_mem": "64kB"})
    with shop(server, ORDERS, "ALTER TABLE orders REPLICA IDENTITY FULL") as made:
        yield made


@pytest.mark.postgres_14
def test_transactions_sent_in_pieces_lose_what_was_rolled_back(
    streaming: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = streaming
    monkeypatch.setattr(postgres_large, "IN_MEMORY_BYTES", 50_000)  # the rest goes to a file
    fill = "INSERT INTO orders SELECT g, repeat('x', 50) FROM generate_series({}, {}) g"
    with db.opened() as log:
        seen = 0
        with db.other() as other:
            with db.connection.transaction():
                db.execute(fill.format(1, 2000), "SAVEPOINT s")
                db.execute(fill.format(2001, 4000), "CREATE TABLE later (id int PRIMARY KEY)")
                other.execute("INSERT INTO orders VALUES (-1, 'between')")
                log.read(0.5)
                seen = len(log._large.kept)
                db.execute("ROLLBACK TO s", fill.format(4001, 6000))
            with db.connection.transaction(force_rollback=True):
                db.execute(fill.format(7001, 9000))
        db.execute("UPDATE orders SET note = 'y' WHERE id = 1")
        got = read(log)
        assert log._large.kept == ()
    assert seen == 1
    numbers = [event["after"]["id"] for event in got]
    assert numbers == [-1, *range(1, 2001), *range(4001, 6001), 1] or numbers == [
        *range(1, 2001),
        *range(4001, 6001),
        1,
    ]
    large = [event for event in got if event["after"]["note"].startswith("x")]
    assert [e["tx_end"] for e in large] == [False] * 3999 + [True]
    assert [e["transaction"]["total_order"] for e in large] == list(range(1, 4001))
    # The same transaction in one piece has the same positions: which way it comes may change.
    db.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64MB'", "SELECT pg_reload_conf()")
    time.sleep(0.3)
    with db.opened() as log:
        again = read(log)
    names = ("position", "event_id", "tx_end", "after", "transaction")
    assert [e for e in pick(again, *names) if e[3]["note"].startswith("x")] == pick(large, *names)


def test_transaction_larger_than_memory_is_one_result(
    db: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("dfc_runtime.sources.snapshot_spool.IN_MEMORY_BYTES", 100_000)
    monkeypatch.setattr("dfc_runtime.sources.postgres_stream.AT_ONCE_BYTES", 100_000)
    with db.opened(settings={"folder": str(tmp_path)}) as log:
        db.execute("INSERT INTO orders SELECT g, 'n' FROM generate_series(1, 8000) g")
        db.execute("INSERT INTO orders VALUES (0)")
        target, results = log.head(), []
        until = time.monotonic() + 60
        while log.position < target:
            assert time.monotonic() < until
            if found := log.read(0.2):
                results.append(events(found))
        assert not list(tmp_path.glob("*.spool"))
    first = [event for event in results[0] if event["tx_id"] == results[0][0]["tx_id"]]
    assert [event["after"]["id"] for event in first] == list(range(1, 8001))
    assert [event["tx_end"] for event in first] == [False] * 7999 + [True]
    assert [e["transaction"]["data_collection_order"] for e in first] == list(range(1, 8001))
    assert sum(map(len, results)) == 8001


# --- schema ----------------------------------------------------------------------------------


def test_ddl_between_two_changes_gives_each_the_columns_of_its_time(db: Shop) -> None:
    with db.opened() as log:
        db.execute("INSERT INTO orders VALUES (1, 'a')")
        with db.connection.transaction():
            db.execute(
                "INSERT INTO orders VALUES (2, 'b')",
                "ALTER TABLE orders ADD COLUMN price numeric DEFAULT 1.5",
                "INSERT INTO orders VALUES (3, 'c', 2)",
                "ALTER TABLE orders DROP COLUMN note",
                "INSERT INTO orders VALUES (4, 2.50)",
                "ALTER TABLE orders RENAME price TO cost",
                "ALTER TABLE orders ALTER cost TYPE int USING cost::int",
            )
        db.execute("INSERT INTO orders VALUES (5, 3)")
        got = read(log)
    assert [event["after"] for event in got if event["op"] == "c"] == [
        {"id": 1, "note": "a"},
        {"id": 2, "note": "b"},
        {"id": 3, "note": "c", "price": "2"},
        {"id": 4, "price": "2.50"},
        {"id": 5, "cost": 3},
    ]
    versions = [event["schema_version"] for event in got if event["op"] == "c"]
    assert versions[0] == versions[1] and len(set(versions)) == 4
    sequences = [event["schema_sequence"] for event in got]
    assert sequences == sorted(sequences) and sequences[0] == 1


def test_versions_are_kept_and_met_again(db: Shop, tmp_path: Any) -> None:
    kept = {"pipeline": "p", "storage": str(tmp_path / "s.db")}
    with db.opened(settings=kept) as log:
        db.execute("INSERT INTO orders VALUES (1, 'a')", "ALTER TABLE orders ADD COLUMN n int")
        db.execute("INSERT INTO orders VALUES (2, 'b', 1)")
        first = read(log)
    with db.opened(settings=kept) as log:
        again = read(log)
    names = ("schema_version", "schema_sequence")
    assert pick(again, *names) == pick(first, *names)
    assert [event["schema_sequence"] for event in again] == [1, 2]


def test_drift_stops_the_source_when_it_shall(db: Shop) -> None:
    with db.opened(on_schema_drift="halt") as log:
        db.execute("INSERT INTO orders VALUES (1, 'a')")
        assert len(read(log)) == 1
        db.execute("ALTER TABLE orders DROP COLUMN note, ADD COLUMN n int")
        db.execute("INSERT INTO orders VALUES (2, 1)")
        with pytest.raises(SourceError, match="without note; with n; to go on"):
            read(log)


def test_enum_and_composite_types_may_be_altered_while_reading(
    db: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    db.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE people (id int PRIMARY KEY, mood mood, pair pair)",
    )
    with db.opened(tables=("people",), heartbeat_interval_secs=0) as log:
        db.execute("INSERT INTO people VALUES (1, 'ok', (1, 'x'))")
        first = read(log)
        db.execute(
            "ALTER TYPE mood ADD VALUE 'glad'",
            "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
            "ALTER TYPE pair ADD ATTRIBUTE c bool",
            "INSERT INTO people VALUES (2, 'glad', (1, 'x', true))",
        )
        second = read(log)
        time.sleep(0.2)
        db.execute("INSERT INTO people VALUES (3, 'fine', NULL)")
        third = read(log)
    assert first[0]["after"] == {"id": 1, "mood": "ok", "pair": {"a": 1, "b": "x"}}
    assert second[0]["after"] == {"id": 2, "mood": "glad", "pair": {"a": 1, "b": "x", "c": True}}
    assert third[0]["after"]["mood"] == "fine"
    assert first[0]["schema_version"] != third[0]["schema_version"]


def test_wide_integers_as_strings_when_asked_for(db: Shop) -> None:
    db.execute("CREATE TABLE wide (id bigint PRIMARY KEY)")
    with db.opened(tables=("wide",), json_wide_integers="string") as log:
        db.execute("INSERT INTO wide VALUES (9007199254740993), (5)")
        assert [event["after"]["id"] for event in read(log)] == ["9007199254740993", 5]


def test_only_wanted_columns_are_made(db: Shop) -> None:
    with db.opened(settings={"columns": "position tx_end op"}) as log:
        db.execute("INSERT INTO orders VALUES (1)")
        (batch,) = drain(log)
    assert batch.schema.names == ["position", "tx_end", "op"]


def test_tables_without_whole_before_images_are_named(
    db: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    db.execute("CREATE TABLE whole (id int)", "ALTER TABLE whole REPLICA IDENTITY FULL")
    with caplog.at_level(logging.INFO, "dfc.source"), db.opened():
        pass
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        "public.orders: before images hold the primary key alone; for whole ones "
        "ALTER TABLE ... REPLICA IDENTITY FULL"
    ]


def test_events_read_as_json_lines(db: Shop) -> None:
    with db.opened(tables=("orders",)) as log:
        db.execute("INSERT INTO orders VALUES (1, E'two\\nlines \"quoted\"')")
        (batch,) = drain(log)
    for name in ("after", "source", "transaction", "primary_key"):
        text = batch[name][0].as_py()
        assert "\n" not in text and json.loads(text)


def test_large_transaction_with_a_replication_origin(streaming: Shop) -> None:
    db = streaming
    db.execute("SELECT pg_replication_origin_create('o')")
    with db.opened() as log, db.other() as other:
        other.execute("SELECT pg_replication_origin_session_setup('o')")
        with other.transaction():
            for first in (1, 1001, 2001):
                with other.transaction(force_rollback=first == 1001):
                    other.execute(
                        "INSERT INTO orders SELECT g, repeat('x', 100)"
                        f" FROM generate_series({first}, {first + 999}) g"  # type: ignore[arg-type]
                    )
        found = [event["after"]["id"] for event in read(log)]
    assert found == [*range(1, 1001), *range(2001, 3001)]


def test_text_of_a_database_without_encoding_comes_as_it_is(
    postgres_server: Postgres, tmp_path: Path
) -> None:
    with shop(postgres_server) as plain:
        name = f"{plain.name}_ascii"
        plain.execute(
            f"CREATE DATABASE {name} ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        db = Shop(postgres_server, name)
        db.execute(
            "SET client_encoding = 'SQL_ASCII'",
            "CREATE TABLE texts (id int PRIMARY KEY, note text, big text)",
            "ALTER TABLE texts ALTER big SET STORAGE EXTERNAL",
            r"INSERT INTO texts VALUES (1, E'\xc3\xbc', repeat(E'\xff', 10000))",
            r"INSERT INTO texts VALUES (2, E'\xff', 'x')",
        )
        try:
            source = db.source(snapshot=Snapshot(mode="initial"), reselect=True)
            log = with_snapshot(source, Snapshot(mode="initial"), ReaderSettings(id="shop"))
            log.open("")
            found: list[Any] = []
            until = time.monotonic() + 20
            while not log.copied() and time.monotonic() < until:
                found += events(log.read(0.1))
            db.execute("UPDATE texts SET note = 'new' WHERE id = 1")
            target = log.head()
            while log.position < target and time.monotonic() < until:
                found += events(log.read(0.1))
            log.close()
        finally:
            db.connection.close()
            _drop(plain.connection, name)
    bad = {"_base64": base64.b64encode(b"\xff").decode()}
    big = {"_base64": base64.b64encode(b"\xff" * 10000).decode()}
    assert [event["after"] for event in found] == [
        {"id": 1, "note": "ü", "big": big},
        {"id": 2, "note": bad, "big": "x"},
        {"id": 1, "note": "new", "big": big},
    ]
