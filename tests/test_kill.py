"""`kill -9` in the middle of `dfc run`, again and again: nothing is lost or repeated in any sink.

File, Kafka, Redis and NATS get the same events, with copies that a script makes; those at which the
script fails are in the dead letter queue instead, once each.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic
from dfc_runtime.storage import SqliteStorage

from .nats_streams import Streams
from .services import Kafka, Nats, Redis
from .test_kafka_sink import read

pytestmark = [pytest.mark.spark, pytest.mark.minutes]

KILLS = 20
SPEC = """\
metadata: {name: kill, tenant: acme}
spec:
  source:
    type: turso
    config: {id: shop, url: shop.db, tables: [orders, items], cdc_mode: triggers, poll_interval_ms: 20}
  processors:
    - type: javascript
      id: double
      on_error: dlq
      inline: |
        (event) => {
          if (event.op === "c" && event.after.id % 97 === 0) throw new Error("not this one");
          return event.source.table === "items" && event.after
            ? [event, { ...event, after: { copy: event.after.number } }]
            : event;
        }
  sinks:
    - type: file
      config:
        id: archive
        path: archive
        name: "${source.table}"
        roll: {max_events: 700}
    - type: kafka
      config: {id: bus, brokers: "${KAFKA_BROKERS}", topic: kill, exactly_once: true}
    - type: redis
      config: {id: cache, uri: "${REDIS_URI}", stream: kill}
    - type: nats
      config: {id: triggers, url: "${NATS_URL}", subject: kill.events, stream: KILL}
  batch: {max_events: 50, max_ms: 5}
  journal: {enabled: true}
"""


class Writer(threading.Thread):
    """Keeps changing rows in small transactions, some of them rolled back, until told to stop."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.done = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            self.write()
        except BaseException as error:
            self.failed = error

    def write(self) -> None:
        choice = random.Random(7)
        database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        n = 0
        while not self.done.is_set():
            database.execute("BEGIN IMMEDIATE")
            for _ in range(choice.randrange(1, 12)):
                n += 1
                database.execute("INSERT INTO orders (note) VALUES (?)", (f"order {n}",))
                database.execute("INSERT INTO items VALUES (?, ?)", (f"item {n}", n))
                if n % 3 == 0:
                    database.execute("UPDATE orders SET note = note || '!' WHERE id = ?", (n - 1,))
                if n % 5 == 0:
                    database.execute("DELETE FROM items WHERE number = ?", (n - 2,))
            database.execute("ROLLBACK" if choice.random() < 0.1 else "COMMIT")
            time.sleep(0.15)
        database.close()


@pytest.fixture
def jobs() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The jobs of a test; one that is still there when it fails is ended with all its family."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for job in started:
        if job.poll() is None:
            kill(family(job.pid))


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start(folder: Path, env: dict[str, str], *flags: str) -> subprocess.Popen[bytes]:
    log = (folder / "run.log").open("ab")
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dfc.compiler.cli",
            "run",
            "kill.yaml",
            "--master",
            "local[2]",
            *flags,
        ],
        cwd=folder,
        env={**os.environ, **env},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def family(pid: int) -> list[int]:
    """A process and all that it has started, and they in turn."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def written(folder: Path) -> int:
    """Bytes of output so far, finished or not: only to see that a run is under way."""
    total = 0
    for path in (folder / "archive").rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # renamed while we looked
            total += 1
    return total


def starts(folder: Path) -> int:
    return log_of(folder).count('"started"')


def wait_for_change(
    count: Callable[[Path], int], before: int, job: subprocess.Popen[bytes], folder: Path
) -> None:
    deadline = time.monotonic() + 240
    while count(folder) == before:
        assert job.poll() is None, log_of(folder)
        assert time.monotonic() < deadline, f"it never happened: {log_of(folder)[-3000:]}"
        time.sleep(0.1)


def test_twenty_kills_lose_and_repeat_nothing(
    tmp_path: Path,
    jobs: list[subprocess.Popen[bytes]],
    kafka_server: Kafka,
    redis_server: Redis,
    nats_server: Nats,
) -> None:
    env = {**kafka_server.env(), **redis_server.env(), **nats_server.env()}
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    admin.create_topics([NewTopic("kill", 1, 1)])["kill"].result(30)
    streams = Streams(env["NATS_URL"])
    streams.add("KILL", "kill.>", duplicate_window=0.1)
    choice = random.Random(20)
    (tmp_path / "kill.yaml").write_text(SPEC)
    database = sqlite3.connect(tmp_path / "shop.db")
    database.executescript(
        "PRAGMA journal_mode = WAL;"
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT);"
        "CREATE TABLE items (name TEXT, number INTEGER);"
    )
    assert subprocess.Popen.wait(start(tmp_path, env, "--once")) == 0, log_of(tmp_path)
    writer = Writer(tmp_path / "shop.db")
    writer.start()
    interrupted = 0
    for round in range(KILLS):
        runs = starts(tmp_path)
        jobs.append(job := start(tmp_path, env))
        wait_for_change(starts, runs, job, tmp_path)
        # From here on what is written is this run's work; what a killed driver left running may
        # have written on until then.
        wait_for_change(written, written(tmp_path), job, tmp_path)
        time.sleep(choice.random())
        interrupted += job.poll() is None
        # Alone, the driver leaves Java and workers behind, which may write on for a moment; with
        # them, a worker dies in the middle of a write.
        kill(family(job.pid) if round % 2 else [job.pid])
        job.wait()
    writer.done.set()
    writer.join(60)
    assert writer.failed is None
    assert interrupted == KILLS, "a kill came after the job had ended by itself"
    assert subprocess.Popen.wait(start(tmp_path, env, "--once")) == 0, log_of(tmp_path)
    check(tmp_path, database)
    (last,) = database.execute("SELECT n FROM _df_cdc_seq").fetchone()
    dead = letters(tmp_path)
    assert dead, "some events were to fail"
    check_stream([m.value() for m in read(kafka_server, "kill")], last, dead)
    entries = redis.Redis.from_url(env["REDIS_URI"]).xrange("kill")
    check_stream([fields[b"df-event"] for _, fields in entries], last, dead)
    check_stream([content for _, _, content in streams.messages("KILL")], last, dead)


def letters(folder: Path) -> set[int]:
    """Sequence numbers of the changes that are dead letters, each there once."""
    storage = SqliteStorage(folder / "data" / "deltaforge.db")
    found = [json.loads(value)["event"] for _, value in storage.peek("dlq", "kill", 100_000)]
    storage.close()
    numbers = [int(event["source"]["sequence"]) for event in found]
    assert len(set(numbers)) == len(numbers)
    return set(numbers)


def check_stream(values: list[bytes], last: int, dead: set[int]) -> None:
    """One stream has all changes in the order of the log, copies behind what they are copies of."""
    events = [json.loads(value) for value in values]
    own = [int(e["source"]["sequence"]) for e in events if "synthetic" not in e]
    assert own == [n for n in range(1, last + 1) if n not in dead], describe(own, last)
    check_copies(events)


def check_copies(events: list[dict[str, Any]]) -> None:
    copies = [e["after"]["copy"] for e in events if "synthetic" in e]
    inserted = [e["after"]["number"] for e in events if "number" in (e["after"] or {})]
    assert copies == inserted, "the script's copies, once each and behind their events"
    assert len({e["event_id"] for e in events}) == len(events)


def check(folder: Path, database: sqlite3.Connection) -> None:
    assert not list((folder / "archive").rglob("*.part")), "unfinished files after a clean end"
    sequences: list[int] = []
    for table in ("orders", "items"):
        in_table: list[dict[str, Any]] = []
        for path in sorted((folder / "archive" / table).glob("*.jsonl")):
            events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            assert events, f"{path} is empty"
            assert {e["source"]["table"] for e in events} == {table}
            in_table += events
        own = [int(e["source"]["sequence"]) for e in in_table if "synthetic" not in e]
        assert own == sorted(own), "out of order"
        check_copies(in_table)
        sequences += own
    (last,) = database.execute("SELECT n FROM _df_cdc_seq").fetchone()
    assert last > 1000, "too little was written to prove anything"
    expected = set(range(1, last + 1)) - letters(folder)
    assert sorted(sequences) == sorted(expected), describe(sequences, last)


def describe(sequences: list[int], last: int) -> str:
    seen = set(sequences)
    lost = [n for n in range(1, last + 1) if n not in seen]
    return f"{len(lost)} lost, {len(sequences) - len(seen)} repeated, of {last}"


def log_of(folder: Path) -> str:
    return (folder / "run.log").read_text("utf-8", "replace")
