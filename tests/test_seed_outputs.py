"""The outputs that DeltaForge's documents show, typed in, against what the compiled examples give.

What `dfc test --update` writes is what comes out. Here stands what must come out, so that no update
can make a wrong output right.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from dfc_runtime.replay import Case, Replay, load_job, replay

from .goldens import GOLDEN
from .specs import CONSOLE, KAFKA, MYSQL, POSTGRES, TURSO, Json, Result, having, spec

TS = 1_700_000_000_000
# What every event has beside the fields that the documents show.
MORE = ("event_id", "tenant_id", "tx_end")


def run(job: str, name: str, *events: Json) -> dict[str, list[Message]]:
    case = Case("x.yaml", "x.test", name, "acme", job, journal=False, named=True)
    made = Replay()
    lines = "".join(f"{e if isinstance(e, str) else json.dumps(e)}\n" for e in events)
    replay(load_job(name, job), case, lines, made)
    assert "dead-letters.jsonl" not in made.files
    return {
        path.removeprefix("expected/").removesuffix(".jsonl"): [Message(line) for line in messages]
        for path, messages in made.files.items()
    }


def sent(example: str, *events: Json) -> dict[str, list[Message]]:
    """What each sink of an example gets from these events."""
    folder = GOLDEN / "examples" / example
    name = json.loads((folder / "plan.json").read_text("utf-8"))["name"]
    return run((folder / "job.py").read_text("utf-8"), name, *events)


def only(by_sink: dict[str, list[Message]]) -> list[Message]:
    (messages,) = by_sink.values()
    return messages


class Message:
    def __init__(self, line: str) -> None:
        self.line = line
        parts = json.loads(line)
        self.to, self.key = parts.get("to"), parts.get("key")
        self.headers, self.value = parts.get("headers"), parts["value"]


def row(table: str, after: Json, op: str = "c", **more: Json) -> Json:
    return {"op": op, "table": table, "ts_ms": TS, "after": after, **more}


def shown(event: Json, *source: str) -> Json:
    """An event without what the documents leave out; of its source, the fields they show."""
    kept = {name: value for name, value in event.items() if name not in MORE}
    place = kept.pop("source")
    return {**kept, "source": {name: place[name] for name in source}} if source else kept


# --- scripts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "sink", "wrapped"),
    [
        ("mysql-to-redis", "orders-redis", False),
        ("mysql-to-redis-sensing", "orders-redis", False),
        ("mysql-to-redis-debezium", "orders-redis", True),
        ("mysql-to-redis-and-kafka", "orders-redis", False),
        ("mysql-to-redis-and-kafka", "orders-kafka", True),
    ],
)
def test_redacted_email(example: str, sink: str, wrapped: bool) -> None:
    order = {"id": 1, "email": "alice@example.com", "total": 99.99, "status": "pending"}
    (message,) = sent(example, row("shop.orders", order))[sink]
    assert message.to == "orders"
    assert not wrapped or message.value["schema"] is None
    assert shown(message.value["payload"] if wrapped else message.value) == {
        "before": None,
        "after": {"id": 1, "email": "[redacted]", "total": 99.99, "status": "pending"},
        "op": "c",
        "ts_ms": TS,
    }


def test_filtered_and_masked() -> None:
    alice = {"customer_email": "alice@example.com", "total": 99.99, "status": "pending"}
    kept = only(
        sent(
            "event-filtering",
            row("shop.orders", alice),
            row("shop.orders", {**alice, "customer_email": "test@test.local"}),
            row("shop.orders", {**alice, "deleted_at": "2025-01-15T10:30:00Z"}),
            row("shop.audit_log", {"level": "info", "message": "User logged in"}),
            row("shop.audit_log", {"level": "error", "message": "Payment failed"}),
        )
    )
    assert [message.to for message in kept] == ["orders.filtered"] * 2
    assert [message.value["after"] for message in kept] == [
        {**alice, "customer_email": "a***e@example.com"},
        {"level": "error", "message": "Payment failed"},
    ]
    assert [message.value["tags"] for message in kept] == [["filtered"]] * 2


def test_filtered_by_the_usual_names_of_columns() -> None:
    kept = only(
        sent(
            "event-filtering",
            row("shop.orders", {"email": "bob@test.local"}),
            row("shop.orders", {"email": "bob@example.com", "phone": "123", "deleted_at": None}),
            row("shop.orders", {"email": "nobody"}),
        )
    )
    assert [message.value["after"] for message in kept] == [
        {"email": "b***b@example.com", "phone": "[redacted]", "deleted_at": None},
        {"email": "[invalid-email]"},
    ]


@pytest.mark.parametrize("example", ["fan-out", "fan-out-all-or-nothing", "fan-out-quorum"])
def test_one_event_in_three_envelopes(example: str) -> None:
    line = f'{{"op":"c","table":"shop.orders","ts_ms":{TS},"after":'
    line += '{"id":1,"total":1500.00,"status":"pending"}}'
    by_sink = sent(example, line)
    order = {"id": 1, "total": 1500.00, "status": "pending"}
    event = {
        "before": None,
        "after": order,
        "source": {"connector": "mysql", "db": "shop", "table": "orders"},
        "op": "c",
        "ts_ms": TS,
        "tags": ["entity:order", "priority:high", "enriched"],
    }
    (kafka,), (redis,), (nats,) = (
        by_sink[sink] for sink in ("warehouse-kafka", "cache-redis", "serverless-nats")
    )
    assert (kafka.to, redis.to, nats.to) == ("orders.cdc", "orders:cache", "orders.events")
    assert list(kafka.value) == ["schema", "payload"] and kafka.value["schema"] is None
    assert shown(kafka.value["payload"], "connector", "db", "table") == event
    assert shown(redis.value, "connector", "db", "table") == event
    cloud = nats.value
    assert cloud["specversion"] == "1.0" and cloud["type"] == "com.acme.orders.created"
    assert cloud["source"].split("/")[::2] == ["deltaforge", "shop.orders"]
    assert cloud["time"] == "2023-11-14T22:13:20.000Z"
    assert {"before": None, **cloud["data"]} == {"before": None, "after": order, "op": "c"}
    assert all('"total":1500.00,' in message.line for message in (kafka, redis, nats))


def test_tags_of_the_fan_out() -> None:
    by_sink = sent(
        "fan-out",
        row("shop.orders", {"id": 1, "total": 1000}),
        row("shop.order_items", {"id": 1, "total": 5000}),
        row("shop.orders", None, "d", before={"id": 1, "total": 5000}),
    )
    assert [message.value["tags"] for message in by_sink["cache-redis"]] == [
        ["entity:order", "enriched"],
        ["enriched"],
        ["entity:order", "enriched"],
    ]


def test_tags_of_the_first_pipelines() -> None:
    (one,) = only(sent("mysql-to-kafka", row("shop.orders", {"id": 1})))
    assert one.to == "orders" and one.value["payload"]["tags"] == ["normalized"]
    (one,) = only(sent("mysql-to-kafka-per-event", row("shop.orders", {"id": 1})))
    assert one.to == "orders" and one.value["tags"] == ["processed"]


def test_analytics() -> None:
    order = {"id": 98765, "customer_id": 12345, "total": 299.99}
    order |= {"status": "pending", "channel": "mobile", "item_count": 3}
    by_sink = sent("analytics", {**row("shop.orders", order), "ts_ms": 1_705_487_400_000})
    (kafka,), (redis,) = by_sink["analytics-kafka"], by_sink["realtime-redis"]
    assert (kafka.to, redis.to) == ("analytics.events", "analytics:realtime")
    assert kafka.value == redis.value
    assert shown(kafka.value, "connector", "db", "table") == {
        "before": None,
        "after": {
            **order,
            "_analytics": {
                "event_type": "orders.created",
                "dimensions": {
                    "hour_of_day": 10,
                    "day_of_week": 3,
                    "customer_id": 12345,
                    "status": "pending",
                    "channel": "mobile",
                },
                "metrics": {"event_count": 1, "order_total": 299.99, "item_count": 3},
            },
        },
        "source": {"connector": "mysql", "db": "shop", "table": "orders"},
        "op": "c",
        "ts_ms": 1_705_487_400_000,
        "tags": ["orders", "c", "status:pending"],
    }


def test_analytics_of_the_other_tables_and_high_values() -> None:
    by_sink = sent(
        "analytics",
        row("shop.orders", {"id": 1, "total": 500.5, "status": "paid"}, "u", before={"id": 1}),
        row("shop.order_items", {"order_id": 1, "product_id": 7, "line_total": "59.98"}),
        row("shop.payments", {"order_id": 1, "method": "card", "amount": "500.50"}, "r"),
        row("shop.cart_events", None, "d", before={"id": 4}),
    )
    found = [message.value for message in by_sink["analytics-kafka"]]
    assert [event["tags"] for event in found] == [
        ["orders", "u", "high_value", "status:paid"],
        ["order_items", "c"],
        ["payments", "r"],
        ["cart_events", "d"],
    ]
    assert found[3]["after"] is None and found[3]["before"] == {"id": 4}
    made = [event["after"]["_analytics"] for event in found[:3]]
    assert [one["event_type"] for one in made] == [
        "orders.updated",
        "order_items.created",
        "payments.snapshot",
    ]
    assert [one["metrics"] for one in made] == [
        {"event_count": 1, "order_total": 500.5, "item_count": 0},
        {"event_count": 1, "quantity": 1, "line_total": 59.98},
        {"event_count": 1, "payment_amount": 500.5},
    ]
    when = {"hour_of_day": 22, "day_of_week": 2}
    assert [one["dimensions"] for one in made] == [
        {**when, "status": "paid", "channel": "web"},  # and no customer, as the row has none
        {**when, "order_id": 1, "product_id": 7},
        {**when, "order_id": 1, "payment_method": "card"},
    ]


def test_audit_trail() -> None:
    old = {"id": 42, "email": "alice@old-domain.com", "name": "Alice Smith", "password_hash": "x"}
    new = {**old, "email": "alice@new-domain.com"}
    event = {**row("app.public.users", new, "u", before=old), "ts_ms": 1_705_312_200_000}
    (message,) = only(sent("audit-trail", event))
    hidden = {"password_hash": "[REDACTED]", "_password_hash_redacted": True}
    assert message.to == "audit.trail.events"
    assert shown(message.value["payload"], "db", "schema", "table") == {
        "before": {**old, **hidden},
        "after": {**new, **hidden},
        "source": {"db": "app", "schema": "public", "table": "users"},
        "op": "u",
        "ts_ms": 1_705_312_200_000,
        "tags": [
            "audited",
            "sensitivity:HIGH",
            "classification:PII",
            "retention:2190d",
            "regulation:GDPR",
            "regulation:CCPA",
            "changed:email",
        ],
    }
    assert list(message.value["payload"]["after"])[-1] == "_password_hash_redacted"


@pytest.mark.parametrize(
    ("table", "level", "data", "days", "regulations", "hidden"),
    [
        ("users", "HIGH", "PII", 2190, ["GDPR", "CCPA"], ["password_hash", "ssn", "tax_id"]),
        ("user_profiles", "MEDIUM", "PII", 2190, ["GDPR", "CCPA"], ["date_of_birth"]),
        (
            "payment_methods", "HIGH", "PCI", 2555, ["PCI-DSS", "SOX"],
            ["card_number", "cvv", "account_number"],
        ),
        ("transactions", "HIGH", "PCI", 2555, ["PCI-DSS", "SOX"], []),
        ("user_roles", "MEDIUM", "INTERNAL", 1095, [], []),
        ("roles", "LOW", "INTERNAL", 1095, [], []),
    ],
)  # fmt: skip
def test_audit_of_each_table(
    table: str, level: str, data: str, days: int, regulations: list[str], hidden: list[str]
) -> None:
    secret = dict.fromkeys(hidden, "secret")
    event = row(f"app.public.{table}", {"id": 1, **secret, "note": "open"})
    (message,) = only(sent("audit-trail", event))
    assert message.value["payload"]["tags"] == [
        "audited",
        f"sensitivity:{level}",
        f"classification:{data}",
        f"retention:{days}d",
        *(f"regulation:{name}" for name in regulations),
    ]
    masked = dict.fromkeys(hidden, "[REDACTED]")
    marks = {f"_{name}_redacted": True for name in hidden}
    assert message.value["payload"]["after"] == {"id": 1, **masked, "note": "open", **marks}


@pytest.mark.parametrize(
    ("table", "op", "before", "after", "keys", "strategy"),
    [
        (
            "users", "u", {"id": 1, "email": "alice@example.com"},
            {"id": 1, "email": "alice.new@example.com"},
            [
                "user:1", "user:email:alice.new@example.com", "user:email:alice@example.com",
                "user:1:orders", "user:1:profile",
            ],
            "batched",
        ),
        (
            "products", "c", None, {"id": 7, "category_id": 3},
            ["product:7", "product:7:details", "category:3:products"], "batched",
        ),
        ("orders", "c", None, {"id": 9, "user_id": 1}, ["order:9", "user:1:orders"], "batched"),
        (
            "inventory", "u", {"id": 70, "product_id": 7}, {"id": 70, "product_id": 7},
            ["inventory:7", "product:7:stock"], "immediate",
        ),
        ("orders", "d", {"id": 9, "user_id": 1}, None, ["order:9", "user:1:orders"], "immediate"),
    ],
    ids=["users", "products", "orders", "inventory", "deleted"],
)  # fmt: skip
def test_cache_keys(
    table: str, op: str, before: Json, after: Json, keys: list[str], strategy: str
) -> None:
    (message,) = only(sent("cache-invalidation", row(f"app.{table}", after, op, before=before)))
    made = {"_cache_keys": keys, "_invalidation_strategy": strategy}
    assert message.to == "cache:invalidations"
    assert message.value["after"] == (after and {**after, **made})
    assert message.value["before"] == (before if after else {**before, **made})
    tags = ["cache:invalidate", f"strategy:{strategy}", f"keys:{len(keys)}"]
    assert message.value["tags"] == tags


def test_turso_rows() -> None:
    user = {"id": 1, "name": "Alice", "email": "alice@example.com"}
    user["metadata"] = '{"role": "admin", "tags": ["vip"]}'
    event = {**row("users", user), "ts_ms": 1_736_937_000_000}
    (message,) = only(sent("turso-to-kafka", event))
    assert message.to == "turso.changes"
    assert message.value["after"] == {**user, "processed_at": "2025-01-15T10:30:00.000Z"}
    assert message.value["tenant_id"] == "acme" and message.value["source"]["table"] == "users"


# --- what the documents say of scripts in general --------------------------------------------


def scripted(script: str, source: Json, *events: Json) -> list[Message]:
    processor = {"type": "javascript", "id": "js", "inline": script}
    result = Result(spec(CONSOLE, source=source, processors=[processor]))
    return only(run(result.job, "orders", *events))


@pytest.mark.parametrize(
    ("source", "table", "named"),
    [(MYSQL, "shop.orders", "shop.orders"), (POSTGRES, "public.users", "public.users")],
    ids=["mysql", "postgres"],
)
def test_scripts_see_the_qualified_table_and_the_time(source: Json, table: str, named: str) -> None:
    script = "function processBatch(es) { es.forEach(see); return es; }\n"
    script += "function see(e) { e.tags = [e.table, e.table.split('.')[1], String(e.timestamp)]; }"
    (message,) = scripted(script, source, row(table, {"id": 1}))
    assert message.value["tags"] == [named, named.split(".")[1], str(TS)]


def test_only_fields_of_events_leave_a_script() -> None:
    script = "function processBatch(es) { for (const e of es) { e.source_type = 'x'; e.audit = {};"
    script += " e.after.kept = true; } return es; }"
    (message,) = scripted(script, TURSO, row("orders", {"id": 1}))
    assert not {"source_type", "audit"} & set(message.value)
    assert message.value["after"] == {"id": 1, "kept": True}


def test_an_empty_list_drops_all_and_copies_multiply() -> None:
    events = [row("orders", {"id": n}) for n in (1, 2)]
    assert scripted("function processBatch() { return []; }", TURSO, *events) == []
    script = "function processBatch(es) { return es.flatMap((e) => [e, { ...e }]); }"
    twice = scripted(script, TURSO, *events)
    assert [message.value["after"]["id"] for message in twice] == [1, 1, 2, 2]


# --- routing ---------------------------------------------------------------------------------


def test_the_smart_router() -> None:
    orders = [
        {"id": n, "customer_id": 42, "total_amount": amount}
        for n, amount in enumerate((15000, 10000, 99.5), 1)
    ]
    made = only(sent("javascript-routing", *(row("shop.orders", order) for order in orders)))
    assert [(message.to, message.key, message.headers) for message in made] == [
        ("orders.priority", "42", {"x-tier": "high-value", "x-amount": "15000"}),
        ("orders.standard", "42", None),
        ("orders.standard", "42", None),
    ]
    assert [message.value["after"] for message in made] == orders


def test_routes_by_templates() -> None:
    by_sink = sent("dynamic-routing", row("shop.orders", {"id": 7, "customer_id": "cust-abc"}))
    assert {sink: (m.to, m.key) for sink, (m,) in by_sink.items()} == {
        "kafka-routed": ("cdc.shop.orders", "cust-abc"),
        "redis-routed": ("events:orders", "7"),
        "nats-routed": ("cdc.shop.orders", "7"),
    }
    assert by_sink["kafka-routed"][0].value["payload"]["op"] == "c"


def test_a_key_that_is_missing_is_empty() -> None:
    by_sink = sent("dynamic-routing", row("shop.orders", None, "d", before={"id": 7}))
    assert {message.key for (message,) in by_sink.values()} == {""}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("${source.table}", "orders"),
        ("${source.db}", "shop"),
        ("${source.connector}", "mysql"),
        ("${op}", "u"),
        ("${after.customer_id}", "cust-abc"),
        ("${before.customer_id}", "old-value"),
        ("${tenant_id}", "acme"),
    ],
)
def test_every_variable_of_templates(template: str, text: str) -> None:
    result = Result(spec(having(KAFKA, topic=f"t.{template}"), source=MYSQL))
    before, after = {"customer_id": "old-value"}, {"customer_id": "cust-abc"}
    (message,) = only(run(result.job, "orders", row("shop.orders", after, "u", before=before)))
    assert message.to == f"t.{text}"


# --- outbox ----------------------------------------------------------------------------------


def outbox_row(table: str, **columns: Json) -> Json:
    return row(table, columns)


def test_outbox_and_plain_changes_in_one_pipeline() -> None:
    order = {"id": 1, "customer": "alice", "total": 149.99, "status": "pending"}
    payload = {"customer": "alice", "total": 149.99, "status": "pending"}
    kind = {"aggregate_type": "Order", "aggregate_id": "1", "event_type": "OrderCreated"}
    change, made = only(
        sent(
            "outbox",
            row("shop.orders", order),
            outbox_row("shop.outbox", id=1, **kind, payload=payload),
        )
    )
    assert (made.to, made.key, made.value) == ("Order.OrderCreated", "1", payload)
    assert made.headers == {
        "df-event-id": "1",
        "df-aggregate-type": "Order",
        "df-aggregate-id": "1",
        "df-event-type": "OrderCreated",
        "df-source-kind": "outbox",
    }
    assert (change.to, change.headers) == ("cdc.shop.orders", None)
    assert shown(change.value["payload"], "connector", "db", "table") == {
        "before": None,
        "after": order,
        "source": {"connector": "mysql", "db": "shop", "table": "orders"},
        "op": "c",
        "ts_ms": TS,
    }


@pytest.mark.parametrize(
    ("columns", "to"),
    [
        ({"aggregate_type": "Order", "event_type": "OrderShipped"}, "Order.OrderShipped"),
        ({"aggregate_type": "Order", "topic": "orders.misc"}, "orders.misc"),
        ({"event_type": "OrderShipped"}, "events.unrouted"),
        ({}, "events.unrouted"),
    ],
    ids=["template", "column", "default", "nothing"],
)
def test_the_topic_of_a_message(columns: Json, to: str) -> None:
    (made,) = only(sent("outbox", outbox_row("shop.outbox", id=1, **columns, payload={})))
    assert made.to == to


@pytest.mark.parametrize("op", ["u", "d", "r"])
def test_only_inserts_are_messages(op: str) -> None:
    """Of an outbox table nothing else may come out, not even as a plain change."""
    given = {"id": 1, "aggregate_type": "Order", "payload": {}}
    assert only(sent("outbox", row("shop.outbox", given, op, before=given))) == []


def test_outbox_over_the_log_of_postgres() -> None:
    payload = {"customer": "alice", "total": 149.99}
    kind = {"aggregate_type": "Order", "aggregate_id": "1", "event_type": "OrderCreated"}
    change, made = only(
        sent(
            "outbox-postgres-wal",
            row("public.orders", {"id": 42, "total": 99.99}),
            outbox_row("outbox", **kind, payload=payload),
        )
    )
    assert (made.to, made.key, made.value) == ("Order.OrderCreated", "1", payload)
    assert made.headers["df-aggregate-id"] == "1" and "df-event-id" not in made.headers
    assert change.to == "events.fallback" and change.value["after"] == {"id": 42, "total": 99.99}


def test_two_outboxes() -> None:
    orders, payments = only(
        sent(
            "outbox-multi-channel",
            outbox_row("shop.orders_outbox", id=1, event_type="OrderCreated", payload={"a": 1}),
            outbox_row("shop.payments_outbox", id=2, event_type="PaymentReceived", data={"b": 2}),
        )
    )
    assert (orders.to, orders.value) == ("orders.OrderCreated", {"a": 1})
    assert (payments.to, payments.value) == ("payments.PaymentReceived", {"b": 2})


def test_tracing_headers() -> None:
    kind = {"aggregate_type": "Order", "aggregate_id": "42", "event_type": "OrderCreated"}
    ids = {"trace_id": "abc-123", "correlation_id": "req-456"}
    (made,) = only(
        sent(
            "outbox-tracing-headers",
            outbox_row("shop.outbox", id=1, **kind, payload={"total": 99.99}, **ids),
        )
    )
    assert (made.to, made.key, made.value) == ("Order.OrderCreated", "42", {"total": 99.99})
    extra = {name: text for name, text in made.headers.items() if name.startswith("x-")}
    assert extra == {"x-trace-id": "abc-123", "x-correlation-id": "req-456"}


@pytest.mark.parametrize(
    ("value", "header"),
    [("abc-123", "abc-123"), (42, "42"), (True, "true"), (None, None), ({}, None), ([], None)],
    ids=str,
)
def test_headers_are_texts(value: Any, header: str | None) -> None:
    event = outbox_row("shop.outbox", id=1, payload={}, trace_id=value)
    (made,) = only(sent("outbox-tracing-headers", event))
    assert made.headers.get("x-trace-id") == header


def test_an_outbox_laid_out_for_debezium() -> None:
    kind = {"aggregatetype": "Order", "aggregateid": "42", "type": "OrderCreated"}
    event = outbox_row(
        "shop.outbox_events",
        id="9d57", **kind, payload={"total": 99.99}, traceid="abc-123", tenant="north",
    )  # fmt: skip
    (made,) = only(sent("outbox-from-debezium", event))
    assert (made.to, made.key, made.value) == ("Order.OrderCreated", "42", {"total": 99.99})
    assert made.headers == {
        "df-event-id": "9d57",
        "df-aggregate-type": "Order",
        "df-aggregate-id": "42",
        "df-event-type": "OrderCreated",
        "x-trace-id": "abc-123",
        "x-tenant": "north",
        "df-source-kind": "outbox",
    }


# --- flatten ---------------------------------------------------------------------------------

NESTED = {
    "order_id": "abc",
    "customer": {"id": 1, "address": {"city": "Berlin", "zip": "10115"}},
    "tags": ["vip"],
    "meta": {},
}
FLAT = {
    "order_id": "abc",
    "customer__id": 1,
    "customer__address__city": "Berlin",
    "customer__address__zip": "10115",
    "tags": ["vip"],
    "meta": {},
}


def flattened(nested: Json, sink: Json = CONSOLE, **settings: Json) -> Json:
    processor = {"type": "flatten", "id": "flat", **settings}
    result = Result(spec(sink, source=MYSQL, processors=[processor]))
    (made,) = only(run(result.job, "orders", row("shop.orders", nested)))
    return made.value


SHOWN = {"separator": "__", "max_depth": 3, "on_collision": "last"}
SHOWN |= {"empty_object": "preserve", "lists": "preserve", "empty_list": "drop"}


@pytest.mark.parametrize("settings", [{}, SHOWN], ids=["defaults", "shown"])
def test_flat_rows(settings: Json) -> None:
    after = flattened(NESTED, **settings)["after"]
    assert after == FLAT and list(after) == list(FLAT)


def test_flat_rows_in_every_envelope() -> None:
    def enveloped(**envelope: str) -> Json:
        return flattened(NESTED, having(CONSOLE, envelope=envelope))

    assert shown(enveloped(type="native")) == {
        "before": None, "after": FLAT, "op": "c", "ts_ms": TS,
    }  # fmt: skip
    assert enveloped(type="debezium")["payload"]["after"] == FLAT
    cloud = enveloped(type="cloudevents", type_prefix="com.acme")
    assert cloud["specversion"] == "1.0" and cloud["data"]["after"] == FLAT


def test_flat_rows_for_column_stores() -> None:
    (made,) = only(sent("flatten", row("shop.orders", {**NESTED, "lines": []})))
    columns = {name: value for name, value in FLAT.items() if name not in ("tags", "meta")}
    assert made.value["after"] == {**columns, "tags__0": "vip"}


def test_depth_collisions_and_empty_values() -> None:
    geo = {"lat": 52.5, "lng": 13.4}
    deep = {"customer": {"address": {"geo": geo}}}
    assert flattened(deep, max_depth=2)["after"] == {"customer__address__geo": geo}
    twice = {"a__b": 1, "a": {"b": 2}}
    assert flattened(twice)["after"] == {"a__b": 2}
    assert flattened(twice, on_collision="first")["after"] == {"a__b": 1}
    with pytest.raises(Exception, match="a__b"):
        flattened(twice, on_collision="error")
    empty = {"o": {}, "l": []}
    assert flattened(empty)["after"] == empty
    nothing = {"o": None, "l": None}
    assert flattened(empty, empty_object="null", empty_list="null")["after"] == nothing
    assert flattened(empty, empty_object="drop", empty_list="drop")["after"] == {}


def test_flat_payloads_of_an_outbox() -> None:
    kind = {"aggregate_type": "Order", "aggregate_id": "1", "event_type": "OrderCreated"}
    event = outbox_row("shop.outbox", id=1, **kind, payload={**NESTED, "lines": []})
    (made,) = only(sent("outbox-flatten", event))
    assert (made.to, made.value) == ("Order.OrderCreated", FLAT)


# --- envelopes -------------------------------------------------------------------------------


def test_envelopes_side_by_side() -> None:
    alice = {"id": 1, "name": "Alice", "email": "alice@example.com"}
    by_sink = sent("multi-format", row("shop.orders", alice))
    event = {"before": None, "after": alice, "op": "c", "ts_ms": TS}
    (native,), (wrapped,), (cloud,) = (
        by_sink[sink] for sink in ("cache-redis", "connect-sink", "lambda-sink")
    )
    assert shown(native.value) == event
    place = native.value["source"]
    assert (place["connector"], place["db"], place["table"]) == ("mysql", "shop", "orders")
    assert (place["file"], place["ts_ms"]) == ("mysql-bin.000001", TS)
    assert list(wrapped.value) == ["schema", "payload"] and wrapped.value["schema"] is None
    assert shown(wrapped.value["payload"]) == event
    assert list(cloud.value) == [
        "specversion", "id", "source", "type", "time", "datacontenttype", "subject", "data",
    ]  # fmt: skip
    assert cloud.value["datacontenttype"] == "application/json"
    assert cloud.value["subject"] == "shop.orders"


@pytest.mark.parametrize(
    ("op", "suffix"),
    [
        ("c", "created"),
        ("u", "updated"),
        ("d", "deleted"),
        ("r", "snapshot"),
        ("t", "truncated"),
    ],
)
def test_types_of_cloudevents(op: str, suffix: str) -> None:
    (cloud,) = sent("multi-format", row("shop.orders", None, op))["lambda-sink"]
    assert cloud.value["type"] == f"com.acme.cdc.{suffix}"


@pytest.mark.parametrize("example", ["postgres-to-nats", "postgres-to-nats-from-latest"])
def test_cloudevents_of_users(example: str) -> None:
    alice = {"id": 1, "name": "Alice", "email": "alice@example.com"}
    alice["created_at"] = "2025-01-15T10:30:00.000Z"
    event = {**row("public.users", alice), "ts_ms": 1_736_937_000_000}
    (made,) = only(sent(example, event))
    value = dict(made.value)
    assert made.to == "users.events"
    assert value.pop("id").startswith("dfid:v1:")
    # The documents have the source's id in the middle, dfc the pipeline's name, as `source.name`.
    assert value.pop("source") == f"deltaforge/users-{example}/public.users"
    # They show `"before": null` too; dfc leaves images out that are not there.
    assert value.pop("data") == {"after": alice, "op": "c"}
    assert value == {
        "specversion": "1.0",
        "type": "com.acme.users.created",
        "time": "2025-01-15T10:30:00.000Z",
        "datacontenttype": "application/json",
        "subject": "public.users",
    }
