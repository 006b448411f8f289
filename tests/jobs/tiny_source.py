"""A source of numbered inserts for tests: event i is row i, transactions of `tx` rows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from dfc_runtime.events import EVENT_COLUMNS, arrow_schema, ddl_schema
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow


@dataclass(frozen=True)
class TinySource:
    id: str = "tiny"
    rows: int = 1000
    epoch: int = 400
    tx: int = 3
    tables: int = 1
    pause_ms: int = 0
    fail_at: int = -1
    columns: str = " ".join(EVENT_COLUMNS)

    def options(self) -> dict[str, str]:
        return {name: str(value) for name, value in asdict(self).items()}


def events(begin: int, end: int, tx: int = 3, tables: int = 1, last: int = -1) -> pa.RecordBatch:
    """Rows begin < i <= end."""
    numbers = range(begin + 1, end + 1)
    count = len(numbers)
    table = [f"t{i % tables}" for i in numbers]
    columns = {
        "position": [f"{i:016x}" for i in numbers],
        "tx_end": [i % tx == 0 or i == last for i in numbers],
        "op": ["c"] * count,
        "ts_ms": [1_700_000_000_000 + i for i in numbers],
        "db": ["main"] * count,
        "schema": [None] * count,
        "table": table,
        "primary_key": [f'{{"id":{i}}}' for i in numbers],
        "before": [None] * count,
        "after": [f'{{"id":{i},"name":"row {i}"}}' for i in numbers],
        "source": [f'{{"connector":"tiny","name":"p","db":"main","table":"{t}"}}' for t in table],
        "transaction": [f'{{"id":"{(i - 1) // tx}"}}' for i in numbers],
        "tx_id": [str((i - 1) // tx) for i in numbers],
        "event_id": [f"dfid:v1:tsrow:{i:032x}" for i in numbers],
        "schema_version": [None] * count,
        "schema_sequence": [None] * count,
        "ddl": [None] * count,
    }
    arrays = [pa.array(columns[name], kind) for name, kind in EVENT_COLUMNS.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(EVENT_COLUMNS))


class TinyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = dict(options)
        self.ticked = time.monotonic()

    def number(self, name: str) -> int:
        return int(float(self.options[name]))

    def initialOffset(self) -> dict[str, Any]:
        again = os.path.join(self.options["folder"], "start")
        if os.path.exists(again):
            with open(again) as file:
                return {"position": file.read(), "tick": 0}
        return {"position": self.options["start"], "tick": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, Any], limit: object = None) -> dict[str, Any]:
        at = int(start["position"] or "0", 16)
        end = min(at + self.number("epoch"), self.number("rows"))
        if end < self.number("rows"):
            end = max(at, end - end % self.number("tx"))
        if end <= at or os.path.exists(os.path.join(self.options["folder"], "stop")):
            time.sleep(0.05)
            every = float(self.options["tick_secs"])
            if every and time.monotonic() - self.ticked > every:
                self.ticked = time.monotonic()
                return {"position": start["position"], "tick": start["tick"] + 1}
            return start
        time.sleep(self.number("pause_ms") / 1000)
        return {"position": f"{end:016x}", "tick": start["tick"]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = int(start["position"] or "0", 16), int(end["position"], 16)
        return [InputPartition((first, last, lane)) for lane in range(self.number("lanes"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, last, lane = partition.value
        if first == last:
            return
        if first < self.number("fail_at") <= last:
            raise RuntimeError("the log is gone")
        batch = events(first, last, self.number("tx"), self.number("tables"), last)
        lanes = self.number("lanes")
        if lanes > 1:
            rows = [i for i in range(batch.num_rows) if (first + 1 + i) % lanes == lane]
            batch = batch.take(pa.array(rows, pa.int64()))
        yield batch.select(self.options["columns"].split())


class Tiny(DataSource):
    @classmethod
    def name(cls) -> str:
        return "dfc_tiny"

    def schema(self) -> str:
        return ddl_schema(self.options["columns"].split())

    def streamReader(self, schema: Any) -> TinyReader:
        return TinyReader(self.options)
