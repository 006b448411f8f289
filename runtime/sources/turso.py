"""`dfc_turso`: a Spark streaming source for SQLite files.

    spark.readStream.format("dfc_turso").options(url="file:app.db", tables='["*"]').load()

Remote Turso databases and the engine's own change table are not built.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from . import TursoSource
from .log import LogReader, SourceError, logger
from .segments import SegmentReader
from .settings import ReaderSettings
from .turso_changes import TriggerLog
from .turso_database import Database
from .turso_polling import PollingLog
from .turso_schema import captured, table_names
from .turso_triggers import PREFIX


class TursoReader(SegmentReader):
    """Reads one SQLite file."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({"id": "turso", **options})
        self.source = TursoSource.from_options(options)

    def log(self) -> LogReader:
        return open_log(self.source, self.settings)


class TursoDataSource(DataSource):
    """What Spark knows as the format `dfc_turso`."""

    @classmethod
    def name(cls) -> str:
        return TursoSource.format

    def schema(self) -> str:
        return ReaderSettings.parse(self.options).spark_schema

    def streamReader(self, schema: StructType) -> TursoReader:
        return TursoReader(dict(self.options))


def open_log(source: TursoSource, settings: ReaderSettings) -> LogReader:
    """The log that the mode asks for, not connected yet."""
    database = Database(source.url)
    mode = source.cdc_mode
    if mode == "auto":
        mode, why = choose(database, source.tables)
        logger.info("source %s: cdc_mode auto takes %s: %s", source.id, mode, why)
    pause = source.poll_interval_ms / 1000
    match mode:
        case "triggers":
            return TriggerLog(database, settings, source.tables, pause)
        case "polling":
            return PollingLog(database, settings, source.tables, pause)
        case "native":
            raise SourceError(
                "cdc_mode native is not built: only the connection that writes can see the "
                "engine's own change table; use cdc_mode: triggers (all changes) or polling "
                "(new rows only)"
            )
    raise SourceError(f"unknown cdc_mode {mode!r}; there are auto, triggers and polling")


def choose(database: Database, patterns: tuple[str, ...]) -> tuple[str, str]:
    """The best mode for a file, and why."""
    connection = database.connect()
    try:
        with database.guarded():
            rows = connection.execute(
                "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'"
                " AND substr(name, 1, ?) = ?",
                (len(PREFIX), PREFIX),
            ).fetchall()
            tables = [name for name in table_names(connection) if captured(name, patterns)]
    finally:
        connection.close()
    if database.writable():
        return "triggers", "the file can be written to"
    if tables and {name for (name,) in rows}.issuperset(tables):
        return "triggers", "the triggers are there"
    return "polling", "the file cannot be written to and has no triggers; only new rows are seen"
