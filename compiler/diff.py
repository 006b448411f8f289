"""Two plans compared: what changed, and what of it breaks those who read the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .diagnostics import printable
from .plan import Plan
from .resolve.patterns import captures, is_wild
from .serialise import plan_dict

# Setting (last part of its path) -> why a reader of the output would notice.
_BREAKING_SINK = {
    "kind": "events go to another kind of system",
    "topic": "consumers of the old topic get nothing more",
    "stream": "consumers of the old stream get nothing more",
    "subject": "subscribers of the old subject get nothing more",
    "name": "readers of the old folder get nothing more",
    "path": "readers of the old folder get nothing more",
    "brokers": "events go to another cluster",
    "uri": "events go to another server",
    "url": "events go to another server",
    "key": "rows move to other partitions, so order across the change is lost",
    "delivery.envelope": "the shape of every message changes",
    "delivery.encoding": "the bytes of every message change",
    "delivery.filter": "other events come through",
    "exactly_once": "the delivery guarantee changes",
    "delivery.required": "whether this sink holds the source back changes",
}
_BREAKING_PLAN = {
    "name": "positions are kept by pipeline name: the new one starts over",
    "tenant": "`tenant_id` of every event changes",
    "commit": "when the source moves on changes",
    "batch.respect_source_tx": "whether transactions stay whole changes",
    "lanes": "rows move to other lanes: stop the old job cleanly first",
    "storage": "positions are kept there: a storage without them starts over",
}
_BREAKING_SOURCE = {
    "kind": "another kind of source starts over",
    "id": "positions are kept by source id: the new one starts over",
    "slot": "a new slot starts at its own position",
    "cdc_mode": "positions of another mode do not compare: the new one starts over",
    "dsn": "positions of another server do not compare; the same one by another name is fine",
    "url": "positions of another database do not compare; the same one by another name is fine",
    "publication": "the server may send other tables",
    "outbox_tables": "other rows are taken as messages",
    "outbox_prefixes": "other messages are taken",
    "json_wide_integers": "the type of wide integers changes",
    "reselect": "whether unchanged large values are filled in changes",
}
_LIMITS = ("cpu_ms", "mem_mb", "timeout_ms")  # of a script: what comes out is the same
# Follows from other settings, whose changes are named.
_NOISE = {"at", "reads", "runs", "routed", "raw", "columns", "env", "lineage", "plan_version"}
_NAMED_BY_USERS = ("labels", "annotations", "client_conf", "additional_headers")
_SAME_POSITIONS = {"auto", "triggers"}  # `auto` takes triggers wherever they can be


@dataclass(frozen=True, slots=True)
class Change:
    path: str
    old: Any
    new: Any
    breaks: str = ""  # why consumers notice; empty: they do not

    def text(self) -> str:
        mark = "!" if self.breaks else "-" if self.new is None else "+" if self.old is None else "~"
        line = printable(f"{mark} {self.path}: {_short(self.old)} -> {_short(self.new)}")
        return f"{line}\n    breaks: {printable(self.breaks)}" if self.breaks else line


def diff_plans(old: Plan, new: Plan) -> list[Change]:
    a, b = plan_dict(old), plan_dict(new)
    changes: list[Change] = []
    for key in a:
        if key in _NOISE:
            continue
        if key == "source":
            changes += _source(a[key], b[key])
        elif key == "sinks":
            changes += _sinks(a[key], b[key])
        elif key == "passes":
            changes += _processors(a[key], b[key])
        else:
            for path, x, y in _leaves(key, a[key], b[key]):
                if path != "commit.sinks":  # follows from the sinks, whose changes are named
                    changes.append(Change(path, x, y, _why(path, _BREAKING_PLAN)))
    return changes


def _source(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Change]:
    for path, x, y in _leaves("", a, b):
        breaks = _why(path, _BREAKING_SOURCE)
        if path == "tables":
            breaks = _fewer(x, y)
        elif path == "cdc_mode" and {x, y} == _SAME_POSITIONS:
            breaks = ""
        yield Change(f"source.{path}", x, y, breaks)


def _fewer(old: list[str], new: list[str]) -> str:
    """Whether some table of the old patterns is out of reach of the new ones; none means all."""
    if not new:
        return ""
    if not old:
        return f"no more events of any table but {', '.join(new)}"
    # Which tables a wildcard stands for is only known at run time: it is missed if it is gone.
    kept = tuple(new)
    gone = [t for t in old if t not in new and (is_wild(t) or not captures(kept, t))]
    return f"no more events of {', '.join(gone)}" if gone else ""


def _sinks(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Iterator[Change]:
    old, new = {s["id"]: s for s in a}, {s["id"]: s for s in b}
    for ident, sink in old.items():
        if ident not in new:
            yield Change(f"sinks.{ident}", sink["kind"], None, "its consumers get nothing more")
            continue
        for path, x, y in _leaves("", sink, new[ident]):
            yield Change(f"sinks.{ident}.{path}", x, y, _why(path, _BREAKING_SINK))
    for ident, sink in new.items():
        if ident not in old:
            yield Change(f"sinks.{ident}", None, sink["kind"])


def _processors(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Iterator[Change]:
    old = {s["id"]: s for p in a for s in p["steps"]}
    new = {s["id"]: s for p in b for s in p["steps"]}
    why = "what comes out of the pipeline may differ"
    for ident, step in old.items():
        if ident not in new:
            yield Change(f"processors.{ident}", step["kind"], None, why)
            continue
        for path, x, y in _leaves("", step, new[ident]):
            yield Change(f"processors.{ident}.{path}", x, y, "" if path in _LIMITS else why)
    for ident, step in new.items():
        if ident not in old:
            yield Change(f"processors.{ident}", None, step["kind"], why)
    kept_old = [i for i in old if i in new]
    kept_new = [i for i in new if i in old]
    if kept_old != kept_new:
        yield Change("processors", kept_old, kept_new, "processors run in another order")


def _leaves(path: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    if a == b:
        return
    template = (isinstance(a, dict) and "template" in a) or (
        isinstance(b, dict) and "template" in b
    )
    if isinstance(a, dict) and isinstance(b, dict) and not template:
        free = path.rpartition(".")[2] in _NAMED_BY_USERS
        for key in dict.fromkeys([*a, *b]):
            if free or key not in _NOISE:
                yield from _leaves(f"{path}.{key}" if path else key, a.get(key), b.get(key))
    else:
        yield path, a, b


def _why(path: str, table: dict[str, str]) -> str:
    return next(
        (why for key, why in table.items() if path == key or path.startswith(key + ".")), ""
    )


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict) and "template" in value:
        value = value["template"]
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 70 else text[:69] + "…"
