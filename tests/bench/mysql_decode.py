"""Rows of a real binary log to Arrow, by this decoder and by python-mysql-replication's.

The log is read once, into memory; what is measured is decoding alone, by processor time of one
core, so that other programs on the machine do not count. The library decodes a part of the same
bytes, each row to a Python dict as it gives them to its users.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from dfc_runtime.kernels.mysql_rowloop import KERNEL, decode_rows
from dfc_runtime.kernels.mysql_rows import RowDecoder
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.mysql_log import Client, RowEvents, groups
from tests.services import MariaDB
from tests.services.install import install
from tests.services.processes import Guard

ROWS, PLAIN, LIBRARY = 200_000, 2_000, 6_000
ROUNDS = 5
Log = tuple[RowEvents, tuple[str, int]]  # row events, and where they begin
COLUMNS = (
    "id bigint PRIMARY KEY, customer_id int, email varchar(64), total decimal(10,2),"
    " status varchar(200), created_at datetime(6)"
)


def run() -> Iterator[tuple[str, str]]:
    install([MariaDB])
    with tempfile.TemporaryDirectory(prefix="dfc-bench-") as folder:
        Path(folder).chmod(0o755)
        guard = Guard()
        server = MariaDB(Path(folder) / "mariadb", durable=False, guard=guard)
        try:
            server.start()
            yield from _measured(server)
            server.stop()
        finally:
            guard.close()


def _measured(server: MariaDB) -> Iterator[tuple[str, str]]:
    logs = {"inserts of 200 bytes": _inserts(server), "60/30/10 mix": _mix(server)}
    began = time.process_time()
    compiled = KERNEL.compiled()
    assert compiled is not None
    _decode(logs["60/30/10 mix"][0], compiled, 1)
    yield "compiling, or loading what was compiled", f"{time.process_time() - began:.1f} s"
    for name, (group, since) in logs.items():
        size = sum(map(len, group.bodies))
        arrays, decoder = group.arrays(), RowDecoder(group.map.columns, group.map.key)
        rows, rate = _best(lambda a=arrays, d=decoder: len(d.rows(*a, by=compiled).event))
        yield f"{name}: rows", f"{rows:,}, {size / rows:.0f} bytes each in the log"
        yield f"{name}: kernel", f"{rate:,.0f} rows/s, {rate * size / rows / 1e6:,.0f} MB/s"
        some = _part(group, PLAIN)
        _, plain = _best(lambda some=some: _decode(some, decode_rows), 1)
        yield f"{name}: the kernel as plain Python", f"{plain:,.0f} rows/s"
        _, theirs = _best(lambda since=since: _library(server, since, LIBRARY), 2)
        yield f"{name}: python-mysql-replication", f"{theirs:,.0f} rows/s"
        yield f"{name}: kernel against it", f"{rate / theirs:.0f} x"


def _best(decode: Callable[[], int], rounds: int = ROUNDS) -> tuple[int, float]:
    best, rows = 1e9, 0
    for _ in range(rounds):
        began = time.process_time()
        rows = decode()
        best = min(best, time.process_time() - began)
    return rows, rows / best


def _decode(group: RowEvents, kernel: Callable[..., Any], most: int | None = None) -> int:
    data, starts, stops, kinds = group.arrays()
    decoder = RowDecoder(group.map.columns, group.map.key)
    made = decoder.rows(data, starts[:most], stops[:most], kinds[:most], by=kernel)
    return len(made.event)


def _part(group: RowEvents, rows: int) -> RowEvents:
    """So many rows, more or less: whole events, spread over all of them."""
    decoder = RowDecoder(group.map.columns, group.map.key)
    data, starts, stops, kinds = group.arrays()
    counts = np.bincount(decoder.rows(data, starts, stops, kinds, by=KERNEL.compiled()).event)
    step = max(1, int(counts.sum()) // rows)
    chosen = range(0, len(group.kinds), step)
    return RowEvents(
        group.map,
        [group.kinds[i] for i in chosen],
        [group.bodies[i] for i in chosen],
    )


def _library(server: MariaDB, since: tuple[str, int], most: int) -> int:
    """The library over the same log, a dict for each row; reading the log is little of it."""
    stream = BinLogStreamReader(
        connection_settings={
            "host": "127.0.0.1",
            "port": server.port,
            "user": "dfc",
            "passwd": "dfc",
        },
        server_id=4712,
        log_file=since[0],
        log_pos=since[1],
        resume_stream=True,
        only_events=[DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent],
    )
    rows = 0
    for event in stream:
        rows += len(event.rows)
        if rows >= most:
            break
    stream.close()
    return rows


def _rows(first: int, count: int) -> str:
    return ",".join(
        f"({n},{n % 9973},'customer{n:07d}@example.com',{n % 100000}.{n % 100:02d},"
        f"'{'paid' if n % 3 else 'open'} {'x' * 138}','2026-01-31 08:15:00.{n % 1000000:06d}')"
        for n in range(first, first + count)
    )


def _table(client: Client, name: str) -> None:
    client.query(f"CREATE TABLE {name} ({COLUMNS})")


def _inserts(server: MariaDB) -> Log:
    client = Client(server)
    _table(client, "orders")
    since = client.head()
    for first in range(0, ROWS, 2000):
        client.query(f"INSERT INTO orders VALUES {_rows(first, 2000)}")
    client.close()
    (group,) = groups(server, since, "orders")
    return group, since


def _mix(server: MariaDB) -> Log:
    """60 % inserts, 30 % updates and 10 % deletes, ten rows to a statement."""
    client = Client(server)
    _table(client, "mixed")
    client.query(f"INSERT INTO mixed VALUES {_rows(0, 2000)}")
    since = client.head()
    client.query("BEGIN")
    made = 2000
    for n in range(ROWS // 100):
        for _ in range(6):
            client.query(f"INSERT INTO mixed VALUES {_rows(made, 10)}")
            made += 10
        at = n * 40
        client.query(f"UPDATE mixed SET total = total + 1 WHERE id >= {at + 10} AND id < {at + 40}")
        client.query(f"DELETE FROM mixed WHERE id >= {at} AND id < {at + 10}")
    client.query("COMMIT")
    client.close()
    (group,) = groups(server, since, "mixed")
    return group, since
