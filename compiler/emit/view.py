"""The plan as ready strings for the template: everything is decided here, nothing there."""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from ..plan import (
    ConsoleSink,
    EnvRef,
    Field,
    FileSink,
    Filter,
    Flatten,
    JavaScript,
    KafkaSink,
    Literal,
    MysqlSource,
    NatsSink,
    Outbox,
    Pass,
    Plan,
    PostgresSource,
    Predicate,
    RedisSink,
    Route,
    Sink,
    Text,
    TursoSource,
    is_remote,
    kind_of,
    spelled,
)
from ..span import Span
from .expressions import Imports, event_column, join_parts, row_column
from .literals import py_block, py_comment, py_docstring, py_literal, py_name

_METHODS = {"in": "is_in"}
# Switches that are on unless told otherwise; all others are off, and off goes without saying.
_USUALLY_ON = {"fsync", "manage", "respect_source_tx"}


@dataclass(frozen=True, slots=True)
class Call:
    """`name(args, key=value, ...)`, each value Python source already."""

    name: str
    args: tuple[str, ...] = ()
    kwargs: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join((*self.args, *(f'{k}={v}' for k, v in self.kwargs)))})"


@dataclass(frozen=True, slots=True)
class SinkView:
    heading: str
    function: str
    comments: tuple[str, ...]
    signature: str
    messages: Call
    construct: Call


@dataclass(frozen=True, slots=True)
class StepView:
    comment: str
    expression: str


@dataclass(slots=True)
class JobView:
    docstring: str
    provenance: str
    imports: list[tuple[str, str]] = field(default_factory=list)
    env: str = "()"
    batch: str = ""
    storage: str = ""
    journal: str = ""
    columns: str = ""
    source_heading: str = ""
    source: str = ""
    source_format: str = ""
    scripts: list[tuple[str, str]] = field(default_factory=list)
    process_heading: str = ""
    process_signature: str = "events: Events"
    process: str = "process"
    steps: list[StepView] = field(default_factory=list)
    sinks: list[SinkView] = field(default_factory=list)
    commit_heading: str = ""
    commit: str = ""
    job: str = ""


def build_view(plan: Plan, provenance: str) -> JobView:
    return _Builder(plan, provenance).build()


class _Builder:
    def __init__(self, plan: Plan, provenance: str) -> None:
        self.plan = plan
        self.view = JobView(_summary(plan), provenance)
        self.imports = Imports()
        for name in (
            "ACKS",
            "Batch",
            "CommitPolicy",
            "Env",
            "Events",
            "Job",
            "Messages",
            "Storage",
        ):
            self.imports.use("dfc_runtime", name)
        self.names: set[str] = set()

    def build(self) -> JobView:
        view, plan = self.view, self.plan
        batch = plan.batch
        view.env = py_literal(plan.env)
        view.batch = str(
            Call(
                "Batch",
                kwargs=_shown(batch, "max_events max_bytes max_ms respect_source_tx max_inflight"),
            )
        )
        view.storage = self.storage()
        if plan.journal.enabled:
            self.imports.use("dfc_runtime", "Journal")
            names = "max_event_bytes max_entries max_age_secs overflow_policy"
            view.journal = str(Call("Journal", kwargs=_shown(plan.journal, names)))
        view.columns = _wrapped(" ".join(plan.columns))
        view.source_heading = _heading(f"source: {kind_of(plan.source)}", plan.source.span)
        view.source_format = py_literal(_format(plan))
        view.source = self.source()
        for step in plan.passes:
            view.steps += self.steps(step)
        first = next((s.span for p in plan.passes for s in p.steps), None)
        view.process_heading = (
            _heading("processors, applied in this order", first)
            if first
            else _heading("processors: none")
        )
        if any("env" in _names(step.expression) for step in view.steps):
            view.process_signature = "events: Events, env: Env"
            view.process = "lambda events, env=job.env: process(events, env)"
        view.sinks = [self.sink(s) for s in plan.sinks]
        self.imports.use("dfc_runtime.sinks", "Sink")
        view.commit_heading, view.commit = self.commit()
        view.job = self.job()
        view.imports = self.imports.lines()
        return view

    # --- configuration -------------------------------------------------------------------------

    def storage(self) -> str:
        storage = self.plan.storage
        kwargs = [("backend", py_literal(storage.backend))]
        if storage.backend == "sqlite":
            kwargs.append(("path", py_literal(spelled(storage.path))))
        elif storage.backend == "postgres" and storage.dsn:
            kwargs.append(("dsn", py_literal(spelled(storage.dsn))))
        return str(Call("Storage", kwargs=tuple(kwargs)))

    def source(self) -> str:
        source = self.plan.source
        kwargs: tuple[tuple[str, str], ...]
        match source:
            case TursoSource():
                level = "native_cdc_level" if source.cdc_mode in ("auto", "native") else ""
                kwargs = _shown(
                    source, f"id url auth_token tables cdc_mode poll_interval_ms {level}"
                )
            case MysqlSource():
                kwargs = _shown(
                    source,
                    "id dsn tables outbox_tables snapshot on_schema_drift" " json_wide_integers",
                )
            case PostgresSource():
                kwargs = _shown(
                    source,
                    "id dsn slot publication tables start_position"
                    " outbox_prefixes snapshot on_schema_drift json_wide_integers"
                    " manage reselect heartbeat_interval_secs heartbeat_query",
                )
            case _:
                assert_never(source)
        if not isinstance(source, TursoSource) and source.snapshot:
            self.imports.use("dfc_runtime.sources", "Snapshot")
        name = type(source).__name__
        self.imports.use("dfc_runtime.sources", name)
        return str(Call(name, kwargs=(*kwargs, ("columns", "COLUMNS"))))

    def commit(self) -> tuple[str, str]:
        policy = self.plan.commit
        sinks = tuple(py_literal(s) for s in policy.sinks)
        named = ", ".join(f"`{py_comment(s)}`" for s in policy.sinks)
        if len(sinks) > 3:
            named = f"{len(sinks)} sinks"
        match policy.mode:
            case "quorum":
                args = (str(policy.quorum), *sinks)
                when = f"{policy.quorum} of {named} have"
            case _:
                args = sinks
                when = f"{named} {'has' if len(sinks) == 1 else 'have'}"
        heading = _heading(f"commit policy: the source moves on once {when} the batch")
        return heading, str(Call(f"CommitPolicy.{policy.mode}", args))

    def job(self) -> str:
        plan = self.plan
        kwargs = [("tenant", py_literal(plan.tenant)), ("env", "ENV"), ("storage", "STORAGE")]
        kwargs += [("batch", "BATCH"), ("sinks", "sinks")]
        if plan.lanes.count > 1:
            kwargs.append(("lanes", str(plan.lanes.count)))
            if plan.lanes.key:
                kwargs.append(("lane_key", py_literal(plan.lanes.key)))
        if plan.journal.enabled:
            kwargs.append(("journal", "JOURNAL"))
        if plan.sink_batch_deadline_secs is not None:
            limit = py_literal(plan.sink_batch_deadline_secs)
            kwargs.append(("sink_batch_deadline_secs", limit))
        kwargs.append(("needs", py_literal(_needs(plan))))
        return str(Call("Job", (py_literal(plan.name),), tuple(kwargs)))

    # --- processors ----------------------------------------------------------------------------

    def steps(self, step: Pass) -> Iterable[StepView]:
        if step.engine == "javascript":
            scripts = [self.script(s) for s in step.steps if isinstance(s, JavaScript)]
            self.imports.use("dfc_runtime.processors", "javascript")
            self.imports.use("dfc_runtime.processors", "Script")
            what = " + ".join(f"`{py_comment(s.id)}`" for s in step.steps)
            call = Call("javascript", ("events", *scripts), (("batch", "BATCH"),))
            return [StepView(f"javascript {what}: {_at(step.steps[0].span)}", str(call))]
        views = []
        for processor in step.steps:
            match processor:
                case Filter():
                    expression = self.filter(processor)
                case Flatten():
                    expression = self.flatten(processor)
                case Outbox():
                    expression = self.outbox(processor)
                case _:
                    raise AssertionError("a script is a pass of its own")
            comment = f"{kind_of(processor)} `{py_comment(processor.id)}`: {_at(processor.span)}"
            views.append(StepView(comment, expression))
        return views

    def script(self, processor: JavaScript) -> str:
        name = self.unique(f"SCRIPT_{py_name(processor.id).upper().strip('_')}")
        limits = "cpu_ms mem_mb timeout_ms on_error deterministic engine"
        text = ("script", py_block(processor.script))
        kwargs = (*_shown(processor, "id"), text, *_shown(processor, limits))
        self.view.scripts.append((name, str(Call("Script", kwargs=kwargs))))
        return name

    def filter(self, processor: Filter) -> str:
        use = self.imports.use
        masks: list[str] = []
        if processor.ops:
            use("dfc_runtime.processors", "op_in")
            masks.append(str(Call("op_in", ("events", *map(py_literal, processor.ops)))))
        if processor.include or processor.exclude:
            use("dfc_runtime.processors", "table_in")
            kwargs = _shown(processor, "include exclude")
            masks.append(str(Call("table_in", ("events",), kwargs)))
        fields = [self.predicate(p) for p in processor.fields]
        if len(fields) == 1 or processor.match == "all":
            masks += fields
        elif fields:
            use("dfc_runtime.processors", "any_of")
            masks.append(str(Call("any_of", tuple(fields))))
        return str(Call("events.where", tuple(masks), _shown(processor, "id")))

    def predicate(self, predicate: Predicate) -> str:
        self.imports.use("dfc_runtime.processors", "field")
        path = py_literal(".".join(predicate.path))
        method = _METHODS.get(predicate.op, predicate.op)
        args: tuple[str, ...] = ()
        if predicate.value is not None:
            value = json.loads(predicate.value)
            args = (
                tuple(map(py_literal, value))
                if method in ("is_in", "not_in")
                else (py_literal(value),)
            )
        return f"field(events, {path}).{Call(method, args)}"

    def flatten(self, processor: Flatten) -> str:
        self.imports.use("dfc_runtime.processors", "flatten")
        names = "id separator max_depth on_collision empty_object lists empty_list"
        return str(Call("flatten", ("events",), _shown(processor, names)))

    def outbox(self, processor: Outbox) -> str:
        self.imports.use("dfc_runtime.processors", "outbox")
        kwargs = list(_shown(processor, "id tables"))
        for name, route in (("topic", processor.topic), ("key", processor.key)):
            if route:
                column = join_parts(route.parts, row_column, self.imports)
                kwargs.append((name, f"lambda row: {column}"))
        if processor.default_topic:
            kwargs.append(("default_topic", _env_text(processor.default_topic)))
        columns = {c: getattr(processor.columns, c) for c in processor.columns.__slots__}
        usual = {c: c for c in columns} | {"event_id": "id"}
        renamed = {c: name for c, name in columns.items() if name != usual[c]}
        if renamed:
            kwargs.append(("columns", py_literal(renamed)))
        if processor.additional_headers:
            kwargs.append(("additional_headers", py_literal(dict(processor.additional_headers))))
        kwargs += _shown(processor, "raw_payload strict")
        return str(Call("outbox", ("events",), tuple(kwargs)))

    # --- sinks ---------------------------------------------------------------------------------

    def sink(self, sink: Sink) -> SinkView:
        function = self.unique(f"to_{py_name(sink.id).lower().strip('_')}")
        self.imports.use("dfc_runtime.sinks", type(sink).__name__)
        routes = _routes(sink)
        uses_env = any(isinstance(p, EnvRef) for _, r in routes if r for p in r.parts)
        messages = self.messages(sink)
        target = f"lambda e: {function}(e, env)" if uses_env else function
        rule = "required" if sink.delivery.required else "best effort"
        return SinkView(
            heading=_heading(f"sink `{sink.id}`: {kind_of(sink)}, {rule}", sink.span),
            function=function,
            comments=_route_comments(routes),
            signature="e: Events, env: Env" if uses_env else "e: Events",
            messages=messages,
            construct=self.construct(sink, target),
        )

    def messages(self, sink: Sink) -> Call:
        kwargs: list[tuple[str, str]] = []
        to, key = self.destination(sink), self.key(sink)
        if to is not None:
            kwargs.append(("to", to))
        if key is not None:
            kwargs.append(("key", key))
        kwargs.append(("value", self.value(sink)))
        if sink.delivery.routed and not isinstance(sink, ConsoleSink | FileSink):
            kwargs.append(("headers", "e.routing.headers"))
        return Call("Messages", kwargs=tuple(kwargs))

    def destination(self, sink: Sink) -> str | None:
        match sink:
            case KafkaSink():
                route = sink.topic
            case RedisSink():
                route = sink.stream
            case NatsSink():
                route = sink.subject
            case FileSink():
                return self.column(sink.name)
            case ConsoleSink():
                return None
            case _:
                assert_never(sink)
        return self.routed(sink, "topic", self.column(route))

    def key(self, sink: Sink) -> str | None:
        match sink:
            case FileSink():
                return None
            case KafkaSink(key=None):
                self.imports.use("dfc_runtime.columns", "table_key")
                column = "table_key(e)"
            case RedisSink(key=None):
                column = "e.event_id"
            case NatsSink(key=None) | ConsoleSink(key=None):
                return "e.routing.key" if sink.delivery.routed else None
            case _:
                assert sink.key is not None
                column = self.column(sink.key, missing="")
        return self.routed(sink, "key", column)

    def routed(self, sink: Sink, what: str, column: str) -> str:
        """A processor's own routing comes before the sink's template."""
        if not sink.delivery.routed or isinstance(sink, ConsoleSink):
            return column
        self.imports.use("dfc_runtime.columns", "first")
        return f"first(e.routing.{what}, {column})"

    def value(self, sink: Sink) -> str:
        envelope = sink.delivery.envelope
        self.imports.use("dfc_runtime.columns", envelope.type)
        args = ("e",) if envelope.type_prefix is None else ("e", py_literal(envelope.type_prefix))
        value = str(Call(envelope.type, args))
        if not sink.delivery.raw:
            return value
        self.imports.use("dfc_runtime.columns", "raw_or")
        return f"raw_or(e, {value})"

    def column(self, route: Route, missing: str | None = None) -> str:
        return join_parts(route.parts, event_column, self.imports, missing)

    def construct(self, sink: Sink, target: str) -> Call:
        names = {
            KafkaSink: "brokers exactly_once send_timeout_secs client_conf",
            RedisSink: "uri maxlen send_timeout_secs batch_timeout_secs connect_timeout_secs",
            NatsSink: "url stream send_timeout_secs batch_timeout_secs connect_timeout_secs"
            " credentials_file username password token",
            ConsoleSink: "pretty",
            FileSink: "path roll_max_events roll_max_bytes roll_max_age_secs fsync",
        }[type(sink)]
        kwargs = [("required", str(sink.delivery.required)), *_shown(sink, names, env=True)]
        if sink.delivery.filter:
            self.imports.use("dfc_runtime.sinks", "SinkFilter")
            inner = _shown(sink.delivery.filter, "exclude_synthetic synthetic_only producers")
            kwargs.append(("filter", str(Call("SinkFilter", kwargs=inner))))
        return Call(type(sink).__name__, (py_literal(sink.id), target), tuple(kwargs))

    def unique(self, name: str) -> str:
        unique, n = name, 1
        while unique in self.names:
            n += 1
            unique = f"{name}_{n}"
        self.names.add(unique)
        return unique


def _names(expression: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(expression, mode="eval")) if isinstance(n, ast.Name)}


def _format(plan: Plan) -> str:
    """The Spark data source that reads it."""
    return f"dfc_{kind_of(plan.source)}"


def _needs(plan: Plan) -> tuple[str, ...]:
    """What the job asks of its runtime beyond the core, so that it fails at start, not half-way."""
    wanted = {_format(plan): True}
    if isinstance(plan.source, TursoSource):
        wanted["turso_native"] = plan.source.cdc_mode == "native"
        wanted["turso_remote"] = is_remote(plan.source.url)
    for step in (s for p in plan.passes for s in p.steps):
        if isinstance(step, JavaScript) and step.engine == "v8":
            wanted["javascript_v8"] = True
        else:
            wanted[kind_of(step)] = not isinstance(step, Filter)
    wanted["journal"] = plan.journal.enabled
    wanted["schema_sensing"] = plan.schema_sensing.enabled
    wanted["connection_policy"] = plan.connection_policy is not None
    return tuple(name for name, asked in wanted.items() if asked)


def _routes(sink: Sink) -> tuple[tuple[str, Route | None], ...]:
    match sink:
        case KafkaSink():
            return (("topic", sink.topic), ("key", sink.key))
        case RedisSink():
            return (("stream", sink.stream), ("key", sink.key))
        case NatsSink():
            return (("subject", sink.subject), ("key", sink.key))
        case ConsoleSink():
            return (("key", sink.key),)
        case FileSink():
            return (("name", sink.name),)
        case _:
            assert_never(sink)


def _route_comments(routes: tuple[tuple[str, Route | None], ...]) -> tuple[str, ...]:
    """Only what the expressions below do not say word by word: templates, as they were written."""
    shown = [
        f"{name}: {py_comment(spelled(route))}"
        for name, route in routes
        if route and any(isinstance(p, Field) for p in route.parts)
    ]
    return ("   ".join(shown),) if shown else ()


def _shown(thing: object, names: str, env: bool = False) -> tuple[tuple[str, str], ...]:
    """Settings as keyword arguments. Those that are unset say nothing and are left out."""
    result = []
    for name in names.split():
        value = getattr(thing, name)
        unset = value is None or value == () or (value is False and name not in _USUALLY_ON)
        if not unset:
            result.append((name, _value(value, env)))
    return tuple(result)


def _value(value: object, env: bool) -> str:
    match value:
        case Text():
            return _env_text(value) if env else py_literal(spelled(value))
        case EnvRef():
            return _env_text(Text((value,))) if env else py_literal(spelled(Text((value,))))
        case tuple() if value and isinstance(value[0], tuple):
            inner = ", ".join(f"{py_literal(k)}: {_value(v, env)}" for k, v in value)
            return f"{{{inner}}}"
        case str() | int() | float() | bool() | tuple() | None:
            return py_literal(value)
        case _:  # a part of its own, such as a snapshot
            name = type(value).__name__
            return str(Call(name, kwargs=_shown(value, " ".join(value.__slots__))))  # type: ignore[attr-defined]


def _env_text(text: Text) -> str:
    match text.parts:
        case (EnvRef(name=name, default=None),):
            return f"env[{py_literal(name)}]"
        case parts if all(isinstance(p, Literal) for p in parts):
            return py_literal("".join(p.text for p in parts if isinstance(p, Literal)))
        case _:
            return f"env.fill({py_literal(spelled(text))})"


def _wrapped(text: str) -> str:
    """A long run of words over several source lines."""
    lines = textwrap.wrap(text, 84)
    if len(lines) == 1:
        return py_literal(text)
    return (
        "(" + " ".join(py_literal(f"{line} ") for line in lines[:-1]) + f" {py_literal(lines[-1])})"
    )


def _summary(plan: Plan) -> str:
    stages = [kind_of(plan.source)]
    stages += [kind_of(s) for p in plan.passes for s in p.steps]
    kinds = [kind_of(s) + (" (required)" if s.delivery.required else "") for s in plan.sinks]
    if len(kinds) > 6:
        kinds = [*kinds[:5], f"{len(kinds) - 5} more"]
    chain = " -> ".join([*stages, ", ".join(kinds)])
    return py_docstring(f"Pipeline `{plan.name}` (tenant `{plan.tenant}`): {chain}.")


def _at(span: Span) -> str:
    return py_comment(span.short())


def _heading(text: str, span: Span | None = None) -> str:
    line = f"--- {py_comment(text)}" + (f"  {_at(span)}" if span else "") + " "
    return line.ljust(96, "-")
