"""Images of PostgreSQL's changes: replica identities, unchanged TOAST, tables and types that are altered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dfc_runtime.kernels.postgres_messages import Relation
from dfc_runtime.kernels.postgres_rows import Decoded, TupleDecoder
from dfc_runtime.sources.postgres_types import Types

from .postgres_captures import WAYS, Capture, capture
from .services import Postgres

LONG = "md5(random()::text) || repeat(md5(random()::text), 400)"  # too long to stand in its row


@pytest.fixture
def log(postgres_server: Postgres) -> Iterator[Capture]:
    with capture(postgres_server) as made:
        yield made


def _decoded(log: Capture, way: str, types: Types | None = None) -> list[Decoded]:
    """The changes of each version of the one table."""
    split = log.split(way)
    made = []
    for relation, rows in split.groups():
        known = types or log.types([column.type for column in relation.columns])
        made.append(TupleDecoder(known.columns(relation), (0,), way=way).rows(split, rows))
    return made


def _lists(decoded: Decoded) -> tuple[list[Any], list[Any], list[Any]]:
    return decoded.before.to_pylist(), decoded.after.to_pylist(), decoded.key.to_pylist()


CHANGES = (
    "INSERT INTO t VALUES (1, 'a')",
    "UPDATE t SET x = 'b'",
    "UPDATE t SET id = 2",
    "DELETE FROM t",
)


@pytest.mark.parametrize("way", WAYS)
def test_default_identity_tells_the_key_when_it_changes(log: Capture, way: str) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    for change in CHANGES:
        log.execute(change)
    (decoded,) = _decoded(log, way)
    assert _lists(decoded) == (
        [None, None, '{"id":1}', '{"id":2}'],
        ['{"id":1,"x":"a"}', '{"id":1,"x":"b"}', '{"id":2,"x":"b"}', None],
        ['{"id":1}', '{"id":1}', '{"id":2}', '{"id":2}'],
    )


@pytest.mark.parametrize("way", WAYS)
def test_full_identity_tells_whole_rows(log: Capture, way: str) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    log.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    for change in CHANGES:
        log.execute(change)
    (decoded,) = _decoded(log, way)
    assert decoded.before.to_pylist() == [
        None,
        '{"id":1,"x":"a"}',
        '{"id":1,"x":"b"}',
        '{"id":2,"x":"b"}',
    ]
    assert decoded.key.to_pylist() == ['{"id":1}', '{"id":1}', '{"id":2}', '{"id":2}']


@pytest.mark.parametrize("way", WAYS)
def test_an_index_as_identity_tells_its_columns(log: Capture, way: str) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, x text NOT NULL)")
    log.execute("CREATE UNIQUE INDEX t_x ON t (x); ALTER TABLE t REPLICA IDENTITY USING INDEX t_x")
    for change in CHANGES:
        log.execute(change)
    (decoded,) = _decoded(log, way)
    assert _lists(decoded) == (
        [None, '{"x":"a"}', None, '{"x":"b"}'],
        ['{"id":1,"x":"a"}', '{"id":1,"x":"b"}', '{"id":2,"x":"b"}', None],
        # A delete does not tell the primary key then.
        ['{"id":1}', '{"id":1}', '{"id":2}', None],
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_unchanged_toast_is_marked_or_filled_from_the_old_row(
    log: Capture, way: str, identity: str
) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, big text, x int)")
    log.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    log.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    log.execute(f"INSERT INTO t VALUES (1, {LONG}, 1)")
    log.execute("UPDATE t SET x = 2")
    ((big,),) = log.execute("SELECT big FROM t")
    (decoded,) = _decoded(log, way)
    shown = f'"{big}"' if identity == "FULL" else '{"_unchanged":true}'
    assert decoded.after.to_pylist() == [
        f'{{"id":1,"big":"{big}","x":1}}',
        f'{{"id":1,"big":{shown},"x":2}}',
    ]
    if identity == "FULL":
        assert decoded.before.to_pylist()[1] == f'{{"id":1,"big":"{big}","x":1}}'


def test_the_old_row_of_an_update_holds_what_the_new_one_left_unchanged(log: Capture) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    log.execute("ALTER TABLE t ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL")
    log.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    log.execute(f"INSERT INTO t VALUES (1, {LONG}, {LONG}), (2, NULL, {LONG})")
    log.execute("UPDATE t SET b = 'short' WHERE id = 1; UPDATE t SET a = 'x' WHERE id = 2")
    texts = [_lists(_decoded(log, way)[0]) for way in WAYS]
    assert texts[0] == texts[1] == texts[2]
    before, after, _ = texts[0]
    rows = dict(log.execute("SELECT id, to_json(t)::text FROM t"))
    assert after[2:] == [rows[1], rows[2]]
    assert before[2:] == after[:2]


@pytest.mark.parametrize("way", WAYS)
def test_columns_that_are_added_and_dropped_between_changes(log: Capture, way: str) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    log.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    log.execute("INSERT INTO t VALUES (1, 'a')")
    log.execute("ALTER TABLE t ADD n numeric(5,2) NOT NULL DEFAULT 1.5")  # not written to the row
    log.execute("UPDATE t SET x = 'b'")
    log.execute("ALTER TABLE t DROP x")
    log.execute("INSERT INTO t VALUES (2)")
    log.execute("ALTER TABLE t RENAME n TO m")
    log.execute("DELETE FROM t WHERE id = 1")
    log.execute("ALTER TABLE t ALTER m TYPE int8 USING 7")
    log.execute("INSERT INTO t VALUES (3, 9)")
    before: list[Any] = []
    after: list[Any] = []
    for decoded in _decoded(log, way):
        assert decoded.odd == ()
        before += decoded.before.to_pylist()
        after += decoded.after.to_pylist()
    assert before == [
        None,
        '{"id":1,"x":"a","n":"1.50"}',
        None,
        '{"id":1,"m":"1.50"}',
        None,
    ]
    assert after == [
        '{"id":1,"x":"a"}',
        '{"id":1,"x":"b","n":"1.50"}',
        '{"id":2,"n":"1.50"}',
        None,
        '{"id":3,"m":9}',
    ]


@pytest.mark.parametrize("way", WAYS)
def test_labels_that_an_enum_gets_later(log: Capture, way: str) -> None:
    log.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE t (id int PRIMARY KEY, m mood)")
    log.execute("INSERT INTO t VALUES (1, 'sad')")
    ((oid,),) = log.execute("SELECT 'mood'::regtype::oid::int8")
    early = log.types([oid])  # as a source has read it before the change
    log.execute("ALTER TYPE mood ADD VALUE 'so so'")
    log.execute("INSERT INTO t VALUES (2, 'so so')")
    log.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    log.execute("INSERT INTO t VALUES (3, 'blue')")
    made = [row for d in _decoded(log, way, early) for row in d.after.to_pylist()]
    assert made == ['{"id":1,"m":"sad"}', '{"id":2,"m":"so so"}', '{"id":3,"m":"blue"}']


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("domain", [False, True])
def test_a_composite_type_that_is_altered_is_kept_as_text_and_reported(
    log: Capture, way: str, domain: bool
) -> None:
    """Its rows do not say which attributes they have; the catalog tells only those of now."""
    log.execute("CREATE TYPE pair AS (a int, b text); CREATE DOMAIN two AS pair")
    kind = "two" if domain else "pair"
    log.execute(f"CREATE TABLE t (id int PRIMARY KEY, p {kind}, x int[])")
    log.execute("INSERT INTO t VALUES (1, '(1,x)', '{1}')")
    ((oid,),) = log.execute(f"SELECT '{kind}'::regtype::oid::int8")
    early = log.types([oid, 1007])
    log.execute("ALTER TYPE pair ADD ATTRIBUTE c bool")
    log.execute("INSERT INTO t VALUES (2, '(2,y,t)', '{2}')")
    late = log.types([oid, 1007])

    def rows(types: Types) -> tuple[list[str], set[str]]:
        decoded = _decoded(log, way, types)
        return [t for d in decoded for t in d.after.to_pylist()], {
            o for d in decoded for o in d.odd
        }

    first, second = '{"id":1,"p":{"a":1,"b":"x"},"x":[1]}', '{"id":2,"p":"(2,y,t)","x":[2]}'
    assert rows(early) == ([first, second], {"p"})
    first, second = '{"id":1,"p":"(1,x)","x":[1]}', '{"id":2,"p":{"a":2,"b":"y","c":true},"x":[2]}'
    assert rows(late) == ([first, second], {"p"})
    # An old row shows what it did not have when it was written, and no longer what was dropped.
    log.execute("ALTER TYPE pair DROP ATTRIBUTE a")
    log.execute("UPDATE t SET x = NULL WHERE id = 1")
    split = log.split(way)
    relation, messages = list(split.groups())[-1]
    decoded = log.decoder(relation, (0,), way=way).rows(split, messages[-1:])
    assert decoded.after.to_pylist() == ['{"id":1,"p":{"b":"x","c":null},"x":null}']
    assert decoded.odd == ()


@pytest.mark.parametrize("way", WAYS)
def test_a_type_that_is_gone_is_text(log: Capture, way: str) -> None:
    log.execute("CREATE TYPE pair AS (a int, b text)")
    log.execute("CREATE TABLE t (id int PRIMARY KEY, p pair, ps pair[])")
    log.execute("""INSERT INTO t VALUES (1, '(1,x)', '{"(1,x)"}')""")
    log.execute("ALTER TABLE t DROP p, DROP ps; DROP TYPE pair")
    (decoded,) = _decoded(log, way)
    assert decoded.after.to_pylist() == ['{"id":1,"p":"(1,x)","ps":"{\\"(1,x)\\"}"}']


@pytest.mark.parametrize("way", WAYS)
def test_generated_columns_are_where_the_relation_has_them(log: Capture, way: str) -> None:
    log.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    log.execute("INSERT INTO t VALUES (4)")
    split = log.split(way)
    ((relation, rows),) = split.groups()
    assert isinstance(relation, Relation)
    decoder = log.decoder(relation, (0,), way=way)
    made = decoder.rows(split, rows).after.to_pylist()
    assert made == log.copied("t", decoder).after.to_pylist()
    assert made[0].startswith('{"id":4')


@pytest.mark.parametrize("way", WAYS)
def test_a_table_without_columns(log: Capture, way: str) -> None:
    log.execute("CREATE TABLE t ()")
    log.execute("INSERT INTO t DEFAULT VALUES")
    split = log.split(way)
    ((relation, rows),) = split.groups()
    decoded = log.decoder(relation, way=way).rows(split, rows)
    assert decoded.after.to_pylist() == ["{}"]
    assert decoded.key.to_pylist() == [None]


@pytest.mark.parametrize("way", WAYS)
def test_only_the_images_that_are_wanted_are_made(log: Capture, way: str) -> None:
    log.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    log.execute("INSERT INTO t VALUES (1, 'a')")
    decoded = log.decoded("t", (0,), way=way, want=("after",))
    assert decoded.before is None and decoded.key is None
    assert decoded.after.to_pylist() == ['{"id":1,"x":"a"}']


@pytest.mark.parametrize("way", WAYS)
def test_a_key_names_its_columns_in_its_own_order(log: Capture, way: str) -> None:
    log.execute("CREATE TABLE t (a int, b text, c int, PRIMARY KEY (c, a))")
    log.execute("INSERT INTO t VALUES (1, 'x', 2); DELETE FROM t")
    decoded = log.decoded("t", (2, 0), way=way)
    assert decoded.key.to_pylist() == ['{"c":2,"a":1}'] * 2
