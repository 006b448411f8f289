"""What becomes of dead letters in a replay, and what storage knows of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .deadletters import NAMESPACE as LETTERS
from .storage import Backend, SlotGuard

NAMESPACE = "dlq-notes"
UNITS = "dlq-units"  # what is on its way to a sink


@dataclass(frozen=True, slots=True)
class Note:
    """What earlier replays have made of a letter: kept beside it, by its id, so that the letter itself stays as it was written."""

    replays: int = 0
    error: str = ""  # of the last one
    delivered: tuple[str, ...] = ()  # sinks that have the event of a processor's letter by now

    def failed(self, error: str) -> Note:
        return replace(self, replays=self.replays + 1, error=error)

    def delivered_to(self, sink: str) -> Note:
        return replace(self, delivered=tuple(dict.fromkeys((*self.delivered, sink))))


def notes(storage: Backend, pipeline: str) -> dict[int, Note]:
    """By letter; for one that has none, Note() says the same."""
    prefix = f"{pipeline}::"
    found = {}
    for key, value in storage.items(NAMESPACE, prefix).items():
        note = json.loads(value)
        number = int(key.removeprefix(prefix))
        found[number] = Note(note["replays"], note["error"], tuple(note["delivered"]))
    return found


def put_notes(
    storage: Backend,
    pipeline: str,
    notes: Mapping[int, Note],
    guard: SlotGuard | None = None,
) -> None:
    values = {f"{pipeline}::{n}": json.dumps(asdict(note)).encode() for n, note in notes.items()}
    if values:
        storage.put_all(NAMESPACE, values, guard=guard)


def forget_notes(storage: Backend, pipeline: str, letters: Iterable[int]) -> None:
    for number in letters:
        storage.delete(NAMESPACE, f"{pipeline}::{number}")


@dataclass
class Letter:
    """A dead letter, and what becomes of it."""

    number: int
    event_id: str | None
    sink: str | None  # None for one of a processor
    row: dict[str, Any] | None  # the event as the source gave it
    note: Note
    pending: set[str] = field(default_factory=set)  # sinks that have not got it yet
    early: set[str] = field(default_factory=set)  # those of them that have not come to it either
    error: str | None = None
    dropped: bool = False  # there is nothing to deliver any more

    @property
    def due(self) -> set[str]:
        """Sinks that may get it now."""
        return self.pending - self.early

    @property
    def is_done(self) -> bool:
        return not self.pending and self.error is None


class Keeper:
    """What happens to letters, in storage."""

    def __init__(self, storage: Backend, pipeline: str, guard: SlotGuard | None) -> None:
        self._storage = storage
        self._pipeline = pipeline
        self._guard = guard

    def begin(self, sink: str, mark: str, letters: Iterable[Letter]) -> None:
        """Before a unit is on its way."""
        unit = {"mark": mark, "letters": [letter.number for letter in letters]}
        key = f"{self._pipeline}::{sink}"
        self._storage.put_all(UNITS, {key: json.dumps(unit).encode()}, guard=self._guard)

    def begun(self, sink: str) -> tuple[str, set[int]]:
        """Mark and letters of the unit that was on its way when a replay was cut off."""
        found = self._storage.get(UNITS, f"{self._pipeline}::{sink}")
        if found is None:
            return "", set()
        unit = json.loads(found)
        return unit["mark"], set(unit["letters"])

    def ended(self, sink: str) -> None:
        self._storage.delete(UNITS, f"{self._pipeline}::{sink}")

    def keep(self, letters: Iterable[Letter]) -> None:
        """Those that stay: what has been tried, and who has them."""
        put_notes(self._storage, self._pipeline, {x.number: x.note for x in letters}, self._guard)

    def remove(self, letters: Iterable[Letter]) -> None:
        numbers = [letter.number for letter in letters]
        self._storage.remove(LETTERS, self._pipeline, numbers)
        forget_notes(self._storage, self._pipeline, numbers)


class NoKeeper(Keeper):
    """For a dry run: everything stays as it is."""

    def __init__(self) -> None:
        pass

    def begin(self, sink: str, mark: str, letters: Iterable[Letter]) -> None:
        pass

    def begun(self, sink: str) -> tuple[str, set[int]]:
        return "", set()

    def ended(self, sink: str) -> None:
        pass

    def keep(self, letters: Iterable[Letter]) -> None:
        pass

    def remove(self, letters: Iterable[Letter]) -> None:
        pass
