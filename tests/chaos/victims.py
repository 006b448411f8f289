"""Who is there to be killed, among the processes of a run."""

from __future__ import annotations

import signal
from pathlib import Path

from ..services import processes

_PROGRAMS = {
    "executor": ("org.apache.spark.executor.CoarseGrainedExecutorBackend",),
    "java": ("org.apache.spark.deploy.SparkSubmit",),
    "source": ("pyspark.sql.streaming.python_streaming_source_runner",),
    "worker": ("pyspark.daemon", "pyspark.worker"),
}


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def find(driver: int, kind: str) -> list[list[int]]:
    """The candidates of a kind; each is one process, or several that die together."""
    if kind == "driver":
        return [[driver]]
    family = processes.family(driver)
    if kind == "family":
        return [family]
    programs = _PROGRAMS[kind]
    found = [pid for pid in family if set(programs) <= set(_words(pid))]
    if kind == "worker":
        # The first of them only makes the others, each a copy of itself.
        found = [pid for pid in found if _parent(pid) in found]
    return [[pid] for pid in found]


def kill(pids: list[int]) -> bool:
    """At once, without a chance to tidy up; false when none of them was there any more."""
    alive = [pid for pid in pids if processes.born(pid) is not None]
    processes.send(alive, signal.SIGKILL)
    return bool(alive)
