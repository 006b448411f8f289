"""The kafka sink against a bare loop of produce_batch: the same bytes, the same broker, by turns.

A unit is 16,000 events of about 280 bytes to one topic, acknowledged before the next begins. The
loop has its values as Python's bytes already; the sink takes them out of Arrow columns. Each round
sends one unit in each way, in changing order, so that whatever else the machine does hits all.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from dfc_runtime.batch import Piece
from dfc_runtime.deliver import Outlet
from dfc_runtime.events import Events, arrow_schema
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import KafkaSink, Lane
from dfc_runtime.sinks.kafka_client import Settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.services import Kafka
from tests.services.processes import Guard

UNIT, ROUNDS, WARM_UP = 16_000, 60, 6
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
    ways = {
        "bare": _bare(brokers),
        "sink": _sink(brokers, False),
        "exactly once": _sink(brokers, True),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(WARM_UP + ROUNDS):
        for name in names[number % 3 :] + names[: number % 3]:
            begin = time.perf_counter()
            ways[name](number)
            if number >= WARM_UP:
                took[name].append(time.perf_counter() - begin)
    best = {name: statistics.quantiles(each, n=4)[0] for name, each in took.items()}
    middle = {name: statistics.median(each) for name, each in took.items()}
    titles = {"bare": "produce_batch alone", "sink": "the sink", "exactly once": "  exactly once"}
    for name, title in titles.items():
        rate = f"{UNIT / middle[name]:,.0f} events/s"
        yield title, f"{rate}, {UNIT / best[name]:,.0f} in the quickest quarter"
    yield "the sink, of produce_batch alone", _ratio(middle, best, "bare", "sink")
    yield "exactly once, of the sink", _ratio(middle, best, "sink", "exactly once")
    yield "  of produce_batch alone", _ratio(middle, best, "bare", "exactly once")


def _ratio(middle: dict[str, float], best: dict[str, float], one: str, other: str) -> str:
    return f"{middle[one] / middle[other]:.2f} (quickest quarter {best[one] / best[other]:.2f})"


def _values() -> tuple[list[str], list[str]]:
    values = [
        f'{{"before":null,"after":{{"id":{n},"customer_id":{n * 7},"item":"thing {n:08d}",'
        f'"total":"{n % 1000}.50","status":"new"}},"source":{{"connector":"mysql","name":"bench",'
        f'"db":"shop","table":"orders"}},"op":"c","ts_ms":1700000000000,'
        f'"event_id":"dfid:v1:tsrow:{n:032x}"}}'
        for n in range(UNIT)
    ]
    return values, [f'{{"id":{n}}}' for n in range(UNIT)]


def _bare(brokers: str) -> Callable[[int], None]:
    producer = Producer(Settings("bare", brokers, False, 30, {}).producer(""))
    values, keys = ([text.encode() for text in texts] for texts in _values())

    def send(number: int) -> None:
        for start in range(0, UNIT, CHUNK):
            stop = start + CHUNK
            messages = [
                {"value": value, "key": key}
                for value, key in zip(values[start:stop], keys[start:stop], strict=True)
            ]
            assert producer.produce_batch(TOPIC, messages) == CHUNK
        assert producer.flush(30) == 0

    return send


def _sink(brokers: str, exactly_once: bool) -> Callable[[int], None]:
    def to(e: Events) -> Messages:
        return Messages(to=TOPIC, key=e.primary_key, value=e.column("after"))

    sink = KafkaSink(
        "exactly" if exactly_once else "least", to, brokers=brokers, exactly_once=exactly_once
    )
    lane = Lane(f"bench-{time.time_ns()}")
    outlet = Outlet(sink, lane, "")
    outlet.open()
    values, keys = _values()
    columns = {"after": values, "primary_key": keys, "tx_end": [True] * UNIT}
    schema = arrow_schema(["position", *columns])
    ready = pa.RecordBatch.from_pydict({"position": [""] * UNIT, **columns}, schema=schema)
    units = []
    for number in range(WARM_UP + ROUNDS):
        positions = pa.array([f"{number:08x}{n:08x}" for n in range(UNIT)])
        rows = ready.set_column(0, "position", positions)
        last = positions[UNIT - 1].as_py()
        units.append((Events(rows, pipeline="bench", tenant=None), [Piece(0, UNIT, last)]))

    def send(number: int) -> None:
        outlet.deliver(*units[number])
        assert outlet.error is None, outlet.error

    return send


if __name__ == "__main__":
    for what, value in run(*sys.argv[1:]):
        print(f"{what:<50} {value}")
