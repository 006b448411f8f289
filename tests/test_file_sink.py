from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.errors import ConfigError, Rejected, SinkError
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import FileSink, Lane
from dfc_runtime.sinks import journal as journal_module

LANE = Lane("p")


def make(folder: Path, **settings: Any) -> FileSink:
    return FileSink("files", lambda e: Messages(value=""), path=str(folder), **settings)


def unit(first: int, last: int, to: Any = "") -> tuple[Messages, Events]:
    numbers = range(first, last + 1)
    batch = pa.record_batch({"position": pa.array([f"{i:04x}" for i in numbers], pa.string())})
    column = pa.array([to(i) for i in numbers], pa.string()) if callable(to) else to
    value = pa.array([f'{{"id":{i}}}' for i in numbers], pa.string())
    return Messages(to=column, value=value), Events(batch, pipeline="p")


def visible(folder: Path) -> dict[str, list[int]]:
    """Numbers in each finished file, by its path."""
    return {
        str(path.relative_to(folder)): [json.loads(x)["id"] for x in path.read_text().splitlines()]
        for path in sorted(folder.rglob("*.jsonl"))
        if not path.name.startswith(".")
    }


def test_units_become_lines_and_the_name_is_their_range(tmp_path: Path) -> None:
    sink = make(tmp_path)
    assert sink.open(LANE) == ""
    sink.write(*unit(1, 2))
    sink.write(*unit(3, 3))
    sink.commit("0003")
    sink.write(*unit(4, 5))
    sink.commit("0005")
    sink.close()
    assert visible(tmp_path) == {}
    assert sink.open(LANE) == "0005"
    sink.close()
    sink.finish("p")
    assert visible(tmp_path) == {"files/0001-0005.jsonl": [1, 2, 3, 4, 5]}
    assert sink.open(LANE) == "0005"
    sink.close()


def test_what_was_not_committed_is_not_there(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    sink.write(*unit(1, 2))
    sink.commit("0002")
    sink.write(*unit(3, 9))
    sink.abort()
    sink.write(*unit(3, 4))
    sink.commit("0004")
    sink.write(*unit(5, 6))
    sink.close()
    sink.finish("p")
    assert visible(tmp_path) == {"files/0001-0004.jsonl": [1, 2, 3, 4]}


def test_each_destination_has_its_own_file_in_log_order(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    sink.write(*unit(1, 5, lambda i: f"a/t{i % 2}"))
    sink.commit("0005")
    sink.close()
    sink.finish("p")
    assert visible(tmp_path) == {
        "a/t0/0002-0004.jsonl": [2, 4],
        "a/t1/0001-0005.jsonl": [1, 3, 5],
    }


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"roll_max_events": 4}, ["0001-0004", "0005-0008"]),
        ({"roll_max_bytes": 9}, ["0001-0002", "0003-0004", "0005-0006", "0007-0008"]),
        ({"roll_max_age_secs": 0}, ["0001-0002", "0003-0004", "0005-0006", "0007-0008"]),
        ({}, []),
    ],
)
def test_rolling(tmp_path: Path, settings: dict[str, int], expected: list[str]) -> None:
    sink = make(tmp_path, **settings)
    sink.open(LANE)
    for first in (1, 3, 5, 7):
        sink.write(*unit(first, first + 1))
        sink.commit(f"{first + 1:04x}")
    assert list(visible(tmp_path)) == [f"files/{name}.jsonl" for name in expected]
    sink.close()


def test_age_rolls_on_a_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    sink.write(*unit(1, 1))
    sink.commit("0001")
    sink.tick()
    assert visible(tmp_path) == {}
    sink.roll_max_age_secs = 0
    sink.tick()
    assert visible(tmp_path) == {"files/0001-0001.jsonl": [1]}
    sink.close()
    assert make(tmp_path).tick_secs == 60


def test_a_clock_that_went_back_keeps_no_file_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    sink.write(*unit(1, 1))
    sink.commit("0001")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    sink.tick()
    assert visible(tmp_path) == {"files/0001-0001.jsonl": [1]}
    sink.close()


@pytest.mark.parametrize("to", ["../x", "/etc", "a/../b", "a//b", ".", "a\0b", ".dfc/x", "x" * 300])
def test_destinations_stay_inside_the_folder(tmp_path: Path, to: str) -> None:
    sink = make(tmp_path / "out")
    sink.open(LANE)
    with pytest.raises(Rejected) as rejected:
        sink.write(*unit(1, 2, to))
    assert list(rejected.value.rows) == [0, 1]
    with pytest.raises(Rejected, match="not a folder inside") as rejected:
        sink.write(*unit(1, 3, lambda i: to if i == 2 else "a"))
    assert list(rejected.value.rows) == [1], "the others may come without it"
    sink.close()
    assert os.listdir(tmp_path) == ["out"] and visible(tmp_path / "out") == {}


def test_null_destination_is_rejected(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    with pytest.raises(Rejected, match="no destination") as rejected:
        sink.write(*unit(1, 2, lambda i: None if i == 2 else "a"))
    assert list(rejected.value.rows) == [1]
    sink.close()


def test_newlines_between_json_tokens_do_not_break_lines(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    _, events = unit(1, 2)
    sink.write(Messages(value=pa.array(['{\n"id": 1}', None])), events)
    sink.commit("0002")
    sink.close()
    sink.finish("p")
    (file,) = tmp_path.glob("files/*.jsonl")
    assert file.read_text() == '{ "id": 1}\nnull\n'


def test_lanes_write_side_by_side(tmp_path: Path) -> None:
    one, two = make(tmp_path), make(tmp_path)
    one.open(Lane("p", 0, 2))
    two.open(Lane("p", 1, 2))
    one.write(*unit(1, 1))
    two.write(*unit(2, 2))
    one.commit("0001")
    two.commit("0002")
    one.close()
    two.close()
    one.finish("p")
    assert list(visible(tmp_path)) == ["files/0001-0001-0.jsonl", "files/0002-0002-1.jsonl"]


def test_many_destinations_in_one_unit(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    for first in (1, 401):
        sink.write(*unit(first, first + 199, lambda i: f"t{i % 200}"))
        sink.write(*unit(first + 200, first + 399, lambda i: f"t{i % 200}"))
        sink.commit(f"{first + 399:04x}")
    sink.close()
    sink.finish("p")
    found = visible(tmp_path)
    assert len(found) == 200
    assert all(len(ids) == 4 and ids == sorted(ids) for ids in found.values())


def test_a_folder_belongs_to_one_sink(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    sink.close()
    other = FileSink("other", lambda e: Messages(value=""), path=str(tmp_path))
    with pytest.raises(ConfigError, match="belongs to sink `files`"):
        other.open(LANE)
    with pytest.raises(ConfigError, match="pipeline `p`"):
        make(tmp_path).open(Lane("q"))


def test_only_one_process_writes_a_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(journal_module, "LOCK_WAIT_SECS", 0.2)
    sink = make(tmp_path)
    sink.open(LANE)
    with pytest.raises(SinkError, match="another process"):
        make(tmp_path).open(LANE)
    assert "waiting for process" in capsys.readouterr().err
    sink.close()
    second = make(tmp_path)
    second.open(LANE)
    second.close()


def test_a_vanished_file_is_noticed(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    sink.write(*unit(1, 1))
    sink.commit("0001")
    sink.close()
    (part,) = tmp_path.glob("files/.*.part")
    part.unlink()
    sink.open(LANE)
    with pytest.raises(SinkError, match="is gone"):
        sink.write(*unit(2, 2))
    sink.close()


def test_damage_in_the_middle_of_the_journal_is_noticed(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(LANE)
    for i in (1, 2, 3):
        sink.write(*unit(i, i))
        sink.commit(f"{i:04x}")
    sink.close()
    path = tmp_path / ".dfc" / "lane-0.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:10])
    assert sink.open(LANE) == "0002"  # a torn end is what a crash leaves
    sink.close()
    path.write_bytes(lines[0] + lines[1] + b"x" + lines[2] + lines[3])
    with pytest.raises(SinkError, match="damaged"):
        sink.open(LANE)


def test_journal_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 2000)
    sink = make(tmp_path, fsync=False)
    sink.open(LANE)
    for i in range(1, 200):
        sink.write(*unit(i, i))
        sink.commit(f"{i:04x}")
    sink.close()
    assert (tmp_path / ".dfc" / "lane-0.journal").stat().st_size < 2500
    assert sink.open(LANE) == f"{199:04x}"
    sink.close()


def stand(folder: Path, *positions: int, known: str = "") -> None:
    """Leaves a folder whose lanes stand here, as a kill would."""
    for lane, position in enumerate(positions):
        sink = make(folder)
        sink.open(Lane("p", lane, len(positions), known))
        sink.write(*unit(position, position))
        sink.commit(f"{position:04x}")
        sink.close()


def test_another_number_of_lanes_needs_a_common_position(tmp_path: Path) -> None:
    stand(tmp_path, 10, 5)
    for known in ("", "0005", "0009"):
        with pytest.raises(ConfigError, match="run once with 2 lanes"):
            make(tmp_path).open(Lane("p", 0, 1, known))
        with pytest.raises(ConfigError, match="run once with 2 lanes"):
            make(tmp_path).open(Lane("p", 2, 3, known))
    same = make(tmp_path)
    assert same.open(Lane("p", 1, 2, "0009")) == "0005", "the old number goes on"
    same.close()
    sink = make(tmp_path)
    assert sink.open(Lane("p", 0, 1, "000a")) == "000a", "storage has them all at the end"
    sink.write(*unit(11, 11))
    sink.commit("000b")
    sink.close()
    sink.finish("p")
    assert sorted(i for ids in visible(tmp_path).values() for i in ids) == [5, 10, 11]
    assert sink.open(Lane("p", 0, 1)) == "000b"
    sink.close()


def test_new_lanes_begin_where_the_one_stood(tmp_path: Path) -> None:
    """Storage may be behind after a kill: a lane without a journal must not begin there."""
    stand(tmp_path, 10)
    one, two = make(tmp_path), make(tmp_path)
    assert one.open(Lane("p", 0, 2, "0005")) == "000a"
    assert two.open(Lane("p", 1, 2, "0005")) == "000a"
    two.write(*unit(12, 12))
    two.commit("000c")
    one.close()
    two.close()
    with pytest.raises(ConfigError, match="run once with 2 lanes"):
        one.open(Lane("p", 0, 1, "000b"))
    assert one.open(Lane("p", 0, 1, "000c")) == "000c"
    one.close()
    # Back to two: the journal of lane 1 has the right number, from an earlier time.
    assert two.open(Lane("p", 1, 2, "0005")) == "000c"
    two.close()


def test_the_number_of_lanes_stays_while_somebody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "LOCK_WAIT_SECS", 0.1)
    sink, other = make(tmp_path), make(tmp_path)
    sink.open(LANE)
    with pytest.raises(SinkError, match="another process"):
        other.open(Lane("p", 1, 2))
    sink.close()
    assert other.open(Lane("p", 1, 2)) == ""
    other.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.test_file_sink import LANE, journal_module, make, unit
journal_module.COMPACT_BYTES = int(sys.argv[3])
folder = Path(sys.argv[2])
sink = make(folder, fsync=False)
sink.open(LANE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
done = 0
try:
    for i in range(1, 1000):
        sink.write(*unit(i, i, f"t{i}"))
        sink.commit(f"{i:04x}")
        done = i
except OSError:
    print(done)
"""


@pytest.mark.parametrize(("compact", "limit"), [(1 << 30, 700), (1 << 30, 704), (500, 2000)])
def test_a_full_disk_cuts_no_record_in_half(tmp_path: Path, compact: int, limit: int) -> None:
    """The kernel takes as much as fits, and says so only in the number that `write` returns."""
    root = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", FULL_DISK, root, str(tmp_path), str(compact), str(limit)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    done = int(ended.stdout)
    data = (tmp_path / ".dfc" / "lane-0.journal").read_bytes()
    assert data.endswith(b"\n") and not list(tmp_path.rglob("*.new"))
    sink = make(tmp_path)
    at = int(sink.open(LANE), 16)
    # A record may be there whose compaction failed behind it; none that counted may be missing.
    assert done <= at <= done + 1 and done > 2
    for i in range(at + 1, at + 4):
        sink.write(*unit(i, i))
        sink.commit(f"{i:04x}")
    sink.close()
    sink.finish("p")
    numbers = sorted(i for ids in visible(tmp_path).values() for i in ids)
    assert numbers == list(range(1, at + 4))


# --- crashes -------------------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for a process that is no more: nothing after it may touch the files."""


CALLS = (
    "pwrite",
    "write",
    "fdatasync",
    "fsync",
    "rename",
    "ftruncate",
    "truncate",
    "open",
    "mkdir",
)


@contextmanager
def crash_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Lets so many calls to the operating system through; a write that crashes is half done."""
    made: list[str] = []

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            made.append(name)
            if len(made) > number:
                if name in ("pwrite", "write") and len(made) == number + 1:
                    handle, data, *rest = arguments
                    real(handle, bytes(data)[: len(data) // 2], *rest)
                raise Crash
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        yield made


def play(folder: Path, until: int) -> None:
    """One run: opens the sink, goes on behind its position, finishes."""
    sink = make(folder, roll_max_events=5)
    at = int(sink.open(LANE) or "0", 16)
    while at < until:
        sink.write(*unit(at + 1, at + 2, lambda i: f"t{i % 2}"))
        sink.write(*unit(at + 3, at + 3))
        at += 3
        sink.commit(f"{at:04x}")
    sink.close()
    sink.finish("p")


def test_a_crash_at_any_call_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 600)  # so that compaction has its turn
    with crash_at(10**6, monkeypatch) as made:
        play(tmp_path / "whole", 30)
    calls = len(made)
    assert {"rename", "fdatasync", "ftruncate"} <= set(made)
    for number in range(calls):
        folder = tmp_path / str(number)
        with crash_at(number, monkeypatch), pytest.raises(Crash):
            play(folder, 30)
        # What the kernel would do with a process that is gone.
        release_locks(folder)
        play(folder, 30)
        found = visible(folder)
        assert sorted(i for ids in found.values() for i in ids) == list(range(1, 31)), number
        for name, ids in found.items():
            first, last = name.split("/")[1].removesuffix(".jsonl").split("-")
            assert (int(first, 16), int(last, 16)) == (ids[0], ids[-1])
        assert not list(folder.rglob("*.part"))


def release_locks(folder: Path) -> None:
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith(str(folder)):
            handle = int(name)
            if target.endswith(".lock"):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def test_killed_writers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    script = Path(__file__).parent / "jobs" / "file_writer.py"
    out = tmp_path / "out"
    subprocess.run([sys.executable, str(script), str(out), "40", "7"], check=True, timeout=120)
    found = visible(out)
    numbers = sorted(i for ids in found.values() for i in ids)
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 200
    for ids in found.values():
        assert ids == sorted(ids)
    assert not list(out.rglob("*.part"))
