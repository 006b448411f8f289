from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.columns import (
    cloudevents,
    debezium,
    first,
    idempotency_key,
    join,
    native,
    raw_or,
    rfc3339,
    table_key,
)
from dfc_runtime.errors import DfcError
from dfc_runtime.events import EVENT_COLUMNS, MADE_COLUMNS, Events, ddl_schema

ROW: dict[str, Any] = {
    "position": "01",
    "tx_end": True,
    "op": "c",
    "ts_ms": 1_767_000_000_123,
    "db": "shop",
    "schema": None,
    "table": "orders",
    "primary_key": '{"id":7}',
    "before": None,
    "after": '{"id":7,"price":1.00}',
    "source": '{"connector":"turso","name":"p","lsn":"0/1"}',
    "transaction": '{"id":"9"}',
    "tx_id": "9",
    "event_id": "dfid:v1:tsrow:00",
    "schema_version": None,
    "schema_sequence": None,
    "ddl": None,
}


def events(*rows: dict[str, Any], tenant: str | None = "acme", **made: Any) -> Events:
    full = [{**ROW, **row} for row in rows or ({},)]
    arrays = {
        name: pa.array([row[name] for row in full], kind) for name, kind in EVENT_COLUMNS.items()
    }
    arrays |= {name: pa.array(values, MADE_COLUMNS[name]) for name, values in made.items()}
    return Events(pa.record_batch(arrays), pipeline="p", tenant=tenant)


def test_native_has_the_documented_order_and_leaves_out_what_is_not_there() -> None:
    assert native(events()).to_pylist() == [
        '{"before":null,"after":{"id":7,"price":1.00},'
        '"source":{"connector":"turso","name":"p","lsn":"0/1"},"op":"c","ts_ms":1767000000123,'
        '"transaction":{"id":"9"},"event_id":"dfid:v1:tsrow:00","tenant_id":"acme","tx_end":true}'
    ]


def test_native_with_every_field() -> None:
    row = {"schema_version": "sha256:0", "schema_sequence": 3, "ddl": '{"sql":"x"}', "before": "{}"}
    made = {"trace_id": ["t"], "tags": ['["a"]'], "synthetic": ["js"]}
    value = json.loads(native(events(row, **made))[0].as_py())
    assert list(value) == [
        "before", "after", "source", "op", "ts_ms", "transaction", "event_id", "tenant_id",
        "schema_version", "schema_sequence", "ddl", "trace_id", "tags", "synthetic", "tx_end",
    ]  # fmt: skip


def test_mixed_nulls_are_told_apart_row_by_row() -> None:
    e = events(
        {"transaction": None, "after": None, "before": '{"id":7}', "op": "d", "tx_end": False},
        {"event_id": None, "schema_sequence": 5},
        {"ddl": '{"sql":"a"}', "tx_end": None, "schema_version": "v"},
        tenant=None,
    )
    made = [json.loads(text) for text in native(e).to_pylist()]
    assert [("transaction" in m, "event_id" in m, "ddl" in m, "tx_end" in m) for m in made] == [
        (False, True, False, False),
        (True, False, False, True),
        (True, True, True, False),
    ]
    assert made[0]["after"] is None and made[0]["before"] == {"id": 7}
    assert made[1]["schema_sequence"] == 5 and "schema_sequence" not in made[0]
    assert all("tenant_id" not in m for m in made)


def test_strings_that_go_into_json_are_escaped() -> None:
    e = events({"event_id": 'a"\\\n'}, tenant='te"nant')
    value = json.loads(native(e)[0].as_py())
    assert value["event_id"] == 'a"\\\n' and value["tenant_id"] == 'te"nant'
    odd = events({"db": 'd"b', "table": "t\\1"})
    cloud = json.loads(cloudevents(odd, 'pre"fix')[0].as_py())
    assert cloud["subject"] == 'd"b.t\\1' and cloud["type"] == 'pre"fix.created'


def test_debezium_wraps_native() -> None:
    value = json.loads(debezium(events())[0].as_py())
    assert list(value) == ["schema", "payload"] and value["schema"] is None
    assert value["payload"] == json.loads(native(events())[0].as_py())


def test_cloudevents_as_documented() -> None:
    assert cloudevents(events(), "com.acme")[0].as_py() == (
        '{"specversion":"1.0","id":"dfid:v1:tsrow:00","source":"deltaforge/p/shop.orders",'
        '"type":"com.acme.created","time":"2025-12-29T09:20:00.123Z",'
        '"datacontenttype":"application/json","subject":"shop.orders",'
        '"data":{"after":{"id":7,"price":1.00},"op":"c"}}'
    )


def test_cloudevents_use_the_schema_and_omit_null_images() -> None:
    e = events(
        {"schema": "public", "op": "d", "before": "{}", "after": None},
        {"op": "u", "before": '{"id":1}', "event_id": None},
        {"op": "t"},
        {"op": "r"},
    )
    made = [json.loads(text) for text in cloudevents(e, "x").to_pylist()]
    assert [m["subject"] for m in made] == ["public.orders"] + ["shop.orders"] * 3
    assert [m["type"] for m in made] == ["x.deleted", "x.updated", "x.truncated", "x.snapshot"]
    assert [list(m["data"]) for m in made[:2]] == [["before", "op"], ["before", "after", "op"]]
    assert len(made[1]["id"]) == 36 and made[1]["id"][14] == "7"


def test_times() -> None:
    texts = rfc3339(pa.array([0, 1_700_000_000_001, -1, 0])).to_pylist()
    assert texts == [
        "1970-01-01T00:00:00.000Z",
        "2023-11-14T22:13:20.001Z",
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00.000Z",
    ]


def test_join() -> None:
    e = events({}, {"after": "{}"})
    assert join("a", "b") == "ab"
    assert join("x.", e.source.table).to_pylist() == ["x.orders", "x.orders"]
    assert join(e.ts_ms, "/", e.after["id"]).to_pylist() == ["1767000000123/7", None]
    assert join("k", e.after["id"], missing="").to_pylist() == ["k7", "k"]
    assert join("a", None) is None
    assert join("a", None, missing="-") == "a-"
    assert join(e.after, e.tx_end).to_pylist()[1] == "{}true"
    assert join("a", e.source.schema) is None


def test_first_takes_neither_null_nor_empty() -> None:
    a, b = pa.array(["x", "", None]), pa.array(["1", "2", "3"])
    assert first(a, b).to_pylist() == ["x", "2", "3"]
    assert first(a, "z").to_pylist() == ["x", "z", "z"]
    assert first(pa.nulls(3, pa.string()), b).equals(b)
    assert first(a, None).to_pylist() == ["x", None, None]
    assert first(pa.nulls(1, pa.string()), "s") == "s"


def test_keys() -> None:
    e = events({}, {"primary_key": None, "tx_id": None, "event_id": None})
    assert table_key(e).to_pylist() == ['{"id":7}', "shop.orders"]
    assert idempotency_key(e).to_pylist() == [
        "acme|shop.orders|9|dfid:v1:tsrow:00",
        "acme|shop.orders||_",
    ]
    assert idempotency_key(events(tenant=None))[0].as_py().startswith("_|")


def test_raw_payload_is_after_alone() -> None:
    e = events({}, {}, {"after": None}, routing_raw_payload=[True, None, True])
    value = native(e)
    assert raw_or(e, value).to_pylist() == ['{"id":7,"price":1.00}', value[1].as_py(), "null"]
    assert raw_or(events(), value) is value


def test_no_events_make_no_values() -> None:
    none = events().slice(0, 0)
    for column in (native(none), debezium(none), cloudevents(none, "x"), table_key(none)):
        assert column.to_pylist() == []
    assert join("a", none.source.table).to_pylist() == []


def test_columns_that_the_source_never_fills_may_be_left_out() -> None:
    e = events({"transaction": None, "tx_id": None})
    few = Events(
        e.batch.select(
            [
                "position",
                "tx_end",
                "op",
                "ts_ms",
                "db",
                "table",
                "before",
                "after",
                "source",
                "event_id",
            ]
        ),
        pipeline="p",
        tenant="acme",
    )
    assert native(few).equals(native(e))
    assert cloudevents(few, "x").equals(cloudevents(e, "x"))
    assert idempotency_key(few).equals(idempotency_key(e))


def test_column_that_is_not_carried_is_named() -> None:
    batch = events().batch.select(["position", "op"])
    e = Events(batch, pipeline="p")
    with pytest.raises(DfcError, match="`after`"):
        _ = e.after
    with pytest.raises(DfcError, match="`table`"):
        _ = e.source.table


def test_events() -> None:
    e = events({"op": "c"}, {"op": "d"}, {"op": "u"})
    mask = pa.array([True, None, True])
    assert e.where(mask, pa.array([True, True, False])).op.to_pylist() == ["c"]
    assert e.where() is e
    changed = e.with_columns(after='{"x":1}', routing_topic=pa.array(["t", None, "u"]))
    assert changed.after["x"].to_pylist() == ["1", "1", "1"]
    assert changed.routing.topic.to_pylist() == ["t", None, "u"]
    assert e.routing.topic.null_count == 3 and e.routing.raw_payload.null_count == 3
    assert e.source["lsn"].to_pylist() == ["0/1"] * 3
    assert changed.tenant == "acme" and changed.replaced == {"after", "routing_topic"}
    with pytest.raises(DfcError, match="nonsense"):
        e.with_columns(nonsense="")


def test_schema_text_is_in_canonical_order() -> None:
    assert ddl_schema(["ts_ms", "position", "tx_end"]) == (
        "`position` string, `tx_end` boolean, `ts_ms` bigint"
    )
    with pytest.raises(DfcError, match="nope"):
        ddl_schema(["nope"])
