"""Delivers units to Kafka in children that are killed at random moments, over and over.

Usage: kafka_writer.py BROKERS TOPIC KILLS SEED. Children are forked, so that a round is short.
Prints how many events there must be in the end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator

import confluent_kafka.admin  # noqa: F401  (once, not in each child)
import pyarrow as pa
from dfc_runtime.batch import Batch
from dfc_runtime.deliver import Delivery
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import KafkaSink, Lane

from tests.jobs.tiny_source import events

LOG = events(0, 60_000, tx=3)
ENOUGH = 400


def deliver(brokers: str, topic: str, seed: int, epochs: int) -> int:
    """Epochs behind the sink's own position, as a job would read them; returns where it stands."""

    def messages(e: Events) -> Messages:
        return Messages(to=topic, key=e.source.table, value=e.after["id"])

    chance = random.Random(seed)
    sink = KafkaSink("crash", messages, brokers=brokers, exactly_once=True, send_timeout_secs=10)
    delivery = Delivery(topic, None, 1, lambda e: e, (sink,), Batch(max_events=30))
    if epochs == 0:
        return int(sink.open(Lane(topic)) or "0", 16)
    at = 0  # as if storage knew nothing: what is there already comes again and must be dropped
    for _ in range(epochs):
        size = 3 * chance.randrange(1, 60)
        (acks,) = delivery.run(_batches(at, size), 0, {})
        ack = acks.to_pylist()[0]
        assert ack["error"] is None, ack["error"]
        at = int(ack["position"], 16)
    return at


def _batches(at: int, size: int) -> Iterator[pa.RecordBatch]:
    yield LOG.slice(at, size // 2)
    yield LOG.slice(at + size // 2, size - size // 2)


def main() -> None:
    brokers, topic = sys.argv[1:3]
    kills, seed = map(int, sys.argv[3:])
    chance = random.Random(seed)
    number = 0
    # On a machine that is busy with others it takes more of them until there is something to count.
    while number < kills or (number < 10 * kills and deliver(brokers, topic, seed, 0) < ENOUGH):
        number += 1
        child = os.fork()
        if child == 0:
            try:
                deliver(brokers, topic, seed * 1000 + number, 10**9)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(9)
        time.sleep(chance.uniform(0.1, 0.8))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the writer failed by itself"
    print(deliver(brokers, topic, seed, 3))


if __name__ == "__main__":
    main()
