"""The binary log of a MySQL or MariaDB server, read as batches of events.

A transaction that is larger than a piece comes in several results of `read`; only the last event of
it has `tx_end`. Positions inside a transaction are as good as others: reading begins again at the
transaction's start, and what was handed out before is left out.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ..env import expand
from ..kernels import binlog as kernel
from . import MysqlSource
from .log import SourceError, logger
from .mysql_address import parse as parse_dsn
from .mysql_binlog import MOST_EVENTS, Broken, Dump, Refused
from .mysql_catalog import Catalog
from .mysql_decode import File, Home, RowsReader
from .mysql_events import EventBuilder
from .mysql_history import LogHistory
from .mysql_notes import Era, Notes, Run
from .mysql_odd import Odd
from .mysql_position import Place, file_number
from .mysql_position import parse as parse_position
from .mysql_registry import Registry
from .mysql_resume import Resume
from .mysql_server import Captured, Server
from .mysql_tables import Here, Tables
from .mysql_walk import Taken, Walk
from .settings import ReaderSettings

PIECE_BYTES = 8 << 20  # of an open transaction, until it is handed out in pieces
BEGIN_SECS = 5.0
RETENTION_SECS = 60.0


class BinlogLog:
    """What the segment reader reads; see LogReader."""

    def __init__(self, source: MysqlSource, settings: ReaderSettings) -> None:
        self._source = source
        self._settings = settings
        self._address = parse_dsn(expand(source.dsn))
        # A server ends the stream of the replica that had a number before. One that only looks on must
        # not do that to the pipeline.
        guest = f"{source.id}/guest/{uuid.uuid4()}"
        self._replica = guest if settings.guest else source.id
        self.captured = Captured(source.tables, source.outbox_tables)
        self._notes: Notes | None = None
        self._registry: Registry | None = None
        self._server: Server | None = None
        self._dump: Dump | None = None
        self._told_idle = False
        self._position = self._start = self._last = self._skip = ""
        self._runs: list[Run] = []
        self._over: list[tuple[str, str]] = []  # ends of XA transactions, and their names
        self._checked = 0
        self.pieces = 0  # times that an open transaction was handed out
        self._next_begin = self._next_look = 0.0
        self._older: dict[str, list[tuple[int, Run]]] = {}  # handed out from another server's log
        self._arrived = False  # at what no other server's log had
        self._moved_until = ""
        self._new_era: Era | None = None
        self._going: Generator[list[pa.RecordBatch], None, None] | None = (
            None  # the rest of what is at hand
        )
        self.era = 0
        self.file = ("", 0)

    # --- LogReader ---------------------------------------------------------------------------

    @property
    def position(self) -> str:
        return self._position

    def open(self, start: str) -> str:
        return self._open(start, distrust=False)

    def close(self) -> None:
        if self._going is not None:
            self._going.close()  # with the connection that it may have of its own
            self._going = None
        if self._dump is not None:
            self._dump.close()
        if self._server is not None:
            self._server.close()
        self._dump = self._server = None

    def head(self) -> str:
        file, offset, _ = self.server.head()
        return str(Place(self.era, file_number(file)[1], offset))

    def ceiling(self) -> str:
        return max(self.head(), self._position)

    def copied(self) -> bool:
        return True

    def quiet(self) -> float:
        return 0.0

    def read(self, wait: float) -> list[pa.RecordBatch]:
        until = time.monotonic() + wait
        while True:
            try:
                out = self._next_pieces()
            except Broken as error:
                raise SourceError(
                    f"the binary log cannot be read at {self.where(error.at)}: {error}"
                ) from error
            except _OtherLog:
                self._open(self._position or self._start, distrust=True)
                out = []
            if out:
                self._note(out)
                return out
            left = until - time.monotonic()
            if left <= 0:
                self._note_begin()
                return []
            self._fill(left)

    def durable(self, position: str) -> None:
        notes = self._notes
        if notes is None or self._dump is None:
            return
        notes.delivered(position)
        while self._over and self._over[0][0] <= position:
            notes.prepared.pop(self._over.pop(0)[1], None)
        if position >= self._last and not self.walk.inside and self._position > position:
            notes.add(self.era, self._position, self._runs)
            self._runs = []
            notes.idle(self._position, self._last)
        self._watch_retention(position)

    # --- for those that work beside it ---------------------------------------------------------

    @property
    def server(self) -> Server:
        if self._server is None:
            raise SourceError("the log is not open")
        return self._server

    @property
    def dump(self) -> Dump:
        if self._dump is None:
            raise SourceError("the log is not open")
        return self._dump

    def here(self) -> Here:
        """The file that is being read, as the present server numbers it."""
        return self.era, self.file[1]

    def second_dump(self, name: str) -> Dump:
        """Another connection to the same log, under a number of its own."""
        return Dump(self._address, self.server.mariadb, f"{self._replica}/{name}")

    def file_name(self, number: int) -> str:
        assert self._notes is not None
        return self._notes.era(self.era).name(number)

    @property
    def prepared(self) -> dict[str, str]:
        assert self._notes is not None
        return self._notes.prepared

    def save_notes(self) -> None:
        assert self._notes is not None
        self._notes.save()

    def where(self, event: int) -> str:
        """An event's place, for people."""
        end = 0
        if 0 <= event < self.dump.count:
            end = int(self.dump.events[event, kernel.POS])
        return f"{self.file[0]}, event that ends at {end}" if end else self.file[0]

    @property
    def how_to_reset(self) -> str:
        return self._settings.how_to_reset

    def had_tables_of(self, database: str) -> bool:
        assert self._registry is not None
        return any(self.captured(*name) for name in self._registry.names() if name[0] == database)

    def start_of_open(self) -> Place:
        """Before the open transaction."""
        return Place(self.era, self.file[1], int(self.walk.open_tx()[0, kernel.T_START]))

    def unchecked_from(self, event: int) -> None:
        """The checksums of these events are still to be looked at."""
        self._checked = event

    def forget_later(self, name: str) -> None:
        """The first part of an XA transaction that is over, once the sinks have its end."""
        self._over.append((self._position, name))

    def place(self) -> Place:
        """Behind the last whole transaction."""
        return Place(self.era, self.file[1], self.walk.done_pos)

    # --- opening -----------------------------------------------------------------------------

    def _open(self, start: str, distrust: bool) -> str:
        self.close()
        settings, source = self._settings, self._source
        self._server = Server(self._address)
        self._server.check(source.id)
        if not self._told_idle:
            self._server.warn_of_idle(source.id, (*source.tables, *source.outbox_tables))
            self._told_idle = True
        tables = [source.tables, source.outbox_tables]
        self._notes = self._notes or Notes(settings, tables)
        self._registry = self._registry or Registry(settings)
        begin = Resume(self._server, self._notes, settings).find(start, distrust)
        self.era, self._new_era = begin.place.era, begin.era
        self._older, self._arrived = {}, False
        self._start = start
        self.walk = Walk()
        catalog = Catalog(self._server)
        history = LogHistory(self._address, self._server, self._replica, catalog)
        mariadb = self._server.mariadb
        self.tables = Tables(
            self.captured,
            self._registry,
            catalog,
            history,
            mariadb,
            source.json_wide_integers,
            source.on_schema_drift,
        )
        self.builder = EventBuilder(settings, mariadb)
        self.rows = RowsReader(self.builder, self.tables, self.walk)
        self._odd = Odd(self)
        self._going = None
        self._checked = 0
        self._over = []
        self._runs = []
        self._last = start
        self._skip = start
        self._next_begin = self._next_look = 0.0
        self._dump = Dump(self._address, mariadb, self._replica)
        place = begin.place
        try:
            if begin.done is not None:
                self._older = self._notes.places(but=self.era)
                self._moved_until = self.head()
                self.file = ("", 0)
                self._dump.from_gtids(begin.done)
                self._position = start if self._older else str(place)
            else:
                self.file = (begin.file, place.file)
                self._dump.from_file(begin.file, max(4, place.offset))
                self.walk.new_file(place.offset)
                self._position = max(start, str(place))
        except Refused as error:
            raise self._refused(error) from None
        if begin.done is None and str(place) >= self.head():
            ours = [name for name in self._server.tables() if self.captured(*name)]
            self.tables.preload(ours, Place(self.era, place.file, place.offset))
        return self._position

    def _refused(self, error: Refused) -> SourceError:
        return SourceError(
            f"{error}: the log does not hold what comes next; {self._settings.how_to_reset}"
        )

    # --- reading -----------------------------------------------------------------------------

    def _fill(self, wait: float) -> None:
        try:
            self.dump.fill(wait)
        except Refused as error:
            raise self._refused(error) from None

    def _next_pieces(self) -> list[pa.RecordBatch]:
        """Events of what is at hand, no more at once than make a large piece; none when all is out."""
        going, self._going = self._going or self._advance(), None
        out: list[pa.RecordBatch] = []
        size = 0
        for piece in going:
            out += piece
            size += sum(batch.nbytes for batch in piece)
            if size >= PIECE_BYTES:
                self._going = going
                break
        return out

    def _advance(self) -> Generator[list[pa.RecordBatch], None, None]:
        """Follows what is at hand; the events that come out of it."""
        while True:
            self._check()
            why = self.walk.follow(self.dump)
            if why == kernel.ODD:
                yield from self._odd.handle()
            elif why == kernel.NO_ROOM:
                yield self.hand_out(True)
            else:
                break
        first = int(self.walk.state[kernel.S_DONE_EVENT])
        large = self.dump.size(first) > PIECE_BYTES or self.dump.count > MOST_EVENTS // 2
        yield self.hand_out(self.walk.inside and large)

    def _check(self) -> None:
        """Checksums, up to where a new file may have others."""
        events, count, first = self.dump.events, self.dump.count, self._checked
        if self.walk.state[kernel.S_TAIL] == 0 or first >= count:
            return
        formats = np.flatnonzero(events[first:count, kernel.TYPE] == kernel.FORMAT)
        last = first + int(formats[0]) if len(formats) else count
        run = kernel.CHECKSUMS.after(last - first)
        if run is not None:
            wrong = run(self.dump.data, events, first, last, kernel.CRC_TABLES)
        else:
            wrong = kernel.checksums_python(self.dump.data, events, first, last)
        if wrong >= 0:
            raise Broken("its checksum is wrong: the log is damaged", int(wrong))
        self._checked = last

    def hand_out(self, all_of_it: bool) -> list[pa.RecordBatch]:
        """Whole transactions as events, and with `all_of_it` what there is of the open one."""
        taken = self.walk.take(all_of_it)
        self.pieces += all_of_it
        if self._odd.preparing:
            self._drop(taken, all_of_it)
            return []
        out: list[pa.RecordBatch] = []
        for part, era, file in self._parts(taken):
            made = self.rows.read(self.dump, self.walk, part, era, file, self.here())
            if era == self.era:
                self._keep_runs(part)
                self._arrived = self._arrived or bool(made)
            else:
                self._check_moved(part, bool(made))
            out += made
        self._drop(taken, all_of_it)
        return self.handed(out)

    def _check_moved(self, part: Taken, made: bool) -> None:
        """Whether another server's log has the same transactions in the same form and order."""
        why = "in another order" if made and self._arrived else ""
        names, sources = self.walk.names, self.walk.sources(part.txs)
        for index in range(part.whole):
            number = int(part.txs[index, kernel.T_NUMBER])
            for _, run in self._older[names[int(sources[index])]]:
                if run.first <= number <= run.last:
                    if run.ends[number - run.first] != self.rows.ends[index]:
                        why = "cut into other events (binlog_row_event_max_size)"
                    break
        if why:
            raise SourceError(
                f"server {self._address} is not the one that was read before, and has transactions "
                f"{why}: which of them the sinks have cannot be told; {self.how_to_reset}"
            )

    def _parts(self, taken: Taken) -> Iterator[tuple[Taken, int, File]]:
        """Transactions by where they stand: those that another server's log had first, there.

        A sink that has some of them from that server knows them by their old positions.
        """
        if not self._older or len(taken.txs) == 0:
            yield taken, self.era, self.file
            return
        homes = [self.home(taken.txs[n : n + 1]) for n in range(len(taken.txs))]
        first = 0
        for n in range(1, len(homes) + 1):
            if n < len(homes) and homes[n][:2] == homes[first][:2]:
                continue
            rows = taken.rows[
                slice(*np.searchsorted(taken.rows[:, kernel.R_TX], (first, n)).tolist())
            ].copy()
            rows[:, kernel.R_TX] -= first
            txs = np.concatenate([home[2] for home in homes[first:n]])
            whole = min(max(taken.whole - first, 0), n - first)
            yield Taken(rows, txs, whole), homes[first][0], homes[first][1]
            first = n

    def home(self, tx: Any) -> Home:
        """Era, file and entry of one transaction, as its position tells them."""
        source = int(self.walk.sources(tx)[0]) if self._older else -1
        if source < 0:
            return self.era, self.file, tx
        number = int(tx[0, kernel.T_NUMBER])
        for era, run in self._older.get(self.walk.names[source], ()):
            if run.first <= number <= run.last:
                moved = tx.copy()
                moved[0, kernel.T_START] = run.starts[number - run.first]
                return era, (self.file[0], run.file), moved
        return self.era, self.file, tx

    def _drop(self, taken: Taken, all_of_it: bool) -> None:
        self._checked = max(0, self._checked - self.walk.forget(self.dump, taken, all_of_it))

    def handed(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Moves the position over these; without what the sinks have from before."""
        out = []
        for batch in batches:
            end = batch["position"][-1].as_py()
            if self._skip:
                places = np.asarray(batch["position"].to_pylist())
                batch = batch.slice(int(np.searchsorted(places, self._skip, side="right")))
                if end > self._skip:
                    self._skip = ""
            if batch.num_rows:
                out.append(batch)
                self._position = self._last = end
        # Behind what the server had when it was asked, nothing of the other one's can follow.
        self._arrived = self._arrived or str(self.place()) >= self._moved_until
        if not self._older or self._arrived:
            self._position = max(self._position, str(self.place()))
        return out

    def _keep_runs(self, taken: Taken) -> None:
        """Whole transactions by GTID, those with numbers in a row together."""
        txs = taken.txs[: taken.whole]
        if len(txs) == 0:
            return
        sources = self.walk.sources(txs)
        numbers = txs[:, kernel.T_NUMBER]
        cuts = np.flatnonzero((np.diff(sources) != 0) | (np.diff(numbers) != 1)) + 1
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(txs)], strict=True):
            if sources[first] >= 0:
                self._runs.append(
                    Run(
                        self.walk.names[int(sources[first])],
                        int(numbers[first]),
                        self.file[1],
                        txs[first:last, kernel.T_START].copy(),
                        self.rows.ends[first:last].copy(),
                    )
                )

    def _note(self, out: list[pa.RecordBatch]) -> None:
        """What another server would have to be asked for, before the events go anywhere."""
        assert self._notes is not None
        self._notes.add(self.era, out[-1]["position"][-1].as_py(), self._runs)
        self._runs = []

    def _note_begin(self) -> None:
        """As long as nothing was ours, a restart need not look at it again."""
        now = time.monotonic()
        if self._last or self.walk.inside or now < self._next_begin or self._notes is None:
            return
        self._next_begin = now + BEGIN_SECS
        if self._position > self._notes.begin and self.file[0]:
            self._notes.add(self.era, self._position, self._runs)
            self._runs = []
            self._notes.begin = self._position
            self._notes.idle(self._position, "")

    def new_file(self, name: str, offset: int) -> None:
        """The log goes on in this file."""
        self.file = (name, file_number(name)[1])
        self.walk.new_file(offset)

    def begun(self, seconds: int) -> None:
        """When the present file was begun: another moment than before means another log."""
        assert self._notes is not None
        if self._new_era is not None:
            self._notes.eras.append(self._new_era)
            self._notes.save()
            self._new_era = None
        era = self._notes.era(self.era)
        known = self.file[1] in era.stamps
        if not era.stamp(self.file[1], seconds):
            raise _OtherLog
        if not known:
            self._notes.save()

    # --- retention ---------------------------------------------------------------------------

    def _watch_retention(self, position: str) -> None:
        """Says so while there is time: the server is about to remove what a restart would need."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + RETENTION_SECS
        place = parse_position(position.partition("-s")[0])
        if place.era != self.era:
            return
        oldest = file_number(self.server.logs()[0][0])[1]
        if place.file == oldest < self.file[1]:
            logger.warning(
                "source %s: the sinks stand in %s, the oldest file that the server has: when it is "
                "removed before they are through, a restart cannot go on; keep the log for longer",
                self._source.id,
                self.file_name(place.file),
            )
        elif place.file < oldest:
            logger.warning(
                "source %s: the server has removed %s, which the sinks still need: after a restart "
                "the changes in it could not be had again",
                self._source.id,
                self.file_name(place.file),
            )


class _OtherLog(Exception):
    """A file of the log that has the name of another one."""
