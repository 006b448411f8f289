"""A sink left behind: the database keeps what it lacks, and the next query begins there."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from dfc_runtime.positions import Positions
from dfc_runtime.sources import SourceError, pump
from dfc_runtime.sources.turso import TursoReader
from dfc_runtime.storage import SqliteStorage

from .sqlite_files import database


def position(number: int) -> str:
    return f"{number:016x}"


class Database:
    """A file with one table, and what is left of its changes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "x.db"
        self.writer = database(self.path, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
        self.storage = SqliteStorage(folder / "state.db")
        (folder / "notes").mkdir()

    def insert(self, *ids: int) -> None:
        self.writer.executemany("INSERT INTO t VALUES (?)", [(n,) for n in ids])

    def left(self) -> list[int]:
        return [n for (n,) in self.writer.execute("SELECT change_id FROM _df_cdc_t")]

    def reader(self, start: str) -> TursoReader:
        return TursoReader(
            {
                "id": "shop",
                "url": str(self.path),
                "tables": '["t"]',
                "cdc_mode": "triggers",
                "poll_interval_ms": "1",
                "columns": "position after",
                "pipeline": "p",
                "storage": self.storage.path,
                "folder": str(self.folder / "notes"),
                "sinks": '["a", "b"]',
                "batch_max_ms": "0",
                "start": start,
            }
        )

    def positions(self) -> Positions:
        return Positions(self.storage, "p", "shop", ["a", "b"], 1)


def read(reader: TursoReader, upto: int) -> list[int]:
    """The rows of all epochs, until so many are through."""
    ids: list[int] = []
    offset, deadline = reader.initialOffset(), time.monotonic() + 20
    while len(ids) < upto:
        assert time.monotonic() < deadline
        end: dict[str, Any] = reader.latestOffset(offset)
        for partition in reader.partitions(offset, end):
            for batch in reader.read(partition):
                ids += [json.loads(row["after"])["id"] for row in batch.to_pylist()]
        offset = end
    return ids


def eventually(what: Any) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_clean_up_waits_for_a_sink_left_behind_and_it_gets_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "CONFIRM_SECS", 0.02)
    monkeypatch.setattr(pump, "IDLE_SECS", 0.02)
    db = Database(tmp_path)
    first = db.reader("")
    first.latestOffset(first.initialOffset())  # makes the triggers
    eventually(lambda: _has_triggers(db.writer))
    db.insert(1, 2, 3, 4, 5)
    assert read(first, 5) == [1, 2, 3, 4, 5]
    held = db.positions()
    held.advance({("a", 0): position(5)}, {})
    time.sleep(0.1)
    assert db.left() == [1, 2, 3, 4, 5], "`b` is not known to hold anything"
    held.advance({("b", 0): position(5)}, {})
    eventually(lambda: db.left() == [])
    first.stop()

    # A later run: it begins at 5, and `b` falls behind at 6.
    assert db.positions().start == position(5)
    second = db.reader(position(5))
    db.insert(6, 7, 8, 9)
    assert read(second, 4) == [6, 7, 8, 9]
    held = db.positions()
    held.advance({("a", 0): position(9), ("b", 0): position(6)}, {})
    eventually(lambda: db.left() == [7, 8, 9])
    time.sleep(0.1)
    assert db.left() == [7, 8, 9], "what `b` lacks stays"
    second.stop()

    # The query is started over with the same options; a note says where it begins.
    assert held.start == position(6)
    (tmp_path / "notes" / "start").write_text(held.start)
    third = db.reader(position(5))
    assert third.initialOffset() == {"position": position(6), "tick": 0}
    assert read(third, 3) == [7, 8, 9]
    held.advance({("b", 0): position(9)}, {})
    eventually(lambda: db.left() == [])
    third.stop()

    # Without the note it would ask for what is gone, and say so.
    (tmp_path / "notes" / "start").unlink()
    lost = db.reader(position(5))
    with pytest.raises(SourceError, match="no longer in the database"):
        read(lost, 1)
    lost.stop()
    db.storage.close()


def _has_triggers(writer: sqlite3.Connection) -> bool:
    found = writer.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone()
    return bool(found[0])
