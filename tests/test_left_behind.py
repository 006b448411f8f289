"""Sinks and storage that stand still under a running job: who waits for them, and who does not."""

from __future__ import annotations

import itertools
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from .outputs import kafka_messages, redis_entries
from .running import Run
from .services import Kafka, Nats, Redis
from .services.fixtures import Services

pytestmark = [pytest.mark.spark, pytest.mark.minutes]

SPEC = """\
metadata: {{name: {name}, tenant: acme}}
spec:
  source:
    type: turso
    config: {{id: shop, url: shop.db, tables: [orders], cdc_mode: triggers, poll_interval_ms: 20}}
  storage: {{backend: sqlite, path: state.db}}
  sinks:
    - type: file
      config: {{id: archive, path: archive, name: orders}}
{sinks}
  commit_policy: {policy}
  batch: {{max_events: 20, max_ms: 5}}
"""
REDIS = """\
    - type: redis
      config: {id: cache, uri: "${REDIS_URI}", stream: orders, required: false}
"""
KAFKA = """\
    - type: kafka
      config: {id: bus, brokers: "${KAFKA_BROKERS}", topic: orders, exactly_once: true, required: false}
"""
NATS = """\
    - type: nats
      config: {id: missing, url: "${NATS_URL}", subject: orders, stream: NOWHERE}
"""


class Shop:
    """A pipeline in a folder of its own, and what its files have."""

    def __init__(self, folder: Path, sinks: str = "", policy: str = "{mode: required}") -> None:
        self.folder = folder
        self.database = sqlite3.connect(folder / "shop.db", isolation_level=None, timeout=30)
        self.database.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)"
        )
        text = SPEC.format(name="left-behind", sinks=sinks, policy=policy)
        (folder / "shop.yaml").write_text(text)
        self.ids = itertools.count(1)
        self.written: list[int] = []

    def start(self, env: dict[str, str]) -> Run:
        run = Run(self.folder, "shop.yaml", "--master", "local[2]", env=env)
        watched = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'"
        run.until(lambda: self.database.execute(watched).fetchone()[0], "watched the table")
        return run

    def write(self, rows: int = 5) -> None:
        for n in itertools.islice(self.ids, rows):
            self.database.execute("INSERT INTO orders VALUES (?, ?)", (n, f"order {n}"))
            self.written.append(n)

    def in_files(self) -> list[int]:
        folder = self.folder / "archive" / "orders"
        files = [*sorted(folder.glob("[!.]*.jsonl")), *sorted(folder.glob(".*.part"))]
        return [number(line) for path in files for line in path.read_bytes().split(b"\n")[:-1]]

    def deliver(self, run: Run) -> None:
        """New rows, until they are in the files."""
        self.write()
        run.until(lambda: self.in_files() == self.written, "in the files")


def number(event: bytes) -> int:
    return int(json.loads(event)["after"]["id"])


def test_frozen_sinks_hold_nobody_up_and_come_back_one_by_one(
    tmp_path: Path, services: Services
) -> None:
    kafka, redis = services.start(Kafka), services.start(Redis)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
    env = {**kafka.env(), **redis.env()}
    shop = Shop(tmp_path, REDIS + KAFKA)

    def in_redis() -> list[int]:
        return [number(e[b"df-event"]) for e in redis_entries(env["REDIS_URI"], "orders")]

    def in_kafka() -> list[int]:
        return [number(message.value()) for message in kafka_messages(kafka, "orders")]

    run = shop.start(env)
    try:
        shop.write()
        for place in (shop.in_files, in_redis, in_kafka):
            run.until(lambda place=place: place() == shop.written, "everywhere")
        with kafka.paused():
            with redis.paused():
                for _ in range(4):
                    shop.deliver(run)
                left = run.events("sink left behind")
                assert sorted(e["sink"] for e in left) == ["bus", "cache"], "not tried again"
                # And not by their own timeouts, which are 5 and 30 s.
                assert all(e["reason"].startswith("no answer for 2 s") for e in left), left
            # Redis is back, and Kafka is not: it keeps neither Redis nor the files from going on.
            run.until(lambda: in_redis() == shop.written, "all in Redis")
            back = run.events("going back for sinks left behind")
            assert all(e["sinks"] == ["cache"] for e in back)
            shop.write()
            run.until(lambda: in_redis() == shop.in_files() == shop.written, "in both")
        run.until(lambda: in_kafka() == shop.written, "all in Kafka")
        run.until(lambda: in_redis() == shop.written, "all in Redis")
        run.stop()
    finally:
        run.kill()
    assert shop.in_files() == in_redis() == in_kafka() == shop.written


def test_a_quorum_that_loses_a_second_sink_goes_on_with_the_first_when_that_is_back(
    tmp_path: Path, services: Services
) -> None:
    kafka, redis = services.start(Kafka), services.start(Redis)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
    shop = Shop(tmp_path, REDIS + KAFKA, "{mode: quorum, quorum: 2}")
    env = {**kafka.env(), **redis.env()}
    run = shop.start(env)
    try:
        shop.deliver(run)
        redis.stop()
        shop.deliver(run)
        run.until(lambda: run.events("sink left behind"), "left Redis behind")
        before = len(run.events("blocked"))
        kafka.stop()
        shop.write()
        run.until(lambda: len(run.events("blocked")) > before, "blocked")
        redis.start()

        def in_redis() -> list[int]:
            return [number(e[b"df-event"]) for e in redis_entries(env["REDIS_URI"], "orders")]

        run.until(lambda: in_redis() == shop.written == shop.in_files(), "went on with Redis")
        run.stop()
    finally:
        run.kill()


def test_storage_that_is_locked_or_refuses_writes_is_waited_for(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    run = shop.start({})
    refuse = "SELECT RAISE(ABORT, 'attempt to write a readonly database')"

    def waits(why: str) -> None:
        said = run.events("waiting for storage")
        shop.write()
        run.until(lambda: len(run.events("waiting for storage")) > len(said), "waited")
        assert why in run.events("waiting for storage")[-1]["reason"]

    def goes_on(times: int) -> None:
        run.until(lambda: len(run.events("storage is back")) == times, "found storage again")
        shop.write()
        run.until(lambda: shop.in_files() == shop.written, "in the files")

    try:
        shop.deliver(run)
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waits("another process has locked it")
            other.execute("ROLLBACK")
            goes_on(1)
            # What a read-only file would say, which nothing is to whoever runs the tests as root.
            other.execute(f"CREATE TRIGGER no BEFORE INSERT ON df_kv BEGIN {refuse}; END")
            waits("the file, or its folder, is read-only")
            other.execute("DROP TRIGGER no")
            goes_on(2)
        run.stop()
    finally:
        run.kill()
    assert shop.in_files() == shop.written


def test_a_stream_that_is_missing_ends_the_job_before_there_are_events(
    tmp_path: Path, nats_server: Nats
) -> None:
    Shop(tmp_path, NATS)
    run = Run(tmp_path, "shop.yaml", "--master", "local[1]", env=nats_server.env())
    assert run.process.wait(120) == 1
    assert "sink `missing`: stream `NOWHERE` does not exist" in run.said()
