"""Sources: what a job says about its database, and the Spark formats that read it.

The classes here only hold settings; Spark and the readers load when `register` is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Self

from .log import SourceError

__all__ = [
    "BUILT",
    "FORMATS",
    "MysqlSource",
    "PostgresSource",
    "Snapshot",
    "SourceError",
    "TursoSource",
    "register",
]

BUILT = ("dfc_mysql", "dfc_postgres", "dfc_turso")
FORMATS = BUILT


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How rows that are already there are copied before changes are read."""

    mode: str = "initial"
    max_parallel_tables: int = 8
    chunk_size: int = 10_000
    intra_table_parallel: bool = False
    max_parallel_chunks: int = 4


class _Source:
    """Settings that travel as Spark options: texts as they are, all else as JSON, None not at all."""

    __slots__ = ()
    format: ClassVar[str]

    def options(self) -> dict[str, str]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: _text(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The way back; options that are not settings of the source are left alone."""
        types = {f.name: str(f.type) for f in fields(cls)}  # type: ignore[arg-type]
        values = {
            name: _value(name, kind, options[name])
            for name, kind in types.items()
            if name in options
        }
        missing = [
            f.name
            for f in fields(cls)  # type: ignore[arg-type]
            if f.name not in values and f.default is f.default_factory
        ]
        if missing:
            raise SourceError(f"{cls.format}: option {', '.join(missing)} is missing")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TursoSource(_Source):
    """SQLite and libSQL files."""

    format: ClassVar[str] = "dfc_turso"
    id: str = "turso"
    url: str
    tables: tuple[str, ...] = ("*",)
    auth_token: str | None = None
    cdc_mode: str = "auto"
    poll_interval_ms: int = 1000
    native_cdc_level: str = "data"
    columns: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlSource(_Source):
    """The binary log of MySQL and MariaDB."""

    format: ClassVar[str] = "dfc_mysql"
    id: str = "mysql"
    dsn: str
    tables: tuple[str, ...] = ()
    outbox_tables: tuple[str, ...] = ()
    snapshot: Snapshot | None = None
    on_schema_drift: str = "adapt"
    json_wide_integers: str = "number"
    columns: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSource(_Source):
    """Logical replication of PostgreSQL."""

    format: ClassVar[str] = "dfc_postgres"
    id: str = "postgres"
    dsn: str
    slot: str
    publication: str
    tables: tuple[str, ...] = ()
    start_position: str = "earliest"
    outbox_prefixes: tuple[str, ...] = ()
    snapshot: Snapshot | None = None
    on_schema_drift: str = "adapt"
    json_wide_integers: str = "number"
    manage: bool = True
    reselect: bool = False
    heartbeat_interval_secs: int = 10
    heartbeat_query: str | None = None
    columns: str = ""


def register(spark: Any, *formats: str) -> None:
    """Makes formats known to a session, all when none is named: `spark.readStream.format("dfc_turso")`."""
    for name in formats or BUILT:
        match name:
            case "dfc_mysql":
                from .mysql import MysqlDataSource as Source
            case "dfc_postgres":
                from .postgres import PostgresDataSource as Source
            case "dfc_turso":
                from .turso import TursoDataSource as Source
        spark.dataSource.register(Source)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    return json.dumps(value, ensure_ascii=False)


def _value(name: str, kind: str, text: str) -> Any:
    if kind.startswith("str"):
        return text
    if kind.startswith("tuple") and not text.lstrip().startswith("["):
        return (text,)  # what somebody types into a notebook: tables="orders"
    try:
        value = json.loads(text)
        if kind.startswith("tuple"):
            return tuple(value)
        return Snapshot(**value) if kind.startswith("Snapshot") else value
    except (TypeError, ValueError):
        raise SourceError(f"option {name}: not what was expected: {text!r}") from None
