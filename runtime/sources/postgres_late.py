"""Tables that were added to a publication that is being read: the log has their rows only from then on.

What was committed before, and what a transaction wrote that was running then, has to be copied; where
nothing is copied, somebody has to be told.
"""

from __future__ import annotations

from .log import logger
from .postgres_address import Address, Connection
from .postgres_notes import Notes

# The server sends a change by what the publication had when it was made, not when it was committed. Whoever
# has written to the table keeps such a lock until his transaction is over and can be seen by all.
_WRITERS = (
    "SELECT ARRAY(SELECT DISTINCT l.virtualtransaction FROM pg_catalog.pg_locks l"
    "  JOIN pg_catalog.pg_database d ON d.oid = l.database"
    "  WHERE l.locktype = 'relation' AND l.granted AND d.datname = pg_catalog.current_database()"
    "   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',"
    "    'AccessExclusiveLock')"
    "   AND (l.relation = t.oid OR l.relation IN"
    "    (SELECT p.relid FROM pg_catalog.pg_partition_tree(t.oid) p))),"
    " pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text,"
    " EXISTS (SELECT FROM pg_catalog.pg_publication_tables p WHERE p.pubname = %s"
    "  AND p.schemaname = n.nspname AND p.tablename = c.relname)"
    " FROM (SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid AS oid) t"
    " JOIN pg_catalog.pg_class c ON c.oid = t.oid"
    " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
)


class LateTables:
    """Kept in storage from before a table is added until its copy is, so that a crash forgets none.

    copies      whether somebody takes them, to copy them
    """

    def __init__(self, address: Address, publication: str, copies: bool) -> None:
        self._address = address
        self._publication = publication
        self._copies = copies
        self._notes: Notes | None = None
        self._first = False
        self._writers: dict[str, set[str] | None] = {}  # None until it was looked who they are
        self._ready: list[str] = []

    def open(self, notes: Notes, first: bool) -> None:
        """`first` tells that a pipeline begins: what was there before is not promised to it."""
        self._notes, self._first = notes, first
        for name in notes.state.late if notes.state is not None else ():
            self._writers.setdefault(name, None)

    def add(self, name: str) -> None:
        """Before it is added to the publication."""
        self._writers[name] = None
        if not self._first:
            self._note()

    def look(self, connection: Connection) -> None:
        """Finds those that nobody has open any more who began before they were added."""
        for name, before in list(self._writers.items()):
            with self._address.guarded():
                row = connection.execute(_WRITERS, (self._publication, name)).fetchone()
            if row is None or not row[2]:
                self._forget(name)  # dropped again, or it was not to be had
                continue
            now = set(row[0])
            if before is None and self._first and not now:
                self._forget(name)
                continue
            if before is None and not self._copies:
                logger.warning(
                    "%s came to the publication %s at %s: what was committed there before is in no "
                    "event. `snapshot` copies such rows; a publication FOR TABLES IN SCHEMA "
                    "(PostgreSQL 15 and newer) has new tables from their first row on",
                    name,
                    self._publication,
                    row[1],
                )
                self._forget(name)
                continue
            left = self._writers[name] = now if before is None else before & now
            if not left and name not in self._ready:
                self._ready.append(name)
        self._first = False
        self._note()

    def ready(self) -> list[str]:
        """Those that can be copied now."""
        return list(self._ready)

    def taken(self, name: str) -> None:
        """It is noted elsewhere that it has to be copied."""
        self._forget(name)
        self._note()

    def _forget(self, name: str) -> None:
        self._writers.pop(name, None)
        if name in self._ready:
            self._ready.remove(name)

    def _note(self) -> None:
        if self._notes is not None:
            self._notes.save_late(tuple(self._writers))
