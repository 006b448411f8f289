"""Messages of the log as events: rows, truncates and messages in their order, by whole transactions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ..kernels.pgoutput import Split
from ..kernels.postgres_messages import COMMIT, MESSAGE, TRUNCATE, Message, Truncate
from ..patterns import matches
from .log import logger
from .postgres_events import (
    CREATE,
    EventBuilder,
    Rows,
    Shown,
    message_json,
    ops,
    outbox,
    truncated,
)
from .postgres_events import TRUNCATE as TRUNCATE_OP
from .postgres_position import History, Place
from .postgres_server import OWN_PREFIX
from .postgres_tables import Tables
from .snapshot_spool import Spool


@dataclass(slots=True)
class _Part:
    """Some of the events, by arrays in step."""

    message: Any
    ordinal: Any
    op: Any
    table: Any
    before: pa.Array | None = None
    after: pa.Array | None = None
    key: pa.Array | None = None
    reselected: list[tuple[str, ...]] | None = None
    ddl: list[str | None] = field(default_factory=list)
    message_events: bool = False


class Open:
    """Events of a transaction whose commit has not come yet; many of them wait in a file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._spool: Spool | None = None
        self._last: pa.RecordBatch | None = None
        self.total = 0
        self.of_table: dict[str, int] = {}

    def put(self, batch: pa.RecordBatch) -> None:
        if self._last is not None:
            self._spool = self._spool or Spool(self._folder)
            self._spool.put(self._last)
        self._last = batch

    def finished(self, ended: bool) -> list[pa.RecordBatch]:
        """All of them; `ended` marks the last one as the transaction's last."""
        batches: list[pa.RecordBatch] = []
        if self._spool is not None:
            batches = list(self._spool)
            self._spool.close()  # what was mapped stays readable
        if self._last is not None:
            batches.append(_ended(self._last) if ended else self._last)
        self.clear()
        return batches

    def clear(self) -> None:
        if self._spool is not None:
            self._spool.close()
        self._spool = self._last = None
        self.total, self.of_table = 0, {}


class Changes:
    """Turns split messages into batches of whole transactions."""

    def __init__(
        self,
        tables: Tables,
        builder: EventBuilder,
        history: History,
        prefixes: Sequence[str],
        folder: str,
        start: Place | None,
    ) -> None:
        self._tables = tables
        self._builder = builder
        self._history = history
        self._prefixes = tuple(prefixes)
        self._open = Open(folder)
        self._start = start  # what stands at it or before it has been handed out
        self.last = ""  # position of the last event that was handed out
        self._told: set[str] = set()

    def close(self) -> None:
        self._open.clear()

    def add(self, split: Split) -> list[pa.RecordBatch]:
        """The events of all transactions that end in these messages."""
        shown: list[Shown] = []
        parts = self._parts(split, shown)
        commits = np.flatnonzero(split.kind == COMMIT)
        alone = np.flatnonzero((split.kind == MESSAGE) & (split.xid == 0))
        ends = np.sort(np.concatenate([commits, alone]))
        start = self._start
        if start is not None and len(commits) and int(split.lsn[commits[-1]]) > start.lsn:
            self._start = None  # nothing that was handed out can come any more
        if not parts:
            return self._handed(self._open.finished(True)) if len(commits) else []
        rows, numbers = self._rows(split, parts, shown, ends)
        batch = self._builder.batch(shown, rows)
        cut = int(np.searchsorted(numbers, len(ends)))
        out: list[pa.RecordBatch] = []
        if len(ends):
            out = self._open.finished(ended=numbers[0] != 0)
            if cut:
                out.append(batch.slice(0, cut))
        if cut < len(numbers):
            self._note_orders(rows, shown, cut)
            self._open.put(batch.slice(cut))
        return self._handed(out)

    def _handed(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        if batches:
            self.last = batches[-1]["position"][-1].as_py()
        return batches

    # --- events ------------------------------------------------------------------------------

    def _parts(self, split: Split, shown: list[Shown]) -> list[_Part]:
        parts = []
        for relation, messages in split.groups():
            place = self._place(split, int(messages[0]))
            table = self._tables.of(relation, place)
            if table is None:
                continue
            if self._start is not None:
                messages = messages[self._fresh(split, messages, split.ordinal[messages])]
                if not len(messages):
                    continue
            decoded, told = self._tables.decode(table, split, messages, place)
            index = len(shown)
            shown.append(
                Shown(relation.schema, relation.name, relation.oid, table.version, bool(table.key))
            )
            parts.append(
                _Part(
                    messages,
                    split.ordinal[messages],
                    ops(split.kind[messages]),
                    np.full(len(messages), index, np.int32),
                    decoded.before,
                    decoded.after,
                    decoded.key,
                    told,
                )
            )
        kinds = split.kind
        for message in np.flatnonzero((kinds == TRUNCATE) | (kinds == MESSAGE)).tolist():
            parsed = split.parse(message)
            if isinstance(parsed, Truncate):
                parts += self._truncate(split, message, parsed, shown)
            elif isinstance(parsed, Message):
                parts += self._message(split, message, parsed, shown)
        return parts

    def _truncate(
        self, split: Split, message: int, truncate: Truncate, shown: list[Shown]
    ) -> list[_Part]:
        parts = []
        first = int(split.ordinal[message])
        for number, oid in enumerate(truncate.relations):
            known = split.relation(oid, message)
            table = self._tables.of(known, self._place(split, message)) if known else None
            ordinal = np.array([first + number], np.int64)
            if known is None or table is None:
                continue
            if not self._fresh(split, np.array([message]), ordinal)[0]:
                continue
            shown.append(Shown(known.schema, known.name, oid, table.version, False))
            parts.append(_single(message, ordinal, TRUNCATE_OP, len(shown) - 1))
            parts[-1].ddl = [truncated(truncate)]
        return parts

    def _message(
        self, split: Split, message: int, given: Message, shown: list[Shown]
    ) -> list[_Part]:
        if not any(_meant(pattern, given.prefix) for pattern in self._prefixes):
            return []
        if given.prefix == OWN_PREFIX and OWN_PREFIX not in self._prefixes:
            return []  # what sources write to have the log go on is no message to anybody
        ordinal = split.ordinal[message : message + 1]
        if not given.transactional:
            # The end of its record, at which a commit may begin: one byte before it none can.
            split.lsn[message] = given.lsn - 1
            split.time[message] = _now()
        if not self._fresh(split, np.array([message]), ordinal)[0]:
            return []
        text, good = message_json(given)
        if not good and given.prefix not in self._told:
            self._told.add(given.prefix)
            logger.warning(
                "messages with the prefix %s are not all JSON; those that are not come as text",
                given.prefix,
            )
        shown.append(outbox(given.prefix))
        part = _single(message, ordinal, CREATE, len(shown) - 1)
        part.after, part.message_events = pa.array([text], pa.string()), True
        return [part]

    def _fresh(self, split: Split, messages: Any, ordinals: Any) -> Any:
        """Which of the events are behind the place at which reading began."""
        start = self._start
        if start is None:
            return np.ones(len(messages), np.bool_)
        lsns = split.lsn[messages]
        return (lsns > start.lsn) | ((lsns == start.lsn) & (ordinals > start.ordinal))

    # --- all of them in order ------------------------------------------------------------------

    def _rows(
        self, split: Split, parts: list[_Part], shown: list[Shown], ends: Any
    ) -> tuple[Rows, Any]:
        """Also the number of each event's transaction among those that end here."""
        message = np.concatenate([part.message for part in parts])
        ordinal = np.concatenate([part.ordinal for part in parts])
        order = None
        if len(parts) > 1:
            order = np.lexsort((ordinal, message))
            message, ordinal = message[order], ordinal[order]
        table = _ordered(np.concatenate([part.table for part in parts]), order)
        numbers = np.searchsorted(ends, message, side="left")
        tx_end = np.empty(len(message), np.bool_)
        tx_end[:-1] = numbers[1:] != numbers[:-1]
        tx_end[-1] = bool(numbers[-1] < len(ends))
        rows = Rows(
            lsn=split.lsn[message],
            ordinal=ordinal,
            time=split.time[message],
            xid=split.top[message],
            table=table,
            op=_ordered(np.concatenate([part.op for part in parts]), order),
            tx_end=tx_end,
            total=np.zeros(0, np.int64),
            of_table=np.zeros(0, np.int64),
            before=_column([p.before for p in parts], parts, order),
            after=_column([p.after for p in parts], parts, order),
            key=_column([p.key for p in parts], parts, order),
        )
        if "transaction" in self._builder.wanted:
            self._orders(rows, numbers, shown)
        places = np.arange(len(message)) if order is None else np.argsort(order)
        at = 0
        messages = set()
        for part in parts:
            count = len(part.message)
            for row, text in enumerate(part.ddl):
                if text is not None:
                    rows.ddl[int(places[at + row])] = text
            for row, columns in enumerate(part.reselected or ()):
                if columns:
                    rows.reselected[int(places[at + row])] = columns
            if part.message_events:
                messages.add(int(places[at]))
            at += count
        rows.messages = frozenset(messages)
        return rows, numbers

    def _orders(self, rows: Rows, numbers: Any, shown: list[Shown]) -> None:
        """The place of each event in its transaction, and among those of its table there."""
        rows.total = _counted(numbers) + np.where(numbers == 0, self._open.total, 0)
        names = [f"{t.schema}.{t.table}" for t in shown]
        alike = {name: index for index, name in reversed(list(enumerate(names)))}
        same = np.array([alike[name] for name in names])[rows.table]
        rows.of_table = np.empty(len(numbers), np.int64)
        for index in np.unique(same).tolist():
            mine = np.flatnonzero(same == index)
            before = self._open.of_table.get(names[index], 0)
            rows.of_table[mine] = _counted(numbers[mine]) + np.where(numbers[mine] == 0, before, 0)

    def _note_orders(self, rows: Rows, shown: list[Shown], cut: int) -> None:
        if not len(rows.total):
            return
        self._open.total = int(rows.total[-1])
        of_table = rows.of_table[cut:]
        for index in np.unique(rows.table[cut:]).tolist():
            name = f"{shown[index].schema}.{shown[index].table}"
            most = int(of_table[rows.table[cut:] == index].max())
            self._open.of_table[name] = max(most, self._open.of_table.get(name, 0))

    def _place(self, split: Split, message: int) -> str:
        return str(self._history.place(int(split.lsn[message])))


def _single(message: int, ordinal: Any, op: int, table: int) -> _Part:
    return _Part(
        np.array([message], np.int64), ordinal, np.array([op], np.int8), np.array([table], np.int32)
    )


def _column(columns: list[pa.Array | None], parts: list[_Part], order: Any) -> pa.Array | None:
    if all(column is None for column in columns):
        return None
    whole = [
        pa.nulls(len(part.message), pa.string()) if column is None else column
        for column, part in zip(columns, parts, strict=True)
    ]
    if len(whole) == 1:
        return whole[0]
    joined = pa.concat_arrays(whole)
    return joined if order is None else joined.take(pa.array(order))


def _ordered(values: Any, order: Any) -> Any:
    return values if order is None else values[order]


def _counted(numbers: Any) -> Any:
    """From 1 within each run of equal numbers."""
    if not len(numbers):
        return np.zeros(0, np.int64)
    starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(numbers)]]))
    return np.arange(len(numbers)) - np.repeat(starts, lengths) + 1


def _ended(batch: pa.RecordBatch) -> pa.RecordBatch:
    index = batch.schema.get_field_index("tx_end")
    if index < 0:
        return batch
    marks = np.zeros(batch.num_rows, np.bool_)
    marks[-1] = True
    return batch.set_column(index, "tx_end", pa.array(marks))


def _meant(pattern: str, prefix: str) -> bool:
    """A prefix is one name, whatever dots it has."""
    qualifier, dot, name = prefix.partition(".")
    if dot and "." in pattern:
        return matches(pattern, qualifier, name)
    return "." not in pattern and matches(pattern, None, prefix)


def _now() -> int:
    return time.time_ns() // 1000
