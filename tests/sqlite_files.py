"""SQLite files for tests, their log, and what their rows should look like in events."""

from __future__ import annotations

import base64
import json
import math
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dfc_runtime.sources import TursoSource
from dfc_runtime.sources.log import LogReader
from dfc_runtime.sources.settings import ReaderSettings
from dfc_runtime.sources.turso import open_log

Event = dict[str, Any]


def database(path: Path, *statements: str, journal: str = "wal") -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    for statement in statements:
        connection.execute(statement)
    return connection


def turso_log(
    path: Path, mode: str = "triggers", start: str | None = "", **options: str
) -> LogReader:
    """A log that looks at its file all the time; open unless `start` is None."""
    tables = tuple(json.loads(options.pop("tables", '["*"]')))
    source = TursoSource(
        id="shop", url=f"file:{path}", tables=tables, cdc_mode=mode, poll_interval_ms=1
    )
    settings = {"id": "shop", "pipeline": "p", "storage": str(path) + ".state", **options}
    log = open_log(source, ReaderSettings.parse(settings))
    if start is not None:
        log.open(start)
    return log


def drain(log: LogReader) -> list[Event]:
    """Everything that is committed now."""
    head, events = log.head(), []
    deadline = time.monotonic() + 20
    while log.position < head:
        assert time.monotonic() < deadline, "the log does not reach its head"
        events += [row for batch in log.read(0.01) for row in batch.to_pylist()]
    # A change of the schema may add changes of its own.
    events += [row for batch in log.read(0.01) for row in batch.to_pylist()]
    return events if log.head() == head else events + drain(log)


def as_json(value: object) -> object:
    """A SQLite value as events should show it."""
    if isinstance(value, bytes):
        return {"_base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def rows(connection: sqlite3.Connection, table: str) -> Counter[str]:
    """The rows of a table, each as canonical JSON in column order."""
    quoted = '"' + table.replace('"', '""') + '"'
    connection.text_factory = _text
    try:
        cursor = connection.execute(f"SELECT * FROM {quoted}")
        names = [_text(c[0]) if isinstance(c[0], bytes) else c[0] for c in cursor.description]
        return Counter(
            json.dumps({n: as_json(v) for n, v in zip(names, row, strict=True)}) for row in cursor
        )
    finally:
        connection.text_factory = str


def _text(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return as_json(value)


def rebuilt(events: list[Event], table: str, state: Counter[str] | None = None) -> Counter[str]:
    """The rows that the events of a table leave; each must find the image it starts from."""
    state = Counter() if state is None else state.copy()
    for event in events:
        if event["table"] != table:
            continue
        before, after = (
            None if event[name] is None else json.dumps(json.loads(event[name]))
            for name in ("before", "after")
        )
        assert (before is None) == (event["op"] in "cr"), event
        assert (after is None) == (event["op"] == "d"), event
        if before is not None:
            assert state[before] > 0, f"{event} starts from a row that is not there: {state}"
            state[before] -= 1
        if after is not None:
            state[after] += 1
    return +state
