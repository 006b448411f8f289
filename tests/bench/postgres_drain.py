"""A backlog in PostgreSQL drained to Kafka by a compiled job, counted at the consumer.

By the method of mysql_drain.py. The server's own pg_recvlogical throws away the same content of a slot
of its own before and after: what it takes is the server's decoding, which bounds everybody.
DFC_BENCH_ROWS is the length of the backlog.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench import mysql_drain as drains
from tests.running import Run
from tests.services import Kafka, Postgres
from tests.services.install import install
from tests.services.processes import Guard

ROWS = drains.ROWS
SPEC = """\
metadata: {{name: pg-drain-{way}, tenant: acme}}
spec:
  source:
    type: postgres
    config:
      {{id: pg-drain-{way}, dsn: "${{POSTGRES_DSN}}", slot: {way}, publication: drained,
        tables: [shop.orders]}}
  storage: {{path: "{way}.db"}}
  sinks:
    - type: kafka
      config:
        {{id: bus, brokers: "${{KAFKA_BROKERS}}", topic: {way}, exactly_once: {exactly}}}
  batch: {{max_events: {unit}}}
"""
VALUES = (
    "n, n % 9973, 'customer' || lpad(n::text, 7, '0') || '@example.com', n % 100000 / 100.0,"
    " CASE n % 3 WHEN 0 THEN 'open ' ELSE 'paid ' END || repeat('x', 138),"
    " '2026-01-31 08:15:00.123456'"
)


def run() -> Iterator[tuple[str, str]]:
    install([Postgres, Kafka])
    with tempfile.TemporaryDirectory(prefix="dfc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        guard = Guard()
        try:
            database = Postgres(folder / "postgres", durable=False, guard=guard)
            broker = Kafka(folder / "kafka", guard=guard, durable=False)
            database.start()
            broker.start()
            os.environ |= {"POSTGRES_DSN": database.dsn, "KAFKA_BROKERS": broker.address}
            (folder / "job").mkdir()
            yield from _measured(folder / "job", database, broker)
        finally:
            guard.close()


def _measured(folder: Path, database: Postgres, broker: Kafka) -> Iterator[tuple[str, str]]:
    connection = psycopg.connect(database.dsn, autocommit=True)
    cursor: Any = connection.cursor()
    cursor.execute("CREATE SCHEMA shop")
    cursor.execute(
        "CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id int, email varchar(64),"
        " total numeric(10,2), status varchar(200), created_at timestamp(6))"
    )
    drains.topics(broker.address, [*drains.WAYS])
    for way, exactly in drains.WAYS.items():
        text = SPEC.format(way=way, exactly=str(exactly).lower(), unit=drains.UNIT)
        (folder / f"{way}.yaml").write_text(text)
        Run(folder, f"{way}.yaml", "--once", "--master", "local[2]").end()  # slot and publication
    for slot in ("bare1", "bare2"):
        cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    step = drains.IN_A_TRANSACTION
    for start in range(1, ROWS + 1, step):
        numbers = f"generate_series({start}, {start + step - 1}) n"
        cursor.execute(f"INSERT INTO shop.orders SELECT {VALUES} FROM {numbers}")
    cursor.execute("SELECT pg_current_wal_lsn()")
    (end,) = cursor.fetchone()
    yield "backlog", f"{ROWS:,} events"
    yield "load of the machine before (uptime)", f"{os.getloadavg()[0]:.1f}"
    alone = [ROWS / _received(database, "bare1", end)]
    rates: dict[str, float] = {}
    for way in drains.WAYS:
        found = drains.drain(folder, way, ROWS, database, broker)
        rates[way] = ROWS / found.seconds
        title = f"{way}: " if way == "least" else "exactly once: "
        yield title + "events/s, first to last message", f"{rates[way]:,.0f}"
        yield title + "events/s, warm", f"{found.warm:,.0f}"
        each = ", ".join(f"{n} {s / ROWS * 1e6:.1f}" for n, s in found.cpu.items())
        yield title + "CPU s per million events", each
        yield title + "peak memory, Java and Python", f"{found.memory:.0f} MiB"
    alone.append(ROWS / _received(database, "bare2", end))
    yield "pg_recvlogical to nowhere, before and after", " and ".join(f"{r:,.0f}" for r in alone)
    yield "the job, of pg_recvlogical", f"{rates['least'] / statistics.mean(alone):.2f}"
    yield "exactly once, of at least once", f"{rates['exactly'] / rates['least']:.2f}"
    for way in drains.WAYS:
        times = drains.latency(folder, way, cursor, broker)
        cuts = statistics.quantiles(times, n=100)
        yield (
            f"{way}: commit to consumer at {drains.LIGHT:,} events/s",
            f"p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, worst {max(times):.0f} ms",
        )
    connection.close()


def _received(database: Postgres, slot: str, end: str) -> float:
    """Seconds that the server's own program takes for the slot's content."""
    began = time.perf_counter()
    command = [database.program("pg_recvlogical"), "--dbname", database.dsn, "--slot", slot]
    command += ["--start", "--endpos", str(end), "--file", os.devnull, "--no-loop"]
    command += ["-o", "proto_version=2", "-o", "publication_names=drained"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return time.perf_counter() - began


if __name__ == "__main__":
    for title, value in run():
        print(f"{title:<60} {value}", flush=True)
