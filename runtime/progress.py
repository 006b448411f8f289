"""What a running job says: a line that rewrites itself on a terminal, JSON lines in a log."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, TextIO

_LOG_EVERY_SECS = 5.0
_DRAW_EVERY_SECS = 0.5
_RATE_OVER_SECS = 10.0


class Progress:
    """Counts what is settled; how it shows is up to the subclasses."""

    def __init__(self, pipeline: str, stream: TextIO | None = None) -> None:
        self.pipeline = pipeline
        self.stream = stream or sys.stderr
        self.events = 0
        self.bytes = 0
        self.ts_ms: int | None = None
        self._began = time.monotonic()
        self._marks: list[tuple[float, int]] = [(self._began, 0)]
        self.counts: dict[tuple[str, str], int] = {}  # (processor, what it did) -> events
        self._blocked: dict[str, str] = {}
        self._lag_ms: int | None = None

    def started(self, **about: Any) -> None:
        # Spark's own start is not part of any rate.
        self._began = time.monotonic()
        self._marks = [(self._began, 0)]
        self.say("info", "started", **about)

    def settled(self, events: int, size: int, ts_ms: int | None) -> None:
        self.events += events
        self.bytes += size
        if ts_ms is not None:
            self.ts_ms, self._lag_ms = ts_ms, self._age(ts_ms)
        now = time.monotonic()
        self._marks.append((now, self.events))
        while len(self._marks) > 2 and self._marks[1][0] < now - _RATE_OVER_SECS:
            self._marks.pop(0)
        if events:
            self.moved()

    def counted(self, counts: dict[tuple[str, str], int]) -> None:
        for key, number in counts.items():
            self.counts[key] = self.counts.get(key, 0) + number

    def blocked(self, reasons: dict[str, str]) -> None:
        """Said once for each change of reason, not for each attempt."""
        if reasons != self._blocked:
            if back := sorted(self._blocked.keys() - reasons.keys()):
                self.say("info", "unblocked", sinks=back)
            self._blocked = dict(reasons)
            for sink, why in reasons.items():
                self.say("warning", "blocked", sink=sink, reason=why)

    def unblocked(self) -> None:
        if self._blocked:
            self.say("info", "unblocked", sinks=sorted(self._blocked))
            self._blocked = {}

    def away(self, sink: str, reason: str) -> None:
        self.say("warning", "sink left behind", sink=sink, reason=reason)

    def stopped(self, **about: Any) -> None:
        seconds = time.monotonic() - self._began
        self.say(
            "info",
            "stopped",
            events=self.events,
            bytes=self.bytes,
            seconds=round(seconds, 1),
            processors={" ".join(key): number for key, number in sorted(self.counts.items())}
            or None,
            **about,
        )

    @property
    def rate(self) -> float:
        """Events per second over the last seconds, up to now."""
        now = time.monotonic()
        since = now - _RATE_OVER_SECS
        then, before = next((m for m in reversed(self._marks) if m[0] <= since), self._marks[0])
        seconds = now - max(then, since)
        return (self.events - before) / seconds if seconds > 0 else 0.0

    @property
    def lag_ms(self) -> int | None:
        """How late the youngest settled event was; while blocked, how late it is getting."""
        if self._blocked and self.ts_ms is not None:
            return self._age(self.ts_ms)
        return self._lag_ms

    @staticmethod
    def _age(ts_ms: int) -> int:
        return max(0, int(time.time() * 1000) - ts_ms)

    def moved(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Before the last words: nothing is shown any more."""

    def say(self, level: str, what: str, **about: Any) -> None:
        raise NotImplementedError

    def output(self, text: str) -> None:
        """Text of sinks, for standard output."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


class LogProgress(Progress):
    """One JSON object a line."""

    _last = 0.0

    def moved(self) -> None:
        now = time.monotonic()
        if now - self._last >= _LOG_EVERY_SECS:
            self._last = now
            self.say(
                "info",
                "progress",
                events=self.events,
                events_per_sec=round(self.rate),
                lag_ms=self.lag_ms,
            )

    def say(self, level: str, what: str, **about: Any) -> None:
        now = time.time()
        stamp = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        )
        line = {"ts": stamp, "level": level, "pipeline": self.pipeline, "event": what}
        line |= {key: value for key, value in about.items() if value is not None}
        self.stream.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.stream.flush()


class TerminalProgress(Progress):
    """For a person: counters in one line, redrawn also while nothing moves, and news above it."""

    _last = 0.0
    _drawn = False

    def __init__(self, pipeline: str, stream: TextIO | None = None) -> None:
        super().__init__(pipeline, stream)
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def started(self, **about: Any) -> None:
        super().started(**about)
        threading.Thread(target=self._redraw, name="dfc-progress", daemon=True).start()

    def stopped(self, **about: Any) -> None:
        self.close()
        super().stopped(**about)

    def close(self) -> None:
        self._closed.set()
        self.clear()

    def moved(self) -> None:
        if time.monotonic() - self._last >= _DRAW_EVERY_SECS:
            self.draw()

    def draw(self) -> None:
        lag = "" if self.lag_ms is None else f"  lag {self.lag_ms / 1000:,.1f} s"
        waiting = f"  blocked by {', '.join(sorted(self._blocked))}" if self._blocked else ""
        text = f"{self.pipeline}: {self.events:,} events  {self.rate:,.0f}/s{lag}{waiting}"
        with self._lock:
            if self._closed.is_set():
                return
            self._last = time.monotonic()
            self.stream.write(f"\r\x1b[K{text}")
            self.stream.flush()
            self._drawn = True

    def clear(self) -> None:
        with self._lock:
            if self._drawn:
                self.stream.write("\r\x1b[K")
                self.stream.flush()
                self._drawn = False

    def say(self, level: str, what: str, **about: Any) -> None:
        mark = "" if level == "info" else f"{level}: "
        rest = ", ".join(
            f"{key} {value}" for key, value in about.items() if value not in (None, "")
        )
        with self._lock:
            self.clear()
            self.stream.write(f"{self.pipeline}: {mark}{what}{': ' if rest else ''}{rest}\n")
            self.stream.flush()

    def output(self, text: str) -> None:
        with self._lock:
            self.clear()
            super().output(text)
            sys.stdout.flush()  # before the line comes back below it

    def _redraw(self) -> None:
        while not self._closed.wait(_DRAW_EVERY_SECS):
            self.draw()


def progress_for(pipeline: str, stream: TextIO | None = None) -> Progress:
    stream = stream or sys.stderr
    return (TerminalProgress if stream.isatty() else LogProgress)(pipeline, stream)
