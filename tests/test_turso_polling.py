from __future__ import annotations

import json
from pathlib import Path

import pytest
from dfc_runtime import ids
from dfc_runtime.sources import SourceError, turso_polling

from .sqlite_files import database, drain, turso_log


def values(events: list[dict[str, str]]) -> list[object]:
    return [json.loads(event["after"])["a"] for event in events]


def test_rows_come_from_the_first_one_on(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(
        path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a)",
        "INSERT INTO t VALUES (-9223372036854775808, 'lowest'), (-5, 'low'), (7, 0.1)",
    )
    log = turso_log(path, "polling")
    events = drain(log)
    assert values(events) == ["lowest", "low", 0.1]
    assert [e["position"] for e in events] == [
        "00000001" + "0000000000000000",
        "00000001" + "7ffffffffffffffb",
        "00000001" + "8000000000000007",
    ]
    last = events[-1]
    assert (last["op"], last["before"], last["tx_end"]) == ("c", None, True)
    assert last["primary_key"] == '{"id":7}'
    assert last["event_id"] == ids.turso_polled_row("shop", "t", 7)
    assert json.loads(last["source"])["sequence"] == "7"
    writer.execute("INSERT INTO t VALUES (8, x'00')")
    assert values(drain(log)) == [{"_base64": "AA=="}]
    assert drain(log) == []


def test_updates_and_deletes_are_not_seen(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE t (a)", "INSERT INTO t VALUES (1), (2)")
    log = turso_log(tmp_path / "x.db", "polling")
    assert len(drain(log)) == 2
    writer.execute("UPDATE t SET a = 3")
    writer.execute("DELETE FROM t WHERE rowid = 1")
    assert drain(log) == []


def test_a_restart_repeats_the_same_order(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)", "CREATE TABLE u (a)")
    log = turso_log(path, "polling")
    events = []
    for number in range(4):
        writer.execute(f"INSERT INTO {'tu'[number % 2]} VALUES ({number}), ({number + 10})")
        events += drain(log)
    assert values(events) == [0, 10, 1, 11, 2, 12, 3, 13]
    log.close()
    for count in range(9):
        start = events[count - 1]["position"] if count else ""
        again = turso_log(path, "polling", start=start)
        assert drain(again) == events[count:]
        again.close()
    writer.execute("INSERT INTO t VALUES (99)")
    assert values(drain(turso_log(path, "polling", start=events[-1]["position"]))) == [99]


def test_notes_go_when_every_sink_has_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)")
    log = turso_log(path, "polling")
    positions = []
    for number in range(3):
        writer.execute(f"INSERT INTO t VALUES ({number})")
        positions.append(drain(log)[-1]["position"])
    log.durable(positions[1])
    log.close()
    again = turso_log(path, "polling", start=positions[1])
    assert values(drain(again)) == [2]
    again.durable(positions[2])
    again.close()
    writer.execute("INSERT INTO t VALUES (3)")
    last = turso_log(path, "polling", start=positions[2])
    assert values(drain(last)) == [3]


def test_many_rows_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turso_polling, "ROWS", 100)
    monkeypatch.setattr(turso_polling, "BYTES", 1)
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)")
    writer.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(3000)])
    log = turso_log(path, "polling")
    batches = log.read(1)
    assert sum(batch.num_rows for batch in batches) <= 300
    log.close()
    events = drain(turso_log(path, "polling"))
    assert values(events) == list(range(3000))
    assert [e["position"] for e in events] == sorted(e["position"] for e in events)


def test_tables_without_rowid_are_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE w (a PRIMARY KEY) WITHOUT ROWID", "CREATE TABLE t (a)")
    log = turso_log(path, "polling", tables='["w", "t"]')
    with pytest.raises(SourceError, match=r"table w has no rowid.*use cdc_mode: triggers"):
        log.read(0)
    wild = turso_log(path, "polling", pipeline="other")
    writer.execute("INSERT INTO t VALUES (1)")
    assert values(drain(wild)) == [1]
    assert "table w has no rowid" in caplog.text


def test_the_file_is_only_read(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")
    log = turso_log(path, "polling")
    drain(log)
    log.durable(log.position)
    assert writer.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]


def test_new_tables_and_columns_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")
    log = turso_log(path, "polling")
    drain(log)
    writer.execute("ALTER TABLE t ADD COLUMN b")
    writer.execute("INSERT INTO t VALUES (2, 3)")
    writer.execute("CREATE TABLE u (a)")
    writer.execute("INSERT INTO u VALUES (4)")
    assert [e["after"] for e in drain(log)] == ['{"a":2,"b":3}', '{"a":4}']


def test_a_position_of_another_storage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)").close()
    position = drain(turso_log(path, "polling"))[-1]["position"]
    with pytest.raises(SourceError, match="same storage as before"):
        turso_log(path, "polling", start=position, storage=str(tmp_path / "other"))
    with pytest.raises(SourceError, match="not a position of the polling mode"):
        turso_log(path, "polling", start="0000000000000001")
    # A dry run keeps no notes: it shows all rows instead of failing.
    assert values(drain(turso_log(path, "polling", start=position, storage=""))) == [1]
