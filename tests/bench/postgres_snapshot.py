"""Snapshots of PostgreSQL: rows of 200 bytes, by chunks into the stream of changes.

In one run, in turns: psql that throws away what COPY TO STDOUT gives, and the snapshot itself, log reader
and all, with the columns that a job usually carries, then with event ids too. The machine is shared by all of
them and the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dfc_runtime.sources import PostgresSource, Snapshot
from dfc_runtime.sources.postgres_copy import with_snapshot
from dfc_runtime.sources.settings import ReaderSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.services import Postgres
from tests.services.install import install
from tests.services.processes import Guard

ROWS, ROUNDS, TABLES = 200_000, 3, 2
COLUMNS = ("position", "tx_end", "op", "ts_ms", "db", "table", "primary_key", "after", "source")
_TABLE = (
    "id int PRIMARY KEY, customer int, amount numeric(12,2), name text, note text, at timestamp(3)"
)


def run() -> Iterator[tuple[str, str]]:
    install([Postgres])
    guard = Guard()
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            server = Postgres(Path(folder, "db"), durable=False, guard=guard)
            server.start()
            yield from _compare(server)
            server.stop()
    finally:
        guard.close()


def _compare(server: Postgres) -> Iterator[tuple[str, str]]:
    for n in range(TABLES):
        _psql(server, f"CREATE TABLE t{n} ({_TABLE})")
        _psql(
            server,
            f"INSERT INTO t{n} SELECT i, i % 1000, i / 7.0, 'name ' || i, repeat('x', 140),"
            f" '2024-01-02 03:04:05.678' FROM generate_series(1, {ROWS}) i",
        )
        _psql(server, f"VACUUM ANALYZE t{n}")
    ways: dict[str, Callable[[], int]] = {
        "COPY TO STDOUT": lambda: _copy(server),
        "snapshot": lambda: _snapshot(server, 1, 1),
        "snapshot with event ids": lambda: _snapshot(server, 1, 1, "event_id"),
        f"snapshot, {TABLES} tables at once": lambda: _snapshot(server, TABLES, 1),
        "snapshot, 2 chunks of a table at once": lambda: _snapshot(server, 1, 2),
    }
    _snapshot(server, 1, 1)  # compiles the kernels
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.monotonic()
            rows = way()
            rates[name].append(rows / (time.monotonic() - began))
    base = max(rates["COPY TO STDOUT"])
    for name, found in rates.items():
        shown = " ".join(f"{rate:,.0f}" for rate in found)
        yield name, f"{shown} rows/s, best {max(found) / base:.2f} x COPY"


def _psql(server: Postgres, *statements: str) -> None:
    command = [server.program("psql"), "-qX", server.dsn]
    for statement in statements:
        command += ["-c", statement]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _copy(server: Postgres) -> int:
    _psql(server, *(f"COPY t{n} TO STDOUT" for n in range(TABLES)))
    return ROWS * TABLES


def _snapshot(server: Postgres, tables: int, chunks: int, *more: str) -> int:
    copy = Snapshot(
        max_parallel_tables=tables, intra_table_parallel=chunks > 1, max_parallel_chunks=chunks
    )
    source = PostgresSource(
        dsn=server.dsn, slot="bench", publication="bench", tables=("public.t*",), snapshot=copy
    )
    settings = ReaderSettings(id="bench", columns=(*COLUMNS, *more))
    log = with_snapshot(source, copy, settings)
    count = 0
    log.open("")
    while not log.copied():
        count += sum(batch.num_rows for batch in log.read(0.5))
    log.close()
    assert count == ROWS * TABLES
    return count
