"""A PostgreSQL server as a source: who it is, whether it can be read, and its replication slot."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable
from dataclasses import dataclass

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from .log import SourceError, TransientError, logger
from .postgres_address import Address, Connection, Denied
from .postgres_position import History, parse_history, parse_lsn, without_page_header

OLDEST = 130000
OWN_PREFIX = "dfc"  # of messages that are written to the log only so that it goes on
_TELL_SECS = 10.0
_FLUSH_SECS = 1.0  # in which the server writes out what was committed without waiting for the disk
_PAGE = 8192


@dataclass(frozen=True, slots=True)
class Server:
    """What does not change while a connection lasts."""

    version: int
    system: int
    history: History
    database: str
    standby: bool
    segment: int  # size of a file of the log
    sender_timeout: float = 60.0  # seconds; 0 for none

    @property
    def streams(self) -> bool:
        """Whether it can send transactions that are not over, and messages."""
        return self.version >= 140000


@dataclass(frozen=True, slots=True)
class Slot:
    confirmed: int | None  # None while it is being made
    restart: int | None
    active_pid: int | None
    plugin: str
    database: str
    status: str
    two_phase: bool
    reason: str  # why it was invalidated, where the server tells

    @property
    def lost(self) -> bool:
        return self.status == "lost" or bool(self.reason)


def look(address: Address, sql: Connection, replication: PGconn) -> Server:
    """Raises SourceError with what has to be done for a server that cannot be read."""
    row = _row(
        address,
        sql,
        "SELECT pg_catalog.current_setting('server_version_num'),"
        " pg_catalog.current_setting('server_version'),"
        " pg_catalog.current_setting('wal_level'),"
        " pg_catalog.pg_is_in_recovery()::pg_catalog.int4,"
        " pg_catalog.current_database(),"
        " (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_segment_size'),"
        " (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout')",
    )
    version, shown, level, standby, database, segment, timeout = row
    if int(version) < OLDEST:
        raise SourceError(f"postgres {address} has version {shown}; 13 is the oldest that works")
    if level != "logical":
        raise SourceError(
            f"postgres {address} has wal_level = {level}, and only with `logical` its log tells "
            "changes: ALTER SYSTEM SET wal_level = 'logical', then restart the server"
        )
    system, timeline, *_ = command(address, replication, "IDENTIFY_SYSTEM")[0]
    history = History(int(timeline))
    if int(timeline) > 1:
        found = command(address, replication, f"TIMELINE_HISTORY {int(timeline)}")
        history = parse_history(int(timeline), found[0][1])
    return Server(
        int(version),
        int(system),
        history,
        database,
        int(standby) == 1,
        int(segment),
        int(timeout) / 1000,
    )


def written(address: Address, sql: Connection, server: Server) -> int:
    """The end of the log, on disk or not; of a standby, what it has taken over."""
    where = "last_wal_replay" if server.standby else "current_wal_insert"
    (text,) = _row(address, sql, f"SELECT pg_catalog.pg_{where}_lsn()::pg_catalog.text")
    return parse_lsn(text)


def head(address: Address, sql: Connection, server: Server, may_write: bool = False) -> int:
    """Behind the last commit; the server sends everything before it without anybody's help.

    What is in the log and not on disk yet is not sent. A commit gets there by itself, if only after a
    moment where `synchronous_commit` is off; other records wait for one.
    """
    if server.standby:
        return written(address, sql, server)
    end, flushed = _ends(address, sql)
    until = time.monotonic() + _FLUSH_SECS
    end = without_page_header(end, server.segment)
    while flushed < end and time.monotonic() < until:
        time.sleep(0.02)
        flushed = _ends(address, sql)[1]
    if flushed < end and flushed % _PAGE == 0 and may_write:
        # Perhaps in the middle of a record, which is not sent: a commit takes its end to the disk.
        with address.guarded():
            sql.execute("SELECT pg_catalog.pg_logical_emit_message(true, %s, '')", (OWN_PREFIX,))
        flushed = _ends(address, sql)[1]
    return without_page_header(flushed, server.segment)


def settled(address: Address, sql: Connection, server: Server) -> int:
    """Behind all that is committed and visible now, and on disk, so that the server sends it soon.

    Writes to the log, which `head` does only where nothing else helps: it waits for others.
    """
    end, flushed = _ends(address, sql)
    if flushed < end:
        with address.guarded():
            sql.execute(
                "SELECT pg_catalog.set_config('synchronous_commit', 'local', true),"
                " pg_catalog.pg_logical_emit_message(true, %s, '')",
                (OWN_PREFIX,),
            )
    return without_page_header(end, server.segment)


def _ends(address: Address, sql: Connection) -> tuple[int, int]:
    row = _row(
        address,
        sql,
        "SELECT pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text,"
        " pg_catalog.pg_current_wal_flush_lsn()::pg_catalog.text",
    )
    return parse_lsn(row[0]), parse_lsn(row[1])


def slot(address: Address, sql: Connection, server: Server, name: str) -> Slot | None:
    # Columns that came with later versions are looked up by name, so one query serves all.
    with address.guarded():
        found = sql.execute(
            "SELECT pg_catalog.to_jsonb(s)::pg_catalog.text FROM pg_catalog.pg_replication_slots s"
            " WHERE s.slot_name = %s",
            (name,),
        ).fetchone()
    if found is None:
        return None
    row = json.loads(found[0])
    if row["slot_type"] != "logical":
        raise SourceError(
            f"the slot {name} is for physical replication; give the pipeline a slot of its own"
        )
    reason = row.get("invalidation_reason") or ""
    if row.get("conflicting") and not reason:
        reason = "conflict with recovery"
    return Slot(
        confirmed=_lsn(row["confirmed_flush_lsn"]),
        restart=_lsn(row["restart_lsn"]),
        active_pid=row["active_pid"],
        plugin=row["plugin"],
        database=row["database"],
        status=row.get("wal_status") or "",
        two_phase=bool(row.get("two_phase")),
        reason=reason,
    )


def check_slot(found: Slot, name: str, server: Server, how_to_reset: str) -> None:
    """Raises for a slot from which nothing can be read, or not by us."""
    drop = f"SELECT pg_drop_replication_slot('{name}')"
    if found.plugin != "pgoutput":
        raise SourceError(
            f"the slot {name} has the plugin {found.plugin}, not pgoutput; give the pipeline "
            f"another one, or drop it: {drop}"
        )
    if found.database != server.database:
        raise SourceError(
            f"the slot {name} belongs to the database {found.database}, not to {server.database}; "
            "slot names count for all databases of a server: use another one"
        )
    if found.lost:
        why = f" ({found.reason})" if found.reason else ""
        raise SourceError(
            f"the slot {name} was invalidated{why}: the server has removed log that was not read "
            "yet, so changes are lost (max_slot_wal_keep_size limits what it keeps). "
            f"To begin anew drop it, {drop}, and {how_to_reset}"
        )
    if found.two_phase:
        raise SourceError(
            f"the slot {name} was made with two_phase, which hands out transactions before they "
            "are committed; give the pipeline another one"
        )
    if found.confirmed is None:
        raise TransientError(
            f"the slot {name} is being made by process {found.active_pid}, which waits for "
            "transactions that were running"
        )


def create_slot(
    address: Address,
    replication: PGconn,
    server: Server,
    name: str,
    *,
    temporary: bool = False,
) -> int:
    """A new slot; returns the place from which on it has everything that is committed."""
    kind = " TEMPORARY" if temporary else ""
    what = f"CREATE_REPLICATION_SLOT {quoted(name)}{kind} LOGICAL pgoutput"
    if server.version >= 150000:
        options = ["SNAPSHOT 'nothing'"]
        if server.version >= 170000 and not server.standby and not temporary:
            options.append("FAILOVER")  # so that a standby can go on with it
        what += f" ({', '.join(options)})"
    else:
        what += " NOEXPORT_SNAPSHOT"

    def still() -> None:
        logger.info(
            "the slot %s is being made: the server waits for transactions that were running", name
        )

    try:
        ((_, lsn, *_),) = command(address, replication, what, still)
    except Denied as error:
        raise Denied(
            f"{error}; have the slot made by somebody who may: {create_slot_sql(name)}"
        ) from None
    return parse_lsn(lsn)


def create_slot_sql(name: str) -> str:
    return f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"


def _ready(connection: PGconn, what: int) -> bool:
    """Within a second."""
    poll = select.poll()
    poll.register(connection.socket, what)
    return bool(poll.poll(1000))


def command(
    address: Address,
    connection: PGconn,
    text: str,
    still: Callable[[], None] = lambda: None,
) -> list[tuple[str, ...]]:
    """The rows that a replication command returns; `still` is called while it takes long."""
    connection.send_query(text.encode())
    tell = time.monotonic() + _TELL_SECS
    while connection.flush():
        _ready(connection, select.POLLOUT)
    while connection.is_busy():
        if _ready(connection, select.POLLIN):
            consume(address, connection)
        elif time.monotonic() >= tell:
            tell = time.monotonic() + _TELL_SECS
            still()
    rows: list[tuple[str, ...]] = []
    failed = None
    while (result := connection.get_result()) is not None:
        if result.status == pq.ExecStatus.TUPLES_OK:
            for row in range(result.ntuples):
                values = [result.get_value(row, column) for column in range(result.nfields)]
                rows.append(tuple("" if v is None else v.decode() for v in values))
        elif result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_BOTH):
            failed = failed or result_error(address, result)
        if result.status == pq.ExecStatus.COPY_BOTH:
            break
    if failed is not None:
        raise failed
    return rows


def consume(address: Address, connection: PGconn) -> None:
    with address.guarded():
        connection.consume_input()


def result_error(address: Address, result: PGresult) -> SourceError:
    def field(which: pq.DiagnosticField) -> str:
        return (result.error_field(which) or b"").decode("utf-8", "replace")

    text = field(pq.DiagnosticField.MESSAGE_PRIMARY)
    text = text or result.error_message.decode("utf-8", "replace")
    detail = field(pq.DiagnosticField.MESSAGE_DETAIL) or None
    return address.error(text, field(pq.DiagnosticField.SQLSTATE), detail)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _row(address: Address, sql: Connection, query: str) -> tuple[str, ...]:
    with address.guarded():
        row = sql.execute(query).fetchone()
    assert row is not None
    return tuple(row)


def _lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)
