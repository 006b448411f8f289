"""Primary keys in SQL: rows told by their keys, and compared as the key's own index compares them.

Sessions have no schema but pg_catalog in their path, so operators of extensions have to be named in full. Left to
itself the server would take another one: text's for citext, which sees capitals where the index does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

_STRATEGIES = {1: "<", 2: "<=", 3: "=", 4: ">=", 5: ">"}  # of a B-tree
_QUERY = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), o.strategy, o.name, o.schema
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL pg_catalog.unnest(i.indkey) WITH ORDINALITY k(attnum, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
LEFT JOIN LATERAL (
    SELECT am.amopstrategy AS strategy, op.oprname AS name, n.nspname AS schema
    FROM pg_catalog.pg_opclass c
    JOIN pg_catalog.pg_amop am ON am.amopfamily = c.opcfamily
        AND am.amoplefttype = c.opcintype AND am.amoprighttype = c.opcintype
    JOIN pg_catalog.pg_operator op ON op.oid = am.amopopr
    JOIN pg_catalog.pg_namespace n ON n.oid = op.oprnamespace
    WHERE c.oid = i.indclass[k.place::pg_catalog.int4 - 1]
) o ON true
WHERE i.indrelid = %s AND i.indisprimary AND k.place <= i.indnkeyatts
ORDER BY k.place"""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    name: str
    written: str  # the type in SQL
    operators: dict[str, tuple[str, str]] = field(default_factory=dict)  # schema and name, by sign

    def operator(self, sign: str) -> sql.Composable:
        schema, name = self.operators.get(sign, ("pg_catalog", sign))
        if schema == "pg_catalog":
            return sql.SQL(name)
        return sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(name))

    @property
    def plain(self) -> bool:
        return all(schema == "pg_catalog" for schema, _ in self.operators.values())

    def value(self, text: str) -> sql.Composable:
        return sql.Literal(text) + sql.SQL("::") + sql.SQL(self.written)


def primary_key(connection: psycopg.Connection[tuple[object, ...]], oid: int) -> list[KeyColumn]:
    """In the order of the key; empty for a table that has none, or is gone."""
    made: dict[str, KeyColumn] = {}
    for name, written, strategy, operator, schema in connection.execute(_QUERY, (oid,)).fetchall():
        column = made.setdefault(str(name), KeyColumn(str(name), str(written)))
        if strategy is not None:
            column.operators[_STRATEGIES[int(str(strategy))]] = str(schema), str(operator)
    return list(made.values())


def beyond(key: Sequence[KeyColumn], sign: str, values: Sequence[str]) -> sql.Composable:
    """Rows `t` whose key is >, >=, < or <= this one."""
    names = [sql.SQL("t.{}").format(sql.Identifier(column.name)) for column in key]
    literals = [column.value(value) for column, value in zip(key, values, strict=True)]
    if len(key) == 1 or all(column.plain for column in key):
        comma = sql.SQL(", ")
        return sql.SQL("({}) {} ({})").format(
            comma.join(names), key[0].operator(sign), comma.join(literals)
        )
    # Of several columns compared as one, all operators would have to be of one schema.
    made = sql.SQL("{} {} {}").format(names[-1], key[-1].operator(sign), literals[-1])
    strict, loose = sign[0], f"{sign[0]}="
    for column, name, literal in list(zip(key, names, literals, strict=True))[-2::-1]:
        made = sql.SQL("{} {} {} AND ({} {} {} OR {})").format(
            name, column.operator(loose), literal, name, column.operator(strict), literal, made
        )
    return made


def same(key: Sequence[KeyColumn], one: str, other: str) -> sql.Composable:
    """Whether rows of two names have the same key."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} {} {}").format(
            sql.Identifier(one, column.name),
            column.operator("="),
            sql.Identifier(other, column.name),
        )
        for column in key
    )
