"""The NATS sink against nats-py's own pipelining: the same messages, the same server, in turns.

nats-py gets texts that are ready, and keeps no position. The sink begins with columns, makes ids and
frames within its time, has the server check the order of each message, and records every unit.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pyarrow as pa
from dfc_runtime.columns import idempotency_key
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import Lane, NatsSink

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.services import Nats
from tests.services.install import install
from tests.services.processes import Guard

ROWS, ROUNDS, UNIT = 60_000, 3, 2_000
VALUE = 300  # bytes


def run() -> Iterator[tuple[str, str]]:
    install([Nats])
    guard = Guard()
    try:
        with tempfile.TemporaryDirectory() as folder:
            server = Nats(Path(folder, "nats"), durable=False, guard=guard)
            server.start()
            for storage in ("memory", "file"):
                yield from _compare(server.env()["NATS_URL"], storage)
            server.stop()
    finally:
        guard.close()


def _compare(url: str, storage: str) -> Iterator[tuple[str, str]]:
    events, value = _events()
    ways: dict[str, Callable[[], float]] = {
        "nats-py": lambda: asyncio.run(_bare(url, events, value)),
        "dfc": lambda: _ours(url, events, value, 1),
        # As one of several lanes: the server does not check the order.
        "dfc, as a lane": lambda: _ours(url, events, value, 2),
    }
    rates = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            rates[name] = max(rates[name], ROWS / _fresh(url, storage, way))
    for name, rate in rates.items():
        yield f"{storage}: {name}, events/s", f"{rate:,.0f}"
    yield f"{storage}: ratio", f"{rates['dfc'] / rates['nats-py']:.2f}"


def _fresh(url: str, storage: str, work: Callable[[], float]) -> float:
    """The work's own time, into a stream that is new and holds everything afterwards."""

    async def make() -> None:
        client = await nats.connect(url)
        await client.jetstream().add_stream(name="B", subjects=["b.>"], storage=storage)
        await client.close()

    async def remove() -> None:
        client = await nats.connect(url)
        state = (await client.jetstream().stream_info("B")).state
        assert state.messages == ROWS
        await client.jetstream().delete_stream("B")
        await client.close()

    asyncio.run(make())
    seconds = work()
    asyncio.run(remove())
    return seconds


async def _bare(url: str, events: Events, value: pa.Array) -> float:
    """As nats-py is meant to be driven fast: publish_async, and all acks of a unit awaited."""
    client = await nats.connect(url)
    stream = client.jetstream(publish_async_max_pending=4096)
    ids = idempotency_key(events).to_pylist()
    positions, texts = events.position.to_pylist(), value.to_pylist()
    started = time.perf_counter()
    for start in range(0, ROWS, UNIT):
        for i in range(start, start + UNIT):
            headers = {"Nats-Msg-Id": ids[i], "df-position": positions[i]}
            await stream.publish_async("b.orders", texts[i].encode(), headers=headers)
        await stream.publish_async_completed()
    took = time.perf_counter() - started
    await client.close()
    return took


def _ours(url: str, events: Events, value: pa.Array, lanes: int) -> float:
    sink = NatsSink("s", lambda e: Messages(value=""), url=url, stream="B")
    started = time.perf_counter()
    sink.open(Lane("bench", 0, lanes))
    for start in range(0, ROWS, UNIT):
        some = events.slice(start, start + UNIT)
        sink.write(Messages(to="b.orders", value=value.slice(start, UNIT)), some)
        sink.commit(f"{start + UNIT:016x}")
    took = time.perf_counter() - started
    sink.close()
    return took


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
    values = pa.array([f'{{"id":{i}}}'.ljust(VALUE, " ") for i in rows], pa.string())
    return Events(batch, pipeline="bench", tenant="acme"), values


if __name__ == "__main__":
    for what, result in run():
        print(f"{what:<50} {result}")
