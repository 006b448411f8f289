"""The floor that everything is measured against: the job with nothing in it.

Throughput: ready-made segments -> Spark -> native envelope -> a sink that only counts.
Latency: a row committed in SQLite -> trigger -> reader -> Spark -> commit of a sink, 100 a second.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from dfc_runtime import ACKS, Batch, CommitPolicy, Events, Job, Messages, Storage
from dfc_runtime.columns import native
from dfc_runtime.events import arrow_schema
from dfc_runtime.sinks import Sink
from dfc_runtime.sinks.base import Lane
from dfc_runtime.sources import TursoSource
from dfc_runtime.sources.segments import LanePartition, SegmentReader
from dfc_runtime.sources.settings import ReaderSettings
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

COLUMNS = "position tx_end op ts_ms db table before after source event_id schema_version"
SEGMENT_ROWS, SEGMENTS, WARM_UP = 250_000, 12, 4
PACKED = sys.argv[-1] != "rows"  # as jobs do it, or event by event as a notebook reads
LATENCY_RATE, LATENCY_SECS, LATENCY_WARM_UP_SECS = 100, 30, 5


class CountSink(Sink):
    """Takes everything and keeps nothing but sums, and the age of events when they commit."""

    kind = "count"
    ages: list[int]
    log: str | None = None

    def open(self, lane: Lane) -> str:
        self.ages = []
        return ""

    def write(self, messages: Messages, events: Events) -> None:
        # What a client library would be handed: the bytes of every value.
        assert messages.column("value", len(events)).nbytes > 0
        if self.log:
            self.ages += events.ts_ms.to_pylist()

    def commit(self, position: str) -> None:
        if self.log and self.ages:
            now = time.time_ns() // 1_000_000
            with open(self.log, "a") as file:
                file.write("".join(f"{now} {now - ts}\n" for ts in self.ages))
            self.ages = []


@dataclass(frozen=True)
class Ready:
    """A source whose segments lie in a folder before the job starts."""

    id: str = "ready"

    def options(self) -> dict[str, str]:
        return {"id": self.id}


class ReadyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self.folder = os.environ["DFC_BENCH_SEGMENTS"]

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        return {"n": min(start["n"] + 1, SEGMENTS)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[LanePartition]:
        paths = [f"{self.folder}/{n}.arrow" for n in range(start["n"], end["n"])]
        return [LanePartition(0, list(paths))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return SegmentReader.read(self, partition)  # type: ignore[arg-type]

    @property
    def settings(self) -> ReaderSettings:
        return ReaderSettings(packed=PACKED)


class ReadySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "dfc_ready"

    def schema(self) -> str:
        return ReaderSettings(packed=PACKED, columns=tuple(COLUMNS.split())).spark_schema

    def streamReader(self, schema: Any) -> ReadyReader:
        return ReadyReader(self.options)


def make_segments(folder: Path) -> int:
    """Segments of 250-byte inserts; returns bytes per event as the native envelope has them."""
    after = [
        f'{{"id":{n},"customer_id":{n * 7},"item":"thing {n:08d}","total":"{n % 1000}.50","status":"new"}}'
        for n in range(SEGMENT_ROWS)
    ]
    common = {
        "tx_end": [True] * SEGMENT_ROWS,
        "op": ["c"] * SEGMENT_ROWS,
        "ts_ms": [1_700_000_000_000] * SEGMENT_ROWS,
        "db": ["shop"] * SEGMENT_ROWS,
        "table": ["orders"] * SEGMENT_ROWS,
        "before": [None] * SEGMENT_ROWS,
        "after": after,
        "source": ['{"connector":"mysql","name":"floor","db":"shop","table":"orders"}']
        * SEGMENT_ROWS,
        "event_id": [f"dfid:v1:tsrow:{n:032x}" for n in range(SEGMENT_ROWS)],
        "schema_version": [None] * SEGMENT_ROWS,
    }
    schema = arrow_schema(COLUMNS.split())
    for segment in range(SEGMENTS):
        first = segment * SEGMENT_ROWS + 1
        positions = [f"{n:016x}" for n in range(first, first + SEGMENT_ROWS)]
        table = pa.table({**common, "position": positions}).select(schema.names).cast(schema)
        path = str(folder / f"{segment}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_table(table, max_chunksize=20_000)
    return len(after[0])


def timed(settle: Any, marks: list[tuple[float, int]]) -> Any:
    def wrapped(acks: Any, epoch: int) -> None:
        settle(acks, epoch)
        marks.append((time.monotonic(), epoch))

    return wrapped


def to_count(e: Events) -> Messages:
    return Messages(to="count", value=native(e))


def throughput() -> dict[str, float]:
    """Events a second through the whole job, after the first epochs."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DFC_BENCH_SEGMENTS"] = folder
        make_segments(Path(folder))
        marks: list[tuple[float, int]] = []
        job = Job(
            "floor",
            tenant="acme",
            sinks=lambda env: (CountSink("count", to_count),),
            batch=Batch(max_events=2000),
            storage=Storage(backend="memory"),
            argv=["--once", "--master", "local[2]"],
        )
        spark = job.session()
        spark.dataSource.register(ReadySource)
        events = spark.readStream.format("dfc_ready").options(**job.options(Ready())).load()
        acks = events.mapInArrow(job.deliver(), ACKS)
        job.run(
            acks.writeStream.foreachBatch(timed(job.settle(CommitPolicy.required("count")), marks))
        )
        epochs = [
            b - a for (a, _), (b, _) in zip(marks[WARM_UP:], marks[WARM_UP + 1 :], strict=False)
        ]
        return {"events_per_sec": SEGMENT_ROWS / statistics.median(epochs), "epochs": len(epochs)}


def latency() -> dict[str, float]:
    """Milliseconds from the trigger's clock to the sink's commit."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "shop.db", Path(folder) / "ages"
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        database.executescript(
            "PRAGMA journal_mode=WAL; CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)"
        )
        sink = CountSink("count", to_count)
        sink.log = str(log)
        job = Job(
            "floor",
            tenant="acme",
            sinks=lambda env: (sink,),
            batch=Batch(max_ms=1),
            storage=Storage(backend="memory"),
            argv=["--master", "local[2]"],
        )
        spark = job.session()
        source = TursoSource(
            id="t",
            url=str(path),
            tables=("t",),
            cdc_mode="triggers",
            poll_interval_ms=5,
            columns=COLUMNS,
        )
        events = spark.readStream.format("dfc_turso").options(**job.options(source)).load()
        acks = events.mapInArrow(job.deliver(), ACKS)

        def write() -> None:
            while not database.execute(
                "SELECT 1 FROM sqlite_master WHERE name='_df_cdc_t'"
            ).fetchone():
                time.sleep(0.1)
            begin = time.monotonic()
            n = 0
            while (now := time.monotonic() - begin) < LATENCY_WARM_UP_SECS + LATENCY_SECS:
                while n < now * LATENCY_RATE:
                    n += 1
                    database.execute("INSERT INTO t (v) VALUES (?)", (f"row {n}",))
                time.sleep(0.5 / LATENCY_RATE)
            time.sleep(2)
            job.stop()

        threading.Thread(target=write, daemon=True).start()
        job.run(acks.writeStream.foreachBatch(job.settle(CommitPolicy.required("count"))))
        rows = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
        begin = rows[0][0] + LATENCY_WARM_UP_SECS * 1000
        ages = sorted(age for at, age in rows if at >= begin)
        return {
            "p50_ms": ages[len(ages) // 2],
            "p99_ms": ages[int(len(ages) * 0.99)],
            "events": len(ages),
        }


def _measure(*what: str) -> dict[str, float]:
    """In a process of its own: one Spark each, and classes that travel to workers by value."""
    done = subprocess.run(
        [sys.executable, __file__, *what], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def run() -> list[tuple[str, str]]:
    rows, flow, delay = (
        _measure("throughput", "rows"),
        _measure("throughput"),
        _measure("latency"),
    )
    ratio = flow["events_per_sec"] / rows["events_per_sec"]
    return [
        ("empty job, native envelope", f"{flow['events_per_sec']:,.0f} events/s"),
        ("  median over", f"{flow['epochs']:.0f} epochs of {SEGMENT_ROWS:,} events"),
        ("  with a row for each event instead of each segment", f"1 / {ratio:.1f} of it"),
        ("commit to sink, 100 events/s, p50", f"{delay['p50_ms']:.0f} ms"),
        ("  p99", f"{delay['p99_ms']:.0f} ms of {delay['events']:.0f} events"),
    ]


if __name__ == "__main__":
    print(json.dumps({"throughput": throughput, "latency": latency}[sys.argv[1]]()))
