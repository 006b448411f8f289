"""What a MySQL or MariaDB server is, whether it can be read from, and which tables are captured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

from ..patterns import matches, selected
from .log import SourceError, logger
from .mysql_address import Address

SYSTEM = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


def replica_id(source_id: str) -> int:
    """The number under which this source registers with the server as a replica."""
    return 1 + crc32(source_id.encode()) % 4_000_000_000


@dataclass(frozen=True, slots=True)
class Captured:
    """Which tables a source reads, and which of them are outboxes."""

    tables: tuple[str, ...]
    outbox: tuple[str, ...] = ()

    def __call__(self, db: str, table: str) -> bool:
        if db.lower() in SYSTEM:
            return False
        return selected(db, table, (*self.tables, *self.outbox) if self.tables else ())

    def is_outbox(self, db: str, table: str) -> bool:
        return any(matches(pattern, db, table) for pattern in self.outbox)


class Server:
    """A connection for questions, beside the one that the log comes by."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection = address.connect()
        facts = self.query("SELECT VERSION(), @@server_id, @@hostname")[0]
        text = str(facts[0])
        self.mariadb = "mariadb" in text.lower()
        self.version = _version(text)
        self.server_id = int(facts[1])
        self.uuid = "" if self.mariadb else str(self.query("SELECT @@server_uuid")[0][0])
        least = (10, 5) if self.mariadb else (8, 0)
        if self.version < least:
            name = "MariaDB" if self.mariadb else "MySQL"
            raise SourceError(
                f"server {address} is {name} {text}: this source reads MySQL from 8.0 and MariaDB "
                "from 10.5 on"
            )

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.address.guarded(), self._connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def variable(self, name: str) -> str | None:
        """A global setting; None when the server does not know it."""
        found = self.query("SHOW GLOBAL VARIABLES WHERE Variable_name = %s", name)
        return None if not found else str(found[0][1])

    @cached_property
    def folds(self) -> bool:
        """Whether it keeps names of tables in small letters, whatever statements say."""
        return self.variable("lower_case_table_names") == "1"

    @property
    def identity(self) -> str:
        """What stays the same as long as it is the same server."""
        return self.uuid or f"server_id {self.server_id}"

    # --- its log ---------------------------------------------------------------------------

    def logs(self) -> list[tuple[str, int]]:
        """Names and sizes of the files of the binary log, oldest first."""
        return [(str(row[0]), int(row[1])) for row in self.query("SHOW BINARY LOGS")]

    def head(self) -> tuple[str, int, str]:
        """File and offset of the log's end, and the GTIDs of everything before it."""
        newer = not self.mariadb and self.version >= (8, 2)
        rows = self.query("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")
        if not rows:
            raise SourceError(
                f"server {self.address} has no binary log: start it with log_bin=ON (under "
                "[mysqld] in my.cnf)"
            )
        file, offset = str(rows[0][0]), int(rows[0][1])
        if self.mariadb:
            gtids = self.query("SELECT BINLOG_GTID_POS(%s, %s)", file, offset)[0][0] or ""
        else:
            gtids = "".join(str(rows[0][4]).split()) if len(rows[0]) > 4 else ""
        return file, offset, str(gtids)

    # --- whether it will do ----------------------------------------------------------------

    def check(self, source_id: str) -> None:
        """Every prerequisite, with what mends it; all that is wrong in one error."""
        wrong = []
        if self.variable("log_bin") != "ON":
            wrong.append(
                "it writes no binary log: start it with log_bin=ON (under [mysqld] in my.cnf)"
            )
        if (found := self.variable("binlog_format")) not in ("ROW", None):
            wrong.append(
                f"binlog_format is {found}: {self._set('binlog_format', 'ROW')}, and let the "
                "applications connect anew"
            )
        if not wrong:
            wrong += self._missing_rights()
        if replica_id(source_id) == self.server_id:
            wrong.append(
                f"its server_id {self.server_id} is the one that follows from the source id "
                f"`{source_id}`: change the id"
            )
        if wrong:
            raise SourceError(f"server {self.address} cannot be read from: " + "; ".join(wrong))
        if (image := self.variable("binlog_row_image")) not in ("FULL", None):
            logger.warning(
                "source %s: binlog_row_image is %s, so events lack columns: %s",
                source_id,
                image,
                self._set("binlog_row_image", "FULL"),
            )
        if self.variable("binlog_row_metadata") != "FULL":
            logger.warning(
                "source %s: binlog_row_metadata is not FULL, so the names of columns come from the "
                "catalog and from notes kept since the source began: %s",
                source_id,
                self._set("binlog_row_metadata", "FULL"),
            )

    def _missing_rights(self) -> list[str]:
        try:
            self.logs()
            self.head()
        except SourceError as error:
            if "(1227)" not in str(error):
                raise
            return [f"the user may not see the binary log: {self.grants()}"]
        return []

    def grants(self) -> str:
        """The statement that gives the source all the rights it needs."""
        user = str(self.query("SELECT CURRENT_USER()")[0][0])
        name, _, host = user.rpartition("@")
        client = "BINLOG MONITOR" if self.mariadb else "REPLICATION CLIENT"
        who = "@".join("'" + part.replace("'", "''") + "'" for part in (name, host))
        return f"GRANT REPLICATION SLAVE, {client}, SELECT ON *.* TO {who}"

    def _set(self, name: str, value: str) -> str:
        how = "GLOBAL" if self.mariadb or self.version < (8,) else "PERSIST"
        return f"SET {how} {name} = '{value}'"

    # --- its tables ------------------------------------------------------------------------

    def tables(self) -> list[tuple[str, str]]:
        """Database and name of every table that the user may see."""
        rows = self.query(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
            " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
            " ORDER BY TABLE_SCHEMA, TABLE_NAME"
        )
        return [(str(db), str(table)) for db, table in rows]

    def warn_of_idle(self, source_id: str, patterns: Sequence[str]) -> None:
        """Names the patterns that no table matches: a slip, or a right that is missing."""
        if not patterns:
            return
        there = [(db, table) for db, table in self.tables() if db.lower() not in SYSTEM]
        for pattern in patterns:
            if not any(matches(pattern, db, table) for db, table in there):
                logger.warning(
                    "source %s: no table matches `%s` now, or the user has no SELECT on it: %s",
                    source_id,
                    pattern,
                    self.grants(),
                )


def _version(text: str) -> tuple[int, ...]:
    # Some MariaDB servers put 5.5.5- in front, for clients that know no larger number.
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(number) for number in found.groups()) if found else (0,)
