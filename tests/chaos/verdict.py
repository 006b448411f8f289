"""What each sink holds after a campaign, held against what was written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from dfc_runtime.storage import Storage

from ..nats_streams import Streams

Event = dict[str, Any]
_SHOWN = 5


@dataclass(slots=True)
class Verdict:
    """Problems, and what was looked at to find them."""

    events: int  # that were to arrive, without those the script makes
    letters: set[int]
    problems: list[str] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)  # events by sink, copies and repeats too

    def exactly_once(self, sink: str, streams: Iterable[list[Event]], ordered: bool) -> None:
        """Each event in one of the streams, once; each stream in order, or in order by key."""
        numbers: list[int] = []
        copies = inserted = 0
        ids: set[str] = set()
        repeated: list[str] = []
        for events in streams:
            self._order(sink, events, ordered)
            numbers += [_number(event) for event in events if "synthetic" not in event]
            copies += self._copies(sink, events, strictly=ordered)
            inserted += sum("number" in (event["after"] or {}) for event in events)
            for event in events:
                if event["event_id"] in ids:
                    repeated.append(event["event_id"])
                ids.add(event["event_id"])
        self.held[sink] = len(numbers) + copies
        self._all_there(sink, numbers)
        if len(numbers) != len(set(numbers)) or repeated:
            seen: set[int] = set()
            twice = [n for n in numbers if n in seen or seen.add(n)]  # type: ignore[func-returns-value]
            self._problem(sink, f"{max(len(twice), len(repeated))} repeated", twice or repeated)
        if copies != inserted:
            self._problem(sink, f"{copies} copies that the script made of {inserted} events", [])

    def at_least_once(self, sink: str, streams: Iterable[list[Event]], ordered: bool) -> None:
        """Each event in one of the streams; where it comes first is in order."""
        numbers: list[int] = []
        total = 0
        for events in streams:
            seen: set[str] = set()
            first = []
            for event in events:
                if event["event_id"] not in seen:
                    seen.add(event["event_id"])
                    first.append(event)
            total += len(events)
            self._order(sink, first, ordered)
            numbers += [_number(event) for event in first if "synthetic" not in event]
            self._copies(sink, first, strictly=False)
        self.held[sink] = total
        self._all_there(sink, numbers)

    def _all_there(self, sink: str, numbers: list[int]) -> None:
        seen = set(numbers)
        wanted = set(range(1, self.events + 1)) - self.letters
        if lost := sorted(wanted - seen):
            self._problem(sink, f"{len(lost)} of {len(wanted)} events lost", lost)
        if more := sorted(seen - wanted):
            self._problem(sink, f"{len(more)} events that are dead letters or unknown", more)

    def _order(self, sink: str, events: list[Event], ordered: bool) -> None:
        latest: dict[object, int] = {}
        wrong = []
        for event in events:
            key, number = None if ordered else _key(event), _number(event)
            if number < latest.get(key, 0):
                wrong.append(number)
            latest[key] = max(number, latest.get(key, 0))
        if wrong:
            self._problem(sink, f"{len(wrong)} out of order", wrong)

    def _copies(self, sink: str, events: list[Event], strictly: bool) -> int:
        """Copies that the script has made, each behind what it is a copy of."""
        copies = [event["after"]["copy"] for event in events if "synthetic" in event]
        if strictly:
            inserted = [e["after"]["number"] for e in events if "number" in (e["after"] or {})]
            if copies != inserted:
                wrong = [a for a, b in zip(copies, inserted, strict=False) if a != b]
                self._problem(sink, "copies are not behind what they are copies of", wrong)
        return len(copies)

    def _problem(self, sink: str, what: str, examples: list[Any]) -> None:
        shown = ", ".join(map(str, examples[:_SHOWN])) + (", …" if len(examples) > _SHOWN else "")
        self.problems.append(f"{sink}: {what}" + (f": {shown}" if examples else ""))


def _number(event: Event) -> int:
    return int(event["source"]["sequence"])


def _key(event: Event) -> tuple[str, object]:
    """The row: order is promised for each."""
    row = event["after"] or event["before"]
    table = event["source"]["table"]
    # A table without a primary key is one lane, and in the order of the log as a whole.
    return table, row["id"] if table == "orders" else None


# --- what the sinks hold --------------------------------------------------------------


def dead_letters(storage: Storage, pipeline: str) -> tuple[set[int], list[str]]:
    """Sequence numbers of the dead letters, and what is wrong with them."""
    opened = storage.open()
    try:
        found = [json.loads(v)["event"] for _, v in opened.peek("dlq", pipeline, 10_000_000)]
    finally:
        opened.close()
    numbers = [_number(event) for event in found]
    problems = []
    if len(set(numbers)) != len(numbers):
        problems.append(f"dead letters: {len(numbers) - len(set(numbers))} repeated")
    strange = [
        _number(e)
        for e in found
        if not (e["source"]["table"] == "orders" and e["op"] == "c" and e["after"]["id"] % 97 == 0)
    ]
    if strange:
        problems.append(
            f"dead letters: {len(strange)} at which the script does not fail: {strange[:_SHOWN]}"
        )
    return set(numbers), problems


def in_files(folder: Path) -> tuple[dict[str, list[Event]], list[str]]:
    """Events by table and in the order of the files' names; what is wrong with the files."""
    problems = [
        f"archive: {path.name} is unfinished after a clean end" for path in folder.rglob("*.part")
    ]
    tables: dict[str, list[Event]] = {}
    for table in ("orders", "items"):
        tables[table] = []
        for path in sorted((folder / table).rglob("*.jsonl")):
            events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            if not events or {e["source"]["table"] for e in events} != {table}:
                problems.append(f"archive: {path.name} is empty or has events of another table")
            tables[table] += events
    return tables, problems


def in_topic(brokers: str, topic: str) -> list[list[Event]]:
    """Events by partition, as readers see them that wait for transactions to be committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "chaos",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in partitions])
    found: dict[int, list[Event]] = {n: [] for n in partitions}
    left, deadline = set(partitions), time.monotonic() + 300
    while left:
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {topic} could not be read to its end")
        for message in consumer.consume(5000, 0.2):
            if message.error() is None:
                found[message.partition()].append(json.loads(message.value()))
            elif message.error().name() == "_PARTITION_EOF":
                left.discard(message.partition())
    consumer.close()
    return list(found.values())


def in_redis(uri: str, stream: str) -> list[Event]:
    client: Any = redis.Redis.from_url(uri)
    found: list[Event] = []
    after = "-"
    while entries := client.xrange(stream, min=after, count=5000):
        found += [json.loads(fields[b"df-event"]) for _, fields in entries]
        after = "(" + entries[-1][0].decode()
    client.close()
    return found


def in_nats(url: str, stream: str) -> list[Event]:
    return [json.loads(content) for _, _, content in Streams(url).messages(stream)]


def on_console(files: Iterable[Path]) -> list[Event]:
    """Lines of each run; the last of one that was killed may be cut off."""
    found = []
    for path in files:
        for line in path.read_bytes().split(b"\n")[:-1]:
            found.append(json.loads(line[line.index(b"{") :]))
    return found
