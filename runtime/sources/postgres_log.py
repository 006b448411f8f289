"""The log of a PostgreSQL server by logical replication, as a LogReader.

What the slot is told: it may forget what every sink holds. While nothing of ours is on its way, that is
everything the server has read of its log, also when it was all about other tables.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
from psycopg.pq.abc import PGconn

from ..env import expand
from ..kernels.pgoutput import Splitter
from ..kernels.postgres_messages import COMMIT, MESSAGE, FrameError
from . import PostgresSource
from .log import SourceError, TransientError, logger
from .postgres_address import Address, Connection
from .postgres_changes import Changes
from .postgres_events import EventBuilder
from .postgres_large import Large
from .postgres_late import LateTables
from .postgres_notes import Notes, State
from .postgres_position import Place, lsn_text, parse, parse_lsn
from .postgres_publication import Publication
from .postgres_registry import Registry
from .postgres_server import (
    Server,
    Slot,
    check_slot,
    create_slot,
    create_slot_sql,
    head,
    look,
    slot,
    written,
)
from .postgres_stream import Run, Stream
from .postgres_tables import Tables
from .settings import ReaderSettings

_LOOK_SECS = 10.0  # between two looks at the slot, new tables and types
_ASK_SECS = 0.01  # between two questions how far the server is, while somebody waits
_BAD_FRAMES = 3  # at one place, after which it is not the connection's fault


class PostgresLog:
    """One slot."""

    def __init__(self, source: PostgresSource, settings: ReaderSettings) -> None:
        source = self._source = filled(source)
        self._settings = settings
        self._address = Address.parse(source.dsn)
        self._sql: Connection | None = None
        self._stream: Stream | None = None
        self._notes: Notes | None = None
        self._server: Server | None = None
        self._changes: Changes | None = None
        self._tables: Tables | None = None
        self._publication: Publication | None = None
        copies = source.snapshot is not None and source.snapshot.mode != "never"
        self.late = LateTables(self._address, source.publication, copies)
        self._splitter, self._large = Splitter(), Large()
        self._slot = source.slot
        self._at = Place(0, 0)
        self._quiet_to = 0  # of the log; nothing of ours is on its way up to here
        self._next_look = self._next_beat = 0.0
        self._target = 0
        self._next_ask = 0.0
        self._bad: tuple[int, int] = (0, 0)  # place of a broken message, and how often it came
        self._told_status = ""
        self._patience = 1  # doubles each time that the server was given up for saying nothing

    # --- LogReader ---------------------------------------------------------------------------

    @property
    def position(self) -> str:
        return str(self._at)

    def copied(self) -> bool:
        return True

    def quiet(self) -> float:
        return 0.0

    def open(self, start: str) -> str:
        source, settings = self._source, self._settings
        place = parse(start) if start else None
        self._notes = Notes(settings, source.slot)
        self._sql = self._address.connect()
        replication = self._address.replication()
        try:
            server = self._server = look(self._address, self._sql, replication)
            self._check_identity(server, place)
            if source.outbox_prefixes and not server.streams:
                raise SourceError(
                    "PostgreSQL 13 does not hand out messages of its log, which `outbox` needs: 14 does"
                )
            manage = source.manage and not settings.guest
            self._publication = Publication(
                self._address,
                server,
                source.publication,
                source.tables,
                manage,
                lambda table: self.late.add(table.sql),
            )
            self.late.open(self._notes, first=place is None and self._notes.state is None)
            self._publication.ensure(self._sql, bool(source.outbox_prefixes))
            began, confirmed = self._begin(server, replication, place)
            self.late.look(self._sql)
            self._stream = Stream(
                self._address, replication, source.heartbeat_interval_secs, self._patience
            )
        except BaseException:
            replication.finish()
            raise
        registry = Registry(self._notes.storage, f"{settings.pipeline}/{settings.id}")
        self._tables = Tables(
            self._address,
            settings,
            registry,
            database=server.database,
            patterns=source.tables,
            wide=source.json_wide_integers == "string",
            halt=source.on_schema_drift == "halt",
            reselect=source.reselect,
        )
        self._tables.sql = self._sql
        self._splitter, self._large = Splitter(), Large(settings.folder)
        builder = EventBuilder(settings, server.database, server.system, server.history)
        self._changes = Changes(
            self._tables,
            builder,
            server.history,
            source.outbox_prefixes,
            settings.folder,
            began if began.ordinal >= 0 else None,
        )
        self._changes.last = start
        self._at, self._quiet_to = began, 0
        self._next_look = time.monotonic() + _LOOK_SECS
        self._next_beat = time.monotonic()
        lsn = max(began.lsn, confirmed)
        with self._explained():
            self._stream.start(
                server, self._slot, lsn, source.publication, bool(source.outbox_prefixes)
            )
        return self.position

    def read(self, wait: float) -> list[pa.RecordBatch]:
        stream = self._opened()
        until = time.monotonic() + wait
        while True:
            self._look_around()
            now = time.monotonic()
            if self._target > self._at.lsn and now >= self._next_ask:
                self._next_ask = now + _ASK_SECS
                stream.ask()
            left = until - now
            patience = min(left, 0.1) if self._target > self._at.lsn else min(left, 1.0)
            with self._explained():
                run = stream.take(max(0.0, patience))
            if run is not None:
                self._patience = 1
            out = self._decoded(run) if run is not None else []
            if out or time.monotonic() >= until:
                return out

    def head(self) -> str:
        assert self._sql is not None and self._server is not None
        may_write = self._source.manage and not self._settings.guest
        self._target = head(self._address, self._sql, self._server, may_write)
        return str(self._server.history.place(self._target))

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def expect(self, lsn: int) -> str:
        """Somebody waits for the log to get here, and it may not by itself; returns the position."""
        self._target = max(self._target, lsn)
        return str(self.server.history.place(lsn))

    def ceiling(self) -> str:
        assert self._sql is not None and self._server is not None
        now = head(self._address, self._sql, self._server)
        return str(self._server.history.place(now))

    def durable(self, position: str) -> None:
        """Confirms to the slot, after a note that says how far."""
        stream, notes, changes = self._stream, self._notes, self._changes
        if stream is None or notes is None or changes is None or self._settings.guest:
            return
        upto = parse(position).lsn
        if position >= changes.last:
            upto = max(upto, self._at.lsn)  # the rest was not ours
        state = notes.state
        if state is not None and upto > state.confirmed:
            notes.save(replace(state, confirmed=upto))
        stream.confirm(upto)

    def untouched(self) -> None:
        notes, stream = self._notes, self._stream
        if notes is None or stream is None or notes.state is None or self._settings.guest:
            return
        upto = self._at.lsn
        if upto > max(notes.state.begin, notes.state.confirmed):
            # Where the pipeline begins moves on with the slot, or nobody could tell that nothing is lost.
            notes.save(replace(notes.state, begin=upto, confirmed=upto))
            stream.confirm(upto)

    def close(self) -> None:
        if self._stream is not None:
            self._patience *= 2 if self._stream.silent else 1
            self._stream.close()
        if self._changes is not None:
            self._changes.close()
        self._large.close()
        if self._sql is not None:
            self._sql.close()
        if self._notes is not None:
            self._notes.close()
        self._stream = self._sql = self._notes = self._changes = None

    # --- where to begin ------------------------------------------------------------------------

    def _check_identity(self, server: Server, place: Place | None) -> None:
        """Refuses a server of which it cannot be told that it has what was read before."""
        assert self._notes is not None
        known = self._notes.state
        reset = self._settings.how_to_reset
        if known is not None and place is not None and known.system != server.system:
            raise SourceError(
                f"postgres {self._address} is another database cluster (system identifier "
                f"{server.system}, before it was {known.system}): positions of the one mean nothing "
                f"in the other. To begin anew there, {reset}"
            )
        why = server.history.knows(place) if place is not None else ""
        if why:
            raise SourceError(
                f"postgres {self._address} cannot be shown to have all that was read: {why}. What the "
                f"sinks hold may never have happened there. To begin anew, {reset}"
            )

    def _begin(self, server: Server, replication: PGconn, place: Place | None) -> tuple[Place, int]:
        """Where to stand, and how far the slot was confirmed."""
        source, notes = self._source, self._notes
        assert self._sql is not None and notes is not None
        known = notes.state
        if known is not None and known.system != server.system:
            known = None
        self._slot = source.slot
        found = slot(self._address, self._sql, server, source.slot)
        if self._settings.guest and (found is None or found.active_pid is not None):
            # A look that leaves no trace: from now on, by a slot that ends with the connection.
            self._slot = f"dfc_{secrets.token_hex(8)}"
            made = create_slot(self._address, replication, server, self._slot, temporary=True)
            return server.history.place(made), made
        at = place.lsn if place is not None else known.begin if known is not None else None
        if at is not None:
            self._check_reached(server, at)
        if found is None:
            confirmed = self._new_slot(server, replication, at)
        else:
            check_slot(found, source.slot, server, self._settings.how_to_reset)
            assert found.confirmed is not None
            confirmed = found.confirmed
            self._check_continuity(found, at, known)
        if place is not None:
            if known is None and not self._settings.guest:
                notes.save(State(server.system, confirmed, confirmed))
            return place, confirmed
        if known is not None:
            return server.history.place(max(known.begin, confirmed)), confirmed
        begin = self._first(server, confirmed, found is None)
        if not self._settings.guest:
            notes.save(State(server.system, begin, confirmed))
        return server.history.place(begin), confirmed

    def _check_reached(self, server: Server, at: int) -> None:
        """A place ahead of the server's log is one that it has lost: it would skip everything up to it."""
        assert self._sql is not None
        end = written(self._address, self._sql, server)
        if at <= end:
            return
        where = (
            f"what was read up to {lsn_text(at)} is ahead of the log of postgres {self._address}"
        )
        if server.standby:
            raise TransientError(
                f"{where}, which has come to {lsn_text(end)}: a standby may catch up"
            )
        raise SourceError(
            f"{where}, which ends at {lsn_text(end)}: it was put back to an earlier state, from a backup or "
            "an older copy of its disk. Sinks hold changes that it does not have, and what it commits now "
            f"would be skipped. To begin anew, {self._settings.how_to_reset}"
        )

    def _new_slot(self, server: Server, replication: PGconn, at: int | None) -> int:
        """`at` is where the pipeline stands, when it has read from a slot before."""
        source = self._source
        if at is not None:
            raise SourceError(
                f"the slot {source.slot} is gone from postgres {self._address}: what was committed "
                f"behind {lsn_text(at)} and not delivered is lost. To begin anew, "
                f"{self._settings.how_to_reset}"
            )
        if not source.manage:
            raise SourceError(
                f"there is no slot {source.slot}, and `manage: false` leaves that to you: "
                f"{create_slot_sql(source.slot)}"
            )
        made = create_slot(self._address, replication, server, source.slot)
        logger.info("made the slot %s, which begins at %s", source.slot, lsn_text(made))
        return made

    def _check_continuity(self, found: Slot, at: int | None, known: State | None) -> None:
        """A slot that stands behind what we told it has lost changes to somebody else."""
        assert found.confirmed is not None
        if at is None or found.confirmed <= at:
            return
        told = known.confirmed if known is not None else 0
        if found.confirmed <= told or (known is None and self._settings.alone):
            return
        where = f"the slot {self._source.slot} stands at {lsn_text(found.confirmed)}"
        raise SourceError(
            f"{where}, behind {lsn_text(max(at, told))} which was the last that it was told: "
            "another reader has moved it on, or it was dropped and made anew, and changes between "
            f"are lost. To begin anew, {self._settings.how_to_reset}"
        )

    def _first(self, server: Server, confirmed: int, fresh: bool) -> int:
        """The beginning of a pipeline that has none yet, by `start_position`."""
        wanted = self._source.start_position
        if wanted == "earliest":
            return confirmed
        assert self._sql is not None
        if wanted == "latest":
            return max(confirmed, head(self._address, self._sql, server))
        lsn = parse_lsn(wanted)
        if lsn < confirmed:
            how = "is new and begins" if fresh else "holds changes only from there, which is"
            raise SourceError(
                f"start_position {wanted} is before {lsn_text(confirmed)}: the slot "
                f"{self._source.slot} {how} behind it; use `earliest` for all that it has"
            )
        return lsn

    # --- reading -------------------------------------------------------------------------------

    def _decoded(self, run: Run) -> list[pa.RecordBatch]:
        assert self._changes is not None and self._server is not None
        history, out = self._server.history, []
        part = run
        try:
            for part in self._large.sorted(run):
                split = self._splitter.split(part.data, part.starts, part.stops)
                out += self._changes.add(split)
                ends = np.flatnonzero(
                    (split.kind == COMMIT) | ((split.kind == MESSAGE) & (split.xid == 0))
                )
                if len(ends):
                    end = int(max(split.end_lsn[ends[-1]], split.lsn[ends[-1]]))
                    if split.kind[ends[-1]] == MESSAGE:
                        end += split.lsn[ends[-1]] % 8 == 7  # its place is one byte before its end
                    self._move(history.place(int(end)))
        except FrameError as error:
            raise self._broken(error, part) from None
        if run.wal_end and not self._splitter.inside:
            self._move(history.place(run.wal_end))
        return out

    def _move(self, place: Place) -> None:
        if place.lsn > self._at.lsn:
            self._at = place

    def _broken(self, error: FrameError, run: Run) -> SourceError:
        number = min(error.number, len(run.lsns) - 1)
        place = int(run.lsns[number]) if len(run.lsns) else self._at.lsn
        times = self._bad[1] + 1 if self._bad[0] == place else 1
        self._bad = (place, times)
        kind = SourceError if times >= _BAD_FRAMES else TransientError
        return kind(
            f"what postgres {self._address} sent for {lsn_text(place)} cannot be read: {error}"
        )

    def _opened(self) -> Stream:
        if self._stream is None:
            raise SourceError("the log is not open")
        return self._stream

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What a server says when it ends a stream, with what can be done about it."""
        try:
            yield
        except SourceError as error:
            text = str(error)
            if "publication" in text and "does not exist" in text:
                raise SourceError(
                    f"{text} where the slot {self._slot} stands in the log: it was made behind that "
                    f"place, so drop the slot and {self._settings.how_to_reset}"
                ) from None
            if "can no longer get changes" in text or "requested WAL segment" in text:
                raise SourceError(
                    f"{text}: the server has removed log that was not read yet, so changes are "
                    f"lost. To begin anew drop the slot {self._slot} and "
                    f"{self._settings.how_to_reset}"
                ) from None
            raise

    # --- beside reading ------------------------------------------------------------------------

    def _look_around(self) -> None:
        now = time.monotonic()
        if self._source.heartbeat_query and now >= self._next_beat and not self._settings.guest:
            self._next_beat = now + self._source.heartbeat_interval_secs
            self._beat(self._source.heartbeat_query)
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECS
        assert self._sql is not None and self._publication is not None
        assert self._tables is not None and self._server is not None
        if not self._settings.guest:
            self._publication.follow(self._sql)
            self.late.look(self._sql)
        self._tables.refresh(self.position)
        found = slot(self._address, self._sql, self._server, self._slot)
        if found is None:
            raise TransientError(f"the slot {self._slot} is gone")
        if found.status in ("unreserved", "lost") and found.status != self._told_status:
            logger.warning(
                "the slot %s is %s: the server keeps no more log for it "
                "(max_slot_wal_keep_size), and it will be invalid soon",
                self._slot,
                found.status,
            )
        self._told_status = found.status

    def _beat(self, query: str) -> None:
        assert self._sql is not None
        try:
            with self._address.guarded():
                self._sql.execute(query)
        except TransientError:
            raise
        except SourceError as error:
            logger.warning("heartbeat.query failed: %s", error)


def filled(source: PostgresSource) -> PostgresSource:
    """With the values of the environment references."""
    return replace(
        source,
        dsn=expand(source.dsn),
        slot=expand(source.slot),
        publication=expand(source.publication),
    )
