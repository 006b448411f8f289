"""The fan-out example on real servers: one row in, and each sink has it as the document prints it."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from .nats_streams import Streams
from .outputs import kafka_messages, redis_entries
from .running import ROOT, Run
from .services import Kafka, Nats, Redis
from .services.fixtures import of_its_own

pytestmark = [pytest.mark.spark, pytest.mark.minutes]

SHOP = """
PRAGMA journal_mode = WAL;
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, total REAL, status TEXT);
CREATE TABLE order_items (id INTEGER PRIMARY KEY, order_id INTEGER, sku TEXT);
"""
ORDER = {"id": 1, "customer_id": 1, "total": 1500.00, "status": "pending"}
NAME = "orders-fan-out-sqlite"

kafka_server, redis_server, nats_server = (of_its_own(kind) for kind in (Kafka, Redis, Nats))


def test_the_document_s_three_outputs(
    tmp_path: Path, kafka_server: Kafka, redis_server: Redis, nats_server: Nats
) -> None:
    shop = tmp_path / "shop.db"
    database = sqlite3.connect(shop, isolation_level=None)
    database.executescript(SHOP)
    env = {**kafka_server.env(), **redis_server.env(), **nats_server.env(), "SHOP_DB": str(shop)}
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    admin.create_topics([NewTopic("orders.cdc", 6, 1)])["orders.cdc"].result(30)
    streams = Streams(env["NATS_URL"])
    streams.add("ORDERS", "orders.>")
    run = Run(tmp_path, ROOT / "examples" / "fan-out-sqlite.yaml", "--master", "local[2]", env=env)
    try:
        watched = "SELECT count(DISTINCT tbl_name) = 2 FROM sqlite_master WHERE type = 'trigger'"
        run.until(lambda: database.execute(watched).fetchone()[0], "watched the tables")
        begin = time.time_ns() // 1_000_000
        # The document's own statement.
        database.execute(
            "INSERT INTO orders (customer_id, total, status) VALUES (1, 1500.00, 'pending')"
        )
        run.until(lambda: len(kafka_messages(kafka_server, "orders.cdc")) == 1, "in Kafka")
        run.until(lambda: len(streams.messages("ORDERS")) == 1, "in NATS")
        run.until(lambda: len(redis_entries(env["REDIS_URI"], "orders:cache")) == 1, "in Redis")
        run.stop()
    finally:
        run.kill()
    (kafka,) = kafka_messages(kafka_server, "orders.cdc")
    (redis,) = redis_entries(env["REDIS_URI"], "orders:cache")
    ((subject, headers, content),) = streams.messages("ORDERS")
    wrapped, plain, cloud = (json.loads(t) for t in (kafka.value(), redis[b"df-event"], content))

    assert begin <= plain["ts_ms"] <= time.time_ns() // 1_000_000
    expected = {
        "before": None,
        "after": ORDER,
        "source": {"connector": "turso", "db": "main", "table": "orders"},
        "op": "c",
        "ts_ms": plain["ts_ms"],
    }
    assert shown(plain) == expected
    assert list(wrapped) == ["schema", "payload"] and wrapped["schema"] is None
    assert wrapped["payload"] == plain, "one event, in another envelope"
    assert plain["tags"] == ["entity:order", "priority:high", "enriched"]
    assert plain["event_id"] == cloud["id"]
    instant = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(plain["ts_ms"] // 1000))
    assert cloud == {
        "specversion": "1.0",
        "id": plain["event_id"],
        "source": f"deltaforge/{NAME}/main.orders",
        "type": "com.acme.orders.created",
        "time": f"{instant}.{plain['ts_ms'] % 1000:03d}Z",
        "datacontenttype": "application/json",
        "subject": "main.orders",
        "data": {"after": ORDER, "op": "c"},
    }
    assert all(b'"total":1500.0,' in text for text in (kafka.value(), redis[b"df-event"], content))

    # What goes beside the value.
    assert kafka.key() == b'{"id":1}'
    assert redis[b"event_id"].decode() == redis[b"df-key"].decode() == plain["event_id"]
    assert subject == "orders.events"
    assert headers["Nats-Msg-Id"].startswith(f"{NAME}/serverless-nats|")


def shown(event: dict[str, Any]) -> dict[str, Any]:
    """The fields that the document shows."""
    kept = {name: event[name] for name in ("before", "after", "op", "ts_ms")}
    place = event["source"]
    return {**kept, "source": {name: place[name] for name in ("connector", "db", "table")}}
