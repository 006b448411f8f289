"""How far every sink of a pipeline has come, as storage knows it."""

from __future__ import annotations

import json

from ..errors import StorageError
from ..storage import Backend
from .log import logger
from .settings import ReaderSettings


class SinkPositions:
    """Reads what the job writes after each epoch: one key per sink and lane."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._spec = settings.storage
        self._prefix = f"{settings.pipeline}/{settings.id}::sink::"
        self._sinks = settings.sinks
        self._storage: Backend | None = None

    def smallest(self) -> str:
        """The position that all of them hold; "" while one of them is not known to hold any."""
        if self._spec is None:
            return ""
        try:
            self._storage = self._storage or self._spec.find()
            if self._storage is None:
                return ""
            items = self._storage.items("checkpoints", self._prefix)
        except StorageError as error:
            # Only clean-up waits for it; the job itself will complain about a broken storage.
            logger.warning("%s", error)
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
