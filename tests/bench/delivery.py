"""Delivery through the whole job: ready segments -> Spark -> kafka sink -> a real broker.

One job, whose sink delivers one epoch at least once and the next exactly once, in units of 16,000
events; behind each epoch the driver sends the same messages with a bare loop of produce_batch. So
whatever else the machine does hits all three, and ratios are of neighbours. Then the memory that a
job takes for a short backlog in SQLite, and for one of four times its length.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from dfc_runtime import ACKS, Batch, CommitPolicy, Events, Job, Messages, Storage
from dfc_runtime.columns import native, table_key
from dfc_runtime.events import arrow_schema
from dfc_runtime.sinks import KafkaSink, Lane, Sink
from dfc_runtime.sinks.kafka_client import Settings

from tests.bench import floor
from tests.running import Run
from tests.services import Kafka, processes
from tests.services.processes import Guard

# A backlog comes in epochs of up to a million events or 256 MiB: these are such as a job has.
UNIT, UNITS, EPOCHS, WARM_UP = 16_000, 20, 14, 2
CHUNK = 2_000  # messages in a call of the bare loop
TOPIC = "bench"
COLUMNS = f"{floor.COLUMNS} primary_key"
BACKLOG, LONGER = 60_000, 4


class Turns(Sink):
    """Kafka in two ways, by turns: one for each epoch."""

    kind = "turns"

    def __init__(self, id: str, brokers: str) -> None:
        super().__init__(id, to_kafka)
        self.ways = [
            KafkaSink(name, to_kafka, brokers=brokers, exactly_once=name == "exactly")
            for name in ("least", "exactly")
        ]
        self.now: KafkaSink = self.ways[0]

    def open(self, lane: Lane) -> str:
        self.now = self.ways[turn(int(lane.known or "0", 16))]
        return self.now.open(lane)

    def write(self, messages: Messages, events: Events) -> None:
        self.now.write(messages, events)

    def commit(self, position: str) -> None:
        self.now.commit(position)

    def abort(self) -> None:
        self.now.abort()

    def close(self) -> None:
        self.now.close()


def turn(position: int) -> int:
    """Which of the ways an epoch takes that begins behind this position."""
    return position // (UNIT * UNITS) % 2


def to_kafka(e: Events) -> Messages:
    return Messages(to=TOPIC, key=table_key(e), value=native(e))


class Segments(floor.ReadyReader):
    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        return {"n": min(start["n"] + 1, EPOCHS)}


class Source(floor.ReadySource):
    def schema(self) -> str:
        settings = floor.ReaderSettings(packed=True, columns=tuple(COLUMNS.split()))
        return settings.spark_schema

    def streamReader(self, schema: Any) -> Segments:
        return Segments(self.options)


def events_of(epoch: int) -> pa.Table:
    count = UNIT * UNITS
    rows = range(epoch * count + 1, (epoch + 1) * count + 1)
    columns: dict[str, list[Any]] = {
        "position": [f"{n:016x}" for n in rows],
        "tx_end": [True] * count,
        "op": ["c"] * count,
        "ts_ms": [1_700_000_000_000] * count,
        "db": ["shop"] * count,
        "table": ["orders"] * count,
        "before": [None] * count,
        "after": [
            f'{{"id":{n},"customer_id":{n * 7},"item":"thing {n:08d}","total":"{n % 1000}.50",'
            '"status":"new"}'
            for n in rows
        ],
        "source": ['{"connector":"mysql","name":"bench","db":"shop","table":"orders"}'] * count,
        "event_id": [f"dfid:v1:tsrow:{n:032x}" for n in rows],
        "schema_version": [None] * count,
        "primary_key": [f'{{"id":{n}}}' for n in rows],
    }
    schema = arrow_schema(COLUMNS.split())
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def make_segments(folder: Path) -> list[tuple[bytes, bytes]]:
    """Returns the messages of the first one."""
    for epoch in range(EPOCHS):
        table = events_of(epoch)
        path = str(folder / f"{epoch}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=UNIT)
    (batch,) = events_of(0).combine_chunks().to_batches()
    made = to_kafka(Events(batch, pipeline="delivery", tenant=None))
    values, keys = (
        made.column(name, len(batch)).cast(pa.binary()).to_pylist() for name in ("value", "key")
    )
    return list(zip(values, keys, strict=True))


def throughput() -> dict[str, list[float]]:
    """Seconds of each epoch: of the job in both ways, and of the bare loop behind it."""
    brokers = os.environ["DFC_BENCH_BROKERS"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DFC_BENCH_SEGMENTS"] = folder
        messages = make_segments(Path(folder))
        producer = Producer(Settings("bare", brokers, False, 30, {}).producer(""))
        job = Job(
            "delivery",
            sinks=lambda env: (Turns("bus", brokers),),
            batch=Batch(max_events=UNIT),
            storage=Storage(backend="memory"),
            argv=["--once", "--master", "local[2]"],
        )
        spark = job.session()
        spark.dataSource.register(Source)
        events = spark.readStream.format("dfc_ready").options(**job.options(floor.Ready())).load()
        acks = events.mapInArrow(job.deliver(), ACKS)
        settle = job.settle(CommitPolicy.required("bus"))
        took: dict[str, list[float]] = {"least": [], "exactly": [], "bare": [], "all": []}
        state = {"at": time.perf_counter(), "epoch": 0.0}

        def timed(frame: Any, epoch: int) -> None:
            settle(frame, epoch)
            now = time.perf_counter()
            number = int(state["epoch"])
            if number >= WARM_UP:
                took[("least", "exactly")[turn(number * UNIT * UNITS)]].append(now - state["at"])
            state["epoch"] += 1
            bare(producer, messages)
            if number >= WARM_UP:
                took["bare"].append(time.perf_counter() - now)
            state["at"] = time.perf_counter()

        job.run(acks.writeStream.foreachBatch(timed))
        return took


def bare(producer: Any, messages: list[tuple[bytes, bytes]]) -> None:
    for unit in range(0, len(messages), UNIT):
        for start in range(unit, unit + UNIT, CHUNK):
            chunk = [{"value": v, "key": k} for v, k in messages[start : start + CHUNK]]
            assert producer.produce_batch(TOPIC, chunk) == CHUNK
        assert producer.flush(30) == 0


# --- memory ----------------------------------------------------------------------------------

SPEC = """\
metadata: {name: backlog-ROWS, tenant: acme}
spec:
  source: {type: turso, config: {id: db, url: shop.db, tables: [orders], cdc_mode: triggers}}
  storage: {path: state.db}
  sinks:
    - type: kafka
      config: {id: bus, brokers: "${DFC_BENCH_BROKERS}", topic: bench, exactly_once: true}
"""


def peak_memory(rows: int) -> dict[str, float]:
    """Of a job that drains a backlog: megabytes of its Python processes together, and of Java."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = sqlite3.connect(folder / "shop.db", isolation_level=None)
        database.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, note TEXT)"
        )
        # Each of another name: the broker knows where a pipeline stands.
        (folder / "backlog.yaml").write_text(SPEC.replace("ROWS", str(rows)))
        Run(folder, "backlog.yaml", "--once", "--master", "local[2]").end()  # makes the triggers
        database.execute("BEGIN")
        database.executemany(
            "INSERT INTO orders VALUES (?, ?, ?)",
            ((n, f"thing {n:08d}", "x" * 200) for n in range(rows)),
        )
        database.execute("COMMIT")
        run = Run(folder, "backlog.yaml", "--once", "--master", "local[2]")
        peaks: dict[int, tuple[bool, int]] = {}
        while run.running:
            for pid in processes.family(run.pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text().splitlines()
                    is_java = Path(f"/proc/{pid}/exe").readlink().name == "java"
                except OSError:
                    continue
                peak = next((x for x in status if x.startswith("VmHWM:")), "VmHWM: 0")
                peaks[pid] = (is_java, int(peak.split()[1]))
            time.sleep(0.1)
        run.end()
        (done,) = run.events("stopped")
        assert done["events"] == rows, run.said()
        return {
            "python": sum(kb for java, kb in peaks.values() if not java) / 1024,
            "java": sum(kb for java, kb in peaks.values() if java) / 1024,
            "rate": rows / done["seconds"],
        }


def run() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard()
        server = Kafka(Path(folder) / "kafka", guard=guard, durable=False)
        try:
            server.start()
            os.environ["DFC_BENCH_BROKERS"] = server.address
            kept = {"retention.bytes": "200000000", "segment.bytes": "50000000"}
            admin = AdminClient({"bootstrap.servers": server.address})
            admin.create_topics([NewTopic(TOPIC, 3, 1, config=kept)])[TOPIC].result(20)
            yield from _flow(_measure("throughput"))
            short, long = peak_memory(BACKLOG), peak_memory(BACKLOG * LONGER)
            for kind in ("python", "java"):
                yield (
                    f"peak memory of {kind.title()}, {BACKLOG:,} and {BACKLOG * LONGER:,} rows",
                    f"{short[kind]:.0f} and {long[kind]:.0f} MiB",
                )
        finally:
            guard.close()


def _flow(took: dict[str, list[float]]) -> Iterator[tuple[str, str]]:
    events = UNIT * UNITS
    titles = {
        "bare": "produce_batch alone",
        "least": "the job, segments to broker",
        "exactly": "  exactly once",
    }
    for name, title in titles.items():
        yield title, f"{events / statistics.median(took[name]):,.0f} events/s"
    count = len(took["exactly"])
    # bare has one entry behind each epoch: its neighbours are those of the same two epochs.
    around = [statistics.mean(took["bare"][2 * n : 2 * n + 2]) for n in range(count)]
    yield "the job, of produce_batch alone", _ratio(around, took["least"])
    yield "exactly once, of the job at least once", _ratio(took["least"], took["exactly"])
    yield "  epochs in each way", f"{count}, of {UNITS} units of {UNIT:,} events"


def _ratio(one: list[float], other: list[float]) -> str:
    ratios = [a / b for a, b in zip(one, other, strict=False)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):.2f} (half of the pairs {low:.2f} to {high:.2f})"


def _measure(what: str) -> Any:
    """In a process of its own: classes of a program travel to the workers by value."""
    done = subprocess.run(
        [sys.executable, __file__, what], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    if sys.argv[1:] == ["throughput"]:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(floor)
        print(json.dumps(throughput()))
    else:
        for title, value in run():
            print(f"{title:<60} {value}", flush=True)
