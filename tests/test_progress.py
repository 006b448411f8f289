from __future__ import annotations

import io
import json
import time

import pytest
from dfc_runtime.errors import ConfigError
from dfc_runtime.failure import failure_line
from dfc_runtime.progress import LogProgress, TerminalProgress, progress_for


def test_log_lines_are_json_and_say_each_reason_once() -> None:
    stream = io.StringIO()
    progress = progress_for("p", stream)
    assert isinstance(progress, LogProgress)
    progress.started(sinks=["a"], once=None)
    progress.settled(10, 100, 1)
    progress.settled(10, 100, 2)  # too soon for another line
    for _ in range(3):
        progress.blocked({"a": "no answer"})
    progress.blocked({"a": "refused"})
    progress.unblocked()
    progress.unblocked()
    progress.stopped()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        "started", "progress", "blocked", "blocked", "unblocked", "stopped",
    ]  # fmt: skip
    assert all(line["pipeline"] == "p" and line["ts"].endswith("Z") for line in lines)
    assert "once" not in lines[0] and lines[-1]["events"] == 20 and lines[-1]["bytes"] == 200


def test_a_sink_that_is_back_before_the_others_is_told() -> None:
    stream = io.StringIO()
    progress = LogProgress("p", stream)
    progress.blocked({"a": "no answer", "b": "refused"})
    progress.blocked({"a": "no answer"})
    progress.unblocked()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["sinks"] for line in lines if line["event"] == "unblocked"] == [["b"], ["a"]]


def test_terminal_rewrites_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    progress = TerminalProgress("p", stream)
    progress.settled(1234, 1, None)
    assert stream.getvalue().startswith("\r\x1b[Kp: 1,234 events")
    progress.output("a line")
    assert stream.getvalue().endswith("\r\x1b[K"), "the line makes room for output"
    assert capsys.readouterr().out == "a line\n"
    progress.blocked({"a": "no answer"})
    assert stream.getvalue().endswith("p: warning: blocked: sink a, reason no answer\n")


def test_lag_grows_while_blocked_and_not_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 1000.0}
    monkeypatch.setattr("time.time", lambda: clock["now"])
    progress = TerminalProgress("p", io.StringIO())
    progress.settled(1, 1, 999_000)
    clock["now"] = 1010.0
    assert progress.lag_ms == 1000, "nothing has come since, so nothing is late"
    progress.blocked({"a": "no answer"})
    assert progress.lag_ms == 11_000
    progress.draw()
    assert "lag 11.0 s  blocked by a" in progress.stream.getvalue()  # type: ignore[attr-defined]


def test_the_line_is_redrawn_by_itself_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfc_runtime.progress._DRAW_EVERY_SECS", 0.01)
    stream = io.StringIO()
    progress = TerminalProgress("p", stream)
    progress.started()
    end = time.monotonic() + 10
    while stream.getvalue().count("0 events") < 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert stream.getvalue().count("0 events") >= 3
    progress.stopped()
    last = stream.getvalue()
    assert "p: stopped" in last.rpartition("\x1b[K")[2]
    time.sleep(0.05)
    assert stream.getvalue() == last, "nothing is drawn over the last words"


def test_the_rate_falls_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 100.0}
    monkeypatch.setattr("time.monotonic", lambda: clock["now"])
    progress = LogProgress("p", io.StringIO())
    clock["now"] += 5
    progress.settled(100, 1, None)
    assert progress.rate == 20
    clock["now"] += 5
    assert progress.rate == 10
    clock["now"] += 20
    assert progress.rate == 0


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("two\n lines"), "two lines"),
        (RuntimeError("plain"), "RuntimeError: plain"),
        (ConnectionRefusedError(), "Java has ended; it may have run out of memory, or been killed"),
        (
            RuntimeError(
                "[STREAM_FAILED] Query terminated\n"
                "Traceback (most recent call last):\n"
                '  File "x.py", line 1, in f\n'
                "ValueError: inner\n\nThe above exception was the cause\n"
                "dfc_runtime.errors.ProcessorError: a processor failed: ValueError: inner\n"
                "\tat org.apache.spark.X(Y.scala:1)\n"
            ),
            "a processor failed: ValueError: inner",
        ),
        (
            RuntimeError(
                "[X] y\npyspark.errors.exceptions.base.PySparkRuntimeError: [Z] wrapped\n"
                "OperationalError: no such table: t\n"
            ),
            "OperationalError: no such table: t",
        ),
        (
            RuntimeError(
                "An error occurred while calling o125.collectToPython.\n"
                ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage "
                "7.0 failed 10 times, most recent failure: Lost task 0.9 in stage 7.0 (TID 16) (h "
                "executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly"
            ),
            "a task has lost its worker 10 times: the workers were killed, or found no memory",
        ),
    ],
)
def test_the_line_that_matters(error: Exception, line: str) -> None:
    assert failure_line(error) == line
