"""Events: a run of changes as Arrow columns, in the order of the source's log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .errors import DfcError
from .kernels.documents import Documents
from .kernels.jsontext import Values, extract, values
from .ledger import Ledger

EVENT_COLUMNS: dict[str, pa.DataType] = {
    "position": pa.string(),
    "tx_end": pa.bool_(),
    "op": pa.string(),
    "ts_ms": pa.int64(),
    "db": pa.string(),
    "schema": pa.string(),
    "table": pa.string(),
    "primary_key": pa.string(),
    "before": pa.string(),
    "after": pa.string(),
    "source": pa.string(),
    "transaction": pa.string(),
    "tx_id": pa.string(),
    "event_id": pa.string(),
    "schema_version": pa.string(),
    "schema_sequence": pa.int64(),
    "ddl": pa.string(),
}

# The one column of a DataFrame whose rows stand for whole segments of events.
SEGMENT = "segment"

# `schema` of an event that a source marks as an outbox message.
OUTBOX_MARK = "__outbox"

# A source that has none of these does not carry them as columns of nulls.
SPARSE_COLUMNS = frozenset({"schema", "transaction", "tx_id", "schema_sequence", "ddl"})

# Made by processors only, so never in the DataFrame; null for an event that no processor touched.
MADE_COLUMNS: dict[str, pa.DataType] = {
    "trace_id": pa.string(),
    "tags": pa.string(),
    "synthetic": pa.string(),
    "routing_topic": pa.string(),
    "routing_key": pa.string(),
    "routing_headers": pa.string(),
    "routing_raw_payload": pa.bool_(),
}

_DDL_TYPES = {pa.string(): "string", pa.int64(): "bigint", pa.bool_(): "boolean"}


def ddl_schema(columns: Iterable[str]) -> str:
    """Spark's schema text for these event columns, in canonical order."""
    wanted = set(columns)
    unknown = wanted - EVENT_COLUMNS.keys()
    if unknown:
        raise DfcError(f"not an event column: {', '.join(sorted(unknown))}")
    return ", ".join(
        f"`{name}` {_DDL_TYPES[kind]}" for name, kind in EVENT_COLUMNS.items() if name in wanted
    )


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """The same as Arrow fields, which is what a reader's record batches must match."""
    wanted = set(columns)
    return pa.schema([(name, kind) for name, kind in EVENT_COLUMNS.items() if name in wanted])


def parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        # Python refuses to read integers of thousands of digits, which JSON allows.
        return json.loads(text, parse_int=_int)


def _int(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)


class Json:
    """A column of JSON texts; `column["a", "b"]` is the text of the value at a.b."""

    def __init__(self, text: pa.Array) -> None:
        self.text = text

    def __getitem__(self, path: str | tuple[str, ...]) -> pa.Array:
        return extract(self.text, (path,) if isinstance(path, str) else path)


class Source:
    """`source` of each event: the usual parts from columns of their own, the rest from its text."""

    def __init__(self, events: Events) -> None:
        self._events = events

    @property
    def db(self) -> pa.Array:
        return self._events.column("db")

    @property
    def schema(self) -> pa.Array:
        return self._events.column("schema")

    @property
    def table(self) -> pa.Array:
        return self._events.column("table")

    @property
    def text(self) -> pa.Array:
        return self._events.column("source")

    def __getitem__(self, path: str | tuple[str, ...]) -> pa.Array:
        return extract(self.text, (path,) if isinstance(path, str) else path)


class Routing:
    """What a processor decided about the way of each event; null where none did."""

    def __init__(self, events: Events) -> None:
        self._events = events

    @property
    def topic(self) -> pa.Array:
        return self._events.made("routing_topic")

    @property
    def key(self) -> pa.Array:
        return self._events.made("routing_key")

    @property
    def headers(self) -> pa.Array:
        return self._events.made("routing_headers")

    @property
    def raw_payload(self) -> pa.Array:
        return self._events.made("routing_raw_payload")


class Events:
    """Wraps a record batch; every method gives new Events and leaves this one as it is."""

    __slots__ = (
        "_documents",
        "_values",
        "batch",
        "came",
        "ledger",
        "pipeline",
        "replaced",
        "tenant",
    )

    def __init__(
        self,
        batch: pa.RecordBatch,
        *,
        pipeline: str,
        tenant: str | None = None,
        replaced: frozenset[str] = frozenset(),
        ledger: Ledger | None = None,
        came: pa.RecordBatch | None = None,
    ) -> None:
        self.batch = batch
        self.came = batch if came is None else came  # all of it, as the source gave it
        self.ledger = Ledger() if ledger is None else ledger  # one for all Events made of these
        self.pipeline = pipeline
        self.tenant = tenant or None
        self.replaced = replaced  # columns that a processor has put in place of the reader's
        self._documents: dict[str, Documents] = {}
        self._values: dict[tuple[str, tuple[str, ...]], Values] = {}

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def has(self, name: str) -> bool:
        return self.batch.schema.get_field_index(name) >= 0

    def column(self, name: str) -> pa.Array:
        """A column of the reader, or an error that names it when the job does not carry it."""
        index = self.batch.schema.get_field_index(name)
        if index < 0 and name in SPARSE_COLUMNS:
            return pa.nulls(len(self), EVENT_COLUMNS[name])
        if index < 0:
            raise DfcError(f"the job does not carry the column `{name}`: add it to SOURCE.columns")
        return self.batch.column(index)

    def made(self, name: str) -> pa.Array:
        """A column that only processors make: nulls when none did."""
        index = self.batch.schema.get_field_index(name)
        return self.batch.column(index) if index >= 0 else pa.nulls(len(self), MADE_COLUMNS[name])

    def values(self, name: str, path: tuple[str, ...]) -> Values:
        """What a column of JSON texts has at a path; it is looked up once, whoever asks."""
        found = self._values.get((name, path))
        if found is None:
            if name not in self._documents:
                self._documents[name] = Documents(self.column(name))
            found = self._values[name, path] = values(self._documents[name], path)
        return found

    def where(self, *masks: Any, id: str | None = None) -> Events:
        """The events for which every mask holds; a null in a mask counts as false.

        `id` is the processor under whose name the others are counted as dropped.
        """
        keep = None
        for mask in masks:
            keep = mask if keep is None else pc.and_kleene(keep, mask)
        if keep is None:
            return self
        kept = self._with(self.batch.filter(keep))
        if id is not None and len(kept) < len(self) and self.has("position"):
            dropped = pc.invert(pc.fill_null(keep, False) if keep.null_count else keep)
            self.ledger.count(id, "dropped", self.position.filter(dropped))
        return kept

    def slice(self, start: int, stop: int) -> Events:
        if start == 0 and stop >= len(self):
            return self
        return self._with(self.batch.slice(start, stop - start))

    def take(self, rows: Any) -> Events:
        return self._with(self.batch.take(rows))

    def then(self, *others: Events) -> Events:
        """These events and, behind them, others that were made of the same."""
        if not others:
            return self
        names = dict.fromkeys(name for part in (self, *others) for name in part.batch.schema.names)
        columns = {}
        for name in names:
            parts = [
                part.column(name) if name in EVENT_COLUMNS else part.made(name)
                for part in (self, *others)
            ]
            columns[name] = pa.concat_arrays(parts)
        replaced = self.replaced.union(*(other.replaced for other in others))
        return self._with(pa.record_batch(columns), replaced)

    def with_columns(self, **columns: Any) -> Events:
        """These columns in place of, or beside, the present ones; a str or None fills a column."""
        batch = self.batch
        for name, value in columns.items():
            kind = EVENT_COLUMNS.get(name) or MADE_COLUMNS.get(name)
            if kind is None:
                raise DfcError(f"not an event column: {name}")
            if isinstance(value, Json):
                value = value.text
            if not isinstance(value, pa.Array):
                value = pa.repeat(pa.scalar(value, kind), len(self))
            index = batch.schema.get_field_index(name)
            if index < 0:
                batch = batch.append_column(name, value)
            else:
                batch = batch.set_column(index, name, value)
        return self._with(batch, self.replaced | columns.keys())

    def _with(self, batch: pa.RecordBatch, replaced: frozenset[str] | None = None) -> Events:
        return Events(
            batch,
            pipeline=self.pipeline,
            tenant=self.tenant,
            replaced=self.replaced if replaced is None else replaced,
            ledger=self.ledger,
            came=self.came,
        )

    def origin(self, row: int) -> dict[str, Any] | None:
        """The source's own columns of an event, or of the one it was made from; None if unknown."""
        if not self.has("position"):
            return None
        at = pc.index(self.came.column("position"), self.position[row]).as_py()
        columns = self.came.slice(at, 1).to_pylist()[0] if at >= 0 else {}
        return {name: value for name, value in columns.items() if value is not None} or None

    # --- columns by name ---------------------------------------------------------------------

    @property
    def position(self) -> pa.Array:
        return self.column("position")

    @property
    def tx_end(self) -> pa.Array:
        return self.column("tx_end")

    @property
    def op(self) -> pa.Array:
        return self.column("op")

    @property
    def ts_ms(self) -> pa.Array:
        return self.column("ts_ms")

    @property
    def primary_key(self) -> pa.Array:
        return self.column("primary_key")

    @property
    def before(self) -> Json:
        return Json(self.column("before"))

    @property
    def after(self) -> Json:
        return Json(self.column("after"))

    @property
    def source(self) -> Source:
        return Source(self)

    @property
    def transaction(self) -> Json:
        return Json(self.column("transaction"))

    @property
    def tx_id(self) -> pa.Array:
        return self.column("tx_id")

    @property
    def event_id(self) -> pa.Array:
        return self.column("event_id")

    @property
    def schema_version(self) -> pa.Array:
        return self.column("schema_version")

    @property
    def schema_sequence(self) -> pa.Array:
        return self.column("schema_sequence")

    @property
    def ddl(self) -> Json:
        return Json(self.column("ddl"))

    @property
    def trace_id(self) -> pa.Array:
        return self.made("trace_id")

    @property
    def tags(self) -> Json:
        return Json(self.made("tags"))

    @property
    def synthetic(self) -> pa.Array:
        return self.made("synthetic")

    @property
    def routing(self) -> Routing:
        return Routing(self)
