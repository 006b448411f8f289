"""What a postgres source keeps in storage beside the positions of its sinks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from ..positions import NAMESPACE
from ..storage import Backend
from .settings import ReaderSettings


@dataclass
class State:
    """`system` is the server's identifier, `begin` where the pipeline began on this slot.

    `confirmed` is how far the slot was told that it may forget, noted before it is told: a slot that
    stands further was moved, or made anew, by somebody else. `late` are tables that came to the
    publication later and have still to be copied.
    """

    system: int
    begin: int
    confirmed: int = 0
    late: tuple[str, ...] = ()


class Notes:
    """In memory, and in storage where there is one; by slot, since another slot begins anew."""

    def __init__(self, settings: ReaderSettings, slot: str) -> None:
        self._key = f"{settings.pipeline}/{settings.id}::postgres::{slot}"
        self._storage: Backend | None = settings.storage.open() if settings.storage else None
        self.state: State | None = None
        if self._storage is not None:
            text = self._storage.get(NAMESPACE, self._key)
            self.state = None if text is None else State(**json.loads(text))

    @property
    def storage(self) -> Backend | None:
        return self._storage

    def save(self, state: State) -> None:
        self.state = state
        if self._storage is not None:
            self._storage.put(NAMESPACE, self._key, json.dumps(asdict(state)).encode())

    def save_late(self, late: tuple[str, ...]) -> None:
        if self.state is not None and tuple(self.state.late) != late:
            self.save(replace(self.state, late=late))

    def close(self) -> None:
        if self._storage is not None:
            self._storage.close()
