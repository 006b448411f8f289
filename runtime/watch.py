"""Watches a running query: ends it when a stop is asked for, and starts it over for a sink that
was left behind, so that the sink gets what it has missed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .commit import Settle
from .deliver import reason
from .progress import Progress
from .scratch import Scratch
from .sinks import Lane, Sink

_FIRST_RETRY_SECS, _LONGEST_RETRY_SECS = 5.0, 300.0


class Watch:
    """Runs one query after the other until one of them ends for good."""

    def __init__(
        self,
        start: Callable[[str], Any],
        settle: Settle,
        scratch: Scratch,
        progress: Progress,
        sinks: dict[str, Sink],
        lane: Lane,
        rewind: bool,
    ) -> None:
        self._start = start
        self._settle = settle
        self._scratch = scratch
        self._progress = progress
        self._sinks = sinks
        self._lane = lane
        self._rewind = rewind
        self._pause = _FIRST_RETRY_SECS
        self._retry_at: float | None = None

    def run(self) -> None:
        number = 0
        while self._one(self._start(str(self._scratch.checkpoint(number)))):
            number += 1
            names = sorted(self._hopeful)
            start = self._settle.positions.start_without(self._settle.stuck)
            self._scratch.begin_at(start)
            if self._settle.stop.is_set():
                # Asked for while the note that says so was being taken away.
                self._scratch.ask_stop()
                return
            self._progress.say("info", "going back for sinks left behind", sinks=names, start=start)
            for name in names:
                del self._settle.away[name]

    def _one(self, query: Any) -> bool:
        """Returns when the query has ended: True when another one should follow it."""
        quiet = 0
        going_back = False
        while True:
            stop = self._settle.stop.is_set()
            try:
                if query.awaitTermination(0.1 if stop or going_back else 0.5):
                    return going_back and not stop
            except Exception:
                if self._settle.stopped:
                    return False
                raise
            if not (stop or going_back) and self._rewind and self._due():
                going_back = True
                self._scratch.ask_stop()
            if stop or going_back:
                busy = self._settle.busy or query.status["message"].startswith("Processing")
                quiet = 0 if busy else quiet + 1
                # Twice in a row: between two looks an epoch may just have been about to begin.
                if quiet >= 2:
                    query.stop()
                    return going_back and not self._settle.stop.is_set()

    def _due(self) -> bool:
        """Whether it is time to try a sink again, and there is hope for it."""
        now = time.monotonic()
        if not self._hopeful:
            if self._retry_at is not None and now > self._retry_at + self._pause:
                self._pause, self._retry_at = _FIRST_RETRY_SECS, None  # it has been well for long
            return False
        if self._retry_at is None:
            self._retry_at = now + self._pause
        if now < self._retry_at:
            return False
        self._pause = min(self._pause * 2, _LONGEST_RETRY_SECS)
        self._retry_at = now + self._pause
        # Starting over holds the other sinks up for a moment, so look before that.
        return any(self._answers(self._sinks[name]) for name in self._hopeful)

    @property
    def _hopeful(self) -> set[str]:
        """Sinks left behind by a failure that may pass."""
        return set(self._settle.away) - self._settle.stuck

    def _answers(self, sink: Sink) -> bool:
        try:
            known = self._settle.positions.of(sink.id)[self._lane.index]
            sink.open(replace(self._lane, known=known))
            sink.close()
        except Exception as error:
            self._settle.away[sink.id] = f"left behind: {reason(error, sink.secrets)}"
            return False
        return True
