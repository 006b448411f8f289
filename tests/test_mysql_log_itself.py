"""The binary log of MySQL itself: what MariaDB does not have, or does differently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from dfc_runtime.sources.mysql_log import BinlogLog

from .mysql_logs import Writer, events, mysql_log
from .services.mysql import MySQL

pytestmark = pytest.mark.mysql


@pytest.fixture
def shop(mysql_server: MySQL, request: pytest.FixtureRequest) -> Writer:
    name = f"i{crc32(request.node.name.encode())}"
    writer = Writer(mysql_server, name)
    writer(f"DROP DATABASE `{name}`")
    return Writer(mysql_server, name)


@pytest.fixture
def log(shop: Writer) -> Iterator[BinlogLog]:
    made = mysql_log(shop.server, f"{shop.database}.*")
    yield made
    made.close()


def told(found: list[dict[str, object]]) -> list[object]:
    return [(e["op"], (e["after"] or e["before"] or {}).get("id")) for e in found]  # type: ignore[attr-defined]


def replayed(log: BinlogLog, begin: str, whole: list[dict[str, object]]) -> None:
    """From every event the rest comes again, and nothing else."""
    for number in range(-1, len(whole)):
        log.open(begin if number < 0 else str(whole[number]["position"]))
        assert events(log) == whole[number + 1 :]


def test_rows_truncates_and_ddl(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY, n JSON)")
    begin = log.open("")
    now = time.time() * 1000
    with shop.transaction():
        shop("INSERT INTO t VALUES (1, '{\"a\": [1, 2.5]}'), (2, NULL)")
        shop("UPDATE t SET n = '[]' WHERE id = 2")
    shop("ALTER TABLE t ADD COLUMN c VARCHAR(9) FIRST")
    shop("DELETE FROM t WHERE id = 1")
    shop("TRUNCATE TABLE t")
    shop("CREATE TABLE copied SELECT 7 AS id")
    shop("DROP TABLE copied")
    found = events(log)
    assert told(found) == [
        ("c", 1), ("c", 2), ("u", 2), ("r", None), ("d", 1), ("t", None), ("r", None), ("c", 7), ("r", None),
    ]  # fmt: skip
    assert found[0]["after"] == {"id": 1, "n": {"a": [1, 2.5]}}
    assert list(found[4]["before"]) == ["c", "id", "n"]
    uuid = shop("SELECT @@server_uuid")[0][0]
    assert all(e["source"]["gtid"].startswith(f"{uuid}:") for e in found)
    assert all(abs(e["ts_ms"] - now) < 60_000 for e in found)
    assert any(e["ts_ms"] % 1000 for e in found)  # finer than the headers' seconds
    assert all(e["source"]["ts_us"] // 1000 == e["ts_ms"] for e in found)
    assert list(found[0]["source"])[-2:] == ["row", "ts_us"]
    assert [e["tx_end"] for e in found[:3]] == [False, False, True]
    replayed(log, begin, found)


def test_compressed_transactions_are_read(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY, s TEXT)")
    begin = log.open("")
    shop("SET SESSION binlog_transaction_compression = ON")
    with shop.transaction():
        shop("INSERT INTO t VALUES (1, REPEAT('a', 5000)), (2, 'b')")
        shop("UPDATE t SET s = 'c' WHERE id = 2")
    shop("DELETE FROM t WHERE id = 1")
    shop("SET SESSION binlog_transaction_compression = OFF")
    shop("INSERT INTO t VALUES (3, 'd')")
    found = events(log)
    assert told(found) == [("c", 1), ("c", 2), ("u", 2), ("d", 1), ("c", 3)]
    assert [e["tx_end"] for e in found] == [False, False, True, True, True]
    assert [e["transaction"]["total_order"] for e in found] == [1, 2, 3, 1, 1]
    assert len({e["event_id"] for e in found}) == len({e["position"] for e in found}) == 5
    kinds = {row[2] for row in shop(f"SHOW BINLOG EVENTS IN '{found[0]['source']['file']}'")}
    assert "Transaction_payload" in kinds
    replayed(log, begin, found)


@pytest.mark.parametrize("room, most", [(32, 1 << 17), (1 << 15, 16), (32, 16)])
def test_a_compressed_transaction_of_many_events_is_read_whole(
    shop: Writer, log: BinlogLog, monkeypatch: pytest.MonkeyPatch, room: int, most: int
) -> None:
    """Neither the room for rows events nor that for events of any kind is an end of it."""
    shop("CREATE TABLE t (id INT PRIMARY KEY, s TEXT)")
    begin = log.open("")
    shop("SET SESSION binlog_transaction_compression = ON")
    with shop.transaction():
        for number in range(70):
            shop("INSERT INTO t VALUES (%s, 's')", number)
    shop("SET SESSION binlog_transaction_compression = OFF")
    shop("INSERT INTO t VALUES (100, 's')")
    monkeypatch.setattr("dfc_runtime.sources.mysql_walk._ROOM", room)
    monkeypatch.setattr("dfc_runtime.sources.mysql_binlog.MOST_EVENTS", most)
    log.open(begin)
    found = events(log)
    assert told(found) == [("c", number) for number in (*range(70), 100)]
    assert [e["transaction"]["total_order"] for e in found] == [*range(1, 71), 1]
    assert [e["tx_end"] for e in found] == [False] * 69 + [True] * 2
    log.open(str(found[40]["position"]))
    assert events(log) == found[41:]


def test_partial_updates_of_json_are_whole_documents(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY, d JSON)")
    shop(
        'INSERT INTO t VALUES (1, \'{"a": 1, "b": {"c": [1, 2, 3]}, "long": "xxxxxxxxxxxxxxxx"}\')'
    )
    log.open("")
    shop("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'")
    shop("UPDATE t SET d = JSON_SET(d, '$.b.c[1]', 'two')")
    shop("UPDATE t SET d = JSON_REMOVE(d, '$.a')")
    found = events(log)
    long = {"long": "x" * 16}
    assert found[0]["after"]["d"] == {"a": 1, "b": {"c": [1, "two", 3]}, **long}
    assert found[1]["before"]["d"] == found[0]["after"]["d"]
    assert found[1]["after"]["d"] == {"b": {"c": [1, "two", 3]}, **long}


def test_gtids_with_tags(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    begin = log.open("")
    shop("SET gtid_next = 'AUTOMATIC:loader'")
    with shop.transaction():
        shop("INSERT INTO t VALUES (1), (2)")
    shop("SET gtid_next = 'AUTOMATIC'")
    shop("INSERT INTO t VALUES (3)")
    found = events(log)
    uuid = shop("SELECT @@server_uuid")[0][0]
    assert [e["source"]["gtid"].rpartition(":")[0] for e in found] == [
        f"{uuid}:loader", f"{uuid}:loader", uuid,
    ]  # fmt: skip
    assert found[0]["ts_ms"] > 1_700_000_000_000
    replayed(log, begin, found)


def test_xa_transactions_count_when_they_are_committed(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    begin = log.open("")
    others = [Writer(shop.server, shop.database) for _ in range(3)]
    for number, other in enumerate(others):
        other(f"XA START 'x{number}', 'b'")
        other("INSERT INTO t VALUES (%s)", number)
        other(f"XA END 'x{number}', 'b'")
        if number < 2:
            other(f"XA PREPARE 'x{number}', 'b'")
    shop("INSERT INTO t VALUES (9)")
    others[0]("XA ROLLBACK 'x0', 'b'")
    others[1]("XA COMMIT 'x1', 'b'")
    others[2]("XA COMMIT 'x2', 'b' ONE PHASE")
    found = events(log)
    assert told(found) == [("c", 9), ("c", 1), ("c", 2)]
    assert all(e["tx_end"] for e in found)
    replayed(log, begin, found)


def test_another_server_is_asked_by_gtid(shop: Writer, tmp_path: Path) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    kept = tmp_path / "s.db"
    log = mysql_log(shop.server, f"{shop.database}.t", storage=kept)
    log.open("")
    for number in range(5):
        shop("INSERT INTO t VALUES (%s)", number)
    found = events(log)
    assert log._notes is not None
    log._notes.eras[0].server = "the one before"  # as if all of it had come from another
    log.close()
    log.open(found[1]["position"])
    rest = events(log)
    assert [e["position"] for e in rest] == [e["position"] for e in found[2:]]
    shop("INSERT INTO t VALUES (5)")
    (new,) = events(log)
    assert new["after"] == {"id": 5} and new["position"].startswith("0001.")
    log.close()


def test_without_gtids_places_name_the_transactions(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    root = Writer(shop.server, shop.database)
    steps = ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF")
    for step in steps:
        root(f"SET GLOBAL gtid_mode = {step}")
    try:
        begin = log.open("")
        shop("INSERT INTO t VALUES (1), (2)")
        shop("INSERT INTO t VALUES (3)")
        found = events(log)
        assert told(found) == [("c", 1), ("c", 2), ("c", 3)]
        assert "gtid" not in found[0]["source"]
        file = found[0]["source"]["file"]
        assert found[0]["transaction"]["id"].startswith(f"{file}:")
        assert len({e["transaction"]["id"] for e in found}) == 2
        replayed(log, begin, found)
    finally:
        for step in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
            root(f"SET GLOBAL gtid_mode = {step}")


def test_blackhole_outboxes_and_plain_logins(shop: Writer) -> None:
    shop("CREATE TABLE outbox (id INT PRIMARY KEY, payload JSON) ENGINE = BLACKHOLE")
    dsn = f"{shop.server.dsn}?ssl-mode=DISABLED"  # type: ignore[attr-defined]
    log = mysql_log(shop.server, f"{shop.database}.*", outbox=(f"{shop.database}.outbox",), dsn=dsn)
    log.open("")
    shop("INSERT INTO outbox VALUES (1, '{}')")
    (event,) = events(log)
    assert (event["schema"], event["after"]) == ("__outbox", {"id": 1, "payload": {}})
    log.close()


@pytest.mark.parametrize("how", ["DISABLED", "REQUIRED"])
def test_a_login_that_the_server_does_not_remember(shop: Writer, how: str) -> None:
    """The first one of an account is another exchange than those behind it, with TLS and without."""
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    server = shop.server
    assert isinstance(server, MySQL)
    log = mysql_log(server, f"{shop.database}.*", dsn=f"{server.dsn}?ssl-mode={how}")
    shop("FLUSH PRIVILEGES")
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    assert told(events(log)) == [("c", 1)]
    log.close()
