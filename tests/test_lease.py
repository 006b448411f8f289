"""One runner for a pipeline: refused while another lives, in its place at once when it is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dfc_runtime import lease as leases
from dfc_runtime.errors import ConfigError, TakenOver
from dfc_runtime.lease import Lease
from dfc_runtime.positions import Positions
from dfc_runtime.storage import SqliteStorage

TTL = 0.6


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SqliteStorage]:
    one = SqliteStorage(tmp_path / "state.db")
    yield one
    one.close()


def lease(storage: SqliteStorage, pipeline: str = "shop", lost: list[str] | None = None) -> Lease:
    return Lease(
        storage, pipeline, lambda: lost.append(pipeline) if lost is not None else None, TTL
    )


def test_a_second_runner_is_refused_and_told_who_runs(storage: SqliteStorage) -> None:
    first = lease(storage)
    first.acquire()
    said: list[str] = []
    with pytest.raises(
        ConfigError, match=r"`shop` has a runner already: it is run by process \d+ on "
    ):
        lease(storage).acquire(said.append)
    assert said and "sign of life" in said[0]
    lease(storage, "another").acquire()
    assert first.held
    first.release()
    second = lease(storage)
    second.acquire()
    second.release()


HOLDER = """
import sys, time
from dfc_runtime.lease import Lease
from dfc_runtime.storage import SqliteStorage
Lease(SqliteStorage(sys.argv[1]), "shop", lambda: None).acquire()
print("held", flush=True)
time.sleep(600)
"""


def test_after_a_kill_the_next_runner_does_not_wait(storage: SqliteStorage, tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, storage.path], stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    holder.kill()
    time.sleep(0.2)  # not waited for yet: a process that only waits to be buried is gone too
    began = time.monotonic()
    mine = Lease(storage, "shop", lambda: None, ttl_secs=600)
    mine.acquire()
    assert time.monotonic() - began < 60
    mine.release()
    holder.communicate()


def test_a_runner_of_another_machine_is_watched_for_a_sign_of_life(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    silent = lease(storage, lost=lost)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(leases, "_boot", lambda: "another machine")
        elsewhere.setattr(Lease, "_renew", lambda self: None)
        silent.acquire()
    began = time.monotonic()
    second = lease(storage)
    second.acquire()
    assert time.monotonic() - began >= TTL
    assert second.held
    second.release()


def test_whoever_lost_the_lease_is_told_and_writes_nothing_more(storage: SqliteStorage) -> None:
    lost: list[str] = []
    first = lease(storage, lost=lost)
    first.acquire()
    positions = Positions(storage, "shop", "s", ["archive"], 1, guard=first.guard)
    positions.advance({("archive", 0): "05"}, {})
    slot = storage.slot("leases", "shop")
    assert slot is not None
    assert storage.swap("leases", "shop", slot[0], slot[1].replace(first.token.encode(), b"other"))
    with pytest.raises(TakenOver, match="another runner has taken the pipeline `shop` over"):
        positions.advance({("archive", 0): "09"}, {})
    deadline = time.monotonic() + 30
    while not lost and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lost == ["shop"] and not first.held
    first.release()
    assert Positions(storage, "shop", "s", ["archive"], 1).of("archive") == ("05",)


def test_storage_that_is_busy_for_a_moment_costs_no_lease(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lease(storage)
    first.acquire()
    swap = storage.swap
    failures = [OSError("locked")] * 2

    def sometimes(*arguments: object) -> bool:
        if failures:
            raise failures.pop()
        return swap(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "swap", sometimes)
    time.sleep(TTL * 1.5)
    assert not failures and first.held
    first.release()
