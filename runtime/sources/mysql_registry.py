"""The versions of tables' columns that a source has seen, kept in storage.

A version is told by its fingerprint, the SHA-256 of what the columns look like in the log. The same
columns have the same version and number whenever they are met again.
"""

from __future__ import annotations

import hashlib
import json
import time
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..storage import Backend
from .mysql_catalog import Described
from .mysql_columns import Column
from .settings import ReaderSettings

NAMESPACE = "schemas"
_BEHIND_ALL = "~"

Name = tuple[str, str]  # database and table


@dataclass(frozen=True, slots=True)
class Version:
    """`number` counts the versions of a table from 1, `sequence` those of all tables."""

    db: str
    table: str
    fingerprint: str
    number: int
    sequence: int
    position: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]


class Registry:
    """In memory, and in storage where there is one.

    Beside the versions it knows from which place on a table had which: needed where the log itself
    does not name columns. A statement that may have changed a table makes its columns unknown.
    """

    def __init__(self, settings: ReaderSettings) -> None:
        self._storage: Backend | None = settings.storage.open() if settings.storage else None
        self._key = f"{settings.pipeline}/{settings.id}"
        self._known: dict[Name, dict[str, Version]] = {}
        self._times: dict[Name, list[tuple[str, str]]] = {}  # place, and fingerprint from there on
        self._told: dict[Name, list[tuple[str, Described]]] = {}  # what the catalog said, and where
        self._sequence = 0
        if self._storage is not None:
            for _, value in self._storage.since(NAMESPACE, self._key):
                self._take(_decode(value))
            for _, value in self._storage.since(NAMESPACE, f"{self._key}::times"):
                db, table, place, mark = json.loads(value)
                insort(self._times.setdefault((db, table), []), (place, mark))
            for _, value in self._storage.since(NAMESPACE, f"{self._key}::told"):
                db, table, place, look = json.loads(value)
                self._told.setdefault((db, table), []).append((place, Described.parse(look)))

    def find(
        self, db: str, table: str, columns: Sequence[Column], key: Sequence[int]
    ) -> Version | None:
        return self._known.get((db, table), {}).get(fingerprint(columns, key))

    def of(self, db: str, table: str) -> list[Version]:
        """All versions of a table, the one that was met last at the end."""
        return list(self._known.get((db, table), {}).values())

    def names(self) -> list[Name]:
        return list(self._known)

    def register(
        self, db: str, table: str, columns: Sequence[Column], key: Sequence[int], position: str
    ) -> Version:
        """The version with these columns: a known one, or a new one first seen at `position`."""
        mark = fingerprint(columns, key)
        known = self._known.setdefault((db, table), {})
        found = known.pop(mark, None)
        if found is None:
            found = Version(
                db,
                table,
                mark,
                len(known) + 1,
                self._sequence + 1,
                position,
                tuple(columns),
                tuple(key),
            )
            if self._storage is not None:
                self._storage.append(NAMESPACE, self._key, _encode(found))
        self._take(found)
        now = self.at(db, table, position)
        if now is None or now.fingerprint != mark:
            self._note(db, table, position, mark)
        return found

    def at(self, db: str, table: str, position: str) -> Version | None:
        """The version that a table had at a place; None when that is not known."""
        times = self._times.get((db, table), [])
        index = bisect_right(times, (position, _BEHIND_ALL)) - 1
        return None if index < 0 else self._known.get((db, table), {}).get(times[index][1])

    def tell(self, db: str, table: str, described: Described, position: str) -> None:
        """What the catalog says of a table at a place where it is known to hold."""
        if self._storage is not None:
            value = json.dumps([db, table, position, asdict(described)]).encode()
            self._storage.append(NAMESPACE, f"{self._key}::told", value)
        self._told.setdefault((db, table), []).append((position, described))

    def told(self, db: str, table: str, position: str) -> Described | None:
        """What the catalog said before this place, when nothing has changed the table in between."""
        changes = [place for place, mark in self._times.get((db, table), ()) if not mark]
        for place, described in reversed(self._told.get((db, table), [])):
            if place <= position:
                if any(place <= change <= position for change in changes):
                    return None
                return described
        return None

    def unknown_from(self, db: str, table: str | None, position: str) -> None:
        """Whatever the columns are from this place on; of all tables of a database with None."""
        names = dict.fromkeys((*self._times, *self._told))
        for name in [n for n in names if n[0] == db and table in (None, n[1])]:
            if self.at(*name, position) or self.told(*name, position):
                self._note(*name, position, "")

    def _note(self, db: str, table: str, position: str, mark: str) -> None:
        if self._storage is not None:
            value = json.dumps([db, table, position, mark]).encode()
            self._storage.append(NAMESPACE, f"{self._key}::times", value)
        times = self._times.setdefault((db, table), [])
        # A place that was noted before is met again after a restart: the newer word counts.
        times[:] = [time for time in times if time[0] != position]
        insort(times, (position, mark))

    def _take(self, version: Version) -> None:
        self._known.setdefault((version.db, version.table), {})[version.fingerprint] = version
        self._sequence = max(self._sequence, version.sequence)


def fingerprint(columns: Sequence[Column], key: Sequence[int]) -> str:
    look = {
        "columns": [asdict(column) for column in columns],
        "primary_key": [columns[index].name for index in key],
    }
    text = json.dumps(look, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _encode(version: Version) -> bytes:
    return json.dumps({**asdict(version), "registered_at": int(time.time())}).encode()


def _decode(value: bytes) -> Version:
    given = json.loads(value)
    given.pop("registered_at")
    columns = tuple(
        Column(**{**column, "labels": tuple(column["labels"])}) for column in given.pop("columns")
    )
    return Version(**{**given, "columns": columns, "key": tuple(given["key"])})
