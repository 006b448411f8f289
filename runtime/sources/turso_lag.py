"""The lag of a Turso source: the changes behind a position, counted in the shadow tables."""

from __future__ import annotations

from . import TursoSource
from .lag import Lag, NotAPosition
from .log import SourceError
from .turso_database import Database, transaction
from .turso_schema import captured, quote
from .turso_triggers import LAYOUTS, SEQUENCE, shadow

_BUSY_SECS = 1.0
_POLLED = 24  # characters of a position in polling mode


def lag(source: TursoSource, position: str) -> Lag:
    """Only changes of the source's tables count: others are not on their way to any sink."""
    if source.cdc_mode == "polling" or len(position) == _POLLED:
        raise SourceError("in polling mode rows are not counted before they are read")
    database = Database(source.url)
    connection = database.connect(busy_secs=_BUSY_SECS)
    try:
        with database.guarded(), transaction(connection, "DEFERRED"):
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if SEQUENCE.strip('"') not in {name for (name,) in names}:
                raise SourceError("the database has no change triggers yet")
            try:
                at = int(position or "0", 16)
            except ValueError:
                raise NotAPosition(f"{position!r} is not a position of this source") from None
            head = connection.execute(f"SELECT n FROM {SEQUENCE}").fetchone()[0]
            if at > head:
                raise NotAPosition(
                    f"the position is ahead of the database's last change, {head:016x}"
                )
            tables = connection.execute(f"SELECT DISTINCT tbl FROM {LAYOUTS}").fetchall()
            counts = [
                connection.execute(
                    f"SELECT count(*) FROM {quote(shadow(table))} WHERE change_id > ?", (at,)
                ).fetchone()[0]
                for (table,) in tables
                if captured(table, source.tables)
            ]
            return Lag(sum(counts), "events")
    finally:
        connection.close()
