from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from dfc_runtime.errors import ConfigError, Unavailable
from dfc_runtime.positions import Positions
from dfc_runtime.storage import SqliteStorage, Storage
from dfc_runtime.storage import sqlite as module


@pytest.fixture
def storage(tmp_path: Path) -> SqliteStorage:
    return Storage(path=str(tmp_path / "data" / "state.db")).open()


def test_file_is_private_and_its_folder_is_made(storage: SqliteStorage) -> None:
    storage.put("n", "k", b"v")
    for path in Path(storage.path).parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_values(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.get("n", "k") is None
    storage.put("n", "k", b"1")
    storage.put("n", "k", b"2")
    storage.put("n", "k%", b"3", ttl_secs=10)
    storage.put("m", "k", b"4")
    assert storage.get("n", "k") == b"2"
    assert storage.items("n", "k") == {"k": b"2", "k%": b"3"}
    assert storage.items("n", "k%") == {"k%": b"3"}
    monkeypatch.setattr(module, "_now", lambda: 2**40)
    assert storage.get("n", "k%") is None and storage.items("n") == {"k": b"2"}
    assert storage.sweep() == 1
    storage.delete("n", "k")
    assert storage.items("n") == {}


def test_log(storage: SqliteStorage) -> None:
    first = storage.append("n", "k", b"a")
    storage.append("n", "other", b"x")
    second = storage.append("n", "k", b"b")
    assert storage.since("n", "k") == [(first, b"a"), (second, b"b")]
    assert storage.since("n", "k", first) == [(second, b"b")]


def test_slot_swaps_only_the_version_it_knows(storage: SqliteStorage) -> None:
    assert storage.slot("n", "k") is None
    assert storage.swap("n", "k", 0, b"a")
    assert not storage.swap("n", "k", 0, b"b")
    assert storage.slot("n", "k") == (1, b"a")
    assert storage.swap("n", "k", 1, b"b")
    assert not storage.swap("n", "k", 1, b"c")
    assert storage.slot("n", "k") == (2, b"b")


def test_queue(storage: SqliteStorage) -> None:
    ids = [storage.push("n", "k", bytes([i])) for i in range(5)]
    storage.push("n", "other", b"x")
    assert storage.count("n", "k") == 5
    assert storage.peek("n", "k", 2) == [(ids[0], b"\0"), (ids[1], b"\1")]
    assert storage.ack("n", "k", ids[1]) == 2
    assert storage.drop_oldest("n", "k", 2) == 2
    assert storage.peek("n", "k") == [(ids[4], b"\4")]
    assert storage.drop_oldest("n", "k", 9) == 1
    assert storage.count("n", "other") == 1


def test_several_processes_write_at_once(storage: SqliteStorage) -> None:
    code = (
        "import sys; from dfc_runtime.storage import SqliteStorage\n"
        "s = SqliteStorage(sys.argv[1])\n"
        "for i in range(100): s.push('n', 'k', b'x')\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, storage.path]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert storage.count("n", "k") == 300


def test_spec() -> None:
    assert Storage.parse("sqlite:/x/y.db") == Storage("sqlite", "/x/y.db")
    assert Storage.parse("memory").backend == "memory"
    for text in ("sqlite", "sqlite:", "oracle:x", "memory:x"):
        with pytest.raises(ConfigError):
            Storage.parse(text)
    with pytest.raises(Unavailable, match="not built yet"):
        Storage(backend="postgres", dsn="x").open()


def positions(storage: SqliteStorage | None, lanes: int = 1, keep: bool = True) -> Positions:
    return Positions(storage, "p", "src", ["a", "b"], lanes, keep)


def test_the_start_is_the_smallest_position_of_all_sinks(storage: SqliteStorage) -> None:
    at = positions(storage)
    assert at.start == ""
    at.advance({("a", 0): "05", ("b", 0): "03"}, {("a", 0): 5})
    at.advance({("a", 0): "04"}, {("a", 0): 1})  # never back
    again = positions(storage)
    assert (again.start, again.of("a"), again.events["a"]) == ("03", ("05",), [5])
    assert Positions(storage, "p", "src", ["a", "b", "new"], 1).start == ""
    assert Positions(storage, "other", "src", ["a"], 1).start == ""


def test_a_dry_run_keeps_nothing(storage: SqliteStorage) -> None:
    at = positions(storage, keep=False)
    at.advance({("a", 0): "05"}, {})
    assert at.of("a") == ("05",)
    assert positions(storage).of("a") == ("",)
    positions(None).advance({("a", 0): "05"}, {})


def test_lanes_may_change_only_where_they_stand_together(storage: SqliteStorage) -> None:
    at = positions(storage, lanes=2)
    at.advance({(s, i): "05" for s in "ab" for i in (0, 1)}, {("a", 0): 2, ("a", 1): 3})
    four = positions(storage, lanes=4)
    assert four.of("a") == ("05",) * 4 and four.start == "05"
    at.advance({("a", 0): "07"}, {})
    with pytest.raises(ConfigError, match="run once with 2 lanes"):
        positions(storage, lanes=4)
    assert positions(storage, lanes=2).of("a") == ("07", "05")


def test_fewer_lanes_leave_no_old_keys(storage: SqliteStorage) -> None:
    positions(storage, lanes=3).advance({(s, i): "05" for s in "ab" for i in range(3)}, {})
    one = positions(storage, lanes=1)
    one.advance({("a", 0): "09", ("b", 0): "09"}, {})
    assert positions(storage, lanes=1).start == "09"
