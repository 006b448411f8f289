"""Recording: the next events of a live source as fixtures, for `dfc test --record`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from .fixtures import recorded
from .progress import Progress
from .sinks import ConsoleSink, Sink


def record_sink() -> Sink:
    """Instead of all sinks of a job: puts the events themselves into its acks."""
    return ConsoleSink("record", recorded)


class Recording(Progress):
    """Collects the lines of the record sink, asks to stop when there are enough, writes the file."""

    def __init__(
        self,
        pipeline: str,
        wanted: int,
        path: str,
        stop: Callable[[], None],
        stream: TextIO | None = None,
    ) -> None:
        super().__init__(pipeline, stream)
        self.wanted = wanted
        self.path = Path(path)
        self.lines: list[str] = []
        self._stop = stop

    def output(self, text: str) -> None:
        if len(self.lines) >= self.wanted:
            return
        self.lines = [*self.lines, *text.split("\n")][: self.wanted]
        self._print(f"{len(self.lines)} of {self.wanted} events")
        if len(self.lines) == self.wanted:
            self._stop()

    def moved(self) -> None:
        pass

    def say(self, level: str, what: str, **about: Any) -> None:
        if level == "info":
            return
        rest = ", ".join(f"{key} {value}" for key, value in about.items() if value is not None)
        self._print(f"{level}: {what}{': ' if rest else ''}{rest}")

    def started(self, **about: Any) -> None:
        super().started(**about)
        self._print("waiting for events; Ctrl-C keeps those that have come")

    def stopped(self, **about: Any) -> None:
        if not self.lines:
            self._print(f"no events came, so there is no {self.path}")
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        aside.write_bytes("".join(f"{line}\n" for line in self.lines).encode())
        aside.replace(self.path)
        count = f"{len(self.lines)} event{'s' * (len(self.lines) != 1)}"
        self._print(f"wrote {count} to {self.path}: real rows, so read it before you commit it")

    def _print(self, text: str) -> None:
        print(f"{self.pipeline}: {text}", file=self.stream or sys.stderr, flush=True)
