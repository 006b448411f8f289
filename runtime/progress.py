"""What a running job says: a line that rewrites itself on a terminal, JSON lines in a log."""

from __future__ import annotations

import json
import sys
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
        self._blocked: dict[str, str] = {}

    def started(self, **about: Any) -> None:
        # Spark's own start is not part of any rate.
        self._began = time.monotonic()
        self._marks = [(self._began, 0)]
        self.say("info", "started", **about)

    def settled(self, events: int, size: int, ts_ms: int | None) -> None:
        self.events += events
        self.bytes += size
        self.ts_ms = self.ts_ms if ts_ms is None else ts_ms
        now = time.monotonic()
        self._marks.append((now, self.events))
        while len(self._marks) > 2 and self._marks[1][0] < now - _RATE_OVER_SECS:
            self._marks.pop(0)
        if events:
            self.moved()

    def blocked(self, reasons: dict[str, str]) -> None:
        """Said once for each change of reason, not for each attempt."""
        if reasons != self._blocked:
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
            **about,
        )

    @property
    def rate(self) -> float:
        """Events per second over the last seconds."""
        (then, before), (now, after) = self._marks[0], self._marks[-1]
        return (after - before) / (now - then) if now > then else 0.0

    @property
    def lag_ms(self) -> int | None:
        """Age of the youngest settled event."""
        return None if self.ts_ms is None else max(0, int(time.time() * 1000) - self.ts_ms)

    def moved(self) -> None:
        raise NotImplementedError

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
    """For a person: counters in one line, and news above it."""

    _last = 0.0
    _drawn = False

    def moved(self) -> None:
        now = time.monotonic()
        if now - self._last >= _DRAW_EVERY_SECS:
            self._last = now
            self.draw()

    def draw(self) -> None:
        lag = "" if self.lag_ms is None else f"  lag {self.lag_ms / 1000:,.1f} s"
        text = f"{self.pipeline}: {self.events:,} events  {self.rate:,.0f}/s{lag}"
        self.stream.write(f"\r\x1b[K{text}")
        self.stream.flush()
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._drawn = False

    def say(self, level: str, what: str, **about: Any) -> None:
        self.clear()
        mark = "" if level == "info" else f"{level}: "
        rest = ", ".join(
            f"{key} {value}" for key, value in about.items() if value not in (None, "")
        )
        self.stream.write(f"{self.pipeline}: {mark}{what}{': ' if rest else ''}{rest}\n")
        self.stream.flush()

    def output(self, text: str) -> None:
        self.clear()
        super().output(text)


def progress_for(pipeline: str, stream: TextIO | None = None) -> Progress:
    stream = stream or sys.stderr
    return (TerminalProgress if stream.isatty() else LogProgress)(pipeline, stream)
