"""Random tables and rows: the log against SELECT, and against python-mysql-replication."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from dfc_runtime.kernels.mysql_rowloop import KERNEL, decode_rows
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from .jitted import jitted
from .mysql_log import Client, decoded, loads
from .mysql_types import KINDS, MARIADB, Kind, told_of
from .test_mysql_rows import ID, same, selected, stored

ALL = (*KINDS, *MARIADB)


@pytest.fixture(scope="module")
def client(mariadb_server: Any) -> Iterator[Client]:
    made = Client(mariadb_server)
    made.query("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
    yield made
    made.close()


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Kind], list[list[str]]]:
    """A table of a few columns, some of them null in some rows."""
    kinds = {"id": ID}
    for n in range(draw(st.integers(1, 9))):
        kinds[f"c{n}"] = draw(st.sampled_from(ALL))
    rows = []
    for n in range(draw(st.integers(1, 8))):
        values = [draw(st.none() | kind.literals) for kind in list(kinds.values())[1:]]
        rows.append([str(n), *("NULL" if value is None else value for value in values)])
    return kinds, rows


def test_random_tables_are_told_as_select_tells_them(client: Client, mariadb_server: Any) -> None:
    compiled = jitted(KERNEL)

    @settings(
        max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(tables())
    def check(drawn: tuple[dict[str, Kind], list[list[str]]]) -> None:
        kinds, rows = drawn
        since = stored(client, kinds, rows)
        wanted = selected(client, "t", kinds)
        client.query("UPDATE t SET id = id + 100")
        moved = selected(client, "t", kinds)
        client.query("DELETE FROM t")
        made = decoded(mariadb_server, since, "t", told_of(kinds), by=compiled)
        count = len(rows)
        same(kinds, [after for _, after, _ in made[:count]], wanted)
        same(kinds, [before for before, _, _ in made[count : 2 * count]], wanted)
        same(kinds, [after for _, after, _ in made[count : 2 * count]], moved)
        same(kinds, [before for before, _, _ in made[2 * count :]], moved)
        assert made == decoded(mariadb_server, since, "t", told_of(kinds), by=decode_rows)

    check()


# Where the library is right: no negative TIME, no BINARY, no zero dates, no FLOAT; and no bytes of
# which there are none, which it takes for text.
_RIGHT = [
    kind
    for kind in KINDS
    if kind.sql.split("(")[0].split()[0]
    in (
        "tinyint",
        "smallint",
        "mediumint",
        "int",
        "bigint",
        "decimal",
        "double",
        "varbinary",
        "blob",
    )
    or (kind.sql.startswith("varchar") and "utf8mb4" in kind.sql)
]


def _some(kind: Kind) -> st.SearchStrategy[str]:
    if kind.sql.startswith("varchar"):
        return kind.literals
    return kind.literals.filter(lambda literal: literal != "''")


def _shown(value: Any) -> Any:
    """A value of the library as JSON has it here."""
    match value:
        case bytes():
            return {"_base64": b64encode(value).decode()}
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.isoformat()
    return value


def _library(server: Any, since: tuple[str, int]) -> Iterator[tuple[Any, Any]]:
    login = {"host": "127.0.0.1", "port": server.port, "user": "dfc", "passwd": "dfc"}
    stream = BinLogStreamReader(
        connection_settings=login,
        server_id=4713,
        log_file=since[0],
        log_pos=since[1],
        resume_stream=True,
        only_events=[DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent],
    )

    def row(values: dict[str, Any]) -> dict[str, Any]:
        return {name: _shown(value) for name, value in values.items()}

    for event in stream:
        for found in event.rows:
            if isinstance(event, UpdateRowsEvent):
                yield row(found["before_values"]), row(found["after_values"])
            elif isinstance(event, WriteRowsEvent):
                yield None, row(found["values"])
            else:
                yield row(found["values"]), None
    stream.close()


def test_the_library_reads_the_same_rows(client: Client, mariadb_server: Any) -> None:
    kinds = {"id": ID, **{f"c{n}": kind for n, kind in enumerate(_RIGHT)}}
    assert len(kinds) > 20
    rows: list[list[str]] = []

    @settings(max_examples=6, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.lists(st.tuples(*map(_some, _RIGHT)), min_size=5, max_size=5))
    def collect(found: list[tuple[str, ...]]) -> None:
        rows.extend([str(n), *values] for n, values in enumerate(found, len(rows)))

    collect()
    since = stored(client, kinds, rows)
    client.query("UPDATE t SET id = id + 100")
    client.query("DELETE FROM t WHERE id % 2")
    ours = decoded(mariadb_server, since, "t", told_of(kinds), by=decode_rows)
    theirs = list(_library(mariadb_server, since))
    assert len(ours) == len(theirs) > 60
    for (before, after, _), (their_before, their_after) in zip(ours, theirs, strict=True):
        assert loads(before) == their_before
        assert loads(after) == their_after
    assert json.loads(str(ours[0][1]))["id"] == 0
