"""A handful of events as each source would read them: every operation, missing images, odd text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from dfc_runtime.events import EVENT_COLUMNS, Events, arrow_schema

_ROWS: tuple[tuple[str, dict[str, Any] | None, dict[str, Any] | None], ...] = (
    (
        "c",
        None,
        {"id": 1, "customer_id": 7, "kind": "new", "total": "19.90", "customer": {"id": 7}},
    ),
    ("u", {"id": 1, "kind": "new"}, {"id": 1, "kind": 'say "hi"\n', "total": "5", "vip": True}),
    ("u", {"id": 9007199254740993}, {"id": 9007199254740993, "kind": "ünïcode \u2028 €"}),
    ("d", {"id": 1, "kind": "gone"}, None),
    ("r", None, {"id": 2, "kind": "", "total": None}),
    ("t", None, None),
)
# A message under all the names that the golden pipelines give its columns.
_MESSAGE = {
    "id": 5,
    **dict.fromkeys(("aggregate_type", "aggregatetype", "type"), "Order"),
    **dict.fromkeys(("aggregate_id", "aggregateid", "key"), 42),
    **dict.fromkeys(("event_type", "action"), "OrderCreated"),
    **{name: {"total": 1.5, "lines": [{"sku": "a"}]} for name in ("payload", "data")},
    **dict.fromkeys(("trace_id", "traceid"), "abc-123"),
}
_CONNECTORS = {"mysql": "mysql", "postgres": "postgresql", "turso": "turso"}


def _source_block(kind: str, pipeline: str, n: int) -> dict[str, Any]:
    block = {"version": "dfc-0.1.0", "connector": _CONNECTORS[kind], "name": pipeline}
    place: dict[str, Any] = {"ts_ms": 1_700_000_000_000 + n, "db": "shop"}
    if kind == "postgres":
        place |= {"schema": "public", "table": "orders", "lsn": f"0/16B6C5{n}", "txId": 735}
    elif kind == "mysql":
        place |= {"table": "orders", "server_id": 1, "gtid": f"0-1-{n}", "file": "b.1", "pos": n}
    else:
        place |= {"db": "main", "table": "orders", "sequence": str(n)}
    return block | place


def _row(kind: str, pipeline: str, n: int) -> dict[str, Any]:
    op, before, after = _ROWS[n % len(_ROWS)]
    source = _source_block(kind, pipeline, n)
    image = after or before
    logged = kind != "turso"
    compact = (",", ":")

    def text(value: Any) -> str | None:
        return None if value is None else json.dumps(value, ensure_ascii=False, separators=compact)

    return {
        "position": f"{n + 1:016x}",
        "tx_end": n % 2 == 1,
        "op": op,
        "ts_ms": source["ts_ms"],
        "db": source["db"],
        "schema": source.get("schema"),
        "table": source["table"],
        "primary_key": text({"id": image["id"]}) if image else None,
        "before": text(before),
        "after": text(after),
        "source": text(source),
        "transaction": text({"id": f"tx-{n // 2}"}) if logged else None,
        "tx_id": f"tx-{n // 2}" if logged else None,
        "event_id": f"dfid:v1:tsrow:{n:032x}",
        "schema_version": "sha256:" + "0" * 64,
        "schema_sequence": 3 if logged else None,
        "ddl": text({"sql": "TRUNCATE"}) if op == "t" and logged else None,
    }


def _outbox_row(kind: str, pipeline: str, n: int, table: str, op: str) -> dict[str, Any]:
    source = _source_block(kind, pipeline, n) | {"schema": "__outbox", "table": table}
    image = json.dumps(_MESSAGE, separators=(",", ":"))
    return _row(kind, pipeline, n) | {
        "op": op,
        "schema": "__outbox",
        "table": table,
        "before": None if op == "c" else image,
        "after": image,
        "source": json.dumps(source, separators=(",", ":")),
        "ddl": None,
    }


def fixture_events(
    kind: str,
    columns: str = "",
    pipeline: str = "shop",
    tenant: str = "acme",
    rows: int = 12,
    outbox: Iterable[str] = (),
) -> Events:
    """Events of a `mysql`, `postgres` or `turso` source, with the given columns or all of them.

    For each of the patterns `outbox` there come an insert and an update of a marked row.
    """
    names = columns.split() or list(EVENT_COLUMNS)
    made = [_row(kind, pipeline, n) for n in range(rows)]
    for pattern in outbox:
        table = pattern.rpartition(".")[2].replace("*", "orders").replace("%", "orders")
        for op in "cu":
            made.append(_outbox_row(kind, pipeline, len(made), table, op))
    schema = arrow_schema(names)
    batch = pa.RecordBatch.from_pylist(
        [{name: row[name] for name in schema.names} for row in made], schema=schema
    )
    return Events(batch, pipeline=pipeline, tenant=tenant)
