"""Every place of the pipeline language, found by walking its schema, with a spec to put a value in."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise

from .specs import (
    CONSOLE,
    FILE,
    KAFKA,
    MYSQL,
    NATS,
    POSTGRES,
    REDIS,
    SCRIPT,
    TURSO,
    Json,
    having,
    spec,
)

SCHEMA: Json = json.loads(files("dfc.schemas").joinpath("pipeline.schema.json").read_text("utf-8"))
Path = tuple[str | int, ...]

_OUTBOX = having(MYSQL, outbox={"tables": ["shop.outbox"]})
_PREDICATE = {"path": "total", "op": "eq", "value": 1}
# What a union's member needs to be valid, by the last part of its definition's name.
_MEMBERS = {
    "mysql_source": spec(source=_OUTBOX),
    "postgres_source": spec(source=POSTGRES),
    "turso_source": spec(source=having(TURSO, url="${SHOP_DB}")),
    "javascript_processor": spec(processors=[SCRIPT]),
    "filter_processor": spec(
        processors=[{"type": "filter", "ops": ["create"], "fields": [_PREDICATE]}]
    ),
    "flatten_processor": spec(processors=[{"type": "flatten"}]),
    "outbox_processor": spec(source=_OUTBOX, processors=[{"type": "outbox"}]),
    "kafka_sink": spec(KAFKA),
    "redis_sink": spec(REDIS),
    "nats_sink": spec(NATS),
    "console_sink": spec(CONSOLE),
    "file_sink": spec(FILE),
}
_ENVELOPES: dict[str, Json] = {
    "native_envelope": {"type": "native"},
    "debezium_envelope": {"type": "debezium"},
    "cloudevents_envelope": {"type": "cloudevents", "type_prefix": "com.acme"},
}
# A few settings want a neighbour.
_NEIGHBOURS: dict[Path, tuple[Path, Json]] = {
    ("spec", "storage", "dsn"): (("spec", "storage", "backend"), "postgres"),
    ("spec", "sharding", "key"): (("spec", "sharding", "count"), 2),
    ("spec", "commit_policy", "quorum"): (("spec", "commit_policy", "mode"), "quorum"),
    ("spec", "sinks", 0, "config", "username"): (
        ("spec", "sinks", 0, "config", "password"),
        "${NATS_PASSWORD}",
    ),
    ("spec", "sinks", 0, "config", "password"): (("spec", "sinks", 0, "config", "username"), "app"),
}


@dataclass(frozen=True, eq=False)
class Place:
    name: str
    path: Path
    schema: Json
    base: Json
    is_key: bool = False

    def holding(self, value: Json) -> Json:
        """A spec with `value` here; for the key of a map, under that key."""
        if self.is_key:
            return put(self.base, self.path, {value: "x"})
        return put(self.base, self.path, value)

    @property
    def kinds(self) -> set[str]:
        return kinds(self.schema)

    @property
    def is_text(self) -> bool:
        return "string" in self.kinds and not {"enum", "const"} & self.schema.keys()


def follow(schema: Json) -> Json:
    while "$ref" in schema:
        target = SCHEMA
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema


def kinds(schema: Json) -> set[str]:
    declared = schema.get("type", "string" if {"enum", "const"} & schema.keys() else [])
    return {declared} if isinstance(declared, str) else set(declared)


def put(base: Json, path: Path, value: Json) -> Json:
    """A copy of `base` with `value` at `path`, made where it leads through nothing yet."""
    root = copy.deepcopy(base)
    node = root
    for step, following in pairwise(path):
        empty: Json = [] if isinstance(following, int) else {}
        if isinstance(step, int):
            node.extend([copy.deepcopy(empty)] * (step + 1 - len(node)))
        elif not isinstance(node.get(step), list if isinstance(following, int) else dict):
            node[step] = empty
        node = node[step]
    last = path[-1]
    if isinstance(last, int):
        node[last:] = [value]
    else:
        node[last] = value
    return root


def _walk(schema: Json, path: Path, base: Json, name: str) -> Iterator[Place]:
    schema = follow(schema)
    if path in _NEIGHBOURS:
        base = put(base, *_NEIGHBOURS[path])
    if "x-dfc-union" in schema:
        for variant, ref in schema["x-dfc-union"].items():
            member = ref.rpartition("/")[2]
            inner = (
                put(base, path, _ENVELOPES[member]) if member in _ENVELOPES else _MEMBERS[member]
            )
            yield from _walk({"$ref": ref}, path, inner, f"{name}({variant})")
        return
    if path:
        yield Place(name, path, schema, base)
    for option in schema.get("anyOf", ()):
        yield from _walk(option, path, base, name)
    for key, child in schema.get("properties", {}).items():
        yield from _walk(child, (*path, key), base, f"{name}.{key}" if name else key)
    if isinstance(extra := schema.get("additionalProperties"), dict):
        yield Place(f"{name}.<key>", path, {"type": "string"}, base, is_key=True)
        yield from _walk(extra, (*path, "some.key"), base, f"{name}.<value>")
    if "items" in schema:
        yield from _walk(schema["items"], (*path, 0), base, f"{name}[]")


def _places() -> list[Place]:
    found: dict[tuple[str, str], Place] = {}
    for place in _walk(SCHEMA, (), spec(), ""):
        # All five sinks share their envelope and filter: once is enough.
        shared = place.name
        for part in ("envelope", "encoding", "filter."):
            if ".config." + part in shared:
                shared = shared[shared.index(".config." + part) :]
        found.setdefault((shared, json.dumps(place.schema)), place)
    return list(found.values())


PLACES = _places()
TEXTS = [place for place in PLACES if place.is_text]
