"""Where a PostgreSQL server is: a URL or `host=... dbname=...`, as libpq has them, and connections to it.

No text of the address gets into an error but host, port, database and user.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGconn

from .log import SourceError, TransientError
from .postgres_types import session_options

Connection = psycopg.Connection[tuple[Any, ...]]

_DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "dfc",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# Classes of errors that may be otherwise in a moment: connection, resources, the server's own end, limits of
# time, and what others hold just now.
_PASSING_CLASSES = ("08", "53", "57", "58", "40", "55P03", "55006", "25P0")
_IN_USE = "55006"
_PRIVILEGE = "42501"
# libpq tells no state of a login that failed, only words, and those of the server in its language. What is not
# among these may be otherwise in a moment.
_REFUSED = (
    "authentication",
    "password",
    "certificate",
    "private key",
    "sslmode",
    "sslrootcert",
    "does not support ssl",
    "unknown ca",
    "unsupported protocol",
    "does not exist",
    "not permitted to log in",
    "permission denied",
    "not currently accepting connections",
    "invalid port",
    "invalid integer value",
    "invalid connection option",
    "channel binding",
)


_UNREADABLE = (
    "the source's dsn cannot be read (it is not shown: it may hold a password); write "
    "postgres://USER@HOST:PORT/DATABASE or host=... port=... user=... dbname=..., with special "
    "characters of a URL as %XX"
)


class Denied(SourceError):
    """The login has not the rights for a statement."""


@dataclass(frozen=True, slots=True)
class Address:
    parameters: dict[str, str] = field(repr=False)

    @classmethod
    def parse(cls, dsn: str) -> Address:
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            raise SourceError(_UNREADABLE) from None
        found = {name: str(value) for name, value in given.items() if value is not None}
        # A password whose special characters are not escaped ends up in these, and so in messages.
        if not set(found.get("port", "")) <= set("0123456789,") or "@" in found.get("host", ""):
            raise SourceError(_UNREADABLE)
        if "replication" in found:
            raise SourceError("the source's dsn has `replication`, which is not for it to say")
        if "," in found.get("host", "") + found.get("hostaddr", ""):
            # Of several servers the one that can be written to is the one to read.
            found.setdefault("target_session_attrs", "read-write")
        found["options"] = f"{found.get('options', '')} {session_options()}".strip()
        return cls({**_DEFAULTS, **found})

    def __str__(self) -> str:
        given = self.parameters
        host = given.get("host") or given.get("hostaddr") or "the local server"
        port = f":{given['port']}" if "port" in given else ""
        return f"{host}{port}/{given.get('dbname', given.get('user', ''))}"

    def connect(self) -> Connection:
        """For SQL; every statement is a transaction of its own."""
        with self.guarded(login=True):
            return psycopg.connect(
                make_conninfo(**self.parameters, client_encoding="UTF8"), autocommit=True
            )

    def replication(self) -> PGconn:
        """For commands of the replication protocol, and the stream of changes."""
        conninfo = make_conninfo(
            **{
                **self.parameters,
                "replication": "database",
                "client_encoding": "UTF8",
                # A slot may wait long for transactions that were there before it.
                "options": f"{self.parameters['options']} -c statement_timeout=0",
            }
        )
        connection = pq.PGconn.connect(conninfo.encode())
        if connection.status != pq.ConnStatus.OK:
            error = self.error(connection.error_message.decode("utf-8", "replace"), login=True)
            connection.finish()
            raise error
        if _any_bytes(connection):
            connection.exec_(_AS_STORED.encode())
        return connection

    @contextmanager
    def guarded(self, login: bool = False) -> Iterator[None]:
        """Errors of the database as ours."""
        try:
            yield
        except psycopg.Error as error:
            text = str(error.diag.message_primary or error)
            state, detail = error.sqlstate or "", error.diag.message_detail
            raise self.error(text, state, detail, login=login) from None

    def error(
        self, text: str, state: str = "", detail: str | None = None, *, login: bool = False
    ) -> SourceError:
        """What went wrong, as one line, by whether another try may help."""
        said = " ".join(text.split())
        if detail:
            said = f"{said} ({' '.join(detail.split())})"
        password = self.parameters.get("password", "")
        if len(password) > 2:
            said = said.replace(password, "***")
        low = said.lower()
        if "replication" in low and "role" in low and ("must be" in low or "permission" in low):
            user = self.parameters.get("user", "USER")
            return Denied(
                f"postgres {self}: {said}; the login needs the right to replicate: "
                f'ALTER ROLE "{user}" REPLICATION'
            )
        if "no pg_hba.conf entry" in low:
            return SourceError(f"postgres {self}: {said}; add a line for it to pg_hba.conf")
        line = f"postgres {self}: {said}"
        if state == _PRIVILEGE:
            return Denied(line)
        if state == _IN_USE:
            return TransientError(f"{line}: a slot serves one reader at a time")
        if state:
            passing = state.startswith(_PASSING_CLASSES)
        else:  # of libpq itself, about the connection
            refused = any(word in low for word in _REFUSED) and "timeout" not in low
            passing = not login or not refused
        return TransientError(line) if passing else SourceError(line)


_AS_STORED = "SET client_encoding = 'SQL_ASCII'"


@contextmanager
def as_stored(connection: Connection) -> Iterator[None]:
    """Texts come as the bytes that they are, where the database does not know what they mean.

    Asked for UTF-8 its server would refuse those that are none.
    """
    any_bytes = _any_bytes(connection.pgconn)
    if any_bytes:
        connection.execute(_AS_STORED)
    try:
        yield
    finally:
        if any_bytes:
            with suppress(psycopg.Error):  # in a transaction that failed it ends with that
                connection.execute("SET client_encoding = 'UTF8'")


def _any_bytes(connection: PGconn) -> bool:
    return connection.parameter_status(b"server_encoding") == b"SQL_ASCII"
