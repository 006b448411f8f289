"""Where each sink stands, lane by lane, in storage."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable

from .errors import ConfigError
from .storage import SqliteStorage

NAMESPACE = "checkpoints"


class Positions:
    """The positions of a pipeline's sinks: in memory for the run, saved as they advance."""

    def __init__(
        self,
        storage: SqliteStorage | None,
        pipeline: str,
        source_id: str,
        sinks: Iterable[str],
        lanes: int,
        keep: bool = True,
        guard: tuple[str, str, str] | None = None,
    ) -> None:
        self._storage = storage
        self._guard = guard
        self._keep = keep and storage is not None
        self._prefix = f"{pipeline}/{source_id}::sink::"
        self.lanes = lanes
        self.events: dict[str, list[int]] = {}
        self._at: dict[str, list[str]] = {}
        for sink in sinks:
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
        self, positions: dict[tuple[str, int], str], events: dict[tuple[str, int], int]
    ) -> None:
        """Takes over what is ahead of the known positions, and saves it in one transaction."""
        values: dict[str, bytes] = {}
        now = int(time.time() * 1000)
        for (sink, lane), position in positions.items():
            if position <= self._at[sink][lane]:
                continue
            self._at[sink][lane] = position
            self.events[sink][lane] += events.get((sink, lane), 0)
            values[self._key(sink, lane)] = json.dumps(
                {
                    "position": position,
                    "lanes": self.lanes,
                    "ts_ms": now,
                    "events": self.events[sink][lane],
                }
            ).encode()
        if values and self._keep:
            assert self._storage is not None
            self._storage.put_all(NAMESPACE, values, guard=self._guard)

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
            return positions, events
        # Another number of lanes puts rows into other lanes: only a common position carries over.
        common = {entry["position"] for entry in stored.values()}
        old = max(counts)
        if len(common) > 1 or len(counts) > 1 or len(stored) < old:
            raise ConfigError(
                f"sink `{sink}` ran with {old} lanes, which stand at different positions: "
                f"run once with {old} lanes to even them out, then change to {self.lanes}"
            )
        if self._keep:
            assert self._storage is not None
            for lane in stored:
                if lane >= self.lanes:
                    self._storage.delete(NAMESPACE, self._key(sink, lane))
        positions = [common.pop()] * self.lanes
        events[0] = sum(entry["events"] for entry in stored.values())
        return positions, events
