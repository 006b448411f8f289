"""Rows of pgoutput to JSON text: the kernels against Python with psycopg's loaders, and the server's own rate.

All from the same slot in the same run, in seconds of processor time, so that a busy machine counts for
little. The server's rate is that of pg_logical_slot_peek_binary_changes, with its messages left where they
come in: what a source can get at most from one slot in that way.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dfc_runtime.kernels.pgoutput import Splitter, joined
from psycopg.adapt import Transformer
from psycopg.pq import Format

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.postgres_captures import Capture, capture
from tests.services import Postgres
from tests.services.install import install
from tests.services.processes import Guard

ROWS, ROUNDS = 100_000, 4
TABLES = {
    "simple": (
        "id int8 PRIMARY KEY, name text, amount numeric(12,2), active bool, qty int4, at timestamptz",
        "i, 'customer number ' || i, i * 1.01, i % 3 = 0, i % 1000,"
        " '2024-01-01Z'::timestamptz + i * interval '1 s'",
    ),
    "nested": (
        "id int8 PRIMARY KEY, tags text[], doc jsonb, raw bytea, spot point, days date[]",
        "i, ARRAY['a b', 'c', 'tag' || i], jsonb_build_object('k', i, 'v', ARRAY[1, 2, 3]),"
        " decode(md5(i::text), 'hex'), point(i, -i), ARRAY['2024-02-29'::date]",
    ),
}


def run() -> Iterator[tuple[str, str]]:
    install([Postgres])
    guard = Guard()
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            server = Postgres(Path(folder, "server"), durable=False, guard=guard)
            server.start()
            for name in TABLES:
                with capture(server) as log:
                    yield from _compare(log, name)
            server.stop()
    finally:
        guard.close()


def _compare(log: Capture, name: str) -> Iterator[tuple[str, str]]:
    columns, values = TABLES[name]
    log.execute(f"CREATE TABLE {name} ({columns})")
    log.execute(f"INSERT INTO {name} SELECT {values} FROM generate_series(1, {ROWS}) i")
    messages = log.messages()
    peeked = min(_peeked(log) for _ in range(2))
    yield f"{name}: server, peek_binary_changes", f"{ROWS / peeked:>12,.0f} rows/s"

    data, starts, stops = joined(messages)
    split = Splitter("compiled").split(data, starts, stops)
    ((relation, rows),) = split.groups()
    decoder = log.decoder(relation, (0,), way="compiled")
    ours = decoder.rows(split, rows).after.to_pylist()
    theirs = _library(messages[:5_000], relation)
    assert [json.loads(text) for text in ours[: len(theirs)]] == [
        json.loads(text) for text in theirs
    ]

    took = _best(lambda: Splitter("compiled").split(data, starts, stops))
    yield f"{name}: messages found", _rate(took, peeked)
    only = log.decoder(relation, (0,), way="compiled", want=("after",))
    took = _best(lambda: only.rows(split, rows))
    yield f"{name}: rows as JSON", _rate(took, peeked)
    took = _best(lambda: decoder.rows(Splitter("compiled").split(data, starts, stops), rows))
    yield f"{name}: both, with keys", _rate(took, peeked)
    few = Splitter("python").split(data, starts[:5_000], stops[:5_000])
    slow = log.decoder(relation, (0,), way="python", want=("after",))
    took = _best(lambda: slow.rows(few, rows[rows < 5_000]), 2) * ROWS / 5_000
    yield f"{name}: rows as JSON, without numba", _rate(took, peeked)
    took = _best(lambda: _library(messages[:5_000], relation), 2) * ROWS / 5_000
    yield f"{name}: psycopg's loaders and json.dumps", _rate(took, peeked)


def _rate(seconds: float, server: float) -> str:
    return f"{ROWS / seconds:>12,.0f} rows/s  {server / seconds:6.1f} x the server"


def _best(run: Callable[[], Any], rounds: int = ROUNDS) -> float:
    def once() -> float:
        started = time.process_time()
        run()
        return time.process_time() - started

    return min(once() for _ in range(rounds))


def _peeked(log: Capture) -> float:
    """By libpq's binary results, which no Python object is made of; the server's own time."""
    query = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', $2)"
    )
    started = _spent(log)
    result = log.connection.pgconn.exec_params(
        query.encode(), [log.name.encode()] * 2, result_format=Format.BINARY
    )
    assert result.ntuples >= ROWS, result.error_message
    return _spent(log) - started


def _spent(log: Capture) -> float:
    """Seconds of processor time that the session's process has had; by the clock where nobody tells."""
    stat = Path(f"/proc/{log.connection.info.backend_pid}/stat")
    if not stat.exists():
        return time.perf_counter()
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _library(messages: list[bytes], relation: Any) -> list[str]:
    """What is usual in Python: struct for the frames, psycopg for the values, json for the rest."""
    transformer = Transformer()
    loaders = [transformer.get_loader(c.type, Format.TEXT).load for c in relation.columns]
    names = [column.name for column in relation.columns]
    made = []
    for message in messages:
        if message[:1] != b"I":
            continue
        row, at = {}, 8
        for name, load in zip(names, loaders, strict=True):
            kind = message[at]
            at += 1
            if kind == 110:
                row[name] = None
                continue
            (size,) = struct.unpack_from(">I", message, at)
            at += 4
            row[name] = load(message[at : at + size])
            at += size
        made.append(json.dumps(row, default=_plain, ensure_ascii=False))
    return made


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return {"_base64": base64.b64encode(value).decode()}
        case datetime.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case _:
            return str(value)
