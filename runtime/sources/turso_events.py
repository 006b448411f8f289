"""Event columns of a Turso source out of what SQLite returned."""

from __future__ import annotations

import gc
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..events import EVENT_COLUMNS
from .settings import ReaderSettings
from .version import RUNTIME_VERSION

_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)


class EventBuilder:
    """Builds the wanted columns and no others."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._wanted = settings.needed
        self._schema = pa.schema([(name, EVENT_COLUMNS[name]) for name in self._wanted])
        self._name = settings.pipeline or settings.id
        # What SQLite itself has to make, in the order in which `batch` takes it.
        self.texts = tuple(n for n in ("primary_key", "before", "after") if n in self._wanted)

    def batch(
        self,
        *,
        table: str,
        position: pa.Array,
        op: Sequence[object],
        ts_ms: Sequence[object],
        texts: Sequence[Sequence[object]],
        sequence: pa.Array,
        schema_version: str,
        event_ids: Callable[[], list[str]],
    ) -> pa.RecordBatch:
        """Raises ArrowInvalid when a text is no UTF-8."""
        rows = len(position)
        times = pa.array(ts_ms, pa.int64())
        made = dict(zip(self.texts, texts, strict=True))

        def column(name: str) -> pa.Array:
            match name:
                case "position":
                    return position
                case "tx_end":
                    return pa.repeat(pa.scalar(True), rows)
                case "op":
                    return _strings(op)
                case "ts_ms":
                    return times
                case "db":
                    return pa.repeat(pa.scalar("main"), rows)
                case "table":
                    return pa.repeat(pa.scalar(table), rows)
                case "source":
                    return self._source(table, times.cast(pa.string()), sequence)
                case "event_id":
                    return pa.array(event_ids(), pa.string())
                case "schema_version":
                    return pa.repeat(pa.scalar(schema_version), rows)
                case _:
                    return (
                        _strings(made[name])
                        if name in made
                        else pa.nulls(rows, EVENT_COLUMNS[name])
                    )

        return pa.RecordBatch.from_arrays([column(n) for n in self._wanted], schema=self._schema)

    def _source(self, table: str, times: pa.Array, sequence: pa.Array) -> pa.Array:
        head = f'{{"version":"dfc-{RUNTIME_VERSION}","connector":"turso","name":{_json(self._name)},"ts_ms":'
        middle = f',"db":"main","table":{_json(table)},"sequence":"'
        return pc.binary_join_element_wise(head, times, middle, sequence, '"}', "")


def fetch(cursor: sqlite3.Cursor, limit: int) -> tuple[list[tuple[Any, ...]], bool]:
    """Rows until their texts take `limit` bytes; whether that has left some out."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    cursor.arraysize = 256
    while chunk := cursor.fetchmany():
        rows += chunk
        # Every sixteenth row tells enough, and counting all takes a tenth of the time.
        sample = chunk[::16]
        size += 16 * sum(len(value) for row in sample for value in row if type(value) is bytes)
        if size >= limit:
            break
    cut = bool(chunk) and cursor.fetchone() is not None
    cursor.close()
    return rows, cut


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Rows are tuples by the ten thousand, which the collector would visit for a third of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def hex_column(numbers: np.ndarray) -> pa.Array:
    """Each number as 16 hex digits, which compare as the numbers do."""
    digits = _HEX[numbers.astype(">u8").view(np.uint8)].reshape(-1)
    offsets = np.arange(0, 16 * len(numbers) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(digits))


def _strings(values: Sequence[object]) -> pa.Array:
    return pa.array(values, pa.binary()).cast(pa.string())


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
