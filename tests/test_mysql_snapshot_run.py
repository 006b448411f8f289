"""`dfc run` with a snapshot: a table with rows, MariaDB to files through Spark, killed in the middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .mysql_logs import Writer
from .running import Run
from .services import MariaDB
from .snapshots import state, written

pytestmark = [pytest.mark.spark, pytest.mark.minutes]

SPEC = """\
metadata: {name: copy, tenant: acme}
spec:
  source:
    type: mysql
    config:
      id: shop
      dsn: ${MYSQL_DSN}
      tables: [copied_run.orders, copied_run.items]
      snapshot: {mode: initial, chunk_size: 100, intra_table_parallel: true, max_parallel_chunks: 2}
  sinks:
    - type: file
      config: {id: archive, path: archive, name: "${source.table}", roll: {max_events: 150}}
"""


def test_rows_and_changes_arrive_once_and_give_the_tables(
    mariadb_server: MariaDB, tmp_path: Path
) -> None:
    shop = Writer(mariadb_server, "copied_run")
    shop("DROP DATABASE copied_run")
    shop = Writer(mariadb_server, "copied_run")
    shop("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))")
    shop("CREATE TABLE items (id BIGINT PRIMARY KEY, v DECIMAL(9,2), at TIMESTAMP(3) NULL)")
    shop("INSERT INTO orders SELECT seq, CONCAT('n', seq) FROM seq_1_to_1500")
    shop("INSERT INTO items SELECT seq * 2, seq / 3, '2024-01-02 03:04:05.6' FROM seq_1_to_700")
    spec = tmp_path / "copy.yaml"
    spec.write_text(SPEC)
    env = {"MYSQL_DSN": mariadb_server.dsn, "DFC_JIT": "0"}
    run = Run(tmp_path, spec, env=env)
    run.until(lambda: len(written(tmp_path)) > 100, "wrote rows")
    shop("UPDATE orders SET note = 'changed' WHERE id % 10 = 0")
    run.kill()
    shop("DELETE FROM orders WHERE id % 10 = 1")
    shop("INSERT INTO orders VALUES (5000, 'new')")
    shop("UPDATE items SET id = id + 1 WHERE id % 100 = 0")
    run = Run(tmp_path, spec, "--once", env=env)
    run.end()
    events = written(tmp_path)
    for table in ("orders", "items"):
        there = state(events, table)
        assert set(there) == {row[0] for row in shop(f"SELECT id FROM {table}")}
        copies = Counter(
            event["after"]["id"]
            for event in events
            if event["op"] == "r" and event["source"]["table"] == table
        )
        assert set(copies.values()) == {1}, "no row is copied twice"
    notes = dict(shop("SELECT id, note FROM orders"))
    assert {id: row["note"] for id, row in state(events, "orders").items()} == notes
    assert all(e["source"].get("snapshot") == "true" for e in events if e["op"] == "r")
