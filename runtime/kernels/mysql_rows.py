"""Rows of MySQL's and MariaDB's log as JSON texts, for many row events at once.

    decoder = RowDecoder(columns, key, wide)     # once for each version of a table
    made = decoder.rows(data, starts, stops, kind)

`columns` are those of the table map, with the types that only the catalog knows (mysql_columns). A
row that was read by SELECT is told in the same bytes by the same decoder: it is given an image of
the row as the log would have it, a size of four bytes before each text (a BLOB with meta 4 and the
column's charset). What the kernel cannot do by itself, compressed values and JSON documents that
came as differences, it leaves open, and it is put in here afterwards.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import DfcError
from ..sources import mysql_columns as types
from ..sources.mysql_columns import Column
from . import mysql_charsets, mysql_json, mysql_rowloop
from .mysql_layout import Layout
from .mysql_rowloop import DELETE, INSERT, KERNEL, LARGEST, PARTIAL_UPDATE, UPDATE, decode_rows
from .mysql_text import put_base64, put_text
from .shortest import powers

__all__ = ["DELETE", "INSERT", "PARTIAL_UPDATE", "UPDATE", "Decoded", "RowDecoder", "RowError"]

_REASONS = {
    mysql_rowloop.TRUNCATED: "the row ends within a value",
    mysql_rowloop.UNKNOWN_LABEL: "an ENUM or SET value has no label",
    mysql_rowloop.BAD_JSON: "a JSON document is damaged",
    mysql_rowloop.TOO_LARGE: "the rows take more than 2 GiB as text",
    mysql_rowloop.BAD_VALUE: "a value is none of its type",
}


class RowError(DfcError):
    """Bytes that are no rows of this table: the event by its index, the offset in the data."""

    def __init__(self, event: int, offset: int, reason: str) -> None:
        self.event, self.offset, self.reason = event, offset, reason
        super().__init__(f"row event {event} cannot be read at byte {offset}: {reason}")

    def __reduce__(self) -> tuple[type[RowError], tuple[int, int, str]]:
        return RowError, (self.event, self.offset, self.reason)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A row of each column is a row of the table; None where no row has an image or a key."""

    before: pa.Array | None  # string; null for inserts
    after: pa.Array | None  # string; null for deletes
    key: pa.Array | None  # string: an object of the primary key, as after the change where known
    event: Any  # int64: the index of its event
    row: Any  # int64: its place within the event, from 0


class RowDecoder:
    """Decodes row events of one version of a table.

    `key` are the indexes of the primary key's columns, in its order; `wide` is json_wide_integers.
    """

    def __init__(self, columns: Sequence[Column], key: Sequence[int] = (), wide: str = "number"):
        self.layout = Layout(columns, key, wide)

    def rows(
        self,
        data: Any,
        starts: Any,
        stops: Any,
        kind: Any,
        present_before: Any = None,
        present_after: Any = None,
        by: Callable[..., Any] | None = None,
    ) -> Decoded:
        """The rows of many events, in order.

        `data` (uint8) holds them all; starts[i] to stops[i] are the rows of event i, behind the
        bitmaps of present columns and without the checksum. `kind` is INSERT, UPDATE, DELETE or
        PARTIAL_UPDATE, one for all or an array. `present_before` and `present_after` are offsets
        of the bitmaps in `data`; without them the bitmaps stand right before the rows, as they do
        in an event. `by` is the kernel to use, compiled or plain, when that is not to be
        decided here. Raises RowError.
        """
        events = len(starts)
        starts, stops = np.array(starts, np.int64), np.array(stops, np.int64)
        kinds = np.broadcast_to(np.asarray(kind, np.uint8), (events,)).copy()
        size = (len(self.layout.columns) + 7) // 8
        if present_after is None:
            present_after = starts - size
        if present_before is None:
            both = (kinds == UPDATE) | (kinds == PARTIAL_UPDATE)
            present_before = np.where(both, starts - 2 * size, starts - size)
        data = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
        # A few dozen bytes a row: enough to know when compiling is worth its time.
        seen = int((stops - starts).sum()) // 40 + events
        kernel = by or KERNEL.after(seen) or decode_rows
        return self._decode(
            kernel,
            data,
            starts,
            stops,
            kinds,
            np.array(present_before, np.int64),
            np.array(present_after, np.int64),
        )

    def _decode(
        self,
        kernel: Any,
        data: Any,
        starts: Any,
        stops: Any,
        kinds: Any,
        before: Any,
        after: Any,
    ) -> Decoded:
        """All of it by one kernel, compiled or plain."""
        data = data.view()
        data.flags.writeable = False
        rows = len(starts) + int((stops - starts).sum()) // 64 + 16
        most = int((stops - starts).sum()) * 3 + 4096
        with np.errstate(over="ignore"):
            status, event, at, rows, *made = kernel(
                data,
                starts,
                stops,
                kinds,
                before,
                after,
                self.layout.numbers,
                self.layout.json,
                self.layout.names,
                self.layout.labels,
                self.layout.label_ends,
                self.layout.tables,
                powers(),
                len(self.layout.key),
                self.layout.wide,
                rows,
                most,
            )
        if status:
            raise RowError(int(event), min(int(at), int(stops[event])), _REASONS[int(status)])
        befores, afters, keys, event_of, row_of = made
        event_of = event_of[:rows]
        kind = kinds[event_of]
        return Decoded(
            before=self._column(data, befores, kind != INSERT, event_of),
            after=self._column(data, afters, kind != DELETE, event_of),
            key=None if not self.layout.key else strings(keys[0], keys[1], rows, None),
            event=event_of,
            row=row_of[:rows],
        )

    def _column(self, data: Any, made: Any, present: Any, event_of: Any) -> pa.Array | None:
        out, ends, used, left, count = made
        rows = len(present)
        if rows and not present.any():
            return None
        if count:
            out, ends = self._fill(data, out[:used], ends[: rows + 1], left[:count], event_of)
        return strings(out, ends, rows, None if present.all() else present)

    def _fill(self, data: Any, out: Any, ends: Any, left: Any, event_of: Any) -> tuple[Any, Any]:
        """Puts in what the kernel has left open: place, column, value and value before."""
        parts, sizes, done = [], [], 0
        places = left[:, 0]
        for place, column, at, end, old, old_end in left.tolist():
            value = data[at:end].tobytes()
            if self.layout.columns[column].type == types.JSON:
                text = mysql_json.patched(data[old:old_end].tobytes() if old >= 0 else None, value)
            else:
                text = self._inflated(value, self.layout.columns[column])
            if text is None:
                row = int(np.searchsorted(ends, place, side="right")) - 1
                raise RowError(int(event_of[max(row, 0)]), at, _REASONS[mysql_rowloop.BAD_VALUE])
            parts += [out[done:place].tobytes(), text]
            sizes.append(len(text))
            done = place
        parts.append(out[done:].tobytes())
        grown = np.concatenate([[0], np.cumsum(sizes)])
        # A text ends behind what was put in before its last byte.
        moved = ends + grown[np.searchsorted(places, ends, side="left")]
        if moved[-1] > LARGEST:
            raise RowError(int(event_of[-1]), int(left[-1, 2]), _REASONS[mysql_rowloop.TOO_LARGE])
        return np.frombuffer(b"".join(parts), np.uint8), moved.astype(np.int32)

    def _inflated(self, value: bytes, column: Column) -> bytes | None:
        """A compressed column: a byte with the method, the size as it was, then deflated data."""
        if value and value[0]:
            size = value[0] & 7
            wanted = int.from_bytes(value[1 : 1 + size], "big")
            engine = zlib.decompressobj(-15 if value[0] & 8 else 15)
            try:
                raw = engine.decompress(value[1 + size :], wanted + 1)
            except zlib.error:
                return None
            if value[0] >> 4 != 8 or len(raw) != wanted:
                return None
        else:
            raw = value[1:]
        return text_of(raw, column.charset or "binary")


def text_of(value: bytes, charset: str) -> bytes:
    """One value of a charset as JSON."""
    reading = mysql_charsets.reading(charset)
    data = np.frombuffer(value, np.uint8)
    out = np.empty(6 * len(value) + 32, np.uint8)
    if reading == mysql_charsets.BINARY:
        used = put_base64(data, 0, len(value), 0, out, 0)
    else:
        letters = mysql_charsets.table(charset) if reading == mysql_charsets.TABLE else None
        used = put_text(data, 0, len(value), reading, letters, 0, out, 0)
    return out[:used].tobytes()


def strings(out: Any, ends: Any, rows: int, present: Any) -> pa.Array:
    bits = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    used = int(ends[rows])
    # What is not used of a buffer would be held, and copied with it to other processes.
    data = out[:used] if 2 * used > len(out) else out[:used].copy()
    offsets = ends[: rows + 1]
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data), bits)
