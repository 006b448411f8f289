"""Journal of one lane of a file sink: which files are open, how long they are, and the position.

One line per unit, `<crc32> <json>`, each synced before the unit counts. What a crash leaves behind
the last whole line never happened. Rolling a file is announced (with its final name) before the
rename, so that recovery only has to carry out what the journal says, as often as it takes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
import zlib
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, SinkError
from .lane_count import LaneCount

FOLDER = ".dfc"
LOCK_WAIT_SECS = 10.0
COMPACT_BYTES = 65_536  # replaying this much takes some milliseconds, and every epoch does it
_VERSION = 1


@dataclass(slots=True)
class Active:
    """A file that is still being written, as far as it is committed."""

    part: str
    length: int
    events: int
    first: str
    last: str
    since: float


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Makes names in a folder durable; a file's own sync does not."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Journal:
    """Held open, with the lane's lock, by the one process that writes the lane."""

    def __init__(self, root: str, owner: dict[str, Any], lane: int, fsync: bool) -> None:
        self.folder = Path(root) / FOLDER
        self.position = ""
        self.redelivered = ""  # mark of the last unit of old events
        self.active: dict[str, Active] = {}
        self.rolling: list[tuple[str, str, str, int]] = []  # folder, part, final name, length
        self._owner = {"v": _VERSION, **owner}
        self._lane = lane
        self._fsync = fsync
        self._size = 0
        self._file = -1
        self._lock = -1
        self._count = LaneCount(self.folder, self._glance, fsync)

    @property
    def path(self) -> Path:
        return self.folder / f"lane-{self._lane}.journal"

    # --- opening -----------------------------------------------------------------------------

    def open(self, known: str | None = "") -> None:
        """`known`: where storage has the lane; None to leave the folder's lanes as they are."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            start = ""
            if known is not None:
                agreed = self._count.agree(self._owner["lanes"], known, LOCK_WAIT_SECS)
                start = agreed.start
                if agreed.generation:
                    self._owner["generation"] = agreed.generation
            if self._load(start):
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            else:
                self._compact()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1
        self._count.close()

    def furthest(self) -> str:
        """The highest position in any lane of the folder."""
        agreed = self._count.read()
        start = agreed.start if agreed is not None else ""
        return max([start, *(position for _, position in self._glance().values())])

    def _glance(self) -> dict[int, tuple[dict[str, Any], str]]:
        """Header and position of every lane's journal."""
        found = {}
        for lane, path in _journals(self.folder):
            records, _ = _records(path.read_bytes())
            if records:
                self._check_owner(records[0])
                position = ""
                for record in records[1:]:
                    position = record.get("p", position)
                found[lane] = (records[0], position)
        return found

    def _check_owner(self, header: dict[str, Any]) -> None:
        for name in ("pipeline", "sink"):
            if header.get(name) != self._owner[name]:
                raise ConfigError(
                    f"{self.folder.parent} belongs to sink `{header.get('sink')}` "
                    f"of pipeline `{header.get('pipeline')}`: give each file sink its own folder"
                )

    def _take_lock(self) -> None:
        path = self.folder / f"lane-{self._lane}.lock"
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + LOCK_WAIT_SECS
        said = False
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
                if time.monotonic() > end:
                    self.close()
                    raise SinkError(
                        f"{self.folder.parent} is being written by another process ({holder})"
                    ) from None
                if not said:
                    said = True
                    print(f"waiting for process {holder}: {path}", file=sys.stderr, flush=True)
                time.sleep(0.05)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _load(self, start: str) -> bool:
        """Replays the file; False when it has to be written anew. A new lane begins at `start`."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            self.position = start
            return False
        records, good = _records(data)
        if any(_parse(line) is not None for line in data[good:].split(b"\n")[1:]):
            # Not the torn end of a crash: going on would repeat events that were committed.
            raise SinkError(f"{self.path} is damaged in the middle")
        if not records:
            return False
        header = records[0]
        self._check_owner(header)
        for record in records[1:]:
            self._apply(record)
        if good < len(data):
            os.truncate(self.path, good)
        self._size = good
        if header.get("generation", 0) != self._owner.get("generation", 0):
            self.position = start
        return bool(header == self._owner)

    def _apply(self, record: dict[str, Any]) -> None:
        self.position = record.get("p", self.position)
        self.redelivered = record.get("m", self.redelivered)
        for folder, fields in record.get("f", {}).items():
            self.active[folder] = Active(*fields)
        for folder, part, final, length in record.get("r", ()):
            if folder in self.active and self.active[folder].part == part:
                del self.active[folder]
            self.rolling.append((folder, part, final, length))
        if record.get("d"):
            self.rolling.clear()

    # --- writing -----------------------------------------------------------------------------

    def commit(self, position: str, files: dict[str, Active]) -> None:
        """The unit's files, as long as they are now, and its position."""
        record = {"p": position, "f": {name: list(astuple(a)) for name, a in files.items()}}
        self._append(record, self._fsync)

    def announce(self, rolling: list[tuple[str, str, str, int]], mark: str = "") -> None:
        """These files will get their final names, whatever happens; `mark` is that of old events."""
        self._append({"r": rolling} | ({"m": mark} if mark else {}), self._fsync)

    def rolled(self) -> None:
        # Not synced: when this line is lost, recovery finds the files renamed already.
        self._append({"d": True}, False)

    def _append(self, record: dict[str, Any], sync: bool) -> None:
        line = _line(record)
        try:
            _write(self._file, line)
            if sync:
                os.fdatasync(self._file)
        except (OSError, SinkError):
            # Half a line must not be followed by a whole one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)
        self._apply(record)
        if self._size > max(COMPACT_BYTES, 256 * len(self.active)):
            self._compact()

    def _compact(self) -> None:
        """Puts one line that says it all in place of the history."""
        state: dict[str, Any] = {
            "p": self.position,
            "f": {name: list(astuple(a)) for name, a in self.active.items()},
            "r": self.rolling,
        }
        state |= {"m": self.redelivered} if self.redelivered else {}
        content = _line(self._owner) + _line(state)
        new = self.path.with_suffix(".new")
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(handle, content)
            if self._fsync:
                os.fsync(handle)
        except (OSError, SinkError):
            with contextlib.suppress(OSError):
                os.unlink(new)  # a full disk needs the room
            raise
        finally:
            os.close(handle)
        os.rename(new, self.path)
        if self._fsync:
            sync_folder(self.folder)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = len(content)


def _write(handle: int, data: bytes) -> None:
    """All of it, or an error: a disk that fills up takes part of a write and reports success."""
    left = memoryview(data)
    while left:
        done = os.write(handle, left)
        if done <= 0:
            raise SinkError("the journal could not be written")
        left = left[done:]


def _line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        record = json.loads(line[9:])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _records(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The whole records at the beginning, and how many bytes they take."""
    good = 0
    records = []
    while (end := data.find(b"\n", good)) >= 0:
        record = _parse(data[good:end])
        if record is None:
            break
        records.append(record)
        good = end + 1
    return records, good


def _journals(folder: Path) -> list[tuple[int, Path]]:
    return [
        (int(path.stem.removeprefix("lane-")), path)
        for path in sorted(folder.glob("lane-*.journal"))
    ]


def owners(root: str) -> list[tuple[int, dict[str, Any]]]:
    """Lane and header of each journal in the folder of a sink."""
    found = []
    for lane, path in _journals(Path(root) / FOLDER):
        with path.open("rb") as file:
            header = _parse(file.readline().rstrip(b"\n"))
        if header is not None:
            found.append((lane, header))
    return found
