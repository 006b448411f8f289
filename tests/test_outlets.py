"""Delivery of one lane without Spark: positions, units, filters and failures of single sinks."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.batch import Batch
from dfc_runtime.deliver import SEGMENT, Delivery, Standing, standing_of, standing_text, unpacked
from dfc_runtime.errors import ConfigError, DfcError, Fenced, Rejected
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.outlet import _LATE, Outlet
from dfc_runtime.policy import CommitPolicy
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
    policy = named.pop("policy", None)
    named.setdefault("process", lambda e: e)
    named.setdefault("batch", Batch(max_events=limit))
    delivery = Delivery("p", "acme", 1, sinks=sinks, **named)
    given = [events(0, 9), events(9, 18)] if batches is None else batches
    (acks,) = list(delivery.run(iter(given), 0, standing or {}, policy))
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


@pytest.mark.parametrize("error", [Fenced("somebody else"), ConfigError("not like this")])
def test_what_ends_the_job_is_told_with_what_the_sinks_hold(error: DfcError) -> None:
    """And not by a failing task, which Spark would run ten times."""
    good, bad = Recorder("good"), Recorder("bad", fail_at=9)
    bad.error = error
    acks = run(good, bad)
    assert acks[""]["error"] == str(error)
    assert bad.units == [[1, 2, 3, 4, 5, 6]] and acks["bad"]["position"] == hexed(6)
    assert bad.calls[-1] == "close"


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


@pytest.mark.parametrize(("inflight", "ahead"), [(1, 1), (3, 3)])
def test_so_many_batches_are_on_their_way_and_no_more(inflight: int, ahead: int) -> None:
    """The sink stands still at the first unit: what was made ready meanwhile is one more."""
    made: list[int] = []
    full = threading.Event()

    class Standing(Recorder):
        def commit(self, position: str) -> None:
            if not self.units:
                assert full.wait(30)
            super().commit(position)

    def process(e: Events) -> Events:
        made.append(len(e))
        if len(made) == ahead + 1:
            threading.Timer(0.3, full.set).start()  # time for more, if there were room
        elif len(made) > ahead + 1:
            assert full.is_set(), "made ready while there was no room"
        return e

    sink = Standing("a")
    parts = [events(n, n + 6) for n in range(0, 36, 6)]
    named: Any = {"batches": parts, "process": process}
    acks = run(sink, batch=Batch(max_events=6, max_inflight=inflight), **named)
    assert sink.taken == list(range(1, 37)) and len(made) == 6
    assert acks["a"]["error"] is None


class Held(Recorder):
    """Stands still in one of its calls until it is let go."""

    def __init__(self, id: str, call: str) -> None:
        super().__init__(id)
        self.call, self.back = call, threading.Event()

    def hold(self, call: str) -> None:
        assert call != self.call or self.back.wait(30)

    def open(self, lane: Lane) -> str:
        self.hold("open")
        return super().open(lane)

    def write(self, messages: Messages, events: Events) -> None:
        super().write(messages, events)
        self.hold("write")

    def commit(self, position: str) -> None:
        self.hold("commit")
        super().commit(position)

    def close(self) -> None:
        self.hold("close")
        super().close()

    def give_up(self) -> None:
        self.calls.append("give up")

    def let_go(self) -> None:
        """Returns once its own thread has let go of it."""
        self.back.set()
        deadline = time.monotonic() + 30
        while ("p", self.id, 0) in _LATE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_sink_that_takes_too_long_is_given_up_and_the_others_go_on() -> None:
    slow, good = Held("slow", "commit"), Recorder("good")
    acks = run(slow, good, sink_deadline_secs=0.3)
    assert good.taken == list(range(1, 19)) and acks["good"]["error"] is None
    assert "more than 0.3 s (sink_batch_deadline_secs)" in acks["slow"]["error"]
    assert (acks["slow"]["position"], acks["slow"]["lasting"]) == ("", False)
    assert slow.calls == ["give up"], "its own thread is still in it"

    again = Recorder("slow")
    assert "still under way" in run(again)["slow"]["error"]
    assert again.units == []
    slow.let_go()
    assert slow.calls == ["give up", "close"]
    assert slow.units == [[1, 2, 3, 4, 5, 6]], "nothing comes behind the unit that was under way"
    ack = run(again)["slow"]
    assert ack["error"] is None and again.taken == list(range(1, 19))


@pytest.mark.parametrize(
    ("call", "calls"),
    [
        ("open", ["give up", "close"]),  # a client that took long to connect is kept
        ("write", ["give up", "abort", "close"]),
        ("commit", ["give up", "close"]),
    ],
)
def test_what_a_sink_holds_that_was_given_up_is_let_go_by_its_own_thread(
    call: str, calls: list[str]
) -> None:
    slow = Held("slow", call)
    run(slow, sink_deadline_secs=0.3)
    slow.let_go()
    assert slow.calls == calls


def test_a_sink_that_comes_back_just_when_it_is_given_up_stays() -> None:
    outlet = Outlet(Recorder("a"), Lane("p"), "")
    outlet.open()
    outlet.give_up("too late")
    assert (outlet.late, outlet.error) == (False, None)
    outlet.close()
    assert outlet.sink.calls == ["close"]  # type: ignore[attr-defined]


ANYBODY = {"slow": Standing(("",), patience=0.3), "good": Standing(("",), patience=0.3)}


@pytest.mark.parametrize("call", ["open", "write", "commit", "close"])
def test_a_sink_that_nobody_needs_holds_the_others_up_for_a_moment_only(call: str) -> None:
    slow, good = Held("slow", call), Recorder("good")
    begin = time.monotonic()
    acks = run(slow, good, standing=ANYBODY, policy=CommitPolicy.required("good"))
    assert time.monotonic() - begin < 10
    assert good.taken == list(range(1, 19)) and acks["good"]["error"] is None
    assert call == "close" or "no answer for 0.3 s" in acks["slow"]["error"]
    slow.let_go()


def test_a_sink_that_is_needed_is_waited_for() -> None:
    slow, good = Held("slow", "commit"), Recorder("good")
    threading.Timer(1.0, slow.back.set).start()
    policies = (CommitPolicy.required("slow"), CommitPolicy.quorum(2, "slow", "good", "none"))
    for policy in policies:
        acks = run(slow, good, standing=ANYBODY, policy=policy)
        assert acks["slow"]["error"] is None and acks["good"]["error"] is None


def test_a_slow_sink_that_moves_is_left_alone() -> None:
    class Steady(Recorder):
        def commit(self, position: str) -> None:
            time.sleep(0.25)
            super().commit(position)

    slow, good = Steady("slow"), Recorder("good")
    standing = {**ANYBODY, "slow": Standing(("",), patience=0.5)}
    acks = run(slow, good, standing=standing, policy=CommitPolicy.required("good"))
    assert acks["slow"]["error"] is None and len(slow.units) == 3


def test_the_deadline_is_for_one_batch() -> None:
    class Steady(Recorder):
        def commit(self, position: str) -> None:
            time.sleep(0.25)
            super().commit(position)

    sink = Steady("a")
    assert run(sink, sink_deadline_secs=0.5)["a"]["error"] is None
    assert len(sink.units) == 3


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
    known = {"a": Standing(("01", "02"), None, 2.0), "b": Standing(("", ""), "why")}
    policy = CommitPolicy.quorum(1, "a", "b")
    assert standing_of(standing_text(known, policy, 2.0)) == (known, policy, 2.0)
    assert standing_of(None) == ({}, None, 0)


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
