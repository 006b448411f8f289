"""`dfc_mysql`: a Spark streaming source for the binary log of MySQL and MariaDB.

spark.readStream.format("dfc_mysql").options(dsn="mysql://...", tables="shop.orders").load()
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from . import MysqlSource
from .log import LogReader
from .mysql_copy import with_snapshot
from .mysql_log import BinlogLog
from .segments import SegmentReader
from .settings import ReaderSettings


class MysqlReader(SegmentReader):
    """Reads one server."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({"id": "mysql", **options})
        self.source = MysqlSource.from_options(options)

    def log(self) -> LogReader:
        return open_log(self.source, self.settings)


class MysqlDataSource(DataSource):
    """What Spark knows as the format `dfc_mysql`."""

    @classmethod
    def name(cls) -> str:
        return MysqlSource.format

    def schema(self) -> str:
        return ReaderSettings.parse(self.options).spark_schema

    def streamReader(self, schema: StructType) -> MysqlReader:
        return MysqlReader(dict(self.options))


def open_log(source: MysqlSource, settings: ReaderSettings) -> LogReader:
    """The log, not connected yet; with the rows that are there already when the job asks for them."""
    if source.snapshot is None or source.snapshot.mode == "never":
        return BinlogLog(source, settings)
    return with_snapshot(source, source.snapshot, settings)
