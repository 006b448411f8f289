"""The folder of one run: Spark's checkpoint, segments, and whatever else may go when it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from .follow import STOP

CEILING = "ceiling"  # note of the reader: the source has nothing above this position


class Scratch:
    """A private folder, removed at the end; what a killed run has left goes at the next start."""

    def __init__(self, name: str) -> None:
        prefix = f"dfc-{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:64]}-"
        _sweep(Path(tempfile.gettempdir()), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.segments = self.path / "segments"
        self.segments.mkdir()

    def checkpoint(self, number: int) -> Path:
        """Spark's own notes on one query; each begins with none."""
        return self.path / f"checkpoint-{number}"

    def ask_stop(self) -> None:
        """Tells the reader to offer nothing new."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.segments / STOP, os.O_WRONLY | os.O_CREAT, 0o600))

    def begin_at(self, position: str) -> None:
        """Tells the reader of the next query where to begin, whatever its options say."""
        (self.segments / "start").write_text(position)
        for left in self.segments.glob("*.arrow*"):  # of the query before; nobody asks for them
            left.unlink(missing_ok=True)
        (self.segments / STOP).unlink(missing_ok=True)

    def ceiling(self) -> str | None:
        """What the source had when the running query began to read it; None when it does not say."""
        try:
            return (self.segments / CEILING).read_text()
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _sweep(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # someone else's, or a folder that is being made at this moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # that run is alive
        finally:
            os.close(lock)
