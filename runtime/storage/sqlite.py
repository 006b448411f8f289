"""State in one SQLite file, which several processes may have open at once."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import StorageError, TakenOver
from .base import SlotGuard

BUSY_SECS = 5.0  # how long a call waits for other processes

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
# SQLite's words, where ours say more.
_HELP = {
    "database is locked": f"another process has locked it for more than {BUSY_SECS:.0f} s",
    "attempt to write a readonly database": "the file, or its folder, is read-only",
    "unable to open database file": "the file cannot be opened, nor made",
}


def _now() -> int:
    return int(time.time())


class SqliteStorage:
    """A Backend. One connection behind a lock: Spark calls back in threads of its own."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self._lock = threading.RLock()
        with self._guarded():
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            # Made before SQLite opens it, so that it never exists with wider rights; its -wal and
            # -shm files take over the mode.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(
                self.path, timeout=BUSY_SECS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
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
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or str(error)
            raise StorageError(f"storage {self.path}: {_HELP.get(why, why)}") from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._guarded():
            yield self._db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._guarded():
            # IMMEDIATE: a writer waits for the others here instead of failing half way.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it already
                    self._db.execute("ROLLBACK")
                raise

    # --- values --------------------------------------------------------------------------

    def get(self, ns: str, key: str) -> bytes | None:
        with self._reading() as db:
            row = db.execute(
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
        guard: SlotGuard | None = None,
        gone: Collection[str] = (),
    ) -> None:
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
            db.executemany(
                "DELETE FROM df_kv WHERE ns = ? AND key = ?", [(ns, key) for key in gone]
            )

    def delete(self, ns: str, key: str) -> None:
        self.put_all(ns, {}, gone=(key,))

    def items(self, ns: str, prefix: str = "") -> dict[str, bytes]:
        with self._reading() as db:
            rows = db.execute(
                "SELECT key, val FROM df_kv WHERE ns = ? AND substr(key, 1, ?) = ?"
                " AND (expires_at IS NULL OR expires_at > ?) ORDER BY key",
                (ns, len(prefix), prefix, _now()),
            ).fetchall()
        return {key: bytes(value) for key, value in rows}

    def sweep(self) -> int:
        with self._transaction() as db:
            return db.execute("DELETE FROM df_kv WHERE expires_at <= ?", (_now(),)).rowcount

    # --- logs ----------------------------------------------------------------------------

    def append(self, ns: str, key: str, value: bytes) -> int:
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO df_log (ns, key, val, ts) VALUES (?, ?, ?, ?)",
                (ns, key, value, _now()),
            )
            return int(cursor.lastrowid or 0)

    def since(
        self, ns: str, key: str, seq: int = 0, limit: int = 1_000_000
    ) -> list[tuple[int, bytes]]:
        with self._reading() as db:
            rows = db.execute(
                "SELECT seq, val FROM df_log WHERE ns = ? AND key = ? AND seq > ?"
                " ORDER BY seq LIMIT ?",
                (ns, key, seq, limit),
            ).fetchall()
        return [(int(number), bytes(value)) for number, value in rows]

    # --- slots ---------------------------------------------------------------------------

    def slot(self, ns: str, key: str) -> tuple[int, bytes] | None:
        with self._reading() as db:
            row = db.execute(
                "SELECT version, state FROM df_slot WHERE ns = ? AND key = ?", (ns, key)
            ).fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def swap(self, ns: str, key: str, version: int, state: bytes) -> bool:
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
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO df_queue (ns, key, val, ts, name) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (ns, key, value, _now(), name),
            )
            if cursor.rowcount == 1:
                return int(cursor.lastrowid or 0)
            row = db.execute(
                "SELECT id FROM df_queue WHERE ns = ? AND key = ? AND name = ?", (ns, key, name)
            ).fetchone()
            return int(row[0])

    def push_all(self, ns: str, key: str, entries: Mapping[str, bytes]) -> None:
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO df_queue (ns, key, val, ts, name) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                [(ns, key, value, _now(), name) for name, value in entries.items()],
            )

    def held(self, ns: str, key: str, names: Sequence[str]) -> set[str]:
        sql = "SELECT 1 FROM df_queue WHERE ns = ? AND key = ? AND name = ?"
        with self._reading() as db:
            return {name for name in names if db.execute(sql, (ns, key, name)).fetchone()}

    def drop_older(self, ns: str, key: str, secs: int) -> int:
        with self._transaction() as db:
            return db.execute(
                "DELETE FROM df_queue WHERE ns = ? AND key = ? AND ts < ?",
                (ns, key, _now() - secs),
            ).rowcount

    def remove(self, ns: str, key: str, ids: Sequence[int]) -> int:
        with self._transaction() as db:
            return sum(
                db.execute(
                    "DELETE FROM df_queue WHERE ns = ? AND key = ? AND id = ?", (ns, key, number)
                ).rowcount
                for number in ids
            )

    def peek(self, ns: str, key: str, limit: int = 100) -> list[tuple[int, bytes]]:
        with self._reading() as db:
            rows = db.execute(
                "SELECT id, val FROM df_queue WHERE ns = ? AND key = ? ORDER BY id LIMIT ?",
                (ns, key, limit),
            ).fetchall()
        return [(int(number), bytes(value)) for number, value in rows]

    def ack(self, ns: str, key: str, up_to: int) -> int:
        with self._transaction() as db:
            return db.execute(
                "DELETE FROM df_queue WHERE ns = ? AND key = ? AND id <= ?", (ns, key, up_to)
            ).rowcount

    def count(self, ns: str, key: str) -> int:
        with self._reading() as db:
            row = db.execute(
                "SELECT count(*) FROM df_queue WHERE ns = ? AND key = ?", (ns, key)
            ).fetchone()
        return int(row[0])

    def drop_oldest(self, ns: str, key: str, number: int = 1) -> int:
        with self._transaction() as db:
            return db.execute(
                "DELETE FROM df_queue WHERE id IN (SELECT id FROM df_queue"
                " WHERE ns = ? AND key = ? ORDER BY id LIMIT ?)",
                (ns, key, number),
            ).rowcount
