"""How many lanes a file sink's folder is written in, and what happens when that number changes.

Rows go to other lanes then, so what one old lane holds above the others would be dropped or
repeated by the new ones. The folder therefore changes as a whole: the new number and the position
that all lanes hold are written down first, and each journal of an earlier generation counts as
standing at that position, however late its lane is opened.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, SinkError

Glance = Callable[[], dict[int, tuple[dict[str, Any], str]]]  # lane: header and position


@dataclass(frozen=True, slots=True)
class Agreement:
    """What holds for every lane of the folder."""

    lanes: int
    start: str = ""
    generation: int = 0


class LaneCount:
    """Shared by all who write the folder; changed only while nobody else does."""

    def __init__(self, folder: Path, glance: Glance, fsync: bool) -> None:
        self._folder = folder
        self._glance = glance
        self._fsync = fsync
        self._lock = -1

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def agree(self, lanes: int, known: str, wait_secs: float) -> Agreement:
        """The agreement on so many lanes; `known` is where storage has all of them."""
        path = self._folder / "lanes.lock"
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + wait_secs
        while True:
            self._take(fcntl.LOCK_SH, end)
            found = self._read()
            if found is None or found.lanes == lanes:
                return found or Agreement(lanes)
            self._take(fcntl.LOCK_EX, end)
            found = self._read()
            if found is not None and found.lanes != lanes:
                self._write(Agreement(lanes, self._common(found, known), found.generation + 1))

    def _take(self, kind: int, end: float) -> None:
        while True:
            try:
                fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise SinkError(
                        f"{self._folder.parent} is being written by another process"
                    ) from None
                time.sleep(0.02)

    def _read(self) -> Agreement | None:
        try:
            return Agreement(**json.loads((self._folder / "lanes.json").read_bytes()))
        except FileNotFoundError:
            for _, (header, _) in sorted(self._glance().items()):
                return Agreement(int(header.get("lanes", 1)))
            return None

    def _common(self, old: Agreement, known: str) -> str:
        """The position that all old lanes hold, and none is above."""
        there = self._glance()
        positions = set()
        for lane in range(old.lanes):
            header, position = there.get(lane, ({}, ""))
            current = header.get("generation", 0) == old.generation
            positions.add(position if current else old.start)
        # A lane without news does not write, so it may be further than its journal says.
        if max(positions) <= known:
            return known
        if len(positions) > 1:
            were = "1 lane" if old.lanes == 1 else f"{old.lanes} lanes"
            raise ConfigError(
                f"{self._folder.parent} was written in {were}, which stand at different "
                f"positions: run once with {were} to even them out, then change the number"
            )
        return positions.pop()

    def _write(self, agreement: Agreement) -> None:
        content = {
            "lanes": agreement.lanes,
            "start": agreement.start,
            "generation": agreement.generation,
        }
        new = self._folder / "lanes.new"
        with new.open("w") as file:
            json.dump(content, file)
            file.flush()
            if self._fsync:
                os.fsync(file.fileno())
        os.rename(new, self._folder / "lanes.json")
        if self._fsync:
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
