"""A copy of tables in a stream of changes: against a small database made up here, whose every state
is known, so that a view can be opened at any moment and a crash can come at any."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dfc_runtime.events import EVENT_COLUMNS
from dfc_runtime.sources import snapshot
from dfc_runtime.sources.log import SourceError, TransientError
from dfc_runtime.sources.snapshot import Chunk, Outdated, SnapshotLog, in_stream
from dfc_runtime.sources.snapshot_spool import Spool
from dfc_runtime.storage import SqliteStorage

COLUMNS = ("position", "tx_end", "op", "table", "primary_key", "after")
SCHEMA = pa.schema([(name, EVENT_COLUMNS[name]) for name in COLUMNS])
Row = tuple[str, bool, str, str, str, str | None]


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(COLUMNS, row, strict=True)) for row in rows], SCHEMA
    )


def text(key: int) -> str:
    return json.dumps({"id": key})


class Database:
    """Tables of numbers, and the log of all that ever happened to them."""

    def __init__(self, seed: int, tables: int = 3, rows: int = 200) -> None:
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.tables = {f"t{n}": {} for n in range(tables)}  # type: dict[str, dict[int, int]]
        self.log: list[Row] = []
        for table in self.tables.values():
            table.update({key * 3: 0 for key in range(rows)})

    @property
    def head(self) -> str:
        return f"{len(self.log):08x}"

    def change(self) -> None:
        with self.lock:
            table, key = self.random.choice(list(self.tables)), self.random.randrange(1000)
            rows = self.tables[table]
            op = "u" if key in rows else "c"
            if op == "u" and self.random.random() < 0.3:
                op = "d"
                del rows[key]
            else:
                rows[key] = rows.get(key, 0) + 1
            after = None if op == "d" else json.dumps(rows[key])
            position = f"{len(self.log) + 1:08x}"
            self.log.append((position, True, op, table, text(key), after))


class Log:
    """The database's log, a few changes at a time."""

    def __init__(self, database: Database, first: str = "00000000") -> None:
        self.database, self.first = database, first
        self.position = ""
        self.opened: list[str] = []

    def open(self, start: str) -> str:
        self.opened.append(start)
        self.position = start or self.first
        return self.position

    def read(self, wait: float) -> list[pa.RecordBatch]:
        at = int(self.position or "0", 16)
        some = self.database.log[at : at + self.database.random.randrange(1, 9)]
        if not some:
            time.sleep(wait / 10)
            return []
        self.position = some[-1][0]
        return [batch(some)]

    def quiet(self) -> float:
        return 0.0

    def head(self) -> str:
        return self.database.head

    ceiling = head

    def durable(self, position: str) -> None:
        assert "-s" not in position

    def copied(self) -> bool:
        return True

    def close(self) -> None:
        pass


class View:
    def __init__(self, tables: Tables, chunk: Chunk) -> None:
        self.chunk, self.tables = chunk, tables
        database = tables.database
        with database.lock:
            low = len(database.log)
            self.rows = dict(database.tables[chunk.table])
        if tables.vague:  # as a server that cannot tell where exactly a view stands
            for _ in range(database.random.randrange(5)):
                database.change()
        self.low = f"{low:08x}"
        self.position = database.head
        self.closed = False

    def missed(self, changes: pa.RecordBatch) -> set[str]:
        rows = changes.to_pylist()
        return {
            row["primary_key"]
            for row in rows
            if self.low < row["position"] <= self.position and row["table"] == self.chunk.table
        }

    def read(self) -> Iterator[pa.RecordBatch]:
        if self.tables.database.random.random() < self.tables.outdated:
            raise Outdated
        low = -1 if self.chunk.after is None else self.chunk.after[0]
        high = 10**9 if self.chunk.upto is None else self.chunk.upto[0]
        keys = sorted(key for key in self.rows if low < key <= high)
        for start in range(0, len(keys), 7):
            time.sleep(0.0005)
            yield batch(
                [
                    ("", False, "r", self.chunk.table, text(k), json.dumps(self.rows[k]))
                    for k in keys[start : start + 7]
                ]
            )

    def close(self) -> None:
        self.closed = True


class Tables:
    def __init__(self, database: Database, *, vague: bool = False, outdated: float = 0.0) -> None:
        self.database, self.vague, self.outdated = database, vague, outdated
        self.views: list[View] = []
        self.most = 0

    def captured(self) -> list[str]:
        return sorted(self.database.tables)

    def rows(self, table: str) -> int:
        return len(self.database.tables[table])

    def keyed(self, table: str) -> bool:
        return True

    def next(self, table: str, after: list[Any] | None, size: int) -> tuple[list[Any] | None, bool]:
        with self.database.lock:
            keys = sorted(self.database.tables[table])
        rest = [key for key in keys if after is None or key > after[0]]
        return ([rest[min(size, len(rest)) - 1]] if rest else None), len(rest) <= size

    def view(self, chunk: Chunk) -> View:
        view = View(self, chunk)
        self.views.append(view)
        self.most = max(self.most, sum(not view.closed for view in self.views))
        return view

    def close(self) -> None:
        pass


class Sink:
    """Takes what lies behind its position, a transaction at a time, and applies it."""

    def __init__(self) -> None:
        self.position = ""
        self.state: dict[tuple[str, str], str] = {}
        self.copied: dict[tuple[str, str], int] = {}
        self.open: list[dict[str, Any]] = []

    def take(self, batches: list[pa.RecordBatch], upto: int = 10**9) -> None:
        for row in (row for b in batches for row in b.to_pylist()):
            if row["position"] <= self.position:
                continue
            assert not self.open or row["position"] > self.open[-1]["position"]
            self.open.append(row)
            if row["tx_end"]:
                self.commit()

    def commit(self) -> None:
        for row in self.open:
            key = row["table"], row["primary_key"]
            if row["op"] == "d":
                self.state.pop(key, None)
            else:
                self.state[key] = row["after"]
            if row["op"] == "r":
                self.copied[key] = self.copied.get(key, 0) + 1
        self.position = self.open[-1]["position"]
        self.open = []


def truth(database: Database) -> dict[tuple[str, str], str]:
    return {
        (table, text(key)): json.dumps(value)
        for table, rows in database.tables.items()
        for key, value in rows.items()
    }


def made(
    database: Database,
    tables: Tables,
    storage: Any = None,
    mode: str = "initial",
    workers: int = 3,
    within: bool = True,
    folder: str = "",
) -> SnapshotLog:
    return SnapshotLog(
        Log(database),
        lambda generation: tables,
        storage,
        "p/s",
        mode=mode,
        chunk_size=30,
        tables_at_once=workers,
        chunks_at_once=2 if within else 1,
        folder=folder,
    )


def drained(log: SnapshotLog, database: Database, *sinks: Sink, changes: int = 300) -> None:
    """Changes go on while the copy is made, and a while behind it."""
    while changes or not log.copied() or in_stream(log.position) < database.head:
        for _ in range(min(changes, 2)):
            database.change()
            changes -= 1
        got = log.read(0.01)
        for sink in sinks:
            sink.take(got)


@pytest.mark.parametrize("vague", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_last_word_on_every_row_is_true(seed: int, vague: bool) -> None:
    database = Database(seed)
    tables, sink = Tables(database, vague=vague, outdated=0.1), Sink()
    log = made(database, tables)
    log.open("")
    drained(log, database, sink)
    log.close()
    assert sink.state == truth(database)
    assert set(sink.copied.values()) == {1}, "a row is copied once"
    assert all(view.closed for view in tables.views)
    assert tables.most <= 3 * 2 + 1, "no more than the threads, and one that is withdrawn"


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_goes_on_after_crashes(seed: int, tmp_path: Path) -> None:
    """Two sinks that stand at different places: each gets every chunk once."""
    database, storage = Database(seed), SqliteStorage(tmp_path / "state.db")
    quick, slow = Sink(), Sink()
    for _ in range(8):
        tables = Tables(database, vague=seed % 2 == 1, outdated=0.1)
        log = made(database, tables, storage)
        log.open(min(quick.position, slow.position))
        for _ in range(database.random.randrange(60)):
            database.change()
            quick.take(log.read(0.005))
        quick.open = []
        log.close()
        # The other takes the same from its own position, and less of it.
        log = made(database, Tables(database), storage)
        log.open(slow.position)
        for _ in range(database.random.randrange(5)):
            slow.take(log.read(0.005))
        slow.open = []
        log.close()
    log = made(database, Tables(database), storage)
    log.open(min(quick.position, slow.position))
    drained(log, database, quick, slow, changes=50)
    log.close()
    for sink in (quick, slow):
        assert sink.state == truth(database)
        assert set(sink.copied.values()) == {1}


def test_what_was_copied_before_a_crash_is_not_ahead_of_the_source(tmp_path: Path) -> None:
    """Storage may know of less than a sink holds, in a database where nothing else happens."""
    database, storage = Database(1), SqliteStorage(tmp_path / "state.db")
    log, sink = made(database, Tables(database), storage), Sink()
    log.open("")
    while not log.copied():
        sink.take(log.read(0.01))
    log.close()
    log = made(database, Tables(database), storage)
    log.open("")
    assert sink.position > database.head and log.ceiling() >= sink.position
    log.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_sink_that_stands_inside_a_chunk_misses_no_row(tmp_path: Path, ahead: bool) -> None:
    """Rows before its place may be deleted meanwhile: the others are numbered anew then. `ahead` is a
    second sink that has nothing yet, so that reading begins before the chunk."""
    database, storage = Database(3, tables=1, rows=25), SqliteStorage(tmp_path / "state.db")
    sink, other = Sink(), Sink()
    log = made(database, Tables(database), storage)
    begin = log.open("")
    rows: list[dict[str, Any]] = []
    while not rows:
        rows = [row for b in log.read(0.01) for row in b.to_pylist()]
    sink.open = rows[:10]
    sink.commit()  # in the middle, as a lane or a small batch does
    log.close()
    for key in (0, 3, 6):
        del database.tables["t0"][key]
        database.log.append((f"{len(database.log) + 1:08x}", True, "d", "t0", text(key), None))
    log = made(database, Tables(database), storage)
    log.open(begin if ahead else sink.position)
    drained(log, database, sink, other, changes=0)
    log.close()
    assert sink.state == truth(database)
    assert other.state == truth(database)


def test_changes_that_never_show_in_the_tables_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "_VISIBLE_SECS", 0.1)

    class Behind(Tables):
        def view(self, chunk: Chunk) -> View:
            view = super().view(chunk)
            view.position = ""
            return view

    database = Database(4)
    log = made(database, Behind(database))
    log.open("")
    with pytest.raises(TransientError, match="came from the log"):
        for _ in range(1000):
            database.change()
            log.read(0.01)
    log.close()


def test_a_finished_copy_is_not_made_again(tmp_path: Path) -> None:
    database, storage = Database(1), SqliteStorage(tmp_path / "state.db")
    sink = Sink()
    log = made(database, Tables(database), storage)
    log.open("")
    drained(log, database, sink)
    log.close()
    tables = Tables(database)
    log = made(database, tables, storage)
    log.open(sink.position)
    assert log.copied()
    drained(log, database, sink, changes=20)
    assert sink.state == truth(database) and tables.views == []


def test_a_new_sink_gets_old_chunks_also_when_the_connection_breaks_at_once(tmp_path: Path) -> None:
    database, storage = Database(8), SqliteStorage(tmp_path / "state.db")
    old, new = Sink(), Sink()
    log = made(database, Tables(database), storage)
    log.open("")
    drained(log, database, old, changes=0)
    log.close()
    log = made(database, Tables(database), storage)
    log._log.first = database.head  # type: ignore[attr-defined]
    log.open("")
    for _ in range(3):
        start = log.position
        log.close()
        log.open(start)
    drained(log, database, old, new, changes=50)
    log.close()
    assert old.state == new.state == truth(database)


def test_a_copy_is_made_anew_when_that_was_asked_for(tmp_path: Path) -> None:
    database, storage, sink = Database(9), SqliteStorage(tmp_path / "state.db"), Sink()
    snapshot.begin_anew(storage, "p", "s")  # there is none yet
    for run in (1, 2):
        log = made(database, Tables(database), storage)
        log.open(sink.position)
        drained(log, database, sink, changes=0)
        log.close()
        assert set(sink.copied.values()) == {run}
        snapshot.begin_anew(storage, "p", "s")


def test_always_copies_once_in_each_run(tmp_path: Path) -> None:
    database, storage, sink = Database(2), SqliteStorage(tmp_path / "state.db"), Sink()
    for run in range(1, 3):
        log = made(database, Tables(database), storage, mode="always")
        log.open(sink.position)
        drained(log, database, sink, changes=0)
        log.close()
        log.open(sink.position)  # the connection was lost
        assert log.copied()
        assert set(sink.copied.values()) == {run}, "also when nothing has changed in between"
        log.close()


def test_a_pipeline_that_ran_without_a_copy_does_not_begin_one() -> None:
    database = Database(3)
    database.change()
    log = made(database, Tables(database))
    assert log.open(database.head) == database.head
    assert log.copied()


def test_a_failure_to_read_is_heard() -> None:
    class Broken(Tables):
        def view(self, chunk: Chunk) -> View:
            raise SourceError("no right to read t0")

    database = Database(4)
    log = made(database, Broken(database))
    log.open("")
    with pytest.raises(SourceError, match="no right to read t0"):
        for _ in range(1000):
            log.read(0.01)
    log.close()


def test_one_chunk_of_a_table_at_once_unless_asked_for() -> None:
    database = Database(5, tables=2)
    tables, sink = Tables(database), Sink()
    log = made(database, tables, workers=8, within=False)
    log.open("")
    drained(log, database, sink, changes=0)
    assert tables.most <= 2
    assert sink.state == truth(database)


def test_a_large_chunk_comes_in_parts_and_ends_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(snapshot, "_AT_ONCE_BYTES", 400)
    monkeypatch.setattr("dfc_runtime.sources.snapshot_spool.IN_MEMORY_BYTES", 500)
    database, sink = Database(6, tables=1), Sink()
    log = made(database, Tables(database), folder=str(tmp_path))
    log.open("")
    results = []
    while not log.copied():
        results.append(log.read(0.01))
    rows = [row for result in results for b in result for row in b.to_pylist()]
    assert sum(row["tx_end"] for row in rows) == 7, "one for each chunk"
    assert len([result for result in results if result]) > 7
    sink.take([b for result in results for b in result])
    assert sink.state == truth(database)
    log.close()
    assert list(tmp_path.iterdir()) == [], "nothing is left of what was spooled"


def test_spool(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    numbers = pa.array(np.arange(2_000_000))
    batches = [pa.record_batch({"n": numbers.slice(i * 250_000, 250_000)}) for i in range(8)]
    for one in batches:
        spool.put(one)
    assert len(list(tmp_path.iterdir())) == 0, "16 MB stay in memory"
    spool.put(batches[0])
    spool.put(batches[1])
    assert len(list(tmp_path.iterdir())) == 1
    assert [b["n"][0].as_py() for b in spool] == [*range(0, 2_000_000, 250_000), 0, 250_000]
    spool.close()
    assert len(list(tmp_path.iterdir())) == 0
