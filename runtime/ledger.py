"""What processors have to say beside the events: counts, lines for the log, dead letters.

It is kept where the processors run and comes to the driver with the acks, so it reads the same on
one machine and on a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from .events import Events

_MOST_LINES = 1_000  # of one epoch: a script in a loop must not fill the driver's memory


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a processor or sink cannot take, as it came to it."""

    events: Events  # exactly one
    where: str  # id of the processor or sink
    error: str
    kind: str = "script error"
    at_sink: bool = False


@dataclass
class Ledger:
    """`counted`: up to there events were counted before, and now come once more."""

    counted: str = ""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)  # (processor, what) -> events
    lines: list[dict[str, Any]] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    _left_out: int = 0

    def count(self, processor: str, what: str, positions: pa.Array) -> None:
        """Adds the events at these positions, such as `count("outbox", "non_insert", dropped)`."""
        if self.counted and len(positions):
            new = pc.sum(pc.greater(positions, self.counted)).as_py() or 0
        else:
            new = len(positions)
        if new:
            key = (processor, what)
            self.counts[key] = self.counts.get(key, 0) + new

    def say(self, level: str, what: str, **about: Any) -> None:
        """A line for the pipeline's log."""
        if len(self.lines) < _MOST_LINES:
            self.lines.append({"level": level, "what": what, **about})
        else:
            self._left_out += 1

    def warn_once(self, what: str, **about: Any) -> None:
        """A warning that the log shows once in a run, however often and wherever it comes up."""
        self.say("warning", what, once=True, **about)

    def text(self) -> str | None:
        """Counts and lines as JSON, for the way to the driver; None when there is nothing."""
        lines = list(self.lines)
        if self._left_out:
            lines.append(
                {"level": "warning", "what": "log lines left out", "count": self._left_out}
            )
        if not lines and not self.counts:
            return None
        counts = [[*key, number] for key, number in self.counts.items()]
        return json.dumps({"counts": counts, "lines": lines}, ensure_ascii=False)


def read(text: str, say: Callable[..., None], said: set[str]) -> dict[tuple[str, str], int]:
    """Says the lines of a ledger's text, and returns its counts; `said` grows by what comes once."""
    ledger = json.loads(text)
    for line in ledger["lines"]:
        if line.pop("once", False):
            key = json.dumps(line)
            if key in said:
                continue
            said.add(key)
        say(line.pop("level"), line.pop("what"), **line)
    return {(processor, what): number for processor, what, number in ledger["counts"]}
