"""A backlog in MariaDB drained to Kafka by a compiled job, counted at the consumer.

The job is stopped, the backlog is loaded, the job resumes; database, broker and job share the
machine. The topic has the broker's own times: what is reported is from the first message of the
drain to the last, so without the start of Spark, and from the second quarter on, when all is warm.
Nobody consumes meanwhile; everything is counted afterwards, and again sent by a bare loop of
produce_batch. Then commit-to-consumer times of a running job under a light load.

DFC_BENCH_ROWS is the length of the backlog, DFC_BENCH_MIX=1 makes it 60 % inserts, 30 % updates and
10 % deletes of the youngest 100,000 keys.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from dfc_runtime.sinks.kafka_client import Settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.running import Run
from tests.services import Kafka, MariaDB, processes
from tests.services.install import install
from tests.services.processes import Guard

ROWS = int(os.environ.get("DFC_BENCH_ROWS", "1000000"))
MIX = os.environ.get("DFC_BENCH_MIX") == "1"
IN_A_TRANSACTION = 100
KEYS = 100_000
CHUNK = 2_000  # messages in a call of the bare loop
LIGHT, LIGHT_SECS, LIGHT_SKIPPED = 1_000, 20, 5  # events/s, seconds, and those to warm up
WAYS = {"least": False, "exactly": True}
ONLY = os.environ.get("DFC_BENCH_ONLY", "")  # drain or latency
TICK = os.sysconf("SC_CLK_TCK")

SPEC = """\
metadata: {{name: drain-{way}, tenant: acme}}
spec:
  source:
    type: mysql
    config: {{id: drain-{way}, dsn: "${{MYSQL_DSN}}", tables: [shop.orders]}}
  storage: {{path: "{way}.db"}}
  sinks:
    - type: kafka
      config:
        {{id: bus, brokers: "${{KAFKA_BROKERS}}", topic: {way}, exactly_once: {exactly}}}
  batch: {{max_events: {unit}}}
"""
UNIT = int(os.environ.get("DFC_BENCH_UNIT", "16000"))
VALUES = (
    "seq, seq % 9973, CONCAT('customer', LPAD(seq, 7, '0'), '@example.com'), seq % 100000 / 100,"
    " CONCAT(IF(seq % 3, 'paid ', 'open '), REPEAT('x', 138)), '2026-01-31 08:15:00.123456'"
)


@dataclass
class Watch:
    """Processor time and memory of programs, looked at ten times a second."""

    roots: dict[str, int]
    cpu: dict[str, dict[int, float]] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)
    marks: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    done: bool = False

    def look(self) -> None:
        for name, root in self.roots.items():
            mine = self.cpu.setdefault(name, {})
            for pid in processes.family(root):
                try:
                    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    status = Path(f"/proc/{pid}/status").read_text().splitlines()
                except OSError:
                    continue
                mine[pid] = (int(stat[11]) + int(stat[12])) / TICK
                peak = next((x for x in status if x.startswith("VmHWM:")), "VmHWM: 0")
                if name == "job":
                    self.peak[pid] = int(peak.split()[1])
        self.marks.append((time.time(), {n: sum(c.values()) for n, c in self.cpu.items()}))

    def run(self) -> None:
        while not self.done:
            self.look()
            time.sleep(0.1)

    def between(self, start: float, stop: float) -> dict[str, float]:
        first = max((m for m in self.marks if m[0] <= start), key=_when, default=self.marks[0])
        last = min((m for m in self.marks if m[0] >= stop), key=_when, default=self.marks[-1])
        return {name: value - first[1].get(name, 0.0) for name, value in last[1].items()}


def _when(mark: tuple[float, dict[str, float]]) -> float:
    return mark[0]


@dataclass
class Drained:
    events: int
    seconds: float  # from the first message to the last
    warm: float  # events/s from the second quarter on
    first: float  # seconds from the start of the program to the first message
    cpu: dict[str, float]  # seconds from the first message to the last
    memory: float  # MiB


def run() -> Iterator[tuple[str, str]]:
    install([MariaDB, Kafka])
    with tempfile.TemporaryDirectory(prefix="dfc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        guard = Guard()
        try:
            database = MariaDB(folder / "mariadb", durable=False, guard=guard)
            broker = Kafka(folder / "kafka", guard=guard, durable=False)
            database.start()
            broker.start()
            os.environ |= {"MYSQL_DSN": database.dsn, "KAFKA_BROKERS": broker.address}
            (folder / "job").mkdir()
            yield from _measured(folder / "job", database, broker)
        finally:
            guard.close()


def _measured(folder: Path, database: MariaDB, broker: Kafka) -> Iterator[tuple[str, str]]:
    connection = pymysql.connect(
        host="127.0.0.1", port=database.port, user="dfc", password="dfc", autocommit=True
    )
    cursor = connection.cursor()
    cursor.execute(
        "CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id int, email varchar(64),"
        " total decimal(10,2), status varchar(200), created_at datetime(6))"
    )
    topics(broker.address, [*WAYS, "bare"])
    for way, exactly in WAYS.items():
        text = SPEC.format(way=way, exactly=str(exactly).lower(), unit=UNIT)
        (folder / f"{way}.yaml").write_text(text)
        Run(folder, f"{way}.yaml", "--once", "--master", "local[2]").end()  # from here on
    began = time.monotonic()
    events = mixed(cursor) if MIX else inserts(cursor)
    yield "backlog", f"{events:,} events, loaded in {time.monotonic() - began:.0f} s"
    yield "load of the machine before (uptime)", f"{os.getloadavg()[0]:.1f}"
    rates: dict[str, float] = {}
    for way in WAYS:
        found = drain(folder, way, events, database, broker)
        rates[way] = found.warm
        title = f"{way}: " if way == "least" else "exactly once: "
        yield title + "events/s, warm", f"{found.warm:,.0f}"
        yield title + "events/s, first to last message", f"{events / found.seconds:,.0f}"
        yield title + "first message after the start", f"{found.first:.1f} s"
        each = ", ".join(f"{n} {s / events * 1e6:.1f}" for n, s in found.cpu.items())
        yield title + "CPU s per million events", each
        yield title + "peak memory, Java and Python", f"{found.memory:.0f} MiB"
    yield "exactly once, of at least once", f"{rates['exactly'] / rates['least']:.2f}"
    rate, cpu = bare(broker.address)
    yield "produce_batch alone, same bytes", f"{rate:,.0f} events/s, {cpu:.1f} CPU s per million"
    if ONLY == "drain":
        return
    for way in WAYS:
        times = latency(folder, way, cursor, broker)
        cuts = statistics.quantiles(times, n=100)
        yield (
            f"{way}: commit to consumer at {LIGHT:,} events/s",
            f"p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, worst {max(times):.0f} ms",
        )
    connection.close()


def topics(brokers: str, names: list[str]) -> None:
    kept = {"message.timestamp.type": "LogAppendTime", "segment.bytes": "100000000"}
    admin = AdminClient({"bootstrap.servers": brokers})
    for name in names:
        admin.create_topics([NewTopic(name, 3, 1, config=kept)])[name].result(20)


def inserts(cursor: Any, first: int = 1) -> int:
    for start in range(first, first + ROWS, IN_A_TRANSACTION):
        stop = start + IN_A_TRANSACTION - 1
        cursor.execute(f"INSERT INTO shop.orders SELECT {VALUES} FROM shop.seq_{start}_to_{stop}")
    return ROWS


def mixed(cursor: Any) -> int:
    """Each transaction inserts 60 rows, changes 30 and deletes 10 of the youngest."""
    cursor.execute(f"INSERT INTO shop.orders SELECT {VALUES} FROM shop.seq_1_to_{KEYS}")
    made, oldest, changed = KEYS, 1, 0
    events = KEYS
    while events < ROWS + KEYS:
        cursor.execute("BEGIN")
        cursor.execute(
            f"INSERT INTO shop.orders SELECT {VALUES} FROM shop.seq_{made + 1}_to_{made + 60}"
        )
        made += 60
        low = made - KEYS + changed % (KEYS - 200) + 100
        changed += 30
        cursor.execute(
            f"UPDATE shop.orders SET total = total + 1 WHERE id BETWEEN {low} AND {low + 29}"
        )
        events += 60 + cursor.rowcount
        oldest = made - KEYS
        cursor.execute(f"DELETE FROM shop.orders WHERE id BETWEEN {oldest} AND {oldest + 9}")
        events += cursor.rowcount
        cursor.execute("COMMIT")
    return events


def drain(folder: Path, way: str, events: int, database: MariaDB, broker: Kafka) -> Drained:
    began = time.time()
    job = Run(folder, f"{way}.yaml", "--once", "--master", "local[2]")
    assert database.pid and broker.pid
    watch = Watch({"job": job.pid, "database": database.pid, "broker": broker.pid})
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        job.end()
    finally:
        watch.done = True
        thread.join()
        job.kill()
    stamps = counted(broker.address, way)
    assert sum(stamps.values()) == events, (way, sum(stamps.values()), events, job.said()[-2000:])
    first, last = min(stamps), max(stamps)
    seen, quarter = 0, first
    for stamp in sorted(stamps):
        seen += stamps[stamp]
        quarter = stamp
        if seen >= events / 4:
            break
    return Drained(
        events,
        (last - first) / 1000,
        (events - seen) / ((last - quarter) / 1000),
        first / 1000 - began,
        watch.between(first / 1000, last / 1000),
        sum(watch.peak.values()) / 1024,
    )


def consumer(brokers: str, topic: str, end: bool = False) -> Any:
    made = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
        }
    )
    places = [TopicPartition(topic, n, 0) for n in range(3)]
    if end:
        for place in places:
            place.offset = made.get_watermark_offsets(place, timeout=10)[1]
    made.assign(places)
    return made


def counted(brokers: str, topic: str) -> Counter[int]:
    """How many messages the broker took in each millisecond."""
    stamps: Counter[int] = Counter()
    kept: list[tuple[bytes, bytes]] = []
    reader = consumer(brokers, topic)
    ended: set[int] = set()
    while len(ended) < 3:
        for message in reader.consume(10_000, timeout=10):
            if message.error():
                ended.add(message.partition())
                continue
            stamps[message.timestamp()[1]] += 1
            if len(kept) < KEYS:
                kept.append((message.value(), message.key()))
    reader.close()
    SAMPLE[:] = kept
    return stamps


SAMPLE: list[tuple[bytes, bytes]] = []


def bare(brokers: str) -> tuple[float, float]:
    producer = Producer(Settings("bare", brokers, False, 30, {}).producer(""))
    began, cpu = time.perf_counter(), time.process_time()
    sent = 0
    while sent < ROWS:
        for unit in range(0, len(SAMPLE), UNIT):
            for start in range(unit, min(unit + UNIT, len(SAMPLE)), CHUNK):
                part = SAMPLE[start : start + CHUNK]
                chunk = [{"value": v, "key": k} for v, k in part]
                assert producer.produce_batch("bare", chunk) == len(part)
                sent += len(part)
            assert producer.flush(30) == 0
    seconds = time.perf_counter() - began
    return sent / seconds, (time.process_time() - cpu) / sent * 1e6


def latency(folder: Path, way: str, cursor: Any, broker: Kafka) -> list[float]:
    """Milliseconds from before each commit to the consumer."""
    reader = consumer(broker.address, way, end=True)
    job = Run(folder, f"{way}.yaml", "--master", "local[2]")
    times: list[tuple[float, float]] = []
    stop = time.time() + 90

    def consume() -> None:
        while time.time() < stop:
            for message in reader.consume(1000, timeout=0.05):
                if message.error() is None:
                    sent = json.loads(message.value())["after"]["email"]
                    times.append((float(sent), (time.time() - float(sent)) * 1000))

    thread = threading.Thread(target=consume)
    thread.start()
    cursor.execute("SELECT MAX(id) FROM shop.orders")
    number = cursor.fetchone()[0]

    def write(rows: int) -> None:
        nonlocal number
        values = []
        now = time.time()
        for _ in range(rows):
            number += 1
            values.append(f"({number},1,'{now:.6f}',1,'{'x' * 140}','2026-01-31')")
        cursor.execute(f"INSERT INTO shop.orders VALUES {','.join(values)}")

    try:
        while not times:
            assert job.running and time.time() < stop, job.said()[-2000:]
            write(1)
            time.sleep(0.2)
        began = time.time()
        for n in range(LIGHT_SECS * LIGHT // 10):
            write(10)
            time.sleep(max(0.0, began + (n + 1) * 10 / LIGHT - time.time()))
        time.sleep(1.5)
    finally:
        stop = time.time()
        thread.join()
        if job.running:
            job.stop()
    reader.close()
    return [ms for sent, ms in times if sent >= began + LIGHT_SKIPPED]


if __name__ == "__main__":
    for title, value in run():
        print(f"{title:<60} {value}", flush=True)
