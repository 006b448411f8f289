"""Which columns the reader must carry: what some step reads, and what delivery itself needs."""

from __future__ import annotations

from typing import assert_never

from ..plan import MysqlSource, PostgresSource, Processor, Sink, Source, TursoSource
from .processors import EVERYTHING

# Column order of the event DataFrame.
COLUMNS = [
    "position",
    "tx_end",
    "op",
    "ts_ms",
    "db",
    "schema",
    "table",
    "primary_key",
    "before",
    "after",
    "source",
    "transaction",
    "tx_id",
    "event_id",
    "schema_version",
    "schema_sequence",
    "ddl",
]
# Delivery cuts batches at transaction ends and tells lag by the time of the change.
_ALWAYS = {"position", "tx_end", "ts_ms"}
_BY_FIELD = {
    "source.db": "db",
    "source.schema": "schema",
    "source.table": "table",
    "transaction.id": "tx_id",
}


def never_filled(source: Source) -> set[str]:
    """What a source can never fill is not carried as a column of nulls."""
    match source:
        case TursoSource():
            return {"schema", "transaction", "tx_id", "schema_sequence", "ddl"}
        case MysqlSource(outbox_tables=()):
            return {"schema"}
        case MysqlSource():  # rows of an outbox are marked by a schema of their own
            return set()
        case PostgresSource():
            return set()
        case _:
            assert_never(source)


def resolve_columns(
    source: Source,
    processors: tuple[Processor, ...],
    sinks: tuple[Sink, ...],
    lane_key: str | None,
    journal: bool,
) -> tuple[str, ...]:
    reads = [r for p in processors for r in p.reads]
    reads += [r for s in sinks for r in s.delivery.reads]
    if lane_key:
        reads += ["before", "after"]
    wanted = set(COLUMNS if journal else _ALWAYS)  # a dead letter holds the whole event
    for read in reads:
        if read == EVERYTHING:
            wanted.update(COLUMNS)
        elif read in _BY_FIELD:
            wanted.add(_BY_FIELD[read])
        elif (root := read.partition(".")[0]) in COLUMNS:
            wanted.add(root)
    return tuple(c for c in COLUMNS if c in wanted - never_filled(source))
