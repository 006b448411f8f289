"""`reselect: true`: large values that an update left alone, read from the table as it is now.

The log has not got them. What is read may be newer than the change, so the event names the columns in
`source.reselected`. A row that is gone keeps `{"_unchanged": true}`, and so does one whose table has become
another since.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from ..kernels import postgres_program as ops
from ..kernels.members import find
from ..kernels.pgoutput import Split
from ..kernels.postgres_program import Column, Node
from ..kernels.postgres_rows import Decoded, TupleDecoder
from .log import logger
from .postgres_address import Address, Connection, as_stored
from .postgres_keys import KeyColumn, primary_key, same

if TYPE_CHECKING:
    from .postgres_tables import CapturedTable

_AT_ONCE = 500
_NUMBER = Column("", Node(ops.INTEGER))  # of a row among those that were asked for


class Reselect:
    """Reads them; tells once of each table that cannot be read."""

    def __init__(self, address: Address, wide: bool) -> None:
        self._address = address
        self._wide = wide
        self._told: set[tuple[str, str]] = set()

    def filled(
        self,
        connection: Connection,
        table: CapturedTable,
        split: Split,
        messages: Any,
        decoded: Decoded,
    ) -> tuple[Decoded, list[tuple[str, ...]] | None]:
        """The rows with what could be read, and for each the columns of which that is true."""
        after = decoded.after
        if after is None or not table.key:
            return decoded, None
        lacking, keys = table.decoder.lacking(split, messages)
        rows = [int(row) for row in np.flatnonzero(lacking.any(axis=1)) if keys[row] is not None]
        if not rows:
            return decoded, None
        names = [column.name for column in table.relation.columns]
        wanted = [names[place] for place in np.flatnonzero(lacking[rows].any(axis=0))]
        now = self._read(connection, table, [keys[row] for row in rows], wanted)
        members = find(after.take(pa.array(rows)), tuple(names))
        texts = {name: members[name].text.to_pylist() for name in names}
        made, told = after.to_pylist(), [()] * len(after)  # type: list[Any], list[tuple[str, ...]]
        for place, row in enumerate(rows):
            current = now.get(place)
            if current is None:
                continue
            parts, taken = [], []
            for column, name in enumerate(names):
                text = texts[name][place]
                if lacking[row, column] and current.get(name) is not None:
                    text = current[name]
                    taken.append(name)
                if text is not None:
                    parts.append(f"{json.dumps(name, ensure_ascii=False)}:{text}")
            made[row], told[row] = "{" + ",".join(parts) + "}", tuple(taken)
        return dataclasses.replace(decoded, after=pa.array(made, pa.string())), told

    def _read(
        self, connection: Connection, table: CapturedTable, keys: list[Any], wanted: list[str]
    ) -> dict[int, dict[str, str | None]]:
        """JSON texts of the wanted columns, by number of the key, made by the decoder of the log."""
        current: dict[int, dict[str, str | None]] = {}
        with self._address.guarded():
            try:
                key, wanted = _as_now(connection, table, wanted)
                if not key or not wanted:
                    self._tell(table, "its key or its columns are others now")
                    return current
                nodes = {column.name: column for column in table.decoder.columns}
                columns = [_NUMBER, *(nodes[name] for name in wanted)]
                decoder = TupleDecoder(columns, wide=self._wide, want=("after",))
                for first in range(0, len(keys), _AT_ONCE):
                    part = keys[first : first + _AT_ONCE]
                    query = _query(table, key, part, wanted, first).as_bytes(connection)
                    with (
                        as_stored(connection),
                        connection.cursor() as cursor,
                        cursor.copy(query) as copy,
                    ):
                        data = b"".join(bytes(piece) for piece in copy)
                    found, _ = decoder.copied(data)
                    members = find(found.after, ("", *wanted))
                    texts = {name: members[name].text.to_pylist() for name in ("", *wanted)}
                    for row, number in enumerate(texts[""]):
                        current[int(number)] = {name: texts[name][row] for name in wanted}
            except (psycopg.ProgrammingError, psycopg.DataError, UnicodeError) as error:
                # The table is another one by now, or not ours to read: no reason to stand still.
                diag = getattr(error, "diag", None)
                self._tell(table, str((diag and diag.message_primary) or error))
        return current

    def _tell(self, table: CapturedTable, why: str) -> None:
        place = table.relation.schema, table.relation.name
        if place not in self._told:
            self._told.add(place)
            logger.warning(
                "%s.%s: values that the log leaves out cannot be read there, and are marked as "
                "unchanged: %s",
                *place,
                why,
            )


def _as_now(
    connection: Connection, table: CapturedTable, wanted: Sequence[str]
) -> tuple[list[KeyColumn], list[str]]:
    """The key, when it is the same as in the log, and those of the columns that have their type still."""
    key = primary_key(connection, table.relation.oid)
    if {column.name for column in key} != set(table.key):
        return [], []
    types: dict[str, int] = dict(
        connection.execute(
            "SELECT a.attname, a.atttypid::pg_catalog.int8 FROM pg_catalog.pg_attribute a"
            " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped",
            (table.relation.oid,),
        ).fetchall()
    )
    told = {column.name: column.type for column in table.relation.columns}
    by_name = {column.name: column for column in key}
    ordered = [by_name[name] for name in table.key]
    return ordered, [name for name in wanted if types.get(name) == told[name]]


def _query(
    table: CapturedTable, key: list[KeyColumn], keys: list[Any], wanted: list[str], first: int
) -> sql.Composed:
    relation, comma = table.relation, sql.SQL(", ")
    values = comma.join(
        sql.SQL("({}, {})").format(
            sql.Literal(first + number),
            comma.join(column.value(text) for column, text in zip(key, texts, strict=True)),
        )
        for number, texts in enumerate(keys)
    )
    # By OID, for tables that inherit have keys of their own, and another table may have the name now.
    return sql.SQL(
        "COPY (SELECT w.n, {} FROM (VALUES {}) w(n, {}) JOIN {} t ON {}"
        " WHERE t.tableoid = {} OR (SELECT c.relispartition FROM pg_catalog.pg_class c"
        "  WHERE c.oid = t.tableoid)) TO STDOUT"
    ).format(
        comma.join(sql.Identifier("t", name) for name in wanted),
        values,
        comma.join(sql.Identifier(column.name) for column in key),
        sql.Identifier(relation.schema, relation.name),
        same(key, "t", "w"),
        sql.Literal(relation.oid),
    )
