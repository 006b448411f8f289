"""Delivery of one lane without Spark: positions, units, filters and failures of single sinks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.batch import Batch
from dfc_runtime.commit import CommitPolicy
from dfc_runtime.deliver import SEGMENT, Delivery, Standing, standing_of, standing_text, unpacked
from dfc_runtime.errors import DfcError, Rejected
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import Lane, Sink, SinkFilter

from .jobs.tiny_source import events


class Recorder(Sink):
    """Keeps what it gets, unit by unit."""

    kind = "recorder"

    def __init__(self, id: str, own: str = "", fail_at: int = -1, **named: Any) -> None:
        super().__init__(id, lambda e: Messages(to="x", value=e.after["id"]), **named)
        self.own, self.fail_at = own, fail_at
        self.error: Exception = OSError("disk full")
        self.units: list[list[int]] = []
        self.open_unit: list[int] = []
        self.calls: list[str] = []

    @property
    def taken(self) -> list[int]:
        return [number for unit in self.units for number in unit]

    def open(self, lane: Lane) -> str:
        return self.own

    def write(self, messages: Messages, events: Events) -> None:
        self.open_unit += [int(x) for x in messages.column("value", len(events)).to_pylist()]
        if self.fail_at in self.open_unit:
            raise self.error

    def commit(self, position: str) -> None:
        self.units.append(self.open_unit)
        self.open_unit = []

    def abort(self) -> None:
        self.calls.append("abort")
        self.open_unit = []

    def tick(self) -> None:
        self.calls.append("tick")

    def close(self) -> None:
        self.calls.append("close")


def run(
    *sinks: Sink, batches: Any = None, standing: Any = None, limit: int = 6, **named: Any
) -> dict[str, dict[str, Any]]:
    named.setdefault("process", lambda e: e)
    delivery = Delivery("p", "acme", 1, sinks=sinks, batch=Batch(max_events=limit), **named)
    given = [events(0, 9), events(9, 18)] if batches is None else batches
    (acks,) = list(delivery.run(iter(given), 0, standing or {}))
    return {row["sink"]: row for row in acks.to_pylist()}


def hexed(number: int) -> str:
    return f"{number:016x}"


def test_units_and_acks() -> None:
    sink = Recorder("a")
    acks = run(sink)
    assert [len(unit) for unit in sink.units] == [6, 6, 6]
    assert sink.taken == list(range(1, 19))
    ack = acks["a"]
    assert (ack["position"], ack["events"], ack["error"]) == (hexed(18), 18, None)
    assert ack["ts_ms"] == 1_700_000_000_018 and ack["bytes"] > 0
    assert acks[""]["events"] == 18 and acks[""]["position"] == hexed(18)
    assert sink.calls == ["tick", "close"]


def test_each_sink_goes_on_behind_its_own_position() -> None:
    ahead, behind, told = Recorder("a", own=hexed(12)), Recorder("b"), Recorder("c", own=hexed(3))
    standing = {"c": Standing((hexed(6),))}
    acks = run(ahead, behind, told, standing=standing)
    assert ahead.taken == list(range(13, 19))
    assert behind.taken == list(range(1, 19))
    assert told.taken == list(range(7, 19)), "the higher of the two positions counts"
    assert acks["a"]["events"] == 6


def test_events_that_come_again_are_not_counted_again() -> None:
    acks = run(Recorder("a"), standing={"": Standing((hexed(12),))})
    assert (acks[""]["events"], acks[""]["position"]) == (6, hexed(18))
    assert acks["a"]["events"] == 18, "the sink has them all the same"
    assert run(Recorder("a"), standing={"": Standing((hexed(18),))})[""]["bytes"] == 0


def test_a_sink_that_fails_leaves_the_others_alone() -> None:
    bad, good = Recorder("bad", fail_at=8), Recorder("good")
    acks = run(bad, good)
    assert good.taken == list(range(1, 19))
    assert bad.units == [[1, 2, 3, 4, 5, 6]]
    assert acks["bad"]["error"] == "OSError: disk full"
    assert (acks["bad"]["position"], acks["bad"]["events"]) == (hexed(6), 6)
    assert acks["good"]["error"] is None
    assert bad.calls == ["abort", "close"]


def test_an_event_without_destination_is_a_lasting_failure() -> None:
    lost, bad = Recorder("lost"), Recorder("bad", fail_at=8)
    lost.messages = lambda e: Messages(to=e.after["none"], value="x")
    acks = run(lost, bad)
    assert f"no destination for event dfid:v1:tsrow:{1:032x}" in acks["lost"]["error"]
    assert (acks["lost"]["lasting"], acks["bad"]["lasting"]) == (True, False)


def test_a_sink_that_is_away_is_not_touched() -> None:
    sink = Recorder("a")
    acks = run(sink, standing={"a": Standing((hexed(3),), "left behind: x")})
    assert sink.units == [] and sink.calls == []
    assert (acks["a"]["position"], acks["a"]["error"]) == (hexed(3), "left behind: x")


def test_nothing_to_read_still_ticks() -> None:
    sink = Recorder("a")
    acks = run(sink, batches=[])
    assert sink.calls == ["tick", "close"] and acks["a"]["events"] == 0
    assert acks[""]["position"] == ""


def test_replayed_events_do_not_reach_the_processors() -> None:
    seen: list[int] = []

    def process(e: Events) -> Events:
        seen.append(len(e))
        return e

    run(Recorder("a", own=hexed(12)), process=process)
    assert seen == [6]
    seen.clear()
    run(Recorder("a", own=hexed(18)), process=process)
    assert seen == []


def test_processors_may_multiply_and_reorder() -> None:
    def process(e: Events) -> Events:
        rows = list(range(len(e)))
        return e.take(pa.array(rows[::-1] + rows))

    sink = Recorder("a")
    run(sink, process=process)
    assert [sorted(unit) for unit in sink.units] == [
        sorted([*range(first, first + 6)] * 2) for first in (1, 7, 13)
    ]


def test_processor_errors_name_their_cause() -> None:
    def process(e: Events) -> Events:
        raise KeyError("price")

    sink = Recorder("a")
    acks = run(sink, process=process)
    assert acks[""]["error"] == "a processor failed: KeyError: 'price'"
    assert sink.units == [] and acks["a"]["position"] == "", "nothing moves past the failure"

    def ours(e: Events) -> Events:
        raise DfcError("said already")

    with pytest.raises(DfcError, match="said already"):
        run(Recorder("a"), process=ours)


def test_sinks_wait_at_the_same_time() -> None:
    """Each waits for the other, so one after the other they would wait for ever."""
    meeting = threading.Barrier(2)

    class Waiting(Recorder):
        def write(self, messages: Messages, events: Events) -> None:
            meeting.wait(30)
            super().write(messages, events)

    one, two = Waiting("one"), Waiting("two")
    acks = run(one, two)
    assert one.taken == two.taken == list(range(1, 19))
    assert acks["one"]["error"] is None and acks["two"]["error"] is None


def test_an_event_that_a_sink_will_never_take_is_named_and_lasts() -> None:
    sink = Recorder("a", fail_at=8)
    sink.error = Rejected({1: "too large"})
    ack = run(sink)["a"]
    assert (ack["position"], ack["lasting"]) == (hexed(6), True)
    assert ack["error"] == f"sink `a`: event dfid:v1:tsrow:{8:032x}: too large"


@pytest.mark.parametrize(
    ("filter", "kept"),
    [
        (SinkFilter(), [1, 2, 3]),
        (SinkFilter(exclude_synthetic=True), [1]),
        (SinkFilter(synthetic_only=True), [2, 3]),
        (SinkFilter(producers=("js",)), [2]),
        (SinkFilter(synthetic_only=True, producers=("other",)), [3]),
    ],
)
def test_sink_filters(filter: SinkFilter, kept: list[int]) -> None:
    def process(e: Events) -> Events:
        return e.with_columns(synthetic=pa.array([None, "js", "other"]))

    sink = Recorder("a", filter=filter)
    run(sink, batches=[events(0, 3)], process=process)
    assert sink.taken == kept
    plain = Recorder("b", filter=filter)
    run(plain, batches=[events(0, 3)])
    synthetic_wanted = filter.synthetic_only or filter.producers
    assert plain.taken == ([] if synthetic_wanted else [1, 2, 3])


def test_standing_travels_as_text() -> None:
    known = {"a": Standing(("01", "02")), "b": Standing(("", ""), "why")}
    assert standing_of(standing_text(known)) == known
    assert standing_of(None) == {}


def test_segments_are_unpacked(tmp_path: Path) -> None:
    batch = events(0, 9)
    path = tmp_path / "segment"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(events(9, 18))
    values = [b"file:" + str(path).encode(), sink.getvalue().to_pybytes()]
    packed = pa.record_batch({SEGMENT: pa.array(values, pa.binary())})
    assert list(unpacked(iter([packed]))) == [batch, events(9, 18)]
    assert list(unpacked(iter([batch]))) == [batch]


def test_policies() -> None:
    assert CommitPolicy.required("a", "b").met(["a", "b", "c"])
    assert not CommitPolicy.required("a", "b").met(["a", "c"])
    assert CommitPolicy.required().met([])
    assert not CommitPolicy.all("a", "b").met(["b"])
    assert CommitPolicy.quorum(2, "a", "b", "c").met(["c", "a"])
    assert not CommitPolicy.quorum(2, "a", "b", "c").met(["c"])
