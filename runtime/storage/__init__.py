"""Storage: where a job keeps its state between runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from ..errors import ConfigError, Unavailable, WrongUsage
from .base import Backend, SlotGuard
from .sqlite import SqliteStorage

__all__ = ["Backend", "SlotGuard", "SqliteStorage", "Storage"]

_FORMS = "sqlite:PATH, memory or postgres:DSN"
_URLS = ("postgres://", "postgresql://")


@dataclass(frozen=True, slots=True)
class Storage:
    """Which storage, as text that travels: open() makes a connection wherever it is called.

    `path` and `dsn` may hold environment references, which filled() reads.
    """

    backend: str = "sqlite"
    path: str = "./data/deltaforge.db"
    dsn: str | None = field(default=None, repr=False)  # may hold a password

    @classmethod
    def parse(cls, text: str) -> Storage:
        """From one line, as on the command line."""
        if text.startswith(_URLS):
            return cls("postgres", "", text)
        backend, colon, rest = text.partition(":")
        if backend == "memory" and not colon:
            return cls("memory", "")
        if backend == "sqlite" and rest:
            return cls("sqlite", rest)
        if backend == "postgres" and rest:
            return cls("postgres", "", rest)
        # Not the rest of it, which may hold a password.
        raise WrongUsage(f"--storage takes {_FORMS}, not {backend!r}")

    @property
    def text(self) -> str:
        """What parse() reads."""
        rest = {"sqlite": self.path, "postgres": self.dsn}.get(self.backend)
        return f"{self.backend}:{rest}" if rest else self.backend

    @property
    def shared(self) -> bool:
        """Whether other machines can reach it."""
        return self.backend == "postgres"

    def filled(self, fill: Callable[[str], str]) -> Storage:
        """With its references replaced by `fill`."""
        if self.backend == "postgres":
            return replace(self, dsn=fill(self.dsn or ""))
        return replace(self, path=fill(self.path))

    def check(self) -> None:
        """Whether it can be opened, as far as that shows without trying."""
        if self.backend not in ("sqlite", "memory", "postgres"):
            raise ConfigError(f"unknown storage backend {self.backend!r}")
        if self.backend == "postgres":
            if find_spec("psycopg") is None:
                raise Unavailable(
                    "storage in PostgreSQL needs the package psycopg: install dfc with its `run` "
                    "extra, or psycopg[binary]"
                )
            if not self.dsn:
                raise ConfigError("storage in PostgreSQL needs a DSN")
            from .postgres import checked

            checked(self.dsn)

    def open(self) -> Backend:
        """Makes what is not there yet."""
        self.check()
        if self.backend == "postgres":
            from .postgres import PostgresStorage

            return PostgresStorage(self.dsn or "")
        return SqliteStorage(self.path)

    def find(self) -> Backend | None:
        """The storage if it is there; makes nothing."""
        self.check()
        if self.backend == "postgres":
            from .postgres import PostgresStorage

            return PostgresStorage.found(self.dsn or "")
        return SqliteStorage(self.path) if os.path.exists(self.path) else None
