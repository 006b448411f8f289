"""How far every sink of a pipeline has come, as storage knows it."""

from __future__ import annotations

import json
import os
import sqlite3

from ..storage import SqliteStorage
from .log import logger
from .settings import ReaderSettings


class SinkPositions:
    """Reads what the job writes after each epoch: one key per sink and lane."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._path = settings.storage
        self._prefix = f"{settings.pipeline}/{settings.id}::sink::"
        self._sinks = settings.sinks
        self._storage: SqliteStorage | None = None

    def smallest(self) -> str:
        """The position that all of them hold; "" while one of them is not known to hold any."""
        if not self._path or not os.path.exists(self._path):
            return ""
        try:
            self._storage = self._storage or SqliteStorage(self._path)
            items = self._storage.items("checkpoints", self._prefix)
        except sqlite3.Error as error:
            # Only clean-up waits for it; the job itself will complain about a broken storage.
            logger.warning("storage: %s", error)
            return ""
        lanes: dict[str, list[dict[str, object]]] = {}
        for key, value in items.items():
            sink, _, _ = key[len(self._prefix) :].rpartition("::")
            lanes.setdefault(sink, []).append(json.loads(value))
        positions = []
        for sink in self._sinks or tuple(lanes):
            known = lanes.get(sink, [])
            if not known or len(known) < max(int(str(lane.get("lanes", 1))) for lane in known):
                return ""
            positions += [str(lane.get("position", "")) for lane in known]
        return min(positions, default="")
