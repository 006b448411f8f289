"""Transactions whose rows stand elsewhere than their end: XA in two parts, payloads inside one event.

Both may be of any size, so their rows come in pieces, and no more is read than is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ..kernels import binlog as kernel
from .log import SourceError, TransientError, logger
from .mysql_binlog import Broken, Frames, Unpacked
from .mysql_packets import query_text, tail_of, xid_text
from .mysql_position import Place, file_number, parse
from .mysql_statements import DDL, read
from .mysql_walk import Taken, Walk

if TYPE_CHECKING:
    from .mysql_log import BinlogLog

Batches = list[pa.RecordBatch]

_PREPARED = 0x40  # a flag of MariaDB's GTIDs
_PATIENCE_SECS = 120.0
_NAMES = (kernel.GTID, kernel.ANONYMOUS, kernel.MARIADB_GTID, kernel.GTID_TAGGED)


class Parts:
    """Sees to such events; each result is a piece to hand out before the next one is made."""

    def __init__(self, log: BinlogLog) -> None:
        self._log = log
        self.preparing = False  # inside the first part of an XA transaction: nothing of it counts

    # --- XA: the rows are written when it is prepared, and count when it is committed -------------

    def begun(self, pos: int) -> Batches:
        """MariaDB: the GTID of one of the two parts."""
        log, walk = self._log, self._log.walk
        flags = log.dump.body(walk.at)[12]
        out = log.hand_out(False)  # what stands before it; the walk has begun this one already
        if flags & _PREPARED:
            self.preparing = True
            walk.state[kernel.S_ALONE] = 0
        walk.passed(pos)
        return out

    def statement(self, pos: int, verb: str, sql: str) -> Iterator[Batches]:
        log, walk = self._log, self._log.walk
        if verb == "START":
            yield log.hand_out(False)
            self.preparing = True
            walk.state[kernel.S_ALONE] = 0
        elif verb in ("COMMIT", "ROLLBACK") and walk.inside:
            name = _xid(sql)
            place = log.prepared.get(name)
            if verb == "COMMIT":
                yield log.hand_out(False)
                yield from self._rows_of(place or self._looked_for(name), pos)
            walk.passed(pos)
            walk.end(pos)
            yield log.hand_out(False)
            if place is not None:
                log.forget_later(name)
            return
        walk.passed(pos)

    def prepared(self, pos: int) -> Iterator[Batches]:
        log, walk = self._log, self._log.walk
        place = str(log.start_of_open())
        body = log.dump.body(walk.at, int(walk.state[kernel.S_TAIL]))
        log.hand_out(True)  # to nobody
        self.preparing = False
        if body[0]:  # committed in one step
            yield from self._rows_of(place, pos)
        else:
            log.prepared[xid_text(body)] = place
            log.save_notes()
        walk.passed(pos)
        walk.end(pos)
        yield log.hand_out(False)

    def _rows_of(self, place: str, pos: int) -> Iterator[Batches]:
        """The rows of the first part, read again, as rows of the transaction that is open now."""
        log, start = self._log, parse(place)
        if start.era != log.era:
            raise SourceError(
                "an XA transaction was prepared on one server and committed on another: its rows "
                f"cannot be read again. Copy the tables anew: {log.how_to_reset}"
            )
        dump, walk = log.second_dump("xa"), Walk()
        try:
            dump.from_file(log.file_name(start.file), start.offset)
            until = time.monotonic() + _PATIENCE_SECS
            while time.monotonic() < until:
                dump.fill(1.0)
                while (why := walk.follow(dump)) == kernel.ODD:
                    kind = int(dump.events[walk.at, kernel.TYPE])
                    if kind == kernel.FORMAT:
                        walk.state[kernel.S_TAIL] = tail_of(dump.body(walk.at))
                    if kind == kernel.XA_PREPARE:
                        yield self._as_ours(dump, walk, pos)
                        return
                    if kind == kernel.ROTATE and walk.inside:
                        raise Broken("a file ends inside a transaction", log.walk.at)
                    walk.at += 1
                if int(walk.state[kernel.S_ROWS]) or why == kernel.NO_ROOM:
                    yield self._as_ours(dump, walk, pos)
                    until = time.monotonic() + _PATIENCE_SECS  # those who take the rows took theirs
                elif not walk.inside:
                    walk.forget(dump, walk.take(True), True)
        finally:
            dump.close()
        raise TransientError("the rows of an XA transaction were not read in time")

    def _looked_for(self, name: str) -> str:
        """Where a part begins that stands before the place where the pipeline began, newest file first."""
        log = self._log
        here = log.file[1]
        for file, _ in reversed(log.server.logs()):
            number = file_number(file)[1]
            if number > here:
                continue
            found = self._found_in(file, number, name)
            if found is not None:
                return str(Place(log.era, number, found))
        raise SourceError(
            f"an XA transaction was committed ({log.where(log.walk.at)}) whose rows stand in a part of "
            "the log that the server has removed: they are not known. "
            f"Copy the tables anew: {log.how_to_reset}"
        )

    def _found_in(self, file: str, number: int, name: str) -> int | None:
        """The offset of the last part of this name in a file, before what is being read now."""
        log = self._log
        end = log.walk.pos if number == log.file[1] else None
        dump, tail, start, found, begun = log.second_dump("xa"), 0, 0, None, False
        try:
            dump.from_file(file, 4)
            pos, until = 4, time.monotonic() + _PATIENCE_SECS
            while time.monotonic() < until:
                if dump.fill(1.0):
                    until = time.monotonic() + _PATIENCE_SECS
                ends = dump.ends(pos)
                for index in range(dump.count):
                    kind, pos = int(dump.events[index, kernel.TYPE]), int(ends[index])
                    if kind == kernel.ROTATE and index + pos > 4 and begun:
                        return found  # the next file
                    if kind == kernel.FORMAT:
                        tail, begun = tail_of(dump.body(index)), True
                    elif kind in _NAMES:
                        start = pos - dump.length(index)
                    elif kind == kernel.XA_PREPARE and xid_text(dump.body(index, tail)) == name:
                        found = start
                    if end is not None and pos >= end and begun:
                        return found
                dump.drop(dump.count)
        finally:
            dump.close()
        raise TransientError("looking back in the binary log took too long")

    def _as_ours(self, dump: Frames, walk: Walk, pos: int) -> Batches:
        """The rows that another stream has brought so far, as rows of the open transaction."""
        log = self._log
        taken = walk.take(True)
        rows = taken.rows.copy()
        rows[:, kernel.R_TX], rows[:, kernel.R_POS] = 0, pos
        era, file, txs = log.home(log.walk.open_tx())
        made = log.rows.read(dump, walk, Taken(rows, txs, 0), era, file, log.here(), packed=True)
        walk.forget(dump, taken, True)
        return log.handed(made)

    # --- MySQL: compressed transactions -----------------------------------------------------------

    def payload(self, pos: int) -> Iterator[Batches]:
        """A whole transaction in one event; its own events have no place in the file."""
        log, walk = self._log, self._log.walk
        yield log.hand_out(False)
        inner = Unpacked(log.dump.body(walk.at, int(walk.state[kernel.S_TAIL])), walk.at)
        inside, more = Walk(), True
        inside.begin(pos, 0, 0)
        while more:
            more = inner.fill()
            inner.events[: inner.count, kernel.FLAGS] |= kernel.ARTIFICIAL
            why = kernel.NO_ROOM
            while why != kernel.AT_END:
                why = self._follow(inner, inside)
                yield self._as_ours(inner, inside, pos)
        walk.passed(pos)
        walk.end(pos)
        yield log.hand_out(False)

    def _follow(self, inner: Frames, inside: Walk) -> int:
        """As far as it goes: to the end of what was taken out, or until there is no room."""
        while (why := inside.follow(inner)) == kernel.ODD:
            if int(inner.events[inside.at, kernel.TYPE]) != kernel.QUERY:
                what = "a compressed transaction holds an event of another kind"
                raise Broken(what, self._log.walk.at)
            _, sql = query_text(inner.body(inside.at))
            if read(sql).verb in DDL:
                logger.warning("a compressed transaction holds a statement: %s", sql[:40])
            inside.at += 1
        return why


def _xid(sql: str) -> str:
    """The name in XA COMMIT or XA ROLLBACK, as `xid_text` has it."""
    text = sql.strip().split(None, 2)[2] if len(sql.split(None, 2)) > 2 else ""
    return text.upper().removesuffix("ONE PHASE").replace(" ", "").rstrip(";")
