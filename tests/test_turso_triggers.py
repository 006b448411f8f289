from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import struct
import tempfile
import time
from pathlib import Path
from random import Random

import pytest
from dfc_runtime import ids
from dfc_runtime.sources import SourceError
from dfc_runtime.sources.log import TransientError
from dfc_runtime.sources.turso import choose
from dfc_runtime.sources.turso_database import Database, file_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .sqlite_files import database, drain, rebuilt, rows, turso_log

# --- any table, any statements ---------------------------------------------------------------

NAMES = ("id", "a b", 'q"uote', "select", "ÄÖ", "row_id", "slot", "rowid", "n", "new", "op", "t")
TYPES = ("", "INTEGER", "TEXT", "REAL", "BLOB", "NUMERIC", "VARCHAR(9)", "BOOLEAN", "ANY")
VALUES = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False).map(lambda x: x + 0.0),
    st.sampled_from(["", "a", "A", "b", "1", "1.0", "a\0b", '"\\\n\x01\x7f', "\u2028 ü 😀"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.binary(max_size=5),
)
SMALL = st.one_of(st.integers(0, 3), st.sampled_from(["a", "A", "b"]), st.none())


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[str]]:
    """CREATE TABLE for a table called `t`, and its columns that can be written."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    kind = draw(st.sampled_from(["none", "rowid", "one", "many", "without rowid"]))
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    parts = []
    for number, name in enumerate(quoted):
        declared = draw(st.sampled_from(TYPES))
        extra = draw(st.sampled_from(["", "", " UNIQUE", " UNIQUE COLLATE NOCASE", " DEFAULT 7"]))
        if number == 0 and kind == "rowid":
            declared, extra = "INTEGER", " PRIMARY KEY"
        elif number == 0 and kind == "one":
            extra = draw(st.sampled_from([" PRIMARY KEY", " PRIMARY KEY ON CONFLICT REPLACE"]))
        parts.append(f"{name} {declared}{extra}")
    if draw(st.booleans()):
        stored = draw(st.sampled_from(["VIRTUAL", "STORED"]))
        # A default that REPLACE puts for a null is not seen by what a column made of it is.
        unique = "" if "DEFAULT" in parts[0] else draw(st.sampled_from(["", " UNIQUE"]))
        parts.append(f"made AS (typeof({quoted[0]}) || {quoted[0]}) {stored}{unique}")
    if kind in ("many", "without rowid"):
        parts.append(f"PRIMARY KEY ({', '.join(reversed(quoted[:2]))})")
    end = " WITHOUT ROWID" if kind == "without rowid" else ""
    return f"CREATE TABLE t ({', '.join(parts)}){end}", quoted


def statements(columns: list[str]) -> st.SearchStrategy[tuple[str, list[object]]]:
    value = st.one_of(SMALL, VALUES)
    column = st.sampled_from(columns)
    or_what = st.sampled_from(["", " OR REPLACE", " OR REPLACE", " OR IGNORE", " OR FAIL"])
    marks = ", ".join("?" * len(columns))
    names = ", ".join(columns)
    row = st.lists(value, min_size=len(columns), max_size=len(columns))
    upserts = st.sampled_from(
        [
            " ON CONFLICT DO NOTHING",
            f" ON CONFLICT DO UPDATE SET {columns[-1]} = excluded.{columns[-1]}",
            f" ON CONFLICT DO UPDATE SET {columns[0]} = 9",
        ]
    )
    return st.one_of(
        st.tuples(or_what.map(lambda w: f"INSERT{w} INTO t ({names}) VALUES ({marks})"), row),
        st.tuples(
            or_what.map(lambda w: f"INSERT{w} INTO t ({names}) VALUES ({marks}), ({marks})"),
            st.lists(value, min_size=2 * len(columns), max_size=2 * len(columns)),
        ),
        st.tuples(upserts.map(lambda u: f"INSERT INTO t ({names}) VALUES ({marks}){u}"), row),
        st.tuples(
            st.builds(lambda w, c: f"UPDATE{w} t SET {c} = ?", or_what, column),
            st.tuples(value).map(list),
        ),
        st.tuples(
            st.builds(
                lambda w, c, d: f"UPDATE{w} t SET {c} = ? WHERE {d} IS ?", or_what, column, column
            ),
            st.tuples(value, value).map(list),
        ),
        st.tuples(
            column.map(lambda c: f"DELETE FROM t WHERE {c} IS ?"), st.tuples(SMALL).map(list)
        ),
        st.tuples(
            st.sampled_from(
                ["DELETE FROM t", "BEGIN", "COMMIT", "ROLLBACK"]
                + [f"PRAGMA recursive_triggers = {on}" for on in (0, 1)]
            ),
            st.just([]),
        ),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_events_rebuild_any_table_exactly(data: st.DataObject) -> None:
    create, columns = data.draw(tables())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        try:
            writer = database(path, create)
        except sqlite3.OperationalError:
            return  # not a table SQLite wants
        log = turso_log(path)
        for sql, values in data.draw(st.lists(statements(columns), min_size=1, max_size=25)):
            with contextlib.suppress(sqlite3.IntegrityError, sqlite3.OperationalError):
                writer.execute(sql, values)
        if writer.in_transaction:
            writer.execute("COMMIT")
        events = drain(log)
        assert rebuilt(events, "t") == rows(writer, "t")
        assert [e["position"] for e in events] == sorted({e["position"] for e in events})
        log.close()
        writer.close()


# --- images, keys, names ---------------------------------------------------------------------


def test_an_event_has_every_column(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)")
    log = turso_log(tmp_path / "x.db")
    writer.execute("INSERT INTO orders VALUES (7, 0.1)")
    (event,) = drain(log)
    ts_ms = event["ts_ms"]
    assert abs(ts_ms - time.time() * 1000) < 60_000
    version = event.pop("schema_version")
    assert version.startswith("sha256:") and len(version) == 71
    source = json.loads(event.pop("source"))
    assert list(source) == ["version", "connector", "name", "ts_ms", "db", "table", "sequence"]
    assert source.pop("version").startswith("dfc-")
    assert source == {
        "connector": "turso",
        "name": "p",
        "ts_ms": ts_ms,
        "db": "main",
        "table": "orders",
        "sequence": "1",
    }
    assert event == {
        "position": "0000000000000001",
        "tx_end": True,
        "op": "c",
        "ts_ms": ts_ms,
        "db": "main",
        "schema": None,
        "table": "orders",
        "primary_key": '{"id":7}',
        "before": None,
        "after": '{"id":7,"total":0.1}',
        "transaction": None,
        "tx_id": None,
        "event_id": ids.turso_row("shop", 1),
        "schema_sequence": None,
        "ddl": None,
    }


def test_only_wanted_columns_are_built(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE t (a)")
    log = turso_log(tmp_path / "x.db", columns="op after")
    writer.execute("INSERT INTO t VALUES (1)")
    found = drain(log)
    place = "0000000000000001"
    assert found == [{"position": place, "tx_end": True, "op": "c", "after": '{"a":1}'}]


def test_a_changed_key_is_one_update_with_both_images(tmp_path: Path) -> None:
    writer = database(
        tmp_path / "x.db",
        "CREATE TABLE t (a, b, c, PRIMARY KEY (b, a))",
        "INSERT INTO t VALUES (1, 2, 3)",
    )
    log = turso_log(tmp_path / "x.db")
    writer.execute("UPDATE t SET a = 9")
    (event,) = drain(log)
    assert (event["op"], event["before"], event["after"], event["primary_key"]) == (
        "u",
        '{"a":1,"b":2,"c":3}',
        '{"a":9,"b":2,"c":3}',
        '{"b":2,"a":9}',
    )


@pytest.mark.parametrize("recursive", [0, 1])
def test_replace_gives_a_delete_for_every_row_it_removes(tmp_path: Path, recursive: int) -> None:
    writer = database(
        tmp_path / "x.db",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT UNIQUE COLLATE NOCASE)",
        "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z')",
        f"PRAGMA recursive_triggers = {recursive}",
    )
    log = turso_log(tmp_path / "x.db")
    writer.execute("INSERT OR REPLACE INTO t VALUES (1, 'Y')")
    writer.execute("UPDATE OR REPLACE t SET id = 3 WHERE id = 1")
    events = [(e["op"], e["primary_key"]) for e in drain(log)]
    assert sorted(events[:2]) == [("d", '{"id":1}'), ("d", '{"id":2}')]
    assert events[2:] == [("c", '{"id":1}'), ("d", '{"id":3}'), ("u", '{"id":3}')]


def test_deletes_by_foreign_key_are_seen(tmp_path: Path) -> None:
    writer = database(
        tmp_path / "x.db",
        "PRAGMA foreign_keys = 1",
        "CREATE TABLE p (id INTEGER PRIMARY KEY)",
        "CREATE TABLE c (id INTEGER PRIMARY KEY, p REFERENCES p ON DELETE CASCADE)",
        "INSERT INTO p VALUES (1)",
        "INSERT INTO c VALUES (5, 1)",
    )
    log = turso_log(tmp_path / "x.db")
    writer.execute("DELETE FROM p")
    assert {(e["op"], e["table"]) for e in drain(log)} == {("d", "p"), ("d", "c")}


@pytest.mark.parametrize(
    "name", ["a b", 'qu"ote', "select", "ä😀", "it's", "seq", "Consumers", "x_i"]
)
def test_any_table_name_will_do(tmp_path: Path, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    writer = database(
        tmp_path / "x.db", f"CREATE TABLE {quoted} (a PRIMARY KEY)", "CREATE TABLE x (a)"
    )
    log = turso_log(tmp_path / "x.db")
    writer.execute(f"INSERT INTO {quoted} VALUES (1)")
    writer.execute(f"REPLACE INTO {quoted} VALUES (1)")
    assert [(e["table"], e["op"]) for e in drain(log)] == [(name, "c"), (name, "d"), (name, "c")]


def test_a_wide_table_comes_whole(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(150)]
    writer = database(tmp_path / "x.db", f"CREATE TABLE t ({', '.join(names)})")
    log = turso_log(tmp_path / "x.db")
    writer.execute(f"INSERT INTO t VALUES ({', '.join(str(n) for n in range(150))})")
    (event,) = drain(log)
    assert json.loads(event["after"]) == {name: number for number, name in enumerate(names)}
    assert list(json.loads(event["after"])) == names


def test_text_in_another_encoding_is_the_same_text(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "PRAGMA encoding = 'UTF-16le'", "CREATE TABLE t (a, b)")
    log = turso_log(tmp_path / "x.db")
    writer.execute("INSERT INTO t VALUES ('ä😀', x'00ff')")
    assert rebuilt(drain(log), "t") == rows(writer, "t")


def test_tables_merge_in_the_order_of_the_changes(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE a (n)", "CREATE TABLE b (n)")
    log = turso_log(tmp_path / "x.db")
    writer.execute("BEGIN")
    for number in range(1000):
        writer.execute(f"INSERT INTO {'ab'[number % 3 == 0]} VALUES ({number})")
    writer.execute("COMMIT")
    assert [json.loads(e["after"])["n"] for e in drain(log)] == list(range(1000))


def test_what_is_rolled_back_never_happened(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE t (a)")
    log = turso_log(tmp_path / "x.db")
    writer.execute("BEGIN")
    writer.execute("INSERT INTO t VALUES (1)")
    assert log.read(0.01) == []
    writer.execute("ROLLBACK")
    writer.execute("INSERT INTO t VALUES (2)")
    assert [(e["position"], e["after"]) for e in drain(log)] == [("0000000000000001", '{"a":2}')]


def test_only_matching_tables_are_touched(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE orders (a)", "CREATE TABLE users (a)")
    log = turso_log(tmp_path / "x.db", tables='["order%"]')
    writer.execute("INSERT INTO users VALUES (1)")
    writer.execute("INSERT INTO orders VALUES (1)")
    assert [e["table"] for e in drain(log)] == ["orders"]
    triggers = writer.execute("SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'")
    assert triggers.fetchall() == [("orders",)]


# --- schema changes --------------------------------------------------------------------------


def test_columns_come_and_go_while_running(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
    log = turso_log(tmp_path / "x.db")
    writer.execute("INSERT INTO t VALUES (1, 'a', 'b')")
    writer.execute("ALTER TABLE t ADD COLUMN c DEFAULT 5")
    writer.execute("INSERT INTO t VALUES (2, 'a', 'b', 6)")
    events = drain(log)
    # The second insert came before the triggers knew `c`: an update brings its value.
    assert [e["after"] for e in events] == [
        '{"id":1,"a":"a","b":"b"}',
        '{"id":2,"a":"a","b":"b"}',
        '{"id":2,"a":"a","b":"b","c":6}',
    ]
    assert events[2]["before"] == '{"id":2,"a":"a","b":"b","c":5}'
    assert events[0]["schema_version"] != events[2]["schema_version"]
    writer.execute("ALTER TABLE t RENAME COLUMN a TO z")
    writer.execute("UPDATE t SET z = 'n' WHERE id = 1")
    assert drain(log)[0]["after"] in (
        '{"id":1,"z":"n","b":"b","c":5}',
        '{"id":1,"a":"n","b":"b","c":5}',
    )
    writer.execute("ALTER TABLE t DROP COLUMN b")
    writer.execute("UPDATE t SET z = 'm' WHERE id = 1")
    assert drain(log)[0]["after"] == '{"id":1,"z":"m","b":null,"c":5}'
    writer.execute("UPDATE t SET z = 'o' WHERE id = 1")
    assert drain(log)[0]["after"] == '{"id":1,"z":"o","c":5}'


def test_columns_change_while_nobody_looks(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    log = turso_log(path)
    writer.execute("INSERT INTO t VALUES (1, 'a')")
    position = drain(log)[-1]["position"]
    log.close()
    writer.execute("ALTER TABLE t ADD COLUMN b")
    writer.execute("ALTER TABLE t DROP COLUMN a")
    writer.execute("INSERT INTO t VALUES (2, 'b')")
    writer.execute("INSERT INTO t VALUES (3, NULL)")
    events = drain(turso_log(path, start=position))
    state = rebuilt(events, "t")
    assert sum(state.values()) == 2, "no event is lost"
    writer.execute("UPDATE t SET b = 'x' WHERE id = 2")
    assert drain(turso_log(path, start=events[-1]["position"]))[0]["after"] == '{"id":2,"b":"x"}'


def test_a_new_table_is_picked_up_with_its_rows(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE old (a)", "INSERT INTO old VALUES (1)")
    log = turso_log(tmp_path / "x.db")
    assert drain(log) == [], "rows from before the first start are not changes"
    writer.execute("CREATE TABLE fresh (a)")
    writer.execute("INSERT INTO fresh VALUES (1)")
    assert [(e["table"], e["op"], e["after"]) for e in drain(log)] == [("fresh", "c", '{"a":1}')]
    writer.execute("INSERT INTO fresh VALUES (2)")
    assert [e["after"] for e in drain(log)] == ['{"a":2}']


def test_a_table_made_again_goes_on_under_its_name(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE t (a, b)")
    log = turso_log(tmp_path / "x.db")
    writer.execute("INSERT INTO t VALUES (1, 2)")
    writer.execute("DROP TABLE t")
    writer.execute("CREATE TABLE t (x PRIMARY KEY)")
    writer.execute("INSERT INTO t VALUES (9)")
    assert [(e["op"], e["after"]) for e in drain(log)] == [("c", '{"a":1,"b":2}'), ("r", '{"x":9}')]
    writer.execute("DELETE FROM t")
    assert [(e["op"], e["primary_key"]) for e in drain(log)] == [("d", '{"x":9}')]


def test_a_renamed_table_goes_on_under_its_new_name(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "CREATE TABLE t (a)")
    log = turso_log(tmp_path / "x.db")
    writer.execute("ALTER TABLE t RENAME TO u")
    writer.execute("INSERT INTO u VALUES (1)")
    assert [(e["table"], e["op"]) for e in drain(log)] == [("t", "c")]
    writer.execute("CREATE TABLE t (b)")
    writer.execute("INSERT INTO u VALUES (2)")
    assert [(e["table"], e["op"]) for e in drain(log)] == [("u", "c")]


def test_making_triggers_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)")
    turso_log(path).close()
    schema = writer.execute("SELECT * FROM sqlite_master").fetchall()
    version = writer.execute("PRAGMA schema_version").fetchone()
    turso_log(path).close()
    assert writer.execute("SELECT * FROM sqlite_master").fetchall() == schema
    assert writer.execute("PRAGMA schema_version").fetchone() == version


# --- positions, clean-up, failures -----------------------------------------------------------


def test_a_restart_goes_on_behind_its_position(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)")
    log = turso_log(path)
    for number in range(5):
        writer.execute(f"INSERT INTO t VALUES ({number})")
    events = drain(log)
    again = drain(turso_log(path, start=events[2]["position"]))
    assert again == events[3:], "a replay is the same, ids included"


def test_clean_up_waits_for_every_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)", "CREATE TABLE other (a)")
    one, two = turso_log(path), turso_log(path, pipeline="q", tables='["t"]')
    writer.execute("INSERT INTO t VALUES (1), (2), (3)")
    events, _ = drain(one), drain(two)

    def left() -> int:
        return int(writer.execute("SELECT count(*) FROM _df_cdc_t").fetchone()[0])

    one.durable(events[-1]["position"])
    assert left() == 3
    two.durable(events[1]["position"])
    assert left() == 1
    two.durable(events[2]["position"])
    assert left() == 0
    writer.execute("INSERT INTO other VALUES (1)")
    one.durable(drain(one)[-1]["position"])
    drain(two)
    two.durable(events[2]["position"])
    one.durable("0000000000000004")
    # `two` reads none of it, and so does not hold it back.
    assert writer.execute("SELECT count(*) FROM _df_cdc_other").fetchone() == (0,)


def test_a_position_whose_changes_are_gone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)")
    log = turso_log(path)
    writer.execute("INSERT INTO t VALUES (1), (2), (3)")
    log.durable(drain(log)[-1]["position"])
    log.close()
    with pytest.raises(SourceError, match="changes 2 to 3 are no longer in the database"):
        turso_log(path, start="0000000000000001")
    with pytest.raises(SourceError, match="position 9 is ahead of the database's last change 3"):
        turso_log(path, start="0000000000000009")
    assert drain(turso_log(path, start="")) == []


def test_the_error_says_how_to_begin_again(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database(path, "CREATE TABLE t (a)")
    turso_log(path).close()
    with pytest.raises(SourceError, match=r"a new metadata.name, or .* `dfc checkpoint reset SPEC"):
        turso_log(path, start="0000000000000009")


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_reading_does_not_block_writers(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)", journal=journal)
    writer.execute("PRAGMA busy_timeout = 0")
    log = turso_log(path)
    seen = 0
    for number in range(50):
        writer.execute("INSERT INTO t VALUES (?)", (number,))
        seen += sum(batch.num_rows for batch in log.read(0.005))
        log.durable(log.position)
    assert seen + len(drain(log)) == 50


def test_a_lock_is_waited_for_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)", journal="delete")
    log = turso_log(path)
    writer.execute("INSERT INTO t VALUES (1)")
    writer.execute("BEGIN EXCLUSIVE")
    log._reader.execute("PRAGMA busy_timeout = 10")  # type: ignore[attr-defined]
    with pytest.raises(TransientError, match="locked"):
        log.read(0.01)
    writer.execute("COMMIT")
    assert len(drain(log)) == 1


def test_a_file_that_is_missing_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no database file"):
        turso_log(tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_a_file_that_goes_away_may_come_back(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database(path, "CREATE TABLE t (a)", journal="delete").close()
    log = turso_log(path)
    log.close()
    path.rename(tmp_path / "y.db")
    with pytest.raises(TransientError, match="there is no database file"):
        log.open("")
    (tmp_path / "y.db").rename(path)
    log.open("")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("not a database, but long enough to be looked at " * 50)
    with pytest.raises(SourceError, match="not a database") as caught:
        turso_log(tmp_path / "x.db")
    assert not isinstance(caught.value, TransientError)


def test_a_dry_run_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)")
    with pytest.raises(SourceError, match="a dry run makes none"):
        turso_log(path, storage="")
    assert writer.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]
    turso_log(path).close()
    writer.execute("INSERT INTO t VALUES (1)")
    dry = turso_log(path, storage="")
    before = writer.execute("SELECT * FROM _df_cdc_consumers").fetchall()
    assert len(drain(dry)) == 1
    dry.durable(dry.position)
    assert writer.execute("SELECT * FROM _df_cdc_consumers").fetchall() == before
    assert writer.execute("SELECT count(*) FROM _df_cdc_t").fetchone() == (1,)


# --- choosing --------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["libsql://db.turso.io", "http://127.0.0.1:8080", "https://x"])
def test_remote_databases_are_refused(url: str) -> None:
    with pytest.raises(SourceError, match="remote Turso databases are not built yet"):
        file_path(url)


def test_urls_name_files(tmp_path: Path) -> None:
    expected = str(tmp_path / "a b.db")
    for url in (
        expected,
        f"file:{expected}",
        f"file://{expected}",
        f"file:{tmp_path}/a%20b.db?mode=ro",
    ):
        assert file_path(url) == expected
    for url in ("", ":memory:", "file:", "file:x?mode=memory", "file://host/x"):
        with pytest.raises(SourceError):
            file_path(url)


def test_native_mode_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cdc_mode native is not built"):
        turso_log(tmp_path / "x.db", "native")


def test_auto_takes_triggers_or_polling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    database(path, "CREATE TABLE t (a)").close()
    assert choose(Database(str(path)), ("*",))[0] == "triggers"
    monkeypatch.setattr(Database, "writable", lambda self: False)
    assert choose(Database(str(path)), ("*",))[0] == "polling"
    monkeypatch.undo()
    turso_log(path).close()
    monkeypatch.setattr(Database, "writable", lambda self: False)
    assert choose(Database(str(path)), ("*",)) == ("triggers", "the triggers are there")


def test_a_new_pipeline_begins_with_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)")
    log = turso_log(path)
    writer.execute("INSERT INTO t VALUES (1), (2), (3)")
    log.durable(drain(log)[-1]["position"])
    fresh = turso_log(path, start=None, pipeline="fresh")
    assert fresh.open("") == "0000000000000003"
    fresh.open(fresh.position)  # as after a failure that passes
    writer.execute("INSERT INTO t VALUES (4)")
    assert [e["after"] for e in drain(fresh)] == ['{"a":4}']


def test_a_pipeline_that_stays_away_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.db"
    writer = database(path, "CREATE TABLE t (a)")
    turso_log(path, pipeline="gone").close()
    writer.execute("UPDATE _df_cdc_consumers SET seen_ms = 0")
    turso_log(path).close()
    assert "WHERE pipeline = 'gone/shop'" in caplog.text


def test_reals_read_back_as_the_same_bits(tmp_path: Path) -> None:
    random = Random(7)
    doubles = [struct.unpack("<d", random.randbytes(8))[0] for _ in range(20_000)]
    doubles = [x for x in doubles if math.isfinite(x)]
    doubles += [round(random.uniform(-1e6, 1e6), 2) for _ in range(5000)]
    writer = database(tmp_path / "x.db", "CREATE TABLE t (a, b REAL)")
    log = turso_log(tmp_path / "x.db", columns="after")
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO t VALUES (?1, ?1)", [(x,) for x in doubles])
    writer.execute("COMMIT")
    read = [json.loads(event["after"]) for event in drain(log)]
    assert [row["a"] for row in read] == doubles
    assert [row["b"] for row in read] == doubles
    assert all(type(row["a"]) is float for row in read)
