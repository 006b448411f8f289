"""Text with `${...}` -> a route of the plan: event fields checked, constant ones folded away."""

from __future__ import annotations

from dataclasses import dataclass

from ..diagnostics import Diagnostics, did_you_mean, quote
from ..env import Written
from ..plan import EnvRef, Field, Literal, Route, Template, Text
from ..span import Span

# Fields of an event; None: whatever lies below is data, so any path is right.
_SOURCE_FIELDS = [
    "version",
    "connector",
    "name",
    "ts_ms",
    "db",
    "schema",
    "table",
    "snapshot",
    "server_id",
    "gtid",
    "file",
    "pos",
    "row",
    "lsn",
    "txId",
    "xmin",
    "sequence",
]
EVENT_FIELDS: dict[str, tuple[str, ...] | None] = {
    "before": None,
    "after": None,
    "source": tuple(_SOURCE_FIELDS),
    "op": (),
    "ts_ms": (),
    "transaction": ("id", "total_order", "data_collection_order"),
    "event_id": (),
    "tenant_id": (),
    "schema_version": (),
    "schema_sequence": (),
    "ddl": None,
    "trace_id": (),
    "tags": (),
    "synthetic": (),
    "tx_end": (),
}


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of every event before the first one comes."""

    pipeline: str
    tenant: str
    connector: str  # as events carry it
    source_type: str  # as the spec writes it

    def constant(self, path: tuple[str, ...]) -> str | None:
        known = {
            ("tenant_id",): self.tenant,
            ("source", "connector"): self.connector,
            ("source", "name"): self.pipeline,
        }
        if self.source_type == "turso":
            known["source", "db"] = "main"
        return known.get(path)


def event_route(written: Written, origin: Origin, diagnostics: Diagnostics) -> Route:
    """A template over the event. Tenant, connector and pipeline name become literals."""
    parts: list[Literal | EnvRef | Field] = []
    for part, place in zip(written.parts, written.places, strict=True):
        if not isinstance(part, Field):
            _add(parts, part)
        elif (text := origin.constant(part.path)) is not None:
            _add(parts, Literal(text))
        elif _check(part.path, place, origin, diagnostics):
            parts.append(part)
    return _route(parts)


def row_route(written: Written) -> Route:
    """A template over the columns of an outbox row: any name may be a column."""
    return _route(list(written.parts))


def fields_of(*routes: Route | None) -> tuple[str, ...]:
    """The event fields that routes read, dotted."""
    found: dict[str, None] = {}
    for route in routes:
        for part in route.parts if route else ():
            if isinstance(part, Field):
                found[".".join(part.path)] = None
    return tuple(found)


def _add(parts: list[Literal | EnvRef | Field], part: Literal | EnvRef) -> None:
    if parts and isinstance(part, Literal) and isinstance(last := parts[-1], Literal):
        parts[-1] = Literal(last.text + part.text)
    else:
        parts.append(part)


def _route(parts: list[Literal | EnvRef | Field]) -> Route:
    if any(isinstance(p, Field) for p in parts):
        return Template(tuple(parts))
    return Text(tuple(p for p in parts if not isinstance(p, Field)))


def _check(path: tuple[str, ...], span: Span, origin: Origin, diagnostics: Diagnostics) -> bool:
    shown = quote("${" + ".".join(path) + "}")
    root, rest = path[0], path[1:]
    if root not in EVENT_FIELDS:
        diagnostics.error("DFC310", span, f"{shown} is not an event field", _suggest(path))
        return False
    below = EVENT_FIELDS[root]
    if below is not None and rest:
        if not below or len(rest) > 1:
            diagnostics.error("DFC310", span, f"{shown} is not an event field", _suggest(path))
            return False
        if rest[0] not in below:
            near = did_you_mean(rest[0], below)
            help = f"did you mean `${{{root}.{near}}}`?" if near else f"fields: {', '.join(below)}"
            diagnostics.error("DFC310", span, f"{shown} is not an event field", help)
            return False
    if path == ("source", "schema") and origin.source_type != "postgres":
        diagnostics.error(
            "DFC311",
            span,
            f"events of a {origin.source_type} source have no {shown}",
            "use `${source.db}` or `${source.table}`",
        )
        return False
    return True


def _suggest(path: tuple[str, ...]) -> str:
    root = path[0]
    if len(path) == 1 and root in _SOURCE_FIELDS:
        return f"did you mean `${{source.{root}}}`?"
    near = did_you_mean(root, EVENT_FIELDS)
    if near:
        rest = path[1:]
        below = EVENT_FIELDS[near]
        if rest and below:
            rest = (did_you_mean(rest[0], below) or rest[0],)
        return f"did you mean `${{{'.'.join((near, *rest))}}}`?"
    if len(path) == 1:
        return (
            f"a column is `${{after.{root}}}` or `${{before.{root}}}`; "
            f"an environment variable is written in capitals: `${{{root.upper()}}}`"
        )
    return f"fields: {', '.join(EVENT_FIELDS)}"
