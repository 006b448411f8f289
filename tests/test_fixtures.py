"""Lines of fixtures as events: what may be left out, what is refused, and the way back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from dfc_runtime.columns import debezium, native
from dfc_runtime.events import EVENT_COLUMNS, Events
from dfc_runtime.fixtures import FixtureError, Origin, read_events, recorded

from .fixtures import fixture_events

MYSQL = Origin("mysql", "orders", "acme", ("shop.%",), ("shop.outbox",))
POSTGRES = Origin("postgres", "orders", "acme", (), ("events",))
TURSO = Origin("turso", "orders", "acme", ("orders", "order_%"))


def read(text: str | dict[str, Any], origin: Origin = TURSO) -> Events:
    text = text if isinstance(text, str) else json.dumps(text)
    return read_events(text, origin, " ".join(EVENT_COLUMNS))


def problems(text: str | dict[str, Any], origin: Origin = TURSO) -> list[tuple[int, str]]:
    with pytest.raises(FixtureError) as caught:
        read(text, origin)
    return list(caught.value.problems)


def one(events: Events) -> dict[str, Any]:
    (row,) = events.batch.to_pylist()
    found: dict[str, Any] = row
    return found


@pytest.mark.parametrize(
    ("origin", "table", "source"),
    [
        (
            TURSO,
            "orders",
            '{"version":"dfc-test","connector":"turso","name":"orders","ts_ms":1700000000001,'
            '"db":"main","table":"orders","sequence":"1"}',
        ),
        (
            MYSQL,
            "shop.orders",
            '{"version":"dfc-test","connector":"mysql","name":"orders","ts_ms":1700000000001,'
            '"db":"shop","table":"orders","server_id":1,"file":"mysql-bin.000001","pos":1}',
        ),
        (
            POSTGRES,
            "sales.orders",
            '{"version":"dfc-test","connector":"postgresql","name":"orders",'
            '"ts_ms":1700000000001,"db":"postgres","schema":"sales","table":"orders",'
            '"lsn":"0/1","txId":1}',
        ),
    ],
    ids=["turso", "mysql", "postgres"],
)
def test_a_short_line_is_filled_up_as_its_source_would(
    origin: Origin, table: str, source: str
) -> None:
    row = one(read({"op": "c", "table": table, "after": {"id": 1}}, origin))
    assert row["source"] == source
    place = json.loads(source)
    assert [row[name] for name in ("db", "schema", "table")] == [
        place.get(name) for name in ("db", "schema", "table")
    ]
    assert (row["after"], row["before"], row["primary_key"]) == ('{"id":1}', None, None)
    assert (row["ts_ms"], row["tx_end"], row["transaction"]) == (1_700_000_000_001, True, None)
    assert re.fullmatch(r"dfid:v1:(ts|my|pg)row:[0-9a-f]{32}", row["event_id"])


@pytest.mark.parametrize(
    ("origin", "table", "place"),
    [
        (TURSO, "main.orders", ("main", None, "orders")),
        (MYSQL, "shop.outbox", ("shop", "__outbox", "outbox")),
        (POSTGRES, "orders", ("postgres", "public", "orders")),
        (POSTGRES, "shop.sales.orders", ("shop", "sales", "orders")),
        (POSTGRES, "events", ("postgres", "__outbox", "events")),
    ],
)
def test_names_of_tables(origin: Origin, table: str, place: tuple[str, ...]) -> None:
    row = one(read({"op": "c", "table": table}, origin))
    assert (row["db"], row["schema"], row["table"]) == place


def test_any_change_of_an_outbox_table_is_marked_and_of_messages_only_new_ones() -> None:
    """What is no insert never reaches a sink, so it must not look like a plain change."""
    for op in "curdt":
        assert one(read({"op": op, "table": "shop.outbox"}, MYSQL))["schema"] == "__outbox"
    assert one(read({"op": "d", "table": "events"}, POSTGRES))["schema"] == "public"


def test_the_transaction_is_named_in_the_source_too() -> None:
    line = {"op": "c", "table": "shop.orders", "transaction": {"id": "3e11fa47:23"}}
    source = json.loads(one(read(line, MYSQL))["source"])
    assert list(source)[-4:] == ["server_id", "gtid", "file", "pos"]
    assert source["gtid"] == "3e11fa47:23"
    for given, named in (("735", 735), (735, 735), ("3e11fa47:23", 1)):
        line = {"op": "c", "table": "orders", "transaction": {"id": given}}
        assert json.loads(one(read(line, POSTGRES))["source"])["txId"] == named


def test_a_copied_row_has_no_place_in_the_log() -> None:
    source = json.loads(one(read({"op": "r", "table": "shop.orders"}, MYSQL))["source"])
    assert list(source)[-2:] == ["table", "snapshot"] and source["snapshot"] == "true"


def test_values_keep_their_text_and_lose_only_blanks_between_them() -> None:
    line = '{ "op" : "c", "table": "orders",\t"after": {"a": 1.00, "b" : [ 1, 2 ],'
    line += ' "c": " x \\" { ", "d": 12345678901234567890, "e": "\\ud83d\\ude00 \u2028" } }'
    assert one(read(line))["after"] == (
        '{"a":1.00,"b":[1,2],"c":" x \\" { ","d":12345678901234567890,'
        '"e":"\\ud83d\\ude00 \u2028"}'
    )
    digits = "9" * 5000
    assert one(read(f'{{"op":"c","table":"orders","after":{{"n":{digits}}}}}'))["after"] == (
        f'{{"n":{digits}}}'
    )


def test_comments_and_blank_lines_move_nothing() -> None:
    line = '{"op":"c","table":"orders"}\n'
    plain, spread = read(line * 2), read(f"\ufeff# first\n{line}\n  \n  # more\r\n{line}")
    assert plain.batch.equals(spread.batch)
    assert plain.position.to_pylist() == ["0" * 15 + "1", "0" * 15 + "2"]
    assert len(set(plain.event_id.to_pylist())) == 2


def test_what_a_whole_event_leaves_out_is_not_there() -> None:
    short = {"op": "c", "table": "shop.orders"}
    assert one(read(short, MYSQL))["tx_end"] is True
    assert one(read({**short, "transaction": {"id": "7"}}, MYSQL))["tx_end"] is False
    whole = one(read({**short, "event_id": "x", "transaction": {"id": 7}}, MYSQL))
    assert (whole["tx_end"], whole["event_id"], whole["tx_id"]) == (False, "x", "7")


def test_fields_that_sources_never_fill() -> None:
    line = {"op": "c", "table": "orders", "tags": ["a", "b"], "synthetic": "s", "trace_id": "t"}
    events = read(line)
    assert native(events)[0].as_py().endswith(
        '"trace_id":"t","tags":["a","b"],"synthetic":"s","tx_end":true}'
    )  # fmt: skip
    assert not read({"op": "c", "table": "orders"}).has("tags")


@pytest.mark.parametrize("kind", ["mysql", "postgres", "turso"])
def test_recorded_events_come_back_as_they_were(kind: str) -> None:
    events = fixture_events(kind, "", "shop", "acme")
    lines = recorded(events).value
    assert not isinstance(lines, str) and lines is not None
    assert "tenant_id" not in lines[0].as_py()
    text = "\n".join(lines.to_pylist())
    again = read(text, Origin(kind, "shop", "acme"))
    assert debezium(again).equals(debezium(events))
    for name in EVENT_COLUMNS.keys() - {"position"}:
        assert again.column(name).equals(events.column(name)), name


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes at character 2"),
        ('{"op":"c"} x', "not JSON: Extra data at character 12"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"op":"c","after":{"a":NaN}}', "not JSON: NaN is no JSON value"),
        ('{"op":"c","op":"d"}', "`op` stands there twice"),
        ({"table": "orders"}, "`op` is missing: one of c, u, d, r, t"),
        (
            {"op": "create", "table": "orders"},
            '`op` must be one of c, u, d, r, t, not "create"; did you mean `c`?',
        ),
        ({"op": 1, "table": "orders"}, "`op` must be one of c, u, d, r, t, not 1"),
        (
            {"op": "c", "table": "orders", "afer": {}},
            "unknown field `afer`; did you mean `after`?",
        ),
        ({"op": "c", "table": "orders", "zzz": 1}, "unknown field `zzz`"),
        ({"op": "c", "table": "orders", "after": []}, "`after` must be an object or null, not []"),
        (
            {"op": "c", "table": "orders", "ts_ms": True},
            "`ts_ms` must be an integer: milliseconds since 1970, not true",
        ),
        (
            {"op": "c", "table": "orders", "tenant_id": "other"},
            "`tenant_id` comes from the pipeline, which has `acme`: leave it out",
        ),
        ({"op": "c"}, "`table` (or the whole `source`) is missing"),
        (
            {"op": "c", "table": "other.orders"},
            "`table` is `table` here, not `other.orders`; give `source` for names with dots",
        ),
        (
            {"op": "c", "table": "customers"},
            "the source does not read `main.customers`: its tables are orders, order_%",
        ),
        ({"op": "c", "table": "\ud800"}, '`table` must be a text such as `orders`, not "\ud800"'),
    ],
    ids=lambda value: str(value)[:40].encode(errors="replace").decode(),
)
def test_lines_that_are_no_events_are_refused(line: str | dict[str, Any], message: str) -> None:
    assert problems(line) == [(1, message)]


def test_a_source_that_no_reader_of_the_pipeline_writes_is_refused() -> None:
    source = {"connector": "mysql", "name": "else", "db": "shop", "table": "orders"}
    assert problems({"op": "c", "source": source, "table": "orders"}) == [
        (1, "`table` is short for `source`: give one of them"),
        (1, '`source.connector` is "mysql", but events of this pipeline have "turso"'),
        (1, '`source.name` is "else", but events of this pipeline have "orders"'),
        (1, '`source.db` is "shop", but events of this pipeline have "main"'),
    ]
    assert (1, "`source.table` must be a text") in problems({"op": "c", "source": {}})


def test_all_problems_come_at_once_with_their_lines() -> None:
    text = '# a comment\n{"op":"x","aftre":1}\n\nnonsense\n{"op":"c","table":"orders"}\n'
    assert [number for number, _ in problems(text)] == [2, 2, 4]
    assert problems("# nothing else\n") == [(1, "there are no events in the file")]
