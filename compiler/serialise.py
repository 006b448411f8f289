"""The plan as stable JSON: one shape for goldens, `dfc plan --json` and `dfc diff`."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from .plan import (
    PLAN_VERSION,
    EnvRef,
    Plan,
    Processor,
    Route,
    Sink,
    Source,
    Template,
    Text,
    kind_of,
    spelled,
)
from .span import Span

_PAIRS = ("labels", "annotations", "client_conf", "additional_headers", "settings", "destinations")


def plan_dict(plan: Plan) -> dict[str, Any]:
    return {"plan_version": PLAN_VERSION, **_value(plan)}


def plan_json(plan: Plan) -> str:
    return json.dumps(plan_dict(plan), indent=2, ensure_ascii=False) + "\n"


def _value(value: object) -> Any:
    match value:
        case Text() | Template():
            return _route(value)
        case EnvRef():
            return spelled(Text((value,)))
        case Span():
            return value.short()
        case tuple():
            return [_value(item) for item in value]
    if is_dataclass(value):
        node: dict[str, Any] = {}
        if isinstance(value, Source | Processor | Sink):
            node["kind"] = kind_of(value)  # which member of a union it is
        for field in fields(value):
            inner = getattr(value, field.name)
            name = "at" if field.name == "span" else field.name
            if field.name in _PAIRS:
                node[name] = {key: _value(item) for key, item in inner}
            else:
                node[name] = _value(inner)
        return node
    return value


def _route(route: Route) -> Any:
    """Text alone reads as text; a template says so, since it costs work for each event."""
    text = spelled(route)
    return {"template": text} if isinstance(route, Template) else text
