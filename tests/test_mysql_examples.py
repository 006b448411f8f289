"""Examples that read MySQL, as they stand, against the real servers: database to sinks, once through Spark."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .mysql_logs import Writer
from .nats_streams import Streams
from .running import ROOT, Run
from .services import Kafka, MariaDB, Nats, Redis
from .services.fixtures import of_its_own

pytestmark = [pytest.mark.spark, pytest.mark.minutes]

PROBE = 1_000_000  # ids from here on only show that the job has begun to read


database, kafka_server = of_its_own(MariaDB), of_its_own(Kafka)
redis_server, nats_server = of_its_own(Redis), of_its_own(Nats)

Start = Callable[[str, Callable[[int], object], dict[str, str]], Run]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """An example that delivers what is written; a job without a past begins at the log's end."""
    runs: list[Run] = []

    def start(example: str, probe: Callable[[int], object], env: dict[str, str]) -> Run:
        shutil.copy(ROOT / "examples" / f"{example}.yaml", tmp_path)
        run = Run(tmp_path, f"{example}.yaml", "--master", "local[2]", env=env)
        runs.append(run)
        numbers = itertools.count(PROBE)

        def delivers() -> bool:
            probe(next(numbers))
            time.sleep(0.3)
            return any(line.get("events", 0) for line in run.events("progress"))

        run.until(delivers, "delivered anything")
        return run

    yield start
    for run in runs:
        run.kill()


def in_kafka(server: Kafka, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values of a topic with one partition, as far as it goes now."""
    reader = Consumer(
        {**server.client(), "group.id": "x", "isolation.level": "read_committed"}
        | {"enable.partition.eof": True}
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = reader.poll(10)
        if message is None or message.error():
            break
        found.append((message.key(), json.loads(message.value())))
    reader.close()
    return found


def topics(server: Kafka, *names: str) -> None:
    admin = AdminClient(server.client())
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(20)


def test_redacted_orders_reach_redis_and_kafka(
    database: MariaDB, kafka_server: Kafka, redis_server: Redis, started: Start
) -> None:
    shop = Writer(database, "shop")
    shop(
        "CREATE OR REPLACE TABLE orders"
        " (id INT PRIMARY KEY, email VARCHAR(60), total DOUBLE, status VARCHAR(20))"
    )
    topics(kafka_server, "orders")
    env = {**database.env(), **kafka_server.env(), **redis_server.env()}
    stream = redis.Redis.from_url(redis_server.env()["REDIS_URI"])
    run = started(
        "mysql-to-redis-and-kafka",
        lambda n: shop(f"INSERT INTO orders VALUES ({n}, NULL, 0, '')"),
        env,
    )

    def in_redis() -> list[dict[str, Any]]:
        entries = stream.xrange("orders")
        events = [json.loads(fields[b"df-event"]) for _, fields in entries]
        return [e for e in events if (e["after"] or e["before"])["id"] < PROBE]

    def on_topic() -> list[dict[str, Any]]:
        events = [value["payload"] for _, value in in_kafka(kafka_server, "orders")]
        return [e for e in events if (e["after"] or e["before"])["id"] < PROBE]

    shop("INSERT INTO orders VALUES (1, 'alice@example.com', 99.99, 'pending')")
    shop("UPDATE orders SET status = 'paid' WHERE id = 1")
    shop("DELETE FROM orders WHERE id = 1")
    run.until(lambda: len(in_redis()) == 3 and len(on_topic()) == 3, "delivered the changes")
    run.stop()
    new = {"id": 1, "email": "[redacted]", "total": 99.99, "status": "pending"}
    paid = {**new, "status": "paid"}
    for found in (in_redis(), on_topic()):
        assert [e["op"] for e in found] == ["c", "u", "d"]
        assert [(e["before"], e["after"]) for e in found] == [
            (None, new),
            (new, paid),
            (paid, None),
        ]
        assert {e["source"]["connector"] for e in found} == {"mysql"}
    stream.delete("orders")


def test_changes_go_where_their_rows_say(
    database: MariaDB,
    kafka_server: Kafka,
    redis_server: Redis,
    nats_server: Nats,
    started: Start,
) -> None:
    shop = Writer(database, "shop")
    shop("CREATE OR REPLACE TABLE orders (id INT PRIMARY KEY, customer_id INT, total DECIMAL(8,2))")
    shop("CREATE OR REPLACE TABLE probes (id INT PRIMARY KEY, customer_id INT)")
    topics(kafka_server, "cdc.shop.orders", "cdc.shop.probes")
    streams = Streams(nats_server.env()["NATS_URL"])
    streams.add("CDC", "cdc.>")
    env = {**database.env(), **kafka_server.env(), **redis_server.env(), **nats_server.env()}
    run = started(
        "dynamic-routing",
        lambda n: shop(f"INSERT INTO probes VALUES ({n}, 1)"),
        env,
    )
    shop("INSERT INTO orders VALUES (7, 42, 19.5), (8, 43, 1)")
    stream = redis.Redis.from_url(redis_server.env()["REDIS_URI"])

    def on_nats() -> list[tuple[str, dict[str, str], bytes]]:
        return [m for m in streams.messages("CDC") if m[0] == "cdc.shop.orders"]

    run.until(
        lambda: len(in_kafka(kafka_server, "cdc.shop.orders")) == 2
        and stream.xlen("events:orders") == 2
        and len(on_nats()) == 2,
        "delivered the changes",
    )
    run.stop()
    rows = [
        {"id": 7, "customer_id": 42, "total": "19.50"},
        {"id": 8, "customer_id": 43, "total": "1.00"},
    ]
    on_topic = in_kafka(kafka_server, "cdc.shop.orders")
    assert [key for key, _ in on_topic] == [b"42", b"43"]
    assert [value["payload"]["after"] for _, value in on_topic] == rows
    entries = [fields for _, fields in stream.xrange("events:orders")]
    assert [entry[b"df-key"] for entry in entries] == [b"7", b"8"]
    assert [headers["df-key"] for _, headers, _ in on_nats()] == ["7", "8"]
    assert [json.loads(content)["after"] for _, _, content in on_nats()] == rows
    stream.delete("events:orders", "events:probes")
    streams.delete("CDC")
