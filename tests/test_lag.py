"""How far a position is behind its source, for `dfc status`."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from dfc_runtime.sources import MysqlSource, TursoSource, lag, turso_lag
from dfc_runtime.sources.lag import Lag, lags

from .sqlite_files import database, drain, turso_log

TABLES = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, v TEXT)",
    "CREATE TABLE notes (id INTEGER PRIMARY KEY, v TEXT)",
)


def source(path: Path, mode: str = "triggers", *tables: str) -> TursoSource:
    return TursoSource(id="shop", url=str(path), tables=tables or ("orders",), cdc_mode=mode)


@pytest.fixture
def shop(tmp_path: Path) -> sqlite3.Connection:
    """Five orders and two notes, of which the first three changes are orders."""
    connection = database(tmp_path / "shop.db", *TABLES)
    drain(turso_log(tmp_path / "shop.db"))  # makes the triggers
    connection.executemany("INSERT INTO orders VALUES (?, 'x')", [(n,) for n in range(3)])
    connection.executemany("INSERT INTO notes VALUES (?, 'x')", [(n,) for n in range(2)])
    connection.executemany("INSERT INTO orders VALUES (?, 'x')", [(n,) for n in range(3, 5)])
    return connection


def test_changes_of_the_sources_tables_are_counted(
    shop: sqlite3.Connection, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    events = drain(turso_log(path, tables='["orders"]'))
    places = [event["position"] for event in events]
    wanted = ["", places[0], places[2], places[4]]
    found = lags(source(path), wanted)
    assert found == {p: Lag(n, "events") for p, n in zip(wanted, (5, 4, 2, 0), strict=True)}
    assert lags(source(path, "triggers", "*"), [""]) == {"": Lag(7, "events")}
    shop.execute("DELETE FROM orders WHERE id = 0")
    assert lags(source(path), [places[4]]) == {places[4]: Lag(1, "events")}


def test_why_it_is_not_known(shop: sqlite3.Connection, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    plain = tmp_path / "plain.db"
    database(plain, *TABLES).close()

    def why(source: TursoSource | MysqlSource, position: str = "") -> str:
        (found,) = lags(source, [position]).values()
        assert isinstance(found, str)
        return found

    assert why(source(tmp_path / "none.db")) == f"there is no database file {tmp_path / 'none.db'}"
    assert not (tmp_path / "none.db").exists()
    assert why(source(plain)) == "the database has no change triggers yet"
    assert "polling mode" in why(source(path, "polling"))
    assert "'odd' is not a position" in why(source(path), "odd")
    assert "ahead of the database's last change" in why(source(path), f"{99:016x}")
    nobody = why(MysqlSource(dsn="mysql://u:hunter2@127.0.0.1:1/d"))
    assert nobody.startswith("server 127.0.0.1:1: Can't connect") and "hunter2" not in nobody


def test_a_source_that_is_locked_or_silent_costs_little_time(
    shop: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turso_lag, "_BUSY_SECS", 0.05)
    held = database(tmp_path / "held.db", *TABLES, journal="delete")
    held.execute("BEGIN EXCLUSIVE")
    (found,) = lags(source(tmp_path / "held.db"), [""]).values()
    assert "database is locked" in str(found)
    held.execute("ROLLBACK")
    monkeypatch.setattr(lag, "lag", lambda source, position: time.sleep(30))
    begin = time.monotonic()
    assert lags(source(tmp_path / "shop.db"), ["", "a"], patience=0.1) == dict.fromkeys(
        ["", "a"], "the source did not answer within 0.1 s"
    )
    assert time.monotonic() - begin < 25
