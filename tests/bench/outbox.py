"""The outbox processor alone, on one core: 400-byte rows, kernels compiled before the clock starts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pyarrow as pa
from dfc_runtime.columns import join
from dfc_runtime.events import Events, Json, arrow_schema
from dfc_runtime.processors import outbox

COLUMNS = "position tx_end op ts_ms db schema table primary_key before after source event_id"
ROWS, ROUNDS = 200_000, 5


def run() -> Iterator[tuple[str, str]]:
    names = ("Order", "OrderCreated", "pending", "alice@example.org", "12 Long Street, Old Town")
    rows = [_row(n, *names) for n in range(ROWS)]
    yield "bytes of a row", str(sum(len(row["after"]) for row in rows) // ROWS)
    for part in (100, 50, 0):
        for n, row in enumerate(rows):
            row["schema"] = "__outbox" if n % 100 < part else None
        batch = pa.RecordBatch.from_pylist(rows, arrow_schema(COLUMNS.split()))
        for size in (2_000, 20_000):
            events = [Events(batch.slice(at, size), pipeline="shop") for at in range(0, ROWS, size)]
            rate = ROWS / min(_round(events) for _ in range(ROUNDS))
            yield f"events/s, {part} % outbox rows, batches of {size}", f"{rate:,.0f}"


def _round(batches: list[Events]) -> float:
    # Time of this process, not of the machine: others may be at work on it.
    started = time.process_time()
    for events in batches:
        outbox(events, id="outbox", topic=_topic, default_topic="unrouted", raw_payload=True)
    return time.process_time() - started


def _topic(row: Json) -> pa.Array:
    return join(row["aggregate_type"], ".", row["event_type"])


def _row(n: int, kind: str, event: str, status: str, mail: str, street: str) -> dict[str, object]:
    payload = {
        "order_id": n,
        "customer": {"id": n % 977, "email": mail, "address": street, "vip": n % 2 == 0},
        "lines": [{"sku": f"sku-{n % 89}", "quantity": 2, "price": 149.99}] * 2,
        "status": status,
        "total": 299.98,
        "currency": "EUR",
        "note": "leave it at the door",
    }
    message = {
        "id": n,
        "aggregate_type": kind,
        "aggregate_id": str(n),
        "event_type": event,
        "payload": payload,
    }
    place = {"db": "shop", "schema": "__outbox", "table": "outbox", "gtid": f"0-1-{n}"}
    source = {"version": "dfc-0.1.0", "connector": "mysql", "name": "shop", "ts_ms": n, **place}
    return {
        "position": f"{n:016x}",
        "tx_end": True,
        "op": "c",
        "ts_ms": n,
        "db": "shop",
        "table": "outbox",
        "primary_key": f'{{"id":{n}}}',
        "after": json.dumps(message, separators=(",", ":")),
        "source": json.dumps(source, separators=(",", ":")),
        "event_id": f"dfid:v1:{n:032x}",
    }
