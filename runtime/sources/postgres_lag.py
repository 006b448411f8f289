"""The lag of a postgres source: bytes of the server's log behind a position."""

from __future__ import annotations

from . import PostgresSource
from .lag import Lag
from .log import SourceError
from .postgres_address import Address
from .postgres_log import filled
from .postgres_position import lsn_text, parse, parse_lsn


def lag(source: PostgresSource, position: str) -> Lag:
    """Of all that the server wrote; how much of it is of captured tables only reading tells.

    A sink that holds every event stands at the last of them. The slot, once it was told, stands at the end
    of what was read behind it, so the nearer of the two counts. What the server retains begins before both,
    with the oldest transaction that is not over.
    """
    source = filled(source)
    address = Address.parse(source.dsn)
    with address.connect() as connection, address.guarded():
        row = connection.execute(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
            " THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END"
            "::pg_catalog.text,"
            " s.confirmed_flush_lsn::pg_catalog.text, s.restart_lsn::pg_catalog.text"
            " FROM (SELECT) one LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %s",
            (source.slot,),
        ).fetchone()
    assert row is not None
    head = parse_lsn(row[0])
    retained = None if row[2] is None else max(0, head - parse_lsn(row[2]))
    if not position:
        if row[1] is None:
            raise SourceError(f"there is no slot {source.slot} yet")
        return Lag(max(0, head - parse_lsn(row[1])), "bytes", retained)
    at = parse(position).lsn
    if at > head:
        raise SourceError(f"the position is ahead of the server's log, {lsn_text(head)}")
    if row[1] is not None:
        at = max(at, parse_lsn(row[1]))
    return Lag(max(0, head - at), "bytes", retained)
