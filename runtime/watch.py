"""Watches a running query: ends it when a stop is asked for, and starts it over for a sink that
was left behind, so that the sink gets what it has missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .commit import Settle
from .errors import reason
from .failure import failure_line, source_is_lost
from .progress import Progress
from .scratch import Scratch
from .sinks import Lane, Sink

_CUT_SECS = 2.0  # how long a stop waits for an attempt that will most likely fail, too
_FIRST_RETRY_SECS, _LONGEST_RETRY_SECS = 5.0, 30.0
_MOST_LOSSES = 5


@dataclass
class Turn:
    """When a sink that was left behind is asked whether it answers."""

    pause: float
    at: float
    asking: bool = False
    answered: bool = False


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
        self._turns: dict[str, Turn] = {}
        self._losses = 0  # of the source's process, in a row and without anything delivered

    def run(self) -> None:
        number = 0
        while self._one_or_lost(number):
            number += 1
            names = sorted(name for name in self._hopeful if self._turn(name).answered)
            # The others still take no part, so what they lack need not come again yet.
            start = self._settle.positions.start_without(self._settle.away.keys() - set(names))
            self._scratch.begin_at(start)
            if self._settle.stop.is_set():
                # Asked for while the note that says so was being taken away.
                self._scratch.ask_stop()
                return
            if names:
                what = "going back for sinks left behind"
                self._progress.say("info", what, sinks=names, start=start)
            for name in names:
                self._turns[name].answered = False
                del self._settle.away[name]
            self._settle.cut = self._settle.stopped = False

    def _one_or_lost(self, number: int) -> bool:
        """One query; another one should follow it as well when it has lost the source's process.

        Spark does without a worker of its tasks, but not without that one, which begins anew here.
        """
        began = self._settle.positions.start_without(self._settle.away)
        try:
            return self._one(self._start(str(self._scratch.checkpoint(number))))
        except Exception as error:
            if self._settle.stop.is_set() or not source_is_lost(error):
                raise
            moved = self._settle.positions.start_without(self._settle.away) != began
            self._losses = 1 if moved else self._losses + 1
            if self._losses > _MOST_LOSSES:
                raise
            self._progress.say("warning", "starting over", reason=failure_line(error))
            self._settle.stop.wait(self._losses - 1)
            return True

    def _one(self, query: Any) -> bool:
        """Returns when the query has ended: True when another one should follow it."""
        quiet = 0
        going_back = False
        end_at: float | None = None
        while True:
            stop = self._settle.stop.is_set()
            if (stop or going_back) and end_at is None:
                end_at = time.monotonic()
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
            if end_at is not None and self._settle.blocked:
                if time.monotonic() > end_at + _CUT_SECS:
                    # It has failed before, and a sink that does not answer may take long to fail
                    # again. To the sinks this is like the death of the worker: nothing is lost.
                    # One that is back may be what a quorum lacks, and takes part in no old epoch.
                    self._settle.cut = True
                    self._progress.say("info", "not waiting for the sinks that block")
                    query.stop()
                    return going_back and not self._settle.stop.is_set()
            elif stop or going_back:
                busy = self._settle.busy or query.status["message"].startswith("Processing")
                quiet = 0 if busy else quiet + 1
                # Twice in a row: between two looks an epoch may just have been about to begin.
                if quiet >= 2:
                    query.stop()
                    return going_back and not self._settle.stop.is_set()

    def _due(self) -> bool:
        """Whether a sink that was left behind answers again; asks those whose turn it is."""
        hopeful, now = self._hopeful, time.monotonic()
        for name in [n for n, turn in self._turns.items() if n not in hopeful]:
            if now > self._turns[name].at + self._turns[name].pause:
                del self._turns[name]  # it has been well for long
        for name in sorted(hopeful):
            turn = self._turn(name)
            if not (turn.asking or turn.answered) and now >= turn.at:
                turn.asking = True
                # Starting over holds the other sinks up for a moment, so look before that; aside,
                # because one that does not answer may take its time, or all the time there is, and
                # neither a stop nor the other sinks should have to wait for it.
                threading.Thread(target=self._ask, args=(name, turn), daemon=True).start()
        return any(self._turn(name).answered for name in hopeful)

    def _turn(self, name: str) -> Turn:
        new = Turn(_FIRST_RETRY_SECS, time.monotonic() + _FIRST_RETRY_SECS)
        return self._turns.setdefault(name, new)

    def _ask(self, name: str, turn: Turn) -> None:
        turn.answered = self._answers(self._sinks[name])
        turn.pause = min(turn.pause * 2, _LONGEST_RETRY_SECS)
        turn.at = time.monotonic() + turn.pause
        turn.asking = False

    @property
    def _hopeful(self) -> set[str]:
        """Sinks left behind by a failure that may pass."""
        return set(self._settle.away) - self._settle.stuck

    def _answers(self, sink: Sink) -> bool:
        try:
            known = self._settle.positions.of(sink.id)[self._lane.index]
            sink.try_out(replace(self._lane, known=known))
        except Exception as error:
            self._settle.away[sink.id] = f"left behind: {reason(error, sink.secrets)}"
            return False
        return True
