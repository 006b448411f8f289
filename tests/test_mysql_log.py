"""The binary log of a real MariaDB as events."""

from __future__ import annotations

import random
from collections.abc import Iterator
from zlib import crc32

import pytest
from dfc_runtime.sources.mysql_binlog import Frames
from dfc_runtime.sources.mysql_log import BinlogLog
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from .mysql_logs import Writer, batches, decoded, events, mysql_log
from .services import MariaDB


@pytest.fixture
def shop(mariadb_server: MariaDB, request: pytest.FixtureRequest) -> Writer:
    """A database of the test's own."""
    name = f"d{crc32(request.node.name.encode())}"
    writer = Writer(mariadb_server, name)
    writer(f"DROP DATABASE `{name}`")
    return Writer(mariadb_server, name)


@pytest.fixture
def log(shop: Writer) -> Iterator[BinlogLog]:
    made = mysql_log(shop.server, f"{shop.database}.*")
    yield made
    made.close()


def test_changes_of_rows_come_as_they_were_made(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE orders (id INT PRIMARY KEY, name VARCHAR(20), doc JSON)")
    log.open("")
    with shop.transaction():
        shop("INSERT INTO orders VALUES (1, 'a', '{\"x\": 1}'), (2, 'b', NULL)")
        shop("UPDATE orders SET name = 'ä' WHERE id = 2")
    shop("DELETE FROM orders WHERE id = 1")
    found = events(log)
    assert [(e["op"], e["before"], e["after"]) for e in found] == [
        ("c", None, {"id": 1, "name": "a", "doc": {"x": 1}}),
        ("c", None, {"id": 2, "name": "b", "doc": None}),
        ("u", {"id": 2, "name": "b", "doc": None}, {"id": 2, "name": "ä", "doc": None}),
        ("d", {"id": 1, "name": "a", "doc": {"x": 1}}, None),
    ]
    assert [e["primary_key"] for e in found] == [{"id": 1}, {"id": 2}, {"id": 2}, {"id": 1}]
    assert [e["tx_end"] for e in found] == [False, False, True, True]
    assert [e["transaction"]["total_order"] for e in found] == [1, 2, 3, 1]
    assert len({e["transaction"]["id"] for e in found}) == 2
    assert found == sorted(found, key=lambda e: e["position"])
    assert len({e["position"] for e in found}) == len({e["event_id"] for e in found}) == 4


def test_source_and_transaction_say_where_an_event_is_from(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE a (id INT PRIMARY KEY)")
    shop("CREATE TABLE b (id INT PRIMARY KEY)")
    log.open("")
    with shop.transaction():
        shop("INSERT INTO a VALUES (1), (2)")
        shop("INSERT INTO b VALUES (1)")
        shop("INSERT INTO a VALUES (3)")
    gtid = shop("SELECT @@last_gtid")[0][0]
    found = events(log)
    places = [(e["source"]["table"], e["source"]["row"]) for e in found]
    assert places == [("a", 0), ("a", 1), ("b", 0), ("a", 0)]
    orders = [
        (e["transaction"]["total_order"], e["transaction"]["data_collection_order"]) for e in found
    ]
    assert orders == [(1, 1), (2, 2), (3, 1), (4, 3)]
    assert {e["transaction"]["id"] for e in found} == {e["source"]["gtid"] for e in found} == {gtid}
    assert [e["tx_end"] for e in found] == [False, False, False, True]
    source = found[0]["source"]
    assert list(source) == [
        "version", "connector", "name", "ts_ms", "db", "table", "server_id", "gtid", "file", "pos", "row",
    ]  # fmt: skip
    assert (source["connector"], source["name"], source["db"]) == ("mysql", "p", shop.database)
    assert source["server_id"] == 1 and source["ts_ms"] == found[0]["ts_ms"]
    file, pos = source["file"], source["pos"]
    rows = shop(f"SHOW BINLOG EVENTS IN '{file}'")
    assert [row[2] for row in rows if row[4] == pos] == ["Write_rows_v1"]


def test_tx_end_is_on_the_last_event_that_is_captured(shop: Writer) -> None:
    shop("CREATE TABLE a (id INT PRIMARY KEY)")
    shop("CREATE TABLE b (id INT PRIMARY KEY)")
    log = mysql_log(shop.server, f"{shop.database}.a")
    log.open("")
    with shop.transaction():
        shop("INSERT INTO a VALUES (1)")
        shop("INSERT INTO b VALUES (1)")
    with shop.transaction():
        shop("INSERT INTO b VALUES (2)")
    assert [(e["table"], e["tx_end"]) for e in events(log)] == [("a", True)]
    log.close()


def test_truncate_and_ddl_are_events_of_captured_tables(shop: Writer) -> None:
    shop("CREATE TABLE a (id INT PRIMARY KEY)")
    shop("CREATE TABLE b (id INT PRIMARY KEY)")
    log = mysql_log(shop.server, f"{shop.database}.a")
    log.open("")
    shop("INSERT INTO a VALUES (1)")
    shop("ALTER TABLE a ADD COLUMN n TEXT")
    shop("ALTER TABLE b ADD COLUMN n TEXT")
    shop("TRUNCATE TABLE b")
    shop("INSERT INTO a VALUES (2, 'x')")
    shop("TRUNCATE a")
    shop("CREATE TEMPORARY TABLE c (id INT)")
    shop("DROP TABLE b")
    shop("DROP TABLE a")
    found = events(log)
    told = [(e["op"], e["table"], e["after"], (e["ddl"] or {}).get("sql")) for e in found]
    assert told == [
        ("c", "a", {"id": 1}, None),
        ("r", "_ddl", None, "ALTER TABLE a ADD COLUMN n TEXT"),
        ("c", "a", {"id": 2, "n": "x"}, None),
        ("t", "a", None, None),
        ("r", "_ddl", None, told[4][3]),
    ]
    assert told[4][3].startswith("DROP TABLE `a`")
    assert all(e["tx_end"] and e["db"] == shop.database for e in found)
    assert len({e["event_id"] for e in found}) == 5
    log.close()


def test_names_are_those_of_the_moment_across_alters_and_swaps(
    shop: Writer, log: BinlogLog
) -> None:
    """Read far behind, when the catalog has only the last of them."""
    shop("CREATE TABLE orders (id INT PRIMARY KEY, a INT)")
    log.open("")
    shop("INSERT INTO orders VALUES (1, 1)")
    shop("ALTER TABLE orders CHANGE a b INT")
    shop("INSERT INTO orders VALUES (2, 2)")
    shop("ALTER TABLE orders DROP COLUMN b, ADD COLUMN a INT")
    shop("INSERT INTO orders VALUES (3, 3)")
    # as gh-ost and pt-online-schema-change do it
    shop("CREATE TABLE _orders_gho (id INT PRIMARY KEY, a INT, c VARCHAR(5))")
    shop("INSERT INTO _orders_gho SELECT id, a, 'c' FROM orders")
    shop("RENAME TABLE orders TO _orders_del, _orders_gho TO orders")
    shop("INSERT INTO orders VALUES (4, 4, 'd')")
    shop("DROP TABLE _orders_del")
    found = events(log)
    rows = [e["after"] for e in found if e["table"] == "orders"]
    assert rows == [
        {"id": 1, "a": 1},
        {"id": 2, "b": 2},
        {"id": 3, "a": 3},
        {"id": 4, "a": 4, "c": "d"},
    ]
    versions = [e["schema_version"] for e in found if e["table"] == "orders"]
    assert versions[0] == versions[2] and len(set(versions)) == 3
    sqls = [e["ddl"]["sql"].split()[0] for e in found if e["ddl"]]
    assert sqls == ["ALTER", "ALTER", "CREATE", "RENAME", "DROP"]


@pytest.mark.parametrize(
    "patterns, taken",
    [
        (("{a}.orders",), {"{a}.orders"}),
        (("{a}.*",), {"{a}.orders", "{a}.order_lines", "{a}.other"}),
        (("{a}.order%",), {"{a}.orders", "{a}.order_lines"}),
        (("{a}.order__",), set()),
        (("{a}.%_lines",), {"{a}.order_lines"}),
        (("{a}.orders", "{b}.orders"), {"{a}.orders", "{b}.orders"}),
        (("mysql.*",), set()),
    ],
)
def test_table_patterns_choose(
    mariadb_server: MariaDB, patterns: tuple[str, ...], taken: set[str]
) -> None:
    names = {"a": "pattern_a", "b": "pattern_b"}
    writers = [Writer(mariadb_server, name) for name in names.values()]
    for writer in writers:
        for table in ("orders", "order_lines", "other"):
            writer(f"CREATE TABLE IF NOT EXISTS {table} (id INT)")
    log = mysql_log(mariadb_server, *(p.format(**names) for p in patterns))
    log.open("")
    for writer in writers:
        for table in ("orders", "order_lines", "other"):
            writer(f"INSERT INTO {table} VALUES (1)")
    writers[0]("CREATE OR REPLACE TABLE mysql.not_ours (id INT)")
    writers[0]("INSERT INTO mysql.not_ours VALUES (1)")
    found = {f"{e['db']}.{e['table']}" for e in events(log)}
    assert found == {name.format(**names) for name in taken}
    log.close()


def test_no_patterns_mean_every_user_table(shop: Writer) -> None:
    log = mysql_log(shop.server)
    shop("CREATE TABLE t (id INT)")
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    shop("CREATE OR REPLACE TABLE mysql.not_ours (id INT)")
    shop("INSERT INTO mysql.not_ours VALUES (1)")
    found = [(e["db"], e["table"]) for e in events(log)]
    assert found == [(shop.database, "t")]
    log.close()


def test_every_change_of_an_outbox_table_is_marked(shop: Writer) -> None:
    """Also of a BLACKHOLE table, where the server has that engine: its rows are in the log alone."""
    there = shop("SELECT 1 FROM information_schema.ENGINES WHERE ENGINE = 'BLACKHOLE'")
    engine = "BLACKHOLE" if there else "MyISAM"
    shop(f"CREATE TABLE outbox (id INT PRIMARY KEY, payload TEXT) ENGINE = {engine}")
    shop("CREATE TABLE orders (id INT PRIMARY KEY)")
    shop("CREATE TABLE messages (id INT PRIMARY KEY)")
    db = shop.database
    log = mysql_log(shop.server, f"{db}.*", outbox=(f"{db}.outbox", f"{db}.mess%"))
    log.open("")
    shop("INSERT INTO orders VALUES (1)")
    shop("INSERT INTO outbox VALUES (1, '{}')")
    shop("INSERT INTO messages VALUES (1)")
    shop("DELETE FROM messages")
    found = [(e["op"], e["table"], e["schema"], e["source"].get("schema")) for e in events(log)]
    mark = "__outbox"
    assert found == [
        ("c", "orders", None, None),
        ("c", "outbox", mark, mark),
        ("c", "messages", mark, mark),
        ("d", "messages", mark, mark),
    ]
    log.close()


def test_reading_again_from_any_event_gives_what_is_behind_it(shop: Writer) -> None:
    shop("CREATE TABLE a (id INT PRIMARY KEY, t TEXT)")
    shop("CREATE TABLE b (id INT)")
    log = mysql_log(shop.server, f"{shop.database}.*")
    begin = log.open("")
    for n in range(3):
        with shop.transaction():
            shop.many("INSERT INTO a VALUES (%s, %s)", [(10 * n + i, "x" * 400) for i in range(7)])
            shop("INSERT INTO b VALUES (%s), (%s)", n, n)
        shop("UPDATE a SET t = 'y' WHERE id >= %s", 10 * n)
    shop("TRUNCATE TABLE b")
    shop("FLUSH BINARY LOGS")
    shop("INSERT INTO b VALUES (7)")
    whole = events(log)
    assert len(whole) == 3 * 9 + 3 * 7 + 2
    for number in range(0, len(whole), 7):
        log.open(whole[number]["position"])
        assert events(log) == whole[number + 1 :]
    log.open(begin)
    assert events(log) == whole
    log.close()


@pytest.mark.parametrize("furthest", [300, 2_000])
def test_a_place_beyond_what_can_be_asked_for_is_gone_on_from(
    shop: Writer, monkeypatch: pytest.MonkeyPatch, furthest: int
) -> None:
    """The question for a log has four bytes for the offset; here it has less."""
    shop("CREATE TABLE a (id INT PRIMARY KEY, t TEXT)")
    log = mysql_log(shop.server, f"{shop.database}.*")
    shop("FLUSH BINARY LOGS")
    begin = log.open("")
    for n in range(8):
        shop.many("INSERT INTO a VALUES (%s, %s)", [(10 * n + i, "x" * 100) for i in range(5)])
    shop("FLUSH BINARY LOGS")
    shop("INSERT INTO a VALUES (1000, 'next')")
    whole = events(log)
    assert len(whole) == 41
    monkeypatch.setattr("dfc_runtime.sources.mysql_binlog.FURTHEST", furthest)
    room = Frames._make_room
    for size in (1 << 20, 700):
        monkeypatch.setattr(Frames, "_make_room", lambda self, size=size: room(self)[:size])
        for number in range(-1, len(whole), 6):
            log.open(begin if number < 0 else whole[number]["position"])
            assert events(log) == whole[number + 1 :]
    log.close()


def test_places_of_events_have_more_than_the_four_bytes_that_the_log_tells() -> None:
    frames = Frames(100)
    found = [0xFFFFFF00, 0, 0x10, 0x30, 0, 0x20]
    frames.events[:6, 3] = found
    frames.events[:6, 0] = [30, 30, 30, 4, 15, 30]
    frames.count = 6
    high = 1 << 32
    ends = frames.ends(0xFFFFFE00).tolist()
    assert ends == [0xFFFFFF00, 0xFFFFFF00, high + 0x10, high + 0x30, 4, 0x20]


def test_a_large_transaction_comes_in_pieces_that_make_the_same_events(
    shop: Writer, log: BinlogLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop("CREATE TABLE a (id INT PRIMARY KEY, t TEXT)")
    shop("CREATE TABLE b (id INT PRIMARY KEY)")
    begin = log.open("")
    with shop.transaction():
        for n in range(20):
            rows = [(100 * n + i, "x" * 20) for i in range(100)]
            shop.many("INSERT INTO a VALUES (%s, %s)", rows)
            shop("INSERT INTO b VALUES (%s)", n)
    whole = events(log)
    assert len(whole) == 2020
    assert [e["tx_end"] for e in whole] == [False] * 2019 + [True]
    assert [e["transaction"]["total_order"] for e in whole] == list(range(1, 2021))
    monkeypatch.setattr("dfc_runtime.sources.mysql_log.PIECE_BYTES", 5_000)
    monkeypatch.setattr("dfc_runtime.sources.mysql_binlog.AT_ONCE", 6_000)
    room = Frames._make_room
    monkeypatch.setattr(Frames, "_make_room", lambda self: room(self)[:4_000])
    log.open(begin)
    pieces = batches(log)
    assert len(pieces) > 8
    assert [e for piece in pieces for e in decoded(piece)] == whole
    log.open(whole[1234]["position"])
    assert events(log) == whole[1235:]


def test_python_mysql_replication_sees_the_same_rows(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE a (id INT PRIMARY KEY, n BIGINT UNSIGNED, t VARCHAR(99))")
    log.open("")
    file, offset, *_ = shop("SHOW MASTER STATUS")[0]
    chance = random.Random(5)
    for _ in range(60):
        key, value = chance.randrange(12), chance.randrange(2**64)
        if chance.random() < 0.1:
            with shop.transaction():
                shop("DELETE FROM a WHERE id > 6")
                shop("INSERT INTO a VALUES (7, %s, 'in')", value)
        elif chance.random() < 0.3:
            shop("DELETE FROM a WHERE id = %s", key)
        else:
            shop("REPLACE INTO a VALUES (%s, %s, 'ü')", key, value)
    settings = {
        "host": "127.0.0.1", "port": shop.server.port, "user": "dfc", "passwd": "dfc",
    }  # fmt: skip
    stream = BinLogStreamReader(
        settings,
        server_id=4711,
        log_file=file,
        log_pos=offset,
        resume_stream=True,
        only_schemas=[shop.database],
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    theirs: list[object] = []
    for event in stream:
        for row in event.rows:
            if isinstance(event, UpdateRowsEvent):
                theirs.append(("u", row["before_values"], row["after_values"]))
            elif isinstance(event, WriteRowsEvent):
                theirs.append(("c", None, row["values"]))
            else:
                theirs.append(("d", row["values"], None))
    stream.close()
    assert [(e["op"], e["before"], e["after"]) for e in events(log)] == theirs
    assert len(theirs) > 40
