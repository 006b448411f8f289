"""Keeps the triggers of a SQLite file in step with its tables."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterable

from .log import SourceError, logger
from .settings import ReaderSettings
from .turso_database import transaction
from .turso_schema import Table, captured, quote, read_table, table_names, text
from .turso_triggers import (
    CONSUMERS,
    INFRASTRUCTURE,
    LAYOUTS,
    PREFIX,
    SEQUENCE,
    VERSION,
    images,
    replaced,
    shadow,
    trigger_sql,
)

ABSENT_DAYS = 7
_MADE_BY = re.compile(r"/\* dfc (\d+) \*/")


class Installer:
    """Makes and re-makes triggers, each time in one transaction that either happens or does not."""

    def __init__(self, connection: sqlite3.Connection, patterns: Iterable[str], consumer: str):
        self._db = connection
        self._patterns = tuple(patterns)
        self._consumer = consumer
        self._warned: set[str] = set()

    def ensure(self, start: int | None = None) -> int:
        """Every captured table has its triggers afterwards; returns the file's schema version.

        `start` is where this consumer begins to read, given when it has just connected.
        """
        with transaction(self._db):
            for statement in INFRASTRUCTURE:
                self._db.execute(statement)
            self._work(start)
            return int(self._db.execute("PRAGMA schema_version").fetchone()[0])

    def _work(self, start: int | None) -> None:
        names = table_names(self._db)
        row = self._db.execute(
            f"SELECT tables FROM {CONSUMERS} WHERE pipeline = ?", (self._consumer,)
        ).fetchone()
        known = None if row is None else set(json.loads(row[0]))
        triggers = self._triggers()
        for name in names:
            mine = triggers.get(name, {})
            # Triggers move with a renamed table and would go on writing under its old name.
            strays = mine.keys() - trigger_sql(read_table(self._db, name)).keys() if mine else set()
            if captured(name, self._patterns) or strays:
                self._table(name, mine, appeared=known is not None and name not in known)
        self._forget_dropped(names)
        now = time.time_ns() // 1_000_000
        self._db.execute(
            f"INSERT INTO {CONSUMERS} VALUES (?, ?, ?, ?) ON CONFLICT (pipeline) DO UPDATE SET"
            " position = coalesce(?, position), tables = excluded.tables, seen_ms = excluded.seen_ms",
            (self._consumer, start or 0, json.dumps(names), now, start),
        )

    def _triggers(self) -> dict[str, dict[str, str]]:
        """Our triggers by the table they are on now."""
        found: dict[str, dict[str, str]] = {}
        for name, table, sql in self._db.execute(
            "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'"
        ):
            if name.startswith(PREFIX):
                found.setdefault(table, {})[name] = sql
        return found

    def _table(self, name: str, triggers: dict[str, str], appeared: bool) -> None:
        table = read_table(self._db, name)
        if table.odd_unique and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "table %s: rows that a REPLACE removes because of the unique index %s (over an "
                "expression, or part of the rows) give no delete event",
                name,
                ", ".join(table.odd_unique),
            )
        layout = self._db.execute(
            f"SELECT columns, version FROM {LAYOUTS} WHERE tbl = ? ORDER BY layout DESC LIMIT 1",
            (name,),
        ).fetchone()
        changed = layout is None or layout[1] != table.version()
        wanted = trigger_sql(table)
        if not changed and (triggers == wanted or _newer(triggers)):
            return
        self._make_tables(table)
        for trigger in triggers.keys() | wanted.keys():
            self._db.execute(f"DROP TRIGGER IF EXISTS {quote(trigger)}")
        for statement in wanted.values():
            self._db.execute(statement)
        if changed:
            columns = json.dumps([column.name for column in table.columns], ensure_ascii=False)
            keys = json.dumps(table.key, ensure_ascii=False)
            self._db.execute(
                f"INSERT INTO {LAYOUTS} (tbl, since, columns, keys, version)"
                f" SELECT ?, n, ?, ?, ? FROM {SEQUENCE}",
                (name, columns, keys, table.version()),
            )
        logger.info("table %s: triggers %s", name, "re-made" if triggers else "made")
        if not triggers:
            if layout is not None:
                # Dropped and made again: what was written to it before now went by unseen.
                self._copy(table, "r")
            elif appeared:
                self._copy(table, "c")
        elif changed and layout is not None:
            self._catch_up(table, set(json.loads(layout[0])))

    def _make_tables(self, table: Table) -> None:
        before, after = images("b", table), images("a", table)
        pairs = [column for pair in zip(before, after, strict=True) for column in pair]
        # Columns without a type: values stay what they are, a 1.0 is not turned into a 1.
        self._extend(shadow(table.name), "change_id INTEGER PRIMARY KEY, op, ts_ms", pairs)
        self._extend(replaced(table.name), "slot INTEGER PRIMARY KEY, row_id", before)

    def _extend(self, name: str, head: str, columns: list[str]) -> None:
        there = {row[1] for row in self._db.execute(f"PRAGMA table_info({quote(name)})")}
        if not there:
            self._db.execute(f"CREATE TABLE {quote(name)} ({head}, {', '.join(columns)})")
            return
        for column in columns:
            if column not in there:
                self._db.execute(f"ALTER TABLE {quote(name)} ADD COLUMN {column}")

    def _copy(self, table: Table, op: str) -> None:
        """The rows of a table that was written to before it had triggers."""
        values = ", ".join(quote(column.name) for column in table.columns)
        self._log(table, op, images("a", table), f"{values} FROM {quote(table.name)}", ())

    def _catch_up(self, table: Table, before: set[str]) -> None:
        """Rows written after an ADD COLUMN by triggers that did not know the column yet.

        They differ from the rest in that the column no longer has its default.
        """
        added = [c for c in table.columns if c.name not in before and not c.generated]
        if not added:
            return
        # Columns that left at the same time make the numbers below point elsewhere; a rename
        # shows as both, and its values are known.
        if before - {column.name for column in table.columns}:
            return
        kept = [c for c in table.columns if c.name in before]
        filled = " OR ".join(f"{quote(c.name)} IS NOT ({c.default or 'NULL'})" for c in added)
        where = f"({filled})"
        since = self._db.execute(
            f"SELECT since FROM {LAYOUTS} WHERE tbl = ? ORDER BY layout DESC LIMIT 1 OFFSET 1",
            (table.name,),
        ).fetchone()[0]
        if table.key:
            numbers = {column.name: number for number, column in enumerate(kept)}
            keys = ", ".join(quote(name) for name in table.key)
            logged = ", ".join(f"a{numbers[name]}" for name in table.key)
            where += (
                f" AND ({keys}) IN (SELECT {logged} FROM {quote(shadow(table.name))}"
                f" WHERE change_id > {int(since)})"
            )
        names = ", ".join(quote(column.name) for column in table.columns)
        old = ", ".join(
            quote(c.name) if c.name in before else f"({c.default or 'NULL'})" for c in table.columns
        )
        self._log(
            table,
            "u",
            images("a", table) + images("b", table),
            f"{names}, {old} FROM {quote(table.name)} WHERE {where}",
            (),
        )

    def _log(
        self, table: Table, op: str, columns: list[str], select: str, values: tuple[object, ...]
    ) -> None:
        now = time.time_ns() // 1_000_000
        cursor = self._db.execute(
            f"INSERT INTO {quote(shadow(table.name))} (change_id, op, ts_ms, {', '.join(columns)})"
            f" SELECT (SELECT n FROM {SEQUENCE}) + row_number() OVER (), '{op}', {now}, {select}",
            values,
        )
        if cursor.rowcount > 0:
            self._db.execute(f"UPDATE {SEQUENCE} SET n = n + ?", (cursor.rowcount,))
            logger.info(
                "table %s: %d rows written without complete triggers go out as `%s`",
                table.name,
                cursor.rowcount,
                op,
            )

    def _forget_dropped(self, names: list[str]) -> None:
        """What is left of a table that is gone, once all its changes are."""
        tracked = self._db.execute(f"SELECT DISTINCT tbl FROM {LAYOUTS}").fetchall()
        for (name,) in tracked:
            if name in names:
                continue
            left = quote(shadow(name))
            if self._db.execute(f"SELECT 1 FROM {left} LIMIT 1").fetchone() is None:
                self._db.execute(f"DROP TABLE {left}")
                self._db.execute(f"DROP TABLE IF EXISTS {quote(replaced(name))}")
                self._db.execute(f"DELETE FROM {LAYOUTS} WHERE tbl = ?", (name,))


def _newer(triggers: dict[str, str]) -> bool:
    """Whether a later dfc has made them; two versions on one file must not undo each other."""
    versions = [_MADE_BY.search(sql) for sql in triggers.values()]
    return any(found is not None and int(found.group(1)) > VERSION for found in versions)


def check_start(connection: sqlite3.Connection, start: int | None, settings: ReaderSettings) -> int:
    """Where to begin: the changes behind `start` must still be there, all of them."""
    head, cleaned = connection.execute(f"SELECT n, cleaned FROM {SEQUENCE}").fetchone()
    if start is None:
        return int(cleaned)
    if start > head:
        raise SourceError(
            f"the stored position {start} is ahead of the database's last change {head}: the file "
            "was restored or replaced. To read this one from its beginning, "
            f"{settings.how_to_reset}"
        )
    if start < cleaned:
        raise SourceError(
            f"the changes {start + 1} to {cleaned} are no longer in the database: they were "
            "cleaned up after every registered pipeline had confirmed them. To go on from what is "
            f"left, {settings.how_to_reset}"
        )
    return start


def warn_of_absent(connection: sqlite3.Connection, consumer: str) -> None:
    """Pipelines that have not been here for long keep everybody's changes from being cleaned up."""
    limit = time.time_ns() // 1_000_000 - ABSENT_DAYS * 86_400_000
    for (name,) in connection.execute(
        f"SELECT pipeline FROM {CONSUMERS} WHERE pipeline <> ? AND seen_ms < ?", (consumer, limit)
    ).fetchall():
        logger.warning(
            "pipeline/source %s has not read this database for over %d days, and all changes are "
            "kept for it; if it is gone for good: DELETE FROM %s WHERE pipeline = %s",
            name,
            ABSENT_DAYS,
            CONSUMERS,
            text(name),
        )
