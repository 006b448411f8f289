"""The source inside a real Spark: what only Spark can show."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.sources import register

from .sqlite_files import database, turso_log

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row per call, also for an epoch without events."""
    events = [batch.num_rows for batch in batches]
    yield pa.RecordBatch.from_pydict({"events": pa.array([sum(events)], pa.int64())})


def run(events: Any, folder: Path, **trigger: Any) -> Any:
    """Starts a query that collects each epoch's counts by lane into `seen`."""
    seen: list[list[int]] = []
    query = (
        events.mapInArrow(count, "events bigint")
        .writeStream.foreachBatch(lambda acks, _: seen.append([a.events for a in acks.collect()]))
        .option("checkpointLocation", str(folder))
        .trigger(**trigger)
        .start()
    )
    return query, seen


def test_a_notebook_needs_only_the_url(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    turso_log(path).close()  # another pipeline, so that nothing is cleaned up
    writer.executemany("INSERT INTO t VALUES (?, 0.1)", [(n,) for n in range(5000)])
    events = spark.readStream.format("dfc_turso").options(url=f"file:{path}", tables='["*"]').load()
    assert events.columns[:3] == ["position", "tx_end", "op"]
    query, seen = run(events, tmp_path / "one", availableNow=True)
    assert query.awaitTermination(120)
    assert sum(map(sum, seen)) == 5000
    # The same checkpoint again: only what is new.
    writer.execute("UPDATE t SET a = 1 WHERE id < 7")
    query, seen = run(events, tmp_path / "one", availableNow=True)
    assert query.awaitTermination(120)
    assert sum(map(sum, seen)) == 7


def test_lanes_and_ticks_reach_the_plan(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    turso_log(path).close()
    writer.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
    options = {
        "url": str(path),
        "columns": "position tx_end op after",
        "folder": str(tmp_path / "segments"),
        "lanes": "2",
        "tick_secs": "0.5",
        "poll_interval_ms": "50",
    }
    events = spark.readStream.format("dfc_turso").options(**options).load()
    assert events.columns == ["position", "tx_end", "op", "after"]
    query, seen = run(events, tmp_path / "checkpoint", processingTime="0 seconds")
    try:
        for _ in range(240):
            if seen[-1:] == [[0, 0]] and len(seen) > 1:
                break
            assert not query.awaitTermination(0.25)
    finally:
        (tmp_path / "segments" / "stop").touch()
        query.stop()
    assert sum(map(sum, seen)) == 1000
    assert all(len(epoch) == 2 for epoch in seen), "an epoch without events still calls every lane"
    assert seen[-1] == [0, 0]


def test_a_lasting_failure_ends_the_query_with_its_line(spark: Any, tmp_path: Path) -> None:
    events = spark.readStream.format("dfc_turso").options(url=str(tmp_path / "none.db")).load()
    query, _ = run(events, tmp_path / "checkpoint", availableNow=True)
    with pytest.raises(Exception, match="SourceError: there is no database file"):
        query.awaitTermination(120)
