"""Types of PostgreSQL by OID, from the catalog, and what becomes of their values.

docs/postgres-types.md has the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..kernels import postgres_program as ops
from ..kernels.postgres_messages import Relation
from ..kernels.postgres_program import Column, Node

# Settings of every session whose texts become JSON, so that a value has one text only. Output functions
# obey them also where the server decodes its log, in a walsender as in pg_logical_slot_peek_changes:
# all of these are honoured there. They beat what ALTER ROLE and ALTER DATABASE say.
SESSION = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    # Not lc_monetary: it tells how many digits of an amount are its fraction, so only the database's
    # own setting shows the amounts that were meant.
    # Names of tables, types and functions (regclass...) are printed with their schema when that is
    # not in the path. Every session that has this must qualify the names in its own SQL.
    "search_path": "pg_catalog",
    "quote_all_identifiers": "off",
}


def session_options(server_encoding: str = "") -> str:
    """The same as libpq's connection parameter `options`.

    A database of the encoding SQL_ASCII holds any bytes; asked for UTF-8 its server would refuse those
    that are none, and decoding would stand still. Tell the encoding, which every connection reports as
    its parameter `server_encoding`, and they come as they are.
    """
    settings = dict(SESSION)
    if server_encoding.upper() == "SQL_ASCII":
        settings["client_encoding"] = "SQL_ASCII"
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


@dataclass(frozen=True, slots=True)
class Base:
    oid: int
    name: str
    schema: str
    input: str  # the function that reads it, which tells types of extensions


@dataclass(frozen=True, slots=True)
class Array:
    oid: int
    name: str
    schema: str
    element: int
    delimiter: str


@dataclass(frozen=True, slots=True)
class Domain:
    oid: int
    name: str
    schema: str
    base: int
    modifier: int


@dataclass(frozen=True, slots=True)
class Enum:
    oid: int
    name: str
    schema: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Composite:
    oid: int
    name: str
    schema: str
    attributes: tuple[tuple[str, int, int], ...]  # name, type, modifier


@dataclass(frozen=True, slots=True)
class Range:
    """A range, or what holds several of one kind."""

    oid: int
    name: str
    schema: str
    element: int  # 0 for a multirange, whose element the catalog of older servers does not tell


Type = Base | Array | Domain | Enum | Composite | Range

_BUILT_IN = {
    16: ops.BOOL,
    17: ops.BYTES,
    20: ops.INTEGER,  # bigint
    21: ops.INTEGER,  # smallint
    23: ops.INTEGER,  # integer
    26: ops.INTEGER,  # oid
    28: ops.INTEGER,  # xid
    29: ops.INTEGER,  # cid
    114: ops.JSON,
    700: ops.FLOAT,
    701: ops.FLOAT,
    1082: ops.DATE,
    1083: ops.TIME,
    1114: ops.TIMESTAMP,
    1184: ops.TIMESTAMPTZ,
    1266: ops.TIMETZ,
    3802: ops.JSON,  # jsonb
    5069: ops.INTEGER,  # xid8
}
# As the catalog names them: these are told from others without asking it.
_NAMES = {
    16: "bool",
    17: "bytea",
    20: "int8",
    21: "int2",
    23: "int4",
    26: "oid",
    28: "xid",
    29: "cid",
    114: "json",
    700: "float4",
    701: "float8",
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamptz",
    1266: "timetz",
    3802: "jsonb",
    5069: "xid8",
}
_TIMES = {ops.TIME, ops.TIMETZ, ops.TIMESTAMP, ops.TIMESTAMPTZ}  # their modifier is a precision
_EXTENSIONS = {"hstore_in": ops.HSTORE}


def types_query(oids: Iterable[int]) -> str:
    """SQL for a row of JSON text for each of these types, and for each that they are made of.

    It needs no parameters, so a replication connection takes it too.
    """
    wanted = ", ".join(str(int(oid)) for oid in sorted(set(oids))) or "0"
    return f"""
WITH RECURSIVE wanted(oid) AS (
    SELECT t.oid FROM pg_catalog.pg_type t WHERE t.oid IN ({wanted})
    UNION
    SELECT part.oid
    FROM wanted
    JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
    CROSS JOIN LATERAL (
        SELECT t.typelem AS oid WHERE t.typelem <> 0
        UNION ALL
        SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) part
)
SELECT pg_catalog.json_build_object(
    'oid', t.oid::pg_catalog.int8,
    'name', t.typname,
    'schema', n.nspname,
    'kind', t.typtype,
    'input', p.proname,
    'element', t.typelem::pg_catalog.int8,
    'delimiter', e.typdelim,
    'base', t.typbasetype::pg_catalog.int8,
    'modifier', t.typtypmod,
    'labels', (
        SELECT pg_catalog.json_agg(l.enumlabel ORDER BY l.enumsortorder)
        FROM pg_catalog.pg_enum l WHERE l.enumtypid = t.oid
    ),
    'attributes', (
        SELECT pg_catalog.json_agg(
            pg_catalog.json_build_array(a.attname, a.atttypid::pg_catalog.int8, a.atttypmod)
            ORDER BY a.attnum
        )
        FROM pg_catalog.pg_attribute a
        WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ),
    'range', (
        SELECT r.rngsubtype::pg_catalog.int8 FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
    )
)::pg_catalog.text
FROM wanted
JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
JOIN pg_catalog.pg_proc p ON p.oid = t.typinput
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem
ORDER BY t.oid"""


class Types:
    """The types that were read so far, by OID."""

    def __init__(self) -> None:
        self._types: dict[int, Type] = {}

    def __getitem__(self, oid: int) -> Type:
        return self._types[oid]

    def get(self, oid: int) -> Type | None:
        return self._types.get(oid)

    def name(self, oid: int) -> str:
        """The same whether the catalog was asked or not; the number of one that nobody knows any more."""
        known = self._types.get(oid)
        if known is None:
            return _NAMES.get(oid, f"#{oid}")
        return known.name if known.schema == "pg_catalog" else f"{known.schema}.{known.name}"

    def load(self, rows: Iterable[str | bytes]) -> None:
        """Takes what `types_query` returned; types that were known are replaced.

        Bytes are what a database without an encoding returns.
        """
        for row in rows:
            text = row.decode(errors="replace") if isinstance(row, bytes) else row
            made = _type(json.loads(text))
            self._types[made.oid] = made

    def missing(self, oids: Iterable[int]) -> list[int]:
        """Those of the types that have to be read before they can be told from text."""
        return sorted({oid for oid in oids if oid not in self._types and oid not in _BUILT_IN})

    def node(self, oid: int, modifier: int = -1) -> Node:
        """What is done with values of this type; those that nobody knows any more are text.

        `modifier` is the column's, as pg_attribute.atttypmod and Relation messages have it.
        """
        known = self._types.get(oid)
        match known:
            case Array():
                element = self.node(known.element, modifier)
                return Node(ops.ARRAY, element, known.delimiter)
            case Domain():
                return self.node(known.base, known.modifier)
            case Composite():
                parts = [(name, self.node(part, own)) for name, part, own in known.attributes]
                return Node(ops.COMPOSITE, attributes=tuple(parts))
            case Base() if oid not in _BUILT_IN:
                return Node(_EXTENSIONS.get(known.input, ops.TEXT))
            case _:
                op = _BUILT_IN.get(oid, ops.TEXT)
                return Node(op, precision=max(modifier, 0) if op in _TIMES else 0)

    def columns(self, relation: Relation) -> tuple[Column, ...]:
        """The columns of a table as its rows have them."""
        return tuple(
            Column(column.name, self.node(column.type, column.modifier), column.key)
            for column in relation.columns
        )


def key_places(relation: Relation, key: Sequence[str]) -> tuple[int, ...]:
    """Where the columns of a key stand in the rows; none when the rows lack one of them."""
    names = [column.name for column in relation.columns]
    return tuple(map(names.index, key)) if set(key) <= set(names) else ()


def _type(row: dict[str, Any]) -> Type:
    oid, name, schema = row["oid"], row["name"], row["schema"]
    match row:
        case {"kind": "d", "base": base, "modifier": modifier}:
            return Domain(oid, name, schema, base, modifier)
        case {"kind": "e", "labels": labels}:
            return Enum(oid, name, schema, tuple(labels or ()))
        case {"kind": "c", "attributes": attributes}:
            return Composite(oid, name, schema, tuple((n, o, m) for n, o, m in attributes or ()))
        case {"kind": "r" | "m", "range": element}:
            return Range(oid, name, schema, element or 0)
        # int2vector and its like have elements too, but are written in a way of their own.
        case {"input": "array_in", "element": element, "delimiter": delimiter}:
            return Array(oid, name, schema, element, delimiter)
        case _:
            return Base(oid, name, schema, row["input"])
