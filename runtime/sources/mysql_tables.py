"""Which tables the log's row events belong to, and how their rows are read.

A table map with full metadata names its columns. Without it the names come from the registry or from
the catalog, and only where it is sure that they held at that place of the log (see mysql_history).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..kernels import binlog as kernel
from ..kernels.mysql_rows import RowDecoder
from .log import SourceError, logger
from .mysql_binlog import Broken, Frames
from .mysql_catalog import Catalog, Described, could_be, is_vague, refined
from .mysql_columns import Column, ColumnError, TableMap, parse_table_map
from .mysql_events import Shown
from .mysql_position import Place
from .mysql_registry import Registry, Version
from .mysql_server import Captured
from .mysql_walk import Taken, Walk

Here = tuple[int, int]  # era and file


class Unsure(SourceError):
    """What columns a table had at a place cannot be told."""


class History(Protocol):
    """What the log says about tables behind the place that is being read."""

    def columns(self, db: str, table: str, here: Place) -> Described:
        """The catalog's columns when they held here; otherwise an error that says why."""


@dataclass(frozen=True, slots=True)
class Known:
    shown: Shown
    decoder: RowDecoder


class Tables:
    """Tables by the hash of their table maps."""

    def __init__(
        self,
        captured: Captured,
        registry: Registry,
        catalog: Catalog,
        history: History,
        mariadb: bool,
        wide: str,
        drift: str,
    ) -> None:
        self._captured = captured
        self._registry = registry
        self._catalog = catalog
        self._history = history
        self._mariadb = mariadb
        self._wide = wide
        self._drift = drift
        self._known: dict[int, Known | None] = {}
        self._names: dict[int, tuple[str, str]] = {}

    def learn(self, frames: Frames, walk: Walk, taken: Taken, home: Here, here: Here) -> None:
        """Looks at new table maps, as long as they are there: for rows at hand and yet to come.

        `home` is the file that positions name, `here` the one in the present server's log.
        """
        rows, txs = taken.rows, taken.txs
        # Those of a transaction that is left in the buffer will be there the next time.
        count = int(walk.state[kernel.S_MAPS]) if len(txs) > taken.whole else 0
        maps = walk.maps[:count]
        hashes = np.concatenate([rows[:, kernel.R_MAP], maps[:, 1]])
        events = np.concatenate([rows[:, kernel.R_MAP_AT], maps[:, 2]])
        if len(hashes) == 0:
            return
        if len(hashes) > 1 and (hashes == hashes[0]).all():
            hashes, events = hashes[:1], events[:1]
        unique, firsts = np.unique(hashes, return_index=True)
        for number, first in zip(unique.tolist(), firsts.tolist(), strict=True):
            if number in self._known:
                continue
            event = int(events[first])
            if event < 0:
                raise SourceError("the log has rows of a table that nothing was said about")
            if first < len(rows):
                row = rows[first]
                start, nth = txs[int(row[kernel.R_TX]), kernel.T_START], row[kernel.R_NUMBER]
                offset = row[kernel.R_POS]
            else:
                start, nth, offset = txs[-1, kernel.T_START], walk.number, walk.pos
            place = Place(*home, int(start), int(nth))
            body = frames.body(event, int(walk.state[kernel.S_TAIL]))
            try:
                found = parse_table_map(body, self._mariadb)
            except ColumnError as error:
                what = f"{error} (of rows in the event that ends at {int(offset)})"
                raise Broken(what, -1) from None
            self._take(number, found, str(place), Place(*here, int(offset)))

    def of(self, hashes: Any) -> tuple[list[Known], Any]:
        """The captured tables among these, and for each hash the index of its table, or -1."""
        if len(hashes) and (hashes == hashes[0]).all():
            only = self._known[int(hashes[0])]
            return ([only] if only else []), np.full(len(hashes), 0 if only else -1)
        found, places = np.unique(hashes, return_inverse=True)
        tables: list[Known] = []
        index = []
        for number in found.tolist():
            known = self._known[number]
            index.append(len(tables) if known is not None else -1)
            if known is not None:
                tables.append(known)
        return tables, np.array(index, np.int64)[places]

    def preload(self, names: Iterable[tuple[str, str]], place: Place) -> None:
        """Notes what these tables are at the place where reading begins, at the end of the log."""
        for db, table in names:
            if self._registry.at(db, table, str(place)) or self._registry.told(
                db, table, str(place)
            ):
                continue
            try:
                described = self._history.columns(db, table, place)
            except Unsure:
                continue  # changed in this moment
            self._registry.tell(db, table, described, str(place))

    def shown(self, db: str, table: str) -> Shown:
        """For events that are about a table as a whole."""
        return Shown(db, table, self._captured.is_outbox(db, table))

    def changed(self, db: str, table: str | None, place: str) -> None:
        """A statement may have given this table, or all of a database, other columns."""
        for number, (its_db, its_table) in list(self._names.items()):
            if its_db == db and table in (None, its_table):
                self._known.pop(number, None)
                del self._names[number]
        self._catalog.forget(db, table)
        self._registry.unknown_from(db, table, place)

    def _take(self, number: int, found: TableMap, place: str, here: Place) -> None:
        db, table = found.db, found.table
        if not self._captured(db, table):
            self._known[number] = None
            return
        if found.names:
            columns, key = found.columns, found.key
            if self._mariadb and any(is_vague(column) for column in columns):
                columns = self._refined(found, place, here)
        else:
            columns, key = self._unnamed(found, place, here)
        version = self._version(db, table, columns, key, place)
        shown = Shown(db, table, self._captured.is_outbox(db, table), version)
        self._known[number] = Known(shown, RowDecoder(columns, key, self._wide))
        self._names[number] = (db, table)

    def _refined(self, found: TableMap, place: str, here: Place) -> tuple[Column, ...]:
        """With what MariaDB's log does not tell (UUID, JSON...): as of that place where it is known."""
        name = found.db, found.table
        version = self._registry.at(*name, place)
        if version is not None and _fits(version, found):
            return version.columns
        described = self._registry.told(*name, place)
        if described is None:
            try:
                described = self._history.columns(*name, here)
            except Unsure:
                # The table was changed since, or is gone: it was what it was when it was last seen.
                for older in reversed(self._registry.of(*name)):
                    if _fits(older, found):
                        return older.columns
                described = self._catalog.table(*name)
        return found.columns if described is None else refined(found.columns, described)

    def _unnamed(
        self, found: TableMap, place: str, here: Place
    ) -> tuple[tuple[Column, ...], tuple[int, ...]]:
        version = self._registry.at(found.db, found.table, place)
        if version is not None and len(version.columns) == len(found.columns):
            return version.columns, version.key
        described = self._registry.told(found.db, found.table, place)
        if described is None or len(described.columns) != len(found.columns):
            described = self._history.columns(found.db, found.table, here)
        if len(described.columns) != len(found.columns):
            raise SourceError(
                f"table {found.db}.{found.table} has {len(described.columns)} columns, but "
                f"{len(found.columns)} in the log, which does not name them. "
                + how_to_name(self._mariadb)
            )
        return described.named(found.columns), described.key

    def _version(
        self,
        db: str,
        table: str,
        columns: tuple[Column, ...],
        key: tuple[int, ...],
        place: str,
    ) -> Version:
        older = self._registry.of(db, table)
        version = self._registry.find(db, table, columns, key)
        if version is None and older:
            news = difference(older[-1], columns, key)
            if self._drift == "halt":
                raise SourceError(
                    f"table {db}.{table} no longer has the columns last seen: {news} "
                    "(on_schema_drift is halt; set it to adapt to go on with the new ones)"
                )
            logger.info("table %s.%s has other columns than before: %s", db, table, news)
        return self._registry.register(db, table, columns, key, place)


def difference(old: Version, columns: tuple[Column, ...], key: tuple[int, ...]) -> str:
    """In words, what is not as it was."""
    before, now = {c.name: c for c in old.columns}, {c.name: c for c in columns}
    parts = [f"`{name}` is new" for name in now if name not in before]
    parts += [f"`{name}` is gone" for name in before if name not in now]
    parts += [
        f"`{name}` has another type"
        for name, column in now.items()
        if name in before and before[name] != column
    ]
    if [old.columns[i].name for i in old.key] != [columns[i].name for i in key]:
        parts.append("the primary key is another")
    return ", ".join(parts) or "they stand in another order"


def how_to_name(mariadb: bool) -> str:
    how = "GLOBAL" if mariadb else "PERSIST"
    return (
        f"Let the server name columns from now on (SET {how} binlog_row_metadata = 'FULL'), and let "
        "the pipeline begin anew behind this place"
    )


def _fits(version: Version, found: TableMap) -> bool:
    return (
        version.key == found.key
        and len(version.columns) == len(found.columns)
        and all(map(could_be, version.columns, found.columns))
    )
