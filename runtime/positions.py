"""Where each sink stands, lane by lane, in storage."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping

from .agreement import common
from .storage import Backend, SlotGuard

NAMESPACE = "checkpoints"


class Positions:
    """The positions of a pipeline's sinks: in memory for the run, saved as they advance."""

    def __init__(
        self,
        storage: Backend | None,
        pipeline: str,
        source_id: str,
        sinks: Iterable[str],
        lanes: int,
        keep: bool = True,
        guard: SlotGuard | None = None,
    ) -> None:
        self._storage = storage
        self._guard = guard
        self._keep = keep and storage is not None
        self._prefix = f"{pipeline}/{source_id}::sink::"
        self.lanes = lanes
        self.events: dict[str, list[int]] = {}
        self._at: dict[str, list[str]] = {}
        self._times: dict[str, list[int | None]] = {}  # of the last event, by the source's clock
        self._unsaved: set[tuple[str, int]] = set()
        self._gone: list[str] = []  # keys of lanes that there are no more
        for sink in sinks:
            self._times[sink] = [None] * lanes
            self._at[sink], self.events[sink] = self._load(sink)

    @property
    def start(self) -> str:
        """Where the source begins: the smallest of all, so that no sink misses anything."""
        return self.start_without(())

    def start_without(self, sinks: Collection[str]) -> str:
        """The same for the others, when these take no part."""
        taking = [positions for sink, positions in self._at.items() if sink not in sinks]
        return min((p for positions in taking for p in positions), default="")

    def of(self, sink: str) -> tuple[str, ...]:
        return tuple(self._at[sink])

    def advance(
        self,
        positions: Mapping[tuple[str, int], str],
        events: Mapping[tuple[str, int], int],
        times: Mapping[tuple[str, int], int | None] | None = None,
    ) -> None:
        """Takes over what is ahead of the known positions, and saves it in one transaction.

        By sink and lane: position, number of events that led there, time of the last of them. When storage is away, they are known all the same, and the next save() keeps them.
        """
        for (sink, lane), position in positions.items():
            if position <= self._at[sink][lane]:
                continue
            self._at[sink][lane] = position
            self.events[sink][lane] += events.get((sink, lane), 0)
            if times and (time_ms := times.get((sink, lane))) is not None:
                self._times[sink][lane] = time_ms
            self._unsaved.add((sink, lane))
        self.save()

    def save(self) -> None:
        """Writes what is not in storage yet."""
        if self._unsaved and self._keep:
            assert self._storage is not None
            values = {self._key(*which): self._value(*which) for which in self._unsaved}
            self._storage.put_all(NAMESPACE, values, guard=self._guard, gone=self._gone)
        self._unsaved, self._gone = set(), []

    def _value(self, sink: str, lane: int) -> bytes:
        entry = {
            "position": self._at[sink][lane],
            "lanes": self.lanes,
            "ts_ms": int(time.time() * 1000),
            "events": self.events[sink][lane],
            "event_ts_ms": self._times[sink][lane],
        }
        return json.dumps(entry).encode()

    def _key(self, sink: str, lane: int) -> str:
        return f"{self._prefix}{sink}::{lane}"

    def _load(self, sink: str) -> tuple[list[str], list[int]]:
        positions, events = [""] * self.lanes, [0] * self.lanes
        stored = {}
        if self._storage is not None:
            prefix = f"{self._prefix}{sink}::"
            for key, value in self._storage.items(NAMESPACE, prefix).items():
                stored[int(key.removeprefix(prefix))] = json.loads(value)
        if not stored:
            return positions, events
        counts = {entry["lanes"] for entry in stored.values()}
        if counts == {self.lanes}:
            for lane, entry in stored.items():
                positions[lane], events[lane] = entry["position"], entry["events"]
                self._times[sink][lane] = entry.get("event_ts_ms")
            return positions, events
        # Another number of lanes puts rows into other lanes: only a common position carries over. It
        # is saved for all of them at once, and the old keys go with that: until then nothing changes.
        old = max(counts)
        current = {lane: entry for lane, entry in stored.items() if entry["lanes"] == old}
        there = [current[lane]["position"] if lane in current else "" for lane in range(old)]
        positions = [common(f"sink `{sink}`", there)] * self.lanes
        events[0] = sum(entry["events"] for entry in stored.values())
        self._unsaved |= {(sink, lane) for lane in range(self.lanes)}
        self._gone += [self._key(sink, lane) for lane in stored if lane >= self.lanes]
        return positions, events
