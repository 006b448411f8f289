"""Sinks tried before the first query: what ends a job, what is said, and how long it takes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from dfc_runtime import roll_call as module
from dfc_runtime.errors import Barred, ConfigError, SinkError
from dfc_runtime.policy import CommitPolicy
from dfc_runtime.roll_call import roll_call
from dfc_runtime.sinks import Lane

from .test_outlets import Recorder


class Answer(Recorder):
    """Opens, or says why not."""

    def __init__(self, id: str, error: Exception | None = None, end: Any = None) -> None:
        super().__init__(id)
        self.error, self.end = error, end  # type: ignore[assignment]
        self.secret = "hunter2"

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.secret,)

    def open(self, lane: Lane) -> str:
        if self.end is not None:
            self.end.wait(20)
        if self.error is not None:
            raise self.error
        return lane.known


def call(policy: CommitPolicy, *sinks: Answer) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    lane = Lane("p")
    roll_call(sinks, lambda sink: lane, policy, lambda *news: said.append(news), threading.Event())
    return said


def test_all_is_well_and_nothing_is_left_open() -> None:
    sink = Answer("a")
    assert call(CommitPolicy.all("a"), sink) == []
    assert sink.calls == ["abort", "close"]


def test_a_needed_sink_that_lets_nobody_in_ends_the_job() -> None:
    bad = Answer("a", Barred("sink `a`: wrong password hunter2"))
    with pytest.raises(Barred, match=r"^sink `a`: wrong password \*\*\*$"):
        call(CommitPolicy.required("a"), bad, Answer("b"))


def test_one_that_is_not_needed_is_a_warning() -> None:
    bad = Answer("b", Barred("no stream"))
    assert call(CommitPolicy.required("a"), Answer("a"), bad) == [("b", "no stream")]


@pytest.mark.parametrize(("needed", "ends"), [(2, False), (3, True)])
def test_a_quorum_ends_with_more_than_it_can_do_without(needed: int, ends: bool) -> None:
    sinks = Answer("a"), Answer("b"), Answer("c", Barred("no stream"))
    policy = CommitPolicy.quorum(needed, "a", "b", "c")
    if ends:
        with pytest.raises(Barred, match="sink `c`: no stream"):
            call(policy, *sinks)
    else:
        assert call(policy, *sinks) == [("c", "no stream")]


@pytest.mark.parametrize("error", [SinkError("no answer"), OSError("no route to host")])
def test_a_server_that_cannot_be_reached_is_a_warning(error: Exception) -> None:
    """Perhaps it comes, or only the executors reach it."""
    ((sink, why),) = call(CommitPolicy.required("a"), Answer("a", error))
    assert sink == "a" and str(error) in why


def test_a_job_that_is_wrong_does_not_start() -> None:
    with pytest.raises(ConfigError, match="two lanes"):
        call(CommitPolicy.required("b"), Answer("a", ConfigError("two lanes")), Answer("b"))


def test_one_that_hangs_is_waited_for_no_longer_than_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_WAIT_SECS", 0.5)
    monkeypatch.setattr(module, "_WAIT_FOR_OTHERS_SECS", 0.1)
    end = threading.Event()
    hangs = Answer("b", end=end)
    for needed, seconds in (("a", 0.1), ("b", 0.5)):
        begin = time.monotonic()
        assert call(CommitPolicy.required(needed), Answer("a"), hangs) == [("b", "no answer yet")]
        assert seconds <= time.monotonic() - begin < seconds + 30
    end.set()
