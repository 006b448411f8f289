"""What every dfc source is told beside its own settings, as Spark options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from ..env import expand
from ..events import EVENT_COLUMNS, SEGMENT, arrow_schema, ddl_schema
from ..storage import Storage
from . import lanes
from .log import SourceError


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """The options that a job adds to its source; each has a default fit for a notebook."""

    pipeline: str = ""
    tenant: str = ""
    id: str = "source"
    start: str = ""
    storage: Storage | None = None
    folder: str = ""
    carry: str = "inline"
    lanes: int = 1
    lane_key: str = ""
    batch_max_events: int = 2000
    batch_max_bytes: int = 16 << 20
    batch_max_ms: int = 50
    tick_secs: float = 0
    packed: bool = False
    sinks: tuple[str, ...] = ()
    columns: tuple[str, ...] = tuple(EVENT_COLUMNS)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReaderSettings:
        def number(name: str, default: float) -> float:
            text = options.get(name)
            try:
                return default if text is None else float(text)
            except ValueError:
                raise SourceError(f"option {name}: not a number: {text!r}") from None

        folder = options.get("folder", "")
        carry = options.get("carry", "file" if folder else "inline")
        if carry not in ("file", "inline"):
            raise SourceError(f"option carry: {carry!r} is neither file nor inline")
        return cls(
            pipeline=options.get("pipeline", ""),
            tenant=options.get("tenant", ""),
            id=options.get("id", "source"),
            start=options.get("start", ""),
            storage=_storage(options.get("storage", "")),
            folder=folder,
            carry=carry,
            lanes=max(1, int(number("lanes", 1))),
            lane_key=options.get("lane_key", ""),
            batch_max_events=int(number("batch_max_events", 2000)),
            batch_max_bytes=int(number("batch_max_bytes", 16 << 20)),
            batch_max_ms=int(number("batch_max_ms", 50)),
            tick_secs=number("tick_secs", 0),
            packed=options.get("packed", "") == "true",
            sinks=texts(options, "sinks"),
            columns=texts(options, "columns") or tuple(EVENT_COLUMNS),
        )

    @property
    def alone(self) -> bool:
        """Used without a job, as in a notebook: Spark's own checkpoint is all that is known."""
        return not self.pipeline

    @property
    def guest(self) -> bool:
        """A job that keeps nothing (a dry run): it must leave no trace in the database either."""
        return bool(self.pipeline) and not self.storage

    @property
    def how_to_reset(self) -> str:
        """What somebody has to do who wants to begin again; for the end of an error."""
        if self.alone:
            return "begin with a new checkpoint folder"
        return (
            "start it under a new metadata.name, or stop it and let its sinks begin anew: "
            "`dfc checkpoint reset SPEC --yes`"
        )

    @property
    def schema(self) -> pa.Schema:
        """What segments hold."""
        return arrow_schema(self.columns)

    @property
    def spark_schema(self) -> str:
        """What Spark gets: the events themselves, or one row for each segment of them."""
        return f"{SEGMENT} binary" if self.packed else ddl_schema(self.columns)

    @property
    def needed(self) -> tuple[str, ...]:
        """What the log must build: also what cutting into segments and lanes looks at."""
        wanted = {*self.columns, "position", "tx_end"}
        if self.lanes > 1:
            wanted.update(lanes.NEEDED_FOR_KEY if self.lane_key else lanes.NEEDED)
        return tuple(name for name in EVENT_COLUMNS if name in wanted)


def _storage(text: str) -> Storage | None:
    """As a job writes it, a DSN with references for the reader to fill in; or just a SQLite file."""
    if not text:
        return None
    if text.startswith("postgres"):
        return Storage.parse(text).filled(expand)
    return Storage("sqlite", text.removeprefix("sqlite:"))


def texts(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """An option that holds a JSON list of strings, or words with spaces between them."""
    text = options.get(name, "").strip()
    if not text:
        return ()
    if not text.startswith("["):
        return tuple(text.split())
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SourceError(f"option {name}: not a JSON list of strings: {text}")
    return tuple(values)
