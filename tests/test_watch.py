"""Watching a query, without Spark."""

from __future__ import annotations

import io
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from dfc_runtime import commit, watch
from dfc_runtime.commit import Settle, Stopped
from dfc_runtime.policy import CommitPolicy
from dfc_runtime.progress import LogProgress
from dfc_runtime.scratch import Scratch
from dfc_runtime.sinks import ConsoleSink, Lane

from .test_settle import Epoch, ack, settle


class Query:
    """Runs until it is stopped, and has nothing to do."""

    status: ClassVar[dict[str, str]] = {"message": "Waiting for data to arrive"}

    def __init__(self) -> None:
        self.ended = False

    def awaitTermination(self, seconds: float) -> bool:
        return self.ended

    def stop(self) -> None:
        self.ended = True


class Run:
    """A watch over queries that count how many of them there were."""

    def __init__(self, scratch: Scratch, one: Settle) -> None:
        self.queries: list[Query] = []
        self.settle, self.scratch = one, scratch
        self.stream = io.StringIO()
        sinks = {
            name: ConsoleSink(name, lambda e: None, required=False)  # type: ignore[arg-type, return-value]
            for name in ("b", "c")
        }
        self.watch = watch.Watch(
            self.start,
            one,
            scratch,
            LogProgress("p", self.stream),
            sinks,
            Lane("p"),
            rewind=True,
        )

    def start(self, checkpoint: str) -> Query:
        if len(self.queries) > 3:
            self.settle.stop.set()
        self.queries.append(Query())
        return self.queries[-1]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Run]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(watch, "_FIRST_RETRY_SECS", 0.0)
    scratch = Scratch("p")
    yield Run(scratch, settle("a", "b", "c", required=("a",)))
    scratch.remove()


def test_a_stop_while_going_back_is_not_forgotten(run: Run) -> None:
    run.settle.away["b"] = "left behind: no answer"
    begin_at = run.scratch.begin_at

    def interrupted(position: str) -> None:
        run.settle.stop.set()
        run.scratch.ask_stop()
        begin_at(position)  # takes the note away again

    run.scratch.begin_at = interrupted  # type: ignore[method-assign]
    run.watch.run()
    assert len(run.queries) == 1, "no other query begins"
    assert (run.scratch.segments / "stop").exists()
    assert run.settle.away, "the sink is still behind"


def test_nobody_goes_back_for_an_event_without_destination(run: Run) -> None:
    run.settle.away["b"] = "left behind: no destination for event 7"
    run.settle.stuck.add("b")
    looks = []

    def look(seconds: float) -> bool:
        looks.append(seconds)
        if len(looks) > 5:
            run.settle.stop.set()
        return False

    start = run.watch._start

    def watched(checkpoint: str) -> Any:
        query = start(checkpoint)
        query.awaitTermination = look
        return query

    run.watch._start = watched
    run.watch.run()
    assert len(run.queries) == 1 and run.settle.away and not run.stream.getvalue()


def test_going_back_starts_another_query(run: Run) -> None:
    run.settle.away["b"] = "left behind: no answer"
    start = run.watch._start

    def once(checkpoint: str) -> Any:
        if run.queries:
            assert run.settle.away == {}
            run.settle.stop.set()
        return start(checkpoint)

    run.watch._start = once
    run.watch.run()
    assert len(run.queries) == 2
    assert not (run.scratch.segments / "stop").exists()
    assert (run.scratch.segments / "start").read_text() == ""


def test_segments_of_the_query_before_are_not_kept(run: Run) -> None:
    for name in ("ab-00000000-0.arrow", "ab-00000001-0.open.arrow", "ab-00000002-0.arrow.new"):
        (run.scratch.segments / name).touch()
    run.scratch.begin_at("07")
    assert [path.name for path in run.scratch.segments.iterdir()] == ["start"]


def test_a_stop_does_not_wait_long_for_an_attempt_that_failed_before(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_CUT_SECS", 0.05)
    run.settle.busy = run.settle.blocked = True
    run.settle.stop.set()
    begin = time.monotonic()
    run.watch.run()
    assert 0.05 <= time.monotonic() - begin < 30
    assert run.queries[0].ended and run.settle.cut

    class Cancelled:
        """The DataFrame of an epoch whose job was cancelled."""

        sparkSession = sparkContext = property(lambda self: self)
        setLocalProperty = staticmethod(lambda name, value: None)

        def collect(self) -> None:
            raise RuntimeError("Job 7 cancelled part of cancelled job group")

    with pytest.raises(Stopped):
        run.settle(Cancelled(), 3)
    assert run.settle.stopped and not run.settle.busy


def test_an_attempt_that_goes_well_so_far_is_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_CUT_SECS", 0.0)
    run.settle.busy = True
    run.settle.stop.set()
    looks = []
    start = run.watch._start

    def watched(checkpoint: str) -> Any:
        query = start(checkpoint)

        def look(seconds: float) -> bool:
            looks.append(query.ended)
            run.settle.busy = len(looks) < 5
            return bool(query.ended)

        query.awaitTermination = look
        return query

    run.watch._start = watched
    run.watch.run()
    assert looks[:6] == [False] * 6 and not run.settle.cut


def test_a_sink_that_takes_long_to_answer_does_not_hold_a_stop_up(run: Run) -> None:
    run.settle.away["b"] = "left behind: no answer"
    asked, end = threading.Event(), threading.Event()

    def answers(sink: Any) -> bool:
        asked.set()
        run.settle.stop.set()
        return end.wait(60) and False

    run.watch._answers = answers  # type: ignore[method-assign]
    begin = time.monotonic()
    run.watch.run()
    assert asked.is_set() and time.monotonic() - begin < 50
    assert len(run.queries) == 1 and run.queries[0].ended
    end.set()


def test_a_sink_that_answers_comes_back_without_one_that_does_not(run: Run) -> None:
    """`c` hangs while it is asked: that holds up neither `b` nor the start of the next query."""
    positions = {("a", 0): "09", ("b", 0): "06", ("c", 0): "02"}
    run.settle.positions.advance(positions, {})
    run.settle.away.update(b="left behind: no answer", c="left behind: no answer")
    end = threading.Event()
    run.watch._answers = lambda sink: sink.id == "b" or end.wait(60)  # type: ignore[method-assign]
    start = run.watch._start

    def once(checkpoint: str) -> Any:
        if run.queries:
            assert list(run.settle.away) == ["c"]
            run.settle.stop.set()
        return start(checkpoint)

    run.watch._start = once
    run.watch.run()
    end.set()
    assert len(run.queries) == 2
    assert (run.scratch.segments / "start").read_text() == "06", "what `c` lacks need not come yet"


def test_a_sink_that_stays_away_is_asked_again_within_half_a_minute(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(watch, "_FIRST_RETRY_SECS", 5.0)
    run.settle.away["b"] = "left behind: no answer"
    asked: list[float] = []

    class AtOnce:
        def __init__(self, target: Any, args: Any, daemon: bool) -> None:
            self.start = lambda: target(*args)

    monkeypatch.setattr(watch.threading, "Thread", AtOnce)
    run.watch._answers = lambda sink: asked.append(clock[0])  # type: ignore[method-assign, func-returns-value, return-value]
    while clock[0] < 200:
        assert not run.watch._due()
        clock[0] += 1
    assert asked[0] == 5 and len(asked) >= 7
    assert all(b - a <= 30 for a, b in itertools.pairwise(asked))


def test_a_sink_that_is_back_ends_an_epoch_that_lacks_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 of 3: `b` is left behind, `c` fails, and the epoch under way knows of no `b` for ever."""
    monkeypatch.setattr(watch, "_CUT_SECS", 0.05)
    monkeypatch.setattr(commit, "_FIRST_PAUSE", 0.01)
    run.settle.policy = CommitPolicy.quorum(2, "a", "b", "c")
    run.settle.away["b"] = "left behind: no answer"
    bad = [ack("a", "09"), ack("b", "06", "left behind"), ack("c", "06", "no"), ack("", "09")]
    good = [ack("a", "09"), ack("b", "09"), ack("c", "06", "no"), ack("", "09")]
    ended: list[str] = []

    class InThread(Query):
        """Its epoch is settled as Spark has it done, and stop() waits for the end of that."""

        def __init__(self, attempts: Any) -> None:
            super().__init__()
            self.thread = threading.Thread(target=self.settle, args=(attempts,), daemon=True)
            self.thread.start()

        def settle(self, attempts: Any) -> None:
            try:
                run.settle(Epoch(*attempts), 0)
                ended.append("settled")
                run.settle.stop.set()
            except Stopped:
                ended.append("stopped")

        def stop(self) -> None:
            self.thread.join(20)
            super().stop()

    queries = iter([InThread, InThread])
    attempts = iter([[bad] * 1000, [good]])
    run.watch._start = lambda checkpoint: next(queries)(next(attempts))
    run.watch.run()
    assert ended == ["stopped", "settled"]
    assert list(run.settle.away) == ["c"] and not run.settle.cut


class StreamingQueryException(Exception):
    """Named as Spark's."""


def lost(words: str = "") -> StreamingQueryException:
    head = f"[STREAM_FAILED] Query [id = 1] terminated with exception: {words} SQLSTATE: XXKST"
    return StreamingQueryException(f"{head}\n=== Streaming Query ===\nIdentifier: [id = 1]")


class Losing(Query):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def awaitTermination(self, seconds: float) -> bool:
        raise self.error


@pytest.mark.parametrize("words", ["", "Python worker failed to connect back.", "Broken pipe"])
def test_a_query_that_lost_the_source_process_is_started_over(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    queries: list[Query] = [Losing(lost(words)), Query()]
    checkpoints: list[str] = []

    def start(checkpoint: str) -> Query:
        checkpoints.append(checkpoint)
        run.settle.stop.set() if len(checkpoints) == 2 else None
        return queries[len(checkpoints) - 1]

    monkeypatch.setattr(run.watch, "_start", start)
    run.watch.run()
    assert len(set(checkpoints)) == 2, "each begins with a checkpoint of its own"
    assert "the process that reads the source has ended" in run.stream.getvalue()


def test_a_source_process_that_is_lost_again_and_again_ends_the_job(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start(checkpoint: str) -> Query:
        started.append(checkpoint)
        return Losing(lost())

    monkeypatch.setattr(run.watch, "_start", start)
    monkeypatch.setattr(watch, "_MOST_LOSSES", 2)
    with pytest.raises(StreamingQueryException):
        run.watch.run()
    assert len(started) == 3


def test_what_a_source_says_itself_is_not_taken_for_a_lost_process(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = lost("dfc_runtime.sources.log.SourceError: the table is gone")
    monkeypatch.setattr(run.watch, "_start", lambda checkpoint: Losing(said))
    with pytest.raises(StreamingQueryException):
        run.watch.run()
