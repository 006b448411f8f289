"""Tables that come while a postgres source runs, with a snapshot: nothing of them is missed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dfc_runtime.sources import postgres_log as log_module
from dfc_runtime.sources.log import SourceError
from dfc_runtime.sources.snapshot import SnapshotLog

from .mysql_logs import wait_for
from .postgres_logs import Shop, shop
from .services import Postgres
from .snapshots import Sink, opened, through
from .test_postgres_snapshot import snapshot

LATER = "CREATE TABLE later (id int PRIMARY KEY, v text)"


@pytest.fixture
def db(postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(log_module, "_LOOK_SECS", 0.05)
    with shop(postgres_server, "CREATE TABLE orders (id int PRIMARY KEY)") as made:
        made.execute("INSERT INTO orders SELECT generate_series(1, 20)")
        yield made


def take(log: SnapshotLog, sink: Sink, done: Callable[[], bool]) -> None:
    def step() -> bool:
        sink.take(log.read(0.05))
        return done()

    wait_for(step)


def rows(sink: Sink, table: str) -> dict[int, Any]:
    made = [json.loads(after) for after in sink.rows.get(table, {}).values()]
    return {row["id"]: row["v"] for row in made}


def published(db: Shop) -> bool:
    return bool(db.execute("SELECT 1 FROM pg_publication_tables WHERE tablename = 'later'"))


def test_rows_from_before_a_new_table_was_added_are_copied(db: Shop, tmp_path: Path) -> None:
    sink = Sink()
    with opened(snapshot(db, storage=tmp_path / "a.db")) as log:
        for found in through(log):
            sink.take(found)
        db.execute(LATER, "INSERT INTO later SELECT g, 'old' FROM generate_series(1, 120) g")
        take(log, sink, lambda: len(rows(sink, "later")) == 120)
        take(log, sink, log.copied)
        db.execute("INSERT INTO later VALUES (121, 'new')", "UPDATE later SET v = 'x' WHERE id = 5")
        take(log, sink, lambda: len(rows(sink, "later")) == 121 and rows(sink, "later")[5] == "x")
    assert max(sink.copied.values()) == 1
    with opened(snapshot(db, storage=tmp_path / "a.db"), sink.position) as log:
        assert [b for got in through(log) for b in got] == [], "it is not copied again"


def test_transaction_that_ran_while_its_table_was_added_is_not_missed(
    db: Shop, tmp_path: Path
) -> None:
    sink = Sink()
    db.execute(LATER)
    with opened(snapshot(db, "orders", storage=tmp_path / "a.db")) as log:
        for found in through(log):
            sink.take(found)
    with (
        db.other() as other,
        opened(snapshot(db, storage=tmp_path / "a.db"), sink.position) as log,
    ):
        db.execute("DROP TABLE later")
        db.execute(LATER)
        with other.transaction():
            other.execute("INSERT INTO later VALUES (1, 'early')")
            take(log, sink, lambda: published(db))
            for _ in range(10):
                sink.take(log.read(0.05))
            other.execute("INSERT INTO later VALUES (2, 'late')")
        take(log, sink, lambda: len(rows(sink, "later")) == 2)


def test_table_made_again_under_its_name_is_copied_again(db: Shop, tmp_path: Path) -> None:
    sink = Sink()
    ids: list[str] = []
    with opened(snapshot(db, storage=tmp_path / "a.db", size=10)) as log:
        for found in through(log):
            sink.take(found)
        for text in ("one", "two", "three"):
            db.execute("BEGIN", "DROP TABLE IF EXISTS later", LATER)
            db.execute(
                f"INSERT INTO later SELECT g, '{text}' FROM generate_series(1, 25) g", "COMMIT"
            )

            def there(wanted: str = text) -> bool:
                return list(rows(sink, "later").values()) == [wanted] * 25

            while not there():
                found = log.read(0.05)
                ids += [i for b in found if "later" in b["table"].to_pylist()
                        for i in b["event_id"].to_pylist()]  # fmt: skip
                sink.take(found)
        take(log, sink, log.copied)
    assert len(set(ids)) == 75, "other rows, though they have the same key"
    with opened(snapshot(db, storage=tmp_path / "a.db"), sink.position) as log:
        assert [b for got in through(log) for b in got] == []


@pytest.mark.parametrize("when", ["before it was added", "before its copy began", "in its copy"])
def test_killed_while_a_new_table_comes_its_rows_are_copied(
    db: Shop, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    sink = Sink()
    with opened(snapshot(db, storage=tmp_path / "a.db", size=10)) as log:
        for found in through(log):
            sink.take(found)
        with monkeypatch.context() as patch:
            if when == "before it was added":
                patch.setattr(
                    "dfc_runtime.sources.postgres_publication.Publication._change", killed
                )
            elif when == "before its copy began":
                patch.setattr("dfc_runtime.sources.snapshot.Copied.begin", killed)
            db.execute(LATER, "INSERT INTO later SELECT g, 'old' FROM generate_series(1, 120) g")
            if when == "in its copy":
                take(log, sink, lambda: len(rows(sink, "later")) > 20)
            else:
                with pytest.raises(Killed):
                    take(log, sink, lambda: False)
    with opened(snapshot(db, storage=tmp_path / "a.db", size=10), sink.position) as log:
        take(log, sink, lambda: len(rows(sink, "later")) == 120)
    assert max(sink.copied.values()) == 1


def test_table_added_while_the_job_was_away_is_copied(db: Shop, tmp_path: Path) -> None:
    sink = Sink()
    with opened(snapshot(db, storage=tmp_path / "a.db")) as log:
        for found in through(log):
            sink.take(found)
    db.execute(LATER, "INSERT INTO later VALUES (1, 'old')")
    with opened(snapshot(db, storage=tmp_path / "a.db"), sink.position) as log:
        take(log, sink, lambda: rows(sink, "later") == {1: "old"})


def test_new_sink_gets_the_copied_rows_also_when_the_connection_breaks_at_once(
    db: Shop, tmp_path: Path
) -> None:
    old, new = Sink(), Sink()
    with opened(snapshot(db, storage=tmp_path / "a.db")) as log:
        for found in through(log):
            old.take(found)
        db.execute("INSERT INTO orders VALUES (21)")
        for found in through(log):
            old.take(found)
        log.durable(old.position)
        wait_for(lambda: db.slot()["confirmed_flush_lsn"] is not None)
    log = snapshot(db, storage=tmp_path / "a.db")
    log.open("")
    start = log.position
    log.close()
    with opened(log, start):
        for found in through(log):
            new.take(found)
    assert new.rows["orders"] == old.rows["orders"]


def test_rows_hidden_by_a_policy_are_not_left_out_in_silence(db: Shop) -> None:
    db.execute(
        "CREATE TABLE secrets (id int PRIMARY KEY)",
        "INSERT INTO secrets VALUES (1)",
        "ALTER TABLE secrets ENABLE ROW LEVEL SECURITY",
        f"CREATE ROLE {db.name} LOGIN REPLICATION PASSWORD 'p'",
        f"GRANT SELECT ON secrets TO {db.name}",
        f"CREATE PUBLICATION {db.name} FOR TABLE secrets",
    )
    try:
        dsn = f"postgres://{db.name}:p@{db.dsn.split('@')[1]}"
        log = snapshot(db, "secrets", dsn=dsn)
        with opened(log), pytest.raises(SourceError, match="BYPASSRLS"):
            list(through(log))
        db.execute(f"ALTER ROLE {db.name} BYPASSRLS")
        with opened(snapshot(db, "secrets", dsn=dsn)) as log:
            assert sum(b.num_rows for got in through(log) for b in got) == 1
    finally:
        db.execute(f"DROP OWNED BY {db.name} CASCADE", f"DROP ROLE {db.name}")
