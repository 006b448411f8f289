"""The SQLite file behind a Turso source: finding it, connecting, telling failures apart."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote as percent
from urllib.parse import unquote

from ..env import expand
from .log import SourceError, TransientError

BUSY_SECS = 5.0
_REMOTE = ("libsql://", "http://", "https://", "ws://", "wss://")
_PASSING = ("locked", "busy", "unable to open", "disk i/o error", "schema has changed")


class Database:
    """A path, not a connection."""

    def __init__(self, url: str) -> None:
        self.path = file_path(expand(url))
        self._seen = False

    def connect(self, write: bool = False, busy_secs: float = BUSY_SECS) -> sqlite3.Connection:
        """A connection in autocommit mode; the file is never created."""
        if not os.path.isfile(self.path):
            # A file that was there a moment ago may be on its way back: replaced, or remounted.
            kind = TransientError if self._seen else SourceError
            raise kind(f"there is no database file {self.path}")
        uri = f"file:{percent(self.path)}?mode={'rw' if write else 'ro'}"
        with self.guarded():
            connection = sqlite3.connect(
                uri, uri=True, timeout=busy_secs, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            except BaseException:
                connection.close()
                raise
        self._seen = True
        return connection

    def writable(self) -> bool:
        """Also the folder: SQLite writes its journal beside the file."""
        folder = os.path.dirname(self.path)
        return os.access(self.path, os.W_OK) and os.access(folder, os.W_OK)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """SQLite's failures as ours: those that pass, and those that do not."""
        try:
            yield
        except sqlite3.Error as error:
            message = str(error)
            passing = any(part in message.lower() for part in _PASSING)
            if "unable to open" in message.lower() and not self._seen:
                passing = False
            kind = TransientError if passing else SourceError
            raise kind(f"database {self.path}: {message}") from error


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """All or nothing. IMMEDIATE waits for other writers here instead of failing half way."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # some failures have ended it already
            connection.execute("ROLLBACK")


def file_path(url: str) -> str:
    """The file that a url means: `file:PATH`, `file:///PATH`, or a plain path."""
    if url.lower().startswith(_REMOTE):
        raise SourceError(
            "remote Turso databases are not built yet; give the path of a SQLite file, "
            "such as file:./app.db or that of an embedded replica"
        )
    path = url
    if url.lower().startswith("file:"):
        path, _, query = url[5:].partition("?")
        path = unquote(path.partition("#")[0])
        if path.startswith("//"):
            host, slash, rest = path[2:].partition("/")
            if host not in ("", "localhost"):
                raise SourceError(f"a file url cannot name the host {host!r}; write file:///PATH")
            path = slash + rest
        for setting in filter(None, query.split("&")):
            # Others (cache, mode=ro or rw, nolock) change nothing about what is read here.
            if setting in ("mode=memory", "vfs=memdb"):
                raise SourceError("a database in memory cannot be read by another process")
    elif path in ("", ":memory:"):
        raise SourceError("the url must name a SQLite file")
    if not path:
        raise SourceError(f"the url {url!r} names no file")
    return os.path.abspath(path)
