"""Filter and flatten alone, on one core: 400-byte rows, kernels compiled before the clock starts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from dfc_runtime.events import Events
from dfc_runtime.kernels import flatten as flatten_kernel
from dfc_runtime.kernels import jsontext
from dfc_runtime.processors import field, flatten, op_in

ROWS, ROUNDS = 200_000, 5


def run() -> Iterator[tuple[str, str]]:
    for kernel in (jsontext.KERNEL, flatten_kernel.KERNEL):
        kernel.compiled()
    texts = [_row(n) for n in range(ROWS)]
    yield "bytes of a row", str(sum(map(len, texts)) // ROWS)
    nested = pa.record_batch(
        {
            "position": [f"{n:016x}" for n in range(ROWS)],
            "op": ["c"] * ROWS,
            "after": pa.array(texts),
        }
    )
    steps: dict[str, Callable[[Events], Events]] = {
        "filter, two fields": lambda e: e.where(
            op_in(e, "c"),
            field(e, "total").gt(100),
            field(e, "status").is_in("paid", "sent"),
            id="filter",
        ),
        "filter, one regex": lambda e: e.where(field(e, "status").regex("^p"), id="filter"),
        "flatten": lambda e: flatten(e, id="flat"),
        "flatten, lists by index": lambda e: flatten(
            e, id="flat", lists="index", empty_object="drop"
        ),
    }
    flat = flatten(Events(nested, pipeline="shop"), id="flat").batch
    for name, step in steps.items():
        yield from _rates(name, step, nested)
    yield from _rates("flatten, flat rows", steps["flatten"], flat)


def _rates(
    name: str, step: Callable[[Events], Events], batch: pa.RecordBatch
) -> Iterator[tuple[str, str]]:
    for size in (2_000, 20_000):
        parts = [batch.slice(at, size) for at in range(0, ROWS, size)]
        rate = ROWS / min(_round(step, parts) for _ in range(ROUNDS))
        yield f"events/s, {name}, batches of {size}", f"{rate:,.0f}"


def _round(step: Callable[[Events], Events], parts: list[pa.RecordBatch]) -> float:
    # Time of this process, not of the machine: others may be at work on it.
    started = time.process_time()
    for part in parts:
        step(Events(part, pipeline="shop"))
    return time.process_time() - started


def _row(n: int) -> str:
    address = {"street": f"{n % 200} Long Street", "city": "Old Town", "zip": "10115"}
    row = {
        "id": n,
        "customer": {"id": n % 977, "email": f"a{n}@example.org", "address": address},
        "status": ("open", "paid", "sent", "closed")[n % 4],
        "total": n % 30_000 / 100,
        "currency": "EUR",
        "tags": ["vip", "new"],
        "meta": {},
        "note": "leave it at the door, and ring the bell twice; not before nine in the morning",
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-02T00:00:00Z",
    }
    return json.dumps(row, separators=(",", ":"))
