"""Event columns of rows that a snapshot has copied: op `r`, without a place in the log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from .. import ids
from ..events import EVENT_COLUMNS
from ..kernels.jsontext import MISSING
from ..kernels.members import find
from .settings import ReaderSettings
from .version import RUNTIME_VERSION

Make = Callable[[pa.Array | None, pa.Array], pa.RecordBatch]

_NOT_PLAIN = np.frombuffer(bytes([MISSING]) + b"{[n", np.uint8)


class CopiedRows:
    """Builds the wanted columns and no others; positions are put in by the snapshot itself."""

    def __init__(self, settings: ReaderSettings, connector: str, generation: int) -> None:
        self._wanted = settings.needed
        self._schema = pa.schema([(name, EVENT_COLUMNS[name]) for name in self._wanted])
        self._name = settings.pipeline or settings.id
        self._connector = connector
        self._generation = generation

    def of(self, db: str, table: str, schema: str | None = None, again: int = 0) -> Make:
        """For the rows of one view, which are of one moment; `again` as chunks have it."""
        now = time.time_ns() // 1_000_000
        source = {
            "version": f"dfc-{RUNTIME_VERSION}",
            "connector": self._connector,
            "name": self._name,
            "ts_ms": now,
            "db": db,
            **({} if schema is None else {"schema": schema}),
            "table": table,
            "snapshot": "true",
        }
        text = json.dumps(source, ensure_ascii=False, separators=(",", ":"))
        constants: dict[str, Any] = {
            "position": "",
            "tx_end": False,
            "op": "r",
            "ts_ms": now,
            "db": db,
            "schema": schema,
            "table": table,
            "source": text,
        }
        # Two names with a dot between them could be two other ones.
        named = table if schema is None else json.dumps([schema, table], ensure_ascii=False)
        if again:  # a row of another table that has taken the name is another row
            named = f"{named}#{again}"

        def column(name: str, key: pa.Array | None, after: pa.Array) -> pa.Array:
            kind = EVENT_COLUMNS[name]
            if name == "after":
                return after
            if name == "primary_key" and key is not None:
                return key
            if name == "event_id" and key is not None:
                return self._ids(db, named, key)
            return pa.repeat(pa.scalar(constants.get(name), kind), len(after))

        def batch(key: pa.Array | None, after: pa.Array) -> pa.RecordBatch:
            arrays = [column(name, key, after) for name in self._wanted]
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

        return batch

    def _ids(self, db: str, table: str, keys: pa.Array) -> pa.Array:
        """By the values of the key, as texts: a chunk that is read again has the same ones."""
        place = self._generation, db, table
        names = list(json.loads(keys[0].as_py())) if len(keys) else []
        members = find(keys, names)
        if all(np.isin(member.kind, _NOT_PLAIN, invert=True).all() for member in members.values()):
            return ids.snapshot_rows(*place, [members[name].plain for name in names])
        made = []
        for text in keys.to_pylist():
            values = json.loads(text, parse_int=str, parse_float=str).values()
            parts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
            made.append(ids.snapshot_row(*place, parts))
        return pa.array(made, pa.string())
