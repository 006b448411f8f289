"""A job as a process of its own: signals, exit codes, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dfc_runtime.storage import SqliteStorage

pytestmark = pytest.mark.spark
SCRIPT = Path(__file__).parent / "jobs" / "tiny_job.py"


class Process:
    """The tiny job in a process group of its own, as a shell would start it."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        self.folder = folder
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            env={
                **os.environ,
                "TINY_OUT": str(folder),
                "TINY_ROWS": "1000",
                "TMPDIR": str(temporary),
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, timeout: float = 120) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def wait_for(self, what: Callable[[], bool], timeout: float = 90) -> None:
        end = time.monotonic() + timeout
        while not what():
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < end, "it never happened"
            time.sleep(0.05)

    def position(self) -> int:
        path = self.folder / "state.db"
        if not path.exists():
            return 0
        storage = SqliteStorage(path)
        try:
            value = storage.get("checkpoints", "tiny/tiny::sink::archive::0")
        finally:
            storage.close()
        return int(json.loads(value)["position"], 16) if value else 0

    def delivered(self) -> list[int]:
        return [
            json.loads(line)["after"]["id"]
            for path in sorted((self.folder / "files").rglob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]

    def parts(self) -> list[Path]:
        return list((self.folder / "files").rglob("*.part"))

    def scratch(self) -> list[str]:
        return [name for name in os.listdir(self.folder / "tmp") if name.startswith("dfc-")]


def last(err: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(err.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("number", "group"), [(signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True)]
)
def test_signal_stops_cleanly_and_the_next_run_goes_on(
    tmp_path: Path, number: signal.Signals, group: bool
) -> None:
    job = Process(tmp_path, TINY_ROWS="1000000", TINY_EPOCH="30", TINY_PAUSE="20")
    job.wait_for(lambda: job.position() > 60)
    send = os.killpg if group else os.kill
    send(job.process.pid, number)
    code, _, err = job.end(60)
    assert code == 0, err
    assert last(err)["event"] == "stopped"
    assert job.delivered() == list(range(1, job.position() + 1))
    assert last(err)["events"] == job.position()
    assert not job.parts() and not job.scratch()
    if number == signal.SIGINT:
        rows = job.position() + 90
        assert Process(tmp_path, "--once", TINY_ROWS=str(rows)).end()[0] == 0
        assert job.delivered() == list(range(1, rows + 1))


def test_killed_job_goes_on_without_loss_or_repetition(tmp_path: Path) -> None:
    for reached in (60, 300):
        job = Process(tmp_path, TINY_ROWS="1000000", TINY_EPOCH="90", TINY_UNIT="10")
        job.wait_for(lambda: job.position() > reached)  # noqa: B023
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.communicate(timeout=60)
        assert job.scratch()
    rows = job.position() + 500
    after = Process(tmp_path, "--once", TINY_ROWS=str(rows))
    code, _, err = after.end()
    assert code == 0, err
    assert after.delivered() == list(range(1, rows + 1))
    assert not after.parts() and not after.scratch()


def test_second_signal_leaves_at_once(tmp_path: Path) -> None:
    job = Process(tmp_path, TINY_ROWS="1000000", TINY_EPOCH="30", TINY_PAUSE="60000")
    job.wait_for(lambda: any((tmp_path / "tmp").glob("dfc-*/checkpoint-*")))
    os.kill(job.process.pid, signal.SIGTERM)
    time.sleep(0.2)
    os.kill(job.process.pid, signal.SIGTERM)
    code, _, _ = job.end(60)
    assert code == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("env", "arguments", "code", "text"),
    [
        ({"TINY_KAFKA": "1"}, [], 1, "the Kafka client knows no setting `no.such.key`"),
        ({"TINY_NEEDS": "schema_sensing"}, [], 1, "`schema_sensing` is not built yet"),
        ({"TINY_NEEDS": "turso_native"}, [], 1, "`cdc_mode: native` is not built yet"),
        (
            {"TINY_NEEDS": "turso_native", "TINY_KAFKA": "1"},
            [],
            1,
            "`cdc_mode: native` is not built yet; sink `bus`: `client_conf`: the Kafka client knows no",
        ),
        ({}, ["--conf", "nonsense"], 2, "KEY=VALUE"),
        ({}, ["--storage", "oracle:x"], 2, "sqlite:PATH, memory or postgres:DSN"),
        ({}, ["--nonsense"], 2, "unrecognized arguments"),
    ],
)
def test_what_cannot_work_is_said_before_spark_starts(
    tmp_path: Path, env: dict[str, str], arguments: list[str], code: int, text: str
) -> None:
    found, _, err = Process(tmp_path, *arguments, **env).end(60)
    assert found == code and text in err
    assert "Traceback" not in err
    assert not (tmp_path / "state.db").exists()


def test_dry_run_does_not_need_working_sinks(tmp_path: Path) -> None:
    job = Process(
        tmp_path, "--once", "--dry-run", "--storage", "memory", TINY_KAFKA="1", TINY_ROWS="6"
    )
    code, out, err = job.end()
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["sink"] for line in lines] == ["archive"] * 6 + ["bus"] * 6
    assert not (tmp_path / "files").exists()
    # Nothing but our own log: Spark and Java say nothing unless asked.
    assert all(line.startswith("{") for line in err.splitlines()), err


def java_of(job: Process) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                name = (entry / "comm").read_text().strip()
            except (OSError, ValueError):
                continue
            if parent == job.process.pid and name == "java":
                return int(entry.name)
    raise AssertionError("no Java")


@pytest.mark.parametrize("asked", [True, False])
def test_java_may_go_first(tmp_path: Path, asked: bool) -> None:
    """A service manager signals every process of a service; anything else is a failure."""
    job = Process(tmp_path, TINY_ROWS="1000000", TINY_EPOCH="30", TINY_PAUSE="20")
    job.wait_for(lambda: job.position() > 60)
    if asked:
        os.kill(job.process.pid, signal.SIGTERM)
    os.kill(java_of(job), signal.SIGTERM if asked else signal.SIGKILL)
    code, _, err = job.end(60)
    assert code == (0 if asked else 1), err
    assert last(err)["event"] == ("stopped" if asked else "failed"), err
    if not asked:
        assert "Java has ended" in last(err)["reason"]
