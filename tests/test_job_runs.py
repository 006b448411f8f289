"""Every golden job's own code, run on fixture events: what each sink gets is right, to the key."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
from types import ModuleType
from typing import Any

import pytest
from dfc_runtime import Env, Messages
from dfc_runtime.events import Events

from .fixtures import fixture_events
from .goldens import CASES, Case

NATIVE_KEYS = [
    "before",
    "after",
    "source",
    "op",
    "ts_ms",
    "transaction",
    "event_id",
    "tenant_id",
    "schema_version",
    "schema_sequence",
    "ddl",
    "trace_id",
    "tags",
    "synthetic",
    "tx_end",
]
CLOUD_KEYS = ["specversion", "id", "source", "type", "time", "datacontenttype", "subject", "data"]
SUFFIX = {"c": "created", "u": "updated", "d": "deleted", "r": "snapshot", "t": "truncated"}

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def load(case: Case, outbox: bool = False) -> tuple[ModuleType, dict[str, Any], Events]:
    path = case.folder / "job.py"
    spec = importlib.util.spec_from_file_location(f"job_{case.name.replace('-', '_')}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plan = json.loads((case.folder / "plan.json").read_text("utf-8"))
    source = plan["source"]
    marked = source.get("outbox_tables") or source.get("outbox_prefixes") or ()
    events = fixture_events(
        source["kind"],
        module.COLUMNS,
        plan["name"],
        plan["tenant"],
        outbox=marked if outbox else (),
    )
    return module, plan, events


def environment(module: ModuleType) -> Env:
    return Env({name: f"value-of-{name.lower()}" for name in module.ENV})


def texts(messages: Messages, name: str, rows: int) -> list[Any]:
    values: list[Any] = messages.column(name, rows).to_pylist()
    return values


@by_name
def test_processors_run(case: Case) -> None:
    module, plan, events = load(case)
    kinds = {step["kind"] for one in plan["passes"] for step in one["steps"]}
    takes_env = "env" in inspect.signature(module.process).parameters
    rest = (environment(module),) if takes_env else ()
    result = module.process(events, *rest)
    assert isinstance(result, Events)
    if not kinds:
        assert result.batch.equals(events.batch)


@by_name
def test_sinks_get_their_envelope_for_every_event(case: Case) -> None:
    module, plan, events = load(case)
    sinks = module.sinks(environment(module))
    assert [s.id for s in sinks] == [s["id"] for s in plan["sinks"]]
    full = fixture_events(plan["source"]["kind"], "", plan["name"], plan["tenant"])
    rows = full.batch.to_pylist()
    for sink, planned in zip(sinks, plan["sinks"], strict=True):
        assert sink.required is planned["delivery"]["required"]
        messages = sink.messages(events)
        values = texts(messages, "value", len(events))
        envelope = planned["delivery"]["envelope"]
        for text, row in zip(values, rows, strict=True):
            value = json.loads(text)
            if envelope["type"] == "cloudevents":
                check_cloudevent(value, row, envelope["type_prefix"], plan["name"])
            else:
                if envelope["type"] == "debezium":
                    assert list(value) == ["schema", "payload"] and value["schema"] is None
                    value = value["payload"]
                check_native(value, text, row, plan["tenant"])


def check_native(value: dict[str, Any], text: str, row: dict[str, Any], tenant: str) -> None:
    assert list(value) == [k for k in NATIVE_KEYS if k in value], "key order"
    for name in ("before", "after", "source", "transaction", "ddl"):
        if row[name] is not None:
            assert f'"{name}":{row[name]}' in text, "images leave byte for byte as they came"
        elif name in ("before", "after"):
            assert value[name] is None
        else:
            assert name not in value
    assert (value["op"], value["ts_ms"]) == (row["op"], row["ts_ms"])
    assert value["event_id"] == row["event_id"]
    assert value["tenant_id"] == tenant
    assert ("tx_end" in value) is row["tx_end"]
    assert value.get("schema_sequence") == row["schema_sequence"]


def check_cloudevent(value: dict[str, Any], row: dict[str, Any], prefix: str, name: str) -> None:
    assert list(value) == CLOUD_KEYS
    table = f"{row['schema'] or row['db']}.{row['table']}"
    assert value["specversion"] == "1.0"
    assert value["id"] == row["event_id"]
    assert value["source"] == f"deltaforge/{name}/{table}"
    assert value["subject"] == table
    assert value["type"] == f"{prefix}.{SUFFIX[row['op']]}"
    assert value["time"].startswith("2023-11-14T22:13:20.") and value["time"].endswith("Z")
    images = [k for k in ("before", "after") if row[k] is not None]
    assert list(value["data"]) == [*images, "op"]


@by_name
def test_emitted_settings_are_those_of_the_plan(case: Case) -> None:
    """What a job leaves out must be the runtime's own default, or the plan is not what runs."""
    module, plan, _ = load(case)
    env = environment(module)
    wrong = []

    def compare(where: str, planned: dict[str, Any], made: object) -> None:
        for name, value in planned.items():
            if name in ("kind", "at", "delivery") or not hasattr(made, name):
                continue
            got = getattr(made, name)
            if isinstance(value, dict) and "template" not in value and not isinstance(got, dict):
                compare(f"{where}.{name}", value, got)
                continue
            if isinstance(value, str) and "${" in value and not where.startswith("source"):
                value = env.fill(value)
            if isinstance(value, dict):
                value = {k: env.fill(v) for k, v in value.items()}
            if name in ("path", "credentials_file") and value is not None:
                value = os.path.abspath(value)
            expected = tuple(value) if isinstance(value, list) else value
            if (got or None) != (expected or None):
                wrong.append(f"{where}.{name}: plan {expected!r}, job {got!r}")

    compare("source", plan["source"], module.SOURCE)
    compare("batch", plan["batch"], module.BATCH)
    for sink, planned in zip(module.sinks(env), plan["sinks"], strict=True):
        compare(f"sinks.{sink.id}", planned, sink)
        compare(f"sinks.{sink.id}.delivery", planned["delivery"], sink)
    assert not wrong


def routed(name: str) -> tuple[ModuleType, Events]:
    module, _, events = load(next(c for c in CASES if c.name == name))
    return module, events


def test_template_values_keep_their_text_and_missing_keys_are_empty() -> None:
    module, events = routed("template-in-topic-and-key")
    messages = module.to_events(events)
    assert texts(messages, "to", len(events))[0] == "cdc.shop.orders"
    assert texts(messages, "key", len(events))[:6] == ["7", "", "", "", "", ""]


def test_destination_with_a_missing_field_is_null_and_so_an_error_of_its_event() -> None:
    module, events = routed("template-nested-and-whole")
    assert texts(module.to_events(events), "to", 6)[:4] == [
        None,
        "x.public.new",
        None,
        "x.public.gone",
    ]
    key = texts(module.to_events(events), "key", 6)[0]
    assert key == "7-c-1700000000000-tx-0-0/16B6C50"


def test_kafka_default_key_is_the_primary_key_or_the_table() -> None:
    module, events = routed("defaults-mysql")
    keys = texts(module.to_events(events), "key", len(events))
    assert keys[0] == '{"id":1}'
    assert keys[2] == '{"id":9007199254740993}'
    assert keys[5] == "shop.orders"


def test_environment_takes_part_in_templates() -> None:
    module, events = routed("template-with-environment")
    (sink,) = module.sinks(Env({"TOPIC_PREFIX": "p", "KAFKA_BROKERS": "b", "MYSQL_DSN": "d"}))
    messages = sink.messages(events)
    assert texts(messages, "to", len(events))[0] == "p.orders"
    assert texts(messages, "key", len(events))[0] == "eu:1"


def test_filter_keeps_what_the_example_says() -> None:
    module, _, events = load(next(c for c in CASES if c.name == "example-quickstart"))
    kept = module.process(events)
    # Totals are texts here ("19.90"), and a text is not compared with a number.
    assert kept.op.to_pylist() == ["u"] * 2
    assert set(kept.op.to_pylist()) <= {"c", "u"}


def outboxes() -> list[Case]:
    return [c for c in CASES if " = outbox(" in (c.folder / "job.py").read_text("utf-8")]


@pytest.mark.parametrize("case", outboxes(), ids=lambda case: case.name)
def test_outbox_jobs_send_each_message_once_and_lose_its_mark(case: Case) -> None:
    module, plan, events = load(case, outbox=True)
    takes_env = "env" in inspect.signature(module.process).parameters
    result = module.process(events, *((environment(module),) if takes_env else ()))
    assert len(result) == len(events) - 1, "the update of an outbox row is no message"
    steps = [step for one in plan["passes"] for step in one["steps"]]
    assert json.loads(result.routing.headers[len(result) - 1].as_py())["df-aggregate-id"] == "42"
    (sink,) = module.sinks(environment(module))
    messages = sink.messages(result)
    value = json.loads(texts(messages, "value", len(result))[-1])
    body = value if steps[0]["raw_payload"] else value.get("payload", value)["after"]
    assert body == {"total": 1.5, "lines": [{"sku": "a"}]}
    assert "__outbox" not in "".join(texts(messages, "value", len(result)))
    assert texts(messages, "key", len(result))[-1] == "42"


def test_a_job_that_reads_what_it_does_not_carry_fails_at_once_and_names_it() -> None:
    """A fault of the job is no reason to try again for ever, as a sink that is away would be."""
    from dfc_runtime import Batch
    from dfc_runtime.deliver import Delivery
    from dfc_runtime.errors import DfcError
    from dfc_runtime.sinks import ConsoleSink

    events = fixture_events("turso", "position tx_end op ts_ms")
    sink = ConsoleSink("screen", lambda e: Messages(value=e.after.text))
    delivery = Delivery("shop", "acme", 1, lambda e: e, (sink,), Batch())
    with pytest.raises(DfcError, match="does not carry the column `after`"):
        list(delivery.run(iter([events.batch]), 0, {}))
