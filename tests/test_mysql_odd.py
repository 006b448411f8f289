"""What is not plain rows in the binary log: XA, savepoints, statements, compression, lost links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from dfc_runtime.sources.log import SourceError, TransientError
from dfc_runtime.sources.mysql_log import BinlogLog

from .mysql_logs import Writer, client, events, mysql_log, wait_for
from .services import MariaDB
from .services.fixtures import Services


@pytest.fixture
def shop(mariadb_server: MariaDB, request: pytest.FixtureRequest) -> Writer:
    name = f"o{crc32(request.node.name.encode())}"
    writer = Writer(mariadb_server, name)
    writer(f"DROP DATABASE `{name}`")
    return Writer(mariadb_server, name)


@pytest.fixture
def log(shop: Writer) -> Iterator[BinlogLog]:
    made = mysql_log(shop.server, f"{shop.database}.*")
    yield made
    made.close()


def keys(found: list[dict[str, object]]) -> list[object]:
    return [(e["op"], (e["after"] or e["before"] or {}).get("id")) for e in found]  # type: ignore[attr-defined]


def test_an_xa_transaction_counts_when_it_is_committed(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY, n INT) ENGINE = InnoDB")
    begin = log.open("")
    others = {xid: Writer(shop.server, shop.database) for xid in ("one", "two")}
    for xid, rows in (("one", (1, 2)), ("two", (3, 4))):
        other = others[xid]
        other(f"XA START '{xid}'")
        for row in rows:
            other("INSERT INTO t VALUES (%s, 0)", row)
        other(f"XA END '{xid}'")
        other(f"XA PREPARE '{xid}'")
    shop("INSERT INTO t VALUES (5, 0)")
    others["one"]("XA ROLLBACK 'one'")
    others["two"]("XA COMMIT 'two'")
    shop("INSERT INTO t VALUES (6, 0)")
    found = events(log)
    assert keys(found) == [("c", 5), ("c", 3), ("c", 4), ("c", 6)]
    assert [e["tx_end"] for e in found] == [True, False, True, True]
    assert [e["transaction"]["total_order"] for e in found] == [1, 1, 2, 1]
    assert len({e["event_id"] for e in found}) == len({e["position"] for e in found}) == 4
    for number in range(4):  # what was prepared stands before these places
        log.open(found[number]["position"])
        assert events(log) == found[number + 1 :]
    log.open(begin)
    assert events(log) == found


@pytest.mark.parametrize("files", [0, 2])
def test_the_rows_of_an_xa_transaction_prepared_before_the_first_start_are_looked_for(
    shop: Writer, log: BinlogLog, files: int
) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY) ENGINE = InnoDB")
    for name, row in (("other", 7), ("early", 1)):
        other = Writer(shop.server, shop.database)
        other(f"XA START '{name}'")
        other("INSERT INTO t VALUES (%s)", row)
        other(f"XA END '{name}'")
        other(f"XA PREPARE '{name}'")
        other.connection.close()
    for _ in range(files):
        shop("FLUSH BINARY LOGS")
    begin = log.open("")
    shop("XA COMMIT 'early'")
    shop("XA ROLLBACK 'other'")
    shop("INSERT INTO t VALUES (2)")
    found = events(log)
    assert keys(found) == [("c", 1), ("c", 2)]
    log.open(begin)
    assert events(log) == found


def test_an_xa_transaction_whose_first_part_is_gone_stops_the_source(services: Services) -> None:
    server = services.start(MariaDB)
    shop = Writer(server, "gone")
    shop("CREATE TABLE t (id INT PRIMARY KEY) ENGINE = InnoDB")
    other = Writer(server, "gone")
    other("XA START 'early'")
    other("INSERT INTO t VALUES (1)")
    other("XA END 'early'")
    other("XA PREPARE 'early'")
    other.connection.close()
    shop("FLUSH BINARY LOGS")
    shop("FLUSH ENGINE LOGS")
    wait_for(
        lambda: (shop("PURGE BINARY LOGS TO 'binlog.000002'"), shop("SHOW BINARY LOGS"))[1][0][0]
        == "binlog.000002"
    )
    log = mysql_log(server, "gone.*")
    log.open("")
    shop("XA COMMIT 'early'")
    with pytest.raises(SourceError, match="part of the log that the server has removed"):
        events(log)
    log.close()


def test_what_was_rolled_back_is_no_event(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY) ENGINE = InnoDB")
    shop("CREATE TABLE flat (id INT PRIMARY KEY) ENGINE = MyISAM")
    log.open("")
    with shop.transaction():
        shop("INSERT INTO t VALUES (1)")
        shop("SAVEPOINT a")
        shop("INSERT INTO t VALUES (2)")
        shop("ROLLBACK TO SAVEPOINT a")
        shop("INSERT INTO t VALUES (3)")
    shop("BEGIN")
    shop("INSERT INTO t VALUES (4)")
    shop("INSERT INTO flat VALUES (5)")
    shop("ROLLBACK")
    with shop.transaction():
        shop("INSERT INTO t VALUES (6)")
        shop("SAVEPOINT a")
        shop("INSERT INTO flat VALUES (7)")
        shop("INSERT INTO t VALUES (8)")
        shop("ROLLBACK TO SAVEPOINT a")
    found = events(log)
    ids = [e["after"]["id"] for e in found]
    rows = {row[0] for table in ("t", "flat") for row in shop(f"SELECT id FROM {table}")}
    assert set(ids) == rows == {1, 3, 5, 6, 7}
    assert len(ids) == 5


def test_changes_written_as_statements_stop_the_source(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    shop("CREATE TABLE u (id INT PRIMARY KEY)")
    log.open("")
    shop("SET SESSION binlog_format = 'STATEMENT'")
    shop("INSERT INTO t VALUES (1)")
    with pytest.raises(SourceError, match=r"INSERT on .*\.t to the log as a statement.*ROW"):
        events(log)


def test_compressed_events_are_read(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(2000))")
    begin = log.open("")
    shop("SET GLOBAL log_bin_compress = ON")
    try:
        other = Writer(shop.server, shop.database)
        other("INSERT INTO t VALUES (1, REPEAT('ab', 500)), (2, NULL)")
        other("UPDATE t SET a = REPEAT('c', 400)")
        other(f"ALTER TABLE t COMMENT '{'long ' * 100}'")
        other("DELETE FROM t")
    finally:
        shop("SET GLOBAL log_bin_compress = OFF")
    shop("INSERT INTO t VALUES (3, 'plain')")
    found = events(log)
    assert keys(found) == [
        ("c", 1), ("c", 2), ("u", 1), ("u", 2), ("r", None), ("d", 1), ("d", 2), ("c", 3),
    ]  # fmt: skip
    assert found[0]["after"]["a"] == "ab" * 500 and found[2]["after"]["a"] == "c" * 400
    assert "long long" in found[4]["ddl"]["sql"]
    kinds = {row[2] for row in shop(f"SHOW BINLOG EVENTS IN '{found[0]['source']['file']}'")}
    assert {"Write_rows_compressed_v1", "Query_compressed"} <= kinds
    log.open(begin)
    assert events(log) == found


def test_a_lost_connection_goes_on_where_it_was(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    assert keys(events(log)) == [("c", 1)]
    (thread,) = (row[0] for row in shop("SHOW PROCESSLIST") if row[4] == "Binlog Dump")
    shop(f"KILL {thread}")
    with pytest.raises(TransientError):
        for _ in range(50):
            log.read(0.2)
    shop("INSERT INTO t VALUES (2)")
    log.open(log.position)
    assert keys(events(log)) == [("c", 2)]


def test_two_readers_under_one_id_are_told_apart_by_name(shop: Writer, tmp_path: Path) -> None:
    log, second = (
        mysql_log(shop.server, f"{shop.database}.*", storage=tmp_path / name) for name in "ab"
    )
    log.open("")
    second.open("")
    with pytest.raises(SourceError, match=r"the source id `shop`.*needs a source id of its own"):
        for _ in range(50):
            log.read(0.2)
    log.close()
    second.close()


def test_one_that_only_looks_on_leaves_the_pipeline_alone(shop: Writer, tmp_path: Path) -> None:
    """As `dfc run --dry-run` and `dfc test --record` do, which keep nothing, beside a pipeline."""
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log = mysql_log(shop.server, f"{shop.database}.*", storage=tmp_path / "s.db")
    guests = [mysql_log(shop.server, f"{shop.database}.*") for _ in range(2)]
    for one in (log, *guests):
        one.open("")
    for number in (1, 2):
        shop("INSERT INTO t VALUES (%s)", number)
        for one in (log, *guests):
            assert keys(events(one)) == [("c", number)]
    for one in (log, *guests):
        one.close()


def test_a_server_that_does_not_answer_is_given_up(
    shop: Writer, log: BinlogLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.open("")
    events(log)
    monkeypatch.setattr("dfc_runtime.sources.mysql_binlog.READ_SECS", 0.3)
    with pytest.raises(TransientError, match="no word for"):
        for _ in range(20):
            log.read(0.2)


def test_damaged_bytes_are_an_error_with_the_place(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    for _ in range(50):
        log.dump.fill(0.2)
        if log.dump.count > 4:
            break
    log.dump.data[int(log.dump.events[log.dump.count - 2, 2]) - 10] ^= 0xFF
    with pytest.raises(SourceError, match=r"cannot be read at binlog\.0.*checksum"):
        log.read(0.2)


def test_halt_stops_at_other_columns_and_adapt_goes_on(shop: Writer, tmp_path: Path) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    kept = tmp_path / "s.db"
    first = mysql_log(shop.server, f"{shop.database}.*", storage=kept)
    first.open("")
    shop("INSERT INTO t VALUES (1)")
    shop("ALTER TABLE t ADD COLUMN n INT")
    shop("INSERT INTO t VALUES (2, 2)")
    position = events(first)[0]["position"]
    first.close()
    # Both versions are known by now, so neither is drift; a third one is.
    shop("ALTER TABLE t DROP COLUMN n, ADD COLUMN m INT")
    shop("INSERT INTO t VALUES (3, 3)")
    halting = mysql_log(shop.server, f"{shop.database}.*", storage=kept, drift="halt")
    halting.open(position)
    with pytest.raises(SourceError, match=r"`m` is new, `n` is gone.*on_schema_drift is halt"):
        events(halting)
    halting.close()
    going_on = mysql_log(shop.server, f"{shop.database}.*", storage=kept)
    going_on.open(position)
    found = events(going_on)
    assert found[-1]["after"] == {"id": 3, "m": 3}
    assert [e["schema_sequence"] for e in found if e["op"] == "c"] == [2, 3]
    going_on.close()


def test_a_pipeline_begins_once_however_often_it_starts(shop: Writer, tmp_path: Path) -> None:
    """Changes between the first start and the second are not skipped."""
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    kept = tmp_path / "s.db"
    first = mysql_log(shop.server, f"{shop.database}.t", storage=kept)
    first.open("")
    first.close()
    shop("INSERT INTO t VALUES (1)")
    second = mysql_log(shop.server, f"{shop.database}.t", storage=kept)
    second.open("")
    assert keys(events(second)) == [("c", 1)]
    second.close()


def test_what_was_not_ours_is_not_read_again(shop: Writer, tmp_path: Path) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    shop("CREATE TABLE other (id INT PRIMARY KEY)")
    kept = tmp_path / "s.db"
    log = mysql_log(shop.server, f"{shop.database}.t", storage=kept)
    log.open("")
    shop("INSERT INTO t VALUES (1)")
    (event,) = events(log)
    shop("INSERT INTO other VALUES (1)")
    events(log)
    log.durable(event["position"])
    at = log.position
    log.close()
    again = mysql_log(shop.server, f"{shop.database}.t", storage=kept)
    assert again.open(event["position"]) == at
    again.close()
    # With other tables it may be ours.
    more = mysql_log(shop.server, f"{shop.database}.*", storage=kept)
    assert more.open(event["position"]) < at
    assert [e["table"] for e in events(more)] == ["other"]
    more.close()


def test_columns_without_names_in_the_log_come_from_the_catalog_when_that_is_sure(
    shop: Writer, tmp_path: Path
) -> None:
    shop("SET GLOBAL binlog_row_metadata = 'NO_LOG'")
    other = None
    try:
        with client(shop.server, shop.database):
            other = Writer(shop.server, shop.database)
        other("CREATE TABLE t (id INT UNSIGNED, e ENUM('a','b'), s VARCHAR(9), b BLOB, d JSON,"
              " PRIMARY KEY (id))")  # fmt: skip
        log = mysql_log(shop.server, f"{shop.database}.t", storage=tmp_path / "s.db")
        log.open("")
        other("INSERT INTO t VALUES (4000000000, 'b', 'ü', 'ü', '[1]')")
        (event,) = events(log)
        row = {"id": 4000000000, "e": "b", "s": "ü", "b": {"_base64": "w7w="}, "d": [1]}
        assert event["after"] == row and event["primary_key"] == {"id": 4000000000}
        # Seen when it happens: the catalog is asked again.
        other("ALTER TABLE t ADD COLUMN n INT")
        other("INSERT INTO t VALUES (1, 'a', 's', 'b', NULL, 7)")
        assert events(log)[-1]["after"]["n"] == 7
        # From further back what was learned then still holds.
        log.close()
        log.open(event["position"])
        assert events(log)[-1]["after"]["n"] == 7
        # Two changes at once: what the table was between them nobody knows.
        other("ALTER TABLE t CHANGE n m INT")
        other("INSERT INTO t VALUES (2, 'a', 's', 'b', NULL, 7)")
        other("ALTER TABLE t CHANGE m o INT")
        with pytest.raises(SourceError, match=r"\(ALTER\) has changed the table.*row_metadata"):
            events(log)
        log.close()
    finally:
        shop("SET GLOBAL binlog_row_metadata = 'FULL'")


@pytest.fixture
def unnamed(shop: Writer) -> Iterator[Writer]:
    """A session of a server whose log does not name columns."""
    shop("SET GLOBAL binlog_row_metadata = 'NO_LOG'")
    yield Writer(shop.server, shop.database)
    shop("SET GLOBAL binlog_row_metadata = 'FULL'")


def test_bytes_that_are_no_text_are_read_without_names_in_the_log(
    unnamed: Writer, log: BinlogLog
) -> None:
    unnamed("CREATE TABLE t (id INT PRIMARY KEY, b BLOB, v VARBINARY(9), f BINARY(2), t TEXT)")
    log.open("")
    unnamed("INSERT INTO t VALUES (1, x'FFFE00', x'C328', x'80', 'é')")
    (event,) = events(log)
    assert event["after"] == {
        "id": 1,
        "b": {"_base64": "//4A"},
        "v": {"_base64": "wyg="},
        "f": {"_base64": "gAA="},
        "t": "é",
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_rows_between_random_changes_of_their_table_have_the_columns_of_their_time(
    shop: Writer, tmp_path: Path, seed: int, named: bool
) -> None:
    """With names in the log all is read at the end; without them before each change."""
    shop(f"SET GLOBAL binlog_row_metadata = '{'FULL' if named else 'NO_LOG'}'")
    log = mysql_log(shop.server, f"{shop.database}.t", storage=tmp_path / "s.db")
    try:
        told, found = _random_changes(Writer(shop.server, shop.database), log, Random(seed), named)
    finally:
        shop("SET GLOBAL binlog_row_metadata = 'FULL'")
        log.close()
    assert found == told and len(told) > 20


Told = list[tuple[str, list[Any], list[Any]]]


def _random_changes(shop: Writer, log: BinlogLog, chance: Random, named: bool) -> tuple[Told, Told]:
    shop("CREATE TABLE t (id INT PRIMARY KEY, c0 INT)")
    log.open("")
    told: Told = []
    found: Told = []

    def read() -> None:
        for event in events(log):
            if not event["ddl"]:
                rows = (list((event[part] or {}).items()) for part in ("before", "after"))
                found.append((event["op"], *rows))

    def row(key: int) -> list[Any]:
        names = [field[0] for field in shop("SHOW COLUMNS FROM t")]
        rows = shop("SELECT * FROM t WHERE id = %s", key)
        return list(zip(names, rows[0], strict=True)) if rows else []

    for step in range(60):
        names = [field[0] for field in shop("SHOW COLUMNS FROM t")]
        others = [name for name in names if name != "id"]
        one = chance.choice(others)
        if chance.random() < 0.35:
            if not named:
                read()
            where = chance.choice(["FIRST", "", f"AFTER {one}"])
            kind = chance.choice(["INT", "VARCHAR(40)", "BIGINT UNSIGNED"])
            what = chance.choice(["ADD", "CHANGE", "DROP", "INDEX"])
            if what == "ADD" or (what == "DROP" and len(others) < 2):
                shop(f"ALTER TABLE t ADD COLUMN c{step + 1} {kind} {where}")
            elif what == "DROP":
                shop(f"ALTER TABLE t DROP COLUMN {one}")
            elif what == "CHANGE":
                where = "" if where.startswith("AFTER") else where
                shop(f"ALTER TABLE t CHANGE {one} c{step + 1} VARCHAR(40) {where}")
            else:
                shop(f"CREATE INDEX i{step} ON t ({one})")
        else:
            key = chance.randrange(8)
            before = row(key)
            if before and chance.random() < 0.3:
                shop("DELETE FROM t WHERE id = %s", key)
                told.append(("d", before, []))
            elif before:
                shop(f"UPDATE t SET {one} = %s WHERE id = %s", step, key)
                told.append(("u", before, row(key)))
            else:
                shop(f"INSERT INTO t (id, {one}) VALUES (%s, %s)", key, step)
                told.append(("c", [], row(key)))
    read()
    return told, found


def test_a_table_made_by_a_select_is_read_without_names_in_the_log(
    unnamed: Writer, log: BinlogLog
) -> None:
    log.open("")
    unnamed("CREATE TABLE made (id INT PRIMARY KEY) SELECT 1 AS id, 'x' AS s")
    found = events(log)
    assert [e["after"] for e in found] == [None, {"id": 1, "s": "x"}]


def test_what_tables_are_when_reading_begins_is_known_whatever_becomes_of_them(
    unnamed: Writer, tmp_path: Path
) -> None:
    unnamed("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    log = mysql_log(unnamed.server, f"{unnamed.database}.t", storage=tmp_path / "s.db")
    begin = log.open("")
    log.close()
    unnamed("INSERT INTO t VALUES (1, 2)")
    unnamed("CREATE INDEX by_a ON t (a)")
    unnamed("DROP INDEX by_a ON t")
    unnamed("CREATE TABLE IF NOT EXISTS t (other INT)")
    unnamed("INSERT INTO t VALUES (2, 3)")
    unnamed("ALTER TABLE t CHANGE a b INT")
    unnamed("INSERT INTO t VALUES (3, 4)")
    log = mysql_log(unnamed.server, f"{unnamed.database}.t", storage=tmp_path / "s.db")
    log.open(begin)
    rows = [e["after"] for e in events(log) if e["after"]]
    assert rows == [{"id": 1, "a": 2}, {"id": 2, "a": 3}, {"id": 3, "b": 4}]
    log.close()


def test_a_key_is_the_same_with_and_without_names_in_the_log(shop: Writer, log: BinlogLog) -> None:
    """No primary key: the first unique one without nulls, as in a snapshot."""
    shop("CREATE TABLE t (n INT UNIQUE, a VARCHAR(9) NOT NULL, b INT NOT NULL,"
         " UNIQUE (a(3)), UNIQUE (b, a))")  # fmt: skip
    log.open("")
    shop("INSERT INTO t VALUES (1, 'x', 2)")
    shop("SET GLOBAL binlog_row_metadata = 'NO_LOG'")
    try:
        Writer(shop.server, shop.database)("INSERT INTO t VALUES (1000, 'y', 2)")
        with_names, without = events(log)
    finally:
        shop("SET GLOBAL binlog_row_metadata = 'FULL'")
    assert with_names["primary_key"] == {"b": 2, "a": "x"}
    assert without["primary_key"] == {"b": 2, "a": "y"}


def test_types_that_only_the_catalog_tells_are_those_of_that_place(
    shop: Writer, tmp_path: Path
) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY, u CHAR(36), b BINARY(16), j LONGTEXT, k UUID)")
    log = mysql_log(shop.server, f"{shop.database}.t", storage=tmp_path / "s.db")
    begin = log.open("")
    log.close()
    name = "0123abcd-0123-1123-8123-0123456789ab"
    row = (name, bytes.fromhex(name.replace("-", "")), "[1]", name)
    shop("INSERT INTO t VALUES (1, %s, %s, %s, %s)", *row)
    shop("ALTER TABLE t MODIFY u UUID, MODIFY b UUID, MODIFY j JSON, MODIFY k BINARY(16)")
    shop("INSERT INTO t VALUES (2, %s, %s, %s, 'raw')", name, name, "[1]")
    log = mysql_log(shop.server, f"{shop.database}.t", storage=tmp_path / "s.db")
    log.open(begin)
    first, second = (e["after"] for e in events(log) if e["after"])
    base = {"_base64": "ASOrzQEjESOBIwEjRWeJqw=="}
    assert first == {"id": 1, "u": name, "b": base, "j": "[1]", "k": name}
    raw = {"_base64": "cmF3AAAAAAAAAAAAAAAAAA=="}
    assert second == {"id": 2, "u": name, "b": name, "j": [1], "k": raw}
    log.close()


def test_statements_with_settings_of_their_own_are_understood(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log.open("")
    shop("SET STATEMENT max_statement_time = 20 FOR TRUNCATE TABLE t")
    shop("SET STATEMENT max_statement_time = (10 + 10) FOR ALTER TABLE t ADD COLUMN n INT")
    shop("INSERT INTO t VALUES (1, 2)")
    assert keys(events(log)) == [("t", None), ("r", None), ("c", 1)]


def test_names_in_statements_are_folded_where_the_server_folds_them(services: Services) -> None:
    server = services.start(MariaDB, config={"lower-case-table-names": 1})
    shop = Writer(server, "folded")
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log = mysql_log(server, "folded.t")
    log.open("")
    shop("ALTER TABLE Folded.T ADD COLUMN n INT")
    shop("INSERT INTO T VALUES (1, 2)")
    shop("TRUNCATE TABLE FOLDED.T")
    assert keys(events(log)) == [("r", None), ("c", 1), ("t", None)]
    log.close()


def test_events_keep_their_names_when_the_servers_setting_changes_later(
    shop: Writer, log: BinlogLog
) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    begin = log.open("")
    shop("INSERT INTO t VALUES (1)")
    shop("DROP TABLE t")
    shop("SET GLOBAL binlog_row_metadata = 'NO_LOG'")
    try:
        log.open(begin)
        assert events(log)[0]["after"] == {"id": 1}
    finally:
        shop("SET GLOBAL binlog_row_metadata = 'FULL'")


def test_values_that_the_library_gets_wrong(shop: Writer, log: BinlogLog) -> None:
    shop("CREATE TABLE t (a TIME(3), b BINARY(4), c FLOAT, d SET('x','y'))")
    log.open("")
    shop("INSERT INTO t VALUES ('-12:34:56.789', 'ab', 1.1, 'y,x')")
    (event,) = events(log)
    assert event["after"] == {
        "a": "-12:34:56.789",
        "b": {"_base64": "YWIAAA=="},
        "c": 1.1,
        "d": "x,y",
    }
    assert event["primary_key"] is None


def test_rolled_back_rows_that_are_in_the_log_are_no_events(shop: Writer, log: BinlogLog) -> None:
    """A temporary table made or dropped in the transaction is why they are there."""
    shop("CREATE TABLE t (id INT PRIMARY KEY) ENGINE = InnoDB")
    shop("CREATE TABLE flat (id INT PRIMARY KEY) ENGINE = MyISAM")
    begin = log.open("")
    shop("INSERT INTO t VALUES (1)")
    shop("BEGIN")
    shop("INSERT INTO t VALUES (2)")
    shop("CREATE TEMPORARY TABLE x (i INT)")
    shop("ROLLBACK")
    shop("BEGIN")
    shop("INSERT INTO t VALUES (3)")
    shop("DROP TEMPORARY TABLE x")
    shop("INSERT INTO flat VALUES (4)")
    shop("ROLLBACK")
    shop("INSERT INTO t VALUES (5)")
    found = events(log)
    kinds = {row[5] for row in shop(f"SHOW BINLOG EVENTS IN '{found[0]['source']['file']}'")}
    assert "ROLLBACK" in kinds  # otherwise nothing was tried here
    assert keys(found) == [("c", 1), ("c", 4), ("c", 5)]
    log.open(begin)
    assert events(log) == found


def test_a_transaction_that_is_rolled_back_after_a_piece_is_out_stops_the_source(
    shop: Writer, log: BinlogLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY, s TEXT) ENGINE = InnoDB")
    log.open("")
    monkeypatch.setattr("dfc_runtime.sources.mysql_walk._ROOM", 4)
    log.open("")
    shop("BEGIN")
    for number in range(20):
        shop("INSERT INTO t VALUES (%s, 's')", number)
    shop("CREATE TEMPORARY TABLE x (i INT)")
    shop("ROLLBACK")
    with pytest.raises(SourceError, match=r"large transaction was rolled back.*handed out already"):
        events(log)


def test_a_delete_of_some_rows_that_is_in_the_log_as_a_statement_is_no_truncate(
    shop: Writer, log: BinlogLog
) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log.open("")
    shop("INSERT INTO t VALUES (1), (2)")
    shop("SET SESSION binlog_format = 'STATEMENT'")
    shop("DELETE FROM t LIMIT 1")
    with pytest.raises(SourceError, match=r"DELETE on .*\.t to the log as a statement"):
        events(log)


def test_a_delete_of_all_rows_that_is_in_the_log_as_a_statement_is_a_truncate(
    shop: Writer, log: BinlogLog
) -> None:
    shop("CREATE TABLE t (id INT PRIMARY KEY)")
    log.open("")
    shop("INSERT INTO t VALUES (1), (2)")
    shop("SET SESSION binlog_format = 'STATEMENT'")
    shop(f"DELETE FROM `{shop.database}`.`t`")
    assert keys(events(log)) == [("c", 1), ("c", 2), ("t", None)]
