"""Every example that reads MySQL, as it stands, in one Spark: what its own fixtures tell of is done to
real tables, and each sink has to get as many messages, of the same kind, at the same places."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic

from .mysql_logs import Writer
from .nats_streams import Streams
from .outputs import kafka_messages, redis_entries
from .running import PATIENCE_SECS, ROOT
from .services import Kafka, MariaDB, Nats, Postgres, Redis
from .services.fixtures import of_its_own

pytestmark = [pytest.mark.spark, pytest.mark.minutes]

EXAMPLES = sorted(
    path.stem
    for path in (ROOT / "examples").glob("*.yaml")
    if "\n    type: mysql\n" in path.read_text("utf-8")
)
NOT_BUILT = {"mysql-to-redis-sensing"}  # sensing comes with a later version

Event = dict[str, Any]
Shape = tuple[str, str, Any]  # sink, destination, and what kind of change


class Jobs:
    """A process with one Spark, which runs a job after the other."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.log = folder / "jobs.log"
        self._answers, write = os.pipe()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "jobs" / "many.py"), str(write)],
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[write],
                text=True,
            )
        os.close(write)

    def run(self, job: Path, *arguments: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(job), arguments]) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._answers], [], [], PATIENCE_SECS)
        answer = os.read(self._answers, 100).decode() if ready else "no answer"
        assert answer.strip() == "0", f"{answer!r}: {self.log.read_text('utf-8')[-3000:]}"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)


database, kafka_server = of_its_own(MariaDB), of_its_own(Kafka)
redis_server, nats_server = of_its_own(Redis), of_its_own(Nats)


@pytest.fixture(scope="module")
def jobs(
    tmp_path_factory: pytest.TempPathFactory,
    database: MariaDB,
    kafka_server: Kafka,
    redis_server: Redis,
    nats_server: Nats,
    postgres_server: Postgres,
) -> Iterator[Jobs]:
    env: dict[str, str] = {"STORAGE_DSN": postgres_server.env()["POSTGRES_DSN"]}
    for server in (database, kafka_server, redis_server, nats_server):
        env |= server.env()
    made = Jobs(tmp_path_factory.mktemp("jobs"), env)
    yield made
    made.close()


def fixtures(example: str) -> list[Event]:
    lines = (ROOT / "examples" / f"{example}.test" / "events.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines if line.strip() and not line.startswith("#")]
    for event in found:
        source = event.get("source", {})
        event.setdefault("table", f"{source.get('db')}.{source.get('table')}")
    return found


class Tables:
    """Tables that have room for the rows of fixtures."""

    def __init__(self, shop: Writer, events: list[Event]) -> None:
        self.shop = shop
        self.keys: dict[str, list[str]] = {}
        self.documents: set[tuple[str, str]] = set()
        values: dict[str, dict[str, list[Any]]] = {}
        for event in events:
            columns = values.setdefault(event["table"], {})
            self.keys.setdefault(event["table"], list(event.get("primary_key") or ()))
            for row in (event.get("before"), event.get("after")):
                for name, value in (row or {}).items():
                    columns.setdefault(name, []).append(value)
        for table, columns in values.items():
            keys = self.keys[table] = self.keys[table] or ["id"]
            if not columns:
                columns.update({name: [0] for name in keys})  # told of as a whole only
            kinds = {name: _kind(found) for name, found in columns.items()}
            self.documents |= {(table, name) for name, kind in kinds.items() if kind == "JSON"}
            parts = [f"`{name}` {kind}" for name, kind in kinds.items()]
            shop(f"CREATE DATABASE IF NOT EXISTS {table.partition('.')[0]}")
            shop(f"DROP TABLE IF EXISTS {table}")
            shop(f"CREATE TABLE {table} ({', '.join(parts)}, PRIMARY KEY ({', '.join(keys)}))")

    def prepare(self, events: list[Event]) -> None:
        """The rows that are there before anything happens."""
        made: set[tuple[str, str]] = set()
        for event in events:
            row = event.get("after" if event["op"] in "cr" else "before")
            if row is not None and self._mark(event, row) not in made:
                made.add(self._mark(event, row))
                if event["op"] != "c":
                    self._insert(event["table"], row)

    def play(self, events: list[Event]) -> None:
        for event in events:
            table, after = event["table"], event.get("after")
            if event["op"] == "c":
                self._insert(table, after or {})
            elif event["op"] == "u":
                sets = ", ".join(f"`{name}` = %s" for name in after)
                self._where(f"UPDATE {table} SET {sets}", event, self._sql(table, after))
            elif event["op"] == "d":
                self._where(f"DELETE FROM {table}", event, ())
            elif event["op"] == "t":
                self.shop(f"TRUNCATE TABLE {table}")

    def _mark(self, event: Event, row: Event) -> tuple[str, str]:
        return event["table"], json.dumps([row.get(name) for name in self.keys[event["table"]]])

    def _insert(self, table: str, row: Event) -> None:
        names = ", ".join(f"`{name}`" for name in row)
        marks = ", ".join(["%s"] * len(row))
        self.shop(f"INSERT INTO {table} ({names}) VALUES ({marks})", *self._sql(table, row))

    def _where(self, sql: str, event: Event, values: Any) -> None:
        keys = self.keys[event["table"]]
        tests = " AND ".join(f"`{name}` = %s" for name in keys)
        self.shop(f"{sql} WHERE {tests}", *values, *(event["before"][name] for name in keys))

    def _sql(self, table: str, row: Event) -> list[Any]:
        return [
            json.dumps(value) if (table, name) in self.documents and value is not None else value
            for name, value in row.items()
        ]


def _kind(values: list[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds & {dict, list}:
        return "JSON"
    if kinds == {bool}:
        return "BIT(1)"
    if kinds == {int}:
        return "BIGINT"
    return "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR(500)"


def shape(sink: str, to: str, text: str | bytes) -> Shape:
    try:
        value = json.loads(text)
    except ValueError:
        return sink, to, None
    body = value.get("payload", value) if isinstance(value, dict) else None
    body = body if isinstance(body, dict) else {}
    return sink, to, body.get("op") or body.get("type")


class Sinks:
    """The sinks of an example: made empty, and looked into afterwards."""

    def __init__(
        self, example: str, kafka: Kafka, uri: str, streams: Streams, wanted: Counter[Shape]
    ) -> None:
        plan = json.loads((ROOT / "golden" / "examples" / example / "plan.json").read_text("utf-8"))
        self.kinds = {sink["id"]: sink["kind"] for sink in plan["sinks"]}
        self._kafka, self._uri, self._streams = kafka, uri, streams
        self._places = {(sink, to) for sink, to, _ in wanted}
        self._names = [sink["stream"] for sink in plan["sinks"] if sink["kind"] == "nats"]
        topics = [to for sink, to in self._places if self.kinds[sink] == "kafka"]
        admin = AdminClient(kafka.client())
        there = admin.list_topics(timeout=20).topics
        if new := [NewTopic(name, 1, 1) for name in topics if name not in there]:
            for made in admin.create_topics(new).values():
                made.result(20)
        self._before = {name: len(kafka_messages(kafka, name)) for name in topics}
        with redis.Redis.from_url(uri) as client:
            for sink, to in self._places:
                if self.kinds[sink] == "redis":
                    client.delete(to)
        for name in self._names:
            streams.add(name, *{to for sink, to in self._places if self.kinds[sink] == "nats"})

    def found(self) -> Counter[Shape]:
        made: Counter[Shape] = Counter()
        for sink, to in self._places:
            if self.kinds[sink] == "kafka":
                messages = kafka_messages(self._kafka, to)[self._before[to] :]
                made.update(shape(sink, to, message.value()) for message in messages)
            elif self.kinds[sink] == "redis":
                entries = redis_entries(self._uri, to)
                made.update(shape(sink, to, entry[b"df-event"]) for entry in entries)
            elif self.kinds[sink] == "nats":
                for name in self._names:
                    for subject, _, content in self._streams.messages(name):
                        if subject == to:
                            made[shape(sink, to, content)] += 1
        return made

    def close(self) -> None:
        for name in self._names:
            self._streams.delete(name)


def expected(example: str) -> Counter[Shape]:
    made: Counter[Shape] = Counter()
    for path in (ROOT / "examples" / f"{example}.test" / "expected").glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            message = json.loads(line)
            text = json.dumps(message["value"]) if "value" in message else message.get("text", "")
            made[shape(path.stem, message["to"], text)] += 1
    if "snapshot:" not in (ROOT / "examples" / f"{example}.yaml").read_text("utf-8"):
        # Its fixtures show what becomes of copied rows, too; as it stands it copies none.
        for one in [one for one in made if str(one[2]) == "r" or str(one[2]).endswith("snapshot")]:
            del made[one]
    return made


@pytest.mark.parametrize("example", [name for name in EXAMPLES if name not in NOT_BUILT])
def test_an_example_delivers_what_its_fixtures_tell_of(
    example: str,
    jobs: Jobs,
    tmp_path: Path,
    database: MariaDB,
    kafka_server: Kafka,
    redis_server: Redis,
    nats_server: Nats,
) -> None:
    events, wanted = fixtures(example), expected(example)
    shop = Writer(database, "shop")
    tables = Tables(shop, events)
    tables.prepare(events)
    streams = Streams(nats_server.env()["NATS_URL"])
    sinks = Sinks(example, kafka_server, redis_server.env()["REDIS_URI"], streams, wanted)
    job = ROOT / "golden" / "examples" / example / "job.py"
    storage = [] if example == "storage-postgres" else ["--storage", f"sqlite:{tmp_path}/s.db"]
    try:
        jobs.run(job, "--once", *storage)  # which begins where the log ends
        tables.play(events)
        jobs.run(job, "--once", *storage)
        assert sinks.found() == wanted
    finally:
        sinks.close()
