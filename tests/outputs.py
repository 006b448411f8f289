"""What is in the sinks, read with clients that share nothing with them: one list for each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from .services import Kafka


def kafka_messages(server: Kafka, topic: str, isolation: str = "read_committed") -> list[Any]:
    """All there is in a topic, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in partitions])
    left, found, quiet_at = set(partitions), [], time.monotonic() + 30
    while left:
        assert time.monotonic() < quiet_at, f"nothing more from {topic} for 30 s"
        for message in consumer.consume(1000, 0.1):
            quiet_at = time.monotonic() + 30
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                left.discard(message.partition())
    consumer.close()
    return found


def redis_entries(uri: str, stream: str) -> list[dict[bytes, bytes]]:
    with redis.Redis.from_url(uri) as client:
        return [fields for _, fields in client.xrange(stream)]


def file_lines(folder: Path) -> list[bytes]:
    """Lines of the finished files of a folder, in the order of their positions."""
    return [
        line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()
    ]
