"""The four primitives, on every backend, by several processes, and while storage is away."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dfc_runtime.errors import ConfigError, StorageError, TakenOver, WrongUsage
from dfc_runtime.positions import Positions
from dfc_runtime.storage import Backend, SqliteStorage, Storage, postgres, sqlite
from dfc_runtime.storage.flags import chosen
from dfc_runtime.storage.postgres import PostgresStorage

from .services import Postgres
from .services.fixtures import Services
from .storages import every_backend, fresh_schema


@pytest.fixture(params=every_backend)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "sqlite":
        return Storage(path=str(tmp_path / "data" / "state.db"))
    return fresh_schema(request.getfixturevalue("postgres_server"))


@pytest.fixture
def storage(spec: Storage) -> Iterator[Backend]:
    made = spec.open()
    yield made
    made.close()


@pytest.fixture
def on_postgres(postgres_server: Postgres) -> Storage:
    return fresh_schema(postgres_server)


# --- the primitives --------------------------------------------------------------------------


def test_values(storage: Backend) -> None:
    assert storage.get("n", "k") is None
    storage.put("n", "k", b"1")
    storage.put("n", "k", b"\0\xff2")
    storage.put("n", "k%", b"3", ttl_secs=100)
    storage.put("m", "k", b"4")
    assert storage.get("n", "k") == b"\0\xff2"
    assert storage.items("n", "k") == {"k": b"\0\xff2", "k%": b"3"}
    assert storage.items("n", "k%") == {"k%": b"3"}
    storage.put("n", "gone", b"5", ttl_secs=-1)
    assert storage.get("n", "gone") is None and "gone" not in storage.items("n")
    assert storage.sweep() == 1
    storage.put_all("n", {})
    storage.put_all("n", {"new": b"6"}, gone=["k", "none"])
    assert storage.get("n", "k") is None and storage.get("n", "new") == b"6"
    storage.put_all("n", {"k": b"7"}, gone=["new"])
    storage.delete("n", "k")
    storage.delete("n", "k%")
    assert storage.items("n") == {}


def test_values_come_in_order_of_their_keys_as_bytes(storage: Backend) -> None:
    keys = ["b", "B", "é", "a_", "a b", "日本", "z", "a/b::c", "😀", "%_\\'\""]
    storage.put_all("n", dict.fromkeys(keys, b"v"))
    assert list(storage.items("n")) == sorted(keys, key=str.encode)
    assert list(storage.items("n", "a_")) == ["a_"]


def test_log(storage: Backend) -> None:
    first = storage.append("n", "k", b"a")
    storage.append("n", "other", b"x")
    second = storage.append("n", "k", b"b")
    assert storage.since("n", "k") == [(first, b"a"), (second, b"b")]
    assert storage.since("n", "k", first) == [(second, b"b")]
    assert storage.since("n", "k", limit=1) == [(first, b"a")]


def test_slot_swaps_only_the_version_it_knows(storage: Backend) -> None:
    assert storage.slot("n", "k") is None
    assert not storage.swap("n", "k", 3, b"a")
    assert storage.swap("n", "k", 0, b"a")
    assert not storage.swap("n", "k", 0, b"b")
    assert storage.slot("n", "k") == (1, b"a")
    assert storage.swap("n", "k", 1, b"b")
    assert not storage.swap("n", "k", 1, b"c")
    assert storage.slot("n", "k") == (2, b"b")


def test_queue(storage: Backend) -> None:
    ids = [storage.push("n", "k", bytes([i])) for i in range(5)]
    storage.push("n", "other", b"x")
    assert storage.count("n", "k") == 5
    assert storage.peek("n", "k", 2) == [(ids[0], b"\0"), (ids[1], b"\1")]
    assert storage.ack("n", "k", ids[1]) == 2
    assert storage.drop_oldest("n", "k", 2) == 2
    assert storage.peek("n", "k") == [(ids[4], b"\4")]
    assert storage.drop_oldest("n", "k", 9) == 1
    assert storage.count("n", "other") == 1
    assert storage.drop_older("n", "other", 100) == 0
    assert storage.drop_older("n", "other", -100) == 1


def test_entries_of_a_queue_are_told_by_their_names(storage: Backend) -> None:
    one = storage.push("n", "k", b"1", name="a")
    assert storage.push("n", "k", b"other", name="a") == one
    storage.push_all("n", "k", {"c": b"3", "a": b"again", "b": b"2"})
    assert [value for _, value in storage.peek("n", "k")] == [b"1", b"3", b"2"]
    storage.push("n", "elsewhere", b"", name="x")
    assert storage.held("n", "k", ["a", "b", "x", ""]) == {"a", "b"}
    assert storage.remove("n", "k", [one, 999_999]) == 1
    assert storage.held("n", "k", ["a"]) == set()


def test_a_guard_lets_only_the_holder_of_the_slot_write(storage: Backend) -> None:
    guard = ("leases", "p", "mine")
    with pytest.raises(TakenOver):
        storage.put_all("n", {"k": b"1"}, guard=guard)
    storage.swap("leases", "p", 0, b'{"token": "mine"}')
    storage.put_all("n", {"k": b"1"}, guard=guard)
    storage.swap("leases", "p", 1, b'{"token": "other"}')
    with pytest.raises(TakenOver):
        storage.put_all("n", {"k": b"2", "l": b"2"}, guard=guard)
    assert storage.items("n") == {"k": b"1"}


# --- several at once -------------------------------------------------------------------------

MANY = """
import pickle, sys
storage = pickle.loads(bytes.fromhex(sys.argv[1])).open()
won = 0
for i in range(60):
    storage.push("n", "k", b"x")
    storage.append("n", "k", b"x")
    slot = storage.slot("n", "k")
    won += storage.swap("n", "k", slot[0] if slot else 0, b"s")
print(won)
"""


def test_several_processes_begin_and_write_at_once(spec: Storage) -> None:
    """Also the tables are made by all of them, in one moment."""
    command = [sys.executable, "-c", MANY, pickle.dumps(spec).hex()]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    won = sum(int(process.communicate(timeout=120)[0]) for process in running)
    assert [process.returncode for process in running] == [0] * 4
    storage = spec.open()
    assert storage.count("n", "k") == 240
    assert len(storage.since("n", "k")) == 240
    slot = storage.slot("n", "k")
    assert slot is not None and slot[0] == won, "a version for every swap that was let through"
    storage.close()


def test_a_reader_of_a_log_misses_nothing_of_those_who_write(spec: Storage) -> None:
    def write() -> None:
        mine = spec.open()
        for _ in range(50):
            mine.append("n", "k", b"x")
        mine.close()

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    storage, seen = spec.open(), [0]
    while any(writer.is_alive() for writer in writers):
        seen += [seq for seq, _ in storage.since("n", "k", seen[-1])]
    seen += [seq for seq, _ in storage.since("n", "k", seen[-1])]
    assert len(seen) == 151
    storage.close()


def test_threads_share_one_storage(storage: Backend) -> None:
    def write(n: int) -> None:
        for i in range(30):
            storage.put("n", f"{n}/{i}", b"v")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(storage.items("n")) == 120


# --- which storage ---------------------------------------------------------------------------


def test_one_line_says_which() -> None:
    assert Storage.parse("sqlite:/x/y.db") == Storage("sqlite", "/x/y.db")
    assert Storage.parse("memory").backend == "memory"
    for text in ("postgres:host=h", "postgres:postgres://h/d"):
        assert Storage.parse(text).text == text
    assert Storage.parse("postgresql://h/d").dsn == "postgresql://h/d"
    assert Storage.parse("sqlite:a:b").text == "sqlite:a:b"
    assert Storage.parse("memory").text == "memory"
    for text in ("sqlite", "sqlite:", "oracle:secret", "memory:x", "postgres", "postgres:"):
        with pytest.raises(WrongUsage, match="sqlite:PATH, memory or postgres:DSN") as caught:
            Storage.parse(text)
        assert "secret" not in str(caught.value)
    assert "secret" not in repr(Storage("postgres", dsn="postgres://u:secret@h"))
    with pytest.raises(ConfigError, match="unknown storage backend"):
        Storage("oracle").open()
    with pytest.raises(ConfigError, match="needs a DSN"):
        Storage("postgres").open()


LITE, PG = Storage("sqlite", "spec.db"), Storage("postgres", dsn="${D}")


@pytest.mark.parametrize(
    ("spec", "flags", "result"),
    [
        (LITE, {}, LITE),
        (PG, {}, PG),
        (PG, {"storage": "sqlite:x"}, Storage("sqlite", "x")),
        (LITE, {"storage_path": "x"}, Storage("sqlite", "x")),
        (PG, {"storage_path": "x"}, Storage("sqlite", "x")),
        (LITE, {"storage_dsn": "d"}, Storage("postgres", dsn="d")),
        (LITE, {"storage_backend": "postgres", "storage_dsn": "d"}, Storage("postgres", dsn="d")),
        (PG, {"storage_backend": "postgres"}, PG),
        (PG, {"storage_backend": "sqlite"}, Storage()),
        (LITE, {"storage_backend": "sqlite"}, LITE),
        (LITE, {"storage_backend": "memory"}, Storage("memory")),
        (LITE, {"storage": "memory", "storage_path": "x"}, "goes alone"),
        (LITE, {"storage_path": "x", "storage_dsn": "d"}, "give one"),
        (LITE, {"storage_backend": "memory", "storage_path": "x"}, "no meaning with"),
        (LITE, {"storage_backend": "sqlite", "storage_dsn": "d"}, "no meaning with"),
        (LITE, {"storage_backend": "postgres"}, "needs --storage-dsn"),
        (LITE, {"storage_dsn": ""}, "is empty"),
    ],
    ids=str,
)
def test_flags_say_which(spec: Storage, flags: dict[str, str], result: Storage | str) -> None:
    if isinstance(result, str):
        with pytest.raises(WrongUsage, match=result):
            chosen(spec, flags)
    else:
        assert chosen(spec, flags) == result


@pytest.mark.parametrize(
    "dsn",
    [
        "postgres://u:hunt@er2@db/x",
        "postgres://u:hunt/er2@db/x",
        "postgres://u:99/hunter2@db/x",
        "postgres://u:hunter2@db:po/x",
        "postgres://u:hunter2@db/x?hunter2",
        "host=db password=hunt er2",
        "host=db password='hunter2",
        "host=db hunter2=1",
        "hunter2",
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_shown(dsn: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        Storage("postgres", dsn=dsn).open()
    assert "hunt" not in str(caught.value) and "er2" not in str(caught.value)
    assert caught.value.__context__ is None, "nor in a traceback"


def test_what_is_not_there_is_not_made_by_looking(spec: Storage) -> None:
    assert spec.find() is None
    assert spec.find() is None
    spec.open().put("n", "k", b"v")
    found = spec.find()
    assert found is not None and found.get("n", "k") == b"v"


# --- SQLite ----------------------------------------------------------------------------------


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[SqliteStorage]:
    made = SqliteStorage(tmp_path / "data" / "state.db")
    yield made
    made.close()


def test_file_is_private_and_its_folder_is_made(on_sqlite: SqliteStorage) -> None:
    on_sqlite.put("n", "k", b"v")
    for path in Path(on_sqlite.path).parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_another_holds_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECS", 0.1)
    path = tmp_path / "state.db"
    storage = SqliteStorage(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match=r"storage .*state.db: another process has locked"):
            storage.put("n", "k", b"v")
        assert storage.get("n", "k") is None, "reading goes on"
        with pytest.raises(StorageError, match="another process has locked it"):
            SqliteStorage(path)
    storage.put("n", "k", b"v")
    storage.close()


@contextlib.contextmanager
def as_somebody() -> Iterator[None]:
    """Rights mean nothing to root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user gets to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_a_file_or_folder_without_the_right_to_write(open_folder: Path) -> None:
    path = open_folder / "state.db"
    with as_somebody():
        kept = SqliteStorage(path)
        kept.put("n", "k", b"v")
        kept.close()
        path.chmod(0o400)
        with pytest.raises(StorageError, match=r"state.db: Permission denied"):
            SqliteStorage(path)
        path.chmod(0o600)
    open_folder.chmod(0o555)
    with as_somebody():
        with pytest.raises(StorageError, match=r"state.db: "):
            SqliteStorage(path)
        with pytest.raises(StorageError, match=r"x.db: Permission denied"):
            SqliteStorage(open_folder / "x.db")
        with pytest.raises(StorageError, match=r"x.db: Permission denied"):
            SqliteStorage(open_folder / "new" / "x.db")


def test_a_file_that_is_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no database" * 100)
    with pytest.raises(StorageError, match="x: file is not a database"):
        SqliteStorage(tmp_path / "x")
    with pytest.raises(StorageError, match="directory"):
        SqliteStorage(tmp_path)


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    """Made with SQLite's own limit of pages, which gives the error of a full disk."""
    storage = SqliteStorage(tmp_path / "state.db")
    positions = Positions(storage, "p", "src", ["a"], 1)
    positions.advance({("a", 0): "05"}, {("a", 0): 5})
    storage._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StorageError, match="database or disk is full"):
        while True:
            storage.push("n", "k", b"x" * 4096)
    storage._db.execute("PRAGMA max_page_count = 100000")
    positions.advance({("a", 0): "06"}, {("a", 0): 1})
    assert Positions(storage, "p", "src", ["a"], 1).of("a") == ("06",)
    storage.close()


def test_times_to_live_by_a_clock_that_goes_on(
    on_sqlite: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_sqlite.put("n", "k", b"v", ttl_secs=10)
    monkeypatch.setattr(sqlite, "_now", lambda: int(time.time()) + 11)
    assert on_sqlite.get("n", "k") is None and on_sqlite.items("n") == {}
    assert on_sqlite.sweep() == 1


# --- PostgreSQL ------------------------------------------------------------------------------


def rows(spec: Storage, sql: str) -> list[tuple[Any, ...]]:
    assert spec.dsn is not None
    with psycopg.connect(spec.dsn, autocommit=True) as db:
        return db.execute(sql).fetchall()  # type: ignore[arg-type]


def end_sessions(server: Postgres) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE application_name = 'dfc'"
        )


def test_migrations_run_once(on_postgres: Storage) -> None:
    for _ in range(2):
        on_postgres.open().close()
    assert rows(on_postgres, "SELECT version FROM df_migrations") == [(1,)]
    rows(on_postgres, "INSERT INTO df_migrations VALUES (99) RETURNING version")
    with pytest.raises(ConfigError, match="made by a newer dfc"):
        on_postgres.open()


def test_a_user_without_the_right_to_make_tables_finds_them(
    on_postgres: Storage, postgres_server: Postgres
) -> None:
    on_postgres.open().close()
    name = rows(on_postgres, "SELECT current_schema()")[0][0]
    with psycopg.connect(postgres_server.dsn, autocommit=True) as db:
        db.execute(f"CREATE ROLE {name}_user LOGIN PASSWORD 'pw'")
        db.execute(f"GRANT USAGE ON SCHEMA {name} TO {name}_user")
        db.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {name} TO {name}_user")
        db.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {name} TO {name}_user")
    assert on_postgres.dsn is not None
    user = on_postgres.dsn.replace("dfc:dfc@", f"{name}_user:pw@")
    storage = Storage("postgres", dsn=user).open()
    storage.push("n", "k", b"v")
    storage.close()
    other = fresh_schema(postgres_server).dsn
    assert other is not None
    with pytest.raises(StorageError, match="storage: PostgreSQL: "):
        Storage("postgres", dsn=other.replace("dfc:dfc@", f"{name}_user:pw@")).open()


def test_the_session_has_limits_unless_the_dsn_sets_others(on_postgres: Storage) -> None:
    storage = on_postgres.open()
    assert isinstance(storage, PostgresStorage)
    asked = "SELECT current_setting('statement_timeout'), current_setting('application_name')"
    assert storage._rows(asked, ()) == [("10s", "dfc")]
    storage.close()
    assert on_postgres.dsn is not None
    own = on_postgres.dsn.replace(
        "options=", "application_name=x&options=-cstatement_timeout%3D77s%20"
    )
    storage = Storage("postgres", dsn=own).open()
    assert isinstance(storage, PostgresStorage)
    assert storage._rows(asked, ()) == [("77s", "x")]
    storage.close()


def test_a_lost_connection_is_made_anew(on_postgres: Storage, postgres_server: Postgres) -> None:
    storage = on_postgres.open()
    calls = [
        lambda: storage.put("n", "k", b"v"),
        lambda: storage.get("n", "k"),
        lambda: storage.swap("n", "k", 0, b"1"),
        lambda: storage.push("n", "k", b"1"),
        lambda: storage.append("n", "k", b"1"),
        lambda: storage.drop_oldest("n", "k"),
    ]
    for call in calls:
        end_sessions(postgres_server)
        call()
    assert storage.get("n", "k") == b"v" and storage.slot("n", "k") == (1, b"1")
    assert storage.count("n", "k") == 0 and len(storage.since("n", "k")) == 1
    storage.close()


class Cut:
    """A connection that breaks at a statement, before or after the server has carried it out."""

    def __init__(self, server: Postgres, db: Any, at: str, after: bool) -> None:
        self._server, self._db, self._at, self._after = server, db, at, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *values: Any) -> Any:
        if not sql.startswith(self._at):
            return self._db.execute(sql, *values)
        if self._after:
            self._db.execute(sql, *values)
        end_sessions(self._server)
        return self._db.execute("SELECT 1")


@pytest.mark.parametrize("after", [False, True])
def test_what_may_not_happen_twice_is_not_repeated_when_nobody_knows(
    on_postgres: Storage, postgres_server: Postgres, after: bool
) -> None:
    storage = on_postgres.open()
    assert isinstance(storage, PostgresStorage)

    def cut(at: str) -> None:
        storage.count("n", "k")  # has a connection
        storage._db = Cut(postgres_server, storage._db, at, after)  # type: ignore[assignment]

    for statement, number in (("BEGIN", 1), ("INSERT", 2)):
        cut(statement)
        storage.push("n", "k", b"x")  # rolled back by the server, so it is done again
        assert storage.count("n", "k") == number
    for call in (
        lambda: storage.push("n", "k", b"x"),
        lambda: storage.swap("n", "k", 0, b"x"),
        lambda: storage.append("n", "k", b"x"),
        lambda: storage.drop_oldest("n", "k"),
    ):
        cut("COMMIT")
        with pytest.raises(StorageError, match="which may have been carried out"):
            call()
    assert storage.count("n", "k") == 2, "one more and one less, or neither"
    assert (storage.slot("n", "k") is not None) is after
    assert len(storage.since("n", "k")) == after
    cut("COMMIT")
    storage.put("n", "k", b"again")  # no harm in this
    cut("COMMIT")
    storage.push("n", "k", b"x", name="one")
    cut("COMMIT")
    storage.push_all("n", "k", {"one": b"x", "two": b"x"})
    assert storage.get("n", "k") == b"again" and storage.count("n", "k") == 4
    storage.close()


def test_a_server_that_restarts_is_found_again(services: Services) -> None:
    server = services.start(Postgres)
    spec = fresh_schema(server)
    storage = spec.open()
    positions = Positions(storage, "p", "src", ["a"], 1)
    positions.advance({("a", 0): "05"}, {})
    server.stop()
    with pytest.raises(StorageError, match=r"storage: PostgreSQL: .*refused") as caught:
        positions.advance({("a", 0): "06"}, {})
    assert "\n" not in str(caught.value)
    for look in (spec.open, spec.find):
        with pytest.raises(StorageError, match="refused"):
            look()
    server.start()
    positions.save()
    assert Positions(storage, "p", "src", ["a"], 1).of("a") == ("06",)
    storage.close()


def test_a_server_that_is_silent_is_not_waited_for_without_end(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = services.start(Postgres)
    spec = fresh_schema(server)
    assert spec.dsn is not None
    impatient = Storage("postgres", dsn=spec.dsn.replace("?", "?connect_timeout=2&"))
    storage = impatient.open()
    monkeypatch.setattr(postgres, "_ANSWER_SECS", 0.5)
    monkeypatch.setattr(postgres, "_PATIENCE_SECS", 0.1)
    with frozen(storage, server), pytest.raises(StorageError, match="storage: PostgreSQL: "):
        storage.put("n", "k", b"v")
    storage.put("n", "k", b"w")
    assert storage.get("n", "k") == b"w"
    storage.close()


@contextlib.contextmanager
def frozen(storage: Backend, server: Postgres) -> Iterator[None]:
    """Its processes are stopped: the one that serves us, and the one that would serve others."""
    assert isinstance(storage, PostgresStorage)
    pids = [storage._rows("SELECT pg_backend_pid()", ())[0][0], server.pid]
    for pid in pids:
        os.kill(pid, 19)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 18)


def test_a_forked_process_has_its_own_connection(on_postgres: Storage) -> None:
    storage = on_postgres.open()
    assert isinstance(storage, PostgresStorage)
    mine = storage._rows("SELECT pg_backend_pid()", ())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            storage.put("n", "child", b"v")
            os.write(writer, str(storage._rows("SELECT pg_backend_pid()", ())).encode())
            storage.close()
            code = 0
        os._exit(code)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    with open(reader, "rb") as file:
        assert file.read().decode() != str(mine)
    assert storage.get("n", "child") == b"v"
    assert storage._rows("SELECT pg_backend_pid()", ()) == mine, "and leaves the parent's alone"
    storage.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("dfc:dfc@", "dfc:wrong-hunter2@"), "password authentication failed"),
        (("/shop", "/nowhere"), 'database "nowhere" does not exist'),
        (("?", "?sslmode=require&"), "SSL"),
    ],
)
def test_a_refusal_is_told_in_one_line_without_the_password(
    on_postgres: Storage, change: tuple[str, str], why: str
) -> None:
    assert on_postgres.dsn is not None
    spec = Storage("postgres", dsn=on_postgres.dsn.replace(*change))
    with pytest.raises(StorageError, match=why) as caught:
        spec.open()
    assert "\n" not in str(caught.value) and "hunter2" not in str(caught.value)


def test_expiry_goes_by_the_servers_clock(
    on_postgres: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = on_postgres.open()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    storage.put("n", "k", b"v", ttl_secs=100)
    monkeypatch.setattr(time, "time", lambda: 2.0**40)
    assert storage.get("n", "k") == b"v"
    storage.put("n", "k", b"v", ttl_secs=0)
    assert storage.get("n", "k") is None
    storage.close()


# --- positions -------------------------------------------------------------------------------


def positions(storage: Backend | None, lanes: int = 1, keep: bool = True) -> Positions:
    return Positions(storage, "p", "src", ["a", "b"], lanes, keep)


def test_the_start_is_the_smallest_position_of_all_sinks(storage: Backend) -> None:
    at = positions(storage)
    assert at.start == ""
    at.advance({("a", 0): "05", ("b", 0): "03"}, {("a", 0): 5})
    at.advance({("a", 0): "04"}, {("a", 0): 1})  # never back
    again = positions(storage)
    assert (again.start, again.of("a"), again.events["a"]) == ("03", ("05",), [5])
    assert Positions(storage, "p", "src", ["a", "b", "new"], 1).start == ""
    assert Positions(storage, "other", "src", ["a"], 1).start == ""


def test_a_dry_run_keeps_nothing(storage: Backend) -> None:
    at = positions(storage, keep=False)
    at.advance({("a", 0): "05"}, {})
    assert at.of("a") == ("05",)
    assert positions(storage).of("a") == ("",)
    positions(None).advance({("a", 0): "05"}, {})


def test_lanes_may_change_only_where_they_stand_together(storage: Backend) -> None:
    at = positions(storage, lanes=2)
    at.advance({(s, i): "05" for s in "ab" for i in (0, 1)}, {("a", 0): 2, ("a", 1): 3})
    four = positions(storage, lanes=4)
    assert four.of("a") == ("05",) * 4 and four.start == "05"
    at.advance({("a", 0): "07"}, {})
    with pytest.raises(ConfigError, match="run once with 2 lanes"):
        positions(storage, lanes=4)
    assert positions(storage, lanes=2).of("a") == ("07", "05")


def test_fewer_lanes_leave_no_old_keys(storage: Backend) -> None:
    positions(storage, lanes=3).advance({(s, i): "05" for s in "ab" for i in range(3)}, {})
    one = positions(storage, lanes=1)
    one.advance({("a", 0): "09", ("b", 0): "09"}, {})
    assert positions(storage, lanes=1).start == "09"
    assert len(storage.items("checkpoints")) == 2


@pytest.mark.parametrize("lanes", [1, 4])
def test_another_number_of_lanes_changes_nothing_before_it_saves(
    storage: Backend, lanes: int
) -> None:
    positions(storage, lanes=2).advance({(s, i): "05" for s in "ab" for i in (0, 1)}, {})
    before = storage.items("checkpoints")
    for _ in range(2):  # idle, or killed
        assert positions(storage, lanes=lanes).of("a") == ("05",) * lanes
        assert storage.items("checkpoints") == before
    assert positions(storage, lanes=2).of("a") == ("05", "05"), "the old number is still good"


@pytest.mark.parametrize("lanes", [1, 4])
def test_another_number_of_lanes_is_saved_for_all_of_them_at_once(
    storage: Backend, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions(storage, lanes=2).advance({(s, i): "05" for s in "ab" for i in (0, 1)}, {})
    new = positions(storage, lanes=lanes)
    with monkeypatch.context() as away:

        def refuse(*given: Any, **named: Any) -> None:
            raise StorageError("away")

        away.setattr(storage, "put_all", refuse)
        with pytest.raises(StorageError):
            new.advance({("a", 0): "07"}, {})
    assert positions(storage, lanes=2).of("a") == ("05", "05")
    new.save()  # one lane has come further, the others failed, and the job is killed
    again = positions(storage, lanes=lanes)
    assert again.of("a") == ("07", *["05"] * (lanes - 1)) and again.of("b") == ("05",) * lanes


def test_positions_that_could_not_be_saved_are_saved_with_the_next(
    storage: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = positions(storage)
    with monkeypatch.context() as away:

        def refuse(*given: Any, **named: Any) -> None:
            raise StorageError("away")

        away.setattr(storage, "put_all", refuse)
        with pytest.raises(StorageError):
            at.advance({("a", 0): "05"}, {("a", 0): 5})
        assert at.of("a") == ("05",) and positions(storage).of("a") == ("",)
    at.advance({("b", 0): "03"}, {})
    assert (positions(storage).of("a"), positions(storage).of("b")) == (("05",), ("03",))


def test_a_clock_that_goes_back_moves_no_position(
    storage: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = positions(storage)
    at.advance({("a", 0): "05", ("b", 0): "05"}, {})
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 1_000_000)
    assert positions(storage).start == "05"
    at.advance({("a", 0): "06", ("b", 0): "06"}, {})
    assert positions(storage).start == "06"
