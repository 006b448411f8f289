"""Commands and jobs on storage in PostgreSQL: what they find, and what they say when it is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dfc_runtime.batch import Batch
from dfc_runtime.deadletters import DeadLetters, Journal
from dfc_runtime.deliver import Delivery
from dfc_runtime.lease import Lease
from dfc_runtime.positions import Positions
from dfc_runtime.sources.progress import SinkPositions
from dfc_runtime.sources.settings import ReaderSettings
from dfc_runtime.storage import Storage

from .fixtures import fixture_events
from .services import Postgres
from .services.fixtures import Services
from .storages import fresh_schema
from .test_deadletters import Picky, event_id

SPEC = """\
metadata: {name: shop, tenant: acme}
spec:
  source: {type: turso, config: {id: db, url: ./shop.db, tables: [orders]}}
  storage: {backend: postgres, dsn: "${STATE_DSN}"}
  sinks:
    - {type: console, config: {id: screen}}
"""
TINY = Path(__file__).parent / "jobs" / "tiny_job.py"
NOWHERE = "postgres://dfc:hunter2@127.0.0.1:1/shop"


@pytest.fixture
def kept(postgres_server: Postgres) -> Storage:
    return fresh_schema(postgres_server)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(SPEC)
    return tmp_path


def fill(kept: Storage) -> None:
    storage = kept.open()
    positions = Positions(storage, "shop", "db", ["screen"], 1)
    positions.advance({("screen", 0): "0a"}, {("screen", 0): 1234})
    storage.close()
    sink = Picky(rejects=(event_id(1), event_id(3)))
    dead = DeadLetters(Journal(), kept, "shop")
    delivery = Delivery("shop", "acme", 1, lambda e: e, (sink,), Batch(), dead)
    list(delivery.run(iter([fixture_events("turso").batch]), 0, {}))


def run(folder: Path, *command: str, **env: str | None) -> tuple[int, str, str]:
    environment = {**os.environ, **env}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={name: value for name, value in environment.items() if value is not None},
        timeout=120,
    )
    assert "Traceback" not in done.stderr and "hunter2" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def dfc(folder: Path, dsn: str | None, *command: str) -> tuple[int, str, str]:
    return run(folder, "-m", "dfc.compiler.cli", *command, STATE_DSN=dsn)


def test_commands_work_as_on_sqlite(folder: Path, kept: Storage) -> None:
    code, _, err = dfc(folder, kept.dsn, "status", "shop.yaml")
    assert code == 1 and "there is no table in the database: the pipeline has not run yet" in err
    assert kept.find() is None, "looking makes nothing"
    fill(kept)
    code, out, err = dfc(folder, kept.dsn, "status", "shop.yaml")
    assert (code, err) == (0, "")
    assert "shop: not running" in out and "dead letters: 2" in out and "1,234" in out
    change = ("shop.yaml", "--sink", "screen", "--yes")
    assert dfc(folder, kept.dsn, "checkpoint", "set", *change, "--position", "05")[0] == 0
    storage = kept.open()
    assert Positions(storage, "shop", "db", ["screen"], 1).start == "05"
    lease = Lease(storage, "shop", lambda: None)
    lease.acquire()
    assert "shop: run by process " in dfc(folder, kept.dsn, "status", "shop.yaml")[1]
    lease.release()
    assert dfc(folder, kept.dsn, "checkpoint", "reset", *change)[0] == 0
    assert Positions(storage, "shop", "db", ["screen"], 1).start == ""
    out = dfc(folder, kept.dsn, "dlq", "list", "shop.yaml")[1]
    assert event_id(1) in out and event_id(3) in out
    number = out.splitlines()[1].split()[0]
    letter = json.loads(dfc(folder, kept.dsn, "dlq", "show", "shop.yaml", number)[1])
    assert letter["event_id"] == event_id(1)
    assert dfc(folder, kept.dsn, "dlq", "purge", "shop.yaml", "--yes")[1].startswith("2 dead")
    assert storage.count("dlq", "shop") == 0
    storage.close()


@pytest.mark.parametrize(
    "flags",
    [
        ["--storage", "postgres:${STATE_DSN}"],
        ["--storage-dsn", "${STATE_DSN}"],
        ["--storage-backend", "postgres", "--storage-dsn", "${STATE_DSN}"],
    ],
)
def test_flags_say_which_database(folder: Path, kept: Storage, flags: list[str]) -> None:
    fill(kept)
    spec = SPEC.replace('{backend: postgres, dsn: "${STATE_DSN}"}', "{path: state.db}")
    (folder / "shop.yaml").write_text(spec)
    code, out, _ = dfc(folder, kept.dsn, "checkpoint", "list", "shop.yaml", *flags)
    assert code == 0 and "1,234" in out


@pytest.mark.parametrize(
    ("dsn", "flags", "code", "text"),
    [
        (NOWHERE, [], 1, "Connection refused"),
        ("postgres://dfc:hun/ter2@h/d", [], 1, "the DSN cannot be read"),
        (None, [], 2, "environment variable is not set: STATE_DSN"),
        (NOWHERE, ["--storage", "memory", "--storage-path", "x"], 2, "--storage goes alone"),
        (NOWHERE, ["--storage-backend", "sqlite", "--storage-dsn", "x"], 2, "no meaning with"),
        (NOWHERE, ["--storage-backend", "oracle"], 2, "invalid choice: 'oracle'"),
        (NOWHERE, ["--storage", "oracle:hunter2"], 2, "--storage takes sqlite:PATH, memory or"),
        (NOWHERE, ["--storage-path", "none.db"], 1, "there is no none.db"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    folder: Path, dsn: str | None, flags: list[str], code: int, text: str
) -> None:
    found, out, err = dfc(folder, dsn, "status", "shop.yaml", *flags)
    assert (found, out) == (code, "") and text in err
    assert len([line for line in err.splitlines() if not line.startswith("try `")]) == 1


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--storage", f"postgres:{NOWHERE}"], 1, "Connection refused"),
        (["--storage-dsn", "${STATE_DSN}"], 1, "Connection refused"),
        (["--storage-dsn", "${NO_SUCH_DSN}"], 2, "environment variable is not set: NO_SUCH_DSN"),
        (["--storage-dsn", "hunter2"], 1, "the DSN cannot be read"),
        (["--storage-dsn", "x", "--storage-path", "y"], 2, "give one"),
        (["--storage-backend", "postgres"], 2, "needs --storage-dsn"),
        (["--once", "--storage-path", "/dev/null/x.db"], 1, "storage /dev/null/x.db: "),
    ],
)
def test_a_job_says_so_before_spark_starts(
    tmp_path: Path, flags: list[str], code: int, text: str
) -> None:
    env = {"TINY_OUT": str(tmp_path), "TINY_ROWS": "5", "STATE_DSN": NOWHERE}
    found, out, err = run(tmp_path, str(TINY), *flags, **env)
    assert (found, out) == (code, "") and text in err
    assert len(err.splitlines()) == 1 and err.startswith("tiny: error: ")


def test_a_running_pipeline_is_refused_on_another_machine_too(
    tmp_path: Path, kept: Storage
) -> None:
    storage = kept.open()
    lease = Lease(storage, "tiny", lambda: None, ttl_secs=1.0)
    lease.acquire()
    env = {"TINY_OUT": str(tmp_path), "TINY_ROWS": "5", "STATE_DSN": kept.dsn}
    code, _, err = run(tmp_path, str(TINY), "--storage-dsn", "${STATE_DSN}", **env)
    assert code == 1 and "the pipeline `tiny` has a runner already" in err
    lease.release()
    storage.close()


# --- the reader's side -----------------------------------------------------------------------


def test_a_reader_finds_positions_by_what_the_job_tells_it(
    tmp_path: Path, kept: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept.dsn is not None
    monkeypatch.setenv("STATE_DSN", kept.dsn)
    for text in (f"sqlite:{tmp_path}/${{x}}$$.db", "postgres:${STATE_DSN}", f"{tmp_path}/b.db"):
        options = {"pipeline": "shop", "id": "db", "sinks": '["screen"]', "storage": text}
        settings = ReaderSettings.parse(options)
        assert settings.storage is not None and not settings.guest
        assert "dfc:dfc" not in repr(settings)
        sinks = SinkPositions(settings)
        assert sinks.smallest() == "" and settings.storage.find() is None
        storage = settings.storage.open()
        Positions(storage, "shop", "db", ["screen"], 1).advance({("screen", 0): "0a"}, {})
        storage.close()
        assert sinks.smallest() == "0a"
    assert {path.name for path in tmp_path.glob("*.db")} == {"${x}$$.db", "b.db"}


def test_a_reader_does_without_positions_while_storage_is_away(services: Services) -> None:
    server = services.start(Postgres)
    kept = fresh_schema(server)
    fill(kept)
    options = {"pipeline": "shop", "id": "db", "sinks": '["screen"]', "storage": kept.text}
    sinks = SinkPositions(ReaderSettings.parse(options))
    assert sinks.smallest() == "0a"
    server.stop()
    assert sinks.smallest() == ""
    server.start()
    assert sinks.smallest() == "0a"
