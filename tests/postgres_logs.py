"""A PostgreSQL database of its own, and a log on it driven as the segment reader drives one."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from dfc_runtime.sources import PostgresSource
from dfc_runtime.sources.postgres_log import PostgresLog
from dfc_runtime.sources.settings import ReaderSettings

from .services import Postgres

_numbers = itertools.count()


class Shop:
    """A database whose name is also that of its slot and publication."""

    def __init__(self, server: Postgres, name: str) -> None:
        self.server = server
        self.name = name
        self.dsn = server.dsn.rsplit("/", 1)[0] + f"/{name}"
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def execute(self, *statements: str) -> list[Any]:
        """Each in a transaction of its own; the rows of the last."""
        rows: list[Any] = []
        for statement in statements:
            cursor = self.connection.execute(statement)  # type: ignore[call-overload]
            rows = cursor.fetchall() if cursor.description else []
        return rows

    def source(self, **more: Any) -> PostgresSource:
        given = {"dsn": self.dsn, "slot": self.name, "publication": self.name, **more}
        return PostgresSource(id="shop", **given)

    def log(self, settings: dict[str, str] | None = None, **more: Any) -> PostgresLog:
        return PostgresLog(
            self.source(**more), ReaderSettings.parse({"id": "shop", **(settings or {})})
        )

    @contextmanager
    def opened(
        self, start: str = "", settings: dict[str, str] | None = None, **more: Any
    ) -> Iterator[PostgresLog]:
        log = self.log(settings, **more)
        try:
            log.open(start)
            yield log
        finally:
            log.close()

    @contextmanager
    def other(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            yield connection

    def slot(self) -> dict[str, Any]:
        row = self.execute(
            f"SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = '{self.name}'"
        )
        return row[0][0] if row else {}


@contextmanager
def shop(server: Postgres, *statements: str) -> Iterator[Shop]:
    name = f"shop_{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
    made = Shop(server, name)
    try:
        made.execute(*statements)
        yield made
    finally:
        made.connection.close()
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            _drop(admin, name)


def _drop(admin: psycopg.Connection[Any], name: str) -> None:
    """With its slots, once the server has seen that their readers are gone."""
    until = time.monotonic() + 20
    while True:
        try:
            admin.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE database = %s AND active_pid IS NOT NULL",
                (name,),
            )
            admin.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = %s",
                (name,),
            )
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]
            return
        except psycopg.Error:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def drain(log: PostgresLog, seconds: float = 20) -> list[pa.RecordBatch]:
    """Everything that is committed now."""
    target = log.head()
    batches: list[pa.RecordBatch] = []
    until = time.monotonic() + seconds
    while log.position < target:
        assert time.monotonic() < until, f"stands at {log.position}, not at {target}"
        batches += log.read(0.2)
    return batches


def events(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """With JSON columns parsed."""
    made = []
    for batch in batches:
        for event in batch.to_pylist():
            for name in ("before", "after", "source", "transaction", "primary_key", "ddl"):
                if event.get(name) is not None:
                    event[name] = json.loads(event[name])
            made.append(event)
    return made


def read(log: PostgresLog) -> list[dict[str, Any]]:
    return events(drain(log))
