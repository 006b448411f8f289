"""Batch settings, and cutting a lane's events into the units that a sink commits together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SIZED = ("before", "after", "source")


@dataclass(frozen=True, slots=True)
class Batch:
    """The user's `batch` block: the limits of a unit, and how long a quiet source collects one."""

    max_events: int = 2000
    max_bytes: int = 16_777_216
    max_ms: int = 50
    respect_source_tx: bool = True
    max_inflight: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of a record batch; with a position they end a unit there.

    A piece without rows ends the unit whose rows came in earlier record batches.
    """

    start: int
    stop: int
    position: str | None


class Cutter:
    """Cuts the record batches of one lane and epoch, in order.

    A unit is the longest run of whole transactions within the limits, and at least one
    transaction. Where a record batch ends inside a transaction, the whole ones before it are
    committed at once, so that nothing already written has to be taken back.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._events = 0  # rows of the open unit
        self._bytes = 0
        self._whole = True  # the open unit ends with a whole transaction
        self._last = ""

    def cut(self, rows: pa.RecordBatch) -> list[Piece]:
        """The pieces of the next record batch."""
        count = rows.num_rows
        if count == 0:
            return []
        positions = rows.column("position")
        # weight[i] is the size of the first i rows
        weight = np.concatenate(([0], np.cumsum(sizes(rows))))
        ends = self._ends(rows, count)
        end_weight = weight[ends]
        pieces: list[Piece] = []
        start = 0
        while True:
            by_events = np.searchsorted(
                ends, start + self._batch.max_events - self._events, "right"
            )
            by_bytes = np.searchsorted(
                end_weight, weight[start] + self._batch.max_bytes - self._bytes, "right"
            )
            fitting = int(min(by_events, by_bytes)) - 1
            following = int(np.searchsorted(ends, start, "right"))
            overfull = fitting < following  # not even the next transaction fits
            if overfull and self._events and self._whole and start == 0:
                # ... beside what earlier record batches left open: that is a unit by itself.
                pieces.append(Piece(0, 0, self._last))
                self._events = self._bytes = 0
                continue
            index = following if overfull else fitting
            if index >= len(ends):
                break
            stop = int(ends[index])
            if (
                stop == count
                and not overfull
                and not self._full(stop - start, weight[stop] - weight[start])
            ):
                break  # more may fit into this unit
            pieces.append(Piece(start, stop, positions[stop - 1].as_py()))
            self._events = self._bytes = 0
            self._whole = True
            start = stop
        if start < count:
            pieces.append(Piece(start, count, None))
            self._events += count - start
            self._bytes += int(weight[count] - weight[start])
            self._whole = len(ends) > 0 and int(ends[-1]) == count
        self._last = positions[count - 1].as_py()
        return pieces

    def finish(self) -> str | None:
        """Position that ends the open unit at the end of the epoch; None when none is open."""
        return self._last if self._events else None

    def _full(self, events: int, size: int) -> bool:
        return (
            self._events + events >= self._batch.max_events
            or self._bytes + size >= self._batch.max_bytes
        )

    def _ends(self, rows: pa.RecordBatch, count: int) -> Any:
        """Row counts after which a unit may end."""
        if not self._batch.respect_source_tx:
            return np.arange(1, count + 1)
        tx_end = rows.column("tx_end").fill_null(False).to_numpy(zero_copy_only=False)
        return np.flatnonzero(tx_end) + 1


def sizes(rows: pa.RecordBatch) -> Any:
    """Text bytes of each event, by the columns that hold nearly all of it."""
    total = np.zeros(rows.num_rows, np.int64)
    for name in _SIZED:
        index = rows.schema.get_field_index(name)
        if index >= 0 and rows.column(index).null_count < rows.num_rows:
            lengths = pc.fill_null(pc.binary_length(rows.column(index)), 0)
            total += lengths.to_numpy(zero_copy_only=False)
    return total
