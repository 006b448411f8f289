"""`dfc run` as a process of its own, for tests and benchmarks that watch, stop or kill it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .services import processes

ROOT = Path(__file__).resolve().parents[1]
# With Spark's start on a machine that is busy with other tests.
PATIENCE_SECS = int(os.environ.get("DFC_TEST_PATIENCE_SECS", "240"))


class Run:
    """A pipeline that runs in `folder`; what it says goes to the end of `run.log` there."""

    def __init__(
        self, folder: Path, spec: Path | str, *flags: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.log = folder / "run.log"
        # Whatever the log has is from before: the one who asks wants to know of this run.
        self._from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dfc.compiler.cli", "run", str(spec), *flags],
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._from)
            return log.read().decode("utf-8", "replace")

    def events(self, what: str | None = None) -> list[dict[str, Any]]:
        """Lines of its log, those about `what` when that is given."""
        found = []
        for line in self.said().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and what in (None, record.get("event")):
                    found.append(record)
        return found

    def until(self, done: Callable[[], object], what: str, seconds: float = PATIENCE_SECS) -> None:
        """Waits until `done` says so; it is an error when the run ends meanwhile."""
        deadline = time.monotonic() + seconds
        while not done():
            assert self.running, f"ended with {self.process.returncode}: {self.said()[-4000:]}"
            assert time.monotonic() < deadline, f"never {what}: {self.said()[-4000:]}"
            time.sleep(0.05)

    def end(self, seconds: float = PATIENCE_SECS) -> None:
        """Waits for it to end well by itself."""
        code = self.process.wait(seconds)
        assert code == 0, f"ended with {code}: {self.said()[-4000:]}"

    def stop(self) -> None:
        """A clean stop, as a person asks for one."""
        os.kill(self.pid, signal.SIGTERM)
        self.end()

    def kill(self) -> None:
        """With all that it has started, whatever state it is in; Java has a session of its own."""
        if self.running:
            kill(processes.family(self.pid))
        self.process.wait()


def kill(pids: Iterable[int]) -> None:
    processes.send(pids, signal.SIGKILL)
