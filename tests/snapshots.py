"""A log with a copy of tables in it, driven as the segment reader drives one; and what a sink makes of it."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from dfc_runtime.sources.snapshot import SnapshotLog

Row = dict[str, Any]


@contextmanager
def opened(log: SnapshotLog, start: str = "") -> Iterator[SnapshotLog]:
    try:
        log.open(start)
        yield log
    finally:
        log.close()


def through(log: SnapshotLog, seconds: float = 60) -> Iterator[list[pa.RecordBatch]]:
    """Everything up to the end of the copy, and of the log as it is then."""
    until, head = time.monotonic() + seconds, ""
    while not head or log.position < head:
        assert time.monotonic() < until, f"stands at {log.position}"
        yield log.read(0.2)
        if log.copied() and not head:
            head = log.head()


def copied(log: SnapshotLog, seconds: float = 60) -> list[Row]:
    with opened(log):
        return [row for found in through(log, seconds) for b in found for row in b.to_pylist()]


class Sink:
    """Takes whole transactions behind its position, and applies them to tables of its own."""

    def __init__(self, keyless: tuple[str, ...] = ()) -> None:
        self.position = ""
        self.rows: dict[str, dict[str, str]] = {}
        self.bags: dict[str, Counter[str]] = {table: Counter() for table in keyless}
        self.copied: Counter[tuple[str, str]] = Counter()
        self.open: list[Row] = []

    def take(self, found: list[pa.RecordBatch]) -> None:
        for row in (row for b in found for row in b.to_pylist()):
            if row["position"] <= self.position:
                continue
            assert not self.open or row["position"] > self.open[-1]["position"]
            self.open.append(row)
            if row["tx_end"]:
                if row["op"] == "r" and row["table"] in self.bags:
                    # The whole table in one piece: it takes the place of all that was said before.
                    self.bags[row["table"]] = Counter()
                for one in self.open:
                    self._apply(one)
                self.position = row["position"]
                self.open = []

    def _apply(self, row: Row) -> None:
        table, before, after = row["table"], row["before"], row["after"]
        if row["ddl"] is not None and row["op"] != "t":
            return
        if row["op"] == "t":
            self.rows[table] = {}
            return
        if table in self.bags:
            bag = self.bags[table]
            if before is not None:
                bag[before] -= 1
            if after is not None:
                bag[after] += 1
            return
        rows = self.rows.setdefault(table, {})
        key = row["primary_key"]
        if before is not None:
            old = json.loads(before)
            rows.pop(_text({name: old[name] for name in json.loads(key)}), None)
        if after is not None:
            rows[_text(json.loads(key))] = after
        if row["op"] == "r":
            self.copied[table, key] += 1


def _text(key: Row) -> str:
    return json.dumps(key, sort_keys=True)


class Writing(threading.Thread):
    """Transactions of one change or several, until told to end."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.ended = threading.Event()
        self.failed: Exception | None = None
        self.done = 0

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                several = self.random.random() < 0.3
                self.transaction(self.random.randrange(1, 5) if several else 1)
                self.done += 1
                time.sleep(0.001)
        except Exception as error:
            self.failed = error

    def transaction(self, changes: int) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.ended.set()
        self.join(30)
        assert self.failed is None, self.failed


def written(folder: Path) -> list[dict[str, Any]]:
    """Events of the file sink `archive`."""
    lines = [
        line
        for path in sorted((folder / "archive").rglob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [json.loads(line) for line in lines]


def state(events: list[dict[str, Any]], table: str) -> dict[int, dict[str, Any]]:
    """The rows of a table with the key `id`, as its events leave them."""
    rows: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["source"]["table"] == table:
            if event["before"] is not None:
                rows.pop(event["before"]["id"], None)
            if event["after"] is not None:
                rows[event["after"]["id"]] = event["after"]
    return rows
