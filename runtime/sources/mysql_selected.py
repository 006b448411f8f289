"""A table as a SELECT reads it: its columns, its key, and what the values of the key look like in SQL.

Columns are asked for as they are stored, so that a row that is read becomes what the log makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..kernels import mysql_images as images
from . import mysql_columns as types
from .log import SourceError
from .mysql_columns import Column

Query = Callable[..., list[tuple[Any, ...]]]

_COLUMNS = (
    "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME,"
    " DATETIME_PRECISION, NUMERIC_PRECISION FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
# MariaDB keeps JSON as text with a check that it is.
_CHECKS = (
    "SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS"
    " WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s"
)
_INTEGERS = {
    "tinyint": (types.TINY, 1),
    "smallint": (types.SHORT, 2),
    "mediumint": (types.LONG, 4),  # three bytes in the log, four here
    "int": (types.LONG, 4),
    "bigint": (types.LONGLONG, 8),
}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BINARIES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_SHAPES = (
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
    *("multipolygon", "geometrycollection", "geomcollection"),
)
_MOMENTS = {
    "time": (types.TIME2, images.TIME, 3),
    "datetime": (types.DATETIME2, images.DATETIME, 5),
    "timestamp": (types.TIMESTAMP2, images.TIMESTAMP, 4),
}

NUMBER, REAL, TEXT, BYTES, PLAIN = "number", "real", "text", "bytes", "plain"
_FORMS = {
    NUMBER: re.compile(r"-?[0-9]+(\.[0-9]+)?"),
    REAL: re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?"),
    TEXT: re.compile(r"([0-9A-F]{2})*"),
    BYTES: re.compile(r"([0-9A-F]{2})*"),
    PLAIN: re.compile(r"[0-9A-Fa-f:. +-]*"),  # dates, times, UUIDs and addresses
}


@dataclass(frozen=True, slots=True)
class Field:
    """A column as it is asked for, and what becomes of its values."""

    name: str
    sql: str  # what stands in the SELECT
    column: Column  # of the row that is made of it
    operation: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """A column of the key."""

    name: str
    kind: str
    charset: str

    @property
    def shown(self) -> str:
        """Its value in a form that `literal` takes back without loss."""
        name = quoted(self.name)
        match self.kind:
            case "number":
                return f"{name} + 0"
            case "real":
                return f"CAST({name} + 0e0 AS CHAR)"
            case "text" | "bytes":
                return f"HEX({name})"
        return f"CAST({name} AS CHAR)"

    def literal(self, value: str) -> str:
        if _FORMS[self.kind].fullmatch(value) is None:
            raise SourceError(f"a snapshot's notes have a key that is no {self.kind}: {value!r}")
        match self.kind:
            case "number":
                return value
            case "real":
                return value if "e" in value else f"{value}e0"
            case "text":
                return f"_{self.charset} x'{value}'"
            case "bytes":
                return f"x'{value}'"
        return f"'{value}'"


@dataclass(frozen=True, slots=True)
class Selected:
    """What of a table a SELECT is to bring; two that are equal bring the same."""

    db: str
    table: str
    fields: tuple[Field, ...]
    key: tuple[int, ...]  # of the fields, in the key's order
    index: str  # the key's name, "" for none
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        return quoted_name(self.db, self.table)

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(field.column for field in self.fields)

    @property
    def operations(self) -> Any:
        made = np.array([field.operation for field in self.fields], np.int64)
        return made.reshape(len(self.fields), images.WIDTH)

    @property
    def list(self) -> str:
        return ", ".join(field.sql for field in self.fields)


def selected(query: Query, mariadb: bool, db: str, table: str) -> Selected:
    """The table as it is now."""
    rows = query(_COLUMNS, db, table)
    documents = _documents(query, db, table) if mariadb else set()
    fields = tuple(_field(table, row, documents) for row in rows)
    index, names = key_of(query(f"SHOW KEYS FROM {quoted_name(db, table)} WHERE Non_unique = 0"))
    order = [field.name for field in fields]
    key = tuple(order.index(name) for name in names)
    described = {str(row[0]): row for row in rows}
    parts = tuple(_part(described[name]) for name in names)
    return Selected(db, table, fields, key, index, parts)


def _documents(query: Query, db: str, table: str) -> set[str]:
    found = set()
    for (clause,) in query(_CHECKS, db, table):
        match = re.fullmatch(r"json_valid\(`((?:[^`]|``)*)`\)", _str(clause).strip(), re.I)
        if match:
            found.add(match[1].replace("``", "`"))
    return found


def key_of(rows: Sequence[Sequence[Any]]) -> tuple[str, list[str]]:
    """The primary key, or the unique key that the server takes for one: the first without nulls."""
    keys: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        keys.setdefault(_str(row[2]), []).append(row)
    for index, parts in keys.items():
        # Column 4 is the name, 7 the length of a prefix, 9 whether there are nulls, 10 the kind.
        whole = all(
            row[4] is not None and row[7] is None and _str(row[9]) != "YES" and row[10] == "BTREE"
            for row in parts
        )
        if index == "PRIMARY" or whole:
            return index, [_str(row[4]) for row in parts]
    return "", []


def _field(table: str, row: Sequence[Any], documents: set[str]) -> Field:
    name, kind, full = _str(row[0]), _str(row[1]).lower(), _str(row[2]).lower()
    charset = None if row[3] is None else _charset(row[3])
    sql = quoted(name)

    def sized(code: int, charset: str | None, meta: int = 4) -> Field:
        return Field(name, sql, Column(name, code, meta, charset=charset), (images.SIZED, 0, 0))

    def fixed(code: int, size: int, unsigned: bool = False, meta: int = 0) -> Field:
        column = Column(name, code, meta, unsigned)
        return Field(name, sql, column, (images.FIXED, size, 0))

    if kind in _INTEGERS:
        return fixed(*_INTEGERS[kind], "unsigned" in full)
    if kind == "year":
        return fixed(types.SHORT, 2, True)
    if kind in ("float", "double"):
        size = 4 if kind == "float" else 8
        return fixed(types.FLOAT if size == 4 else types.DOUBLE, size, meta=size)
    if kind == "decimal":
        made = sized(types.LONG_BLOB, "latin1")
        return replace(made, sql=f"{sql} + 0") if "zerofill" in full else made
    if kind == "bit":
        bits = int(row[5])
        column = Column(name, types.BIT, bits)
        return Field(name, sql, column, (images.BITS, (bits + 7) // 8, 0))
    if kind == "date":
        return Field(name, sql, Column(name, types.DATE, 0), (images.DATE, 3, 0))
    if kind in _MOMENTS:
        code, operation, size = _MOMENTS[kind]
        digits = int(row[4] or 0)
        part = (digits + 1) // 2
        return Field(name, sql, Column(name, code, digits), (operation, size + part, part))
    if kind == "json" or (name in documents and kind in ("longtext", "text")):
        return sized(types.JSON, charset or "utf8mb4")
    if kind in _TEXTS:
        return sized(types.LONG_BLOB, charset or "binary")
    if kind in _BINARIES:
        return sized(types.LONG_BLOB, "binary")
    if kind in ("uuid", "inet4", "inet6"):
        return sized(types.LONG_BLOB, "latin1")
    if kind in _SHAPES:
        return sized(types.GEOMETRY, None)
    if kind == "vector":
        return sized(types.VECTOR, None)
    raise SourceError(
        f"column `{name}` of table `{table}` is of type {kind}, which a snapshot cannot read: leave "
        "the table out of `tables`, or set `snapshot.mode: never`"
    )


def _part(row: Sequence[Any]) -> Part:
    name, kind = _str(row[0]), _str(row[1]).lower()
    charset = "binary" if row[3] is None else _charset(row[3])
    if kind in _INTEGERS or kind in ("decimal", "bit", "year", "enum", "set"):
        return Part(name, NUMBER, "")
    if kind in ("float", "double"):
        return Part(name, REAL, "")
    if kind in _BINARIES or (kind in _TEXTS and charset == "binary"):
        return Part(name, BYTES, "")
    if kind in _TEXTS:
        return Part(name, TEXT, charset)
    return Part(name, PLAIN, "")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def quoted_name(db: str, table: str) -> str:
    return f"{quoted(db)}.{quoted(table)}"


def unquoted_name(name: str) -> tuple[str, str]:
    found = re.fullmatch(r"`((?:[^`]|``)+)`\.`((?:[^`]|``)+)`", name)
    if found is None:
        raise SourceError(f"a snapshot's notes have a table of an unusual name: {name!r}")
    return found[1].replace("``", "`"), found[2].replace("``", "`")


def _charset(name: Any) -> str:
    return "utf8mb3" if _str(name) == "utf8" else _str(name)


def _str(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
