"""Events that are not rows: new files, statements, what begins and ends transactions."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from ..kernels import binlog as kernel
from .log import SourceError
from .mysql_binlog import Broken
from .mysql_events import DDL_TABLE, READ, TRUNCATE, Shown
from .mysql_packets import (
    Damaged,
    heartbeat,
    query_text,
    rotation,
    starts_server,
    tagged,
    tail_of,
)
from .mysql_parts import Parts
from .mysql_position import Place
from .mysql_server import SYSTEM
from .mysql_statements import DDL, Statement, emptied, read

if TYPE_CHECKING:
    from .mysql_log import BinlogLog

Batches = list[pa.RecordBatch]


class Odd:
    """Sees to the event at which following stopped."""

    def __init__(self, log: BinlogLog) -> None:
        self._log = log
        self._parts = Parts(log)
        self._savepoints: dict[str, tuple[int, int, int]] = {}
        self._torn = False  # a file has ended inside a transaction

    @property
    def preparing(self) -> bool:
        """Inside the first part of an XA transaction: nothing of it counts."""
        return self._parts.preparing

    def handle(self) -> Iterable[Batches]:
        """What comes of it, in pieces: what stands behind the event is to be asked for after them."""
        log, walk = self._log, self._log.walk
        frames, at = log.dump, walk.at
        kind = int(frames.events[at, kernel.TYPE])
        match kind:
            case kernel.ROTATE:
                return [self._rotated()]
            case kernel.FORMAT:
                walk.state[kernel.S_TAIL] = tail_of(frames.body(at))
                self._mend(at)
                log.begun(int(frames.events[at, kernel.TIME]))
                walk.passed(self._end(at))
                log.unchecked_from(walk.at)
                return []
            case kernel.HEARTBEAT | kernel.HEARTBEAT_2:
                return [self._heard(at, kind == kernel.HEARTBEAT_2)]
            case kernel.QUERY | kernel.QUERY_COMPRESSED:
                return self._query(at, kind == kernel.QUERY_COMPRESSED)
            case kernel.MARIADB_GTID:
                return [self._parts.begun(self._end(at))]
            case kernel.XA_PREPARE:
                return self._parts.prepared(self._end(at))
            case kernel.GTID_TAGGED:
                self._tagged(at)
                return []
            case kernel.PAYLOAD:
                return self._parts.payload(self._end(at))
            case kernel.INCIDENT:
                raise SourceError(
                    f"the server says in its log ({log.where(at)}) that changes are missing from "
                    f"it; copy the tables anew: {log.how_to_reset}"
                )
        if int(frames.events[at, kernel.FLAGS]) & kernel.IGNORABLE:
            walk.passed(self._end(at))
            return []
        raise SourceError(
            f"the log has an event of type {kind} ({log.where(at)}), which this version does not "
            "know: it may hold changes"
        )

    def _end(self, at: int) -> int:
        """Where an event ends in its file."""
        events, before = self._log.dump.events, self._log.walk.pos
        pos = int(events[at, kernel.POS])
        if pos == 0 or int(events[at, kernel.FLAGS]) & kernel.ARTIFICIAL:
            return before
        after = before & ~0xFFFFFFFF | pos
        return after + 0x100000000 if after < before - 0x80000000 else after

    def _size(self, at: int) -> int:
        events = self._log.dump.events
        return int(events[at, kernel.STOP] - events[at, kernel.START])

    # --- files -----------------------------------------------------------------------------------

    def _rotated(self) -> Batches:
        log, walk = self._log, self._log.walk
        out = log.hand_out(False)
        name, offset = rotation(log.dump.whole(walk.at))
        if walk.inside and name != log.file[0]:
            if not int(log.dump.events[walk.at, kernel.FLAGS]) & kernel.ARTIFICIAL:
                raise Broken("a file ends inside a transaction", walk.at)
            self._torn = True
        log.new_file(name, offset)
        walk.passed(walk.pos)
        return log.handed(out)

    def _mend(self, at: int) -> None:
        """A file that ends inside a transaction is what a server that died leaves behind: when it
        started again it rolled that transaction back."""
        if not self._torn:
            return
        if not starts_server(self._log.dump.body(at)):
            raise Broken("the file before it ends inside a transaction", at)
        self._roll_back(at)
        self._log.walk.abandon()
        self._parts.preparing = self._torn = False

    def _heard(self, at: int, newer: bool) -> Batches:
        """Of a server that has nothing to send: it tells how far it has looked."""
        log, walk = self._log, self._log.walk
        file, pos = heartbeat(log.dump.whole(at), int(log.dump.events[at, kernel.POS]), newer)
        out = log.hand_out(False)
        if not walk.inside and file == log.file[0]:
            before = walk.pos
            pos = pos if pos >> 32 else before & ~0xFFFFFFFF | pos
            if pos > before:
                walk.new_file(pos)
        walk.passed(walk.pos)
        return log.handed(out)

    # --- statements ----------------------------------------------------------------------------

    def _query(self, at: int, compressed: bool) -> Iterable[Batches]:
        log, walk = self._log, self._log.walk
        tail = int(walk.state[kernel.S_TAIL])
        try:
            database, sql = query_text(log.dump.body(at, tail), compressed)
        except Damaged as error:
            raise Broken(str(error), at) from None
        words = sql[:64].upper().split()
        first = words[0].rstrip(";") if words else ""
        pos = self._end(at)
        if first == "BEGIN" or words[:2] == ["START", "TRANSACTION"]:
            if walk.inside:
                walk.state[kernel.S_ALONE] = 0
            else:
                self._begin(at, pos)
            walk.passed(pos)
            return []
        if first == "COMMIT" or (first == "ROLLBACK" and "TO" not in words[:3]):
            if first == "ROLLBACK" and walk.inside:
                # It is in the log because the session made or dropped a temporary table meanwhile.
                # Rows of tables without transactions, which stay, are in a group of their own.
                self._roll_back(at)
            walk.passed(pos)
            if walk.inside:
                walk.end(pos)
            return []
        if first in ("SAVEPOINT", "RELEASE", "ROLLBACK"):
            self._savepoint(first, words, at)
            walk.passed(pos)
            return []
        if first == "XA":
            return self._parts.statement(pos, words[1] if len(words) > 1 else "", sql)
        if not walk.inside:
            self._begin(at, pos)
            walk.state[kernel.S_ALONE] = 1
        folds = log.server.folds
        statement = read(sql, folds)
        here = database.lower() if folds else database
        out = self._statement(statement, here, sql, at, pos)
        alone = bool(walk.state[kernel.S_ALONE])
        walk.passed(pos)
        if alone:
            walk.end(pos)
            out += log.hand_out(False)
        return [out]

    def _roll_back(self, at: int) -> None:
        """Takes back all of the open transaction."""
        if self._log.rows.begun:
            raise self._too_late(at, "a large transaction was rolled back")
        self._log.walk.take_back(0)

    def _too_late(self, at: int, what: str) -> SourceError:
        return SourceError(
            f"{what} ({self._log.where(at)}), and what it took back was handed out already; "
            f"{self._log.how_to_reset}"
        )

    def _savepoint(self, verb: str, words: list[str], at: int) -> None:
        """Rows behind a savepoint are in the log even when they were taken back, if the same
        session wrote to a table without transactions meanwhile."""
        log, walk = self._log, self._log.walk
        name = words[-1].strip("`;")
        key = (int(walk.open_tx()[0, kernel.T_START]), log.pieces)
        if verb == "SAVEPOINT":
            self._savepoints[name] = (*key, walk.open_rows)
        elif verb == "ROLLBACK":
            start, pieces, rows = self._savepoints.get(name, (-1, -1, 0))
            if (start, pieces) != key:
                raise self._too_late(at, "a large transaction was rolled back in part")
            walk.take_back(rows)

    def _begin(self, at: int, pos: int) -> None:
        events = self._log.dump.events
        self._log.walk.begin(
            pos - self._size(at),
            int(events[at, kernel.TIME]),
            int(events[at, kernel.SERVER]),
        )

    def _statement(
        self, statement: Statement, database: str, sql: str, at: int, pos: int
    ) -> Batches:
        log, walk = self._log, self._log.walk
        if statement.changes_rows:
            # A server writes it for tables in memory when it has started.
            whole = emptied(sql)
            if whole is None:
                self._check_rows(statement, database, at)
                return []
            statement = whole
        if statement.verb not in DDL:
            return []
        named = [(db or database, table) for db, table in statement.tables]
        ours = [name for name in named if log.captured(*name)]
        dropped = statement.database
        if dropped is not None and self._has_tables_of(dropped):
            ours.append((dropped, DDL_TABLE))
        out = log.hand_out(True) if ours or statement.schema else []
        era, file, tx = log.home(walk.open_tx())
        place = str(Place(era, file[1], int(tx[0, kernel.T_START])))
        if statement.schema and not named and dropped is None:
            raise SourceError(
                f"a statement of the log cannot be understood ({log.where(at)}, {statement.verb}): "
                "which tables it changes is not known"
            )
        for db, table in named:
            if statement.schema:
                log.tables.changed(db, table, place)
        if dropped is not None:
            log.tables.changed(dropped, None, place)
        if not ours:
            return out
        alone = bool(walk.state[kernel.S_ALONE])
        if statement.verb == "TRUNCATE":
            shown, op, ddl = log.tables.shown(*ours[0]), TRUNCATE, None
        else:
            shown, op = Shown(ours[0][0], DDL_TABLE), READ
            told = {"sql": sql, "database": database or ours[0][0]}
            ddl = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        made = log.rows.statement(shown, op, ddl, pos, log.home(walk.open_tx()), alone)
        return out + log.handed(made)

    def _has_tables_of(self, database: str) -> bool:
        log = self._log
        return database.lower() not in SYSTEM and log.had_tables_of(database)

    def _check_rows(self, statement: Statement, database: str, at: int) -> None:
        """Changes that are in the log as a statement: what they did to the rows is not there."""
        log = self._log
        for db, table in log.server.tables():
            if log.captured(db, table) and statement.mentions(db, table, database):
                raise SourceError(
                    f"a session has written {statement.verb} on {db}.{table} to the log as a "
                    f"statement ({log.where(at)}): it had a binlog_format other than ROW, and which "
                    f"rows it changed is not known. Let all sessions use ROW (SET GLOBAL "
                    f"binlog_format = 'ROW'), then {log.how_to_reset}"
                )

    # --- MySQL: GTIDs with tags ---------------------------------------------------------------------

    def _tagged(self, at: int) -> None:
        log, walk = self._log, self._log.walk
        tail = int(walk.state[kernel.S_TAIL])
        try:
            found = tagged(log.dump.body(at, tail))
        except (struct.error, IndexError, ValueError):
            raise Broken("a GTID event is damaged", at) from None
        pos = self._end(at)
        events = log.dump.events
        key = hash(found.source) & 0x3FFFFFFFFFFFFFFF | 1
        walk.name(key, found.source)
        walk.begin_named(
            (
                pos - self._size(at),
                found.number,
                key,
                at,
                found.micros,
                int(events[at, kernel.TIME]),
                int(events[at, kernel.SERVER]),
                0,
            ),
            alone=True,
        )
        walk.passed(pos)
