"""Which transactions a view of PostgreSQL's tables has.

The log is in the order of commit records. A transaction becomes visible a moment after its record is
written, with synchronous standbys long after, so the end of the log says too much about what a view has. Its
snapshot says it exactly, by transaction ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .log import KeptLog, LogReader

_MANY = 50_000  # transactions after which it is looked which of them are visible by now
_WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Visible:
    """A snapshot: everything before `first` is over, nothing from `next` on, and not what is `running`."""

    first: int
    next: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Visible:
        """The form of pg_current_snapshot()."""
        first, next_, running = text.split(":")
        return cls(int(first), int(next_), frozenset(int(xid) for xid in running.split(",") if xid))

    def has(self, xid: int) -> bool:
        """Of a transaction that was committed; by its 32 bits, as the log has them."""
        ahead = (xid - self.next) % _WRAP
        whole = self.next + (ahead if ahead < _WRAP // 2 else ahead - _WRAP)
        return whole < self.first or (whole < self.next and whole not in self.running)


class Heard:
    """A log that remembers what it has handed out and no view has had yet; the latest while nobody copies."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._xids: set[int] = set()
        self._limit = _MANY
        self._look: Callable[[], Visible] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def untouched(self) -> None:
        if isinstance(self._log, KeptLog):
            self._log.untouched()

    def listen(self, look: Callable[[], Visible] | None) -> None:
        """`look` shows what is visible now; with None nobody copies.

        What was handed out before may not be visible yet, so it stays in mind.
        """
        with self._lock:
            self._look = look

    def read(self, wait: float) -> list[pa.RecordBatch]:
        batches = self._log.read(wait)
        found = {
            int(xid)
            for batch in batches
            for xid in pc.unique(batch["tx_id"]).to_pylist()
            if xid is not None
        }
        with self._lock:
            look = self._look
            self._xids |= found
            many = len(self._xids) > self._limit
            if many and look is None:
                self._xids = found  # all others are visible by now
        if many and look is not None:
            self.unseen(look())
            self._limit = max(_MANY, 2 * len(self._xids))
        return batches

    def unseen(self, visible: Visible) -> bool:
        """Whether a view lacks something that was handed out; what it has is forgotten."""
        with self._lock:
            self._xids = {xid for xid in self._xids if not visible.has(xid)}
            return bool(self._xids)
