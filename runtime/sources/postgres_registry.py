"""The versions of tables' columns that a postgres source has seen, kept in storage.

A version is told by its fingerprint, the SHA-256 of what the columns look like in events. The same
columns have the same version and number whenever they are met again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..storage import Backend

NAMESPACE = "schemas"


@dataclass(frozen=True, slots=True)
class Look:
    """A column as its version has it: no OIDs, which differ between servers with the same tables."""

    name: str
    type: str
    modifier: int
    labels: tuple[str, ...] = ()  # of an enum


@dataclass(frozen=True, slots=True)
class Version:
    """`number` counts the versions of a table from 1, `sequence` those of all tables."""

    db: str
    schema: str
    table: str
    fingerprint: str
    number: int
    sequence: int
    position: str
    identity: str
    columns: tuple[Look, ...]
    key: tuple[str, ...]


class Registry:
    """In memory, and in storage where there is one."""

    def __init__(self, storage: Backend | None, key: str) -> None:
        self._storage = storage
        self._key = key
        self._known: dict[tuple[str, str], dict[str, Version]] = {}
        self._latest: dict[tuple[str, str], Version] = {}
        self._sequence = 0
        if storage is not None:
            for _, value in storage.since(NAMESPACE, key):
                self._take(_decode(value))

    def latest(self, schema: str, table: str) -> Version | None:
        """What the table looked like when it was last seen."""
        return self._latest.get((schema, table))

    def register(
        self,
        db: str,
        schema: str,
        table: str,
        identity: str,
        columns: Sequence[Look],
        key: Sequence[str],
        position: str,
    ) -> Version:
        """The version with these columns: a known one, or a new one first seen at `position`."""
        mark = fingerprint(identity, columns, key)
        known = self._known.get((schema, table), {})
        found = known.get(mark)
        if found is None:
            found = Version(
                db, schema, table, mark, len(known) + 1, self._sequence + 1, position, identity,
                tuple(columns), tuple(key),
            )  # fmt: skip
            if self._storage is not None:
                self._storage.append(NAMESPACE, self._key, _encode(found))
            self._take(found)
        self._latest[schema, table] = found
        return found

    def _take(self, version: Version) -> None:
        place = (version.schema, version.table)
        self._known.setdefault(place, {})[version.fingerprint] = version
        self._latest[place] = version
        self._sequence = max(self._sequence, version.sequence)


def fingerprint(identity: str, columns: Sequence[Look], key: Sequence[str]) -> str:
    look = {
        "columns": [asdict(column) for column in columns],
        "primary_key": list(key),
        "replica_identity": identity,
    }
    text = json.dumps(look, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _encode(version: Version) -> bytes:
    return json.dumps({**asdict(version), "registered_at": int(time.time())}).encode()


def _decode(value: bytes) -> Version:
    given = json.loads(value)
    given.pop("registered_at")
    columns = tuple(Look(**{**c, "labels": tuple(c["labels"])}) for c in given.pop("columns"))
    return Version(**{**given, "columns": columns, "key": tuple(given["key"])})
