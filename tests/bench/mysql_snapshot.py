"""Snapshots of MariaDB: rows of 200 bytes, by chunks into the stream of changes.

In one run, in turns: PyMySQL's streaming cursor, which makes a tuple of each row; mariadb-dump to
/dev/null (package mariadb-client); the rows of one SELECT as bytes; and the snapshot itself, log
reader and all, with the columns that a job usually carries. The machine is shared by all of them and
the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
from dfc_runtime.sources import MysqlSource, Snapshot
from dfc_runtime.sources.mysql_address import parse
from dfc_runtime.sources.mysql_chunks import select
from dfc_runtime.sources.mysql_copy import with_snapshot
from dfc_runtime.sources.mysql_cursor import Connection
from dfc_runtime.sources.mysql_selected import selected
from dfc_runtime.sources.settings import ReaderSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.services import MariaDB
from tests.services.base import DATABASE, HOST, PASSWORD, USER, which
from tests.services.install import install
from tests.services.processes import Guard

ROWS, ROUNDS, TABLES = 200_000, 3, 2
COLUMNS = ("position", "tx_end", "op", "ts_ms", "db", "table", "primary_key", "after", "source")
_TABLE = """
    id INT PRIMARY KEY, customer INT, amount DECIMAL(12, 2), name VARCHAR(60), note VARCHAR(200),
    at DATETIME(3)
"""


def run() -> Iterator[tuple[str, str]]:
    install([MariaDB])
    guard = Guard()
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            config = {"innodb-buffer-pool-size": "512M"}
            server = MariaDB(Path(folder, "db"), durable=False, guard=guard, config=config)
            server.start()
            yield from _compare(server)
    finally:
        guard.close()


def _compare(server: MariaDB) -> Iterator[tuple[str, str]]:
    for n in range(TABLES):
        server.query(f"CREATE TABLE t{n} ({_TABLE})")
        server.query(
            f"INSERT INTO t{n} SELECT seq, seq % 1000, seq / 7, CONCAT('name ', seq),"
            f" REPEAT('x', 140), '2024-01-02 03:04:05.678' FROM seq_1_to_{ROWS}"
        )
        server.query(f"ANALYZE TABLE t{n}")
    ways: dict[str, Callable[[], int]] = {
        "PyMySQL SSCursor": lambda: _cursor(server),
        "mariadb-dump": lambda: _dump(server),
        "one SELECT as bytes": lambda: _images(server),
        "snapshot": lambda: _snapshot(server, 1, 1),
        f"snapshot, {TABLES} tables at once": lambda: _snapshot(server, TABLES, 1),
        "snapshot, 2 chunks of a table at once": lambda: _snapshot(server, 1, 2),
    }
    if which("mariadb-dump") is None:
        del ways["mariadb-dump"]
        yield "mariadb-dump", "not installed"
    _snapshot(server, 1, 1)  # compiles the kernels
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.monotonic()
            rows = way()
            rates[name].append(rows / (time.monotonic() - began))
    base = max(rates["PyMySQL SSCursor"])
    for name, found in rates.items():
        shown = " ".join(f"{rate:,.0f}" for rate in found)
        yield name, f"{shown} rows/s, best {max(found) / base:.1f} x the cursor"


def _cursor(server: MariaDB) -> int:
    connection = pymysql.connect(
        host=HOST, port=server.port, user=USER, password=PASSWORD, database=DATABASE
    )
    count = 0
    with connection, connection.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(f"SELECT * FROM t0 LIMIT {ROWS // 4}")
        for _ in cursor:
            count += 1
    return count


def _dump(server: MariaDB) -> int:
    command = [str(which("mariadb-dump")), "--no-defaults", f"--host={HOST}", f"--user={USER}"]
    command += [f"--port={server.port}", "--quick", "--single-transaction", "--skip-lock-tables"]
    environment = {**os.environ, "MYSQL_PWD": PASSWORD}
    tables = [f"t{n}" for n in range(TABLES)]
    subprocess.run(
        [*command, DATABASE, *tables], env=environment, stdout=subprocess.DEVNULL, check=True
    )
    return ROWS * TABLES


def _images(server: MariaDB) -> int:
    connection = Connection(parse(server.dsn))
    table = selected(connection.query, True, DATABASE, "t0")
    found = connection.images(select(table, None, None), table.operations, 1)
    count = sum(images.rows for images in found)
    connection.close()
    return count


def _snapshot(server: MariaDB, tables: int, chunks: int) -> int:
    copy = Snapshot(
        max_parallel_tables=tables, intra_table_parallel=chunks > 1, max_parallel_chunks=chunks
    )
    source = MysqlSource(dsn=server.dsn, tables=(f"{DATABASE}.t%",), snapshot=copy)
    log = with_snapshot(source, copy, ReaderSettings(pipeline="p", id="bench", columns=COLUMNS))
    count = 0
    log.open("")
    while not log.copied():
        count += sum(batch.num_rows for batch in log.read(0.5))
    log.close()
    assert count == ROWS * TABLES
    return count
