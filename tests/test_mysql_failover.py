"""Servers that were replaced, logs that were removed or began anew: MariaDB, with replicas."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from dfc_runtime.sources.log import SourceError

from .mysql_logs import Writer, events, mysql_log
from .services import MariaDB
from .services.base import HOST, PASSWORD, USER
from .services.fixtures import Services


@pytest.fixture
def pair(services: Services) -> tuple[MariaDB, MariaDB]:
    """A server, and a replica of it with a log of its own that looks different."""
    first = services.start(MariaDB)
    second = services.start(MariaDB, config={"server-id": 2, "log-slave-updates": "ON"})
    replica = Writer(second, "mine")  # a transaction of its own, before all others
    replica("SET GLOBAL gtid_strict_mode = OFF")
    replica("RESET MASTER")
    replica("SET GLOBAL gtid_slave_pos = ''")
    replica(
        f"CHANGE MASTER TO MASTER_HOST = '{HOST}', MASTER_PORT = {first.port}, MASTER_USER = '{USER}',"
        f" MASTER_PASSWORD = '{PASSWORD}', MASTER_USE_GTID = slave_pos"
    )
    replica("START SLAVE")
    return first, second


def caught_up(first: MariaDB, second: MariaDB) -> None:
    (position,) = Writer(first, "shop")("SELECT @@gtid_binlog_pos")[0]
    assert Writer(second, "mine")("SELECT MASTER_GTID_WAIT(%s, 20)", position) == [(0,)]


def test_another_server_is_asked_for_what_was_not_delivered(
    pair: tuple[MariaDB, MariaDB], tmp_path: Path
) -> None:
    first, second = pair
    shop, kept = Writer(first, "shop"), tmp_path / "s.db"
    shop("CREATE TABLE t (id INT PRIMARY KEY, t TEXT)")
    log = mysql_log(first, "shop.t", storage=kept)
    log.open("")
    for number in range(6):
        with shop.transaction():
            shop.many(
                "INSERT INTO t VALUES (%s, %s)", [(10 * number + i, "x" * 200) for i in range(5)]
            )
    found = events(log)
    log.close()
    caught_up(first, second)
    shop("INSERT INTO t VALUES (100, 'last')")
    caught_up(first, second)
    # Everything up to the third transaction's end is delivered; then in the middle of it.
    moved = mysql_log(first, "shop.t", storage=kept, dsn=second.dsn)
    moved.open(found[14]["position"])
    later = events(moved)
    assert [e["after"]["id"] for e in later] == [*(e["after"]["id"] for e in found[15:]), 100]
    moved.close()
    assert later[-1]["position"] > found[-1]["position"]
    # Those that were handed out before have the places they had: a sink that has them drops them.
    assert [e["position"] for e in later[:-1]] == [e["position"] for e in found[15:]]
    # And from there on it is the new server's own log.
    again = mysql_log(first, "shop.t", storage=kept, dsn=second.dsn)
    again.open(later[-1]["position"])
    Writer(second, "shop")("INSERT INTO t VALUES (101, 'more')")
    assert [e["after"]["id"] for e in events(again)] == [101]
    again.close()


def test_nothing_new_on_another_server_is_a_place_too(
    pair: tuple[MariaDB, MariaDB], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `dfc run --once` would wait for an event that never comes."""
    first, second = pair
    shop, kept = Writer(first, "shop"), tmp_path / "s.db"
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log = mysql_log(first, "shop.t", storage=kept)
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    (event,) = events(log)
    log.close()
    caught_up(first, second)
    monkeypatch.setattr("dfc_runtime.sources.mysql_binlog.HEARTBEAT_SECS", 1)
    moved = mysql_log(first, "shop.t", storage=kept, dsn=second.dsn)
    moved.open(event["position"])
    assert events(moved) == [] and moved.position >= moved.head()
    Writer(second, "shop")("INSERT INTO t VALUES (2)")
    assert [e["after"]["id"] for e in events(moved)] == [2]
    moved.close()


def test_columns_without_names_are_looked_up_in_the_log_of_the_present_server(
    pair: tuple[MariaDB, MariaDB], tmp_path: Path
) -> None:
    first, second = pair
    for server in pair:
        Writer(server, "mine")("SET GLOBAL binlog_row_metadata = 'NO_LOG'")
    shop, kept = Writer(first, "shop"), tmp_path / "s.db"
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    shop("CREATE TABLE u (a INT PRIMARY KEY)")
    for number in range(30):  # so that the first server's log is the longer one
        shop(f"CREATE TABLE mine{number} (a INT PRIMARY KEY)")
        shop("FLUSH BINARY LOGS")
    log = mysql_log(first, "shop.t", "shop.u", storage=kept)
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    (event,) = events(log)
    log.close()
    shop("ALTER TABLE u ADD COLUMN b INT")
    shop("INSERT INTO u VALUES (2, 3)")
    caught_up(first, second)
    moved = mysql_log(first, "shop.t", "shop.u", storage=kept, dsn=second.dsn)
    moved.open(event["position"])
    assert [e["after"] for e in events(moved)] == [None, {"a": 2, "b": 3}]
    moved.close()


def cut(server: MariaDB) -> None:
    """Ends the log as a server does that dies in the middle of writing a transaction."""
    server.stop()
    last, *_ = sorted(server.data.glob("binlog.0*"), reverse=True)
    data = bytearray(last.read_bytes())
    at, ends = 4, []
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        ends.append((data[at + 4], at, at + size))
        at += size
    while ends[-1][0] != 16:  # the last transaction's end
        ends.pop()
    last.write_bytes(data[: ends[-1][1]])
    server.start()


def test_a_transaction_that_a_server_died_in_is_no_event(services: Services) -> None:
    server = services.start(MariaDB)
    shop = Writer(server, "shop")
    shop("CREATE TABLE t (id INT PRIMARY KEY) ENGINE = InnoDB")
    log = mysql_log(server, "shop.t")
    begin = log.open("")
    shop("INSERT INTO t VALUES (1)")
    shop("INSERT INTO t VALUES (2)")
    log.close()
    cut(server)
    Writer(server, "shop")("INSERT INTO t VALUES (3)")
    log.open(begin)
    assert [e["after"]["id"] for e in events(log)] == [1, 3]
    log.close()


def test_a_server_that_lacks_what_was_delivered_is_refused(
    pair: tuple[MariaDB, MariaDB], tmp_path: Path
) -> None:
    first, second = pair
    shop, kept = Writer(first, "shop"), tmp_path / "s.db"
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    caught_up(first, second)
    Writer(second, "mine")("STOP SLAVE")
    log = mysql_log(first, "shop.t", storage=kept)
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    (event,) = events(log)
    log.close()
    moved = mysql_log(first, "shop.t", storage=kept, dsn=second.dsn)
    with pytest.raises(SourceError, match=r"GTID 0-1-\d+, which is not in the master's binlog"):
        moved.open(event["position"])
        events(moved)
    moved.close()
    # Without notes nothing can be proved at all.
    stranger = mysql_log(first, "shop.t", storage=tmp_path / "other.db", dsn=second.dsn)
    with pytest.raises(SourceError, match="notes"):
        stranger.open(event["position"])


def test_a_server_that_cuts_transactions_differently_is_refused(
    pair: tuple[MariaDB, MariaDB], tmp_path: Path
) -> None:
    """Places inside a transaction would not be the same ones there."""
    first, second = pair
    second.stop()
    second.config["binlog-row-event-max-size"] = 256
    second.start()
    shop, kept = Writer(first, "shop"), tmp_path / "s.db"
    shop("CREATE TABLE t (id INT PRIMARY KEY, t TEXT)")
    log = mysql_log(first, "shop.t", storage=kept)
    log.open("")
    shop("INSERT INTO t VALUES (0, '')")
    shop.many("INSERT INTO t VALUES (%s, %s)", [(i, "x" * 200) for i in range(1, 6)])
    found = events(log)
    log.close()
    caught_up(first, second)
    moved = mysql_log(first, "shop.t", storage=kept, dsn=second.dsn)
    moved.open(found[0]["position"])
    with pytest.raises(SourceError, match="cut into other events"):
        events(moved)
    moved.close()


def test_removed_files_are_noticed_before_they_are_asked_for(
    services: Services, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = services.start(MariaDB)
    shop, kept = Writer(server, "shop"), tmp_path / "s.db"
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log = mysql_log(server, "shop.t", storage=kept)
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    (event,) = events(log)
    shop("FLUSH BINARY LOGS")
    shop("INSERT INTO t VALUES (2)")
    events(log)
    shop("FLUSH BINARY LOGS")
    until = time.monotonic() + 30
    while shop("SHOW BINARY LOGS")[0][0] != "binlog.000003":  # once the engine lets them go
        assert time.monotonic() < until
        log.read(0.1)
        shop("FLUSH ENGINE LOGS")
        shop("PURGE BINARY LOGS TO 'binlog.000003'")
    log.durable(event["position"])
    assert "has removed binlog.000001, which the sinks still need" in caplog.text
    log.close()
    with pytest.raises(
        SourceError, match=r"removed binlog\.000001.*oldest it has is binlog\.000003"
    ):
        log.open(event["position"])
    # A log that began anew under the same names is another log, even if it is longer by now.
    shop("RESET MASTER")
    for number in range(10, 20):
        shop("INSERT INTO t VALUES (%s)", number)
    with pytest.raises(SourceError, match=r"log of server .* is not the one that was read before"):
        log.open(event["position"])
        events(log)
