from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.deliver import unpacked
from dfc_runtime.scratch import CEILING
from dfc_runtime.sources import SourceError, lanes, pump, segments
from dfc_runtime.sources.log import TransientError
from dfc_runtime.sources.progress import SinkPositions
from dfc_runtime.sources.segments import SegmentReader
from dfc_runtime.sources.settings import ReaderSettings
from dfc_runtime.storage import SqliteStorage

SCHEMA = pa.schema(
    [(n, pa.string()) for n in ("position", "table", "primary_key", "before", "after")]
)


class ScriptedLog:
    """A log of numbered rows that a test extends while it is read."""

    def __init__(self, rows: int = 0, per_read: int = 10) -> None:
        self.rows, self.per_read = rows, per_read
        self.at = 0
        self.opened: list[str] = []
        self.held: list[str] = []
        self.failures: list[Exception] = []
        self.quiet_for = 0.0

    @property
    def position(self) -> str:
        return f"{self.at:04x}"

    def open(self, start: str) -> str:
        self.opened.append(start)
        self.at = int(start or "0", 16)
        return start

    def read(self, wait: float) -> list[pa.RecordBatch]:
        if self.failures:
            raise self.failures.pop(0)
        if self.at >= self.rows:
            time.sleep(min(wait, 0.01))
            return []
        first, self.at = self.at, min(self.rows, self.at + self.per_read)
        numbers = range(first + 1, self.at + 1)
        rows = [
            {
                "position": f"{n:04x}",
                "table": "t",
                "primary_key": json.dumps({"id": n % 7}),
                "before": None,
                "after": json.dumps({"id": n % 7, "n": n}),
            }
            for n in numbers
        ]
        return [pa.RecordBatch.from_pylist(rows, SCHEMA)]

    def copied(self) -> bool:
        return True

    def quiet(self) -> float:
        return self.quiet_for

    def head(self) -> str:
        return f"{self.rows:04x}"

    def ceiling(self) -> str:
        return self.head()

    def durable(self, position: str) -> None:
        self.held.append(position)

    def close(self) -> None:
        pass


class Reader(SegmentReader):
    def __init__(self, log: ScriptedLog, **options: str) -> None:
        super().__init__({"columns": "position after", "batch_max_ms": "0", **options})
        self.scripted = log

    def log(self) -> ScriptedLog:
        return self.scripted


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Any]:
    """Makes readers over a scripted log, and stops them."""
    made: list[Reader] = []

    def make(log: ScriptedLog, **options: str) -> Reader:
        folder = {} if options.get("carry") == "inline" else {"folder": str(tmp_path / "segments")}
        made.append(Reader(log, **folder, **options))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def numbers(reader: SegmentReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[int]]:
    """What each lane of an epoch holds."""
    return [
        [
            json.loads(row["after"])["n"]
            for batch in reader.read(pickle.loads(pickle.dumps(partition)))
            for row in batch.to_pylist()
        ]
        for partition in reader.partitions(start, end)
    ]


def epochs(reader: SegmentReader, upto: int) -> Iterator[list[list[int]]]:
    """Epochs as Spark runs them, until that many rows are through."""
    offset, seen, deadline = reader.initialOffset(), 0, time.monotonic() + 20
    while seen < upto:
        assert time.monotonic() < deadline
        end = reader.latestOffset(offset, None)
        if end != offset:
            lanes_of_epoch = numbers(reader, offset, end)
            seen += sum(map(len, lanes_of_epoch))
            yield lanes_of_epoch
        offset = end


@pytest.mark.parametrize("carry", ["file", "inline"])
def test_all_rows_come_through_in_order(read: Any, carry: str) -> None:
    reader = read(ScriptedLog(500), carry=carry)
    rows = [n for epoch in epochs(reader, 500) for n in epoch[0]]
    assert rows == list(range(1, 501))


@pytest.mark.parametrize("carry", ["file", "inline"])
def test_packed_segments_hold_the_same_rows(read: Any, carry: str) -> None:
    """In a job one row of the DataFrame is a whole segment, which delivery opens."""
    reader = read(ScriptedLog(500), carry=carry, packed="true", lanes="2")
    assert reader.settings.spark_schema == "segment binary"
    offset, rows = reader.initialOffset(), []
    while len(rows) < 500:
        end = reader.latestOffset(offset, None)
        for partition in reader.partitions(offset, end):
            for batch in unpacked(reader.read(pickle.loads(pickle.dumps(partition)))):
                rows += [json.loads(text)["n"] for text in batch.column("after").to_pylist()]
        offset = end
    assert sorted(rows) == list(range(1, 501))


def test_a_note_of_the_job_says_where_the_next_query_begins(read: Any) -> None:
    reader = read(ScriptedLog(20), start="0010")
    assert reader.initialOffset() == {"position": "0010", "tick": 0}
    os.makedirs(reader.settings.folder, exist_ok=True)
    Path(reader.settings.folder, "start").write_text("0004")
    assert reader.initialOffset() == {"position": "0004", "tick": 0}


def test_the_job_is_told_what_the_source_has(read: Any, tmp_path: Path) -> None:
    list(epochs(read(ScriptedLog(rows=20), pipeline="p", storage=str(tmp_path / "none")), 20))
    assert (tmp_path / "segments" / CEILING).read_text() == "0014"


def test_nothing_is_opened_before_an_offset_is_asked_for(read: Any) -> None:
    log = ScriptedLog(5)
    reader = read(log)
    assert reader.initialOffset() == {"position": "", "tick": 0}
    copy = pickle.loads(pickle.dumps(reader))
    assert log.opened == []
    reader.latestOffset(reader.initialOffset(), None)
    assert log.opened == [""]
    assert copy.settings == reader.settings
    pickle.dumps(reader)  # also while it runs


@pytest.mark.parametrize("carry", ["file", "inline"])
def test_lanes_keep_order_and_split_by_key(read: Any, carry: str) -> None:
    reader = read(ScriptedLog(300), carry=carry, lanes="3")
    shares: list[list[int]] = [[], [], []]
    for epoch in epochs(reader, 300):
        assert len(epoch) == 3
        for lane, rows in enumerate(epoch):
            shares[lane] += rows
    assert sorted(shares[0] + shares[1] + shares[2]) == list(range(1, 301))
    assert all(rows == sorted(rows) for rows in shares)
    of_key = {n % 7: lane for lane, rows in enumerate(shares) for n in rows}
    assert all(of_key[n % 7] == lane for lane, rows in enumerate(shares) for n in rows)
    assert len(set(of_key.values())) > 1


def test_a_lane_is_the_same_on_every_run() -> None:
    rows = [{"table": "t", "primary_key": json.dumps({"id": n})} for n in range(8)]
    rows.append({"table": "t", "primary_key": None})
    batch = pa.RecordBatch.from_pylist(
        rows, pa.schema([("table", pa.string()), ("primary_key", pa.string())])
    )
    shares = lanes.split(batch, 4)
    of_row = {row["primary_key"]: n for n, s in enumerate(shares) if s for row in s.to_pylist()}
    # Written down once: another hash would give rows to tasks that do not know their position.
    assert (of_row['{"id": 0}'], of_row[None]) == (3, 1)


def test_lane_key_takes_a_column_of_the_row() -> None:
    rows = [{"before": None, "after": json.dumps({"c": n % 2, "id": n})} for n in range(20)]
    rows.append({"before": '{"c":1,"id":99}', "after": None})
    batch = pa.RecordBatch.from_pylist(
        rows, pa.schema([("before", pa.string()), ("after", pa.string())])
    )
    shares = [share.to_pylist() for share in lanes.split(batch, 64, "c") if share is not None]
    assert sorted(map(len, shares)) == [10, 11]


def test_reading_ahead_stops_at_its_bound(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "AHEAD_SEGMENTS", 4)
    log = ScriptedLog(1000, per_read=10)
    reader = read(log, batch_max_events="10")
    offset = reader.initialOffset()
    reader.latestOffset(offset, None)
    time.sleep(0.3)
    assert log.at <= 60, "four segments, one in hand"
    end = reader.latestOffset(offset, None)
    reader.partitions(offset, end)
    time.sleep(0.3)
    assert 60 < log.at <= 100, "an epoch that Spark has taken makes room"


def test_an_epoch_has_its_bound(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "EPOCH_ROWS", 25)
    reader = read(ScriptedLog(100), batch_max_events="10")
    sizes = [len(epoch[0]) for epoch in epochs(reader, 100)]
    assert max(sizes) <= 25 and sum(sizes) == 100


def test_segments_go_when_the_next_epoch_begins(read: Any, tmp_path: Path) -> None:
    log = ScriptedLog(10)
    reader = read(log)
    zero = reader.initialOffset()
    one = reader.latestOffset(zero, None)
    assert numbers(reader, zero, one) == numbers(reader, zero, one), "an epoch can be read twice"
    log.rows = 20
    two = reader.latestOffset(one, None)
    while two == one:
        two = reader.latestOffset(one, None)
    assert len(os.listdir(tmp_path / "segments")) == 2
    assert numbers(reader, one, two) == [list(range(11, 21))]
    assert len(os.listdir(tmp_path / "segments")) == 1


def test_a_stop_file_ends_the_offers(read: Any, tmp_path: Path) -> None:
    reader = read(ScriptedLog(10), tick_secs="0.01")
    zero = reader.initialOffset()
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "stop").touch()
    assert reader.latestOffset(zero, None) == zero
    (tmp_path / "segments" / "stop").unlink()
    while (one := reader.latestOffset(zero, None))["position"] == "":
        pass
    assert one["position"] == "000a"


def test_ticks_come_when_nothing_else_does(read: Any) -> None:
    reader = read(ScriptedLog(0), tick_secs="0.2")
    offset = reader.initialOffset()
    began = time.monotonic()
    while (end := reader.latestOffset(offset, None)) == offset:
        assert time.monotonic() - began < 30
    assert time.monotonic() - began >= 0.2
    assert end == {"position": "", "tick": 1}
    assert numbers(reader, offset, end) == [[]]
    assert reader.latestOffset(end, None) == end


def test_an_idle_look_takes_its_time(read: Any) -> None:
    reader = read(ScriptedLog(0))
    offset = reader.initialOffset()
    began = time.monotonic()
    for _ in range(3):
        assert reader.latestOffset(offset, None) == offset
    assert 0.25 < time.monotonic() - began < 30


def test_trickling_rows_are_held_back_to_fill_a_batch(read: Any) -> None:
    log = ScriptedLog(1, per_read=1)
    reader = read(log, batch_max_ms="400", batch_max_events="3")
    zero = reader.initialOffset()
    reader.latestOffset(zero, None)
    log.rows = 2
    assert reader.latestOffset(zero, None) == zero, "one and two rows wait for more"
    log.rows = 3
    end = reader.latestOffset(zero, None)
    assert numbers(reader, zero, end) == [[1, 2, 3]], "a full batch waits for nothing"


def test_nothing_is_held_back_when_nothing_can_come(read: Any) -> None:
    log = ScriptedLog(1)
    log.quiet_for = 60
    reader = read(log, batch_max_ms="30000")
    zero = reader.initialOffset()
    reader.latestOffset(zero, None)
    assert reader.latestOffset(zero, None)["position"] == "0001"


@pytest.mark.parametrize("rows", [0, 5, 900])
def test_once_takes_what_is_there_and_ends(
    read: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "EPOCH_ROWS", 300)
    log = ScriptedLog(rows)
    reader = read(log)
    reader.prepareForTriggerAvailableNow()
    offset, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, None)) != offset:
        log.rows += 1  # comes too late
        seen += numbers(reader, offset, end)[0]
        offset = end
    assert seen[:rows] == list(range(1, rows + 1))
    assert len(seen) < rows + 10


def test_once_can_be_stopped(read: Any, tmp_path: Path) -> None:
    log = ScriptedLog(10)
    log.failures = [TransientError("locked")] * 1000
    reader = read(log)
    reader.prepareForTriggerAvailableNow()
    (tmp_path / "segments").mkdir()
    threading.Timer(0.3, (tmp_path / "segments" / "stop").touch).start()
    assert reader.latestOffset(reader.initialOffset(), None) == reader.initialOffset()


def test_a_passing_failure_is_tried_again(
    read: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pump, "FIRST_BACKOFF_SECS", 0.01)
    log = ScriptedLog(30)
    log.failures = [TransientError("database is locked")] * 2
    reader = read(log)
    assert [n for epoch in epochs(reader, 30) for n in epoch[0]] == list(range(1, 31))
    assert len(log.opened) == 3
    assert caplog.text.count("database is locked; again in") == 2


def test_a_lasting_failure_comes_out_after_what_was_read(read: Any) -> None:
    log = ScriptedLog(10)
    reader = read(log)
    zero = reader.initialOffset()
    one = reader.latestOffset(zero, None)
    log.failures = [SourceError("the disk is on fire")]
    with pytest.raises(SourceError, match=r"^the disk is on fire$"):
        for _ in range(50):
            reader.latestOffset(one, None)
    assert reader.latestOffset(zero, None) == one


def test_an_unexpected_failure_says_which_source(read: Any) -> None:
    log = ScriptedLog(10)
    log.failures = [KeyError("x")]
    reader = read(log, id="shop")
    with pytest.raises(SourceError, match=r"^source shop: KeyError: 'x'$"):
        for _ in range(50):
            reader.latestOffset(reader.initialOffset(), None)


def test_a_query_that_comes_back_gets_its_last_epoch_again(read: Any) -> None:
    log = ScriptedLog(95, per_read=10)
    reader = read(log)
    start, end = {"position": "0014", "tick": 3}, {"position": "0037", "tick": 3}
    assert numbers(reader, start, end) == [list(range(0x15, 0x38))]
    rest = reader.latestOffset(end, None)
    assert rest["tick"] == 3
    assert numbers(reader, end, rest)[0][0] == 0x38
    assert log.opened == ["0014"]


def test_a_replayed_epoch_may_have_lost_its_rows(read: Any) -> None:
    log = ScriptedLog(20)
    log.open = lambda start: setattr(log, "at", 20) or start  # type: ignore[method-assign, func-returns-value]
    reader = read(log)
    assert numbers(reader, {"position": "0001", "tick": 0}, {"position": "000f", "tick": 0}) == [[]]


# --- what the database may forget ------------------------------------------------------------


def sinks(path: Path, *names: str) -> SinkPositions:
    options = {"pipeline": "p", "id": "s", "storage": str(path), "sinks": json.dumps(names)}
    return SinkPositions(ReaderSettings.parse(options))


def test_the_slowest_lane_of_the_slowest_sink_counts(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    assert sinks(path, "a").smallest() == "" and not path.exists()
    storage = SqliteStorage(path)

    def put(sink: str, lane: int, position: str, lanes: int = 1) -> None:
        value = json.dumps({"position": position, "lanes": lanes, "ts_ms": 0, "events": 0})
        storage.put("checkpoints", f"p/s::sink::{sink}::{lane}", value.encode())

    put("a", 0, "0005")
    put("other", 0, "0001")
    assert sinks(path, "a").smallest() == "0005"
    assert sinks(path, "a", "b").smallest() == "", "b has nothing yet"
    put("b", 0, "0009", lanes=2)
    assert sinks(path, "a", "b").smallest() == "", "one of its lanes has nothing yet"
    put("b", 1, "0003", lanes=2)
    assert sinks(path, "a", "b").smallest() == "0003"
    assert sinks(path).smallest() == "0001", "without a list, all that are known"


def test_the_log_hears_of_it(read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "CONFIRM_SECS", 0.05)
    log = ScriptedLog(10)
    path = tmp_path / "state.db"
    value = json.dumps({"position": "0004", "lanes": 1, "ts_ms": 0, "events": 4}).encode()
    SqliteStorage(path).put("checkpoints", "p/s::sink::a::0", value)
    reader = read(log, pipeline="p", id="s", storage=str(path), sinks='["a"]')
    reader.latestOffset(reader.initialOffset(), None)
    reader.commit({"position": "0009", "tick": 0})
    time.sleep(0.3)
    assert set(log.held) == {"0004"}, "sinks count, not what Spark believes"


def test_alone_sparks_word_is_taken(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "CONFIRM_SECS", 0.05)
    log = ScriptedLog(10)
    reader = read(log)
    reader.latestOffset(reader.initialOffset(), None)
    reader.commit({"position": "0009", "tick": 0})
    time.sleep(0.3)
    assert set(log.held) == {"0009"}
