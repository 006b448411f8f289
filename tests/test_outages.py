"""Outages under a running job: servers stopped, frozen, killed and full, storage away, a writer fenced.

One `dfc run` meets them one after the other, and every sink has every event once and in order in the end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic
from dfc_runtime.sinks import KafkaSink, Lane

from .nats_streams import Streams
from .outputs import kafka_messages, redis_entries
from .running import PATIENCE_SECS, Run
from .services import Kafka, Nats, Postgres, Redis
from .services.fixtures import Services
from .storages import fresh_schema

pytestmark = [pytest.mark.spark, pytest.mark.soak]

SPEC = """\
metadata: {name: outages, tenant: acme}
spec:
  source:
    type: turso
    config: {id: shop, url: shop.db, tables: [orders], cdc_mode: triggers, poll_interval_ms: 20}
  storage: {backend: postgres, dsn: "${STATE_DSN}"}
  sinks:
    - type: kafka
      config:
        {id: bus, brokers: "${KAFKA_BROKERS}", topic: outages, exactly_once: true, send_timeout_secs: 8}
    - type: redis
      config: {id: cache, uri: "${REDIS_URI}", stream: outages}
    - type: file
      config: {id: archive, path: "${DISK}/archive", name: orders}
    - type: nats
      config: {id: extra, url: "${NATS_URL}", subject: out.orders, stream: OUT, required: false}
  commit_policy: {mode: required}
  batch: {max_events: 20, max_ms: 5}
"""
DISK_BYTES = 256 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that can be filled up: a disk of its own where mounting is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class World:
    """A shop, its job, and what every sink has of it."""

    def __init__(self, folder: Path, disk: Path, services: Services) -> None:
        self.folder, self.disk = folder, disk
        self.kafka, self.redis = services.start(Kafka), services.start(Redis)
        self.nats, self.postgres = services.start(Nats), services.start(Postgres)
        dsn = fresh_schema(self.postgres).dsn
        assert dsn is not None
        env = {**self.kafka.env(), **self.redis.env(), **self.nats.env()}
        self.env = {**env, "STATE_DSN": dsn, "DISK": str(disk)}
        admin = AdminClient({"bootstrap.servers": self.kafka.address})
        admin.create_topics([NewTopic("outages", 1, 1)])["outages"].result(30)
        self.streams = Streams(env["NATS_URL"])
        self.streams.add("OUT", "out.>")
        self.database = sqlite3.connect(folder / "shop.db", isolation_level=None, timeout=30)
        self.database.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)"
        )
        (folder / "outages.yaml").write_text(SPEC)
        self.ids = itertools.count(1)
        self.written: list[int] = []

    def start(self) -> Run:
        run = Run(self.folder, "outages.yaml", "--master", "local[2]", env=self.env)
        watched = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'"
        run.until(lambda: self.database.execute(watched).fetchone()[0], "watched the table")
        return run

    def write(self, rows: int = 30) -> None:
        for n in itertools.islice(self.ids, rows):
            self.database.execute("INSERT INTO orders VALUES (?, ?)", (n, f"order {n}" * 20))
            self.written.append(n)

    def in_kafka(self) -> list[int]:
        return [number(message.value()) for message in kafka_messages(self.kafka, "outages")]

    def in_redis(self) -> list[int]:
        entries = redis_entries(self.env["REDIS_URI"], "outages")
        return [number(entry[b"df-event"]) for entry in entries]

    def in_nats(self) -> list[int]:
        return [number(content) for _, _, content in self.streams.messages("OUT")]

    def in_files(self) -> list[int]:
        """Also of the file that is not full yet, up to what is being written."""
        folder = self.disk / "archive" / "orders"
        finished, under_way = sorted(folder.glob("[!.]*.jsonl")), sorted(folder.glob(".*.part"))
        found = [number(line) for path in finished for line in path.read_bytes().splitlines()]
        for path in under_way:
            found += [number(line) for line in path.read_bytes().split(b"\n")[:-1]]
        return found

    def everywhere(self) -> list[list[int]]:
        return [self.in_kafka(), self.in_redis(), self.in_files(), self.in_nats()]


def number(event: bytes) -> int:
    return int(json.loads(event)["after"]["id"])


def has(run: Run, what: str, count: int, **about: Any) -> bool:
    """Whether the log says something for so many times."""
    found = [e for e in run.events(what) if all(e.get(k) == v for k, v in about.items())]
    return len(found) >= count


def test_a_job_outlives_its_servers(tmp_path: Path, disk: Path, services: Services) -> None:
    world = World(tmp_path, disk, services)
    run = world.start()

    def arrived(sink: Callable[[], list[int]]) -> None:
        run.until(lambda: len(sink()) >= len(world.written), f"all in {sink.__name__}")
        assert sink() == world.written

    def blocks(sink: str, text: str, away: Callable[[], Any], back: Callable[[], Any]) -> None:
        """While a required sink is away nothing moves; when it is back, all goes on by itself."""
        before = len([e for e in run.events("blocked") if e["sink"] == sink])
        away()
        world.write()
        run.until(lambda: has(run, "blocked", before + 1, sink=sink), f"blocked by {sink}")
        assert text in [e for e in run.events("blocked") if e["sink"] == sink][-1]["reason"]
        back()
        arrived(world.in_redis)
        arrived(world.in_kafka)
        arrived(world.in_files)

    try:
        world.write()
        arrived(world.in_kafka)

        # Redis: stopped, and without memory.
        blocks("cache", "", world.redis.stop, world.redis.start)
        with contextlib.closing(redis.Redis(port=world.redis.port)) as client:
            blocks(
                "cache",
                "OOM",
                lambda: client.config_set("maxmemory", 1),
                lambda: client.config_set("maxmemory", 0),
            )

        # Kafka: frozen for less than its time, then killed with transactions on their way.
        world.kafka.pause()
        world.write()
        time.sleep(3)
        world.kafka.resume()
        arrived(world.in_kafka)
        for _ in range(10):
            world.write(5)
            time.sleep(0.02)
        world.kafka.kill()
        world.write()
        world.kafka.start()
        arrived(world.in_kafka)
        arrived(world.in_redis)

        # The disk of the files.
        if os.path.ismount(disk):
            filler = disk / "filler"

            def fill() -> None:
                with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(1024))

            blocks("archive", "No space left on device", fill, filler.unlink)

        # Storage: nothing moves on without it.
        world.postgres.stop()
        world.write()
        run.until(lambda: has(run, "waiting for storage", 1), "waited for storage")
        world.write()
        world.postgres.start()
        run.until(lambda: has(run, "storage is back", 1), "found storage again")
        arrived(world.in_kafka)

        # NATS is not required: the others go on, and it gets what it has missed.
        arrived(world.in_nats)
        world.nats.stop()
        world.write()
        run.until(lambda: has(run, "sink left behind", 1, sink="extra"), "left it behind")
        for _ in range(3):
            begin = time.monotonic()
            world.write(5)
            arrived(world.in_redis)
            assert time.monotonic() - begin < 20, "an optional sink holds nobody up"
        world.nats.start()
        arrived(world.in_nats)
        assert world.everywhere() == [world.written] * 4, "every event once and in order"

        # A stop while a required sink does not answer: the attempt would take its 8 s.
        before = len(run.events("blocked"))
        world.kafka.pause()
        world.write()
        run.until(lambda: has(run, "blocked", before + 1), "blocked by Kafka")
        time.sleep(1)
        run.stop()
        assert run.events("not waiting for the sinks that block")
        assert not run.events("failed") and run.events("stopped")
    finally:
        world.kafka.resume()
        run.kill()

    # The next run goes on, until another writer of the same name comes: Kafka refuses this one then.
    run = world.start()
    try:
        for place in (world.in_kafka, world.in_redis, world.in_files, world.in_nats):
            arrived(place)
        other = KafkaSink("bus", lambda e: None, brokers=world.kafka.address, exactly_once=True)  # type: ignore[arg-type,return-value]
        other.open(Lane("outages"))
        world.write()
        assert run.process.wait(PATIENCE_SECS) == 1
        (failed,) = run.events("failed")
        assert "another runner of pipeline `outages` has taken over sink `bus`" in failed["reason"]
    finally:
        run.kill()
    assert world.in_kafka() == world.written[:-30], "it has written nothing since"
