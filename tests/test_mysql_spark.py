"""`dfc run` on a real MariaDB: what only the whole of it can show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .mysql_logs import Writer
from .running import Run
from .services import MariaDB

pytestmark = [pytest.mark.spark, pytest.mark.minutes]

SPEC = """\
metadata: {name: orders, tenant: acme}
spec:
  source:
    type: mysql
    config: {id: orders-kill, dsn: "${MYSQL_DSN}", tables: [killed.*]}
  sinks:
    - type: file
      config: {id: archive, path: archive, roll: {max_events: 500}}
    - type: file
      config: {id: second, path: second}
  batch: {max_events: 50, max_ms: 5}
"""


class Writing(threading.Thread):
    """Changes rows in transactions, some of them large, some rolled back, and columns too."""

    def __init__(self, server: MariaDB) -> None:
        super().__init__(daemon=True)
        self.shop = Writer(server, "killed")
        self.shop("DROP TABLE IF EXISTS t, u")
        self.shop("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, n INT, note VARCHAR(50))")
        self.shop("CREATE TABLE u (id INT PRIMARY KEY AUTO_INCREMENT, t INT)")
        self.done = threading.Event()
        self.number = 0

    def run(self) -> None:
        while not self.done.is_set():
            self.number += 1
            self.shop("BEGIN")
            rows = [(self.number, f"row {i}") for i in range(300 if self.number % 7 == 0 else 5)]
            self.shop.many("INSERT INTO t (n, note) VALUES (%s, %s)", rows)
            self.shop("UPDATE t SET note = 'again' WHERE n = %s", self.number - 1)
            self.shop("INSERT INTO u (t) SELECT n FROM t WHERE n = %s LIMIT 3", self.number)
            self.shop("DELETE FROM t WHERE n = %s", self.number - 3)
            self.shop("ROLLBACK" if self.number % 5 == 0 else "COMMIT")
            if self.number % 40 == 0:
                self.shop(f"ALTER TABLE u ADD COLUMN c{self.number} INT")
            time.sleep(0.05)


@pytest.fixture
def writing(mariadb_server: MariaDB) -> Iterator[Writing]:
    made = Writing(mariadb_server)
    yield made
    made.done.set()
    if made.is_alive():
        made.join(30)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.rglob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def rebuilt(found: list[dict[str, Any]], table: str) -> dict[int, Any]:
    """The table's rows, by the events alone."""
    rows: dict[int, Any] = {}
    for event in found:
        if event["source"]["table"] == table:
            if event["before"]:
                del rows[event["before"]["id"]]
            if event["after"]:
                assert event["after"]["id"] not in rows, "an event came twice"
                rows[event["after"]["id"]] = event["after"]
    return rows


def test_kills_in_the_middle_lose_and_repeat_nothing(
    mariadb_server: MariaDB, writing: Writing, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(SPEC)
    env = mariadb_server.env()
    run = Run(tmp_path, "p.yaml", "--once", env=env)  # where it begins
    run.end()
    writing.start()

    def written() -> int:
        return sum(p.stat().st_size for p in (tmp_path / "archive").rglob("*") if p.is_file())

    for _ in range(2):
        run = Run(tmp_path, "p.yaml", env=env)
        before = written()
        run.until(lambda before=before: written() > before, "wrote anything")
        run.kill()
    writing.done.set()
    writing.join(30)
    run = Run(tmp_path, "p.yaml", "--once", env=env)
    run.end()
    found = lines(tmp_path / "archive")
    assert len({e["event_id"] for e in found}) == len(found) > 100
    assert [e["event_id"] for e in lines(tmp_path / "second")] == [e["event_id"] for e in found]
    for table in ("t", "u"):
        rows = rebuilt(found, table)
        there = writing.shop(f"SELECT id FROM {table} ORDER BY id")
        assert sorted(rows) == [row[0] for row in there]
    notes = dict(writing.shop("SELECT id, note FROM t"))
    assert {key: row["note"] for key, row in rebuilt(found, "t").items()} == notes
    # Every transaction has one end, and its events stand in a row.
    ends = [e["transaction"]["id"] for e in found if e.get("tx_end")]
    assert len(set(ends)) == len(ends) == len({e["transaction"]["id"] for e in found})
    status = subprocess.run(
        [sys.executable, "-m", "dfc.compiler.cli", "status", "p.yaml"],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert status.count("bytes") + status.count("none") == 2, status
