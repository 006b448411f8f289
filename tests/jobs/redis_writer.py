"""Delivers units to Redis in children that are killed at random moments, over and over.

Usage: redis_writer.py URI KILLS SEED. Children are forked, so that a round takes milliseconds.
Prints how many events there must be in the end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import redis  # noqa: F401  (once, not in each child)
from dfc_runtime.batch import Batch
from dfc_runtime.columns import join, native
from dfc_runtime.deliver import Delivery
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import Lane, RedisSink
from dfc_runtime.sinks.redis_address import library

from tests.jobs.tiny_source import events

TABLES, ENOUGH = 3, 300
LOG = events(0, 60_000, tx=3, tables=TABLES)


def sink(uri: str) -> RedisSink:
    def messages(e: Events) -> Messages:
        return Messages(to=join("crash:", e.source.table), key=e.event_id, value=native(e))

    return RedisSink("crash", messages, uri=uri)


def deliver(uri: str, seed: int, epochs: int) -> int:
    """Epochs behind the sink's own position, as a job would read them; returns where it stands."""
    chance = random.Random(seed)
    delivery = Delivery("p", None, 1, lambda e: e, (sink(uri),), Batch(max_events=30))
    at = 0  # as if storage knew nothing: what is there already comes again and must be dropped
    for _ in range(epochs):
        size = 3 * chance.randrange(1, 60)
        (acks,) = delivery.run(_batches(at, size), 0, {})
        ack = acks.to_pylist()[0]
        assert ack["error"] is None, ack["error"]
        at = int(ack["position"], 16)
    return at


def stands(uri: str) -> int:
    one = sink(uri)
    try:
        return int(one.open(Lane("p")) or "0", 16)
    finally:
        one.close()


def _batches(at: int, size: int) -> Iterator[pa.RecordBatch]:
    yield LOG.slice(at, size // 2)
    yield LOG.slice(at + size // 2, size - size // 2)


def main() -> None:
    uri, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    library()
    number = 0
    # On a machine that is busy with others it takes more of them until there is something to count.
    while number < kills or (number < 10 * kills and stands(uri) < ENOUGH):
        number += 1
        child = os.fork()
        if child == 0:
            try:
                deliver(uri, seed * 1000 + number, 10**9)
            finally:
                os._exit(9)
        time.sleep(chance.uniform(0.002, 0.12))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the writer failed by itself"
    print(deliver(uri, seed, 3))


if __name__ == "__main__":
    main()
