"""Specs made on the spot: a small valid one to change, and a short way through the compiler."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

from dfc.compiler import Spec, emit_job, plan_pipeline
from dfc.compiler.diagnostics import Diagnostic, Diagnostics
from dfc.compiler.plan import Plan

Json = Any

TURSO = {"type": "turso", "config": {"id": "shop", "url": "./shop.db", "tables": ["orders"]}}
MYSQL = {
    "type": "mysql",
    "config": {"id": "shop", "dsn": "${MYSQL_DSN}", "tables": ["shop.orders", "shop.outbox"]},
}
POSTGRES = {
    "type": "postgres",
    "config": {"id": "shop", "dsn": "${PG_DSN}", "slot": "shop_slot", "publication": "shop_pub"},
}
CONSOLE = {"type": "console", "config": {"id": "screen"}}
KAFKA = {"type": "kafka", "config": {"id": "events", "brokers": "k:9092", "topic": "orders"}}
REDIS = {"type": "redis", "config": {"id": "cache", "uri": "${REDIS_URI}", "stream": "orders"}}
NATS = {"type": "nats", "config": {"id": "bus", "url": "${NATS_URL}", "subject": "orders"}}
FILE = {"type": "file", "config": {"id": "archive", "path": "./out"}}
SCRIPT = {"type": "javascript", "id": "derive", "inline": "(event) => [event]"}


def spec(*sinks: Json, source: Json = TURSO, **parts: Json) -> Json:
    """A valid spec as data; `parts` are further keys of `spec`."""
    return copy.deepcopy(
        {
            "metadata": {"name": "orders", "tenant": "acme"},
            "spec": {"source": source, "sinks": list(sinks or (CONSOLE,)), **parts},
        }
    )


def having(part: Json, **config: Json) -> Json:
    """A source or sink with more (or other) settings; a processor's stand beside its type."""
    part = copy.deepcopy(part)
    part.get("config", part).update(config)
    return part


def to_yaml(value: Json) -> str:
    """JSON is YAML too, and says without doubt what is text; only control characters need help."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda m: f"\\u{ord(m[0]):04x}", text
    )


class Result:
    def __init__(self, given: Json, allow_literal_secrets: bool = False) -> None:
        text = given if isinstance(given, str | bytes) else to_yaml(given)
        data = text.encode() if isinstance(text, str) else text
        self.spec = Spec("pipeline.yaml", data)
        self.diagnostics = Diagnostics()
        self.maybe_plan = plan_pipeline(self.spec, self.diagnostics, allow_literal_secrets)

    @property
    def found(self) -> list[Diagnostic]:
        return list(self.diagnostics)

    @property
    def codes(self) -> list[str]:
        return [d.code for d in self.found]

    @property
    def only(self) -> Diagnostic:
        assert len(self.found) == 1, self.diagnostics.text()
        return self.found[0]

    @property
    def said(self) -> str:
        """Everything that is ever shown of the diagnostics."""
        return self.diagnostics.text() + self.diagnostics.json()

    @property
    def plan(self) -> Plan:
        assert self.maybe_plan is not None, self.diagnostics.text()
        return self.maybe_plan

    @property
    def job(self) -> str:
        return emit_job(self.plan, self.spec)


compiled: Callable[..., Result] = Result
