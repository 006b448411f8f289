"""`dfc_postgres`: a Spark streaming source for the changes of a PostgreSQL database.

spark.readStream.format("dfc_postgres").options(
    dsn="postgres://app@db/shop", slot="shop", publication="shop", tables='["public.*"]'
).load()
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from . import PostgresSource
from .log import LogReader
from .postgres_copy import with_snapshot
from .postgres_log import PostgresLog
from .segments import SegmentReader
from .settings import ReaderSettings


class PostgresReader(SegmentReader):
    """Reads one slot."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({"id": "postgres", **options})
        self.source = PostgresSource.from_options(options)

    def log(self) -> LogReader:
        return open_log(self.source, self.settings)


class PostgresDataSource(DataSource):
    """What Spark knows as the format `dfc_postgres`."""

    @classmethod
    def name(cls) -> str:
        return PostgresSource.format

    def schema(self) -> str:
        return ReaderSettings.parse(self.options).spark_schema

    def streamReader(self, schema: StructType) -> PostgresReader:
        return PostgresReader(dict(self.options))


def open_log(source: PostgresSource, settings: ReaderSettings) -> LogReader:
    """The log, not connected yet; with the rows that are there already when the job asks for them."""
    if source.snapshot is None or source.snapshot.mode == "never":
        return PostgresLog(source, settings)
    return with_snapshot(source, source.snapshot, settings)
