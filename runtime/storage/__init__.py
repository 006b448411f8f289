"""Storage: where a job keeps its state between runs."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError, Unavailable
from .sqlite import SqliteStorage

__all__ = ["SqliteStorage", "Storage"]


@dataclass(frozen=True, slots=True)
class Storage:
    """Which backend, as text: `path` may hold environment references, which open() does not read."""

    backend: str = "sqlite"
    path: str = "./data/deltaforge.db"
    dsn: str | None = None

    @classmethod
    def parse(cls, text: str) -> Storage:
        """The form of the command line: `sqlite:PATH` or `memory`."""
        backend, colon, path = text.partition(":")
        if backend == "memory" and not colon:
            return cls("memory", "")
        if backend == "sqlite" and path:
            return cls("sqlite", path)
        raise ConfigError(f"--storage takes sqlite:PATH or memory, not {text!r}")

    def check(self) -> None:
        """Whether this version has the backend."""
        if self.backend == "postgres":
            raise Unavailable("storage backend postgres is not built yet: use sqlite")
        if self.backend not in ("sqlite", "memory"):
            raise ConfigError(f"unknown storage backend {self.backend!r}")

    def open(self) -> SqliteStorage:
        self.check()
        return SqliteStorage(self.path)
