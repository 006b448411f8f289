"""Segments that come while a task delivers, without Spark: which are taken up, and when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime import follow as following
from dfc_runtime.deliver import SEGMENT, Standing, standing_of, unpacked
from dfc_runtime.follow import follow
from dfc_runtime.sources.segments import SegmentStore
from dfc_runtime.sources.settings import ReaderSettings

from .jobs.tiny_source import events
from .test_outlets import Recorder, hexed, run
from .test_settle import Epoch, ack, settle


class Reader:
    """The reader's store: each call makes the next segment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = tuple(events(0, 1).schema.names)
        self.store = SegmentStore(
            ReaderSettings(folder=str(folder), carry="file", columns=names, packed=True)
        )
        self.at = 0

    def __call__(self, rows: int, whole: bool = True) -> str:
        batch = events(self.at, self.at + rows)
        self.at += rows
        self.store.put([batch], hexed(self.at), whole)
        ((*_, path),) = self.store.take("", hexed(self.at))
        assert isinstance(path, str)
        return path


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setattr(following, "QUIET_SECS", 0.2)
    return Reader(tmp_path)


def ids(batches: Any) -> list[Any]:
    """Last rows of the batches; several looks in vain are one."""
    found: list[Any] = []
    for batch in batches:
        told = None if batch is None else batch.column("position")[-1].as_py()
        if told is not None or found[-1:] != [None]:
            found.append(told)
    return found


def test_segments_are_taken_up_in_their_order(reader: Reader) -> None:
    first = reader(3)
    reader(2)
    reader(4)
    assert ids(follow(first, 5)) == [hexed(5), hexed(9), None]


def test_what_comes_while_it_waits_is_taken_up_at_once(reader: Reader) -> None:
    first, found, late = reader(3), [], []
    for batch in follow(first, 5):
        found.append(batch)
        if batch is None and len(late) < 3:
            late.append(threading.Timer(0.05, reader, [2]))
            late[-1].start()
            late[-1].join()
    assert [x for x in ids(found) if x] == [hexed(5), hexed(7), hexed(9)]


def test_it_ends_in_time_though_more_comes(reader: Reader) -> None:
    first = reader(1)
    begin = time.monotonic()
    for _ in follow(first, 0.3):
        reader(1)
    assert 0.3 <= time.monotonic() - begin < 30
    assert list(follow(first, 0)) == []


def test_it_ends_when_a_stop_is_asked_for(reader: Reader) -> None:
    first = reader(1)
    reader(1)
    batches = follow(first, 60)
    assert next(batches) is not None
    (reader.folder / following.STOP).touch()
    reader(1)
    assert list(batches) == []


def test_a_transaction_in_pieces_is_left_to_epochs(reader: Reader) -> None:
    first = reader(3)
    part = reader(2, whole=False)
    reader(2)
    assert ids(follow(first, 5)) == [None]
    assert list(follow(part, 5)) == []


def test_files_of_another_query_are_not_mistaken_for_the_next(reader: Reader) -> None:
    """They are numbered from the beginning, too, and may be anywhere in the log."""
    other = Reader(reader.folder)
    for _ in range(5):
        other(7)
    assert ids(follow(reader(3), 5)) == [None]


def test_half_a_file_is_not_seen(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    first, seen = reader(3), []
    write = pa.ipc.RecordBatchFileWriter.write_batch

    def slow(self: Any, batch: Any) -> None:
        write(self, batch)
        looking = follow(first, 5)
        seen.append(next(looking))
        looking.close()

    monkeypatch.setattr(pa.ipc.RecordBatchFileWriter, "write_batch", slow)
    reader(2)
    assert seen == [None]


# --- delivery --------------------------------------------------------------------------------


def packed(path: str) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({SEGMENT: pa.array([f"file:{path}".encode()], pa.binary())})


def test_what_is_open_is_committed_before_waiting(reader: Reader) -> None:
    first = reader(3)
    reader(3)
    sink = Recorder("a")
    acks = run(sink, batches=unpacked(packed(first), 5), limit=9)
    assert sink.units == [[1, 2, 3, 4, 5, 6]], "one unit, as in an epoch that has both"
    assert (acks["a"]["position"], acks["a"]["events"]) == (hexed(6), 6)
    assert (acks[""]["position"], acks[""]["events"]) == (hexed(6), 6)
    sink = Recorder("a")
    batches = [events(0, 3), None, None, events(3, 6), events(6, 9), None, events(9, 12)]
    run(sink, batches=batches, limit=9)
    assert sink.units == [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10, 11, 12]]


def test_it_ends_when_a_sink_fails_but_not_for_one_that_takes_no_part() -> None:
    batches = [events(0, 3), None, events(3, 6), None, events(6, 9)]
    good, bad = Recorder("good"), Recorder("bad", fail_at=5)
    acks = run(good, bad, batches=batches)
    assert (good.taken, bad.taken) == ([1, 2, 3, 4, 5, 6], [1, 2, 3])
    assert (acks["good"]["position"], acks[""]["position"]) == (hexed(6), hexed(6))
    good = Recorder("good")
    run(good, bad, batches=batches, standing={"bad": Standing(("",), "left behind")})
    assert good.taken == list(range(1, 10))


def test_the_next_epoch_leaves_out_what_was_followed(reader: Reader) -> None:
    first = reader(3)
    second = reader(3)
    sink = Recorder("a")
    run(sink, batches=unpacked(packed(first), 5))
    third = reader(3)
    sink.own = hexed(6)
    batches = [*unpacked(packed(second)), *unpacked(packed(third))]
    acks = run(sink, batches=batches, standing={"": Standing((hexed(6),))})
    assert sink.units == [[1, 2, 3, 4, 5, 6], [7, 8, 9]]
    assert (acks[""]["events"], acks[""]["position"]) == (3, hexed(9))


def test_one_that_came_later_gets_what_the_others_have(reader: Reader) -> None:
    """What an epoch leaves out is what all sinks have, and not what was counted."""
    has, lacks = Recorder("has", own=hexed(9)), Recorder("lacks")
    run(has, lacks, batches=[events(0, 9)], standing={"": Standing((hexed(9),))})
    assert (has.taken, lacks.taken) == ([], list(range(1, 10)))


# --- the driver's word -----------------------------------------------------------------------


def test_tasks_follow_once_all_is_well() -> None:
    one = settle("a", "b", required=("a",))
    one.follow_secs, one.ceiling = 2.0, lambda: "09"
    told: list[float] = []

    class Told(Epoch):
        def setLocalProperty(self, name: str, value: str) -> None:
            told.append(standing_of(value)[2])

    def epoch(*errors: str | None) -> None:
        one(Told(*([ack("a", "09", e), ack("b", "09"), ack("", "09")] for e in errors)), 0)

    epoch(None)
    assert told == [0], "a sink may be one of another source, and ahead of this one"
    epoch(None)
    one.stop.wait = lambda *_: False  # type: ignore[method-assign]
    epoch("no answer", None)
    assert told == [0, 2.0, 2.0, 0], "nobody goes ahead while one fails"
    one.ceiling = lambda: "0a"  # the source was opened anew
    epoch(None)
    epoch(None)
    one.stop.set()
    epoch(None)
    assert told[4:] == [0, 2.0, 0]


def test_a_sink_that_is_away_from_the_start_keeps_nobody_from_following() -> None:
    one = settle("a", "b", required=("a",))
    one.follow_secs, one.ceiling = 2.0, lambda: "09"
    one(Epoch([ack("a", "09"), ack("b", "", "no answer"), ack("", "09")]), 0)
    assert one._follow_secs() == 2.0


def test_what_was_followed_by_an_attempt_that_failed_is_not_ahead_of_the_source() -> None:
    one = settle("a", "b")
    one.ceiling = lambda: "05"
    one(Epoch([ack("a", "05"), ack("b", "05"), ack("", "05")]), 0)
    one.stop.wait = lambda *_: False  # type: ignore[method-assign]
    ahead = [ack("a", "09"), ack("b", "06", "no answer"), ack("", "09")]
    one(Epoch(ahead, [ack("a", "09"), ack("b", "07"), ack("", "07")]), 1)
    assert one.positions.of("a") == ("09",)
