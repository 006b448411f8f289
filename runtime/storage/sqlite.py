"""State in one SQLite file: values with an expiry, logs, versioned slots and queues.

Several processes may have the file open at once; each call is one transaction.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import TakenOver

_TABLES = """
CREATE TABLE IF NOT EXISTS df_kv (
  ns TEXT NOT NULL, key TEXT NOT NULL, val BLOB NOT NULL,
  updated_at INTEGER NOT NULL, expires_at INTEGER, PRIMARY KEY (ns, key));
CREATE TABLE IF NOT EXISTS df_log (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, ns TEXT NOT NULL, key TEXT NOT NULL,
  val BLOB NOT NULL, ts INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS df_log_key ON df_log (ns, key, seq);
CREATE TABLE IF NOT EXISTS df_slot (
  ns TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, state BLOB NOT NULL,
  updated_at INTEGER NOT NULL, PRIMARY KEY (ns, key));
CREATE TABLE IF NOT EXISTS df_queue (
  id INTEGER PRIMARY KEY AUTOINCREMENT, ns TEXT NOT NULL, key TEXT NOT NULL,
  val BLOB NOT NULL, ts INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS df_queue_key ON df_queue (ns, key, id);
"""
# Entries of a queue may have a name, by which one that comes again is recognised.
_NAMES = """
ALTER TABLE df_queue ADD COLUMN name TEXT;
CREATE UNIQUE INDEX df_queue_name ON df_queue (ns, key, name) WHERE name IS NOT NULL
"""


def _now() -> int:
    return int(time.time())


class SqliteStorage:
    """One connection behind a lock: Spark calls back in threads of its own."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        # Made before SQLite opens it, so that it never exists with wider rights; its -wal and
        # -shm files take over the mode.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._lock = threading.RLock()
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA busy_timeout = 5000")
        self._db.execute("PRAGMA journal_mode = WAL")
        # Every commit is synced: a source cleans up behind the positions kept here, so one that
        # a power cut takes back would ask for changes that are gone.
        self._db.execute("PRAGMA synchronous = FULL")
        with self._transaction() as db:
            for statement in _TABLES.split(";"):
                db.execute(statement)
            columns = [row[1] for row in db.execute("PRAGMA table_info(df_queue)")]
            if "name" not in columns:
                for statement in _NAMES.split(";"):
                    db.execute(statement)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            # IMMEDIATE: a writer waits for the others here instead of failing half way.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    # --- values --------------------------------------------------------------------------

    def get(self, ns: str, key: str) -> bytes | None:
        with self._lock:
            row = self._db.execute(
                "SELECT val FROM df_kv WHERE ns = ? AND key = ?"
                " AND (expires_at IS NULL OR expires_at > ?)",
                (ns, key, _now()),
            ).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, ns: str, key: str, value: bytes, ttl_secs: int | None = None) -> None:
        self.put_all(ns, {key: value}, ttl_secs)

    def put_all(
        self,
        ns: str,
        values: Mapping[str, bytes],
        ttl_secs: int | None = None,
        guard: tuple[str, str, str] | None = None,
    ) -> None:
        """All of them or none; with a guard, only while that slot's state still names its token."""
        now = _now()
        expires = None if ttl_secs is None else now + ttl_secs
        with self._transaction() as db:
            if guard is not None:
                row = db.execute(
                    "SELECT state FROM df_slot WHERE ns = ? AND key = ?", guard[:2]
                ).fetchone()
                if row is None or guard[2].encode() not in bytes(row[0]):
                    raise TakenOver(guard[1])
            db.executemany(
                "INSERT INTO df_kv VALUES (?, ?, ?, ?, ?) ON CONFLICT (ns, key) DO UPDATE SET"
                " val = excluded.val, updated_at = excluded.updated_at,"
                " expires_at = excluded.expires_at",
                [(ns, key, value, now, expires) for key, value in values.items()],
            )

    def delete(self, ns: str, key: str) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM df_kv WHERE ns = ? AND key = ?", (ns, key))

    def items(self, ns: str, prefix: str = "") -> dict[str, bytes]:
        """Live values whose key starts with `prefix`, in order of key."""
        with self._lock:
            rows = self._db.execute(
                "SELECT key, val FROM df_kv WHERE ns = ? AND substr(key, 1, ?) = ?"
                " AND (expires_at IS NULL OR expires_at > ?) ORDER BY key",
                (ns, len(prefix), prefix, _now()),
            ).fetchall()
        return {key: bytes(value) for key, value in rows}

    def sweep(self) -> int:
        """Removes what has expired; returns how many values that were."""
        with self._transaction() as db:
            return db.execute("DELETE FROM df_kv WHERE expires_at <= ?", (_now(),)).rowcount

    # --- logs ----------------------------------------------------------------------------

    def append(self, ns: str, key: str, value: bytes) -> int:
        """Adds to a log; returns the entry's sequence number."""
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO df_log (ns, key, val, ts) VALUES (?, ?, ?, ?)",
                (ns, key, value, _now()),
            )
            return int(cursor.lastrowid or 0)

    def since(
        self, ns: str, key: str, seq: int = 0, limit: int = 1_000_000
    ) -> list[tuple[int, bytes]]:
        """Entries of a log behind `seq`."""
        with self._lock:
            rows = self._db.execute(
                "SELECT seq, val FROM df_log WHERE ns = ? AND key = ? AND seq > ?"
                " ORDER BY seq LIMIT ?",
                (ns, key, seq, limit),
            ).fetchall()
        return [(int(number), bytes(value)) for number, value in rows]

    # --- slots ---------------------------------------------------------------------------

    def slot(self, ns: str, key: str) -> tuple[int, bytes] | None:
        """Version and state, or None."""
        with self._lock:
            row = self._db.execute(
                "SELECT version, state FROM df_slot WHERE ns = ? AND key = ?", (ns, key)
            ).fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def swap(self, ns: str, key: str, version: int, state: bytes) -> bool:
        """Replaces the state when it still has `version` (0: none yet); the next one is higher."""
        with self._transaction() as db:
            if version == 0:
                cursor = db.execute(
                    "INSERT INTO df_slot VALUES (?, ?, 1, ?, ?) ON CONFLICT DO NOTHING",
                    (ns, key, state, _now()),
                )
            else:
                cursor = db.execute(
                    "UPDATE df_slot SET version = version + 1, state = ?, updated_at = ?"
                    " WHERE ns = ? AND key = ? AND version = ?",
                    (state, _now(), ns, key, version),
                )
            return cursor.rowcount == 1

    # --- queues --------------------------------------------------------------------------

    def push(self, ns: str, key: str, value: bytes, name: str | None = None) -> int:
        """Adds an entry, and returns its id; one whose name is there already is left as it is."""
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO df_queue (ns, key, val, ts, name) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (ns, key, value, _now(), name),
            )
            return int(cursor.lastrowid or 0)

    def holds(self, ns: str, key: str, name: str) -> bool:
        """Whether the queue has an entry of this name."""
        with self._lock:
            row = self._db.execute(
                "SELECT 1 FROM df_queue WHERE ns = ? AND key = ? AND name = ?", (ns, key, name)
            ).fetchone()
        return row is not None

    def drop_older(self, ns: str, key: str, than: int) -> int:
        """Removes entries from before this time, in seconds; returns how many."""
        with self._transaction() as db:
            return db.execute(
                "DELETE FROM df_queue WHERE ns = ? AND key = ? AND ts < ?", (ns, key, than)
            ).rowcount

    def remove(self, ns: str, key: str, ids: Sequence[int]) -> int:
        """Removes these entries; returns how many there were."""
        with self._transaction() as db:
            return sum(
                db.execute(
                    "DELETE FROM df_queue WHERE ns = ? AND key = ? AND id = ?", (ns, key, number)
                ).rowcount
                for number in ids
            )

    def peek(self, ns: str, key: str, limit: int = 100) -> list[tuple[int, bytes]]:
        """The oldest entries, which stay in the queue."""
        with self._lock:
            rows = self._db.execute(
                "SELECT id, val FROM df_queue WHERE ns = ? AND key = ? ORDER BY id LIMIT ?",
                (ns, key, limit),
            ).fetchall()
        return [(int(number), bytes(value)) for number, value in rows]

    def ack(self, ns: str, key: str, up_to: int) -> int:
        """Removes the entries up to this id; returns how many."""
        with self._transaction() as db:
            return db.execute(
                "DELETE FROM df_queue WHERE ns = ? AND key = ? AND id <= ?", (ns, key, up_to)
            ).rowcount

    def count(self, ns: str, key: str) -> int:
        with self._lock:
            row = self._db.execute(
                "SELECT count(*) FROM df_queue WHERE ns = ? AND key = ?", (ns, key)
            ).fetchone()
        return int(row[0])

    def drop_oldest(self, ns: str, key: str, number: int = 1) -> int:
        """Removes so many of the oldest entries; returns how many there were."""
        with self._transaction() as db:
            return db.execute(
                "DELETE FROM df_queue WHERE id IN (SELECT id FROM df_queue"
                " WHERE ns = ? AND key = ? ORDER BY id LIMIT ?)",
                (ns, key, number),
            ).rowcount
