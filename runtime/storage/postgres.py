"""State in a PostgreSQL database, which jobs on several machines may share.

The tables are made in the first schema of the search path, under names that begin with `df_`. A
call whose connection is lost is made again on a new one, as long as that can do no harm: a
transaction that was not committed has not happened, and what may be done twice is done twice. For
the rest the caller is told that nobody knows, and has to look. All times are the server's.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..errors import ConfigError, StorageError, TakenOver
from .base import SlotGuard

T = TypeVar("T")
_Connection = psycopg.Connection[tuple[Any, ...]]

# Where the DSN does not say otherwise.
_DEFAULTS = {"connect_timeout": "10", "application_name": "dfc"}
# Of the session, where neither DSN nor server sets a limit. A server that loses commits when its
# power fails would have a source clean up behind positions that are gone.
_SESSION: LiteralString = """
SELECT set_config('statement_timeout', '10s', false)
  WHERE current_setting('statement_timeout') = '0';
SELECT set_config('lock_timeout', '5s', false) WHERE current_setting('lock_timeout') = '0';
SELECT set_config('synchronous_commit', 'on', false)
  WHERE current_setting('synchronous_commit') = 'off';
SET client_min_messages = warning
"""
_ANSWER_SECS = 15.0  # a server that is frozen, or cut off, does not even keep its own time limit
_PAUSES = (0.1, 0.5)  # before the second and the third try
_PATIENCE_SECS = 5.0  # no further try after that
_LOCKS = 0x646663  # our advisory locks, among those of other programs

_MIGRATIONS: tuple[LiteralString, ...] = (
    """
CREATE TABLE df_kv (
  ns TEXT NOT NULL, key TEXT NOT NULL, val BYTEA NOT NULL,
  updated_at BIGINT NOT NULL, expires_at BIGINT, PRIMARY KEY (ns, key));
CREATE TABLE df_log (
  seq BIGSERIAL PRIMARY KEY, ns TEXT NOT NULL, key TEXT NOT NULL,
  val BYTEA NOT NULL, ts BIGINT NOT NULL);
CREATE INDEX df_log_key ON df_log (ns, key, seq);
CREATE TABLE df_slot (
  ns TEXT NOT NULL, key TEXT NOT NULL, version BIGINT NOT NULL, state BYTEA NOT NULL,
  updated_at BIGINT NOT NULL, PRIMARY KEY (ns, key));
CREATE TABLE df_queue (
  id BIGSERIAL PRIMARY KEY, ns TEXT NOT NULL, key TEXT NOT NULL,
  val BYTEA NOT NULL, ts BIGINT NOT NULL, name TEXT);
CREATE INDEX df_queue_key ON df_queue (ns, key, id);
CREATE UNIQUE INDEX df_queue_name ON df_queue (ns, key, name) WHERE name IS NOT NULL
""",
)
_NOW: LiteralString = "extract(epoch FROM clock_timestamp())::bigint"


class PostgresStorage:
    """A Backend. One connection behind a lock; a process that was forked makes its own."""

    def __init__(self, dsn: str) -> None:
        self._conninfo = checked(dsn)
        self._lock = threading.RLock()
        self._db: _Connection | None = None
        self._pid = os.getpid()
        self._left: list[_Connection] = []  # the parent's; closing them here would end its session
        self._try(lambda db: None)

    @classmethod
    def found(cls, dsn: str) -> PostgresStorage | None:
        """The storage if it is there; makes nothing."""
        with _connected(checked(dsn)) as db:
            row = db.execute("SELECT to_regclass('df_migrations')::text").fetchone()
        return cls(dsn) if row and row[0] is not None else None

    def close(self) -> None:
        self._own()
        with self._lock:
            self._drop()

    # --- values --------------------------------------------------------------------------

    def get(self, ns: str, key: str) -> bytes | None:
        rows = self._rows(
            "SELECT val FROM df_kv WHERE ns = %s AND key = %s"
            f" AND (expires_at IS NULL OR expires_at > {_NOW})",
            (ns, key),
        )
        return bytes(rows[0][0]) if rows else None

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
        keys = sorted(values)  # in one order, so that two writers do not wait for each other

        def work(db: _Connection) -> None:
            if guard is not None:
                # Nobody can take the slot over until this is committed.
                row = db.execute(
                    "SELECT state FROM df_slot WHERE ns = %s AND key = %s FOR SHARE", guard[:2]
                ).fetchone()
                if row is None or guard[2].encode() not in bytes(row[0]):
                    raise TakenOver(guard[1])
            db.execute(
                "INSERT INTO df_kv (ns, key, val, updated_at, expires_at)"
                f" SELECT %s, k, v, {_NOW}, {_NOW} + %s::bigint"
                " FROM unnest(%s::text[], %s::bytea[]) AS given (k, v)"
                " ON CONFLICT (ns, key) DO UPDATE SET val = excluded.val,"
                " updated_at = excluded.updated_at, expires_at = excluded.expires_at",
                (ns, ttl_secs, keys, [values[key] for key in keys]),
            )
            db.execute("DELETE FROM df_kv WHERE ns = %s AND key = ANY(%s)", (ns, sorted(gone)))

        self._write(work, twice=True)

    def delete(self, ns: str, key: str) -> None:
        self.put_all(ns, {}, gone=(key,))

    def items(self, ns: str, prefix: str = "") -> dict[str, bytes]:
        rows = self._rows(
            "SELECT key, val FROM df_kv WHERE ns = %s AND left(key, %s) = %s"
            f' AND (expires_at IS NULL OR expires_at > {_NOW}) ORDER BY key COLLATE "C"',
            (ns, len(prefix), prefix),
        )
        return {key: bytes(value) for key, value in rows}

    def sweep(self) -> int:
        return self._delete(f"DELETE FROM df_kv WHERE expires_at <= {_NOW}")

    # --- logs ----------------------------------------------------------------------------

    def append(self, ns: str, key: str, value: bytes) -> int:
        def work(db: _Connection) -> int:
            _in_turn(db, "log", ns, key)
            return _number(
                db.execute(
                    f"INSERT INTO df_log (ns, key, val, ts) VALUES (%s, %s, %s, {_NOW})"
                    " RETURNING seq",
                    (ns, key, value),
                )
            )

        return self._write(work)

    def since(
        self, ns: str, key: str, seq: int = 0, limit: int = 1_000_000
    ) -> list[tuple[int, bytes]]:
        rows = self._rows(
            "SELECT seq, val FROM df_log WHERE ns = %s AND key = %s AND seq > %s"
            " ORDER BY seq LIMIT %s",
            (ns, key, seq, limit),
        )
        return [(int(number), bytes(value)) for number, value in rows]

    # --- slots ---------------------------------------------------------------------------

    def slot(self, ns: str, key: str) -> tuple[int, bytes] | None:
        rows = self._rows(
            "SELECT version, state FROM df_slot WHERE ns = %s AND key = %s", (ns, key)
        )
        return (int(rows[0][0]), bytes(rows[0][1])) if rows else None

    def swap(self, ns: str, key: str, version: int, state: bytes) -> bool:
        def work(db: _Connection) -> bool:
            if version == 0:
                cursor = db.execute(
                    "INSERT INTO df_slot (ns, key, version, state, updated_at)"
                    f" VALUES (%s, %s, 1, %s, {_NOW}) ON CONFLICT DO NOTHING",
                    (ns, key, state),
                )
            else:
                cursor = db.execute(
                    f"UPDATE df_slot SET version = version + 1, state = %s, updated_at = {_NOW}"
                    " WHERE ns = %s AND key = %s AND version = %s",
                    (state, ns, key, version),
                )
            return cursor.rowcount == 1

        return self._write(work)

    # --- queues --------------------------------------------------------------------------

    def push(self, ns: str, key: str, value: bytes, name: str | None = None) -> int:
        def work(db: _Connection) -> int:
            _in_turn(db, "queue", ns, key)
            if name is not None:
                known = db.execute(
                    "SELECT id FROM df_queue WHERE ns = %s AND key = %s AND name = %s",
                    (ns, key, name),
                ).fetchone()
                if known is not None:
                    return int(known[0])
            return _number(
                db.execute(
                    "INSERT INTO df_queue (ns, key, val, ts, name)"
                    f" VALUES (%s, %s, %s, {_NOW}, %s) RETURNING id",
                    (ns, key, value, name),
                )
            )

        return self._write(work, twice=name is not None)

    def push_all(self, ns: str, key: str, entries: Mapping[str, bytes]) -> None:
        def work(db: _Connection) -> None:
            _in_turn(db, "queue", ns, key)
            db.execute(
                "INSERT INTO df_queue (ns, key, val, ts, name)"
                f" SELECT %s, %s, v, {_NOW}, n"
                " FROM unnest(%s::text[], %s::bytea[]) WITH ORDINALITY AS given (n, v, i)"
                " ORDER BY i ON CONFLICT DO NOTHING",
                (ns, key, list(entries), list(entries.values())),
            )

        self._write(work, twice=True)

    def held(self, ns: str, key: str, names: Sequence[str]) -> set[str]:
        rows = self._rows(
            "SELECT name FROM df_queue WHERE ns = %s AND key = %s AND name = ANY(%s)",
            (ns, key, list(names)),
        )
        return {str(row[0]) for row in rows}

    def drop_older(self, ns: str, key: str, secs: int) -> int:
        return self._delete(
            f"DELETE FROM df_queue WHERE ns = %s AND key = %s AND ts < {_NOW} - %s::bigint",
            (ns, key, secs),
        )

    def remove(self, ns: str, key: str, ids: Sequence[int]) -> int:
        return self._delete(
            "DELETE FROM df_queue WHERE ns = %s AND key = %s AND id = ANY(%s::bigint[])",
            (ns, key, list(ids)),
        )

    def peek(self, ns: str, key: str, limit: int = 100) -> list[tuple[int, bytes]]:
        rows = self._rows(
            "SELECT id, val FROM df_queue WHERE ns = %s AND key = %s ORDER BY id LIMIT %s",
            (ns, key, limit),
        )
        return [(int(number), bytes(value)) for number, value in rows]

    def ack(self, ns: str, key: str, up_to: int) -> int:
        return self._delete(
            "DELETE FROM df_queue WHERE ns = %s AND key = %s AND id <= %s", (ns, key, up_to)
        )

    def count(self, ns: str, key: str) -> int:
        rows = self._rows("SELECT count(*) FROM df_queue WHERE ns = %s AND key = %s", (ns, key))
        return int(rows[0][0])

    def drop_oldest(self, ns: str, key: str, number: int = 1) -> int:
        def work(db: _Connection) -> int:
            return db.execute(
                "DELETE FROM df_queue WHERE id IN (SELECT id FROM df_queue"
                " WHERE ns = %s AND key = %s ORDER BY id LIMIT %s)",
                (ns, key, number),
            ).rowcount

        return self._write(work)

    # --- calls ---------------------------------------------------------------------------

    def _rows(self, sql: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._try(lambda db: db.execute(sql, values).fetchall())

    def _delete(self, sql: LiteralString, values: Sequence[Any] = ()) -> int:
        """What is gone already cannot be removed once more; only the number may then be too small."""
        return self._try(lambda db: db.execute(sql, values).rowcount)

    def _write(self, work: Callable[[_Connection], T], twice: bool = False) -> T:
        """One transaction; `twice` when doing it once more does no harm."""

        def transaction(db: _Connection) -> T:
            db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            try:
                result = work(db)
            except BaseException:
                if not db.closed:
                    db.rollback()
                raise
            try:
                db.execute("COMMIT")
            except psycopg.Error as error:
                if db.closed and not twice:
                    self._drop()
                    raise StorageError(
                        "storage: PostgreSQL: the connection was lost on a commit, which may have "
                        f"been carried out: {_said(error)}"
                    ) from error
                raise
            return result

        return self._try(transaction)

    def _try(self, work: Callable[[_Connection], T]) -> T:
        self._own()
        with self._lock:
            until = time.monotonic() + _PATIENCE_SECS
            pauses = iter(_PAUSES)
            while True:
                try:
                    if self._db is None or self._db.closed:
                        self._db = _opened(self._conninfo)
                    with _answer_expected(self._db):
                        return work(self._db)
                except psycopg.Error as error:
                    again = self._passing(error)
                    pause = next(pauses, None)
                    if not again or pause is None or time.monotonic() > until:
                        raise StorageError(f"storage: PostgreSQL: {_said(error)}") from error
                time.sleep(pause)

    def _passing(self, error: psycopg.Error) -> bool:
        """Whether the same may work on another try; leaves a connection that is of no more use."""
        state = error.sqlstate or ""
        lost = self._db is None or self._db.closed or state[:2] == "08" or state[:3] == "57P"
        # After a failover the old server may live on, and take nothing.
        if lost or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            self._drop()
        return lost or state[:2] == "40"  # rolled back by the server, for the sake of another

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(psycopg.Error):
                db.close()

    def _own(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.RLock()
            if self._db is not None:
                self._left.append(self._db)
                self._db = None


def checked(dsn: str) -> str:
    """The DSN for libpq, with our defaults; raises an error that does not show it."""
    _, _, rest = dsn.partition("://")
    login, at, _ = rest.partition("?")[0].rpartition("@")
    try:
        given = conninfo_to_dict(dsn)
        # Such a DSN can be read, but a part of the password ends up as host, and in messages.
        torn = bool(at) and any(mark in login for mark in "/@")
        torn = torn or not all(p.isdigit() for p in str(given.get("port") or 0).split(","))
    except psycopg.Error:
        torn = True
    if torn:
        raise ConfigError(
            "storage: the DSN cannot be read (not shown): write it as "
            "postgres://USER:PASSWORD@HOST:PORT/DATABASE, special characters of user and password "
            "as %XX, or as host=... dbname=... user=... password='...'"
        )
    return make_conninfo("", **{**_DEFAULTS, **given})


def _opened(conninfo: str) -> _Connection:
    """A connection to a database that has the tables."""
    db = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    try:
        with _answer_expected(db):
            db.execute(_SESSION)
            _migrate(db)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _connected(conninfo: str) -> Iterator[_Connection]:
    try:
        with psycopg.connect(conninfo, autocommit=True) as db, _answer_expected(db):
            yield db
    except psycopg.Error as error:
        raise StorageError(f"storage: PostgreSQL: {_said(error)}") from error


def _migrate(db: _Connection) -> None:
    """Brings the tables to the version that this program knows."""
    if _version(db) == len(_MIGRATIONS):
        return  # without a right to make tables, too
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s, hashtext(current_schema()))", (_LOCKS,))
        version = _version(db)  # another may have been here since
        if version > len(_MIGRATIONS):
            raise ConfigError("storage: PostgreSQL: the tables were made by a newer dfc: use that")
        if version == 0:
            db.execute("CREATE TABLE IF NOT EXISTS df_migrations (version BIGINT PRIMARY KEY)")
        for number, statements in enumerate(_MIGRATIONS[version:], version + 1):
            db.execute(statements)
            db.execute("INSERT INTO df_migrations VALUES (%s)", (number,))


def _version(db: _Connection) -> int:
    if _number(db.execute("SELECT count(to_regclass('df_migrations'))")) == 0:
        return 0
    return _number(db.execute("SELECT coalesce(max(version), 0) FROM df_migrations"))


@contextmanager
def _answer_expected(db: _Connection) -> Iterator[None]:
    """Cuts the connection when the server is silent for too long."""
    line = socket.socket(fileno=os.dup(db.fileno()))

    def cut() -> None:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_ANSWER_SECS, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        line.close()


def _in_turn(db: _Connection, *what: str) -> None:
    """One writer at a time, as long as it has not committed: else a lower number could appear
    behind a reader who has been past it."""
    db.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCKS, "/".join(what)))


def _number(cursor: psycopg.Cursor[tuple[Any, ...]]) -> int:
    row = cursor.fetchone()
    assert row is not None
    return int(row[0])


def _said(error: psycopg.Error) -> str:
    """In one line; what the server adds to it could hold values."""
    return " ".join((error.diag.message_primary or str(error) or type(error).__name__).split())
