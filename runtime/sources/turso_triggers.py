"""Triggers that write every change of a table to a shadow table beside it.

Shadow tables keep values as SQLite stored them, one column per column and image (b0, a0, b1, ...),
so nothing is rounded and the writer's SQLite needs no JSON. Change ids come from one counter row;
SQLite lets one transaction write at a time, so they grow in the order of commits, and a rollback
takes its ids back.

Two things SQLite does not make easy:

- `ALTER TABLE ... DROP COLUMN` refuses to go on when a trigger names the column. Every name here
  therefore stands in a subquery whose outer query offers the same name as NULL: as long as the
  column is there the inner meaning wins, afterwards the outer one does, and the ALTER passes.
- INSERT OR REPLACE (and UPDATE OR REPLACE) removes the rows in its way without firing delete
  triggers, unless recursive_triggers is on. A BEFORE trigger notes the rows that share a unique
  key with the new one, the AFTER trigger writes a delete for those that are gone. Not seen are
  rows in the way only by a unique index over an expression or part of the rows (a warning says
  so), or by a generated column made of a null that REPLACE turns into a default.
"""

from __future__ import annotations

from .turso_schema import Table, quote

VERSION = 1  # of the trigger texts; a newer dfc's triggers are left alone by an older one
SEQUENCE = '"_df_cdc_seq"'
LAYOUTS = '"_df_cdc_layouts"'
CONSUMERS = '"_df_cdc_consumers"'
PREFIX = "_df_cdc_"

_RESERVED = ("seq", "layouts", "consumers")
_NOW_MS = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
_LAST = f"(SELECT n FROM {SEQUENCE})"

INFRASTRUCTURE = (
    f"CREATE TABLE IF NOT EXISTS {SEQUENCE}"
    " (id INTEGER PRIMARY KEY CHECK (id = 1), n INTEGER NOT NULL, cleaned INTEGER NOT NULL)",
    f"INSERT OR IGNORE INTO {SEQUENCE} VALUES (1, 0, 0)",
    # `since`: the last change id before this layout; a table's changes are read by the layout
    # that was in force when they were written.
    f"CREATE TABLE IF NOT EXISTS {LAYOUTS} (layout INTEGER PRIMARY KEY, tbl TEXT NOT NULL,"
    " since INTEGER NOT NULL, columns TEXT NOT NULL, keys TEXT NOT NULL, version TEXT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {CONSUMERS}"
    " (pipeline TEXT PRIMARY KEY, position INTEGER NOT NULL, tables TEXT NOT NULL,"
    " seen_ms INTEGER NOT NULL)",
)


def _stem(table: str) -> str:
    # A table called `seq` must not get the name of the counter as its shadow's.
    return PREFIX + table + ("~" if table.rstrip("~").lower() in _RESERVED else "")


def shadow(table: str) -> str:
    """Name of the table that holds a table's changes."""
    return _stem(table)


def replaced(table: str) -> str:
    """Name of the table that holds rows a running REPLACE may be about to remove."""
    return "_df_old_" + _stem(table)[len(PREFIX) :]


def images(prefix: str, table: Table) -> list[str]:
    return [f"{prefix}{number}" for number in range(len(table.columns))]


def next_id(more: str = "1") -> str:
    return f"UPDATE {SEQUENCE} SET n = n + {more}"


def trigger_sql(table: Table) -> dict[str, str]:
    """The statements that make a table's triggers, by trigger name."""
    parts = _Parts(table)
    bodies = {
        "i": ("AFTER INSERT", "", parts.after_insert()),
        "u": ("AFTER UPDATE", "", parts.after_update()),
        "d": ("AFTER DELETE", "", parts.after_delete()),
    }
    if parts.identity is not None:
        bodies["bi"] = ("BEFORE INSERT", parts.in_the_way(insert=True), parts.note(insert=True))
        bodies["bu"] = (parts.update_of(), parts.in_the_way(insert=False), parts.note(insert=False))
    statements = {}
    for suffix, (event, when, body) in bodies.items():
        name = f"{_stem(table.name)}_{suffix}"
        condition = f" WHEN EXISTS (SELECT 1 {when})" if when else ""
        statements[name] = (
            f"CREATE TRIGGER {quote(name)} {event} ON {quote(table.name)}{condition}"
            f" BEGIN /* dfc {VERSION} */ " + "; ".join(body) + "; END"
        )
    return statements


class _Parts:
    """The statements inside the triggers of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name = quote(table.name)
        self.shadow = quote(shadow(table.name))
        self.old = quote(replaced(table.name))
        self.columns = [quote(column.name) for column in table.columns]
        numbers = {column.name: number for number, column in enumerate(table.columns)}
        # (a row's own expression, where `replaced` keeps it): what tells rows apart.
        self.identity: list[tuple[str, str]] | None = None
        if table.rowid is not None:
            self.identity = [(table.rowid, "row_id")]
        elif table.key:
            self.identity = [(quote(name), f"b{numbers[name]}") for name in table.key]

    def _image(self, row: str) -> str:
        """SELECT of a row image of NEW or OLD that outlives its columns."""
        values = ", ".join(f"(SELECT {row}.{column})" for column in self.columns)
        missing = ", ".join(f"NULL AS {column}" for column in self.columns)
        return f"{values} FROM (SELECT {missing}) AS {row}"

    def _record(self, op: str, prefix: str, row: str) -> str:
        columns = ", ".join(images(prefix, self.table))
        return (
            f"INSERT INTO {self.shadow} (change_id, op, ts_ms, {columns})"
            f" SELECT {_LAST}, '{op}', {_NOW_MS}, {self._image(row)}"
        )

    def _same(self, row: str) -> str:
        """Whether a noted row has the identity of NEW or OLD."""
        assert self.identity is not None
        return " AND ".join(f"{row}.{own} = {self.old}.{kept}" for own, kept in self.identity)

    def _removed(self, but: str = "") -> list[str]:
        """Deletes for the noted rows that are gone; `n` has already moved by their number."""
        if self.identity is None:
            return []
        columns = ", ".join(images("b", self.table))
        exists = " AND ".join(f"t.{own} = {self.old}.{kept}" for own, kept in self.identity)
        gone = (
            f"(({self._same('NEW')}) OR NOT EXISTS (SELECT 1 FROM {self.name} AS t WHERE {exists}))"
        )
        return [
            f"INSERT INTO {self.shadow} (change_id, op, ts_ms, {columns})"
            f" SELECT {_LAST} - slot, 'd', {_NOW_MS}, {columns} FROM {self.old} WHERE {but}{gone}"
        ]

    def _count(self) -> str:
        return "1" if self.identity is None else f"1 + (SELECT count(*) FROM {self.old})"

    def _forget(self) -> list[str]:
        return [] if self.identity is None else [f"DELETE FROM {self.old}"]

    def after_insert(self) -> list[str]:
        return [
            next_id(self._count()),
            *self._removed(),
            self._record("c", "a", "NEW"),
            *self._forget(),
        ]

    def after_update(self) -> list[str]:
        # Two statements: a join of two one-row queries makes SQLite four times slower.
        columns = ", ".join(images("a", self.table))
        # An upsert notes the row that it then updates: it is not gone, whatever its key is now.
        but = "" if self.identity is None else f"NOT ({self._same('OLD')}) AND "
        return [
            next_id(self._count()),
            *self._removed(but),
            self._record("u", "b", "OLD"),
            f"UPDATE {self.shadow} SET ({columns}) = (SELECT {self._image('NEW')})"
            f" WHERE change_id = {_LAST}",
            *self._forget(),
        ]

    def after_delete(self) -> list[str]:
        forget = (
            [] if self.identity is None else [f"DELETE FROM {self.old} WHERE {self._same('OLD')}"]
        )
        return [next_id(), self._record("d", "b", "OLD"), *forget]

    def update_of(self) -> str:
        generated = {column.name for column in self.table.columns if column.generated}
        keys = [self.table.key, *(key.columns for key in self.table.unique)]
        names = list(dict.fromkeys(name for key in keys for name in key))
        if not names or generated.intersection(names):
            return "BEFORE UPDATE"
        return f"BEFORE UPDATE OF {', '.join(map(quote, names))}"

    def in_the_way(self, insert: bool) -> str:
        """FROM clause of the rows that share a unique key with NEW."""
        assert self.identity is not None
        terms = []
        if self.table.rowid is not None:
            terms.append(f"{self.name}.{self.table.rowid} = NEW.{self.table.rowid}")
        for key in self.table.unique:
            terms.append(
                " AND ".join(
                    f"{self.name}.{quote(name)} = {self._new(name)} COLLATE {quote(collation)}"
                    for name, collation in zip(key.columns, key.collations, strict=True)
                )
            )
        conflict = " OR ".join(f"({term})" for term in terms)
        if insert:
            return f"FROM {self.name} WHERE {conflict}"
        itself = " AND ".join(f"{self.name}.{own} = OLD.{own}" for own, _ in self.identity)
        return f"FROM {self.name} WHERE ({conflict}) AND NOT ({itself})"

    def _new(self, name: str) -> str:
        """A value of the new row; REPLACE puts a default for a null only after BEFORE triggers."""
        column = next(column for column in self.table.columns if column.name == name)
        value = f"NEW.{quote(name)}"
        if column.not_null and column.default is not None:
            return f"coalesce({value}, ({column.default}))"
        return value

    def note(self, insert: bool) -> list[str]:
        assert self.identity is not None
        own = ", ".join(f"{self.name}.{own}" for own, _ in self.identity)
        kept = ", ".join(kept for _, kept in self.identity)
        found = " AND ".join(f"t.{own} = {self.old}.{kept}" for own, kept in self.identity)
        values = ", ".join(
            f"b{number} = (SELECT (SELECT {column} FROM {self.name} AS t WHERE {found})"
            f" FROM (SELECT NULL AS {column}))"
            for number, column in enumerate(self.columns)
        )
        return [
            f"DELETE FROM {self.old}",
            f"INSERT INTO {self.old} ({kept}) SELECT {own} {self.in_the_way(insert)}",
            f"UPDATE {self.old} SET {values}",
        ]
