"""The Redis sink against redis-py's pipelines: the same entries, the same server, in turns.

redis-py gets texts that are ready, and transactions without a position. The sink begins with columns,
and makes idempotency keys and commands within its time. redis-benchmark shows what the server takes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis
from dfc_runtime.columns import idempotency_key
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import Lane, RedisSink

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.services import Redis
from tests.services.base import which
from tests.services.install import install
from tests.services.processes import Guard

ROWS, ROUNDS = 60_000, 3
VALUE = 300  # bytes


def run() -> Iterator[tuple[str, str]]:
    install([Redis])
    guard = Guard()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for aof in ("no", "yes"):
                home = Path(folder, aof)
                server = Redis(home, durable=False, guard=guard, config={"appendonly": aof})
                server.start()
                yield from _compare(server, f"appendonly {aof}")
                server.stop()
    finally:
        guard.close()


def _compare(server: Redis, how: str) -> Iterator[tuple[str, str]]:
    events, value = _events()
    with redis.Redis(port=server.port) as client:
        for size in (200, 2_000, 20_000):
            bare, ours = [], []
            for _ in range(ROUNDS):
                bare.append(_bare(client, events, value, size))
                assert client.xlen("s") == ROWS
                client.flushall()
                ours.append(_ours(server, events, value, size))
                assert client.xlen("s") == ROWS
                client.flushall()
            there, here = ROWS / min(bare), ROWS / min(ours)
            yield f"{how}, units of {size}: redis-py, events/s", f"{there:,.0f}"
            yield f"{how}, units of {size}: dfc, events/s", f"{here:,.0f}"
            yield f"{how}, units of {size}: ratio", f"{here / there:.2f}"
        yield f"{how}: redis-benchmark, events/s", f"{_limit(server, events, value):,.0f}"
        client.flushall()


def _bare(client: Any, events: Events, value: pa.Array, size: int) -> float:
    keys = idempotency_key(events).to_pylist()
    ids, texts = events.event_id.to_pylist(), value.to_pylist()
    started = time.perf_counter()
    for start in range(0, ROWS, size):
        pipeline = client.pipeline(transaction=True)
        for i in range(start, start + size):
            fields = {
                "event_id": ids[i],
                "idempotency_key": keys[i],
                "df-event": texts[i],
                "df-key": ids[i],
            }
            pipeline.xadd("s", fields)
        pipeline.execute()
    return time.perf_counter() - started


def _ours(server: Redis, events: Events, value: pa.Array, size: int) -> float:
    sink = RedisSink("s", lambda e: Messages(value=""), uri=server.env()["REDIS_URI"])
    started = time.perf_counter()
    sink.open(Lane("bench"))
    for start in range(0, ROWS, size):
        some = events.slice(start, start + size)
        messages = Messages(to="s", key=some.event_id, value=value.slice(start, size))
        sink.write(messages, some)
        sink.commit(f"{start + size:016x}")
    sink.close()
    return time.perf_counter() - started


def _limit(server: Redis, events: Events, value: pa.Array) -> float:
    key, name = idempotency_key(events)[0].as_py(), events.event_id[0].as_py()
    entry = ["event_id", name, "idempotency_key", key, "df-event", value[0].as_py(), "df-key", name]
    command = [str(which("redis-benchmark")), "-p", str(server.port), "-c", "1", "-P", "500"]
    command += ["-n", str(ROWS), "--csv", "XADD", "s", "*", *entry]
    rates = []
    for _ in range(ROUNDS):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rates.append(float(done.stdout.splitlines()[-1].split('","')[1]))
    return max(rates)


def _events() -> tuple[Events, pa.Array]:
    rows = range(ROWS)
    batch = pa.record_batch(
        {
            "position": [f"{i + 1:016x}" for i in rows],
            "event_id": [f"dfid:v1:tsrow:{i:032x}" for i in rows],
            "db": ["shop"] * ROWS,
            "table": ["orders"] * ROWS,
            "tx_id": [str(i // 3) for i in rows],
        }
    )
    value = pa.array([f'{{"id":{i},"pad":"'.ljust(VALUE - 2, "x") + '"}' for i in rows])
    return Events(batch, pipeline="bench", tenant="acme"), value
