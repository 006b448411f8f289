"""Watching a query, without Spark."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from dfc_runtime import watch
from dfc_runtime.commit import Settle
from dfc_runtime.progress import LogProgress
from dfc_runtime.scratch import Scratch
from dfc_runtime.sinks import ConsoleSink, Lane

from .test_settle import settle


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
        sink = ConsoleSink("b", lambda e: None, required=False)  # type: ignore[arg-type, return-value]
        self.watch = watch.Watch(
            self.start,
            one,
            scratch,
            LogProgress("p", self.stream),
            {"b": sink},
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
    yield Run(scratch, settle("a", "b", required=("a",)))
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
