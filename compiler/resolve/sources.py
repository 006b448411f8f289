"""`spec.source` -> a source of the plan."""

from __future__ import annotations

from ..diagnostics import Diagnostics, quote
from ..plan import (
    Literal,
    MysqlSource,
    PostgresSource,
    Snapshot,
    Source,
    Text,
    TursoSource,
    is_remote,
)
from ..spec import Section
from .patterns import captures

CONNECTORS = {"mysql": "mysql", "postgres": "postgresql", "turso": "turso"}


def resolve_source(source: Section, diagnostics: Diagnostics) -> Source:
    config = source.section("config")
    match source.string("type"):
        case "mysql":
            return _mysql(source, config, diagnostics)
        case "postgres":
            return _postgres(source, config)
        case _:
            return _turso(source, config, diagnostics)


def _mysql(source: Section, config: Section, diagnostics: Diagnostics) -> MysqlSource:
    tables = config.strs("tables")
    outbox = config.opt_section("outbox")
    for pattern, span in outbox.placed("tables") if outbox else ():
        if not captures(tables, pattern):
            diagnostics.error(
                "DFC406",
                span,
                f"the outbox table {quote(pattern)} is not among the captured `tables`",
                f"add {quote(pattern)} to `tables`: only captured tables can be marked",
            )
    return MysqlSource(
        id=config.string("id"),
        dsn=config.text("dsn"),
        tables=tables,
        outbox_tables=outbox.strs("tables") if outbox else (),
        snapshot=_snapshot(config),
        on_schema_drift=config.string("on_schema_drift"),
        json_wide_integers=config.string("json_wide_integers"),
        span=source.span,
    )


def _postgres(source: Section, config: Section) -> PostgresSource:
    outbox = config.opt_section("outbox")
    position = config.opt_section("start_position")
    heartbeat = config.section("heartbeat")
    return PostgresSource(
        id=config.string("id"),
        dsn=config.text("dsn"),
        slot=config.text("slot"),
        publication=config.text("publication"),
        tables=config.strs("tables"),
        start_position=position.string("lsn") if position else config.string("start_position"),
        outbox_prefixes=outbox.strs("prefixes") if outbox else (),
        snapshot=_snapshot(config),
        on_schema_drift=config.string("on_schema_drift"),
        json_wide_integers=config.string("json_wide_integers"),
        manage=config.flag("manage"),
        reselect=config.flag("reselect"),
        heartbeat_interval_secs=heartbeat.integer("interval_secs"),
        heartbeat_query=heartbeat.opt_string("query"),
        span=source.span,
    )


def _turso(source: Section, config: Section, diagnostics: Diagnostics) -> TursoSource:
    mode = config.string("cdc_mode")
    native = config.section("native_cdc")
    url = config.text("url")
    if native.given("level") and mode not in ("native", "auto"):
        diagnostics.error(
            "DFC408",
            native.at("level"),
            f"`native_cdc.level` has no meaning with `cdc_mode: {mode}`",
            "leave it out, or use `cdc_mode: native`",
        )
    elif native.given("level") and _is_file(url):
        diagnostics.error(
            "DFC408",
            native.at("level"),
            "`native_cdc.level` has no meaning for a local file, which has no server to record it",
            "leave it out",
        )
    if config.opt_written("auth_token") and _is_file(url):
        diagnostics.error(
            "DFC408",
            config.at("auth_token"),
            "`auth_token` has no meaning for a local file",
            "leave it out, or give the `url` of a server, such as `libsql://…`",
        )
    return TursoSource(
        id=config.string("id"),
        url=url,
        auth_token=config.secret("auth_token"),
        tables=config.strs("tables"),
        cdc_mode=mode,
        poll_interval_ms=config.integer("poll_interval_ms"),
        native_cdc_level=native.string("level"),
        span=source.span,
    )


def _is_file(url: Text) -> bool:
    """Whether a url is known to be that of a local file, environment or not."""
    first = url.parts[0]
    if not isinstance(first, Literal) or is_remote(url):
        return False
    whole = len(url.parts) == 1 and "://" not in first.text
    return whole or first.text.lower().startswith(("file:", "/", "./", "../"))


def _snapshot(config: Section) -> Snapshot | None:
    section = config.opt_section("snapshot")
    if section is None:
        return None
    return Snapshot(
        mode=section.string("mode"),
        max_parallel_tables=section.integer("max_parallel_tables"),
        chunk_size=section.integer("chunk_size"),
        intra_table_parallel=section.flag("intra_table_parallel"),
        max_parallel_chunks=section.integer("max_parallel_chunks"),
    )
