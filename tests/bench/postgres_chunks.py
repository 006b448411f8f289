"""A table read in chunks as JSON columns, against psql that throws away what COPY TO STDOUT gives.

In turns, by the clock, the best of each. On a busy machine that says little, so processor time is told too:
what reading takes, and what the server's session takes for the same COPY. They work at the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from dfc_runtime.sources.postgres_chunks import ChunkedTable, enter
from dfc_runtime.sources.postgres_types import session_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.services import Postgres
from tests.services.install import install
from tests.services.processes import Guard

ROWS, ROUNDS, SIZE = 400_000, 3, 50_000
COLUMNS = "name text, amount numeric(12,2), active bool, qty int4, at timestamptz"
VALUES = (
    "'customer number ' || i, i * 1.01, i % 3 = 0, i % 1000,"
    " '2024-01-01Z'::timestamptz + i * interval '1 s'"
)


def run() -> Iterator[tuple[str, str]]:
    install([Postgres])
    guard = Guard()
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            server = Postgres(Path(folder, "server"), durable=False, guard=guard)
            server.start()
            with psycopg.connect(
                server.dsn, autocommit=True, options=session_options()
            ) as connection:
                for key in ("PRIMARY KEY", ""):
                    yield from _compare(server, connection, key)
            server.stop()
    finally:
        guard.close()


def _compare(
    server: Postgres, connection: psycopg.Connection[tuple[object, ...]], key: str
) -> Iterator[tuple[str, str]]:
    connection.execute(f"CREATE TABLE public.t (id int8 {key}, {COLUMNS})")  # type: ignore[arg-type]
    connection.execute(
        f"INSERT INTO public.t SELECT i, {VALUES} FROM generate_series(1, {ROWS}) i"  # type: ignore[arg-type]
    )
    connection.execute("VACUUM ANALYZE public.t")
    ((oid,),) = connection.execute("SELECT 'public.t'::regclass::oid::int8").fetchall()
    assert isinstance(oid, int)
    bare, ours, spent = [], [], []
    for _ in range(ROUNDS):
        command = [server.program("psql"), "-qXc", "COPY public.t TO STDOUT", server.dsn]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        bare.append(time.perf_counter() - started)
        took, *times = _read(server, oid)
        ours.append(took)
        spent.append(times)
    connection.execute("DROP TABLE public.t")
    how = "by key" if key else "by page"
    yield f"{how}: psql, COPY TO STDOUT", f"{ROWS / min(bare):>12,.0f} rows/s"
    yield f"{how}: chunks as JSON", (
        f"{ROWS / min(ours):>12,.0f} rows/s  {min(bare) / min(ours):5.2f} x psql"
    )
    reader, session = (min(times) for times in zip(*spent, strict=True))
    yield f"{how}: processor time", (
        f"{reader / ROWS * 1e6:.2f} us a row for the reader, {session / ROWS * 1e6:.2f} us for the server"
    )


def _read(server: Postgres, oid: int) -> tuple[float, float, float]:
    """Planning and reading, one chunk after the other on one connection; without the compiler's time."""
    with (
        psycopg.connect(server.dsn, autocommit=True) as holder,
        psycopg.connect(server.dsn, autocommit=True, options=session_options()) as reader,
    ):
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        ((name,),) = holder.execute("SELECT pg_export_snapshot()").fetchall()
        enter(reader, name)
        table = ChunkedTable(reader, oid, way="compiled")
        for _ in table.read(reader, None, table.next(reader, None, 1)[0]):
            pass
        count, after, last = 0, None, False
        started, own, backend = time.perf_counter(), time.process_time(), _spent(reader)
        while not last:
            upto, last = table.next(reader, after, SIZE)
            count += sum(len(batch) for batch in table.read(reader, after, upto))
            after = upto
        took, own = time.perf_counter() - started, time.process_time() - own
        backend = _spent(reader) - backend
    assert count == ROWS
    return took, own, backend


def _spent(connection: psycopg.Connection[tuple[object, ...]]) -> float:
    """Seconds of processor time that the session's process has had; by the clock where nobody tells."""
    stat = Path(f"/proc/{connection.info.backend_pid}/stat")
    if not stat.exists():
        return time.perf_counter()
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
