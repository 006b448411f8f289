"""Lanes: which share of the rows an event belongs to.

The lane of a row must be the same on every run, or a replay would give a row's events to a task
that knows nothing of its sink's position: so it is a CRC of text, never Python's own hash.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..kernels.jsontext import extract

NEEDED = ("table", "primary_key")
NEEDED_FOR_KEY = ("before", "after")


def split(batch: pa.RecordBatch, lanes: int, key: str = "") -> list[pa.RecordBatch | None]:
    """One batch per lane, in the order of the log; None for a lane without rows."""
    if lanes == 1:
        return [batch]
    numbers = _numbers(batch, lanes, key)
    shares: list[pa.RecordBatch | None] = []
    for lane in range(lanes):
        rows = np.flatnonzero(numbers == lane)
        shares.append(batch.take(pa.array(rows)) if len(rows) else None)
    return shares


def _numbers(batch: pa.RecordBatch, lanes: int, key: str) -> np.ndarray:
    if key:
        row = pc.coalesce(extract(batch["after"], (key,)), extract(batch["before"], (key,)))
        text = pc.coalesce(row, pa.scalar(""))
    else:
        # Rows without a primary key share the lane of their table: nothing tells them apart.
        text = pc.binary_join_element_wise(
            batch["table"], pc.coalesce(batch["primary_key"], pa.scalar("")), "\0"
        )
    hashes = np.fromiter(
        map(crc32, text.cast(pa.binary()).to_pylist()), dtype=np.uint32, count=len(text)
    )
    return hashes % np.uint32(lanes)
