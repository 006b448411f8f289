"""`dfc status`, `dfc checkpoint` and `dfc dlq` on the storage that jobs leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from dfc_runtime.batch import Batch
from dfc_runtime.deadletters import DeadLetters, Journal
from dfc_runtime.deliver import Delivery
from dfc_runtime.lease import Lease
from dfc_runtime.positions import Positions
from dfc_runtime.storage import SqliteStorage

from .fixtures import fixture_events
from .test_deadletters import Picky, event_id

SPEC = """\
metadata: {name: shop, tenant: acme}
spec:
  source: {type: turso, config: {id: db, url: ./shop.db, tables: [orders]}}
  storage: {path: "${STATE:-state.db}"}
  sinks:
    - {type: console, config: {id: screen}}
    - {type: file, config: {id: archive, path: ./archive, name: orders}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(SPEC)
    storage = SqliteStorage(tmp_path / "state.db")
    positions = Positions(storage, "shop", "db", ["screen", "archive"], 1)
    positions.advance({("screen", 0): "0a", ("archive", 0): "0b"}, {("screen", 0): 1234})
    dead = DeadLetters(Journal(), storage.path, "shop")
    sink = Picky(rejects=(event_id(1), event_id(3)))
    delivery = Delivery("shop", "acme", 1, lambda e: e, (sink,), Batch(), dead)
    list(delivery.run(iter([fixture_events("turso").batch]), 0, {}))
    storage.close()
    return tmp_path


def dfc(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "dfc.compiler.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def test_status_tells_runner_positions_and_dead_letters(folder: Path) -> None:
    code, out, err = dfc(folder, "status", "shop.yaml")
    assert (code, err) == (0, "")
    assert out.startswith("shop: not running\ndead letters: 2\nsink     lane  position  events")
    assert "screen   0     0a        1,234" in out
    storage = SqliteStorage(folder / "state.db")
    lease = Lease(storage, "shop", lambda: None)
    lease.acquire()
    assert "shop: run by process " in dfc(folder, "status", "shop.yaml")[1]
    lease.release()
    storage.close()


def test_checkpoints_are_shown_set_and_reset(folder: Path) -> None:
    assert "0b" in dfc(folder, "checkpoint", "list", "shop.yaml")[1]
    _, out, _ = dfc(folder, "checkpoint", "show", "shop.yaml", "--sink", "screen")
    assert json.loads(out)["position"] == "0a"
    code, _, err = dfc(folder, "checkpoint", "reset", "shop.yaml", "--sink", "screen")
    assert code == 2 and "--yes" in err
    change = ("--sink", "screen", "--yes")
    code, out, err = dfc(folder, "checkpoint", "set", "shop.yaml", "--position", "05", *change)
    assert (code, out, err) == (0, "screen: 05\n", "")
    storage = SqliteStorage(folder / "state.db")
    assert Positions(storage, "shop", "db", ["screen"], 1).start == "05"
    assert dfc(folder, "checkpoint", "reset", "shop.yaml", *change)[0] == 0
    assert Positions(storage, "shop", "db", ["screen"], 1).start == ""
    code, _, err = dfc(folder, "checkpoint", "reset", "shop.yaml", "--yes")
    assert code == 1 and "archive: such a sink keeps its position with its data" in err
    code, _, err = dfc(folder, "checkpoint", "reset", "shop.yaml", "--sink", "sceen", "--yes")
    assert code == 1 and "no sink `sceen`; there are: screen, archive" in err
    storage.close()


def test_positions_of_a_running_pipeline_are_not_moved(folder: Path) -> None:
    storage = SqliteStorage(folder / "state.db")
    lease = Lease(storage, "shop", lambda: None, ttl_secs=1.0)
    lease.acquire()
    code, _, err = dfc(folder, "checkpoint", "reset", "shop.yaml", "--sink", "screen", "--yes")
    assert code == 1 and "`shop` has a runner already" in err
    lease.release()
    assert Positions(storage, "shop", "db", ["screen"], 1).start == "0a"
    storage.close()


def test_dead_letters_are_listed_shown_and_purged(folder: Path) -> None:
    _, out, _ = dfc(folder, "dlq", "list", "shop.yaml")
    head, first, second = out.splitlines()
    assert head.split() == ["id", "when", "(UTC)", "at", "event", "error"]
    assert event_id(1) in first and "too large" in first and event_id(3) in second
    assert len(dfc(folder, "dlq", "list", "shop.yaml", "--limit", "1")[1].splitlines()) == 3
    assert len(dfc(folder, "dlq", "list", "shop.yaml", "--sink", "other")[1].splitlines()) == 1
    number = first.split()[0]
    letter = json.loads(dfc(folder, "dlq", "show", "shop.yaml", number)[1])
    assert letter["event"]["after"]["kind"] == 'say "hi"\n'
    assert dfc(folder, "dlq", "show", "shop.yaml", "99")[0] == 1
    assert dfc(folder, "dlq", "purge", "shop.yaml")[0] == 2
    assert dfc(folder, "dlq", "purge", "shop.yaml", number, "--yes")[1] == "1 dead letter removed\n"
    assert dfc(folder, "dlq", "purge", "shop.yaml", "--yes")[1] == "1 dead letter removed\n"
    assert dfc(folder, "dlq", "purge", "shop.yaml", "--yes")[1] == "0 dead letters removed\n"


def test_a_pipeline_that_has_not_run_has_nothing_to_show(folder: Path) -> None:
    for place in ("sqlite:elsewhere.db", "memory"):
        code, _, err = dfc(folder, "status", "shop.yaml", "--storage", place)
        assert code == 1 and err.startswith("dfc: ")
    assert not (folder / "elsewhere.db").exists()
