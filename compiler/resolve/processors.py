"""`spec.processors` -> processors of the plan, and their passes."""

from __future__ import annotations

import json
import re
import sys
import warnings

from ..diagnostics import Diagnostics, quote
from ..plan import (
    Filter,
    Flatten,
    JavaScript,
    MysqlSource,
    Outbox,
    OutboxColumns,
    Pass,
    PostgresSource,
    Predicate,
    Processor,
    Source,
)
from ..spec import Section
from .patterns import captures
from .routing import row_route
from .scripts import check_script

_OPS = {"create": "c", "update": "u", "delete": "d", "read": "r", "truncate": "t"}
_NO_VALUE = ("exists", "not_exists", "changed")
_LIST_VALUE = ("in", "not_in")
_ORDERED = ("gt", "gte", "lt", "lte")
_LONGEST_PATTERN = 1_000
EVERYTHING = "*"  # a script may look at any field


def resolve_processors(
    sections: tuple[Section, ...], source: Source, journal: bool, diagnostics: Diagnostics
) -> tuple[Processor, ...]:
    ids = _ids(sections, diagnostics)
    result: list[Processor] = []
    for section, ident in zip(sections, ids, strict=True):
        match section.string("type"):
            case "javascript":
                result.append(_javascript(section, ident, journal, diagnostics))
            case "filter":
                result.append(_filter(section, ident, diagnostics))
            case "flatten":
                result.append(_flatten(section, ident))
            case _:
                result.append(_outbox(section, ident, source, diagnostics))
    return tuple(result)


def fuse(processors: tuple[Processor, ...]) -> tuple[Pass, ...]:
    """Neighbours of one engine become one pass: scripts share one trip into their engine."""
    passes: list[Pass] = []
    for step in processors:
        engine = "javascript" if isinstance(step, JavaScript) else "arrow"
        if passes and passes[-1].engine == engine:
            passes[-1] = Pass(engine, (*passes[-1].steps, step))
        else:
            passes.append(Pass(engine, (step,)))
    return tuple(passes)


def _ids(sections: tuple[Section, ...], diagnostics: Diagnostics) -> list[str]:
    """Given ids must differ; default ones are numbered, so that two outboxes need no names."""
    seen: dict[str, int] = {}
    given = {s.string("id") for s in sections if s.given("id")}
    ids = []
    for section in sections:
        ident = section.string("id")
        if section.given("id"):
            if ident in seen:
                diagnostics.error(
                    "DFC404",
                    section.at("id"),
                    f"two processors have the id {quote(ident)}, the first at line {seen[ident]}",
                    "ids name a processor in errors and metrics; give each its own",
                )
        else:
            base, n = ident, 1
            while ident in seen or ident in given:
                n += 1
                ident = f"{base}-{n}"
        seen.setdefault(ident, section.span.line)
        ids.append(ident)
    return ids


def _javascript(
    section: Section, ident: str, journal: bool, diagnostics: Diagnostics
) -> JavaScript:
    limits = section.section("limits")
    on_error = section.string("on_error")
    if on_error == "dlq" and not journal:
        diagnostics.error(
            "DFC409",
            section.at("on_error"),
            f"processor {quote(ident)} sends failures to the dead letter queue, which is off",
            "set `journal.enabled: true`, or use `on_error: fail`",
        )
    check_script(section, ident, diagnostics)
    return JavaScript(
        id=ident,
        script=section.string("inline"),
        cpu_ms=limits.integer("cpu_ms"),
        mem_mb=limits.integer("mem_mb"),
        timeout_ms=limits.integer("timeout_ms"),
        on_error=on_error,
        deterministic=section.flag("deterministic"),
        engine=section.string("engine"),
        reads=(EVERYTHING,),
        span=section.span,
    )


def _filter(section: Section, ident: str, diagnostics: Diagnostics) -> Filter:
    tables = section.section("tables")
    include, exclude = tables.strs("include"), tables.strs("exclude")
    predicates = tuple(_predicate(p, diagnostics) for p in section.sections("fields"))
    ops = tuple(_OPS[op] for op in section.strs("ops"))
    reads: dict[str, None] = {}
    if ops:
        reads["op"] = None
    if include or exclude:
        reads.update({"source.db": None, "source.schema": None, "source.table": None})
    for predicate in predicates:
        reads["after." + ".".join(predicate.path)] = None
        if predicate.op == "changed":
            reads["before." + ".".join(predicate.path)] = None
    if not reads:
        diagnostics.error(
            "DFC410",
            section.span,
            f"filter {quote(ident)} lets everything through",
            "give it `ops`, `tables` or `fields`, or take it out",
        )
    return Filter(
        id=ident,
        ops=ops,
        include=include,
        exclude=exclude,
        fields=predicates,
        match=section.string("match"),
        runs=("kernel", "arrow") if predicates else ("arrow",),
        reads=tuple(reads),
        span=section.span,
    )


def _predicate(section: Section, diagnostics: Diagnostics) -> Predicate:
    op = section.string("op")
    given = section.given("value")
    value = section.json("value")
    at = section.at("value")
    path = tuple(section.string("path").split("."))
    if op in _NO_VALUE and given:
        diagnostics.error("DFC411", at, f"`{op}` takes no `value`", "leave it out")
    elif op not in _NO_VALUE and not given:
        diagnostics.error("DFC411", section.at("op"), f"`{op}` needs a `value` to compare with")
    elif op in _LIST_VALUE and not isinstance(value, list):
        diagnostics.error("DFC411", at, f"`{op}` needs a list of values", "write `value: [a, b]`")
    elif op in _LIST_VALUE and not value:
        all_or_none = "none" if op == "in" else "all"
        message = f"`{op}` an empty list lets {all_or_none} through"
        diagnostics.error("DFC411", at, message, "list the values, or take the condition out")
    elif op in ("eq", "ne") and given and value is None:
        instead = "not_exists" if op == "eq" else "exists"
        message = f"`{op}` with null lets nothing through: a null counts as missing"
        diagnostics.error("DFC411", at, message, f"use `op: {instead}`, without `value`")
    elif op in _ORDERED and (isinstance(value, bool) or not isinstance(value, int | float | str)):
        diagnostics.error("DFC411", at, f"`{op}` compares with a number or a text")
    elif op == "regex":
        _regex(value, section, diagnostics)
    elif given and not _finite(value):
        diagnostics.error(
            "DFC411",
            at,
            f"`{op}` compares with a number that no row can hold",
            "numbers compare as 64-bit floats, up to about 1.8e308; for text put it in quotes",
        )
    return Predicate(path, op, json.dumps(value, ensure_ascii=False) if given else None)


def _finite(value: object) -> bool:
    match value:
        case int() | float():
            return -sys.float_info.max <= value <= sys.float_info.max
        case list():
            return all(map(_finite, value))
        case dict():
            return all(map(_finite, value.values()))
        case _:
            return True


def _regex(value: object, section: Section, diagnostics: Diagnostics) -> None:
    at = section.at("value")
    if not isinstance(value, str):
        diagnostics.error("DFC412", at, "`regex` needs a pattern as text", "put it in quotes")
        return
    if len(value) > _LONGEST_PATTERN:
        message = f"this pattern is longer than {_LONGEST_PATTERN} characters"
        diagnostics.error("DFC412", at, message, "list the values with `in`, or use a processor")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what later versions of Python may read in it
            re.compile(value)
    except re.error as error:
        diagnostics.error("DFC412", at, f"{quote(value)} is not a regular expression: {error}")
    except (OverflowError, RecursionError):
        # A count beyond what the engine can hold, or groups within groups beyond its stack.
        message = f"{quote(value)} is more than the regular expression engine can hold"
        diagnostics.error("DFC412", at, message, "use smaller counts and fewer nested groups")


def _flatten(section: Section, ident: str) -> Flatten:
    on_collision = section.string("on_collision")
    named = ("event_id",) if on_collision == "error" else ()  # an error names the event
    return Flatten(
        id=ident,
        separator=section.string("separator"),
        max_depth=section.opt_integer("max_depth"),
        on_collision=on_collision,
        empty_object=section.string("empty_object"),
        lists=section.string("lists"),
        empty_list=section.string("empty_list"),
        runs=("kernel",),
        reads=("before", "after", *named),
        span=section.span,
    )


def _outbox(section: Section, ident: str, source: Source, diagnostics: Diagnostics) -> Outbox:
    marked = {
        MysqlSource: getattr(source, "outbox_tables", ()),
        PostgresSource: getattr(source, "outbox_prefixes", ()),
    }.get(type(source))
    if marked is None:
        diagnostics.error(
            "DFC407",
            section.span,
            f"outbox processor {quote(ident)} has nothing to work on: a turso source marks no outbox",
            "outboxes come from mysql and postgres sources",
        )
    elif not marked:
        what = "tables" if isinstance(source, MysqlSource) else "prefixes"
        diagnostics.error(
            "DFC407",
            section.span,
            f"outbox processor {quote(ident)} has nothing to work on: the source marks no outbox",
            f"set `outbox: {{{what}: […]}}` in the source",
        )
    for pattern, span in section.placed("tables"):
        if marked and not captures(marked, pattern):
            diagnostics.error(
                "DFC407",
                span,
                f"the source marks nothing that {quote(pattern)} means as outbox",
                f"it marks {', '.join(marked)}",
            )
    columns = section.section("columns")
    topic, key = section.opt_written("topic"), section.opt_written("key")
    strict = section.flag("strict")
    reads: tuple[str, ...] = ("op", "after", "source.schema")  # the schema is an outbox's mark
    if section.strs("tables"):
        reads += ("source.db", "source.table")
    if strict:
        reads += ("event_id",)  # an error names the event
    return Outbox(
        id=ident,
        tables=section.strs("tables"),
        columns=OutboxColumns(*(columns.string(c) for c in OutboxColumns.__slots__)),
        topic=row_route(topic) if topic else None,
        default_topic=section.opt_text("default_topic"),
        key=row_route(key) if key else None,
        additional_headers=section.pairs("additional_headers"),
        raw_payload=section.flag("raw_payload"),
        strict=strict,
        runs=("kernel", "arrow"),
        reads=reads,
        span=section.span,
    )
