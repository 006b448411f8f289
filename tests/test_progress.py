from __future__ import annotations

import io
import json

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
    ],
)
def test_the_line_that_matters(error: Exception, line: str) -> None:
    assert failure_line(error) == line
