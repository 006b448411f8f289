"""What a server has to be, and the ways to it: addresses, TLS, rights, settings."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from dfc_runtime.sources import MysqlSource
from dfc_runtime.sources.lag import lag
from dfc_runtime.sources.log import SourceError, TransientError
from dfc_runtime.sources.mysql_address import parse
from dfc_runtime.sources.mysql_gtid import MariadbGtids, MysqlGtids
from dfc_runtime.sources.mysql_packets import Damaged, query_text
from dfc_runtime.sources.mysql_position import Place
from dfc_runtime.sources.mysql_position import parse as place
from dfc_runtime.sources.mysql_server import Server, replica_id
from dfc_runtime.sources.mysql_statements import emptied, read

from .mysql_logs import Writer, events, mysql_log
from .services import MariaDB
from .services.certificates import Certificates
from .services.fixtures import Services

# --- addresses -----------------------------------------------------------------------------------


def test_parts_of_a_dsn_may_be_escaped() -> None:
    address = parse("mysql://us%40er:p%2Fa%3Ass%25@[::1]:3307/my%20db?ssl_mode=verify-ca&ssl-ca=/x")
    assert (address.user, address.password, address.host) == ("us@er", "p/a:ss%", "::1")
    assert (address.port, address.database, address.mode) == (3307, "my db", "VERIFY_CA")
    assert "p/a" not in repr(address) and str(address) == "[::1]:3307"


@pytest.mark.parametrize(
    "dsn, why",
    [
        ("postgres://u:secret@h/db", "not of the form mysql://"),
        ("mysql://h/db", "names no user"),
        ("mysql://u:secret@h:port/db", "not HOST:PORT"),
        ("mysql://u:secret@h/db?ssl-mode=always", "there are DISABLED, PREFERRED"),
        ("mysql://u:secret@h/db?sslmode=require", "an option 'sslmode'; there are ssl-mode"),
        ("mysql://u:secret@h/db?ssl-key=k", "ssl-key without ssl-cert"),
        ("mysql://u:secret@h/db?ssl-mode=DISABLED&ssl-ca=c", "its ssl-mode is DISABLED"),
    ],
)
def test_a_wrong_dsn_is_refused_without_being_shown(dsn: str, why: str) -> None:
    with pytest.raises(SourceError, match=why) as caught:
        parse(dsn)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_away_is_tried_again_and_a_wrong_password_is_not(
    mariadb_server: MariaDB,
) -> None:
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"):
        Server(parse("mysql://u:secret@127.0.0.1:1/db"))
    with pytest.raises(SourceError, match="the login of `nobody` was refused") as caught:
        Server(parse(f"mysql://nobody:secret@{mariadb_server.address}/"))
    assert not isinstance(caught.value, TransientError) and "secret" not in str(caught.value)


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(services: Services, certificates: Certificates) -> MariaDB:
    folder = services.folder / "mysql-tls"
    folder.mkdir()
    shutil.copytree(certificates.folder, folder, dirs_exist_ok=True)
    for path in (folder, *folder.iterdir()):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)
    return services.start(
        MariaDB,
        config={
            "ssl-ca": folder / "ca.pem",
            "ssl-cert": folder / "server.pem",
            "ssl-key": folder / "server.key",
        },
    )


def test_tls_is_used_as_the_dsn_says(secure: MariaDB, certificates: Certificates) -> None:
    def cipher(query: str, user: str = "") -> str:
        dsn = secure.dsn.replace("dfc:dfc@", f"{user}@") if user else secure.dsn
        server = Server(parse(f"{dsn}?{query}"))
        try:
            return str(server.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])
        finally:
            server.close()

    ca, cert, key = (
        quote(str(path))
        for path in (
            certificates.ca,
            certificates.certificate("client"),
            certificates.key("client"),
        )
    )
    assert cipher("ssl-mode=DISABLED") == ""
    assert cipher("ssl-mode=REQUIRED") and cipher("")
    assert cipher(f"ssl-mode=VERIFY_CA&ssl-ca={ca}") and cipher(f"ssl-ca={ca}")
    assert cipher(f"ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}")
    with pytest.raises(SourceError, match="certificate was not accepted"):
        cipher("ssl-mode=VERIFY_CA")
    with pytest.raises(SourceError, match="cannot be read"):
        cipher("ssl-mode=VERIFY_CA&ssl-ca=/no/such/file")
    Writer(secure, "shop")("CREATE USER 'by_cert'@'%' IDENTIFIED BY 'x' REQUIRE X509")
    Writer(secure, "shop")("GRANT SELECT ON shop.* TO 'by_cert'@'%'")
    with pytest.raises(SourceError, match="refused"):
        cipher("ssl-mode=REQUIRED", "by_cert:x")
    assert cipher(f"ssl-mode=REQUIRED&ssl-cert={cert}&ssl-key={key}", "by_cert:x")


def test_the_log_comes_over_tls_too(secure: MariaDB, certificates: Certificates) -> None:
    shop = Writer(secure, "shop")
    shop("CREATE TABLE tls (id INT PRIMARY KEY, t TEXT)")
    dsn = f"{secure.dsn}?ssl-mode=VERIFY_CA&ssl-ca={quote(str(certificates.ca))}"
    log = mysql_log(secure, "shop.tls", dsn=dsn)
    log.open("")
    shop.many("INSERT INTO tls VALUES (%s, %s)", [(n, "x" * 100) for n in range(500)])
    assert [e["after"]["id"] for e in events(log)] == list(range(500))
    log.close()


# --- what it needs -------------------------------------------------------------------------------


def test_a_wrong_format_and_missing_rights_are_named_with_what_mends_them(
    secure: MariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    root = Writer(secure, "shop")
    root("CREATE TABLE rights (id INT PRIMARY KEY)")
    root("CREATE USER 'weak'@'%' IDENTIFIED BY 'w'")
    root("GRANT SELECT ON shop.* TO 'weak'@'%'")
    dsn = secure.dsn.replace("dfc:dfc@", "weak:w@")
    log = mysql_log(secure, "shop.rights", dsn=dsn)
    fix = "GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO 'weak'@'%'"
    with pytest.raises(SourceError, match="may not see the binary log") as caught:
        log.open("")
    assert fix in str(caught.value)
    root("GRANT BINLOG MONITOR ON *.* TO 'weak'@'%'")
    with pytest.raises(SourceError, match="GRANT REPLICATION SLAVE"):
        log.open("")
        events(log)
    root(fix)
    log.open("")
    root("INSERT INTO rights VALUES (1)")
    assert len(events(log)) == 1
    log.close()
    for name, value in (
        ("binlog_format", "STATEMENT"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "NO_LOG"),
    ):
        before = root(f"SELECT @@GLOBAL.{name}")[0][0]
        root(f"SET GLOBAL {name} = '{value}'")
        try:
            if name == "binlog_format":
                with pytest.raises(SourceError, match="SET GLOBAL binlog_format = 'ROW'"):
                    log.open("")
            else:
                log.open("")
                assert f"SET GLOBAL {name} = 'FULL'" in caplog.text
        finally:
            root(f"SET GLOBAL {name} = '{before}'")
            log.close()


def test_a_server_without_a_log_is_refused(services: Services) -> None:
    server = services.start(MariaDB, config={"skip-log-bin": 1})
    with pytest.raises(SourceError, match=r"no binary log: start it with log_bin=ON"):
        mysql_log(server, "shop.t").open("")


def test_patterns_that_match_nothing_are_named(
    mariadb_server: MariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    log = mysql_log(mariadb_server, "shop.no_such_table")
    log.open("")
    log.close()
    assert "no table matches `shop.no_such_table`" in caplog.text


def test_the_number_of_a_source_is_the_documented_one() -> None:
    assert replica_id("orders-mysql") == 1 + 0x92601B51 % 4_000_000_000


def test_lag_is_counted_in_bytes_of_the_log(mariadb_server: MariaDB) -> None:
    shop = Writer(mariadb_server, "lagging")
    shop("CREATE OR REPLACE TABLE t (id INT)")
    log = mysql_log(mariadb_server, "lagging.t")
    begin = log.open("")
    source = MysqlSource(id="shop", dsn=mariadb_server.dsn, tables=("lagging.t",))
    found = lag(source, begin)
    assert found is not None and (found.amount, found.unit) == (0, "bytes")
    shop("INSERT INTO t VALUES (1)")
    (event,) = events(log)
    behind, none = lag(source, begin), lag(source, event["position"])
    assert behind is not None and none is not None
    assert behind.amount > 100 and none.amount == 0
    shop("FLUSH BINARY LOGS")
    shop("INSERT INTO t VALUES (2)")
    later = lag(source, event["position"])
    assert later is not None and later.amount > 100
    log.close()


# --- GTIDs and positions ---------------------------------------------------------------------------


def test_gtid_sets_are_kept_whole() -> None:
    a, b = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
    text = f"{a}:1-5:7:9-11,{b}:1:tag:3-4"
    made = MysqlGtids(text)
    assert MysqlGtids(str(made)) == made
    assert made.has(a, 7) and not made.has(a, 6) and made.has(f"{b}:tag", 4)
    made.add(a, 6, 6)
    made.add(a, 8, 8)
    assert str(made).startswith(f"{a}:1-11,")
    assert MysqlGtids(text).within(made) and not made.within(MysqlGtids(text))
    assert len(MysqlGtids(f"{a}:1-5:7").encode()) == 8 + 16 + 8 + 2 * 16
    maria = MariadbGtids("0-1-57,3-2-9")
    maria.add("0-4", 58, 60)
    assert str(maria) == "0-4-60,3-2-9"


def test_positions_sort_as_the_log_runs() -> None:
    places = [
        Place(0, 1, 4),
        Place(0, 1, 4, 1, 0),
        Place(0, 1, 4, 1, 1),
        Place(0, 1, 4, 2, 0),
        Place(0, 1, 300),
        Place(0, 10, 4),
        Place(1, 1, 4),
    ]
    texts = [str(p) for p in places]
    assert texts == sorted(texts) and [place(text) for text in texts] == places
    chunk = f"{texts[4]}-s000001.ffffffffffffffff"
    assert texts[4] < chunk < str(Place(0, 1, 300, 1, 0))
    with pytest.raises(SourceError, match="not a position"):
        place("0000000000000001")


@pytest.mark.parametrize(
    "sql, verb, tables",
    [
        ("ALTER TABLE `a`.`b` ADD c INT", "ALTER", [("a", "b")]),
        ("/* note */ alter table b rename to a.c", "ALTER", [(None, "b"), ("a", "c")]),
        ("CREATE TABLE IF NOT EXISTS t (id INT)", "CREATE", [(None, "t")]),
        ("CREATE OR REPLACE TABLE t LIKE x", "CREATE", [(None, "t")]),
        ("CREATE TEMPORARY TABLE t (id INT)", "CREATE", []),
        ("DROP TABLE IF EXISTS `x``y`, b /* generated */", "DROP", [(None, "x`y"), (None, "b")]),
        ("RENAME TABLE a TO b, c.d TO e", "RENAME", [(None, "a"), (None, "b"), ("c", "d"), (None, "e")]),
        ("TRUNCATE t", "TRUNCATE", [(None, "t")]),
        ("CREATE UNIQUE INDEX i ON t (a)", "CREATE", [(None, "t")]),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE a.u", "ALTER", [(None, "t"), ("a", "u")]),
        ("SET STATEMENT a = (1), b = 'FOR' FOR TRUNCATE TABLE t", "TRUNCATE", [(None, "t")]),
        ("DROP INDEX i ON a.t", "DROP", [("a", "t")]),
        ("CREATE VIEW v AS SELECT * FROM t", "CREATE", []),
        ("GRANT SELECT ON a.b TO c", "GRANT", []),
    ],
)  # fmt: skip
def test_statements_name_their_tables(sql: str, verb: str, tables: list[Any]) -> None:
    found = read(sql)
    assert (found.verb, list(found.tables)) == (verb, tables)


@pytest.mark.parametrize(
    "sql, changes",
    [
        ("CREATE TABLE t (id INT)", True),
        ("CREATE TABLE IF NOT EXISTS t (id INT)", False),
        ("CREATE OR REPLACE TABLE t (id INT)", True),
        ("CREATE INDEX i ON t (a)", False),
        ("CREATE UNIQUE INDEX i ON t (a)", True),
        ("DROP INDEX i ON t", False),
        ("DROP INDEX `PRIMARY` ON t", True),
        ("TRUNCATE t", False),
    ],
)
def test_statements_that_may_change_columns_or_the_key_are_told_from_others(
    sql: str, changes: bool
) -> None:
    assert read(sql).schema == changes


@pytest.mark.parametrize(
    "sql, table",
    [
        ("DELETE FROM `a`.`b`", ("a", "b")),
        ("delete from b; /* generated */", (None, "b")),
        ("DELETE FROM b LIMIT 1", None),
        ("DELETE FROM b PARTITION (p)", None),
        ("DELETE FROM b, c", None),
        ("DELETE b FROM b JOIN c", None),
        ("DELETE FROM b WHERE 1", None),
        ("DELETE FROM b AS x", None),
        ("DELETE IGNORE FROM b", None),
    ],
)
def test_only_a_delete_of_a_whole_table_empties_it(sql: str, table: Any) -> None:
    found = emptied(sql)
    assert (found and found.tables) == (table and (table,))


def test_a_compressed_statement_that_cannot_be_inflated_is_damage() -> None:
    head = bytes(8) + bytes([1, 0, 0, 0, 0]) + b"a\0"
    packed = b"\x81\x06" + zlib.compress(b"SELECT")
    assert query_text(head + packed, compressed=True) == ("a", "SELECT")
    with pytest.raises(Damaged):
        query_text(head + packed[:-3], compressed=True)


def test_a_position_of_another_source_is_refused(mariadb_server: MariaDB, tmp_path: Path) -> None:
    log = mysql_log(mariadb_server, "shop.t", storage=tmp_path / "s.db")
    with pytest.raises(SourceError, match="not a position of a mysql source"):
        log.open("0000000000000007")
