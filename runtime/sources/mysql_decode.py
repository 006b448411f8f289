"""Rows events to event columns: which table, which place in the transaction, which is its last.

The last row of a transaction that is still open is held back: only what follows tells whether it is
the transaction's last.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from ..kernels import binlog as kernel
from ..kernels.mysql_rows import PARTIAL_UPDATE, Decoded, RowError
from .log import SourceError
from .mysql_binlog import Frames
from .mysql_events import CREATE, DELETE, UPDATE, EventBuilder, Rows, Shown, Transactions
from .mysql_packets import inflate
from .mysql_tables import Here, Known, Tables
from .mysql_walk import Taken, Walk

File = tuple[str, int]  # name and number
Home = tuple[int, File, Any]  # era, file and transactions, as their positions tell them
_OPS = np.array([CREATE, UPDATE, DELETE], np.int64)


class RowsReader:
    """Makes record batches, and remembers what it has made of the open transaction."""

    def __init__(self, builder: EventBuilder, tables: Tables, walk: Walk) -> None:
        self._builder = builder
        self._tables = tables
        self._walk = walk
        self._total = 0  # events of the open transaction so far
        self._of_table: Counter[tuple[str, str]] = Counter()
        self._last = 0  # event and row of its last one
        self._held: pa.RecordBatch | None = None
        self._file = ""
        self.ends: Any = np.zeros(0, np.int64)  # of the whole transactions of the last call

    @property
    def begun(self) -> bool:
        """Whether there are events of the open transaction already."""
        return self._total > 0

    def read(
        self,
        frames: Frames,
        walk: Walk,
        taken: Taken,
        era: int,
        file: File,
        here: Here,
        packed: bool = False,
    ) -> list[pa.RecordBatch]:
        """The events of what was taken; `packed` for rows events that share a place in the file.

        `here` is where they stand in the present server's log, whatever era their positions have.
        """
        txs, whole = taken.txs, taken.whole
        self._file = file[0]
        self.ends = np.zeros(whole, np.int64)
        out: list[pa.RecordBatch] = []
        rows = self._rows(frames, walk, taken, (era, file[1]), here, packed)
        count = 0 if rows is None else len(rows[0].tx)
        if self._held is not None:
            goes_on = rows is not None and rows[0].tx[0] == 0
            if goes_on or whole:
                out.append(self._held if goes_on else with_end(self._held))
                self._held = None
        if whole:
            self.ends[0] = self._last
        if rows is None:
            if whole:
                self._clear()
            return out
        made, shown = rows
        ordinals = made.number << 28 | made.row
        lasts = np.flatnonzero(np.diff(made.tx, append=whole + 1))
        closed = lasts[made.tx[lasts] < whole]
        made.tx_end[closed] = True
        self.ends[made.tx[closed]] = ordinals[closed]
        batch = self._builder.batch(era, file, shown, self._transactions(txs), made)
        is_open = int(made.tx[-1]) == whole
        if whole:
            self._clear()
        if is_open:
            first = int(np.searchsorted(made.tx, whole))
            self._total += count - first
            for index, times in enumerate(np.bincount(made.table[first:], minlength=len(shown))):
                self._of_table[shown[index].db, shown[index].table] += int(times)
            self._last = int(ordinals[-1])
            self._held = batch.slice(count - 1)
            batch = batch.slice(0, count - 1)
        if batch.num_rows:
            out.append(batch)
        return out

    def statement(
        self, shown: Shown, op: int, ddl: str | None, pos: int, home: Home, closing: bool
    ) -> list[pa.RecordBatch]:
        """The event of a statement in the open transaction."""
        era, file, txs = home
        number = self._walk.statement()
        self._total += 1
        self._of_table[shown.db, shown.table] += 1
        one = np.zeros(1, np.int64)
        rows = Rows(
            tx=one,
            number=one + number,
            row=one,
            pos=one + pos,
            id_pos=one + pos,
            table=one,
            op=one + op,
            tx_end=np.array([closing]),
            total=one + self._total,
            of_table=one + self._of_table[shown.db, shown.table],
            before=None,
            after=None,
            key=None,
            ddl=pa.array([ddl], pa.string()),
        )
        transactions = self._transactions(txs)
        out = [] if self._held is None else [self._held]
        self._held = None
        batch = self._builder.batch(era, file, [shown], transactions, rows)
        self._last = number << 28
        if closing:
            out.append(batch)
        else:
            self._held = batch
        return out

    def _transactions(self, txs: Any) -> Transactions:
        micros = txs[:, kernel.T_MICROS]
        return Transactions(
            starts=txs[:, kernel.T_START],
            millis=np.where(micros > 0, micros // 1000, txs[:, kernel.T_TIME] * 1000),
            micros=micros,
            servers=txs[:, kernel.T_SERVER],
            numbers=txs[:, kernel.T_NUMBER],
            sources=self._walk.sources(txs),
            names=self._walk.names,
        )

    def _clear(self) -> None:
        self._total, self._last = 0, 0
        self._of_table = Counter()

    # --- rows --------------------------------------------------------------------------------

    def _rows(
        self, frames: Frames, walk: Walk, taken: Taken, home: Here, here: Here, packed: bool
    ) -> tuple[Rows, list[Shown]] | None:
        events = taken.rows
        self._tables.learn(frames, walk, taken, home, here)
        if len(events) == 0:
            return None
        tables, index_of = self._tables.of(events[:, kernel.R_MAP])
        parts: list[tuple[Any, int, Decoded]] = []
        for index, known in enumerate(tables):
            mine = np.flatnonzero(index_of == index)
            decoded = self._decode(frames, events[mine], known)
            if len(decoded.event):
                parts.append((mine, index, decoded))
        if not parts:
            return None
        event = np.concatenate([mine[d.event] for mine, _, d in parts])
        row = np.concatenate([d.row for _, _, d in parts])
        table = np.concatenate([np.full(len(d.event), i, np.int64) for _, i, d in parts])
        texts = [
            _texts([(getattr(d, name), len(d.event)) for _, _, d in parts])
            for name in ("before", "after", "key")
        ]
        if len(parts) > 1:
            order = np.argsort(event, kind="stable")
            event, row, table = event[order], row[order], table[order]
            texts = [None if text is None else text.take(pa.array(order)) for text in texts]
        tx = events[event, kernel.R_TX]
        shown = [known.shown for known in tables]
        total, of_table = self._orders(tx, table, shown)
        pos = events[event, kernel.R_POS]
        number = events[event, kernel.R_NUMBER]
        made = Rows(
            tx=tx,
            number=number,
            row=row,
            pos=pos,
            id_pos=pos | number << 40 if packed else pos,
            table=table,
            op=_OPS[events[event, kernel.R_KIND]],
            tx_end=np.zeros(len(tx), bool),
            total=total,
            of_table=of_table,
            before=texts[0],
            after=texts[1],
            key=texts[2],
        )
        return made, shown

    def _decode(self, frames: Frames, events: Any, table: Known) -> Decoded:
        kinds = np.where(
            events[:, kernel.R_WAY] == kernel.PARTIAL, PARTIAL_UPDATE, events[:, kernel.R_KIND]
        )
        data = frames.data
        starts, stops = events[:, kernel.R_BEGIN], events[:, kernel.R_STOP]
        before = events[:, kernel.R_BITS]
        size = (int(events[0, kernel.R_WIDTH]) + 7) // 8
        after = before + np.where(events[:, kernel.R_KIND] == kernel.UPDATE, size, 0)
        try:
            if (events[:, kernel.R_WAY] == kernel.COMPRESSED).any():
                data, starts, stops, before, after = _inflated(data, events, before, after)
            return table.decoder.rows(data, starts, stops, kinds, before, after)
        except RowError as error:
            shown, pos = table.shown, int(events[error.event, kernel.R_POS])
            raise SourceError(
                f"a row of {shown.db}.{shown.table} cannot be read, in the event that ends at "
                f"{pos} of {self._file}: {error.reason}"
            ) from error

    def _orders(self, tx: Any, table: Any, shown: list[Shown]) -> tuple[Any, Any]:
        """The place of each event in its transaction, and among those of its table in it."""
        count = len(tx)
        total = np.arange(1, count + 1) - np.searchsorted(tx, tx, "left")
        if self._total and tx[0] == 0:
            total[: int(np.searchsorted(tx, 0, "right"))] += self._total
        names = [(s.db, s.table) for s in shown]
        if len(set(names)) == 1 and self._of_table.total() == self._of_table[names[0]]:
            return total, total
        same = np.array([names.index(name) for name in names], np.int64)
        key = tx * len(names) + same[table]
        order = np.argsort(key, kind="stable")
        ranks = np.empty(count, np.int64)
        ranks[order] = np.arange(1, count + 1) - np.searchsorted(key[order], key[order], "left")
        if self._total and tx[0] == 0:
            older = np.array([self._of_table[name] for name in names], np.int64)
            first = int(np.searchsorted(tx, 0, "right"))
            ranks[:first] += older[table[:first]]
        return total, ranks


def with_end(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same row as the last of its transaction."""
    index = batch.schema.get_field_index("tx_end")
    if index < 0:
        return batch
    return batch.set_column(index, batch.schema.field(index), pa.array([True]))


def _texts(parts: list[tuple[pa.Array | None, int]]) -> pa.Array | None:
    if all(text is None for text, _ in parts):
        return None
    if len(parts) == 1:
        return parts[0][0]
    return pa.concat_arrays(
        [pa.nulls(count, pa.string()) if text is None else text for text, count in parts]
    )


def _inflated(data: Any, events: Any, before: Any, after: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Rows that MariaDB has compressed, in a buffer of their own with the bitmaps beside them."""
    parts, starts, stops, firsts, seconds, at = [], [], [], [], [], 0
    for index, event in enumerate(events):
        bits = data[int(before[index]) : int(event[kernel.R_BEGIN])].tobytes()
        raw = data[int(event[kernel.R_BEGIN]) : int(event[kernel.R_STOP])].tobytes()
        rows = inflate(raw) if event[kernel.R_WAY] == kernel.COMPRESSED else raw
        if rows is None:
            raise RowError(index, int(event[kernel.R_BEGIN]), "compressed rows are damaged")
        firsts.append(at)
        seconds.append(at + int(after[index] - before[index]))
        starts.append(at + len(bits))
        at += len(bits) + len(rows)
        stops.append(at)
        parts += [bits, rows]
    made: Any = np.frombuffer(b"".join(parts), np.uint8)
    return made, np.array(starts), np.array(stops), np.array(firsts), np.array(seconds)
