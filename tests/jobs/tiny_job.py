"""A job over the tiny source, shaped as an emitted one; settings come from the environment."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tiny_source
from dfc_runtime import ACKS, Batch, CommitPolicy, Env, Events, Job, Messages, Storage
from dfc_runtime.columns import join, native
from dfc_runtime.sinks import ConsoleSink, FileSink, KafkaSink, Sink
from pyspark import cloudpickle
from tiny_source import Tiny, TinySource

cloudpickle.register_pickle_by_value(tiny_source)

ENV = ("TINY_OUT", "TINY_ROWS")
BATCH = Batch(max_events=int(os.environ.get("TINY_UNIT", "100")))
STORAGE = Storage(backend="sqlite", path="${TINY_OUT}/state.db")


def process(events: Events) -> Events:
    return events


def to_archive(e: Events) -> Messages:
    return Messages(to=join("rows/", e.source.table), key=e.primary_key, value=native(e))


def to_screen(e: Events) -> Messages:
    return Messages(key=e.primary_key, value=e.after.text)


def sinks(env: Env) -> tuple[Sink, ...]:
    chosen: list[Sink] = [
        FileSink("archive", to_archive, required=True, path=env.fill("${TINY_OUT}/files"))
    ]
    if "TINY_CONSOLE" in env:
        chosen.append(ConsoleSink("screen", to_screen, required=False))
    if "TINY_KAFKA" in env:
        conf = {"no.such.key": "x"}
        chosen.append(
            KafkaSink("bus", to_archive, required=False, brokers="localhost:1", client_conf=conf)
        )
    return tuple(chosen)


def main() -> None:
    job = Job(
        "tiny",
        tenant="acme",
        env=ENV,
        storage=STORAGE,
        batch=BATCH,
        sinks=sinks,
        needs=tuple(os.environ.get("TINY_NEEDS", "").split()),
    )
    source = TinySource(
        rows=int(job.env["TINY_ROWS"]),
        epoch=int(job.env.fill("${TINY_EPOCH:-400}")),
        pause_ms=int(job.env.fill("${TINY_PAUSE:-0}")),
        fail_at=int(job.env.fill("${TINY_FAIL:--1}")),
    )
    spark = job.session()
    spark.dataSource.register(Tiny)
    events = spark.readStream.format("dfc_tiny").options(**job.options(source)).load()
    acks = events.mapInArrow(job.deliver(process), ACKS)
    job.run(acks.writeStream.foreachBatch(job.settle(CommitPolicy.required("archive"))))


if __name__ == "__main__":
    main()
