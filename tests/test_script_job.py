"""A pipeline with a script through Spark: its log, its failure, and going on once it is mended."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.minutes]
SPEC = """\
metadata: {name: shop, tenant: acme}
spec:
  source:
    type: turso
    config: {id: shop, url: shop.db, tables: [orders], cdc_mode: triggers, poll_interval_ms: 20}
  processors:
    - type: filter
      id: no-deletes
      ops: [create, update]
    - type: javascript
      id: total
      inline: |
        function checked(price) {
          if (price < 0) throw new RangeError("a negative price");
          return price * 2;
        }
        (event) => {
          console.log("seen", event.after.id);
          event.seen = true;
          event.after.total = checked(event.after.price);
          return event;
        }
      limits: {cpu_ms: 5000, timeout_ms: 5000}
  sinks:
    - type: file
      config: {id: archive, path: archive, name: orders}
  batch: {max_events: 2}
"""


def run(folder: Path) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "dfc.compiler.cli", "run", "shop.yaml", "--once"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


def totals(folder: Path) -> list[tuple[int, float]]:
    rows = []
    for path in sorted((folder / "archive").rglob("*.jsonl")):
        rows += [json.loads(line)["after"] for line in path.read_text("utf-8").splitlines()]
    return [(row["id"], row["total"]) for row in rows]


def test_a_script_fails_keeps_its_place_and_goes_on_when_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(SPEC)
    shop = sqlite3.connect(tmp_path / "shop.db")
    shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, price REAL)")
    shop.commit()
    code, log = run(tmp_path)
    assert code == 0, log
    for price in (1.5, 2.0, 3.0, 4.0, -5.0, 6.0):
        shop.execute("INSERT INTO orders (price) VALUES (?)", (price,))
        shop.commit()
    shop.execute("DELETE FROM orders WHERE id = 1")
    shop.commit()

    code, log = run(tmp_path)
    assert code == 1, log
    assert log[-1]["level"] == "error" and log[-1]["event"] == "failed"
    assert log[-1]["reason"].startswith("script `total`, line 2: RangeError: a negative price; event dfid:v1:tsrow:")  # fmt: skip
    said = [line["says"] for line in log if line["event"] == "script"]
    assert said[:2] == ["seen 1", "seen 2"], "what it said before it failed"
    assert all(total != -10 for _, total in totals(tmp_path))

    (tmp_path / "shop.yaml").write_text(SPEC.replace("if (price < 0)", "if (price < -9)"))
    code, log = run(tmp_path)
    assert code == 0, log
    assert totals(tmp_path) == [(1, 3), (2, 4), (3, 6), (4, 8), (5, -10), (6, 12)]
    warnings = [line for line in log if line["level"] == "warning"]
    assert [(w["script"], w["field"]) for w in warnings] == [("total", "seen")], "once in a run"
    assert log[-1]["event"] == "stopped"
    assert log[-1]["processors"] == {"no-deletes dropped": 1}
