"""Rows of a PostgreSQL table as JSON texts: the images of a change, and its key.

A type is known by its OID from the catalog, never by the look of a text. A text that its type does not
have, as a composite value from before its type was changed, is kept as a string, and its column is named
in `Decoded.odd`. One pass of a kernel over the fields writes each image; while rows are few, Python does
(postgres_python.py), with the same bytes as a result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import DfcError
from . import postgres_fields as fields
from . import postgres_nested, postgres_values
from .jit import Kernel
from .jsontext import copy, strings, u
from .pgoutput import Split, kernel_by
from .postgres_fields import ABSENT, NULL, UNCHANGED, Fields
from .postgres_nested import (
    DEPTH,
    FRAME,
    FULL,
    PART,
    PART_END,
    PART_NODE,
    TOP,
    begin_nested,
    next_part,
)
from .postgres_program import ARRAY, Column, Program
from .postgres_python import Writer
from .postgres_text import put_text
from .postgres_values import put_scalar

IMAGES = ("before", "after", "key")
UNCHANGED_TEXT = np.frombuffer(b'{"_unchanged":true}', np.uint8)
_ROOM = 64  # bytes that are always left behind a value, for what closes it


@dataclass(frozen=True, slots=True)
class Decoded:
    """String columns with a row for each change; those that were not wanted are None.

    before   null for an insert, and for an update whose table does not send what was there; the
             columns of the replica identity alone where only these are sent
    after    null for a delete
    key      object of the primary key: of the new row, and of the old one for a delete. Null where the
             table has none, and for a delete that does not tell it.
    odd      names of columns in which some text was not of its type, and was kept as a string
    """

    before: pa.Array | None
    after: pa.Array | None
    key: pa.Array | None
    odd: tuple[str, ...]


class TupleDecoder:
    """Rows of one table in one of its versions.

    columns   as they stand in its rows
    key       places of the primary key among them, in the order in which the key shall name them
    wide      integers beyond 2^53 become strings
    want      the images to make
    identity  names of the columns that every old row has; None for what the columns themselves tell
    way       as for `kernel_by`
    """

    def __init__(
        self,
        columns: Sequence[Column],
        key: Sequence[int] = (),
        *,
        wide: bool = False,
        want: Sequence[str] = IMAGES,
        identity: Collection[str] | None = None,
        way: str = "",
    ) -> None:
        self.columns = tuple(columns)
        self.want = tuple(want)
        self._way = way
        self._key = np.array(key, np.int64)
        self._all = np.arange(len(self.columns), dtype=np.int64)
        self._whole = identity is None
        told = [c.key if identity is None else c.name in identity for c in columns]
        self._identity = np.array(told, np.bool_)
        self._program = Program(columns, key, wide)
        self._writer = Writer(columns, key, wide)

    def rows(self, split: Split, rows: Any) -> Decoded:
        """The changes that are these messages of `split`, as Split.groups tells them."""
        old, new = fields.tuples(split, rows, self._identity, self._way, self._whole)
        odd = np.zeros(len(self.columns), np.bool_)
        nothing = pa.nulls(len(rows), pa.string())
        made: dict[str, pa.Array] = dict.fromkeys(IMAGES)
        if "before" in self.want:
            made["before"] = nothing if old is None else self._image(old, odd)
        if "after" in self.want:
            made["after"] = self._image(new, odd) if new.present.any() else nothing
        if "key" in self.want:
            made["key"] = self._keys(old, new, odd) if len(self._key) else nothing
        return Decoded(**made, odd=self._odd(odd))

    def lacking(self, split: Split, rows: Any) -> tuple[Any, list[tuple[str, ...] | None]]:
        """Which columns of the new rows have no value in the log; and the key of each row that has such.

        The key is the texts of its columns, as the server writes and reads them.
        """
        _, new = fields.tuples(split, rows, self._identity, self._way, self._whole)
        lacking = new.sizes == fields.UNCHANGED
        lacking &= new.present[:, None]
        keys: list[tuple[str, ...] | None] = [None] * len(rows)
        for row in np.flatnonzero(lacking.any(axis=1)).tolist():
            spans = [(int(new.starts[row, c]), int(new.sizes[row, c])) for c in self._key]
            if all(size >= 0 for _, size in spans):
                texts = [new.data[at : at + size].tobytes() for at, size in spans]
                keys[row] = tuple(text.decode("utf-8", "surrogateescape") for text in texts)
        return lacking, keys

    def copied(self, data: bytes | bytearray | memoryview) -> tuple[Decoded, int]:
        """The rows of COPY (SELECT ...) TO STDOUT in text format, with these columns in this order.

        Also how many bytes they took; the rest is the beginning of a row that is still to come.
        """
        new, used = fields.lines(data, len(self.columns), self._way)
        odd = np.zeros(len(self.columns), np.bool_)
        made: dict[str, pa.Array] = dict.fromkeys(IMAGES)
        nothing = pa.nulls(len(new.present), pa.string())
        if "before" in self.want:
            made["before"] = nothing
        if "after" in self.want:
            made["after"] = self._image(new, odd)
        if "key" in self.want:
            made["key"] = self._keys(None, new, odd) if len(self._key) else nothing
        return Decoded(**made, odd=self._odd(odd)), used

    def _odd(self, odd: Any) -> tuple[str, ...]:
        return tuple(self.columns[i].name for i in np.flatnonzero(odd))

    def _keys(self, old: Fields | None, new: Fields, odd: Any) -> pa.Array:
        places = self._key
        if old is None or new.present.all():
            return self._image(new, odd, True)
        there = np.where(new.present, True, (old.sizes[:, places] != ABSENT).all(axis=1))
        if new.present.any():
            mask = new.present[:, None]
            starts = np.where(mask, new.starts, old.starts)
            sizes = np.where(mask, new.sizes, old.sizes)
            return self._image(Fields(new.data, starts, sizes, there), odd, True)
        return self._image(Fields(old.data, old.starts, old.sizes, there), odd, True)

    def _image(self, image: Fields, odd: Any, key: bool = False) -> pa.Array:
        kernel = kernel_by(IMAGE, self._way, len(image.present))
        if kernel is None:
            return self._writer.image(image, odd, key)
        program = self._program
        places = self._key if key else self._all
        rows = len(image.present)
        first = len(self.columns) if key else 0
        sizes = image.sizes
        longest = max(int(sizes.max(initial=0)), 0)
        scratch = np.empty((program.depth + 2) * longest + _ROOM, np.uint8)
        view = scratch.view()
        view.flags.writeable = False  # as the data: the kernel is compiled for one kind of text
        frames, cursor = np.zeros((program.depth + 1, FRAME), np.int64), np.zeros(5, np.int64)
        text = int(np.maximum(sizes[:, places], 0).sum(dtype=np.int64))
        label_bytes = program.entries[first : first + len(places)]
        labels = int((label_bytes[:, 2] - label_bytes[:, 1]).sum())
        room = text + text // 4 + rows * (labels + 6 * len(places) + 2) + 6 * longest + 4 * _ROOM
        out = np.empty(room, np.uint8)
        ends = np.zeros(rows + 1, np.int64)
        state = np.zeros(2, np.int64)  # row, bytes written
        while kernel(
            image.data, image.starts, sizes, image.present, places, first, program.nodes,
            program.entries, program.labels, frames, cursor, scratch, view, out, ends, odd, state,
        ):  # fmt: skip
            used = int(state[1])
            grown = np.empty(2 * len(out) + 6 * longest, np.uint8)
            grown[:used] = out[:used]
            out = grown
        if state[1] > fields.MOST:
            raise DfcError("the rows of one batch take more than 2 GiB as JSON: read less at once")
        everything = bool(image.present.all())
        return strings(
            out[: state[1]], ends.astype(np.int32), None if everything else image.present
        )


# --- kernel ----------------------------------------------------------------------------------


def write_image(
    data: Any,
    starts: Any,
    sizes: Any,
    present: Any,
    places: Any,
    first: int,
    nodes: Any,
    entries: Any,
    labels: Any,
    frames: Any,
    cursor: Any,
    scratch: Any,
    view: Any,
    out: Any,
    ends: Any,
    odd: Any,
    state: Any,
) -> bool:
    """Writes an object of the columns at `places` for each row; True when `out` has become full.

    `state` tells then where to go on, once there is a larger one.
    """
    used = state[1]
    for row in range(state[0], len(present)):
        begin = used
        state[0] = row
        state[1] = begin
        if not present[row]:
            ends[row + 1] = used
            continue
        for i in range(len(places)):
            place = places[i]
            size: Any = np.int64(sizes[row, place])
            if size == ABSENT:
                continue
            entry = first + i
            label = entries[entry, 1]
            label_end = entries[entry, 2]
            if used + label_end - label + 6 * max(size, 0) + 128 > len(out):
                return True
            while label < label_end:
                out[u(used)] = labels[u(label)]
                label += 1
                used += 1
            if size == NULL:
                out[used] = 110
                out[used + 1] = 117
                out[used + 2] = 108
                out[used + 3] = 108
                used += 4
                continue
            if size == UNCHANGED:
                used = copy(UNCHANGED_TEXT, 0, len(UNCHANGED_TEXT), out, used)
                continue
            value = used
            node = entries[entry, 0]
            text = data
            at: Any = np.int64(starts[row, place])
            end = at + size
            top = 0
            cursor[DEPTH] = -1
            if nodes[node, 0] >= ARRAY:
                begin_nested(node, data, at, end, scratch, frames, cursor)
                text = view
            while True:
                if cursor[DEPTH] >= 0:
                    used = next_part(
                        nodes, entries, labels, out, used, scratch, view, frames, cursor
                    )
                    if used < 0 or cursor[DEPTH] < 0:
                        break
                    node = cursor[PART_NODE]
                    at = cursor[PART]
                    end = cursor[PART_END]
                    top = max(cursor[TOP], end)
                    if used + 6 * (end - at) + 128 > len(out):
                        used = FULL
                        break
                used = put_scalar(nodes[node], text, at, end, out, used, scratch, top)
                if used < 0 or cursor[DEPTH] < 0:
                    break
            if used == FULL:
                return True
            if used < 0:
                odd[place] = True
                at = np.int64(starts[row, place])
                used = put_text(data, at, at + size, out, value)
        if used + 64 > len(out):
            return True
        if used == begin:
            used += 1
        out[begin] = 123
        out[used] = 125
        used += 1
        ends[row + 1] = used
    state[0] = len(present)
    state[1] = used
    return False


IMAGE = Kernel(write_image, *postgres_values.HELPERS, *postgres_nested.HELPERS)
