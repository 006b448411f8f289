"""The log of a slot with a copy of the tables in it, as the settings of a postgres source ask for it."""

from __future__ import annotations

from dataclasses import replace

from . import PostgresSource, Snapshot
from .postgres_address import Address
from .postgres_log import PostgresLog, filled
from .postgres_snapshot import PostgresTables
from .postgres_visible import Heard
from .settings import ReaderSettings
from .snapshot import SnapshotLog
from .snapshot_events import CopiedRows

# What a view looks at in changes of its table, and what rows are told apart by.
_LOOKED_AT = ("op", "schema", "table", "primary_key", "before", "after", "tx_id")


def with_snapshot(source: PostgresSource, copy: Snapshot, settings: ReaderSettings) -> SnapshotLog:
    """Not connected yet."""
    settings = replace(settings, columns=tuple(dict.fromkeys((*settings.columns, *_LOOKED_AT))))
    log = PostgresLog(source, settings)
    heard = Heard(log)
    given = filled(source)

    def tables(generation: int) -> PostgresTables:
        return PostgresTables(
            Address.parse(given.dsn),
            log.server,
            given.publication,
            given.tables,
            heard,
            log.expect,
            CopiedRows(settings, "postgresql", generation),
            source_id=source.id,
            wide=source.json_wide_integers == "string",
            may_write=source.manage and not settings.guest,
        )

    return SnapshotLog(
        heard,
        tables,
        settings.storage.open() if settings.storage else None,
        f"{settings.pipeline}/{settings.id}",
        mode=copy.mode,
        chunk_size=copy.chunk_size,
        tables_at_once=copy.max_parallel_tables,
        chunks_at_once=copy.max_parallel_chunks if copy.intra_table_parallel else 1,
        folder=settings.folder,
        late=log.late,
    )
