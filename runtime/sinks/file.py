"""File sink: JSON lines in files whose names carry their range of positions, exactly once.

A file is hidden (`.<first position>.part`) while it is written. Each unit is appended and synced,
then a line in the journal makes it count; a crash in between is undone by cutting the file back to
the journal's length before anything is added. Nothing is kept outside the folder, so any process
on the machine may go on where another one stopped.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError, SinkError
from ..events import Events
from ..messages import Messages, check_destinations
from .base import Lane, Sink, SinkFilter
from .journal import FOLDER, Active, Journal, owners, sync_folder

_OPEN_FILES = 128
_REDELIVERED = ".redelivered-"  # begins the hidden names of files that hold old events


class FileSink(Sink):
    """`to` is the sub-folder for each event; "" stands for the sink's id."""

    kind: ClassVar[str] = "file"

    def __init__(
        self,
        id: str,
        messages: Callable[[Events], Messages],
        *,
        required: bool = True,
        filter: SinkFilter | None = None,
        path: str,
        roll_max_events: int = 1_000_000,
        roll_max_bytes: int = 268_435_456,
        roll_max_age_secs: int = 60,
        fsync: bool = True,
    ) -> None:
        super().__init__(id, messages, required=required, filter=filter)
        # Absolute, because a worker's current folder is not the driver's.
        self.path = os.path.abspath(path)
        self.roll_max_events = roll_max_events
        self.roll_max_bytes = roll_max_bytes
        self.roll_max_age_secs = roll_max_age_secs
        self.fsync = fsync
        self._journal: Journal | None = None
        self._suffix = ""
        self._unit: dict[str, Active] = {}  # files of the open unit, as long as they will be
        self._handles: dict[str, int] = {}
        self._made: set[str] = set()  # folders whose names are not durable yet

    @property
    def tick_secs(self) -> int:
        return self.roll_max_age_secs

    def check(self) -> None:
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"sink `{self.id}`: {self.path}: {error.strerror}") from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise ConfigError(f"sink `{self.id}`: {self.path} is not writable")

    # --- a lane's task -----------------------------------------------------------------------

    def open(self, lane: Lane) -> str:
        owner = {"pipeline": lane.pipeline, "sink": self.id, "lanes": lane.count}
        return self._open(Journal(self.path, owner, lane.index, self.fsync), lane, lane.known)

    def _open(self, journal: Journal, lane: Lane, known: str | None) -> str:
        self._unit, self._handles, self._made = {}, {}, set()
        self._suffix = f"-{lane.index}" if lane.count > 1 else ""
        journal.open(known)
        self._journal = journal
        self._rename()
        return journal.position

    def write(self, messages: Messages, events: Events) -> None:
        count = len(events)
        if count == 0:
            return
        check_destinations(messages, count, self._why_not)
        value = pc.fill_null(messages.column("value", count), "null")
        if not isinstance(messages.to, pa.Array):
            assert messages.to is not None
            folder = self._folder(messages.to)
            data, ends = _lines(value)
            self._add(folder, data[: ends[-1]], count, *_range(events.position, 0, count - 1))
            return
        # Sorted by destination (stable, so in log order within one), each is one stretch of bytes.
        encoded = pc.dictionary_encode(messages.to)
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        names = encoded.dictionary.to_pylist()
        order = None
        if len(names) > 1:
            order = np.argsort(codes, kind="stable")
            codes, value = codes[order], value.take(pa.array(order))
        data, ends = _lines(value)
        starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
        for begin, stop in zip(starts, [*starts[1:], count], strict=True):
            rows = (begin, stop - 1) if order is None else (order[begin], order[stop - 1])
            self._add(
                self._folder(names[int(codes[begin])]),
                data[ends[begin] : ends[stop]],
                int(stop - begin),
                *_range(events.position, int(rows[0]), int(rows[1])),
            )

    def commit(self, position: str) -> None:
        journal = self._opened()
        if not self._unit:
            # Nothing to hold for these events: the position goes down with the next that has.
            return
        if self.fsync:
            for folder in self._unit:
                os.fdatasync(self._handle(folder))
            while self._made:
                sync_folder(self._made.pop())
        journal.commit(position, self._unit)
        self._unit = {}
        self._roll(lambda active: self._is_full(active) or self._is_old(active))

    def redeliver(self, messages: Messages, events: Events, position: str, mark: str) -> None:
        """In files of their own: their positions lie in the ranges of files that are finished."""
        journal, count = self._opened(), len(events)
        check_destinations(messages, count, self._why_not)
        value = pc.fill_null(messages.column("value", count), "null")
        rows: dict[str, list[int]] = {}
        for row, to in enumerate(messages.column("to", count).to_pylist()):
            rows.setdefault(self._folder(to), []).append(row)
        rolling = []
        for folder, chosen in rows.items():
            part = f"{_REDELIVERED}{mark}{self._suffix}.part"
            data, ends = _lines(value.take(pa.array(chosen)))
            places = sorted(events.position.take(pa.array(chosen)).to_pylist())
            final = f"{places[0]}-{places[-1]}{self._suffix}-redelivered-{mark}.jsonl"
            self._make_folder(folder)
            for left in Path(self.path, folder).glob(f"{_REDELIVERED}*{self._suffix}.part"):
                left.unlink()  # by a crash before the journal knew of it
            self._write_whole(os.path.join(self.path, folder, part), data)
            rolling.append((folder, part, final, int(ends[-1])))
        if self.fsync:
            while self._made:
                sync_folder(self._made.pop())
        journal.announce(rolling, mark)
        self._rename()

    def redelivered(self) -> str:
        return self._opened().redelivered

    def move(self, pipeline: str, lanes: int, position: str) -> None:
        """Only forward, which storage alone can do."""
        owner = {"pipeline": pipeline, "sink": self.id, "lanes": lanes}
        there = Journal(self.path, owner, 0, self.fsync).furthest()
        if there > position:
            raise ConfigError(
                f"{self.path} holds events up to {there}, in files that are named by their positions "
                f"and never change: move the folder away (mv {self.path} {self.path}.old), and try "
                "again"
            )

    def abort(self) -> None:
        # What was appended is cut off when the file is opened the next time.
        self._unit = {}
        self._drop_handles()

    def tick(self) -> None:
        self._roll(self._is_old)

    def close(self) -> None:
        self.abort()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def finish(self, pipeline: str) -> None:
        """Gives every open file its final name, so that readers see all there is."""
        for lane, header in owners(self.path):
            if header.get("pipeline") == pipeline and header.get("sink") == self.id:
                # As it is: a lane of an earlier number of lanes may have open files, too.
                owner = {key: value for key, value in header.items() if key != "v"}
                where = Lane(pipeline, lane, int(header.get("lanes", 1)))
                self._open(Journal(self.path, owner, lane, self.fsync), where, None)
                try:
                    self._roll(lambda active: True)
                finally:
                    self.close()

    # --- files -------------------------------------------------------------------------------

    def _opened(self) -> Journal:
        if self._journal is None:
            raise SinkError(f"sink `{self.id}` is not open")
        return self._journal

    def _folder(self, to: str) -> str:
        """The sub-folder for a destination."""
        return to or self.id

    def _why_not(self, to: str) -> str | None:
        """A folder must lie inside the sink's own."""
        parts = self._folder(to).split("/")
        if (
            "\0" in to
            or parts[0] == FOLDER
            or any(part in ("", ".", "..") or len(part.encode()) > 200 for part in parts)
        ):
            return f"not a folder inside the sink's own: {to!r}"
        return None

    def _add(self, folder: str, data: memoryview, events: int, first: str, last: str) -> None:
        file = self._unit.get(folder)
        if file is None:
            known = self._opened().active.get(folder)
            if known is None:
                file = Active(f".{first}{self._suffix}.part", 0, 0, first, last, time.time())
            else:
                file = Active(
                    known.part, known.length, known.events, known.first, last, known.since
                )
            self._unit[folder] = file
        handle = self._handle(folder)
        at = 0
        while at < len(data):
            at += os.pwrite(handle, data[at:], file.length + at)
        file.length += len(data)
        file.events += events
        file.last = last

    def _handle(self, folder: str) -> int:
        """The open file of a folder, cut back to what is committed when it is opened."""
        handle = self._handles.pop(folder, -1)
        if handle < 0:
            handle = self._open_part(folder)
        self._handles[folder] = handle  # last used, last closed
        if len(self._handles) > _OPEN_FILES:
            oldest = next(iter(self._handles))
            if self.fsync and oldest in self._unit:
                os.fdatasync(self._handles[oldest])
            os.close(self._handles.pop(oldest))
        return handle

    def _open_part(self, folder: str) -> int:
        committed = self._opened().active.get(folder)
        file = self._unit[folder]
        path = os.path.join(self.path, folder, file.part)
        if committed is not None:
            return self._open_committed(path, max(committed.length, file.length), committed.length)
        if file.length == 0:
            self._make_folder(folder)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(handle, file.length)
        self._made.add(os.path.dirname(path))
        return handle

    def _open_committed(self, path: str, length: int, committed: int) -> int:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SinkError(f"{path} is gone, though events in it were committed") from None
        if os.fstat(handle).st_size < committed:
            os.close(handle)
            raise SinkError(f"{path} is shorter than what was committed to it")
        os.ftruncate(handle, length)
        return handle

    def _write_whole(self, path: str, data: memoryview) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            at = 0
            while at < len(data):
                at += os.write(handle, data[at:])
            if self.fsync:
                os.fdatasync(handle)
        finally:
            os.close(handle)
        self._made.add(os.path.dirname(path))

    def _make_folder(self, folder: str) -> None:
        path = Path(self.path, folder)
        missing = [path, *path.parents]
        for level in missing[: len(folder.split("/"))]:
            if level.is_dir():
                break
            self._made.add(str(level.parent))
        path.mkdir(parents=True, exist_ok=True)

    def _drop_handles(self) -> None:
        for handle in self._handles.values():
            with contextlib.suppress(OSError):
                os.close(handle)
        self._handles = {}

    # --- rolling -----------------------------------------------------------------------------

    def _is_full(self, file: Active) -> bool:
        return file.events >= self.roll_max_events or file.length >= self.roll_max_bytes

    def _is_old(self, file: Active) -> bool:
        # Also when the clock has gone back: nobody knows then how old it is.
        return not 0 <= time.time() - file.since < self.roll_max_age_secs

    def _roll(self, due: Callable[[Active], bool]) -> None:
        journal = self._opened()
        rolling = [
            (folder, file.part, f"{file.first}-{file.last}{self._suffix}.jsonl", file.length)
            for folder, file in journal.active.items()
            if due(file)
        ]
        if not rolling:
            return
        for folder, part, _, length in rolling:
            handle = self._handles.pop(folder, -1)
            if handle < 0:
                path = os.path.join(self.path, folder, part)
                handle = self._open_committed(path, length, length)
            os.close(handle)
        journal.announce(rolling)
        self._rename()

    def _rename(self) -> None:
        """Carries out what the journal has announced; a part that is gone was renamed before."""
        journal = self._opened()
        if not journal.rolling:
            return
        for folder, part, final, length in journal.rolling:
            path = os.path.join(self.path, folder, part)
            with contextlib.suppress(FileNotFoundError):
                os.truncate(path, length)
                os.rename(path, os.path.join(self.path, folder, final))
        if self.fsync:
            for folder in {folder for folder, *_ in journal.rolling}:
                with contextlib.suppress(FileNotFoundError):
                    sync_folder(os.path.join(self.path, folder))
        journal.rolled()


def _range(positions: pa.Array, first: int, last: int) -> tuple[str, str]:
    return positions[first].as_py(), positions[last].as_py()


def _lines(value: pa.Array) -> tuple[memoryview, np.ndarray]:
    """The values as lines: their bytes, and where each line ends (with a leading 0)."""
    lines = pc.binary_join_element_wise(value, "\n", "")
    data, ends = _bytes(lines)
    if np.count_nonzero(np.frombuffer(data, np.uint8) == 10) > len(value):
        # Outside of strings a newline is only space, and inside of them JSON has it escaped.
        lines = pc.binary_join_element_wise(pc.replace_substring(value, "\n", " "), "\n", "")
        data, ends = _bytes(lines)
    return data, ends


def _bytes(lines: pa.Array) -> tuple[memoryview, np.ndarray]:
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[ends[0] : ends[-1]], ends - ends[0]
