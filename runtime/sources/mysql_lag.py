"""The lag of a mysql source: bytes of the binary log between a position and its end."""

from __future__ import annotations

from ..env import expand
from . import MysqlSource
from .lag import Lag
from .log import SourceError
from .mysql_address import parse as parse_dsn
from .mysql_position import Place, file_number, parse
from .mysql_server import Server

_NEAR = 100  # events


def lag(source: MysqlSource, position: str) -> Lag:
    """All of the log counts, whatever tables it is about: all of it has to be read."""
    server = Server(parse_dsn(expand(source.dsn)))
    try:
        file, offset, _ = server.head()
        logs = [(file_number(name)[1], size) for name, size in server.logs()]
        head = (file_number(file)[1], offset)
        if not position:
            raise SourceError("nothing was delivered yet")
        place = parse(position.partition("-s")[0])
        if place.event >= 0:
            place = _behind(server, logs, place)
        at = (place.file, place.offset)
        if at > head:
            raise SourceError(f"the position is ahead of the server's log, which ends in {file}")
        if at[0] < logs[0][0]:
            raise SourceError(
                f"the server has removed the file that the position is in; its oldest is "
                f"{server.logs()[0][0]}"
            )
        behind = sum(size for number, size in logs if place.file <= number < head[0])
        return Lag(behind + head[1] - place.offset, "bytes")
    finally:
        server.close()


def _behind(server: Server, logs: list[tuple[int, int]], place: Place) -> Place:
    """The end of the transaction that a position is in, if that is near: most of them are short."""
    names = [name for name, _ in server.logs() if file_number(name)[1] == place.file]
    if not names:
        return place
    sql = f"SHOW BINLOG EVENTS IN %s FROM {place.offset} LIMIT {_NEAR}"
    for number, (_, _, kind, _, end, info) in enumerate(server.query(sql, names[0])):
        if number and ("gtid" in str(kind).lower()):
            break
        ends = kind == "Xid" or str(info).upper().endswith("COMMIT")
        if ends or (number == 1 and str(kind).startswith("Query") and info != "BEGIN"):
            return Place(place.era, place.file, int(end))
    return place
