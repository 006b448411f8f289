"""Scripts: what they may do with events, what they may cost, and what they can never reach.

Every test runs on both engines, in the process that a worker would start for them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.batch import Batch
from dfc_runtime.errors import ConfigError, ProcessorError
from dfc_runtime.events import EVENT_COLUMNS, Events
from dfc_runtime.processors import Script, javascript
from dfc_runtime.processors.javascript import _Rate
from dfc_runtime.scripts import sandbox
from hypothesis import given, settings
from hypothesis import strategies as st

ENGINES = ("quickjs", "v8")
ROW = {"id": 1, "email": "ann@example.com", "total": 12.5}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True, scope="module")
def no_process_is_left() -> Iterator[None]:
    yield
    for one in sandbox._local.__dict__.pop("kept", {}).values():
        one.close()


def text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def events(*after: Any, before: Any = None, **columns: Any) -> Events:
    """Events with these rows behind the change; a text is taken as it is."""
    rows = len(after)
    made: dict[str, Any] = {
        "position": [f"{n:016x}" for n in range(rows)],
        "tx_end": [n % 2 == 1 for n in range(rows)],
        "op": ["c"] * rows,
        "ts_ms": [1_700_000_000_000 + n for n in range(rows)],
        "db": ["shop"] * rows,
        "table": ["orders"] * rows,
        "before": [text(before)] * rows,
        "after": [text(row) for row in after],
        "source": ['{"connector":"mysql","db":"shop","table":"orders"}'] * rows,
        "event_id": [f"dfid:v1:tsrow:{n:032x}" for n in range(rows)],
        "schema_version": ["sha256:0"] * rows,
    } | columns
    return Events(
        pa.record_batch({n: pa.array(v, EVENT_COLUMNS[n]) for n, v in made.items()}),
        pipeline="shop",
        tenant="acme",
    )


def run(engine: str, script: str, given: Events, **limits: Any) -> Events:
    # Generous where a test is not about limits: the machine may be busy with other things.
    chosen = {"cpu_ms": 5_000, "timeout_ms": 5_000, **limits}
    return javascript(given, Script("s", script, engine=engine, **chosen))


def afters(result: Events) -> list[str | None]:
    found: list[str | None] = result.after.text.to_pylist()
    return found


def numbers(result: Events) -> list[int]:
    return [int(position, 16) for position in result.position.to_pylist()]


# --- the contract ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ("function processBatch(events) { return events; }", [0, 1, 2]),
        ("function processBatch(events) {}", [0, 1, 2]),
        ("function processBatch(events) { return null; }", [0, 1, 2]),
        ("function processBatch(events) { events.pop(); }", [0, 1]),
        ("function processBatch(events) { return []; }", []),
        ("function processBatch(events) { return events[1]; }", [1]),
        ("function processBatch(events) { return [events[0], null, undefined]; }", [0]),
        ("var processBatch = events => events.slice(1)", [1, 2]),
        ("const processBatch = events => events.slice(1);", [1, 2]),
        ("globalThis.processBatch = function (events) { return [events[2]]; }", [2]),
        ("(event) => event", [0, 1, 2]),
        ("(event) => [event]", [0, 1, 2]),
        ("(event) => event.after.id > 1 ? event : null", [1, 2]),
        ("(event) => { if (event.after.id < 3) return event; }", [0, 1]),
        ("(event) => []", []),
        ("event => { event.tags = ['x']; return [event]; }\n// a remark", [0, 1, 2]),
        ("function keep(event) { return event.after.id != 2; }\nevent => keep(event) && [event] || null", [0, 2]),
        ("(function (event) { return event; })", [0, 1, 2]),
    ],
)  # fmt: skip
def test_what_a_script_returns_is_what_goes_on(engine: str, script: str, kept: list[int]) -> None:
    given = events({"id": 1}, {"id": 2}, {"id": 3})
    assert numbers(run(engine, script, given)) == kept


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("function processBatch(events) { return 5; }", "returned a number where events"),
        ("function processBatch(events) { return [events[0], 'x']; }", "a string among the events"),
        ("async function processBatch(events) { return events; }", "returned a promise"),
        ("function processBatch(events) { events[0].after = 5; }", "after must be an object or null"),
        ("function processBatch(events) { events[0].before = []; }", "before must be an object"),
        ("function processBatch(events) { events[0].tags = 'x'; }", "tags must be a list of texts"),
        ("function processBatch(events) { events[0].tags = [1]; }", "tags must be a list of texts"),
        ("function processBatch(events) { route(1, {}); }", "route: not an event"),
        ("function processBatch(events) { events[0].route(); }", r"route: expects \{topic"),
        ("function processBatch(events) { events[0].route({topic: {}}); }", "topic must be text"),
        ("function processBatch(events) { throw 'no'; }", "thrown: no"),
        ("function processBatch(events) { throw null; }", "thr(own:|ew) null"),
        ("function other() {}", r"it defines no processBatch\(events\)"),
        ("let processBatch = 5", r"it defines no processBatch\(events\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error_that_says_so(engine: str, script: str, reason: str) -> None:
    with pytest.raises(ProcessorError, match=rf"^script `s`, .*{reason}"):
        run(engine, script, events(ROW))


def test_an_event_is_its_json_with_table_and_timestamp(engine: str) -> None:
    """Keys in the order of the native form, absent ones left out, images always there."""
    script = "(event) => { console.log(Object.keys(event).join(), event); return event; }"
    given = events({"id": 1}, tx_end=[True], transaction=['{"id":"t1"}'])
    result = run(engine, script, given)
    keys, _, shown = result.ledger.lines[0]["says"].partition(" ")
    assert keys == (
        "before,after,source,op,ts_ms,transaction,event_id,tenant_id,schema_version,tx_end,"
        "table,timestamp,route"
    )
    assert json.loads(shown) == {
        "before": None,
        "after": {"id": 1},
        "source": {"connector": "mysql", "db": "shop", "table": "orders"},
        "op": "c",
        "ts_ms": 1_700_000_000_000,
        "transaction": {"id": "t1"},
        "event_id": "dfid:v1:tsrow:" + "0" * 32,
        "tenant_id": "acme",
        "schema_version": "sha256:0",
        "tx_end": True,
        "table": "shop.orders",
        "timestamp": 1_700_000_000_000,
    }
    assert result.batch.equals(given.batch), "what was only looked at is as it was"


@pytest.mark.parametrize(
    ("schema", "table"), [(None, "shop.orders"), ("public", "public.orders"), ("__outbox", "shop.orders")]
)  # fmt: skip
def test_table_has_the_schema_where_there_are_schemas(
    engine: str, schema: str | None, table: str
) -> None:
    script = "(event) => { event.after.table = event.table; return event; }"
    assert afters(run(engine, script, events({}, schema=[schema]))) == [f'{{"table":"{table}"}}']


def test_images_and_tags_change_and_nothing_else_does(engine: str) -> None:
    script = """
    function processBatch(events) {
      for (const event of events) {
        event.after.email = "[redacted]";
        event.before = null;
        event.tags = (event.tags || []).concat(["seen"]);
        event.processed_at = 5;
        event.op = "d";
        event.source.db = "elsewhere";
        delete event.ts_ms;
      }
    }"""
    given = events(ROW, ROW, before={"id": 1})
    result = run(engine, script, given)
    assert afters(result) == ['{"id":1,"email":"[redacted]","total":12.5}'] * 2
    assert result.before.text.to_pylist() == [None, None]
    assert result.tags.text.to_pylist() == ['["seen"]'] * 2
    for name in ("op", "ts_ms", "source", "event_id", "position", "tx_end"):
        assert result.column(name).equals(given.column(name)), name
    warned = {line["field"] for line in result.ledger.lines if line.get("once")}
    assert {"processed_at", "op", "source.db"} <= warned
    assert {"before", "after", "tags"}.isdisjoint(warned)


def test_one_script_after_the_other(engine: str) -> None:
    add = "(event) => { event.after.n = (event.after.n || 0) * 10 + %d; event.tags = (event.tags || []).concat('%s'); return event; }"
    one, two = (
        Script(f"s{n}", add % (n, "ab"[n - 1]), engine=engine, cpu_ms=5000, timeout_ms=5000)
        for n in (1, 2)
    )
    result = javascript(events({}), one, two)
    assert afters(result) == ['{"n":12}'] and result.tags.text.to_pylist() == ['["a","b"]']


def test_globals_last_from_batch_to_batch(engine: str) -> None:
    script = "let n = 0; (event) => { event.after = {n: ++n}; return event; }"
    assert afters(run(engine, script, events({}, {}))) == ['{"n":1}', '{"n":2}']
    assert afters(run(engine, script, events({}))) == ['{"n":3}']


def test_a_call_has_no_more_events_than_a_batch(engine: str) -> None:
    script = Script(
        "s",
        "function processBatch(events) { events[0].tags = [String(events.length)]; }",
        engine=engine,
        cpu_ms=5_000,
        timeout_ms=5_000,
    )
    given = events(*[{"id": n} for n in range(1_200)])

    def calls(batch: Batch | None) -> list[str]:
        tags = javascript(given, script, batch=batch).tags.text.to_pylist()
        return [json.loads(tag)[0] for tag in tags if tag]

    assert calls(None) == ["500", "500", "200"]
    assert calls(Batch(max_events=700)) == ["500", "500", "200"]
    assert calls(Batch(max_events=400)) == ["400"] * 3


# --- routing ---------------------------------------------------------------------------------


def routing(result: Events) -> list[tuple[Any, ...]]:
    names = ("topic", "key", "headers", "raw_payload")
    columns = [result.made(f"routing_{name}").to_pylist() for name in names]
    return list(zip(*columns, strict=True))


def test_routes_replace_and_do_not_merge(engine: str) -> None:
    script = """
    function processBatch(events) {
      const [a, b, c] = events;
      a.route({topic: "one", key: "k", headers: {x: "1", y: 2, gone: null}, raw_payload: true});
      a.route({topic: "two"});
      route(b, {key: 5n, headers: {"x-tier": "hübsch\\n"}});
      return [a, b, c];
    }"""
    given = events(ROW, ROW, ROW).with_columns(routing_topic="from before", routing_key="k0")
    assert routing(run(engine, script, given)) == [
        ("two", None, None, None),
        (None, "5", '{"x-tier":"hübsch\\n"}', None),
        ("from before", "k0", None, None),
    ]


def test_a_copy_takes_the_route_along_and_may_have_its_own(engine: str) -> None:
    script = """
    (event) => {
      event.route({topic: "main"});
      const same = {...event};
      const other = {...event};
      other.route({topic: "other"});
      return [event, same, other, {after: {id: 9}}];
    }"""
    result = run(engine, script, events(ROW))
    assert [row[0] for row in routing(result)] == ["main", "main", "other", None]


# --- events that a script makes --------------------------------------------------------------


def test_copies_and_new_events_get_ids_of_their_own(engine: str) -> None:
    script = """
    (event) => [
      {...event, after: {copy: 1}},
      event,
      {...event, after: {copy: 2}},
      {after: {fresh: true}},
    ]"""
    given = events({"id": 1}, {"id": 2}, tx_end=[True, True])
    result = run(engine, script, given)
    ids = result.event_id.to_pylist()
    own = given.event_id.to_pylist()
    assert [ids[1], ids[5]] == own, "the event itself keeps its id"
    assert len(set(ids)) == 8
    assert all(i.startswith("dfid:v1:syn:") for i in set(ids) - set(own))
    assert result.synthetic.to_pylist() == ["s", None, "s", "s"] * 2
    assert numbers(result) == [0] * 4 + [1] * 4, "each stands where its parent stands"
    assert result.tx_end.to_pylist() == [False, False, False, True] * 2
    assert afters(result)[:4] == ['{"copy":1}', '{"id":1}', '{"copy":2}', '{"fresh":true}']
    assert run(engine, script, given).event_id.to_pylist() == ids, "and the same on a replay"
    one_by_one = [run(engine, script, given.slice(n, n + 1)) for n in (0, 1)]
    assert [i for one in one_by_one for i in one.event_id.to_pylist()] == ids


def test_events_made_before_their_event_stay_with_it_however_batches_fall(engine: str) -> None:
    script = "function processBatch(events) { return events.flatMap(e => [{after: {of: e.after.id}}, e]); }"
    given = events(*[{"id": n} for n in range(4)])

    def made(*cuts: tuple[int, int]) -> dict[str, str | None]:
        parts = [run(engine, script, given.slice(*cut)) for cut in cuts]
        return {
            i: a
            for part in parts
            for i, a in zip(part.event_id.to_pylist(), afters(part), strict=True)
        }

    whole = made((0, 4))
    assert len(whole) == 8
    assert made((0, 2), (2, 4)) == whole == made((0, 1), (1, 4))
    assert numbers(run(engine, script, given)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_two_events_that_differ_never_share_an_id(engine: str) -> None:
    script = """
    function processBatch(events) {
      const out = [];
      for (const e of events) {
        if (e.after.id % 2) out.push({after: {audit: e.after.id}});
        out.push(e);
      }
      return out;
    }"""
    given = events(*[{"id": n} for n in range(6)])
    seen: dict[str, str | None] = {}
    for cuts in ([(0, 6)], [(0, 1), (1, 6)], [(0, 3), (3, 6)], [(n, n + 1) for n in range(6)]):
        for cut in cuts:
            part = run(engine, script, given.slice(*cut))
            for i, a in zip(part.event_id.to_pylist(), afters(part), strict=True):
                assert seen.setdefault(i, a) == a


def test_an_event_kept_from_an_earlier_batch_is_still_itself(engine: str) -> None:
    script = """
    let kept = null;
    function processBatch(events) {
      const out = kept ? [...events, kept] : events.slice();
      kept = events[events.length - 1];
      return out;
    }"""
    first, second = events({"id": 1}, {"id": 2}), events({"id": 7})
    assert afters(run(engine, script, first)) == ['{"id":1}', '{"id":2}']
    result = run(engine, script, second)
    assert afters(result) == ['{"id":7}', '{"id":2}']
    assert result.synthetic.to_pylist() == [None, "s"] and numbers(result) == [0, 0]


def test_copies_of_events_without_ids_stay_apart(engine: str) -> None:
    script = "function processBatch(events) { return events.map(e => ({...e, tags: ['x']})); }"
    for ids in ([None] * 3, ["a", "a", "b"]):
        given = events({"id": 1}, {"id": 2}, {"id": 3}, event_id=ids)
        result = run(engine, script, given)
        assert numbers(result) == [0, 1, 2] and result.event_id.to_pylist() == ids
        assert result.synthetic.null_count == 3


def test_an_id_of_the_scripts_own_makes_a_new_event(engine: str) -> None:
    result = run(engine, "(event) => ({event_id: 'mine', after: {n: 1}})", events(ROW))
    assert result.synthetic.to_pylist() == ["s"]
    assert result.event_id.to_pylist()[0].startswith("dfid:v1:syn:")
    assert [line["field"] for line in result.ledger.lines] == ["event_id"]


def test_a_failed_call_leaves_no_trace_in_the_next(engine: str) -> None:
    script = """
    function processBatch(events) {
      return events.flatMap(e => {
        const clone = JSON.parse(JSON.stringify(e));
        return e.after.id === 2 ? [clone, 5] : [clone];
      });
    }"""
    run(engine, script, events({"id": 1}, {"id": 2}, {"id": 3}), on_error="skip")
    given = events({"id": 7}, {"id": 8}, {"id": 9}, event_id=["x", "y", "z"])
    result = run(engine, script, given, on_error="skip")
    assert numbers(result) == [0, 1, 2] and result.event_id.to_pylist() == ["x", "y", "z"]


def test_a_copy_in_place_of_its_event_is_that_event(engine: str) -> None:
    script = "function processBatch(events) { return events.map(e => ({...e, after: {n: 1}})); }"
    given = events(ROW, ROW)
    result = run(engine, script, given)
    assert result.event_id.equals(given.event_id)
    assert result.synthetic.null_count == 2
    assert not result.ledger.lines, "a copy of an event holds nothing strange"


def test_new_events_of_a_batch_follow_the_event_before_them(engine: str) -> None:
    script = (
        "function processBatch(events) { return [{after: {a: 1}}, ...events, {after: {b: 2}}]; }"
    )
    result = run(engine, script, events({"id": 1}, {"id": 2}))
    assert numbers(result) == [0, 0, 1, 1]
    assert result.tx_end.to_pylist() == [False, False, False, True]
    assert result.synthetic.to_pylist() == ["s", None, None, "s"]


def test_the_same_text_in_two_scripts_makes_two_kinds_of_events(engine: str) -> None:
    text = "(event) => event.synthetic ? event : [event, {...event}]"
    one, two = (Script(i, text, engine=engine, cpu_ms=5_000, timeout_ms=5_000) for i in "ab")
    result = javascript(events(ROW), one, two)
    assert len(set(result.event_id.to_pylist())) == 3
    assert result.synthetic.to_pylist() == [None, "b", "a"]


# --- exactness -------------------------------------------------------------------------------

ODD_ROWS = [
    '{"id":9007199254740993,"x":1}',
    '{"id":-9223372036854775808,"x":1}',
    '{"id":18446744073709551615,"deep":{"list":[9007199254740993,{"y":12345678901234567890}]},"x":1}',
    '{"price":1.00,"rate":1e5,"tiny":1E-7,"zero":-0,"long":0.1000000000000000055511151231257827,"x":1}',
    '{"10":"ten","2":"two","b":1,"a":2,"x":1}',
    '{"a":{"10":1.0,"2":2},"x":1}',
    '{"doc":{"k":1,"k":2},"x":1}',
    '{ "spaced" : [ 1 , 2.0 ] , "x" : 1 }',
    '{"e":"\\u00e9\\/","lone":"\\ud800","pair":"\\ud83d\\ude00","x":1}',
    '{"__proto__":{"polluted":true},"constructor":1,"toString":"t","hasOwnProperty":2,"x":1}',
    '{"toJSON":"data","get":1,"valueOf":null,"length":7,"x":1}',
    '{"":"empty key","ü":"日本語 😀 \u2028","x":1}',
    '{"big":123456789012345678901234567890.5,"x":1}',
    '{"inf":1e999,"x":1}',
]


@pytest.mark.parametrize("row", ODD_ROWS)
def test_what_a_script_does_not_touch_leaves_byte_for_byte(engine: str, row: str) -> None:
    given = events(row, before=row)
    for script in (
        "(event) => event",
        "(event) => { event.tags = ['t']; return event; }",
        "(event) => { const all = JSON.stringify(Object.keys(event.after)); return event; }",
        "(event) => { let n = 0; for (const k in event.after) n += String(event.after[k]).length; return event; }",
        "(event) => { event.after.x = 1; return event; }",
        "(event) => ({...event})",
    ):
        assert afters(run(engine, script, given)) == [row], script


@pytest.mark.parametrize("row", ODD_ROWS)
def test_what_a_script_changes_leaves_the_rest_byte_for_byte(engine: str, row: str) -> None:
    compact = row.replace(" ", "") if "spaced" in row else row
    expected = compact[: -len('"x":1}')] + '"x":"new"}'
    given = events(row)
    for script in (
        "(event) => { event.after.x = 'new'; return event; }",
        # A copy of the row is not the row, but the values in it are.
        "(event) => { event.after = {...event.after, x: 'new'}; return event; }",
        "(event) => ({...event, after: {...event.after, x: 'new'}})",
    ):
        (got,) = afters(run(engine, script, given))
        assert got is not None
        if "spaced" in row:  # the spaces between members are nobody's value
            assert got.replace(" ", "") == expected.replace(" ", "")
        elif "spread" not in script or "__proto__" not in row:
            assert got == expected, script


def test_a_nested_change_leaves_its_neighbours_alone(engine: str) -> None:
    row = '{"a":{"n":1.0,"big":9007199254740993,"20":1,"3":2},"b":[1.0,{"z":2.50}],"x":1e2}'
    script = "(event) => { event.after.a.n2 = 1; event.after.b.push(7); delete event.after.a.n; return event; }"
    assert afters(run(engine, script, events(row))) == [
        '{"a":{"big":9007199254740993,"20":1,"3":2,"n2":1},"b":[1.0,{"z":2.50},7],"x":1e2}'
    ]


def test_a_wide_integer_is_read_as_a_bigint(engine: str) -> None:
    script = """
    (event) => {
      const {id} = event.after;
      event.after = {kind: typeof id, text: String(id), next: id + 1n, odd: id % 2n === 1n, id};
      return event;
    }"""
    assert afters(run(engine, script, events('{"id":9007199254740993}'))) == [
        '{"kind":"bigint","text":"9007199254740993","next":9007199254740994,"odd":true,'
        '"id":9007199254740993}'
    ]


def test_a_script_may_print_a_wide_integer_itself(engine: str) -> None:
    script = "(event) => { event.after.copy = JSON.stringify(event.after); return event; }"
    assert afters(run(engine, script, events('{"id":9007199254740993}'))) == [
        '{"id":9007199254740993,"copy":"{\\"id\\":\\"9007199254740993\\"}"}'
    ]


def test_values_of_the_language_become_json_as_ever(engine: str) -> None:
    script = """
    (event) => {
      event.after = {d: new Date(0), n: NaN, u: undefined, f() {}, list: [undefined, 1n], b: 2n ** 64n,
                     s: "\\ud800", t: {toJSON() { return "own"; }}};
      return event;
    }"""
    assert afters(run(engine, script, events(ROW))) == [
        '{"d":"1970-01-01T00:00:00.000Z","n":null,"list":[null,1],"b":18446744073709551616,'
        '"s":"\\ud800","t":"own"}'
    ]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=4) | st.sampled_from(["1", "02", "10", "__proto__"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.dictionaries(st.text(max_size=4), json_values, max_size=5), min_size=1, max_size=8), ascii=st.booleans(), spaced=st.booleans())  # fmt: skip
def test_any_row_survives_a_look_and_a_new_field(
    rows: list[dict[str, Any]], ascii: bool, spaced: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    texts = [
        json.dumps(row, ensure_ascii=ascii, separators=separators)
        .encode("utf-16", "surrogatepass")
        .decode("utf-16", "replace")
        for row in rows
    ]
    look = "(event) => { Object.entries(event.after); return event; }"
    change = "(event) => { event.after['added by us'] = 1; return event; }"
    for engine in ENGINES:
        assert afters(run(engine, look, events(*texts))) == texts
        changed = afters(run(engine, change, events(*texts)))
        for old, new in zip(texts, changed, strict=True):
            assert new is not None
            whole = json.loads(new)
            assert whole.pop("added by us") == 1
            assert json.dumps(whole) == json.dumps(json.loads(old)), "values and the order of keys"


def test_rows_that_move_keep_their_text(engine: str) -> None:
    script = "(event) => { event.after = {now: event.after, was: event.before, n: [event.before]}; return event; }"
    odd = '{"id":1,"p":1.00,"10":5,"9":1}'
    assert afters(run(engine, script, events('{"id":2}', before=odd))) == [
        f'{{"now":{{"id":2}},"was":{odd},"n":[{odd}]}}'
    ]


@pytest.mark.parametrize("image", ['"text"', "[1,2.0]", "5", '["\\u00e9"]'])
def test_an_image_that_is_no_object_passes_when_it_is_left_alone(engine: str, image: str) -> None:
    """An outbox may have a text as its payload."""
    for script in (
        "(event) => { if (event.after) event.tags = ['x']; return event; }",
        "(event) => { console.log(event); return event; }",
        "(event) => ({...event})",
    ):
        assert afters(run(engine, script, events(image))) == [image]


def test_wide_integers_of_the_source_are_read_whole(engine: str) -> None:
    script = "(event) => { event.after = {x: event.source.pos, y: event.schema_sequence}; return event; }"
    given = events({}, source=['{"pos":9007199254740993}'], schema_sequence=[2**60])
    assert afters(run(engine, script, given)) == ['{"x":9007199254740993,"y":1152921504606846976}']


# --- limits ----------------------------------------------------------------------------------

HOSTILE = {
    "endless loop": "function processBatch(events) { for (;;); }",
    "loop that catches": "function processBatch(events) { for (;;) { try { for (;;); } catch (e) {} } }",
    "loop in finally": "function processBatch(events) { try { for (;;); } finally { for (;;); } }",
    "regular expression": "function processBatch(events) { /^(a+)+$/.test('a'.repeat(40) + 'b'); }",
    "builtin": "function processBatch(events) { Array.prototype.includes.call({length: 2 ** 53 - 1}, 1); }",
    "sort": "function processBatch(events) { new Array(1e6).fill(0).sort(() => { for (;;); }); }",
    "getter": "function processBatch(events) { events[0].after = {get x() { for (;;); }}; }",
    "own error": "function processBatch(events) { throw {get message() { for (;;); }, toString() { for (;;); }}; }",
    "proxy": "function processBatch(events) { return new Proxy([], {get() { for (;;); }}); }",
    "generator": "function processBatch(events) { const g = (function* () { for (;;) yield 1; })(); return [...g]; }",
    "strings": "function processBatch(events) { let s = 'x'; for (;;) s += s; }",
    "array": "function processBatch(events) { const a = []; for (;;) a.push(new Array(1000).fill(a.length)); }",
    "typed array": "function processBatch(events) { const a = []; for (;;) a.push(new Uint8Array(1e7).fill(1)); }",
    "recursion": "function processBatch(events) { return processBatch(events) || processBatch(events); }",
    "deep text": "function processBatch(events) { JSON.parse('['.repeat(1e6)); }",
    "deep object": "function processBatch(events) { let o = {}; for (let i = 0; i < 1e6; i++) o = {o}; events[0].after = o; }",
    "cycle": "function processBatch(events) { const o = {}; o.o = o; events[0].after = o; }",
    "at the start": "for (;;);",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_script_is_stopped_and_the_worker_lives_on(engine: str, name: str) -> None:
    began = time.monotonic()
    limits = {"cpu_ms": 200, "timeout_ms": 200, "mem_mb": 32}
    with pytest.raises(ProcessorError, match=r"^script `s`, .+"):
        run(engine, HOSTILE[name], events(ROW), **limits)
    assert time.monotonic() - began < 60, "however slow the machine"
    fine = run(engine, "(event) => event", events(ROW))
    assert len(fine) == 1


def test_buffers_count_as_memory(engine: str) -> None:
    script = "const kept = []; (event) => { for (let i = 0; i < 8; i++) kept.push(new Uint8Array(1 << 26).fill(1)); return event; }"
    with pytest.raises(ProcessorError, match="memory"):
        run(engine, script, events(ROW))


def test_default_limits_do_for_ordinary_rows(engine: str) -> None:
    """Also for numbers that are written in another way than the language would, and for wide ones."""
    pad = "x" * 200
    rows = [
        f'{{"id":{n},"total":12.0,"wide":90071992547409930{n % 10},"nested":{{"a":[1.0,2]}},"pad":"{pad}"}}'
        for n in range(1_000)
    ]
    script = "(event) => { if (event.after.total > 0) event.after.seen = true; return event; }"
    result = javascript(events(*rows), Script("s", script, engine=engine))
    assert afters(result) == [row[:-1] + ',"seen":true}' for row in rows]


def test_time_runs_out_for_many_events_and_not_for_few(engine: str) -> None:
    script = """
    function processBatch(events) {
      for (const e of events) { let n = 0; for (let i = 0; i < 2e5; i++) n += i; e.tags = ["done"]; }
    }"""
    given = events(*[{"id": n} for n in range(64)])
    result = run(engine, script, given, cpu_ms=150, timeout_ms=1_000)
    assert set(result.tags.text.to_pylist()) == {'["done"]'} and numbers(result) == list(range(64))


def test_limits_are_named(engine: str) -> None:
    with pytest.raises(ProcessorError, match=r"stopped: it (used|took) more than 70 ms"):
        run(engine, HOSTILE["endless loop"], events(ROW), cpu_ms=70, timeout_ms=70)
    with pytest.raises(
        ProcessorError, match=r"stopped: it .*used more memory than `limits.mem_mb`"
    ):
        run(engine, HOSTILE["array"], events(ROW), mem_mb=16)


def test_the_smaller_of_the_two_times_counts(engine: str) -> None:
    """A script can wait for nothing, so either is reached by computing."""
    with pytest.raises(ProcessorError, match="more than 60 ms"):
        run(engine, HOSTILE["endless loop"], events(ROW), cpu_ms=30_000, timeout_ms=60)


def test_a_process_that_hangs_or_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script("s", "(event) => event", cpu_ms=5_000, timeout_ms=5_000)
    assert len(javascript(events(ROW), script)) == 1
    process = sandbox.sandbox_for(script)._process
    assert process is not None
    process.kill()
    with pytest.raises(ProcessorError, match="script `s`, its process was ended by signal 9"):
        javascript(events(ROW), script)
    assert len(javascript(events(ROW), script)) == 1, "the next batch has a new one"
    one = sandbox.sandbox_for(script)
    assert one._process is not None
    monkeypatch.setattr(sandbox, "_GRACE_SECS", 0.1)
    monkeypatch.setattr(sandbox, "_processor_time", lambda pid: time.monotonic() * 100)
    os.kill(one._process.pid, 19)  # SIGSTOP: it will never answer
    with pytest.raises(ProcessorError, match="did not end within 5000 ms"):
        javascript(events(ROW), script)
    assert len(javascript(events(ROW), script)) == 1


def test_a_script_ends_with_its_worker(tmp_path: Path) -> None:
    """Also one that computes, when the worker is killed and can tell it nothing."""
    import subprocess
    import sys

    program = (
        "import sys; from dfc_runtime.scripts.sandbox import Sandbox, Script\n"
        "one = Sandbox(Script('s', 'for (;;);', cpu_ms=60_000, timeout_ms=60_000))\n"
        "one._start(); one._send([b'0']); print(one._process.pid, flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert worker.stdout is not None
    script = int(worker.stdout.readline())
    time.sleep(0.3)
    worker.kill()
    worker.communicate()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{script}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{script}/stat").read_text().rpartition(") ")[2][:1]
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{script}").exists()


# --- errors and what becomes of their events -------------------------------------------------

PICKY = """function processBatch(events) {
  return events.map(event => {
    if (event.after.id % 7 === 3) {
      throw new RangeError("no " + event.after.id);
    }
    event.tags = ["fine"];
    return event;
  });
}"""


def test_an_error_names_script_line_and_event(engine: str) -> None:
    given = events(*[{"id": n} for n in range(40)])
    with pytest.raises(ProcessorError) as failed:
        run(engine, PICKY, given)
    assert str(failed.value) == (
        f"script `s`, line 4: RangeError: no 3; event {given.event_id[3].as_py()}"
    )
    single = "(event) => {\n  if (event.after.id === 30) return event.nothing.here;\n}"
    with pytest.raises(
        ProcessorError, match=rf"line 2: TypeError: .*; event {given.event_id[30]}$"
    ):
        run(engine, single, given)


def test_the_line_of_an_error_in_json_is_the_scripts(engine: str) -> None:
    script = "(event) => {\n  const text = '{oops';\n  return JSON.parse(text);\n}"
    with pytest.raises(ProcessorError, match=r"^script `s`, line 3: SyntaxError: "):
        run(engine, script, events(ROW))


def test_dead_letters_are_the_guilty_ones_and_no_others(engine: str) -> None:
    given = events(*[{"id": n} for n in range(40)])
    result = run(engine, PICKY, given, on_error="dlq")
    guilty = [n for n in range(40) if n % 7 == 3]
    assert numbers(result) == [n for n in range(40) if n not in guilty], "in order"
    assert set(result.tags.text.to_pylist()) == {'["fine"]'}
    dead = result.ledger.dead
    assert [int(letter.events.position[0].as_py(), 16) for letter in dead] == guilty
    assert (dead[0].where, dead[0].kind, dead[0].at_sink) == ("s", "script error", False)
    assert dead[0].error == f"script `s`, line 4: RangeError: no 3; event {given.event_id[3]}"
    assert afters(dead[0].events) == ['{"id":3}']


def test_skipped_events_go_on_as_they_came(engine: str) -> None:
    given = events(*[{"id": n} for n in range(20)])
    result = run(engine, PICKY, given, on_error="skip")
    assert numbers(result) == list(range(20))
    tags = result.tags.text.to_pylist()
    assert [n for n, tag in enumerate(tags) if tag is None] == [3, 10, 17]
    assert result.ledger.counts == {("s", "skipped"): 3}
    assert "no 10" in result.ledger.lines[1]["reason"]


def test_a_loop_for_one_event_costs_only_that_event(engine: str) -> None:
    script = "(event) => { if (event.after.id === 5) for (;;); event.after.ok = 1; return event; }"
    given = events(*[{"id": n} for n in range(8)])
    result = run(engine, script, given, on_error="dlq", cpu_ms=150, timeout_ms=150)
    assert numbers(result) == [0, 1, 2, 3, 4, 6, 7]
    assert "more than 150 ms" in result.ledger.dead[0].error


def test_events_that_fail_only_together_are_told_so(engine: str) -> None:
    script = "function processBatch(events) { if (events.length > 3) throw new Error('too many'); }"
    given = events(*[{"id": n} for n in range(8)])
    with pytest.raises(ProcessorError, match=r"too many; 8 events from dfid\S+ on, taken together"):
        run(engine, script, given)
    assert len(run(engine, script, given, on_error="dlq")) == 8


def test_a_script_that_never_gets_started_stops_the_pipeline(engine: str) -> None:
    for policy in ("fail", "dlq", "skip"):
        with pytest.raises(ProcessorError, match=r"^script `s`, stopped: it (used|took) more than"):
            run(engine, "for (;;);\n(event) => event", events(ROW, ROW), on_error=policy, cpu_ms=80, timeout_ms=80)  # fmt: skip


def test_an_engine_that_does_not_start_is_no_fault_of_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quickjs.py").write_text("raise ImportError('half installed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ProcessorError, match=r"its engine does not start: ImportError: half"):
        javascript(events(ROW), Script("unlucky", "(event) => event", on_error="dlq"))


def test_half_a_surrogate_pair_in_a_route_or_a_line_is_no_error(engine: str) -> None:
    script = "(event) => { console.log(event.after.n); event.route({topic: event.after.n}); return event; }"
    result = run(engine, script, events('{"n":"\\ud800x"}'), on_error="dlq")
    assert routing(result)[0][0] == "\ufffdx" and result.ledger.lines[0]["says"] == "\ufffdx"


def test_fields_set_in_vain_are_warned_of_within_reason(engine: str) -> None:
    script = "(event) => { event['f' + event.after.id] = 1; return event; }"
    result = run(engine, script, events(*[{"id": n} for n in range(200)]))
    assert len(result.ledger.lines) == 20


def test_a_script_that_cannot_start_blames_no_event(engine: str) -> None:
    for policy in ("fail", "dlq", "skip"):
        with pytest.raises(ProcessorError, match=r"^script `s`, line 2: SyntaxError: [^;]+'?;?'?$"):
            run(
                engine,
                "function processBatch(events) {\n  let x = ;\n}",
                events(ROW),
                on_error=policy,
            )
        with pytest.raises(ProcessorError, match=r"^script `s`, line 1: Error: early$"):
            run(engine, "throw new Error('early')", events(ROW), on_error=policy)


# --- no way out ------------------------------------------------------------------------------


LANGUAGE = """
    AggregateError Array ArrayBuffer AsyncDisposableStack BigInt BigInt64Array BigUint64Array
    Boolean DOMException DataView Date DisposableStack Error EvalError FinalizationRegistry
    Float16Array Float32Array Float64Array Function Infinity Int16Array Int32Array Int8Array
    InternalError Intl Iterator JSON Map Math NaN Number Object Promise Proxy RangeError
    ReferenceError Reflect RegExp Set String SuppressedError Symbol SyntaxError Temporal TypeError
    URIError Uint16Array Uint32Array Uint8Array Uint8ClampedArray WeakMap WeakRef WeakSet atob btoa
    console decodeURI decodeURIComponent encodeURI encodeURIComponent escape eval globalThis
    isFinite isNaN parseFloat parseInt performance queueMicrotask route undefined unescape
"""


def test_nothing_of_the_host_is_within_reach(engine: str) -> None:
    script = """
    const global = (0, eval)("this");
    const names = ["process", "require", "module", "std", "os", "print", "fetch", "XMLHttpRequest",
      "WebSocket", "Deno", "Bun", "Java", "java", "Packages", "importScripts", "load", "read", "open",
      "setTimeout", "setInterval", "Worker", "navigator", "WebAssembly", "SharedArrayBuffer",
      "Atomics", "dfc", "spark", "python", "__timer_manager", "scriptArgs", "gc", "window", "self"];
    const there = names.filter(name => typeof global[name] !== "undefined");
    (event) => {
      event.after = {
        there,
        own: Object.getOwnPropertyNames(global).filter(n => typeof global[n] !== "undefined"),
        through: [
          typeof Function("return this")().process,
          typeof console.log.constructor("return typeof process")(),
          typeof event.route.constructor("return this")().require,
        ],
        hidden: Object.getOwnPropertySymbols(event).length,
      };
      return event;
    }"""
    (got,) = afters(run(engine, script, events(ROW)))
    assert got is not None
    found = json.loads(got)
    assert found["there"] == []
    language = set(LANGUAGE.split())
    assert set(found["own"]) <= language
    assert (
        set(found["through"]) <= {"undefined", "string", "object"}
        and "function" not in found["through"]
    )
    assert found["hidden"] == 1, "by which a copy tells what it was copied from"


def test_imports_lead_nowhere(engine: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.js"
    secret.write_text("export default 'secret'; globalThis.leaked = 'secret';")
    for source in (f"import x from '{secret}';", f"import('{secret}');", "import * as std from 'std';", "import('os');"):  # fmt: skip
        script = (
            f"{source}\nfunction processBatch(events) {{ events[0].after = {{x: typeof leaked}}; }}"
        )
        try:
            assert afters(run(engine, script, events(ROW))) == ['{"x":"undefined"}']
        except ProcessorError as error:
            assert "secret'" not in str(error).replace(str(secret), "")


def test_the_process_has_neither_environment_nor_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    script = Script("confined", "(event) => event", cpu_ms=5_000, timeout_ms=5_000)
    assert len(javascript(events(ROW), script)) == 1
    process = sandbox.sandbox_for(script)._process
    assert process is not None
    place = Path(f"/proc/{process.pid}")
    assert b"hunter2" not in (place / "environ").read_bytes()
    assert os.readlink(place / "cwd") == "/"
    opened = {os.readlink(fd) for fd in (place / "fd").iterdir()}
    assert all(name.startswith(("pipe:", "/dev/null")) for name in opened), opened
    limits = (place / "limits").read_text()
    assert any(line.startswith("Max file size") and " 0 " in line for line in limits.splitlines())


def test_a_script_that_breaks_the_language_breaks_only_itself(engine: str) -> None:
    script = """
    JSON.parse = JSON.stringify = () => "pwned";
    Object.keys = Reflect.ownKeys = () => ["pwned"];
    Object.prototype.evil = 1;
    function processBatch(events) { events[0].after.n = 2; }"""
    assert afters(run(engine, script, events('{"n":1.0}'))) == ['{"n":2}']
    assert afters(run(engine, "(event) => event", events(ROW))) == [text(ROW)]


# --- deterministic ---------------------------------------------------------------------------

DICE = """
(event) => {
  event.after = {now: Date.now(), new: new Date().toISOString(), text: Date(), dice: Math.random(),
    more: Math.random(), day: new Date(0).getTime(), same: new Date() instanceof Date,
    own: new (class extends Date { one() { return 1; } })(0).one(),
    clocks: [typeof performance, typeof WeakRef, typeof Intl, typeof Temporal].join()};
  return event;
}"""


def test_a_deterministic_script_repeats_itself_however_batches_fall(engine: str) -> None:
    given = events({}, {}, {}, {})
    whole = run(engine, DICE, given, deterministic=True)
    again = run(engine, DICE, given, deterministic=True)
    parts = [run(engine, DICE, given.slice(n, n + 1), deterministic=True) for n in range(4)]
    assert afters(whole) == afters(again) == [one for part in parts for one in afters(part)]
    rows = [json.loads(row or "") for row in afters(whole)]
    assert [row["now"] for row in rows] == given.ts_ms.to_pylist()
    assert rows[0]["new"] == "2023-11-14T22:13:20.000Z" and rows[0]["text"].startswith("Tue Nov 14")
    assert len({row["dice"] for row in rows} | {row["more"] for row in rows}) == 8
    assert all(0 <= row["dice"] < 1 and row["same"] and row["day"] == 0 for row in rows)
    assert rows[0]["clocks"] == ",".join(["undefined"] * 4) and rows[0]["own"] == 1


def test_both_engines_throw_the_same_dice() -> None:
    given = events({}, {})
    one, two = (afters(run(name, DICE, given, deterministic=True)) for name in ENGINES)
    dice = [[json.loads(row or "")["dice"] for row in rows] for rows in (one, two)]
    assert dice[0] == dice[1]


def test_a_deterministic_batch_script_sees_one_event_at_a_time(engine: str) -> None:
    script = "function processBatch(events) { for (const e of events) e.after = {n: events.length, r: Math.random()}; }"
    given = events({}, {}, {})
    whole = afters(run(engine, script, given, deterministic=True))
    assert whole[2:] == afters(run(engine, script, given.slice(2, 3), deterministic=True))
    assert [json.loads(row or "")["n"] for row in whole] == [1, 1, 1]


# --- the log ---------------------------------------------------------------------------------


def test_console_goes_to_the_log_and_not_too_much_of_it(engine: str) -> None:
    script = """
    function processBatch(events) {
      console.log("plain", 1, {a: [1n]}, null, undefined, new TypeError("t"));
      console.warn("careful");
      console.error("x".repeat(10000));
      for (let i = 0; i < 100000; i++) console.log(i);
    }"""
    name = f"chatty-{engine}"
    result = javascript(
        events(ROW), Script(name, script, engine=engine, cpu_ms=5_000, timeout_ms=5_000)
    )
    lines = result.ledger.lines
    assert lines[0] == {
        "level": "info",
        "what": "script",
        "script": name,
        "says": 'plain 1 {"a":[1]} null undefined TypeError: t',
    }
    assert [lines[1]["level"], lines[1]["says"]] == ["warning", "careful"]
    assert lines[2]["level"] == "error" and len(lines[2]["says"]) == 2_000
    assert len(lines) == 20


def test_lines_a_second_are_limited_and_what_is_left_out_is_told() -> None:
    now = [0.0]
    rate = _Rate(lambda: now[0])
    assert [rate.allows() for _ in range(25)] == [True] * 20 + [False] * 5
    assert rate.told() == 0, "not while lines are still being left out"
    now[0] = 1.5
    assert rate.told() == 5
    assert rate.allows() and rate.told() == 0


# --- engines ---------------------------------------------------------------------------------


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sandbox.MODULES, "v8", ("no_such_module", "mini-racer"))
    with pytest.raises(ConfigError, match="`engine: v8` needs the package mini-racer"):
        sandbox.check_engine("v8")
    sandbox.check_engine("quickjs")
