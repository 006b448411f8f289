"""Polling mode: on its way."""

from __future__ import annotations

from .log import LogReader, SourceError
from .settings import ReaderSettings
from .turso_database import Database


def polling_log(
    database: Database, settings: ReaderSettings, tables: tuple[str, ...], poll_secs: float
) -> LogReader:
    raise SourceError("cdc_mode polling is not built yet; use cdc_mode: triggers")
