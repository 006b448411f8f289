"""The binary log with a copy of the tables in it, as the settings of a mysql source ask for it."""

from __future__ import annotations

from dataclasses import replace

from ..env import expand
from . import MysqlSource, Snapshot
from .mysql_address import parse as parse_dsn
from .mysql_log import BinlogLog
from .mysql_position import Place, file_number
from .mysql_server import Captured
from .mysql_snapshot import Heard, MysqlTables
from .settings import ReaderSettings
from .snapshot import SnapshotLog
from .snapshot_events import CopiedRows

# What a view looks at in changes of its table, and what rows are told apart by.
_LOOKED_AT = ("op", "db", "table", "primary_key", "before", "tx_id", "ddl")


def with_snapshot(source: MysqlSource, copy: Snapshot, settings: ReaderSettings) -> SnapshotLog:
    """Not connected yet."""
    settings = replace(settings, columns=tuple(dict.fromkeys((*settings.columns, *_LOOKED_AT))))
    log = BinlogLog(source, settings)
    heard = Heard(log)
    captured = Captured(source.tables, source.outbox_tables)
    at_once = copy.max_parallel_chunks if copy.intra_table_parallel else 1

    def place(file: str, offset: int) -> str:
        return str(Place(log.era, file_number(file)[1], offset))

    def tables(generation: int) -> MysqlTables:
        return MysqlTables(
            parse_dsn(expand(source.dsn)),
            captured,
            place,
            heard,
            CopiedRows(settings, "mysql", generation),
            copy.max_parallel_tables * at_once,
            source.id,
            source.json_wide_integers,
        )

    return SnapshotLog(
        heard,
        tables,
        settings.storage.open() if settings.storage else None,
        f"{settings.pipeline}/{settings.id}",
        mode=copy.mode,
        chunk_size=copy.chunk_size,
        tables_at_once=copy.max_parallel_tables,
        chunks_at_once=at_once,
        folder=settings.folder,
    )
