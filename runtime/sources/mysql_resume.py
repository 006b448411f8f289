"""Where reading begins: on the server that a position is from, or on another that took its place.

The same server goes on at the very byte. Another one is asked for every transaction that is not
delivered, by GTID; when it cannot be proved that it has them all, the source stops and says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from .log import SourceError, logger
from .mysql_gtid import Executed, MysqlGtids
from .mysql_notes import Era, Notes
from .mysql_position import Place, file_number, parse
from .mysql_server import Server
from .settings import ReaderSettings


@dataclass(frozen=True, slots=True)
class Begin:
    """A place of the present server, or the transactions that are done when it is another one."""

    place: Place
    file: str = ""
    done: Executed | None = None
    era: Era | None = None  # to be noted once the server has taken the question


class Resume:
    def __init__(self, server: Server, notes: Notes, settings: ReaderSettings) -> None:
        self._server = server
        self._notes = notes
        self._settings = settings

    def find(self, start: str, distrust: bool = False) -> Begin:
        """`start` is what every sink has; `distrust` that the log is not the one it was."""
        if not start and not self._notes.begin:
            return self._tail()
        if not self._notes.kept and not self._notes.eras:
            # A notebook: Spark's checkpoint has the position, and nothing is known beside it.
            self._notes.eras = [self._era() for _ in range(parse(_plain(start)).era + 1)]
        place = parse(self._furthest(start))
        era = self._notes.era(place.era)
        if not distrust and self._is_same(era, place):
            return self._same(era, place)
        return self._other(era, place, distrust)

    def _tail(self) -> Begin:
        """Nothing was ever read: changes from now on."""
        file, offset, gtids = self._server.head()
        notes = self._notes
        if not notes.eras:
            notes.eras = [self._era()]
        place = Place(len(notes.eras) - 1, file_number(file)[1], offset)
        notes.begin = notes.at = str(place)
        notes.gtids = gtids
        notes.save()
        return Begin(place, file)

    def _furthest(self, start: str) -> str:
        """Behind what is known to hold nothing for the sinks."""
        notes, plain = self._notes, _plain(start)
        if not plain:
            return notes.begin
        if notes.last and notes.last <= plain < notes.at:
            return notes.at
        return plain

    def _era(self) -> Era:
        base, _, digits = file_number(self._server.head()[0])
        return Era(self._server.identity, self._server.mariadb, base, digits)

    def _is_same(self, era: Era, place: Place) -> bool:
        present = self._era()
        return (
            place.era == len(self._notes.eras) - 1
            and era.server == present.server
            and era.base == present.base
            and era.mariadb == present.mariadb
        )

    def _same(self, era: Era, place: Place) -> Begin:
        logs = {file_number(name)[1]: (name, size) for name, size in self._server.logs()}
        if place.file in logs:
            name, size = logs[place.file]
            if place.offset <= size:
                return Begin(place, name)
        elif place.file < min(logs, default=0):
            raise self._purged(era.name(place.file), self._server.logs()[0][0])
        # The server has less than was read from it: its log began anew, or it was restored.
        return self._other(era, place, True)

    def _purged(self, needed: str, oldest: str) -> SourceError:
        name, value = (
            ("expire_logs_days", "14")
            if self._server.mariadb
            else ("binlog_expire_logs_seconds", "1209600")
        )
        return SourceError(
            f"server {self._server.address} has removed {needed} of its binary log, which holds the "
            f"changes that come next; the oldest it has is {oldest}. Those changes cannot be had "
            f"any more: {self._settings.how_to_reset}. To keep more: SET GLOBAL {name} = {value}"
        )

    # --- another server ----------------------------------------------------------------------

    def _other(self, era: Era, place: Place, anew: bool) -> Begin:
        server, notes = self._server, self._notes
        what = f"server {server.address} is not the one that was read before"
        end = f"To go on from what it has now, {self._settings.how_to_reset}"
        if anew:
            # Its GTIDs count from the beginning again, and name other transactions than before.
            raise SourceError(
                f"the binary log of server {server.address} is not the one that was read before: "
                f"it was reset, or the server was restored. {end}"
            )
        if era.mariadb != server.mariadb:
            raise SourceError(f"{what}: MySQL and MariaDB number transactions differently. {end}")
        done = notes.executed_at(place)
        if done is None or not done:
            raise SourceError(
                f"{what}, and which transactions were delivered is not known by GTID, so where to go "
                f"on in its log cannot be told. {end}"
            )
        self._check_has(done, what, end)
        logger.warning("source %s: %s; it goes on behind %s", self._settings.id, what, done)
        last, present = notes.eras[-1], self._era()
        if (last.server, last.base) == (present.server, present.base):
            return Begin(Place(len(notes.eras) - 1, 0, 0), "", done)  # on the way to it before
        return Begin(Place(len(notes.eras), 0, 0), "", done, present)

    def _check_has(self, done: Executed, what: str, end: str) -> None:
        server = self._server
        if isinstance(done, MysqlGtids):
            row = server.query("SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged")[0]
            has, purged = (MysqlGtids("".join(str(text).split())) for text in row)
            if not done.within(has):
                raise SourceError(
                    f"{what}, and it lacks transactions that were delivered: it has {has}, delivered "
                    f"are {done}. {end}"
                )
            if not purged.within(done):
                raise SourceError(
                    f"{what}, and it has removed transactions from its log that were not delivered: "
                    f"removed are {purged}, delivered {done}. {end}"
                )
            return
        has_now = {
            domain: int(number)
            for domain, _, number in (
                part.strip().split("-")
                for part in str(server.query("SELECT @@GLOBAL.gtid_binlog_pos")[0][0]).split(",")
                if part.strip()
            )
        }
        for part in str(done).split(","):
            domain, _, number = part.split("-")
            if has_now.get(domain, -1) < int(number):
                raise SourceError(
                    f"{what}, and it lacks transactions that were delivered: up to {part}. {end}"
                )


def _plain(position: str) -> str:
    """Without the place inside a copied chunk."""
    return position.partition("-s")[0]
