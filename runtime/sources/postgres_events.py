"""Event columns of a postgres source, out of split messages and decoded rows."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import ids
from ..events import EVENT_COLUMNS, OUTBOX_MARK
from ..kernels.postgres_messages import Message, Truncate
from .postgres_position import History, lsn_text, lsn_texts, positions, spread
from .postgres_registry import Version
from .settings import ReaderSettings
from .version import RUNTIME_VERSION

OPS = ("c", "u", "d", "t")
CREATE, UPDATE, DELETE, TRUNCATE = range(4)
_OP_OF_KIND = np.zeros(256, np.int8)
_OP_OF_KIND[ord("U")], _OP_OF_KIND[ord("D")] = UPDATE, DELETE
_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """A table as events name it."""

    schema: str
    table: str
    oid: int = 0
    version: Version | None = None
    key: bool = True


@dataclass(slots=True)
class Rows:
    """Arrays with an entry for each event, in the order of the log."""

    lsn: Any  # of the commit, or of a message outside transactions
    ordinal: Any
    time: Any  # microseconds
    xid: Any  # 0 for a message outside transactions
    table: Any  # index into the tables
    op: Any
    tx_end: Any
    total: Any  # place among the transaction's events, from 1
    of_table: Any  # place among those of the same table
    before: pa.Array | None
    after: pa.Array | None
    key: pa.Array | None
    ddl: dict[int, str] = field(default_factory=dict)  # by event
    messages: frozenset[int] = frozenset()  # events that are messages
    reselected: dict[int, tuple[str, ...]] = field(default_factory=dict)


class EventBuilder:
    """Builds the wanted columns and no others."""

    def __init__(
        self, settings: ReaderSettings, database: str, system: int, history: History
    ) -> None:
        self.wanted = settings.needed
        self._schema = pa.schema([(name, EVENT_COLUMNS[name]) for name in self.wanted])
        self._name = settings.pipeline or settings.id
        self._database = database
        self._system = system
        self._history = history

    def batch(self, tables: Sequence[Shown], rows: Rows) -> pa.RecordBatch:
        count = len(rows.lsn)
        made: dict[str, Any] = {}

        def once(name: str, make: Callable[[], Any]) -> Any:
            if name not in made:
                made[name] = make()
            return made[name]

        def by_table(texts: Sequence[str | int | None], kind: pa.DataType) -> pa.Array:
            if len(set(texts)) == 1:
                return pa.repeat(pa.scalar(texts[0], kind), count)
            return pa.array(texts, kind).take(pa.array(rows.table))

        def xids() -> pa.Array:
            values, inverse = np.unique(rows.xid, return_inverse=True)
            texts = [str(value) if value else None for value in values.tolist()]
            return spread(pa.array(texts, pa.string()), inverse)

        def source() -> pa.Array:
            name, db = _json(self._name), _json(self._database)
            head = f'{{"version":"dfc-{RUNTIME_VERSION}","connector":"postgresql","name":{name},"ts_ms":'
            places = [
                f',"db":{db},"schema":{_json(t.schema)},"table":{_json(t.table)},"lsn":"'
                for t in tables
            ]
            times = pa.array(rows.time // 1000).cast(pa.string())
            micros = pa.array(rows.time).cast(pa.string())
            place: Any = places[0] if len(places) == 1 else by_table(places, pa.string())
            known = once("xids", xids)
            tx: Any = _join(',"txId":', known)
            if known.null_count:
                tx = pc.fill_null(tx, "")
            end: Any = "}"
            if rows.reselected:
                ends = ["}"] * count
                for row, columns in rows.reselected.items():
                    ends[row] = f',"reselected":{json.dumps(columns, ensure_ascii=False)}}}'
                end = pa.array(ends, pa.string())
            lsns = lsn_texts(rows.lsn)
            return _join(head, times, place, lsns, '"', tx, ',"ts_us":', micros, end)

        def transaction() -> pa.Array:
            return _join(
                '{"id":"',
                once("xids", xids),
                '","total_order":',
                pa.array(rows.total).cast(pa.string()),
                ',"data_collection_order":',
                pa.array(rows.of_table).cast(pa.string()),
                "}",
            )

        def column(name: str) -> pa.Array:
            match name:
                case "position":
                    return positions(self._history, rows.lsn, rows.ordinal)
                case "tx_end":
                    return pa.array(rows.tx_end)
                case "op":
                    return _named(OPS, rows.op)
                case "ts_ms":
                    return pa.array(rows.time // 1000)
                case "db":
                    return pa.repeat(pa.scalar(self._database), count)
                case "schema":
                    return by_table([t.schema for t in tables], pa.string())
                case "table":
                    return by_table([t.table for t in tables], pa.string())
                case "primary_key":
                    return _or_nulls(rows.key, count)
                case "before":
                    return _or_nulls(rows.before, count)
                case "after":
                    return _or_nulls(rows.after, count)
                case "source":
                    return source()
                case "transaction":
                    return transaction()
                case "tx_id":
                    return once("xids", xids)
                case "event_id":
                    return self._event_ids(tables, rows)
                case "schema_version":
                    marks = [t.version.fingerprint if t.version else None for t in tables]
                    return by_table(marks, pa.string())
                case "schema_sequence":
                    numbers = [t.version.sequence if t.version else None for t in tables]
                    return by_table(numbers, pa.int64())
                case _:
                    if not rows.ddl:
                        return pa.nulls(count, pa.string())
                    return pa.array([rows.ddl.get(i) for i in range(count)], pa.string())

        return pa.RecordBatch.from_arrays([column(n) for n in self.wanted], schema=self._schema)

    def _event_ids(self, tables: Sequence[Shown], rows: Rows) -> pa.Array:
        oids = np.array([t.oid for t in tables], np.int64)[rows.table]
        whole = ids.postgres_rows(self._system, rows.lsn, oids, rows.ordinal)
        if not rows.messages:
            return whole
        made = whole.to_pylist()
        lineage = ids.postgres_lineage(self._system)
        for row in rows.messages:
            place = lsn_text(int(rows.lsn[row]))
            made[row] = ids.message(lineage, place, int(rows.ordinal[row]))
        return pa.array(made, pa.string())


def ops(kinds: Any) -> Any:
    return _OP_OF_KIND[kinds]


def truncated(truncate: Truncate) -> str:
    given = {
        "sql": "TRUNCATE",
        "cascade": truncate.cascade,
        "restart_identity": truncate.restart_identity,
    }
    return json.dumps(given, separators=(",", ":"))


def message_json(message: Message) -> tuple[str, bool]:
    """The content as JSON on one line, and whether it was JSON; other text becomes a string."""
    try:
        text = message.content.decode()
    except UnicodeDecodeError:
        content = base64.b64encode(message.content).decode()
        return f'{{"_base64":"{content}"}}', False
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False), False
    if any(space in text for space in " \t\r\n"):
        text = _SPACE.sub(r"\1", text)
    return text, True


def outbox(prefix: str) -> Shown:
    return Shown(OUTBOX_MARK, prefix, key=False)


def _refuse(name: str) -> None:
    raise ValueError(name)


def _join(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _named(names: Sequence[str], index: Any) -> pa.Array:
    if len(index) and (index == index[0]).all():
        return pa.repeat(pa.scalar(names[int(index[0])]), len(index))
    return pa.array(names, pa.string()).take(pa.array(index))


def _or_nulls(column: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if column is None else column


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
