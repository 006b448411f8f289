"""Stage 3: the checked spec -> the plan, held against the rules between fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

from ..diagnostics import Diagnostics
from ..plan import (
    Batch,
    ConnectionPolicy,
    EnvRef,
    JavaScript,
    Journal,
    Lanes,
    Lineage,
    MysqlSource,
    Plan,
    PostgresSource,
    SchemaSensing,
    Source,
    Storage,
)
from ..span import Span
from ..spec import Checked, Items, Section
from .columns import resolve_columns
from .commit import resolve_commit
from .origin import Origin
from .processors import fuse, resolve_processors
from .sinks import SinkResolver, destination
from .sources import CONNECTORS, resolve_source


def resolve(document: Section, diagnostics: Diagnostics) -> Plan | None:
    """The plan. What is said of a part with unknown keys is left unsaid: they may be the reason."""
    own = Diagnostics()
    doubtful = set(_doubtful(document))
    try:
        return _resolve(document, own)
    finally:
        diagnostics.found += [d for d in own.found if d.span not in doubtful]


def _doubtful(checked: Checked) -> Iterator[Span]:
    if isinstance(checked, Section):
        if checked.strange:
            yield from (checked.span, *checked.keys.values())
        for value in checked.values.values():
            yield from _doubtful(value)
    elif isinstance(checked, Items):
        for value in checked.values:
            yield from _doubtful(value)


def _resolve(document: Section, diagnostics: Diagnostics) -> Plan | None:
    metadata, spec = document.section("metadata"), document.section("spec")
    source_type = spec.section("source").string("type")
    name, tenant = metadata.string("name"), metadata.string("tenant")
    source = resolve_source(spec.section("source"), diagnostics)
    journal = _journal(spec.section("journal"))
    steps = resolve_processors(spec.sections("processors"), source, journal.enabled, diagnostics)
    origin = Origin(
        pipeline=_usable(metadata, "name"),
        tenant=_usable(metadata, "tenant"),
        connector=CONNECTORS[source_type],
        source_type=source_type,
        scripted=any(isinstance(step, JavaScript) for step in steps),
    )
    sinks = SinkResolver(steps, origin, diagnostics).resolve(spec.sections("sinks"))
    lanes = _lanes(spec.section("sharding"), diagnostics)
    batch = _batch(spec.section("batch"))
    _check_chunks_stay_whole(spec, source, batch, diagnostics)
    for switched in ("journal", "schema_sensing"):
        _warn_unless_enabled(switched, spec.section(switched), diagnostics)
    plan = Plan(
        name=name,
        tenant=tenant,
        labels=metadata.pairs("labels"),
        annotations=metadata.pairs("annotations"),
        source=source,
        passes=fuse(steps),
        sinks=sinks,
        batch=batch,
        commit=resolve_commit(spec.section("commit_policy"), sinks, spec, diagnostics),
        sink_batch_deadline_secs=spec.opt_integer("sink_batch_deadline_secs"),
        lanes=lanes,
        journal=journal,
        schema_sensing=_sensing(spec.section("schema_sensing")),
        storage=_storage(spec.section("storage"), diagnostics),
        connection_policy=_connection_policy(spec.section("connection_policy")),
        columns=resolve_columns(source, steps, sinks, lanes.key, journal.enabled),
        env=(),
        lineage=Lineage(
            tables=source.tables or ("*",),
            processors=tuple(step.id for step in steps),
            destinations=tuple((sink.id, destination(sink)) for sink in sinks),
        ),
    )
    return None if diagnostics.failed else _with_env(plan)


def _usable(metadata: Section, key: str) -> str:
    """A name that was refused says nothing about the templates that hold it."""
    return "x" if metadata.written(key).wrong else metadata.string(key)


def _with_env(plan: Plan) -> Plan:
    names: dict[str, None] = {}
    _collect(plan, names)
    return replace(plan, env=tuple(names))


def _collect(value: object, names: dict[str, None]) -> None:
    if isinstance(value, EnvRef):
        if value.default is None:
            names[value.name] = None
    elif isinstance(value, tuple):
        for item in value:
            _collect(item, names)
    elif is_dataclass(value):
        for f in fields(value):
            _collect(getattr(value, f.name), names)


def _batch(section: Section) -> Batch:
    return Batch(
        max_events=section.integer("max_events"),
        max_bytes=section.integer("max_bytes"),
        max_ms=section.integer("max_ms"),
        respect_source_tx=section.flag("respect_source_tx"),
        max_inflight=section.integer("max_inflight"),
        span=section.span,
    )


def _journal(section: Section) -> Journal:
    dlq = section.section("dlq")
    return Journal(
        enabled=section.flag("enabled"),
        max_event_bytes=section.integer("max_event_bytes"),
        max_entries=dlq.integer("max_entries"),
        max_age_secs=dlq.integer("max_age_secs"),
        overflow_policy=dlq.string("overflow_policy"),
    )


def _check_chunks_stay_whole(
    spec: Section, source: Source, batch: Batch, diagnostics: Diagnostics
) -> None:
    """A chunk is read anew after a crash, and may have other rows then: no sink may have half of it."""
    copy = source.snapshot if isinstance(source, MysqlSource | PostgresSource) else None
    if copy is not None and copy.mode != "never" and not batch.respect_source_tx:
        diagnostics.error(
            "DFC427",
            spec.section("batch").at("respect_source_tx"),
            "a snapshot goes out in chunks that a sink takes as a whole, like transactions",
            "leave `respect_source_tx` out, or set `snapshot.mode: never`",
        )


def _warn_unless_enabled(name: str, section: Section, diagnostics: Diagnostics) -> None:
    """A warning only: turning something off for a while should not mean to cut its settings out."""
    if section.flag("enabled"):
        return
    for key, span in section.keys.items():
        inner = section.opt_section(key)
        if key != "enabled" and (inner is None or inner.keys):
            message = f"`{name}.{key}` has no effect while `enabled` is false"
            diagnostics.warning("DFC421", span, message, f"set `{name}.enabled: true`")


def _lanes(section: Section, diagnostics: Diagnostics) -> Lanes:
    lanes = Lanes(count=section.integer("count"), key=section.opt_string("key"))
    if lanes.key is not None and lanes.count == 1:
        diagnostics.error(
            "DFC424",
            section.at("key"),
            "`sharding.key` has no effect with one lane, which takes all rows",
            "set `count` to 2 or more, or leave `key` out",
        )
    return lanes


def _storage(section: Section, diagnostics: Diagnostics) -> Storage:
    backend = section.string("backend")
    path, dsn = section.text("path"), section.opt_text("dsn")
    if backend == "postgres" and dsn is None:
        diagnostics.error(
            "DFC420",
            section.at("backend"),
            "`backend: postgres` has no `dsn`",
            "write `dsn: ${STORAGE_DSN}`",
        )
    for key, owner, given in (
        ("dsn", "postgres", dsn is not None),
        ("path", "sqlite", section.given("path")),
    ):
        if given and backend != owner:
            diagnostics.error(
                "DFC420", section.at(key), f"`{key}` has no meaning with `backend: {backend}`"
            )
    return Storage(backend, path, dsn)


def _connection_policy(section: Section) -> ConnectionPolicy | None:
    """None when it asks for nothing beyond the defaults, which any runtime meets."""
    replica = section.opt_text("preferred_replica")
    limit = section.section("limits").opt_integer("max_dedicated_per_source")
    if replica is None and limit is None:
        return None
    return ConnectionPolicy(
        default_mode=section.opt_string("default_mode"),
        preferred_replica=replica,
        max_dedicated_per_source=limit,
    )


def _sensing(section: Section) -> SchemaSensing:
    settings: list[tuple[str, str | int | float | bool | tuple[str, ...] | None]] = []

    def walk(prefix: str, values: dict[str, Checked], at: Section) -> None:
        for key, value in values.items():
            if isinstance(value, Section):
                walk(f"{prefix}{key}.", value.values, value)
            elif isinstance(value, Items):
                settings.append((prefix + key, at.strs(key)))
            elif prefix + key != "enabled":
                raw = getattr(value, "value", None)
                settings.append((prefix + key, raw if raw is not None else at.opt_string(key)))

    walk("", section.values, section)
    return SchemaSensing(section.flag("enabled"), tuple(settings))
