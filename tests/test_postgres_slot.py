"""The postgres source and its server: slot, publication, where it begins, what it refuses."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dfc_runtime.sources import SourceError
from dfc_runtime.sources import postgres_log as log_module
from dfc_runtime.sources import postgres_stream as stream_module
from dfc_runtime.sources import pump as pump_module
from dfc_runtime.sources.lag import lag
from dfc_runtime.sources.log import TransientError
from dfc_runtime.sources.postgres_address import Address
from dfc_runtime.sources.postgres_position import Place, parse, parse_lsn
from dfc_runtime.sources.postgres_stream import silence
from dfc_runtime.sources.segments import SegmentStore
from dfc_runtime.sources.settings import ReaderSettings

from .postgres_logs import Shop, events, read, shop
from .services import Postgres
from .services.fixtures import Services

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, note text)"
INSERT = "INSERT INTO orders VALUES ({})"


@pytest.fixture
def db(postgres_server: Postgres) -> Iterator[Shop]:
    with shop(postgres_server, ORDERS) as made:
        yield made


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, str]:
    return {"pipeline": "p", "storage": str(tmp_path / "state.db")}


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [event["after"]["id"] for event in found]


def until(done: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def refused(db: Shop, match: str, start: str = "", **more: Any) -> str:
    log = db.log(more.pop("settings", None), **more)
    with pytest.raises(SourceError, match=match) as caught:
        log.open(start)
    log.close()
    assert "dfc-secret" not in str(caught.value)
    return str(caught.value)


# --- made when missing -------------------------------------------------------------------------


def test_slot_and_publication_are_made_when_missing(db: Shop) -> None:
    db.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with db.opened(tables=("public.orders",)):
        assert db.slot()["plugin"] == "pgoutput"
        assert db.execute(
            "SELECT tablename, pubviaroot FROM pg_publication_tables JOIN pg_publication"
            " USING (pubname)"
        ) == [("orders", True)]


def test_without_leave_to_make_them_the_sql_is_shown(db: Shop) -> None:
    said = refused(db, "no publication", tables=("orders",), manage=False)
    statement = said.split("leaves that to you: ")[1]
    assert statement == (
        f'CREATE PUBLICATION "{db.name}" FOR TABLE ONLY "public"."orders"'
        " WITH (publish_via_partition_root = true)"
    )
    db.execute(statement)
    said = refused(db, "no slot", tables=("orders",), manage=False)
    db.execute(said.split("leaves that to you: ")[1])
    with db.opened(tables=("orders",), manage=False) as log:
        db.execute(INSERT.format(1))
        assert numbers(read(log)) == [1]


def test_publication_that_lacks_a_captured_table_is_recognised(db: Shop) -> None:
    db.execute(
        f"CREATE PUBLICATION {db.name} FOR TABLE orders WITH (publish_via_partition_root = true)",
        'CREATE TABLE "Late" (id int PRIMARY KEY)',
    )
    said = refused(db, "lacks public.Late", manage=False)
    assert said.endswith(f'ALTER PUBLICATION "{db.name}" ADD TABLE ONLY "public"."Late"')
    with db.opened() as log:
        db.execute('INSERT INTO "Late" VALUES (1)')
        assert numbers(read(log)) == [1]


def test_publication_without_partition_root_is_recognised(db: Shop) -> None:
    db.execute(
        "CREATE TABLE days (day int PRIMARY KEY) PARTITION BY LIST (day)",
        f"CREATE PUBLICATION {db.name} FOR TABLE days",
    )
    said = refused(db, "under the names of partitions", tables=("days",), manage=False)
    assert said.endswith(f'ALTER PUBLICATION "{db.name}" SET (publish_via_partition_root = true)')


def test_login_without_rights_is_told_what_to_run(db: Shop) -> None:
    db.execute(
        f"CREATE ROLE {db.name} LOGIN REPLICATION PASSWORD 'dfc-secret'",
        f"GRANT SELECT ON orders TO {db.name}",
    )
    try:
        address = db.dsn.split("@")[1]
        dsn = f"postgres://{db.name}:dfc-secret@{address}"
        said = refused(db, "may not change that", dsn=dsn, tables=("orders",))
        assert f'CREATE PUBLICATION "{db.name}" FOR TABLE ONLY "public"."orders"' in said
        db.execute(f"ALTER ROLE {db.name} NOREPLICATION")
        db.execute(f"CREATE PUBLICATION {db.name} FOR TABLE orders")
        refused(db, f'ALTER ROLE "{db.name}" REPLICATION', dsn=dsn, tables=("orders",))
        refused(db, "password authentication failed", dsn=dsn.replace("secret", "secretly"))
    finally:
        db.execute(f"DROP OWNED BY {db.name}", f"DROP ROLE {db.name}")


def test_table_whose_updates_would_fail_once_published_is_refused(db: Shop) -> None:
    db.execute("CREATE TABLE lines (text text)")
    said = refused(db, "without primary key or replica identity")
    assert 'ALTER TABLE "public"."lines" REPLICA IDENTITY FULL' in said
    assert db.slot() == {}
    with db.opened(tables=("orders",)):
        pass


def test_table_that_comes_later_is_captured_from_then_on(
    db: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    with db.opened(tables=("public.*",), heartbeat_interval_secs=0) as log:
        db.execute("CREATE TABLE later (id int PRIMARY KEY)")
        time.sleep(0.2)
        log.read(0.1)
        db.execute("INSERT INTO later VALUES (7)")
        assert numbers(read(log)) == [7]


def test_table_that_is_dropped_and_made_again_is_captured_each_time(
    db: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    with db.opened(tables=("public.*",)) as log:
        for number in (1, 2, 3):
            db.execute("CREATE TABLE later (id int PRIMARY KEY)")
            until(lambda: log.read(0.1) == [] and published(db, "later"))
            db.execute(f"INSERT INTO later VALUES ({number})")
            assert numbers(read(log)) == [number]
            db.execute("DROP TABLE later")


def published(db: Shop, table: str) -> bool:
    return bool(db.execute(f"SELECT 1 FROM pg_publication_tables WHERE tablename = '{table}'"))


def test_new_table_that_cannot_be_added_keeps_no_other_out(
    db: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    db.execute(
        f"CREATE ROLE {db.name} LOGIN REPLICATION PASSWORD 'dfc-secret'",
        f"GRANT ALL ON SCHEMA public TO {db.name}",
        f"GRANT CREATE ON DATABASE {db.name} TO {db.name}",
        f"ALTER TABLE orders OWNER TO {db.name}",
    )
    try:
        dsn = f"postgres://{db.name}:dfc-secret@{db.dsn.split('@')[1]}"
        with db.opened(dsn=dsn) as log, db.other() as other:
            other.execute("CREATE TABLE foreign_one (id int PRIMARY KEY)")
            other.execute("CREATE TABLE without_key (id int)")
            other.execute(f"SET ROLE {db.name}")  # type: ignore[arg-type]
            other.execute("CREATE TABLE own (id int PRIMARY KEY)")
            until(lambda: log.read(0.1) == [] and published(db, "own"))
            assert not published(db, "foreign_one") and not published(db, "without_key")
            assert caplog.text.count("may not change that") == 1
            other.execute("RESET ROLE")
            other.execute("ALTER TABLE without_key REPLICA IDENTITY FULL")
            other.execute(f"ALTER TABLE without_key OWNER TO {db.name}")  # type: ignore[arg-type]
            until(lambda: log.read(0.1) == [] and published(db, "without_key"))
    finally:
        db.execute(f"DROP OWNED BY {db.name} CASCADE", f"DROP ROLE {db.name}")


def test_new_table_whose_adding_fails_for_a_moment_is_added_later(
    db: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    db.execute(f"ALTER DATABASE {db.name} SET lock_timeout = '50ms'")
    with db.opened() as log:
        db.execute("CREATE TABLE later (id int PRIMARY KEY)")
        with db.other() as other, other.transaction():
            other.execute("LOCK TABLE later IN SHARE UPDATE EXCLUSIVE MODE")
            with pytest.raises(TransientError, match="lock timeout"):
                for _ in range(50):
                    log.read(0.1)
        log.close()
        log.open("")
        assert published(db, "later")


def test_what_the_log_lacks_of_a_new_table_is_told(
    db: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    with db.opened() as log:
        assert "in no event" not in caplog.text
        db.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        until(lambda: log.read(0.1) == [] and "in no event" in caplog.text)
        assert "FOR TABLES IN SCHEMA" in caplog.text


def test_tables_that_inherit_are_published_only_for_themselves(
    db: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    db.execute("CREATE TABLE old_orders () INHERITS (orders)", "INSERT INTO old_orders VALUES (7)")
    with db.opened(tables=("orders", "later")) as log:
        db.execute("UPDATE old_orders SET note = 'x'")  # it has no key: published, that would fail
        db.execute("CREATE TABLE later (id int PRIMARY KEY)", "CREATE TABLE l2 () INHERITS (later)")
        until(lambda: log.read(0.1) == [] and published(db, "later"))
        assert not published(db, "old_orders") and not published(db, "l2")


# --- replica identities of partitions ----------------------------------------------------------

PARTED = (
    "CREATE TABLE parted (id int, at int, note text, PRIMARY KEY (id, at)) PARTITION BY LIST (at)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)",
    "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2)",
)


def test_before_image_of_a_partitioned_table_holds_what_every_partition_logs(
    db: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    full = "ALTER TABLE {} REPLICA IDENTITY FULL"
    db.execute(*PARTED, full.format("parted"), full.format("parted_1"))
    db.execute("INSERT INTO parted VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 1, 'c'), (4, 2, 'd')")
    with db.opened(tables=("parted",)) as log:
        assert "public.parted: before images hold the primary key alone" in caplog.text
        db.execute("DELETE FROM parted WHERE id < 3")
        assert [e["before"] for e in read(log)] == [{"id": 1, "at": 1}, {"id": 2, "at": 2}]
        db.execute(full.format("parted_2"))
        time.sleep(0.2)
        log.read(0.1)
        db.execute("DELETE FROM parted")
        assert [e["before"]["note"] for e in read(log)] == ["c", "d"]


def test_partition_whose_updates_would_fail_is_refused(
    db: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.1)
    db.execute(
        "CREATE TABLE loose (id int, at int) PARTITION BY LIST (at)",
        'CREATE TABLE "Loose 1" PARTITION OF loose FOR VALUES IN (1)',
        "ALTER TABLE loose REPLICA IDENTITY FULL",
    )
    said = refused(db, "without primary key or replica identity", tables=("loose",))
    assert 'ALTER TABLE "public"."Loose 1" REPLICA IDENTITY FULL' in said
    db.execute('ALTER TABLE "Loose 1" REPLICA IDENTITY FULL')
    with db.opened(tables=("loose",)) as log:
        db.execute("CREATE TABLE loose_2 PARTITION OF loose FOR VALUES IN (2)")
        until(lambda: log.read(0.1) == [] and '"loose_2" REPLICA IDENTITY FULL' in caplog.text)


def test_address_may_be_key_and_value_and_is_never_shown(db: Shop) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(db.dsn)
    dsn = " ".join(f"{name}='{value}'" for name, value in parts.items()) + " sslmode=prefer"
    with db.opened(dsn=dsn) as log:
        db.execute(INSERT.format(1))
        assert numbers(read(log)) == [1]
    for wrong in ("postgres://u:dfc-secret@h:port/db", "host=h password=dfc-secret nonsense"):
        with pytest.raises(SourceError, match="dsn cannot be read") as caught:
            db.log(dsn=wrong)
        assert "dfc-secret" not in str(caught.value)


def test_server_that_is_away_is_worth_another_try(db: Shop) -> None:
    log = db.log(dsn="postgres://u@127.0.0.1:9/db")
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:9/db"):
        log.open("")


@pytest.mark.parametrize(
    ("said", "state", "passing"),
    [
        ("SSL error: unexpected eof while reading", "", True),
        ("SSL error: decryption failed or bad record mac", "", True),
        ("no connection to the server", "", True),
        ("FATAL:  the database system is starting up", "", True),
        ('Replikations-Slot "s" ist aktiv für PID 1', "55006", True),
        ("canceling statement due to lock timeout", "55P03", True),
        ("terminating connection due to administrator command", "57P01", True),
        ('FATAL:  password authentication failed for user "u"', "", False),
        ('FATAL:  database "x" does not exist', "", False),
        ("SSL error: certificate verify failed", "", False),
        ("SSL error: tlsv1 alert unknown ca", "", False),
        ('FATAL:  no pg_hba.conf entry for host "::1"', "", False),
        ("server does not support SSL, but SSL was required", "", False),
        ("permission denied for table t", "42501", False),
        ("relation does not exist", "42P01", False),
    ],
)
def test_errors_that_pass_are_told_from_those_that_stay(
    said: str, state: str, passing: bool
) -> None:
    address = Address.parse("postgres://u@h/db")
    assert isinstance(address.error(said, state, login=not state), TransientError) == passing


def test_error_of_a_connection_that_was_made_passes_whatever_it_says() -> None:
    address = Address.parse("postgres://u@h/db")
    assert isinstance(address.error("SSL error: certificate whatever"), TransientError)


def test_silence_is_measured_by_the_servers_own_limit() -> None:
    assert silence(60, 1, 10) == silence(5, 1, 10) == 60
    assert silence(300, 1, 10) == 300 and silence(300, 4, 10) == 1200
    assert silence(0, 1, 10) == float("inf")


def test_server_that_says_nothing_is_given_up_and_then_waited_for_longer(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_SILENCE_SECS", 0.5)
    server = services.start(Postgres, config={"wal_sender_timeout": "2s"})
    with shop(server, ORDERS) as db:
        log = db.log(heartbeat_interval_secs=0)
        log.open("")
        log._stream._limit = 1.0  # type: ignore[union-attr]
        with server.paused(), pytest.raises(TransientError, match="has not said anything for 1 s"):
            for _ in range(50):
                log.read(0.1)
        log.close()
        until(lambda: not db.slot()["active"])
        log.open("")
        assert log._stream._limit == 2 * 3.0  # type: ignore[union-attr]
        db.execute(INSERT.format(1))
        assert numbers(read(log)) == [1]
        log.close()


def test_server_without_logical_log_is_refused(services: Services) -> None:
    server = services.start(Postgres, config={"wal_level": "replica"})
    with shop(server, ORDERS) as db:
        refused(db, "ALTER SYSTEM SET wal_level = 'logical'")


# --- where it begins ---------------------------------------------------------------------------


def test_earliest_begins_with_what_the_slot_holds(db: Shop) -> None:
    db.execute(
        f"CREATE PUBLICATION {db.name} FOR TABLE orders",
        f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')",
        INSERT.format(1),
    )
    with db.opened() as log:
        assert numbers(read(log)) == [1]


def test_latest_begins_at_the_first_start_and_stays_there(db: Shop, kept: dict[str, str]) -> None:
    db.execute(
        f"CREATE PUBLICATION {db.name} FOR TABLE orders",
        f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')",
        INSERT.format(1),
    )
    with db.opened(settings=kept, start_position="latest"):
        db.execute(INSERT.format(2))
    db.execute(INSERT.format(3))  # while nobody reads, before anything was delivered
    with db.opened(settings=kept, start_position="latest") as log:
        assert numbers(read(log)) == [2, 3]


def test_given_log_position_is_honoured(db: Shop) -> None:
    db.execute(
        f"CREATE PUBLICATION {db.name} FOR TABLE orders",
        f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')",
        INSERT.format(1),
    )
    ((lsn,),) = db.execute("SELECT pg_current_wal_insert_lsn()::text")
    db.execute(INSERT.format(2))
    with db.opened(start_position=lsn) as log:
        assert numbers(read(log)) == [2]
    refused(db, "is before .* use `earliest`", start_position="0/1")


def test_position_given_wins_over_start_position(db: Shop) -> None:
    with db.opened() as log:
        db.execute(INSERT.format(1), INSERT.format(2))
        first, _ = read(log)
    with db.opened(first["position"], start_position="latest") as log:
        assert numbers(read(log)) == [2]
    refused(db, "not a position of a postgres source", start="0000000000000001")


# --- what the slot is told -----------------------------------------------------------------------


def test_slot_is_confirmed_only_up_to_what_every_sink_holds(db: Shop) -> None:
    with db.opened() as log:
        begun = parse_lsn(db.slot()["confirmed_flush_lsn"])
        db.execute(INSERT.format(1), INSERT.format(2))
        first, second = read(log)
        time.sleep(1.2)  # a status has gone out meanwhile
        assert parse_lsn(db.slot()["confirmed_flush_lsn"]) == begun
        log.durable(first["position"])
        until(lambda: parse_lsn(db.slot()["confirmed_flush_lsn"]) > begun)
        assert parse_lsn(db.slot()["confirmed_flush_lsn"]) <= parse(second["position"]).lsn
    with db.opened(first["position"]) as log:
        assert numbers(read(log)) == [2]


def test_slot_moves_on_while_captured_tables_are_quiet(db: Shop, kept: dict[str, str]) -> None:
    db.execute("CREATE TABLE noise (id int)")
    with db.opened(settings=kept, tables=("orders",)) as log:
        db.execute(INSERT.format(1))
        (event,) = read(log)
        db.execute("INSERT INTO noise SELECT generate_series(1, 10000)")
        ((head,),) = db.execute("SELECT pg_current_wal_flush_lsn()::text")

        def moved() -> bool:
            log.read(0.1)
            log.durable(event["position"])
            return parse_lsn(db.slot()["confirmed_flush_lsn"]) >= parse_lsn(head)

        until(moved)
    # Further than the sinks' last event, but by our own hand: nothing was lost.
    db.execute(INSERT.format(2))
    with db.opened(event["position"], settings=kept, tables=("orders",)) as log:
        assert numbers(read(log)) == [2]


def test_slot_moves_on_before_anything_was_delivered(
    db: Shop, kept: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "CONFIRM_SECS", 0.1)
    db.execute("CREATE TABLE noise (id int)")
    kept["sinks"] = "new"
    settings = ReaderSettings.parse({"id": "shop", **kept})
    store = SegmentStore(settings)
    pump = pump_module.Pump(lambda: db.log(kept, tables=("orders",)), store, settings, "")
    pump.start()
    try:
        until(lambda: db.slot().get("active"))
        db.execute("INSERT INTO noise SELECT generate_series(1, 10000)")
        ((head,),) = db.execute("SELECT pg_current_wal_flush_lsn()::text")
        until(lambda: parse_lsn(db.slot()["confirmed_flush_lsn"]) >= parse_lsn(head))
        db.execute(INSERT.format(1))
        until(lambda: store.end)
        begun = db.slot()["confirmed_flush_lsn"]
        db.execute("INSERT INTO noise SELECT generate_series(1, 10000)")
        time.sleep(1.5)
        assert db.slot()["confirmed_flush_lsn"] == begun, "no sink holds what has come now"
    finally:
        store.stop()
        pump.join(20)
    assert store.error is None
    until(lambda: not db.slot()["active"])
    with db.opened(settings=kept, tables=("orders",)) as log:
        assert numbers(read(log)) == [1]


def test_heartbeat_query_runs_and_its_failure_is_only_told(
    db: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    db.execute("CREATE TABLE beats (at timestamptz)")
    query = "INSERT INTO public.beats VALUES (now())"
    with db.opened(tables=("orders",), heartbeat_query=query) as log:
        log.read(0.1)
        assert len(db.execute("SELECT * FROM beats")) == 1
    with db.opened(tables=("orders",), heartbeat_query="SELEC 1") as log:
        log.read(0.1)
    assert "heartbeat.query failed" in caplog.text


def test_dry_run_leaves_no_trace(db: Shop) -> None:
    guest = {"pipeline": "p"}
    refused(db, "CREATE PUBLICATION", settings=guest)
    db.execute(f"CREATE PUBLICATION {db.name} FOR TABLE orders")
    with db.opened(settings=guest) as log:
        db.execute(INSERT.format(1))
        found = read(log)
        log.durable(found[-1]["position"])
        assert numbers(found) == [1]
    until(lambda: db.execute("SELECT count(*) FROM pg_replication_slots WHERE temporary") == [(0,)])
    assert db.slot() == {}


# --- what is refused -----------------------------------------------------------------------------


def test_slot_that_is_gone_or_made_anew_stops_the_pipeline(db: Shop, kept: dict[str, str]) -> None:
    with db.opened(settings=kept) as log:
        db.execute(INSERT.format(1))
        (event,) = read(log)
        log.durable(event["position"])
    until(lambda: not db.slot()["active"])
    db.execute(f"SELECT pg_drop_replication_slot('{db.name}')")
    said = refused(db, "is gone from postgres", event["position"], settings=kept)
    assert "dfc checkpoint reset" in said
    db.execute(INSERT.format(2))
    db.execute(f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')")
    refused(db, "dropped and made anew", event["position"], settings=kept)


def test_slot_lost_before_the_first_delivery_stops_the_pipeline(
    db: Shop, kept: dict[str, str]
) -> None:
    with db.opened(settings=kept):
        db.execute(INSERT.format(1))
    until(lambda: not db.slot()["active"])
    db.execute(f"SELECT pg_drop_replication_slot('{db.name}')")
    refused(db, "is gone from postgres", settings=kept)
    db.execute(f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')")
    refused(db, "dropped and made anew", settings=kept)


def test_position_ahead_of_the_server_is_refused(db: Shop, kept: dict[str, str]) -> None:
    with db.opened(settings=kept) as log:
        ahead = str(Place(1, parse(log.head()).lsn + (1 << 30), 0))
    until(lambda: not db.slot()["active"])
    refused(db, "put back to an earlier state.*dfc checkpoint reset", ahead, settings=kept)


def test_slot_of_another_reader_is_tried_again(db: Shop) -> None:
    with db.opened():
        log = db.log()
        with pytest.raises(TransientError, match="a slot serves one reader at a time"):
            log.open("")
        log.close()
    with db.opened() as log:
        db.execute(INSERT.format(1))
        assert numbers(read(log)) == [1]


@pytest.mark.postgres_14
def test_slot_that_is_no_use_is_refused(db: Shop) -> None:
    db.execute(
        f"CREATE PUBLICATION {db.name} FOR TABLE orders",
        f"SELECT pg_create_logical_replication_slot('{db.name}', 'test_decoding')",
    )
    refused(db, "has the plugin test_decoding")
    db.execute(
        f"SELECT pg_drop_replication_slot('{db.name}')",
        f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput', false, true)",
    )
    refused(db, "two_phase")


@pytest.fixture(scope="module")
def spare(services: Services) -> Postgres:
    """A server that may be changed as a whole."""
    return services.start(Postgres)


def test_another_cluster_is_refused(db: Shop, spare: Postgres, kept: dict[str, str]) -> None:
    with db.opened(settings=kept) as log:
        db.execute(INSERT.format(1))
        (event,) = read(log)
    with shop(spare, ORDERS) as other:
        log = other.log(kept, slot=db.name, publication=db.name)
        with pytest.raises(SourceError, match="another database cluster"):
            log.open(event["position"])
        log.close()


def test_promoted_server_is_read_on_where_its_history_has_all_that_was_read(
    spare: Postgres, kept: dict[str, str]
) -> None:
    with shop(spare, ORDERS) as db:
        with db.opened(settings=kept) as log:
            db.execute(INSERT.format(1), INSERT.format(2))
            before = read(log)
            end = parse(log.position)
        db.connection.close()
        spare.stop()
        (spare.data / "standby.signal").touch()
        shutil.chown(spare.data / "standby.signal", spare.data.owner())
        spare.start()
        db.connection = psycopg.connect(db.dsn, autocommit=True)
        db.execute("SELECT pg_promote()", INSERT.format(3))
        with db.opened(before[0]["position"], settings=kept) as log:
            after = read(log)
        assert after[0]["position"] == before[1]["position"]
        assert numbers(after) == [2, 3]
        assert [parse(event["position"]).timeline for event in after] == [1, 2]
        assert after[1]["position"] > after[0]["position"]
        # Something that was read on the old timeline behind the place where the new one begins.
        lost = str(Place(1, end.lsn + (1 << 24), 0))
        refused(db, "left timeline 1 at .* may never have happened", lost, settings=kept)
        refused(db, "has no timeline 7", str(Place(7, end.lsn)), settings=kept)


def test_invalidated_slot_is_recognised(spare: Postgres) -> None:
    with shop(spare, ORDERS) as db:
        with db.opened() as log:
            db.execute(INSERT.format(1))
            (event,) = read(log)
        until(lambda: not db.slot()["active"])
        db.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        for _ in range(5):
            db.execute("SELECT pg_switch_wal()", "CREATE TABLE x (a int)", "DROP TABLE x")
        db.execute("CHECKPOINT")
        assert db.slot()["wal_status"] == "lost"
        refused(db, "was invalidated.*changes are lost", event["position"])


def test_connection_that_breaks_is_made_anew_without_loss(db: Shop) -> None:
    with db.opened() as log:
        db.execute(INSERT.format(1))
        (event,) = read(log)
        db.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{db.name}'"
        )
        with pytest.raises(TransientError):
            for _ in range(50):
                log.read(0.2)
        log.close()
        db.execute(INSERT.format(2))
        log.open(event["position"])
        assert numbers(read(log)) == [2]


def test_lag_is_bytes_of_the_log(db: Shop) -> None:
    with db.opened() as log:
        db.execute(INSERT.format(1))
        (event,) = read(log)
        near = lag(db.source(), event["position"])
        db.execute("INSERT INTO orders SELECT generate_series(2, 1000)")
        far = lag(db.source(), event["position"])
    assert near is not None and far is not None
    assert near.unit == "bytes" and far.amount - near.amount > 50_000
    assert far.retained is not None and far.retained >= far.amount


# --- kills -----------------------------------------------------------------------------------


KILLED = """
import os, signal, sys
from dfc_runtime.sources import PostgresSource, postgres_log, postgres_publication, postgres_stream
from dfc_runtime.sources.settings import ReaderSettings

place, dsn, name, storage = sys.argv[1:]
module, _, function = place.partition(":")
where = getattr(sys.modules["dfc_runtime.sources." + module.split(".")[0]], module.split(".")[1]) \\
    if "." in module else sys.modules["dfc_runtime.sources." + module]
inner = getattr(where, function.lstrip("-"))

def killed(*args, **more):
    if function.startswith("-"):  # afterwards
        inner(*args, **more)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(where, function.lstrip("-"), killed)
log = postgres_log.PostgresLog(
    PostgresSource(id="shop", dsn=dsn, slot=name, publication=name, start_position="latest"),
    ReaderSettings.parse({"id": "shop", "pipeline": "p", "storage": storage}),
)
log.open("")
"""


@pytest.mark.parametrize(
    "place",
    [
        "postgres_publication.Publication:_create",
        "postgres_publication.Publication:-_create",
        "postgres_log:create_slot",
        "postgres_log:-create_slot",
        "postgres_log.Notes:-save",
        "postgres_stream.Stream:-start",
    ],
)
def test_killed_at_any_step_of_the_first_start_it_begins_well(
    db: Shop, kept: dict[str, str], place: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, place, db.dsn, db.name, kept["storage"]],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = db.slot() != {}
    until(lambda: not db.slot().get("active"))
    db.execute(INSERT.format(1))
    with db.opened(settings=kept) as log:
        db.execute(INSERT.format(2))
        assert numbers(read(log)) == ([1, 2] if before else [2])


def test_making_a_slot_waits_for_running_transactions_and_can_be_killed(
    db: Shop, kept: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    script = KILLED.replace("inner = getattr", "inner = print #")
    with db.other() as other, other.transaction():
        other.execute("INSERT INTO orders VALUES (1)")
        process = subprocess.Popen(
            [sys.executable, "-c", script, "postgres_log:none", db.dsn, db.name, kept["storage"]]
        )
        try:
            until(lambda: db.slot().get("active"), 60)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        log = db.log(kept)
        with pytest.raises(TransientError, match="is being made by process"):
            log.open("")
        log.close()
    with caplog.at_level(logging.INFO, "dfc.source"):
        until(lambda: not db.slot().get("active"))
        with db.opened(settings=kept) as log:
            db.execute(INSERT.format(2))
            assert 2 in numbers(read(log))


def test_events_of_a_log_are_the_same_whenever_they_are_read(db: Shop) -> None:
    with db.opened() as log:
        for number in range(5):
            db.execute(INSERT.format(number))
        target, first = log.head(), []
        while log.position < target:
            first += events(log.read(0.1))
    with db.opened() as log:
        assert read(log) == first
