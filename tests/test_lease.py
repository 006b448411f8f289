"""One runner for a pipeline: refused while another lives, in its place at once when it is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dfc_runtime import lease as leases
from dfc_runtime.errors import ConfigError, StorageError, TakenOver
from dfc_runtime.lease import Lease
from dfc_runtime.positions import Positions
from dfc_runtime.storage import Backend, Storage

from .services import Postgres
from .services.fixtures import Services
from .storages import every_backend, fresh_schema

TTL = 0.6


@pytest.fixture(params=every_backend)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "sqlite":
        return Storage(path=str(tmp_path / "state.db"))
    return fresh_schema(request.getfixturevalue("postgres_server"))


@pytest.fixture
def storage(spec: Storage) -> Iterator[Backend]:
    one = spec.open()
    yield one
    one.close()


def lease(storage: Backend, pipeline: str = "shop", lost: list[str] | None = None) -> Lease:
    return Lease(
        storage, pipeline, lambda: lost.append(pipeline) if lost is not None else None, TTL
    )


def test_a_second_runner_is_refused_and_told_who_runs(storage: Backend) -> None:
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
from dfc_runtime.storage import Storage
Lease(Storage.parse(sys.argv[1]).open(), "shop", lambda: None).acquire()
print("held", flush=True)
time.sleep(600)
"""


def test_after_a_kill_the_next_runner_does_not_wait(
    spec: Storage, storage: Backend, tmp_path: Path
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, spec.text], stdout=subprocess.PIPE, cwd=tmp_path
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


@pytest.mark.parametrize("apart", ["_boot", "_pids"])
def test_a_runner_of_another_machine_or_container_is_watched_for_a_sign_of_life(
    storage: Backend, monkeypatch: pytest.MonkeyPatch, apart: str
) -> None:
    silent = lease(storage)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(leases, apart, lambda: "another")
        elsewhere.setattr(leases.os, "getpid", lambda: 2**22 + 1)  # a number that we do not have
        elsewhere.setattr(leases, "_started", lambda pid: "1")
        elsewhere.setattr(Lease, "_renew", lambda self: None)
        silent.acquire()
    began = time.monotonic()
    second = lease(storage)
    second.acquire()
    assert time.monotonic() - began >= TTL
    assert second.held
    second.release()


def test_a_runner_that_is_hidden_from_us_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's: /proc may not show it (hidepid), and it may not be signalled."""
    mine = leases._self()
    assert not leases.is_gone(mine)
    assert leases.is_gone({**mine, "started": "before"}), "the number is another's now"

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(leases.os, "kill", refuse)
    assert not leases.is_gone(mine)
    monkeypatch.setattr(leases, "_started", lambda pid: None)
    assert not leases.is_gone(mine)
    monkeypatch.undo()
    assert leases.is_gone({**mine, "pid": 2**22 + 1})


def test_whoever_lost_the_lease_is_told_and_writes_nothing_more(storage: Backend) -> None:
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
    storage: Backend, monkeypatch: pytest.MonkeyPatch
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


def test_a_renewal_whose_answer_was_lost_costs_no_lease(
    storage: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    first = lease(storage, lost=lost)
    first.acquire()
    swap = storage.swap
    answers = [StorageError("nobody knows")] * 2

    def done_but_unheard(*arguments: object) -> bool:
        done = swap(*arguments)  # type: ignore[arg-type]
        if answers:
            raise answers.pop()
        return done

    monkeypatch.setattr(storage, "swap", done_but_unheard)
    deadline = time.monotonic() + 30
    while answers and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(TTL)  # two more renewals
    assert not answers and first.held and not lost
    answers.append(StorageError("nor now"))
    with pytest.raises(StorageError):
        first._swap(first.token)
    first.release()
    slot = storage.slot("leases", "shop")
    assert slot is not None and b'"token": ""' in slot[1]


def test_a_clock_that_goes_back_costs_no_lease(
    storage: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    first = lease(storage, lost=lost)
    first.acquire()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 1_000_000)
    time.sleep(TTL * 1.5)
    with pytest.raises(ConfigError, match="has a runner already"):
        lease(storage).acquire()
    assert first.held and not lost
    first.release()


def test_a_holder_goes_on_when_storage_comes_back(services: Services) -> None:
    server = services.start(Postgres)
    spec = fresh_schema(server)
    storage = spec.open()
    lost: list[str] = []
    first = lease(storage, lost=lost)
    first.acquire()
    server.stop()
    time.sleep(TTL * 2)
    server.start()
    other = spec.open()
    with pytest.raises(ConfigError, match="has a runner already"):
        Lease(other, "shop", lambda: None, ttl_secs=30).acquire()
    assert first.held and not lost
    first.release()
    storage.close()
    other.close()
