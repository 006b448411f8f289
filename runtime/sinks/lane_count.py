"""How many lanes a file sink's folder is written in: see agreement.py for what a change means."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..agreement import Agreement, common
from ..errors import SinkError

Glance = Callable[[], dict[int, tuple[dict[str, Any], str]]]  # lane: header and position


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
            found = self.read()
            if found is None or found.lanes == lanes:
                return found or Agreement(lanes)
            self._take(fcntl.LOCK_EX, end)
            found = self.read()
            if found is not None and found.lanes != lanes:
                self._write(found.followed(lanes, self._common(found, known)))

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

    def read(self) -> Agreement | None:
        try:
            return Agreement(**json.loads((self._folder / "lanes.json").read_bytes()))
        except FileNotFoundError:
            for _, (header, _) in sorted(self._glance().items()):
                return Agreement(int(header.get("lanes", 1)))
            return None

    def _common(self, old: Agreement, known: str) -> str:
        there = self._glance()
        positions = []
        for lane in range(old.lanes):
            header, position = there.get(lane, ({"generation": -1}, ""))
            positions.append(old.counts(position, header.get("generation", 0)))
        return common(str(self._folder.parent), positions, known)

    def _write(self, agreement: Agreement) -> None:
        new = self._folder / "lanes.new"
        with new.open("w") as file:
            json.dump(asdict(agreement), file)
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
