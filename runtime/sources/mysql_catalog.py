"""What the server's catalog says about the columns of a table, as they are now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import mysql_columns as types
from .log import SourceError
from .mysql_columns import Column
from .mysql_selected import key_of, quoted_name
from .mysql_server import Server

_KEYS = "SHOW KEYS FROM {} WHERE Non_unique = 0"
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_JSON_CHECK = re.compile(r"json_valid\(`((?:[^`]|``)+)`\)", re.IGNORECASE)
_OWN_TYPES = {"uuid": (types.UUID, 16), "inet6": (types.INET6, 16), "inet4": (types.INET4, 4)}
_REFINED = (types.JSON, types.UUID, types.INET6, types.INET4, types.MARIADB_VECTOR)
_OLD_TIMES = (types.TIME, types.DATETIME, types.TIMESTAMP)


@dataclass(frozen=True, slots=True)
class Field:
    """A column as information_schema has it."""

    name: str
    data_type: str
    unsigned: bool
    charset: str | None
    labels: tuple[str, ...]
    digits: int
    visible: bool
    is_json: bool


@dataclass(frozen=True, slots=True)
class Described:
    """A table, with all its columns: the log has generated ones too."""

    columns: tuple[Field, ...]
    key: tuple[int, ...]

    @classmethod
    def parse(cls, given: dict[str, Any]) -> Described:
        """From what asdict has made of one, in JSON."""
        fields = (
            Field(**{**field, "labels": tuple(field["labels"])}) for field in given["columns"]
        )
        return cls(tuple(fields), tuple(given["key"]))

    def named(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Columns of a table map that has types alone, with all that the catalog knows."""
        made = []
        for column, field in zip(columns, self.columns, strict=True):
            charset = field.charset or "binary" if _has_bytes(column) else column.charset
            made.append(
                replace(
                    column,
                    name=field.name,
                    unsigned=field.unsigned,
                    charset=charset,
                    labels=field.labels,
                    visible=field.visible,
                )
            )
        return refined(made, self)


class Catalog:
    """Asked once for each table, until told that it may have changed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: dict[tuple[str, str], Described | None] = {}

    def table(self, db: str, table: str) -> Described | None:
        """None when there is no such table now, or the user may not see it."""
        if (db, table) not in self._known:
            self._known[db, table] = self._ask(db, table)
        return self._known[db, table]

    def forget(self, db: str, table: str | None) -> None:
        for place in [p for p in self._known if p[0] == db and table in (None, p[1])]:
            del self._known[place]

    def _ask(self, db: str, table: str) -> Described | None:
        rows = self._server.query(
            "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, DATETIME_PRECISION,"
            " EXTRA FROM information_schema.COLUMNS"
            " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
            db,
            table,
        )
        if not rows:
            return None
        documents = self._documents(db, table)
        fields = []
        for name, data_type, column_type, charset, digits, extra in rows:
            kind, full, extra = str(data_type).lower(), str(column_type), str(extra or "").upper()
            labels = _labels(full) if kind in ("enum", "set") else ()
            fields.append(
                Field(
                    name=str(name),
                    data_type=kind,
                    unsigned=" unsigned" in full.lower() or kind == "year",
                    charset=None if charset is None else _charset(str(charset)),
                    labels=labels,
                    digits=int(digits or 0),
                    visible="INVISIBLE" not in extra,
                    is_json=str(name) in documents,
                )
            )
        try:
            # As the log names it with full metadata, and as a snapshot takes it.
            _, key = key_of(self._server.query(_KEYS.format(quoted_name(db, table))))
        except SourceError as error:
            if "(1146)" in str(error):  # dropped in this moment
                return None
            raise
        names = [field.name for field in fields]
        return Described(tuple(fields), tuple(names.index(name) for name in key))

    def _documents(self, db: str, table: str) -> set[str]:
        """The columns that MariaDB was told to be JSON: text with a check."""
        if not self._server.mariadb:
            return set()
        rows = self._server.query(
            "SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS"
            " WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s",
            db,
            table,
        )
        found = (_JSON_CHECK.fullmatch(str(clause).strip()) for (clause,) in rows)
        return {match[1].replace("``", "`") for match in found if match}


def refined(columns: Sequence[Column], described: Described) -> tuple[Column, ...]:
    """With what no table map tells; columns are found by name, and only where the type agrees."""
    fields = {field.name: field for field in described.columns}
    return tuple(
        column if column.name not in fields else _refined(column, fields[column.name])
        for column in columns
    )


def _refined(column: Column, field: Field) -> Column:
    if field.is_json and column.type == types.LONG_BLOB and column.charset not in (None, "binary"):
        return replace(column, type=types.JSON)
    if field.is_json and column.type == types.BLOB and column.charset not in (None, "binary"):
        return replace(column, type=types.JSON)
    bare = column.charset in (None, "binary")
    own, size = _OWN_TYPES.get(field.data_type, (None, 0))
    if own is not None and column.type == types.STRING and column.meta == size and bare:
        return replace(column, type=own)
    if field.data_type == "vector" and column.type == types.VARCHAR and bare:
        return replace(column, type=types.MARIADB_VECTOR)
    if column.type in _OLD_TIMES and field.digits:
        return replace(column, meta=field.digits)
    return column


def is_vague(column: Column) -> bool:
    """Whether a table map of MariaDB does not tell all of it: what `refined` is for."""
    if column.type in (types.LONG_BLOB, types.BLOB):
        return column.charset not in (None, "binary")
    if column.type in (types.STRING, types.VARCHAR):
        return column.charset in (None, "binary")
    return column.type in _OLD_TIMES


def could_be(column: Column, told: Column) -> bool:
    """Whether a table map that tells `told` may be of this column, as it was refined before."""
    if column.type == told.type or column.type in _REFINED:
        meta = told.meta if told.type in _OLD_TIMES else column.meta
        return replace(column, type=told.type, meta=meta) == told
    return False


def _has_bytes(column: Column) -> bool:
    return column.type in (
        types.VARCHAR,
        types.STRING,
        types.TINY_BLOB,
        types.BLOB,
        types.MEDIUM_BLOB,
        types.LONG_BLOB,
        types.BLOB_COMPRESSED,
        types.VARCHAR_COMPRESSED,
        types.ENUM,
        types.SET,
    )


def _charset(name: str) -> str:
    return "utf8mb3" if name == "utf8" else name


def _labels(column_type: str) -> tuple[str, ...]:
    return tuple(label.replace("''", "'") for label in _LABEL.findall(column_type))
