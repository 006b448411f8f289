"""The kafka sink against a bare loop of produce_batch: the same bytes, the same broker, by turns.

A unit is 16,000 events to one topic, acknowledged before the next begins. The loop has its keys and
values as Python's bytes already; the sink is given events, as a job gives them, and makes the native
envelope and the key of each. Each round sends ten units in each way, in changing order, so that
whatever else the machine does hits all; ratios are of each round, and the one in the middle counts.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from dfc_runtime.batch import Piece
from dfc_runtime.columns import native, table_key
from dfc_runtime.events import Events, arrow_schema
from dfc_runtime.messages import Messages
from dfc_runtime.outlet import Outlet
from dfc_runtime.sinks import KafkaSink, Lane
from dfc_runtime.sinks.kafka_client import Settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.services import Kafka
from tests.services.processes import Guard

UNIT, IN_A_ROW, ROUNDS = 16_000, 10, 20
CHUNK = 2_000  # messages in a call of the bare loop
TOPIC = "bench"


def run(brokers: str = "") -> Iterator[tuple[str, str]]:
    if brokers:
        yield from _measured(brokers)
        return
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard()
        server = Kafka(Path(folder) / "kafka", guard=guard, durable=False)
        try:
            server.start()
            yield from _measured(server.address)
        finally:
            guard.close()


def _measured(brokers: str) -> Iterator[tuple[str, str]]:
    admin = AdminClient({"bootstrap.servers": brokers})
    if TOPIC not in admin.list_topics(timeout=10).topics:
        kept = {"retention.bytes": "200000000", "segment.bytes": "50000000"}
        admin.create_topics([NewTopic(TOPIC, 3, 1, config=kept)])[TOPIC].result(20)
    yield "bytes of a message", str(_size())
    ways = {
        "bare": _bare(brokers, False),
        "bare transactions": _bare(brokers, True),
        "sink": _sink(brokers, False),
        "exactly once": _sink(brokers, True),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(ROUNDS + 1):
        for name in names[number % 4 :] + names[: number % 4]:
            begin = time.perf_counter()
            for unit in range(number * IN_A_ROW, (number + 1) * IN_A_ROW):
                ways[name](unit)
            if number:  # the first warms up
                took[name].append((time.perf_counter() - begin) / IN_A_ROW)
    titles = {
        "bare": "produce_batch alone",
        "bare transactions": "  in transactions",
        "sink": "the sink",
        "exactly once": "  exactly once",
    }
    for name, title in titles.items():
        yield title, f"{UNIT / statistics.median(took[name]):,.0f} events/s"
    yield "the sink, of produce_batch alone", _ratio(took["bare"], took["sink"])
    yield "exactly once, of the sink", _ratio(took["sink"], took["exactly once"])
    yield (
        "  of produce_batch in transactions",
        _ratio(took["bare transactions"], took["exactly once"]),
    )
    yield "produce_batch in transactions, of it alone", _ratio(
        took["bare"], took["bare transactions"]
    )


def _ratio(one: list[float], other: list[float]) -> str:
    ratios = [a / b for a, b in zip(one, other, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):.2f} (half of the rounds {low:.2f} to {high:.2f})"


def _events(number: int) -> Events:
    """A unit of inserts."""
    first = number * UNIT
    rows = range(first, first + UNIT)
    columns: dict[str, list[Any]] = {
        "position": [f"{n:016x}" for n in rows],
        "tx_end": [True] * UNIT,
        "op": ["c"] * UNIT,
        "ts_ms": [1_700_000_000_000] * UNIT,
        "db": ["shop"] * UNIT,
        "table": ["orders"] * UNIT,
        "primary_key": [f'{{"id":{n}}}' for n in rows],
        "before": [None] * UNIT,
        "after": [
            f'{{"id":{n},"customer_id":{n * 7},"item":"thing {n:08d}","total":"{n % 1000}.50",'
            '"status":"new"}'
            for n in rows
        ],
        "source": ['{"connector":"mysql","name":"bench","db":"shop","table":"orders"}'] * UNIT,
        "event_id": [f"dfid:v1:tsrow:{n:032x}" for n in rows],
        "schema_version": [None] * UNIT,
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=arrow_schema(list(columns)))
    return Events(batch, pipeline="bench", tenant=None)


def _size() -> int:
    made = _messages(_events(0))
    return (made.column("value", UNIT).nbytes + made.column("key", UNIT).nbytes) // UNIT - 8


def _messages(e: Events) -> Messages:
    return Messages(to=TOPIC, key=table_key(e), value=native(e))


def _bare(brokers: str, transactions: bool) -> Callable[[int], None]:
    settings = Settings("bare", brokers, transactions, 30, {})
    producer = Producer(settings.producer(f"bare-{time.time_ns()}"))
    if transactions:
        producer.init_transactions(30)
    made = _messages(_events(0))
    values, keys = (
        made.column(name, UNIT).cast(pa.binary()).to_pylist() for name in ("value", "key")
    )

    def send(number: int) -> None:
        if transactions:
            producer.begin_transaction()
        for start in range(0, UNIT, CHUNK):
            stop = start + CHUNK
            messages = [
                {"value": value, "key": key}
                for value, key in zip(values[start:stop], keys[start:stop], strict=True)
            ]
            assert producer.produce_batch(TOPIC, messages) == CHUNK
        if transactions:
            producer.commit_transaction(30)
        else:
            assert producer.flush(30) == 0

    return send


def _sink(brokers: str, exactly_once: bool) -> Callable[[int], None]:
    name = "exactly" if exactly_once else "least"
    sink = KafkaSink(name, _messages, brokers=brokers, exactly_once=exactly_once)
    outlet = Outlet(sink, Lane(f"bench-{time.time_ns()}"), "")
    outlet.open()
    units = [_events(number) for number in range((ROUNDS + 1) * IN_A_ROW)]

    def send(number: int) -> None:
        events = units[number]
        outlet.deliver(events, [Piece(0, UNIT, events.position[UNIT - 1].as_py())])
        assert outlet.error is None, outlet.error

    return send


if __name__ == "__main__":
    for what, value in run(*sys.argv[1:]):
        print(f"{what:<50} {value}")
