"""`dfc status`, `dfc checkpoint` and `dfc dlq` on the storage that jobs leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from dfc_runtime import admin
from dfc_runtime.batch import Batch
from dfc_runtime.deadletters import DeadLetters, Journal
from dfc_runtime.deliver import Delivery
from dfc_runtime.lease import Lease
from dfc_runtime.positions import Positions
from dfc_runtime.sources.lag import Lag
from dfc_runtime.sources.snapshot import Copied, Notes
from dfc_runtime.storage import SqliteStorage, Storage

from .fixtures import fixture_events
from .sqlite_files import database, drain, turso_log
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
    hour_ago = int(time.time() - 3600) * 1000
    positions.advance(
        {("screen", 0): "0a", ("archive", 0): "0b"},
        {("screen", 0): 1234},
        {("screen", 0): hour_ago},
    )
    dead = DeadLetters(Journal(), Storage(path=storage.path), "shop")
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


def test_status_tells_how_far_the_source_is_ahead(folder: Path) -> None:
    unknown = f"unknown (there is no database file {folder}/shop.db)"
    assert unknown in dfc(folder, "status", "shop.yaml")[1]
    writer = database(folder / "shop.db", "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    drain(turso_log(folder / "shop.db", tables='["orders"]'))
    writer.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(11)])
    head, screen, archive = dfc(folder, "status", "shop.yaml")[1].splitlines()[2:]
    assert head.split()[-5:] == ["events", "saved", "last", "event", "lag"]
    assert screen.endswith(" s ago  1 event") and " 36" in screen
    assert archive.endswith("s ago  -           none")
    code, out, _ = dfc(folder, "status", "shop.yaml", "--json")
    screen_, archive_ = json.loads(out)["sinks"]
    assert code == 0 and screen_["lag"] == 1 and screen_["lag_unit"] == "events"
    assert 3600 <= screen_["lag_seconds"] < 4000 and screen_["event_age_seconds"] >= 3600
    assert archive_["lag"] == 0 and archive_["lag_seconds"] == 0
    assert archive_["event_ts_ms"] is None and archive_["lag_unknown"] is None

    # So it is known as well what cannot be a position.
    change = ("checkpoint", "set", "shop.yaml", "--sink", "screen", "--yes", "--position")
    for position, why in (("zz", "'zz' is not a position"), (f"{99:016x}", "is ahead of")):
        code, out, err = dfc(folder, *change, position)
        assert (code, out) == (1, "") and why in err
    assert dfc(folder, *change, f"{11:016x}")[0] == 0


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
    copied = Notes(storage, "shop/db")
    copied.begin(Copied(1, 1, ["orders"]))
    code, out, err = dfc(folder, "checkpoint", "reset", "shop.yaml", "--yes")
    known = copied.load()
    assert known is not None and known.anew, "rows of a snapshot come again too"
    beginning = "starts from the beginning\n"
    assert (code, out, err) == (0, f"screen: {beginning}archive: {beginning}", "")
    assert storage.items("checkpoints") == {}
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
    number = first.split()[0]
    letter = json.loads(dfc(folder, "dlq", "show", "shop.yaml", number)[1])
    assert letter["event"]["after"]["kind"] == 'say "hi"\n'
    out = dfc(folder, "dlq", "list", "shop.yaml", "--sink", "other")[1]
    assert out == "no dead letters of `other`; of picky\n"
    assert dfc(folder, "dlq", "show", "shop.yaml", "99")[0] == 1
    assert dfc(folder, "dlq", "purge", "shop.yaml")[0] == 2
    assert dfc(folder, "dlq", "purge", "shop.yaml", number, "--yes")[1] == "1 dead letter removed\n"
    assert dfc(folder, "dlq", "purge", "shop.yaml", "--yes")[1] == "1 dead letter removed\n"
    assert dfc(folder, "dlq", "purge", "shop.yaml", "--yes")[1] == "0 dead letters removed\n"
    assert dfc(folder, "dlq", "list", "shop.yaml")[1] == "no dead letters\n"


def test_a_pipeline_that_has_not_run_has_nothing_to_show(folder: Path) -> None:
    for place in ("sqlite:elsewhere.db", "memory"):
        code, _, err = dfc(folder, "status", "shop.yaml", "--storage", place)
        assert code == 1 and err.startswith("dfc: ")
    assert not (folder / "elsewhere.db").exists()


def test_status_tells_what_the_source_keeps_of_its_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admin, "lags", lambda _, at: {p: Lag(5, "bytes", 16_777_216) for p in at})
    monkeypatch.setattr(admin, "load_job", lambda *_: SimpleNamespace(SOURCE=None))
    request = {"pipeline": "shop", "tenant": "acme", "source": "db", "job": "", "lanes": 1}
    request |= {"backend": "sqlite", "path": str(folder / "state.db"), "dsn": None, "flags": {}}
    for as_json in (False, True):
        admin.Admin({**request, "sinks": ["screen"], "json": as_json}).status()
    text, _, found = capsys.readouterr().out.partition("{")
    assert "log that the source keeps for it: 16,777,216 bytes\n" in text
    assert json.loads("{" + found)["sinks"][0]["retained_bytes"] == 16_777_216
