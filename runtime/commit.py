"""What happens with the acks of an epoch on the driver."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from .deliver import SOURCE_ROW, STANDING, Standing, standing_text
from .errors import ConfigError, Ended, StorageError
from .ledger import read
from .policy import CommitPolicy
from .positions import Positions

_UNTIL_CHANGED = (
    "; the sink gets nothing from there on until the pipeline is changed and started again"
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
# How long a sink that the policy can do without may hold up the others. More each time it has been
# left behind, or a batch that takes it longer would be begun again and again.
_PATIENCE, _MOST_PATIENCE = 2.0, 64.0


class Reporter(Protocol):
    """Where the driver's news go: progress.py has the real ones."""

    def settled(self, events: int, size: int, ts_ms: int | None) -> None: ...

    def blocked(self, reasons: dict[str, str]) -> None: ...

    def unblocked(self) -> None: ...

    def away(self, sink: str, reason: str) -> None: ...

    def output(self, text: str) -> None: ...

    def say(self, level: str, what: str, **about: Any) -> None: ...

    def counted(self, counts: dict[tuple[str, str], int]) -> None: ...


class Stopped(Exception):
    """Someone asked to stop while an epoch could not be settled; it is repeated next time."""


class Settle:
    """Called by Spark for each epoch: runs it, and runs it again until the policy is met."""

    def __init__(
        self,
        policy: CommitPolicy,
        positions: Positions,
        sinks: tuple[str, ...],
        reporter: Reporter,
        stop: threading.Event,
        ceiling: Callable[[], str | None] = lambda: None,
        patient: bool = False,
        follow_secs: float = 0,
    ) -> None:
        self.policy = policy
        self.positions = positions
        self.sinks = sinks
        self.reporter = reporter
        self.stop = stop
        self.ceiling = ceiling
        self.patient = patient  # nothing comes behind this epoch that would have to wait
        self.follow_secs = follow_secs  # how long tasks go on with what comes while they deliver
        self.away: dict[str, str] = {}  # optional sinks that miss an epoch, and why
        self.stuck: set[str] = set()  # those whose failure will not go away by itself
        self._patience: dict[str, float] = {}  # of those that were left behind, for the next time
        self.busy = False
        self.blocked = False  # the epoch has failed at least once, and is tried again
        self.cut = False  # whoever watches has given up waiting for the attempt under way
        self._said: set[str] = set()  # warnings that come once
        self._settled = ""  # how far events were settled: what comes again is not counted again
        self._ceiling: str | None = None  # what the source had when it was opened
        self._checked: set[str] = set()  # sinks that were not ahead of that
        self.stopped = False  # gave up an epoch because a stop was asked for

    def __call__(self, acks: Any, epoch: int) -> None:
        self.busy = True
        try:
            self._settle(acks)
        except Exception as error:
            if self.cut or isinstance(error, Stopped):
                self.stopped = True
                raise Stopped from None
            raise
        finally:
            self.busy = self.blocked = False

    def _settle(self, acks: Any) -> None:
        pause = _FIRST_PAUSE
        while True:
            rows = self._collect(acks)
            failed = self._take(rows)
            counts = self._read_ledgers(rows)
            working = [sink for sink in self.sinks if sink not in failed]
            if self.policy.met(working):
                break
            self.blocked = True
            self.reporter.blocked({s: r for s, r in failed.items() if s in self.policy.sinks})
            if not self.policy.met(set(self.sinks) - self.stuck):
                # Nothing to wait for but somebody who changes the pipeline: no haste.
                pause = _LONGEST_PAUSE
            # Jitter keeps jobs that lost the same sink from coming back all at once.
            if self.stop.wait(pause * random.uniform(0.8, 1.2)) or self.cut:
                raise Stopped
            pause = min(pause * 2, _LONGEST_PAUSE)
        self.reporter.unblocked()
        for sink, why in failed.items():
            if sink not in self.away:
                # It has missed events, so it must not take later ones: that would hide the gap.
                self.away[sink] = f"left behind: {why}"
                self._patience[sink] = min(self._patience_for(sink) * 2, _MOST_PATIENCE)
                self.reporter.away(sink, why)
        done = [row for row in rows if row["sink"] == SOURCE_ROW]
        times = [row["ts_ms"] for row in done if row["ts_ms"] is not None]
        self._settled = max([self._settled, *(row["position"] for row in done)])
        self.reporter.counted(counts)
        self.reporter.settled(
            sum(row["events"] for row in done),
            sum(row["bytes"] for row in done),
            max(times, default=None),
        )

    def _collect(self, acks: Any) -> list[Any]:
        """Runs the epoch: the one action there may be, since each delivers once more."""
        standing = {
            sink: Standing(
                self.positions.of(sink),
                self.away.get(sink),
                None if self.patient else self._patience_for(sink),
            )
            for sink in self.sinks
        }
        standing[SOURCE_ROW] = Standing((self._settled,) * self.positions.lanes)
        # A job property reaches the tasks on any cluster, and is read anew for every attempt.
        acks.sparkSession.sparkContext.setLocalProperty(
            STANDING, standing_text(standing, self.policy, self._follow_secs())
        )
        return list(acks.collect())

    def _follow_secs(self) -> float:
        """Not while something fails, and not before the sinks are known to belong to the source."""
        checked = self._ceiling is not None and self.ceiling() == self._ceiling
        at_ease = checked and self._checked >= set(self.sinks) - self.away.keys()
        return self.follow_secs if at_ease and not (self.blocked or self.stop.is_set()) else 0

    def _patience_for(self, sink: str) -> float:
        return self._patience.get(sink, _PATIENCE)

    def _read_ledgers(self, rows: list[Any]) -> dict[tuple[str, str], int]:
        """Says what the processors had to say; their counts are good once the epoch is settled."""
        counts: dict[tuple[str, str], int] = {}
        for row in rows:
            if row["sink"] == SOURCE_ROW and row["ledger"]:
                for key, number in read(row["ledger"], self.reporter.say, self._said).items():
                    counts[key] = counts.get(key, 0) + number
        for row in rows:
            if row["sink"] == SOURCE_ROW and row["error"] is not None:
                raise Ended(row["error"])
        return counts

    def _take(self, rows: list[Any]) -> dict[str, str]:
        """Prints, and keeps the positions; returns the sinks that failed, and why."""
        failed: dict[str, str] = {}
        positions: dict[tuple[str, int], str] = {}
        events: dict[tuple[str, int], int] = {}
        times: dict[tuple[str, int], int | None] = {}
        source = [row for row in rows if row["sink"] == SOURCE_ROW]
        end = max((row["position"] for row in source), default="")
        if any(row["error"] is not None for row in source):
            end = ""  # what was read was not all delivered
        self._check_source(rows, end)
        for row in rows:
            if row["sink"] == SOURCE_ROW:
                continue
            key = (row["sink"], row["lane"])
            positions[key], events[key] = row["position"], row["events"]
            times[key] = row["ts_ms"]
            if row["error"] is not None:
                why = row["error"]
                if row["lasting"]:
                    self.stuck.add(row["sink"])
                    why += _UNTIL_CHANGED
                failed.setdefault(row["sink"], why)
            # Only what lies above the known position: a sink without one of its own begins there,
            # so an attempt never repeats what an earlier one has put out.
            if row["output"] and row["position"] > self.positions.of(row["sink"])[row["lane"]]:
                self.reporter.output(row["output"])
        sys.stdout.flush()
        for sink, lane in positions:
            if sink not in failed:
                # Whatever it could not do before, it has done now.
                self.stuck.discard(sink)
                if events[sink, lane]:
                    self._patience.pop(sink, None)
                # An epoch ends with a whole transaction in every lane, so a lane without events
                # stands at its end too; else it would hold back the start of the next run.
                positions[sink, lane] = max(positions[sink, lane], end)
        self._save(positions, events, times)
        return failed

    def _save(
        self,
        positions: dict[tuple[str, int], str],
        events: dict[tuple[str, int], int],
        times: dict[tuple[str, int], int | None],
    ) -> None:
        """Keeps the positions, and waits while storage is away.

        Nothing goes on meanwhile: a sink without a position of its own would repeat all of it
        after a crash, and not only this epoch.
        """
        pause, said = _FIRST_PAUSE, ""
        save: Callable[[], None] = partial(self.positions.advance, positions, events, times)
        while True:
            try:
                save()
                break
            except StorageError as error:
                if str(error) != said:
                    said = str(error)
                    self.reporter.say("warning", "waiting for storage", reason=said)
            save = self.positions.save
            if self.stop.wait(pause * random.uniform(0.8, 1.2)):
                raise Stopped
            pause = min(pause * 2, _LONGEST_PAUSE)
        if said:
            self.reporter.say("info", "storage is back")

    def _check_source(self, rows: list[Any], end: str) -> None:
        """Refuses a source that never had what a sink holds: its events would be taken for old.

        Only with events: then the reader of this very query has said what there is. A sink that
        is ahead of storage after a crash is not ahead of that.
        """
        ceiling = self.ceiling() if end else None
        if ceiling is None:
            return
        if ceiling != self._ceiling:  # opened anew, and perhaps restored meanwhile
            self._ceiling = ceiling
            self._checked.clear()
        limit = max(ceiling, end)
        for row in rows:
            if row["sink"] == SOURCE_ROW or row["sink"] in self._checked:
                continue
            if row["position"] > limit:
                raise ConfigError(
                    f"sink `{row['sink']}` stands at {row['position']}, which is ahead of the "
                    f"source ({limit}): the source was restored, or made anew, and its events "
                    "would be taken for ones that the sink has; give the sink a new folder or "
                    "destination, and a new id, or reset it (dfc checkpoint reset)"
                )
        self._checked.update(row["sink"] for row in rows if row["error"] is None)
