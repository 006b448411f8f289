"""Binary logs of real servers, read without Spark; and the tables that tests make in them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
from dfc_runtime.sources import MysqlSource
from dfc_runtime.sources.mysql_log import BinlogLog
from dfc_runtime.sources.settings import ReaderSettings
from dfc_runtime.storage import Storage

from .services.base import DATABASE, HOST, PASSWORD, USER, Server

Event = dict[str, Any]
_JSON = ("before", "after", "source", "transaction", "primary_key", "ddl")


def client(server: Server, database: str = DATABASE, **more: Any) -> Any:
    return pymysql.connect(
        host=HOST,
        port=server.port,
        user=USER,
        password=PASSWORD,
        database=database,
        autocommit=True,
        **more,
    )


class Writer:
    """A connection in a database of its own, which the tests name after themselves."""

    def __init__(self, server: Server, database: str) -> None:
        self.server = server
        self.database = database
        with client(server) as made, made.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        self.connection = client(server, database)

    def __call__(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(sql, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self("BEGIN")
        yield
        self("COMMIT")


def mysql_log(
    server: Server,
    *tables: str,
    storage: Path | None = None,
    id: str = "shop",
    dsn: str | None = None,
    outbox: tuple[str, ...] = (),
    drift: str = "adapt",
    columns: str = "",
) -> BinlogLog:
    source = MysqlSource(
        id=id,
        dsn=dsn or server.dsn,  # type: ignore[attr-defined]
        tables=tables,
        outbox_tables=outbox,
        on_schema_drift=drift,
    )
    given = {"columns": columns} if columns else {}
    settings = ReaderSettings.parse({"id": id, "pipeline": "p", **given})
    if storage is not None:
        settings = ReaderSettings(
            pipeline="p", id=id, storage=Storage("sqlite", str(storage)), columns=settings.columns
        )
    return BinlogLog(source, settings)


def batches(log: BinlogLog, seconds: float = 20) -> list[pa.RecordBatch]:
    """What there is, up to the end of the server's log at this moment."""
    head, until = log.head(), time.monotonic() + seconds
    found: list[pa.RecordBatch] = []
    while log.position < head:
        assert time.monotonic() < until, f"stands at {log.position}, the log ends at {head}"
        found += log.read(0.2)
    return found


def events(log: BinlogLog, seconds: float = 20) -> list[Event]:
    return [event for batch in batches(log, seconds) for event in decoded(batch)]


def decoded(batch: pa.RecordBatch) -> list[Event]:
    rows: list[Event] = batch.to_pylist()
    for row in rows:
        for name in _JSON:
            if row.get(name) is not None:
                row[name] = json.loads(row[name])
    return rows


def wait_for(done: Callable[[], object], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)
