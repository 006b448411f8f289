from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from dfc_runtime.sources.turso_schema import (
    Column,
    UniqueKey,
    captured,
    quote,
    read_table,
    table_names,
)

from .sqlite_files import database, turso_log


@pytest.fixture
def db() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def test_columns_keep_their_order_types_and_keys(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE t (\"a b\" VARCHAR(9) NOT NULL DEFAULT 'x', n, g AS (n * 2) STORED,"
        ' PRIMARY KEY (n, "a b"))'
    )
    table = read_table(db, "t")
    assert table.columns == (
        Column("a b", "VARCHAR(9)", True, "'x'", False),
        Column("n", "", False, None, False),
        Column("g", "", False, None, True),
    )
    assert table.key == ("n", "a b")
    assert table.rowid == "rowid"


@pytest.mark.parametrize(
    ("declared", "affinity"),
    [
        ("INT", "INTEGER"),
        ("UNSIGNED BIG INT", "INTEGER"),
        ("CHARINT", "INTEGER"),
        ("NVARCHAR(100)", "TEXT"),
        ("CLOB", "TEXT"),
        ("BLOB", "BLOB"),
        ("", "BLOB"),
        ("DOUBLE PRECISION", "REAL"),
        ("FLOAT", "REAL"),
        ("DECIMAL(10,5)", "NUMERIC"),
        ("DATETIME", "NUMERIC"),
        ("STRING", "NUMERIC"),
    ],
)
def test_affinity_follows_the_declared_type(declared: str, affinity: str) -> None:
    assert Column("c", declared, False, None, False).affinity == affinity


def test_rowid_goes_by_a_name_that_no_column_has(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE a (rowid, x)")
    db.execute("CREATE TABLE b (x PRIMARY KEY) WITHOUT ROWID")
    db.execute("CREATE TABLE c (rowid, _ROWID_, oid)")
    names = [read_table(db, name).rowid for name in "abc"]
    assert names == ["_rowid_", None, None]


def test_unique_keys_come_with_their_collations(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE COLLATE NOCASE, b, c)")
    db.execute("CREATE UNIQUE INDEX two ON t (b, c)")
    db.execute("CREATE UNIQUE INDEX some ON t (b) WHERE c > 1")
    db.execute("CREATE UNIQUE INDEX sum ON t (b + c)")
    db.execute("CREATE INDEX plain ON t (c)")
    table = read_table(db, "t")
    assert table.unique == (
        UniqueKey(("a",), ("NOCASE",)),
        UniqueKey(("b", "c"), ("BINARY", "BINARY")),
    )
    assert table.odd_unique == ("some", "sum")


def test_autoincrement_is_noticed(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE a (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    db.execute("CREATE TABLE b (id INTEGER PRIMARY KEY)")
    assert [read_table(db, name).autoincrement for name in "ab"] == [True, False]


def test_virtual_tables_and_views_are_left_out(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE t (a)")
    db.execute("CREATE VIEW v AS SELECT a FROM t")
    db.execute("CREATE VIRTUAL TABLE f USING fts5(a)")
    assert table_names(db) == ["t"], "what a virtual table keeps its data in is its own business"


@pytest.mark.parametrize(
    "name",
    ["sqlite_sequence", "_df_cdc_t", "_litestream_seq", "_turso_x", "turso_cdc", "SQLITE_stat1"],
)
def test_tables_of_tools_are_never_captured(name: str) -> None:
    assert not captured(name, ["*"])
    assert not captured(name, [name])


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("users", {"users"}),
        ("order%", {"order", "orders", "order_items"}),
        ("*", {"users", "order", "orders", "order_items", "turso_cdc_copy"}),
        ("main.users", {"users"}),
        ("other.users", set()),
    ],
)
def test_patterns(pattern: str, taken: set[str]) -> None:
    names = ["users", "order", "orders", "order_items", "turso_cdc_copy"]
    assert {name for name in names if captured(name, [pattern])} == taken


def test_a_version_names_the_columns_and_nothing_else(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, x TEXT)")
    db.execute("CREATE TABLE b (id INTEGER PRIMARY KEY, x TEXT)")
    first = read_table(db, "a").version()
    assert first == read_table(db, "b").version()
    db.execute("CREATE INDEX i ON a (x)")
    assert read_table(db, "a").version() == first
    db.execute("ALTER TABLE a ADD COLUMN y")
    assert read_table(db, "a").version() != first


def test_identifiers_are_quoted(db: sqlite3.Connection) -> None:
    assert quote('a"b') == '"a""b"'


@pytest.mark.parametrize("mode", ["triggers", "polling"])
def test_a_pattern_that_captures_nothing_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    path = tmp_path / "x.db"
    writer = database(path, *(f"CREATE TABLE t{n:02} (a)" for n in range(12)))
    tables = json.dumps(["t0%", "orders", "sqlite_%"])
    log = turso_log(path, mode, tables=tables)
    log.read(0.01)
    log.open("")  # as after a lost connection
    log.read(0.01)
    said = [r.getMessage() for r in caplog.records if "captures nothing" in r.getMessage()]
    there = ", ".join(f"t{n:02}" for n in range(10))
    assert said == [
        f"tables: {pattern} captures nothing yet; tables in the database: {there} and 2 more"
        for pattern in ("orders", "sqlite_%")
    ]
    caplog.clear()
    writer.execute("CREATE TABLE orders (a)")
    log.read(0.01)
    log.close()
    later = turso_log(path, mode, tables=tables)
    later.read(0.01)
    later.close()
    assert "orders captures nothing" not in caplog.text
