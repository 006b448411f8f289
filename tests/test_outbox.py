"""The outbox processor: what becomes of outbox rows, and that nothing becomes of other events."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.columns import debezium, join, raw_or
from dfc_runtime.errors import ProcessorError
from dfc_runtime.events import EVENT_COLUMNS, Events
from dfc_runtime.kernels import jsontext, members
from dfc_runtime.ledger import Ledger
from dfc_runtime.processors import outbox
from hypothesis import given, settings
from hypothesis import strategies as st

from .jitted import jitted

COMPACT = (",", ":")
ORDER = {
    "id": 1,
    "aggregate_type": "Order",
    "aggregate_id": "42",
    "event_type": "OrderCreated",
    "payload": {"total": 99.99},
}


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=COMPACT)


def row(after: Any, op: str = "c", table: str = "outbox", **more: Any) -> dict[str, Any]:
    """A marked row; `after` is a value, or JSON text as it is."""
    return {
        "op": op,
        "db": "shop",
        "schema": "__outbox",
        "table": table,
        "after": after if isinstance(after, str) or after is None else dumped(after),
        "source": dumped({"name": "shop", "db": "shop", "schema": "__outbox", "table": table}),
        **more,
    }


def plain(**more: Any) -> dict[str, Any]:
    """An event that is none of the outbox's business."""
    source = '{"name":"shop", "db":"shop","table":"orders"}'
    return row('{"id": 1.00}', table="orders", schema=None, before='{"id":0}', source=source) | more


def events(*rows: dict[str, Any], ledger: Ledger | None = None) -> Events:
    made = [
        {
            "position": f"{n + 1:016x}",
            "tx_end": n % 3 == 2,
            "ts_ms": 1_700_000_000_000 + n,
            "event_id": f"dfid:v1:{n}",
            **one,
        }
        for n, one in enumerate(rows)
    ]
    batch = pa.RecordBatch.from_pylist(made, pa.schema(list(EVENT_COLUMNS.items())))
    return Events(batch, pipeline="shop", tenant="acme", ledger=ledger)


def run(*rows: dict[str, Any], **settings: Any) -> Events:
    return outbox(events(*rows), id="outbox", **settings)


def one(after: Any, **settings: Any) -> dict[str, Any]:
    """What became of a single outbox row."""
    (result,) = run(row(after), **settings).batch.to_pylist()
    return dict(result)


def headers(after: Any, **settings: Any) -> dict[str, str]:
    text: str = one(after, **settings)["routing_headers"]
    assert text == dumped(json.loads(text))
    return dict(json.loads(text))


def by_type(row: Any) -> Any:
    return join(row["aggregate_type"], ".", row["event_type"])


# --- as documented ---------------------------------------------------------------------------


def test_order_of_the_mysql_example() -> None:
    after = (
        '{"id":1,"aggregate_type":"Order","aggregate_id":"1","event_type":"OrderCreated",'
        '"payload":{"customer": "alice", "total": 149.99, "status": "pending"}}'
    )
    result = run(
        plain(), row(after), topic=by_type, default_topic="events.unrouted", raw_payload=True
    )
    assert result.routing.topic.to_pylist() == [None, "Order.OrderCreated"]
    assert result.routing.key.to_pylist() == [None, "1"]
    assert json.loads(result.routing.headers[1].as_py()) == {
        "df-event-id": "1",
        "df-aggregate-type": "Order",
        "df-aggregate-id": "1",
        "df-event-type": "OrderCreated",
        "df-source-kind": "outbox",
    }
    values = raw_or(result, debezium(result)).to_pylist()
    assert values[1] == '{"customer": "alice", "total": 149.99, "status": "pending"}'
    assert json.loads(values[0])["payload"]["after"] == {"id": 1}


def test_message_of_the_postgres_example() -> None:
    after = (
        '{"aggregate_type":"Order","aggregate_id":"42","event_type":"OrderCreated",'
        '"payload":{"total":99.99}}'
    )
    result = one(after, topic=by_type)
    assert (result["routing_topic"], result["routing_key"]) == ("Order.OrderCreated", "42")
    assert result["after"] == '{"total":99.99}'
    assert "df-event-id" not in json.loads(result["routing_headers"])


def test_table_of_another_event_router() -> None:
    after = {
        "id": "0b7c",
        "aggregatetype": "Order",
        "aggregateid": "42",
        "type": "OrderCreated",
        "payload": {"total": 1},
        "traceid": "abc-123",
        "tenant": "acme",
    }
    columns = {
        "event_id": "id",
        "aggregate_type": "aggregatetype",
        "aggregate_id": "aggregateid",
        "event_type": "type",
    }
    result = one(
        after,
        topic=lambda row: join(row["aggregatetype"], ".", row["type"]),
        key=lambda row: row["aggregateid"],
        columns=columns,
        additional_headers={"x-trace-id": "traceid", "x-tenant": "tenant"},
    )
    assert (result["routing_topic"], result["routing_key"]) == ("Order.OrderCreated", "42")
    assert result["routing_headers"] == dumped(
        {
            "df-event-id": "0b7c",
            "df-aggregate-type": "Order",
            "df-aggregate-id": "42",
            "df-event-type": "OrderCreated",
            "x-trace-id": "abc-123",
            "x-tenant": "acme",
            "df-source-kind": "outbox",
        }
    )


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ('"abc-123"', "abc-123"),
        ("42", "42"),
        ("true", "true"),
        ("1.50", "1.50"),
        ("18446744073709551615", "18446744073709551615"),
        ('""', ""),
        ('"say \\"hi\\"\\n"', 'say "hi"\n'),
        ('"\\u00e9\\ud83d\\ude00\\ud800"', "é😀\ufffd"),
        ('"{"', "{"),
        ("null", None),
        ("{}", None),
        ("[]", None),
        ("[1]", None),
    ],
)
def test_header_values_are_texts_of_scalars(text: str, header: str | None) -> None:
    found = headers(f'{{"payload":1,"x":{text}}}', additional_headers={"x": "x"})
    assert found.get("x") == header
    assert found["df-source-kind"] == "outbox"


# --- topic, key, headers ---------------------------------------------------------------------


def test_topic_cascade() -> None:
    full = {**ORDER, "topic": "mine"}
    assert one(full, topic=by_type, default_topic="d")["routing_topic"] == "Order.OrderCreated"
    assert one(full, default_topic="d")["routing_topic"] == "mine"
    assert one(ORDER, default_topic="d")["routing_topic"] == "d"
    assert one(ORDER)["routing_topic"] is None
    assert one(ORDER, columns={"topic": "aggregate_type"})["routing_topic"] == "Order"


@pytest.mark.parametrize("part", [{}, {"event_type": None}])
def test_template_that_lacks_a_part_has_failed(part: dict[str, Any]) -> None:
    lacking = {"aggregate_type": "Order", "payload": 1, "aggregate_id": 7, **part}
    settings: dict[str, Any] = {"topic": by_type, "key": lambda row: join("k-", row["event_type"])}
    assert one(lacking, default_topic="d", **settings)["routing_topic"] == "d"
    assert one({**lacking, "topic": "mine"}, **settings)["routing_topic"] == "mine"
    assert one(lacking, **settings)["routing_topic"] is None
    assert one(lacking, **settings)["routing_key"] == "7"


@pytest.mark.parametrize("topic", ["", None, {"a": 1}, ["x"]])
def test_topic_column_counts_when_it_is_a_scalar_with_text(topic: Any) -> None:
    assert one({**ORDER, "topic": topic}, default_topic="d")["routing_topic"] == "d"
    assert one({**ORDER, "topic": topic})["routing_topic"] is None


def test_templates_may_be_constant_nested_or_about_other_columns() -> None:
    after = {**ORDER, "meta": {"region": "eu"}, "payload": {"kind": "k"}}
    assert one(after, topic=lambda row: "fixed")["routing_topic"] == "fixed"
    assert one(after, topic=lambda row: row["meta", "region"])["routing_topic"] == "eu"
    assert one(after, topic=lambda row: row["payload", "kind"])["routing_topic"] == "k"
    assert one(after, key=lambda row: row["meta"])["routing_key"] == '{"region":"eu"}'


def test_each_row_has_its_own_way() -> None:
    rows = [row({**ORDER, "topic": "a"}), row({"payload": 1, "topic": "b"}), row({"payload": 2})]
    result = run(*rows, topic=by_type, default_topic="d")
    assert result.routing.topic.to_pylist() == ["Order.OrderCreated", "b", "d"]
    assert result.routing.key.to_pylist() == ["42", None, None]
    assert [json.loads(h) for h in result.routing.headers.to_pylist()][1:] == [
        {"df-source-kind": "outbox"}
    ] * 2


def test_additional_header_with_a_name_of_our_own_comes_first() -> None:
    more = {"df-event-id": "uuid", "df-source-kind": "kind"}
    text = one({**ORDER, "uuid": "u", "kind": "k"}, additional_headers=more)["routing_headers"]
    assert text.count("df-event-id") == text.count("df-source-kind") == 1
    assert json.loads(text)["df-event-id"] == "u"
    assert json.loads(text)["df-source-kind"] == "k"
    without = headers(ORDER, additional_headers=more)
    assert (without["df-event-id"], without["df-source-kind"]) == ("1", "outbox")


def test_header_names_are_escaped() -> None:
    assert headers({**ORDER, "x": "1"}, additional_headers={'a"\n': "x"})['a"\n'] == "1"


def test_last_of_duplicate_keys_counts_and_keys_may_have_escapes() -> None:
    after = '{"payload":1, "aggregate_\\u0069d":"a","payload":[2 ],"aggregate_id" : "b"}'
    result = one(after)
    assert (result["after"], result["routing_key"]) == ("[2 ]", "b")
    assert one('{"payload":1,"\\u0061ggregate_id":"a"}')["routing_key"] == "a"


# --- payload ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ['{"a": 1.0, "b":[1 , 2]}', "[]", '"{\\"a\\":1}"', "1e5", "false", '""']
)
def test_payload_is_kept_to_the_byte(text: str) -> None:
    after = f'{{"aggregate_id":"1","payload" : {text} }}'
    assert one(after)["after"] == text
    result = run(row(after), raw_payload=True)
    assert raw_or(result, result.after.text).to_pylist() == [text]


def test_null_payload_is_a_message_without_a_body() -> None:
    result = run(row({**ORDER, "payload": None}), raw_payload=True)
    assert result.after.text.to_pylist() == [None]
    assert raw_or(result, debezium(result)).to_pylist() == ["null"]


def test_without_a_payload_column_the_rest_of_the_row_is_the_payload() -> None:
    after = (
        '{"id":1, "aggregate_type":"Order","aggregate_id":"42","event_type":"x","topic":"t", '
        '"total": 1.50, "a":{"id":2},"t\\u006fpic":"u"}'
    )
    assert one(after)["after"] == '{"total":1.50,"a":{"id":2}}'
    assert one('{"id":1}')["after"] == "{}"
    mixed = run(row(after), row(ORDER), row('{"x":1}')).after.text.to_pylist()
    assert mixed == ['{"total":1.50,"a":{"id":2}}', '{"total":99.99}', '{"x":1}']


def test_only_the_image_of_the_message_is_left() -> None:
    result = run(row(ORDER, before='{"id":0}'), plain())
    assert result.before.text.to_pylist() == [None, '{"id":0}']


@pytest.mark.parametrize(
    ("source", "rest"),
    [
        ('{"db":"d","schema":"__outbox","table":"t"}', '{"db":"d","table":"t"}'),
        ('{"schema":"__outbox","table":"t"}', '{"table":"t"}'),
        ('{"db":"d","schema":"__outbox"}', '{"db":"d"}'),
        ('{"schema":"__outbox"}', "{}"),
        ('{ "schema" : "__outbox" , "t" : 1.0 }', '{ "t" : 1.0 }'),
        ('{"db": 1, "schema": "__outbox", "t": 2}', '{"db": 1, "t": 2}'),
        ('{"db": 1, "schema": "__outbox"}', '{"db": 1}'),
        (
            '{"db":"\\"schema\\":\\"__outbox\\",","schema":"__outbox"}',
            '{"db":"\\"schema\\":\\"__outbox\\","}',
        ),
        ('{"db":"d","table":"t"}', '{"db":"d","table":"t"}'),
    ],
)
def test_mark_is_gone_from_column_and_source(source: str, rest: str) -> None:
    usual = row(ORDER)
    result = run(usual, row(ORDER, source=source), usual)
    assert result.source.schema.to_pylist() == [None] * 3
    unmarked = usual["source"].replace('"schema":"__outbox",', "")
    assert result.source.text.to_pylist() == [unmarked, rest, unmarked]


def test_columns_that_a_job_does_not_carry_are_not_missed() -> None:
    full = events(row(ORDER), plain())
    names = ["position", "tx_end", "op", "ts_ms", "schema", "after"]
    few = Events(full.batch.select(names), pipeline="shop")
    result = outbox(few, id="outbox", topic=by_type)
    assert result.after.text.to_pylist() == ['{"total":99.99}', '{"id": 1.00}']
    assert not result.has("source") and not result.has("before")


# --- which events ----------------------------------------------------------------------------


def test_other_events_pass_byte_for_byte_and_in_place() -> None:
    given = events(plain(), row(ORDER), plain(op="d", after=None), row(ORDER, op="u"), plain())
    given = given.with_columns(routing_topic=pa.array(["a", "b", None, "d", "e"]))
    given = given.with_columns(routing_raw_payload=pa.array([True, True, None, True, False]))
    result = outbox(given, id="outbox", topic=by_type)
    assert result.position.to_pylist() == [f"{n:016x}" for n in (1, 2, 3, 5)]
    assert result.tx_end.to_pylist() == [False, False, True, False]
    names = given.batch.schema.names
    others = pa.array([0, 2, 3])
    untouched = given.batch.take(pa.array([0, 2, 4]))
    assert result.batch.select(names).take(others).to_pylist() == untouched.to_pylist()
    assert result.routing.topic.to_pylist() == ["a", "Order.OrderCreated", None, "e"]
    # What an earlier processor decided about an outbox row is replaced as a whole.
    assert result.routing.raw_payload.to_pylist() == [True, None, None, False]


def test_events_without_outbox_rows_are_handed_on_as_they_are() -> None:
    given = events(plain(), plain(schema="public"), plain(schema="__wal_message"))
    assert outbox(given, id="outbox") is given
    assert outbox(given.slice(0, 0), id="outbox").batch.num_rows == 0


def test_what_is_no_insert_of_an_object_is_dropped_and_counted() -> None:
    given = events(
        row(ORDER, op="u"),
        row(None, op="d"),
        row(ORDER, op="r"),
        row(None),
        row("null"),
        row("[1]"),
        row('"text"'),
        row("1"),
        row(" " + dumped(ORDER)),
        plain(op="u"),
    )
    result = outbox(given, id="events", topic=by_type)
    assert result.routing.topic.to_pylist() == ["Order.OrderCreated", None]
    assert given.ledger.counts == {
        ("events", "non_insert"): 3,
        ("events", "null_payload"): 2,
        ("events", "non_object"): 3,
    }


def test_when_everything_is_dropped_nothing_is_left() -> None:
    given = events(row(ORDER, op="u"), row(None))
    assert len(outbox(given, id="outbox")) == 0


def test_events_that_come_again_count_once() -> None:
    ledger = Ledger(counted=f"{2:016x}")
    outbox(events(*[row(ORDER, op="u")] * 3, ledger=ledger), id="outbox")
    assert ledger.counts == {("outbox", "non_insert"): 1}


@pytest.mark.parametrize(
    ("pattern", "table", "taken"),
    [
        ("orders_outbox", "orders_outbox", True),
        ("orders_outbox", "payments_outbox", False),
        ("*_outbox", "payments_outbox", True),
        ("shop.outbox", "outbox", True),
        ("other.outbox", "outbox", False),
        ("__outbox.outbox", "outbox", False),
        ("app.outbox", "app.outbox", True),
        ("outbox", "app.outbox", True),
        ("app.*", "app.outbox", True),
        ("web.outbox", "app.outbox", False),
    ],
)
def test_tables_are_matched_as_everywhere(pattern: str, table: str, taken: bool) -> None:
    result = run(row(ORDER, table=table), row(ORDER, table="else"), tables=("nothing", pattern))
    assert result.source.schema.to_pylist() == [None if taken else "__outbox", "__outbox"]


def test_two_outboxes_in_one_pipeline() -> None:
    payment = {"event_type": "Paid", "aggregate_id": 7, "data": {"sum": 3}}
    given = events(
        row(payment, table="payments_outbox"),
        plain(),
        row(ORDER, table="orders_outbox"),
        row(payment, table="audit_outbox"),
        row(payment, table="payments_outbox", op="d"),
    )
    between = outbox(
        given,
        id="outbox",
        tables=("orders_outbox",),
        topic=lambda row: join("orders.", row["event_type"]),
        raw_payload=True,
    )
    result = outbox(
        between,
        id="outbox-2",
        tables=("payments_outbox",),
        topic=lambda row: join("payments.", row["event_type"]),
        columns={"payload": "data"},
    )
    assert result.routing.topic.to_pylist() == ["payments.Paid", None, "orders.OrderCreated", None]
    assert result.routing.raw_payload.to_pylist() == [None, None, True, None]
    assert result.after.text.to_pylist()[0] == '{"sum":3}'
    assert result.after.text.to_pylist()[2:] == ['{"total":99.99}', dumped(payment)]
    assert result.source.schema.to_pylist() == [None, None, None, "__outbox"]
    assert given.ledger.counts == {("outbox-2", "non_insert"): 1}


# --- strict ----------------------------------------------------------------------------------


def test_strict_names_the_first_event_that_lacks_something_and_all_that_it_lacks() -> None:
    good = row({**ORDER, "topic": "t"})
    bad = row({"aggregate_id": "1", "event_type": {"a": 1}, "payload": None, "topic": "t"})
    worse = row({})
    with pytest.raises(ProcessorError) as failed:
        run(plain(), good, bad, worse, strict=True)
    assert str(failed.value) == (
        "outbox `outbox`: event dfid:v1:2: missing payload, aggregate_type, event_type"
    )
    with pytest.raises(ProcessorError, match="event dfid:v1:0: missing topic, payload, aggr"):
        run(worse, good, strict=True)


def test_strict_error_says_which_column_was_looked_for() -> None:
    with pytest.raises(ProcessorError, match=r"missing payload \(column `data`\)$"):
        run(row(ORDER), strict=True, default_topic="d", columns={"payload": "data"})
    with pytest.raises(ProcessorError, match=r"missing topic$"):
        run(row(ORDER), strict=True, columns={"topic": "destination"})


def test_strict_lets_whole_messages_and_other_events_pass() -> None:
    rows = [row(ORDER), plain(), row({}, op="u"), row({**ORDER, "aggregate_id": 0})]
    result = run(*rows, strict=True, topic=by_type)
    assert result.routing.key.to_pylist() == ["42", None, "0"]


# --- against a naive reading, one row at a time ----------------------------------------------


class Members(list[tuple[str, Any]]):
    """An object as written: keys may come twice."""


class Raw(str):
    """JSON text that goes into a document as it is."""


COLUMNS = ["payload", "aggregate_type", "aggregate_id", "event_type", "topic", "id", "x", "ä", ""]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["", '\n\t"\\/\b\f\r\0', "é😀", "}{][,:", "null", "__outbox"]
)
NUMBERS = st.sampled_from(["1.0", "-0", "1e5", "18446744073709551615", "0.10"]).map(Raw)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS | st.just(Raw('"\\ud800x"')),
    lambda inner: st.lists(inner, max_size=3)
    | st.lists(st.tuples(TEXTS, inner), max_size=3).map(Members),
    max_leaves=6,
)
OBJECTS = st.lists(st.tuples(st.sampled_from(COLUMNS), VALUES), max_size=9).map(Members)
GAPS = st.sampled_from(["", "", " ", "\n\t "])


def written(value: Any, ascii_only: bool, gap: str) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Members):
        members = [
            f"{json.dumps(key, ensure_ascii=ascii_only)}{gap}:{gap}{written(v, ascii_only, gap)}"
            for key, v in value
        ]
        return "{" + gap + f"{gap},{gap}".join(members) + gap + "}"
    if isinstance(value, list):
        return f"[{gap}{f'{gap},'.join(written(v, ascii_only, gap) for v in value)}{gap}]"
    return json.dumps(value, ensure_ascii=ascii_only)


@st.composite
def marked_rows(draw: Any) -> tuple[str, dict[str, Any], dict[str, str], str]:
    """A row as text, as values, as texts of its members, and the text of what is not mapped."""
    members_, ascii_only, gap = draw(OBJECTS), draw(st.booleans()), draw(GAPS)
    text = written(members_, ascii_only, gap)
    pieces = {key: written(value, ascii_only, gap) for key, value in members_}
    rest = ",".join(
        f"{json.dumps(key, ensure_ascii=ascii_only)}:{written(value, ascii_only, gap)}"
        for key, value in members_
        if key not in COLUMNS[:6]
    )
    return gap + text, json.loads(text), pieces, f"{{{rest}}}"


def as_text(value: Any, piece: str | None) -> str | None:
    if piece is None or value is None or isinstance(value, dict | list):
        return None
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value)
    return piece


def naive(values: dict[str, Any], pieces: dict[str, str], rest: str) -> dict[str, Any]:
    texts = {name: as_text(values.get(name), pieces.get(name)) for name in COLUMNS}
    kind, event = texts["aggregate_type"], texts["event_type"]
    parts = [pieces.get(name) for name in ("aggregate_type", "event_type")]
    whole = [
        part if texts[name] is None else texts[name]
        for name, part in zip(("aggregate_type", "event_type"), parts, strict=True)
        if part not in (None, "null")
    ]
    named = {
        "df-event-id": texts["id"],
        "df-aggregate-type": kind,
        "df-aggregate-id": texts["aggregate_id"],
        "df-event-type": event,
        "x-ä": texts["ä"],
        "x-empty": texts[""],
        "df-source-kind": "outbox",
    }
    payload = pieces.get("payload", rest)
    return {
        "after": None if payload == "null" else payload,
        "routing_topic": ".".join(whole) if len(whole) == 2 else texts["topic"] or "d",
        "routing_key": texts["aggregate_id"] or None,
        "routing_headers": dumped({k: v for k, v in named.items() if v is not None}),
    }


def checked(rows: list[tuple[str, dict[str, Any], dict[str, str], str]]) -> None:
    result = run(
        *(row(text) for text, *_ in rows),
        topic=by_type,
        default_topic="d",
        additional_headers={"x-ä": "ä", "x-empty": ""},
    )
    result.batch.validate(full=True)
    for got, (_, values, pieces, rest) in zip(result.batch.to_pylist(), rows, strict=True):
        expected = naive(values, pieces, rest)
        assert {name: got[name] for name in expected} == expected


def ways() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    return {
        "python": (members.find_python, members.without_python),
        "plain": (members.find_buffers, members.without_buffers),
        "compiled": (
            lambda t, n: members.find_buffers(t, n, jitted(members.SPLIT), jitted(members.GATHER)),
            lambda t, n: members.without_buffers(t, n, jitted(members.SPLIT)),
        ),
    }


@pytest.mark.parametrize("way", ["python", "plain", "compiled"])
def test_outbox_agrees_with_a_naive_reading(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find, without = ways()[way]
    module = import_module("dfc_runtime.processors.outbox")
    monkeypatch.setattr(module, "find", lambda t, names: find(t, tuple(dict.fromkeys(names))))
    monkeypatch.setattr(module, "without", without)
    if way == "compiled":
        for kernel in (jsontext.KERNEL, members.WRITE, members.CUT):
            monkeypatch.setattr(kernel, "seen", 10**9)

    @given(st.lists(marked_rows(), min_size=1, max_size=6))
    @settings(max_examples=150, deadline=None)
    def check(rows: list[tuple[str, dict[str, Any], dict[str, str], str]]) -> None:
        checked(rows)

    check()
