"""Rows of a real PostgreSQL as the decoder sees them: out of the log, and out of COPY."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from dfc_runtime.kernels.pgoutput import Split, Splitter, joined
from dfc_runtime.kernels.postgres_messages import Relation
from dfc_runtime.kernels.postgres_rows import Decoded, TupleDecoder
from dfc_runtime.sources.postgres_types import Types, session_options, types_query
from psycopg import sql

from .services import Postgres

WAYS = ("python", "plain", "compiled")
_numbers = itertools.count()


class Capture:
    """A schema of its own, with a slot and a publication for its tables."""

    def __init__(self, connection: psycopg.Connection[Any], name: str) -> None:
        self.connection = connection
        self.name = name

    def execute(self, statement: str, *values: object) -> list[Any]:
        """SQL in which names without a schema are those of this one, though the session has no path."""
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL search_path = {self.name}, public")  # type: ignore[arg-type]
            cursor.execute(statement, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def messages(self, protocol: int = 1) -> list[bytes]:
        """What the slot has kept so far, which it goes on to keep."""
        options = ["proto_version", str(protocol), "publication_names", self.name]
        if self.connection.info.server_version >= 140000:
            options += ["messages", "on"]
        if protocol > 1:
            options += ["streaming", "on"]
        query = "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s)"
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(query, (self.name, options))
            return [bytes(data) for (data,) in cursor]

    def split(self, way: str = "") -> Split:
        return Splitter(way).split(*joined(self.messages()))

    def types(self, oids: Sequence[int]) -> Types:
        types = Types()
        rows = self.connection.execute(types_query(types.missing(oids)))  # type: ignore[arg-type]
        types.load(text for (text,) in rows)
        return types

    def decoder(self, relation: Relation, key: Sequence[int] = (), **more: Any) -> TupleDecoder:
        types = self.types([column.type for column in relation.columns])
        return TupleDecoder(types.columns(relation), key, **more)

    def decoded(self, table: str, key: Sequence[int] = (), **more: Any) -> Decoded:
        """The changes of a table in the log, which has one version of it only."""
        split = self.split(more.get("way", ""))
        ((relation, rows),) = [group for group in split.groups() if group[0].name == table]
        return self.decoder(relation, key, **more).rows(split, rows)

    def copied(self, table: str, decoder: TupleDecoder, order: str = "id") -> Decoded:
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in decoder.columns)
        query = sql.SQL("COPY (SELECT {} FROM {} ORDER BY {}) TO STDOUT").format(
            columns, sql.Identifier(self.name, table), sql.Identifier(order)
        )
        with self.connection.cursor() as cursor, cursor.copy(query) as copy:
            data = b"".join(bytes(chunk) for chunk in copy)
        decoded, used = decoder.copied(data)
        assert used == len(data)
        return decoded


@contextmanager
def capture(server: Postgres, dsn: str = "", encoding: str = "") -> Iterator[Capture]:
    name = f"capture_{next(_numbers)}"
    with psycopg.connect(
        dsn or server.dsn, autocommit=True, options=session_options(encoding)
    ) as connection:
        connection.execute(f"CREATE SCHEMA {name}")  # type: ignore[arg-type]
        schemas = connection.info.server_version >= 150000
        what = f"TABLES IN SCHEMA {name}" if schemas else "ALL TABLES"
        connection.execute(f"CREATE PUBLICATION {name} FOR {what}")  # type: ignore[arg-type]
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        try:
            yield Capture(connection, name)
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
            connection.execute(f"DROP PUBLICATION {name}")  # type: ignore[arg-type]
            connection.execute(f"DROP SCHEMA {name} CASCADE")  # type: ignore[arg-type]
