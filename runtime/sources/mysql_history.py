"""Whether the catalog's columns held at an earlier place of the log, which does not name them.

They did when no statement between that place and now is about the table. The log is looked through
for such statements by a second connection, once as far as it goes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ..kernels import binlog as kernel
from .log import TransientError
from .mysql_address import Address
from .mysql_binlog import Dump
from .mysql_catalog import Catalog, Described
from .mysql_packets import query_text, rotation, tail_of
from .mysql_position import Place, file_number
from .mysql_server import Server
from .mysql_statements import Statement, read
from .mysql_tables import Unsure, how_to_name

_PATIENCE_SECS = 600.0


@dataclass(frozen=True, slots=True)
class _Seen:
    place: Place
    statement: Statement
    database: str

    def is_about(self, db: str, table: str) -> bool:
        named = {(d or self.database, t) for d, t in self.statement.tables}
        if self.statement.database == db or (db, table) in named:
            return True
        unclear = self.statement.schema and not self.statement.tables
        return unclear and self.statement.mentions(db, table, self.database)


class LogHistory:
    """Looks ahead in the log of one server."""

    def __init__(self, address: Address, server: Server, source_id: str, catalog: Catalog) -> None:
        self._address = address
        self._server = server
        self._source = source_id
        self._catalog = catalog
        self._from: Place | None = None
        self._upto: Place | None = None
        self._seen: list[_Seen] = []

    def columns(self, db: str, table: str, here: Place) -> Described:
        self._catalog.forget(db, table)
        described = self._catalog.table(db, table)
        file, offset, _ = self._server.head()
        head = Place(here.era, file_number(file)[1], offset)
        if described is None:
            raise Unsure(
                f"table {db}.{table} is in the log without the names of its columns, and is not in "
                f"the catalog: it was removed, or the user has no SELECT on it "
                f"({self._server.grants()}). " + how_to_name(self._server.mariadb)
            )
        self._look(here, head)
        for seen in self._seen:
            if here <= seen.place < head and seen.is_about(db, table):
                raise Unsure(
                    f"the columns that table {db}.{table} had at this place of the log are not "
                    f"known: the log does not name them, and a statement ({seen.statement.verb}) "
                    "has changed the table since. " + how_to_name(self._server.mariadb)
                )
        return described

    def _look(self, since: Place, head: Place) -> None:
        if self._upto is not None and self._from is not None and self._from <= since:
            since = max(since, self._upto)
        else:
            self._from, self._seen = since, []
        if since < head:
            dump = Dump(self._address, self._server.mariadb, f"{self._source}/ahead")
            try:
                self._scan(dump, since, head)
            finally:
                dump.close()
        self._upto = head

    def _scan(self, dump: Dump, since: Place, head: Place) -> None:
        base, _, digits = file_number(self._server.head()[0])
        dump.from_file(f"{base}.{since.file:0{digits}d}", max(4, since.offset))
        file, pos, tail = since.file, since.offset, 0
        until = time.monotonic() + _PATIENCE_SECS
        while time.monotonic() < until:
            dump.fill(1.0)
            kinds = dump.events[: dump.count, kernel.TYPE]
            wanted = np.isin(kinds, (kernel.QUERY, kernel.QUERY_COMPRESSED, kernel.ROTATE, 15))
            ends = dump.ends(pos)
            for index in np.flatnonzero(wanted).tolist():
                if kinds[index] == kernel.ROTATE:
                    file = file_number(rotation(dump.whole(index))[0])[1]
                elif kinds[index] == kernel.FORMAT:
                    tail = tail_of(dump.body(index))
                else:
                    database, sql = query_text(
                        dump.body(index, tail), kinds[index] == kernel.QUERY_COMPRESSED
                    )
                    start = int(ends[index]) - dump.length(index)
                    folds = self._server.folds
                    statement = read(sql, folds)
                    database = database.lower() if folds else database
                    if statement.schema or statement.database or statement.verb == "RENAME":
                        self._seen.append(_Seen(Place(since.era, file, start), statement, database))
            if dump.count:
                pos = int(ends[-1])
                dump.drop(dump.count)
            if (file, pos) >= (head.file, head.offset):
                return
        raise TransientError("looking ahead in the binary log took too long")
