"""`dfc run` with a snapshot: tables with rows, PostgreSQL to files through Spark, killed in the middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .postgres_logs import shop
from .running import Run
from .services import Postgres
from .snapshots import state, written

pytestmark = [pytest.mark.spark, pytest.mark.minutes]

SPEC = """\
metadata: {{name: copy, tenant: acme}}
spec:
  source:
    type: postgres
    config:
      id: shop
      dsn: ${{POSTGRES_DSN}}
      slot: {name}
      publication: {name}
      tables: [public.orders, public.items]
      snapshot: {{mode: initial, chunk_size: 100, intra_table_parallel: true, max_parallel_chunks: 2}}
  sinks:
    - type: file
      config: {{id: archive, path: archive, name: "${{source.table}}", roll: {{max_events: 150}}}}
"""


def test_rows_and_changes_arrive_once_and_give_the_tables(
    postgres_server: Postgres, tmp_path: Path
) -> None:
    with shop(
        postgres_server,
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE items (id bigint PRIMARY KEY, v numeric(9,2), at timestamptz(3))",
        "INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, 1500) i",
        "INSERT INTO items SELECT i * 2, i / 3.0, '2024-01-02 03:04:05.6' FROM generate_series(1, 700) i",
    ) as db:
        spec = tmp_path / "copy.yaml"
        spec.write_text(SPEC.format(name=db.name))
        env = {"POSTGRES_DSN": db.dsn, "DFC_JIT": "0"}
        run = Run(tmp_path, spec, env=env)
        run.until(lambda: len(written(tmp_path)) > 100, "wrote rows")
        db.execute("UPDATE orders SET note = 'changed' WHERE id % 10 = 0")
        run.kill()
        db.execute(
            "DELETE FROM orders WHERE id % 10 = 1",
            "INSERT INTO orders VALUES (5000, 'new')",
            "UPDATE items SET id = id + 1 WHERE id % 100 = 0",
        )
        run = Run(tmp_path, spec, "--once", env=env)
        run.end()
        events = written(tmp_path)
        for table in ("orders", "items"):
            there = state(events, table)
            assert set(there) == {row[0] for row in db.execute(f"SELECT id FROM {table}")}
            copies = Counter(
                event["after"]["id"]
                for event in events
                if event["op"] == "r" and event["source"]["table"] == table
            )
            assert set(copies.values()) == {1}, "no row is copied twice"
        notes = dict(db.execute("SELECT id, note FROM orders"))
        assert {id: row["note"] for id, row in state(events, "orders").items()} == notes
        assert all(e["source"].get("snapshot") == "true" for e in events if e["op"] == "r")
