"""Columns as the numbers and tables that the kernels for rows follow.

A column is an operation with a few numbers: how its value lies in the bytes, and how it is told.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DfcError
from ..sources import mysql_columns as types
from ..sources.mysql_columns import Column
from . import mysql_charsets
from .mysql_values import FIXED, decimal_size

# Operations. Those from OP_SIZED on have a size in front of the value.
(
    OP_SIGNED,
    OP_UNSIGNED,
    OP_DECIMAL,
    OP_FLOAT,
    OP_DOUBLE,
    OP_BIT,
    OP_YEAR,
    OP_DATE,
    OP_TIME,
    OP_OLD_TIME,
    OP_HIRES_TIME,
    OP_DATETIME,
    OP_OLD_DATETIME,
    OP_HIRES_DATETIME,
    OP_TIMESTAMP,
    OP_OLD_TIMESTAMP,
    OP_HIRES_TIMESTAMP,
    OP_ENUM,
    OP_SET,
    OP_SIZED,
    OP_TEXT,
    OP_BYTES,
    OP_JSON,
    OP_JSON_TEXT,
    OP_VECTOR,
    OP_COMPRESSED,
    OP_UUID,
    OP_INET6,
    OP_INET4,
) = range(29)

# A column is a row of numbers: operation, bytes (of the value, or of the size before it), two
# numbers of the operation, where its name begins and ends, its place in the key, room.
C_OP, C_SIZE, C_A, C_B, C_NAME, C_NAME_END, C_KEY, C_ROOM = range(8)

_WIDTHS = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}


class Layout:
    """Columns as the numbers and tables that the kernels follow."""

    def __init__(self, columns: Sequence[Column], key: Sequence[int], wide: str) -> None:
        self.columns = tuple(columns)
        self.key = tuple(key)
        self.wide = wide == "string"
        self._labels: list[bytes] = []
        self._tables: list[Any] = []
        self._bases: dict[str, int] = {}
        names = b""
        self.numbers = np.zeros((len(columns), 8), np.int64)
        for index, column in enumerate(columns):
            numbers = self.numbers[index]
            before = len(self._labels)
            op, size, *more = self._operation(column)
            numbers[[C_OP, C_SIZE]] = op, size
            numbers[C_A : C_A + len(more)] = more
            name = b"" if column.hidden else f"{_json(column.name)}:".encode()
            numbers[[C_NAME, C_NAME_END]] = len(names), len(names) + len(name)
            numbers[C_KEY] = self.key.index(index) if index in self.key else -1
            labels = self._labels[before:]
            sizes = [len(label) + 1 for label in labels]
            most = sum(sizes) if column.type == types.SET else max(sizes, default=0)
            numbers[C_ROOM] = len(name) + FIXED + most
            names += name
        self.names = _bytes(names)
        self.labels = _bytes(b"".join(self._labels))
        self.label_ends = np.cumsum([0] + [len(label) for label in self._labels]).astype(np.int64)
        self.tables = np.concatenate([*self._tables, np.zeros(1, np.int32)])
        self.json = np.array([c.type == types.JSON for c in columns], np.uint8)
        for array in (self.numbers, self.label_ends, self.tables, self.json):
            array.flags.writeable = False

    def _operation(self, c: Column) -> tuple[int, ...]:
        """Operation, bytes, and what else it needs; see mysql_columns for `meta`."""
        match c.type:
            case types.TINY | types.SHORT | types.INT24 | types.LONG | types.LONGLONG:
                return (OP_UNSIGNED if c.unsigned else OP_SIGNED), _WIDTHS[c.type]
            case types.NEWDECIMAL:
                precision, scale = c.meta >> 8, c.meta & 255
                whole = precision - scale
                if not (0 <= whole <= 65 and scale <= 38 and precision > 0):
                    raise self._unreadable(c, f"DECIMAL({precision},{scale})")
                return OP_DECIMAL, decimal_size(whole, scale), whole, scale
            case types.FLOAT:
                return OP_FLOAT, 4
            case types.DOUBLE:
                return OP_DOUBLE, 8
            case types.BIT:
                if not 1 <= c.meta <= 64:
                    raise self._unreadable(c, f"BIT({c.meta})")
                return OP_BIT, (c.meta + 7) // 8, int(c.meta == 1)
            case types.YEAR:
                return OP_YEAR, 1
            case types.DATE | types.NEWDATE:
                return OP_DATE, 3
            case types.TIME2 | types.DATETIME2 | types.TIMESTAMP2 | types.TIME | types.DATETIME:
                return self._temporal(c)
            case types.TIMESTAMP:
                return self._temporal(c)
            case types.ENUM | types.SET:
                return self._labelled(c)
            case types.VARCHAR | types.STRING:
                return self._text(c, 1 if c.meta < 256 else 2)
            case types.TINY_BLOB | types.BLOB | types.MEDIUM_BLOB | types.LONG_BLOB:
                return self._text(c, self._length(c))
            case types.GEOMETRY:
                return OP_BYTES, self._length(c), 0
            case types.JSON:
                return (OP_JSON if c.charset is None else OP_JSON_TEXT), self._length(c)
            case types.VECTOR:
                return OP_VECTOR, self._length(c)
            case types.MARIADB_VECTOR:
                return OP_VECTOR, 1 if c.meta < 256 else 2
            case types.BLOB_COMPRESSED:
                return OP_COMPRESSED, self._length(c)
            case types.VARCHAR_COMPRESSED:
                return OP_COMPRESSED, 1 if c.meta < 256 else 2
            case types.UUID:
                return OP_UUID, 1, 16
            case types.INET6:
                return OP_INET6, 1, 16
            case types.INET4:
                return OP_INET4, 1, 4
        raise self._unreadable(c, f"type {c.type}")

    def _temporal(self, c: Column) -> tuple[int, ...]:
        if not 0 <= c.meta <= 6:
            raise self._unreadable(c, f"{c.meta} digits of a second")
        part = (c.meta + 1) // 2
        match c.type:
            case types.TIME2:
                return OP_TIME, 3 + part, c.meta, part
            case types.DATETIME2:
                return OP_DATETIME, 5 + part, c.meta, part
            case types.TIMESTAMP2:
                return OP_TIMESTAMP, 4 + part, c.meta, part
            case types.TIMESTAMP if c.meta:
                return OP_HIRES_TIMESTAMP, 4 + part, c.meta
            case types.TIMESTAMP:
                return OP_OLD_TIMESTAMP, 4
            case types.TIME if c.meta:
                return OP_HIRES_TIME, (3, 4, 4, 5, 5, 5, 6)[c.meta], c.meta
            case types.TIME:
                return OP_OLD_TIME, 3
            case _ if c.meta:
                return OP_HIRES_DATETIME, (5, 6, 6, 7, 7, 7, 8)[c.meta], c.meta
        return OP_OLD_DATETIME, 8

    def _labelled(self, c: Column) -> tuple[int, ...]:
        if not c.labels:
            raise self._unreadable(c, "labels that nobody has told")
        first = len(self._labels)
        if c.type == types.ENUM:
            if c.meta not in (1, 2):
                raise self._unreadable(c, f"an ENUM of {c.meta} bytes")
            self._labels += [_json(label).encode() for label in ("", *c.labels)]
            return OP_ENUM, c.meta, first, len(c.labels)
        if not 1 <= c.meta <= 8:
            raise self._unreadable(c, f"a SET of {c.meta} bytes")
        self._labels += [_json(label)[1:-1].encode() for label in c.labels]
        return OP_SET, c.meta, first, len(c.labels)

    def _text(self, c: Column, size: int) -> tuple[int, ...]:
        if c.charset is None:
            raise self._unreadable(c, "a charset that nobody has told")
        if c.charset == "binary":
            return OP_BYTES, size, c.meta if c.type == types.STRING else 0
        try:
            reading = mysql_charsets.reading(c.charset)
        except KeyError:
            raise self._unreadable(c, f"the charset {c.charset}") from None
        if reading != mysql_charsets.TABLE:
            return OP_TEXT, size, reading
        if c.charset not in self._bases:
            self._bases[c.charset] = sum(map(len, self._tables))
            self._tables.append(mysql_charsets.table(c.charset))
        return OP_TEXT, size, reading, self._bases[c.charset]

    def _length(self, c: Column) -> int:
        if not 1 <= c.meta <= 4:
            raise self._unreadable(c, f"{c.meta} bytes of length")
        return c.meta

    def _unreadable(self, c: Column, what: str) -> DfcError:
        return types.ColumnError(f"column `{c.name}` has {what}: it cannot be read")


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _bytes(data: bytes) -> Any:
    return np.frombuffer(data or b"\0", np.uint8)
