"""The postgres source under Spark: in a session of one's own, and through `dfc run`, killed half way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from .nats_streams import Streams
from .outputs import file_lines, kafka_messages
from .postgres_logs import Shop, shop
from .running import PATIENCE_SECS, ROOT, Run
from .services import Kafka, Nats, Postgres
from .services.fixtures import of_its_own

pytestmark = [pytest.mark.spark]

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, note text)"
SPEC = """\
metadata: {{name: pg-kill, tenant: acme}}
spec:
  source:
    type: postgres
    config:
      id: shop
      dsn: ${{POSTGRES_DSN}}
      slot: {name}
      publication: {name}
      tables: [public.orders]
      outbox: {{prefixes: [outbox]}}
  sinks:
    - type: file
      config: {{id: archive, path: archive, name: all, roll: {{max_events: 100}}}}
  batch: {{max_events: 50, max_ms: 5}}
"""


@pytest.fixture
def db(postgres_server: Postgres) -> Iterator[Shop]:
    with shop(postgres_server, ORDERS, "ALTER TABLE orders REPLICA IDENTITY FULL") as made:
        yield made


class Writer(threading.Thread):
    """Small transactions, some rolled back, and messages, until told to stop."""

    def __init__(self, db: Shop) -> None:
        super().__init__(daemon=True)
        self.db = db
        self.done = threading.Event()
        self.sent = 0

    def run(self) -> None:
        choice, number = Random(3), 0
        with self.db.other() as connection:
            while not self.done.is_set():
                lost = choice.random() < 0.1
                with connection.transaction(force_rollback=lost):
                    for _ in range(choice.randrange(1, 20)):
                        number += 1
                        connection.execute("INSERT INTO orders VALUES (%s, 'new')", (number,))
                        if number % 3 == 0:
                            connection.execute(
                                "UPDATE orders SET note = note || '!' WHERE id = %s", (number - 1,)
                            )
                        if number % 7 == 0:
                            connection.execute("DELETE FROM orders WHERE id = %s", (number - 2,))
                self.sent += 1
                connection.execute(
                    "SELECT pg_logical_emit_message(%s, 'outbox', %s)",
                    (self.sent % 2 == 0, json.dumps({"n": self.sent})),
                )
                time.sleep(0.02)


def rebuilt(found: list[dict[str, Any]]) -> dict[int, Any]:
    rows: dict[int, Any] = {}
    for event in found:
        match event["op"]:
            case "c":
                assert event["after"]["id"] not in rows
                rows[event["after"]["id"]] = event["after"]["note"]
            case "u":
                assert rows[event["before"]["id"]] == event["before"]["note"]
                rows[event["after"]["id"]] = event["after"]["note"]
            case "d":
                assert rows.pop(event["before"]["id"]) == event["before"]["note"]
    return rows


@pytest.mark.minutes
def test_killed_and_started_again_every_change_is_there_once(db: Shop, tmp_path: Path) -> None:
    (tmp_path / "kill.yaml").write_text(SPEC.format(name=db.name))
    env = {"POSTGRES_DSN": db.dsn}
    writer = Writer(db)

    def written() -> int:
        return len(file_lines(tmp_path / "archive" / "all"))

    run = Run(tmp_path, "kill.yaml", "--master", "local[2]", env=env)
    try:
        run.until(lambda: db.slot().get("active"), "reading")
        writer.start()
        run.until(lambda: written() > 300, "delivering")
        run.kill()
        time.sleep(0.5)
        writer.done.set()
        writer.join()
        db.execute(
            "DELETE FROM orders WHERE id = 1"
        )  # a commit: it takes the last message to the disk
        run = Run(tmp_path, "kill.yaml", "--master", "local[2]", "--once", env=env)
        run.end()
    finally:
        writer.done.set()
        run.kill()
    found = [json.loads(line) for line in file_lines(tmp_path / "archive" / "all")]
    changes = [event for event in found if event["source"]["schema"] == "public"]
    sent = [e["after"]["n"] for e in found if e["source"]["schema"] == "__outbox"]
    assert sent == list(range(1, writer.sent + 1))
    assert rebuilt(changes) == dict(db.execute("SELECT id, note FROM orders"))
    ids = [event["event_id"] for event in found]
    assert len(ids) == len(set(ids))
    assert db.slot()["confirmed_flush_lsn"] is not None


def test_source_can_be_used_in_a_session_of_ones_own(db: Shop, spark: Any, tmp_path: Path) -> None:
    from dfc_runtime.sources import register

    register(spark)
    db.execute(
        f"CREATE PUBLICATION {db.name} FOR TABLE orders",
        f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')",
        "INSERT INTO orders SELECT g, 'n' FROM generate_series(1, 100) g",
    )
    found = (
        spark.readStream.format("dfc_postgres")
        .options(dsn=db.dsn, slot=db.name, publication=db.name, tables='["public.*"]')
        .load()
    )
    query = (
        found.writeStream.format("memory")
        .queryName("orders")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    rows = spark.sql("SELECT op, `table`, after FROM orders").collect()
    assert len(rows) == 100
    assert {(row["op"], row["table"]) for row in rows} == {("c", "orders")}


# --- examples --------------------------------------------------------------------------------


def run_example(db: Shop, folder: Path, name: str, slot: str, env: dict[str, str]) -> None:
    """Once through; the slot is there, so that what was changed before is seen."""
    run = Run(
        folder,
        ROOT / "examples" / f"{name}.yaml",
        "--master",
        "local[2]",
        "--once",
        env={"POSTGRES_DSN": db.dsn, **env},
    )
    try:
        run.end()
    finally:
        run.kill()
    assert db.execute(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'")


kafka_server, nats_server = of_its_own(Kafka), of_its_own(Nats)


@pytest.mark.minutes
def test_example_to_nats(db: Shop, nats_server: Nats, tmp_path: Path) -> None:
    streams = Streams(nats_server.env()["NATS_URL"])
    streams.add("USERS", "users.>")
    try:
        for name in ("users", "profiles", "user_sessions"):
            db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, name text)")
        db.execute(
            "CREATE PUBLICATION users_pub FOR TABLE users",
            "SELECT pg_create_logical_replication_slot('deltaforge_users', 'pgoutput')",
            "ALTER PUBLICATION users_pub ADD TABLE profiles, user_sessions",
            "INSERT INTO users VALUES (1, 'Ana')",
            "UPDATE users SET name = 'Anna'",
            "DELETE FROM users",
        )
        run_example(db, tmp_path, "postgres-to-nats", "deltaforge_users", nats_server.env())
        found = [json.loads(content) for _, _, content in streams.messages("USERS")]
        assert [event["type"] for event in found] == [
            "com.acme.users.created",
            "com.acme.users.updated",
            "com.acme.users.deleted",
        ]
        assert found[0]["subject"] == "public.users"
        assert found[0]["data"]["after"] == {"id": 1, "name": "Ana"}
    finally:
        streams.delete("USERS")


# Several jobs one after the other in one Spark, whose start takes longer than each of them.
JOBS = """
import os, runpy, sys
from dfc_runtime import session

jobs = sys.argv[1:]
session.start("examples", os.getcwd(), "local[2]", {}, False)
for job in jobs:
    sys.argv = [job, "--once"]
    try:
        runpy.run_path(job, run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
"""
AUDITED = ("users", "user_profiles", "payment_methods", "transactions", "roles", "permissions", "user_roles")  # fmt: skip
ORDERED = ("orders", "order_items", "payments")
PRODUCTION = ("max-durability",)  # the others differ by settings of the client alone


@pytest.mark.minutes
def test_examples_to_kafka(db: Shop, kafka_server: Kafka, tmp_path: Path) -> None:
    """The outbox by messages of the log, the audit trail, CloudEvents, and Kafka in production."""
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    topics = ("order.created", "audit.trail.events", "user-events", "orders.cdc.events")
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        made.result(30)
    for name in AUDITED:
        db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, ssn text)")
    for name in ("user_sessions", *ORDERED[1:]):
        db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    message = {
        "aggregate_type": "order",
        "aggregate_id": "7",
        "event_type": "created",
        "payload": {"total": 12.50},
    }
    db.execute(
        f"CREATE PUBLICATION orders_pub FOR TABLE {', '.join(ORDERED)}",
        f"CREATE PUBLICATION audit_pub FOR TABLE {', '.join(AUDITED)}",
        "CREATE PUBLICATION users_pub FOR TABLE users, user_sessions",
    )
    # Examples that share a slot would each read what the others have left.
    examples = ["outbox-postgres-wal", "audit-trail", "postgres-to-kafka"]
    examples += [f"kafka-production-{name}" for name in PRODUCTION]
    jobs = []
    for number, name in enumerate(examples):
        slot = f"{db.name}_{number}"
        db.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        spec = (ROOT / "examples" / f"{name}.yaml").read_text()
        (tmp_path / f"{name}.yaml").write_text(re.sub(r"slot: \w+", f"slot: {slot}", spec))
        command = [sys.executable, "-m", "dfc.compiler.cli", "compile", f"{name}.yaml"]
        subprocess.run([*command, "-o", f"{name}.py"], cwd=tmp_path, check=True)
        jobs.append(f"{name}.py")
    db.execute(
        f"SELECT pg_logical_emit_message(true, 'outbox', '{json.dumps(message)}')",
        "INSERT INTO users VALUES (1, '123-45-6789')",
        "INSERT INTO payments VALUES (9)",
    )
    env = {**os.environ, **kafka_server.env(), "POSTGRES_DSN": db.dsn}
    command = [sys.executable, "-c", JOBS, *jobs]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=2 * PATIENCE_SECS
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (routed,) = kafka_messages(kafka_server, "order.created")
    assert (routed.key(), json.loads(routed.value())) == (b"7", {"total": 12.5})
    (audit,) = kafka_messages(kafka_server, "audit.trail.events")
    payload = json.loads(audit.value())["payload"]
    assert payload["after"] == {"id": 1, "ssn": "[REDACTED]", "_ssn_redacted": True}
    assert payload["source"]["db"] == db.name
    (user,) = kafka_messages(kafka_server, "user-events")
    assert json.loads(user.value())["type"] == "com.acme.users.created"
    paid = [
        json.loads(m.value())["payload"] for m in kafka_messages(kafka_server, "orders.cdc.events")
    ]
    assert [(event["source"]["table"], event["after"]) for event in paid] == [
        ("payments", {"id": 9})
    ] * len(PRODUCTION)
