"""Tables of a SQLite file: which are captured, what their columns are, what tells rows apart."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from ..patterns import selected
from .log import logger

_SYSTEM = re.compile(r"(sqlite_|_df_|_litestream|_turso).*|turso_cdc", re.IGNORECASE | re.DOTALL)
_ROWID_NAMES = ("rowid", "_rowid_", "oid")


def quote(name: str) -> str:
    """An identifier: any text is one, inside double quotes."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # as declared: SQLite stores any value in any column, so values go by their own type
    not_null: bool
    default: str | None  # SQL text
    generated: bool

    @property
    def affinity(self) -> str:
        """What SQLite makes of the declared type, by its five rules."""
        declared = self.type.upper()
        if "INT" in declared:
            return "INTEGER"
        if any(part in declared for part in ("CHAR", "CLOB", "TEXT")):
            return "TEXT"
        if not declared or "BLOB" in declared:
            return "BLOB"
        if any(part in declared for part in ("REAL", "FLOA", "DOUB")):
            return "REAL"
        return "NUMERIC"


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """Columns that no two rows share, with the collation each is compared by."""

    columns: tuple[str, ...]
    collations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]  # of the primary key, in its order
    rowid: str | None  # by which name; None for WITHOUT ROWID
    autoincrement: bool
    unique: tuple[UniqueKey, ...]
    odd_unique: tuple[str, ...]  # unique indexes over expressions or part of the rows

    def version(self) -> str:
        """Names the table's columns as they are now, the same wherever they are the same."""
        description = {
            "columns": [
                {
                    "name": column.name,
                    "data_type": column.type,
                    "nullable": not column.not_null,
                    "ordinal_position": number,
                    **({} if column.default is None else {"default_value": column.default}),
                    **({"is_generated": True} if column.generated else {}),
                }
                for number, column in enumerate(self.columns, 1)
            ],
            "primary_key": list(self.key),
        }
        compact = json.dumps(description, ensure_ascii=False, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(compact.encode()).hexdigest()


def captured(name: str, patterns: Iterable[str]) -> bool:
    """Whether a table is ours to read: it matches, and neither SQLite nor any tool owns it."""
    return _SYSTEM.fullmatch(name) is None and selected("main", name, patterns)


def table_names(connection: sqlite3.Connection) -> list[str]:
    """Plain tables only: a virtual table can have no triggers, its shadow tables are its own."""
    try:
        rows = connection.execute(
            "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
        ).fetchall()
    except sqlite3.OperationalError:  # before SQLite 3.37
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
            " AND sql NOT LIKE 'CREATE VIRTUAL%'"
        ).fetchall()
    return sorted(name for (name,) in rows if _SYSTEM.fullmatch(name) is None)


class Idle:
    """Patterns that capture nothing: likely a slip of the pen, so each is said, once."""

    SHOWN = 10

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._said: set[str] = set()

    def look(self, tables: list[str]) -> None:
        for pattern in self._patterns:
            if pattern in self._said or any(captured(name, (pattern,)) for name in tables):
                continue
            self._said.add(pattern)
            shown = ", ".join(tables[: self.SHOWN]) or "none"
            more = len(tables) - self.SHOWN
            logger.warning(
                "tables: %s captures nothing yet; tables in the database: %s%s",
                pattern,
                shown,
                f" and {more} more" if more > 0 else "",
            )


def read_table(connection: sqlite3.Connection, name: str) -> Table:
    rows = connection.execute(f"PRAGMA table_xinfo({quote(name)})").fetchall()
    columns = []
    key: dict[int, str] = {}
    for _, column, declared, not_null, default, in_key, hidden in rows:
        if hidden == 1:  # of virtual tables only
            continue
        columns.append(Column(column, declared, bool(not_null), default, hidden in (2, 3)))
        if in_key:
            key[in_key] = column
    unique, odd = _unique_keys(connection, name)
    rowid = _rowid_name(connection, name, columns)
    sql = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)
    ).fetchone()
    return Table(
        name=name,
        columns=tuple(columns),
        key=tuple(key[number] for number in sorted(key)),
        rowid=rowid,
        autoincrement=rowid is not None and _AUTOINCREMENT.search(sql[0] or "") is not None,
        unique=unique,
        odd_unique=odd,
    )


_AUTOINCREMENT = re.compile(r"\bAUTOINCREMENT\b", re.IGNORECASE)


def _rowid_name(connection: sqlite3.Connection, table: str, columns: list[Column]) -> str | None:
    taken = {column.name.lower() for column in columns}
    for name in _ROWID_NAMES:
        if name not in taken:
            try:
                connection.execute(f"SELECT {name} FROM {quote(table)} LIMIT 0")
            except sqlite3.OperationalError:
                return None
            return name
    return None  # columns hide it under all its names: as good as none


def _unique_keys(
    connection: sqlite3.Connection, table: str
) -> tuple[tuple[UniqueKey, ...], tuple[str, ...]]:
    keys: list[UniqueKey] = []
    odd: list[str] = []
    for _, index, unique, _, partial in connection.execute(
        f"PRAGMA index_list({quote(table)})"
    ).fetchall():
        if not unique:
            continue
        parts = [
            (column, collation)
            for _, _, column, _, collation, in_key in connection.execute(
                f"PRAGMA index_xinfo({quote(index)})"
            ).fetchall()
            if in_key
        ]
        if partial or any(column is None for column, _ in parts):
            odd.append(index)
        else:
            keys.append(UniqueKey(tuple(c for c, _ in parts), tuple(k for _, k in parts)))
    return tuple(sorted(set(keys), key=lambda k: k.columns)), tuple(sorted(odd))
