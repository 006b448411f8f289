"""Ranges of a table's key in SQL: where a chunk ends, and which rows it has.

Keys are compared by the server alone, by its own types and collations. A key is kept as pairs of
column and value, each value in a form from which its literal is made again.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from .log import SourceError
from .mysql_selected import Query, Selected, quoted

Key = list[Any]


def between(table: Selected, after: Key | None, upto: Key | None) -> str:
    """The condition for rows behind `after`, up to and with `upto`; "" for all rows."""
    sides = []
    if after is not None:
        sides.append(_beyond(table, _literals(table, after), ">", ">"))
    if upto is not None:
        sides.append(_beyond(table, _literals(table, upto), "<", "<="))
    return " AND ".join(f"({side})" for side in sides)


def select(table: Selected, after: Key | None, upto: Key | None) -> str:
    """The rows of a range, in the order of the key."""
    sql = f"SELECT {table.list} FROM {table.name}{_hint(table)}"
    where = between(table, after, upto)
    if where:
        sql += f" WHERE {where}"
    return sql + (f" ORDER BY {_order(table)}" if table.key else "")


def end_of(query: Query, table: Selected, after: Key | None, size: int) -> tuple[Key | None, bool]:
    """The key that ends so many rows behind `after`, and whether there are no others."""
    if not table.key:
        return None, True  # no order in which it could be cut
    shown = ", ".join(part.shown for part in table.parts)
    where = between(table, after, None)
    start = f"SELECT {shown} FROM {table.name}{_hint(table)}"
    start += f" WHERE {where}" if where else ""
    found = query(f"{start} ORDER BY {_order(table)} LIMIT {size - 1}, 2")
    if not found:
        found = query(f"{start} ORDER BY {_order(table, ' DESC')} LIMIT 1")
        return (_key(table, found[0]) if found else None), True
    return _key(table, found[0]), len(found) < 2


def _beyond(table: Selected, literals: list[str], sign: str, last: str) -> str:
    """Rows before or behind a key of several columns, in a form that an index serves."""
    names = [quoted(part.name) for part in table.parts]
    made = f"{names[-1]} {last} {literals[-1]}"
    for name, literal in zip(names[-2::-1], literals[-2::-1], strict=True):
        made = (
            f"{name} {sign}= {literal} AND ({name} {sign} {literal} OR {name} = {literal} AND"
            f" ({made}))"
        )
    return made


def _literals(table: Selected, key: Key) -> list[str]:
    if [name for name, _ in key] != [part.name for part in table.parts]:
        raise SourceError(
            f"the key of table {table.name} has changed while its rows were copied, so the copy "
            "cannot go on: start the pipeline under a new metadata.name"
        )
    return [part.literal(value) for part, (_, value) in zip(table.parts, key, strict=True)]


def _key(table: Selected, row: tuple[Any, ...]) -> Key:
    return [[part.name, _text(value)] for part, value in zip(table.parts, row, strict=True)]


def _text(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.decode() if isinstance(value, bytes) else str(value)


def _order(table: Selected, how: str = "") -> str:
    return ", ".join(quoted(part.name) + how for part in table.parts)


def _hint(table: Selected) -> str:
    # Left alone, a server may sort a large table instead of following the key.
    return f" FORCE INDEX ({quoted(table.index)})" if table.index else ""
