"""The binary log of a real server, read in the simplest way: what the tests of decoders go by."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymysql
from dfc_runtime.kernels.mysql_rows import (
    DELETE,
    INSERT,
    PARTIAL_UPDATE,
    UPDATE,
    Decoded,
    RowDecoder,
)
from dfc_runtime.sources.mysql_columns import Column, TableMap, parse_table_map

TABLE_MAP, HEADER, CHECKSUM = 19, 19, 4
KINDS = {
    **dict.fromkeys((23, 30, 166, 169), INSERT),
    **dict.fromkeys((24, 31, 167, 170), UPDATE),
    **dict.fromkeys((25, 32, 168, 171), DELETE),
    39: PARTIAL_UPDATE,
}


class Client:
    """A connection to a server of the tests."""

    def __init__(self, server: Any) -> None:
        self.connection = pymysql.connect(
            host="127.0.0.1",
            port=server.port,
            user="dfc",
            password="dfc",
            database="shop",
            autocommit=True,
            charset="utf8mb4",
        )
        self.mariadb = "mariadb" in str(self.query("SELECT VERSION()")[0][0]).lower()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def head(self) -> tuple[str, int]:
        said = "SHOW MASTER STATUS" if self.mariadb else "SHOW BINARY LOG STATUS"
        row = self.query(said)[0]
        return str(row[0]), int(row[1])

    def close(self) -> None:
        self.connection.close()


def events(server: Any, since: tuple[str, int]) -> list[tuple[int, bytes, int]]:
    """Type, body and end position of each event from there to the end of the log."""
    client = Client(server)
    try:
        client.query("SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'")
        client.query("SET @mariadb_slave_capability = 4")
        file, at = since
        dump = struct.pack("<BIHI", 0x12, at, 1, 4711) + file.encode()
        client.connection._sock.sendall(struct.pack("<I", len(dump))[:3] + b"\0" + dump)  # type: ignore
        read = client.connection._rfile.read  # type: ignore
        found = []
        whole = b""
        while True:
            header = read(4)
            size = int.from_bytes(header[:3], "little")
            packet = read(size)
            whole += packet
            if size == 0xFFFFFF:
                continue
            packet, whole = whole, b""
            if packet[0] == 0xFE and len(packet) < 9:
                return found
            assert packet[0] == 0, packet
            event = packet[1:]
            assert zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little")
            end = int.from_bytes(event[13:17], "little")
            found.append((event[4], event[HEADER:-CHECKSUM], end))
    finally:
        client.connection._force_close()  # type: ignore


@dataclass
class RowEvents:
    """Row events of one table, laid out as the decoder wants them."""

    map: TableMap
    kinds: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)  # bitmaps and rows

    def arrays(self) -> tuple[Any, Any, Any, Any]:
        size = (len(self.map.columns) + 7) // 8
        sizes = np.array([len(body) for body in self.bodies], np.int64)
        stops = np.cumsum(sizes)
        bitmaps = [size * (2 if kind in (UPDATE, PARTIAL_UPDATE) else 1) for kind in self.kinds]
        starts = stops - sizes + np.array(bitmaps, np.int64)
        data = np.frombuffer(b"".join(self.bodies), np.uint8)
        return data, starts, stops, np.array(self.kinds, np.uint8)


def rows_of(found: Sequence[tuple[int, bytes, int]], mariadb: bool) -> Iterator[RowEvents]:
    """Row events by table map, one after the other where the map changes."""
    maps: dict[int, tuple[bytes, TableMap]] = {}
    now: RowEvents | None = None
    of = b""
    for kind, body, _ in found:
        if kind == TABLE_MAP:
            maps[int.from_bytes(body[:6], "little")] = (
                body[8:],
                parse_table_map(body, mariadb=mariadb),
            )
        elif kind in KINDS:
            text, table = maps[int.from_bytes(body[:6], "little")]
            if now is None or text != of:
                if now is not None:
                    yield now
                now, of = RowEvents(table), text
            at = 8 + (
                int.from_bytes(body[8:10], "little") if 30 <= kind <= 39 or kind >= 169 else 0
            )
            width = body[at]
            at += 1
            if width == 252:
                width = int.from_bytes(body[at : at + 2], "little")
                at += 2
            rows = body[at:]
            if kind >= 166:
                rows = _inflated(rows, width, KINDS[kind])
            now.kinds.append(KINDS[kind])
            now.bodies.append(rows)
    if now is not None:
        yield now


def _inflated(rows: bytes, width: int, kind: int) -> bytes:
    """MariaDB's compressed rows: a byte with the size of the size, the size, deflated data."""
    at = (width + 7) // 8 * (2 if kind == UPDATE else 1)
    size = rows[at] & 7
    return rows[:at] + zlib.decompress(rows[at + 1 + size :])


Texts = tuple[str | None, str | None, str | None]


def decoded(
    server: Any,
    since: tuple[str, int],
    table: str = "",
    told: Callable[[Column], Column] | None = None,
    wide: str = "number",
    by: Callable[..., Any] | None = None,
) -> list[Texts]:
    """Before, after and key of each row that the log has since then, as the decoder tells them.

    `told` puts in what only the catalog knows of a column.
    """
    made: list[Texts] = []
    for group in groups(server, since, table):
        columns = [told(column) if told else column for column in group.map.columns]
        decoder = RowDecoder(columns, group.map.key, wide)
        made += texts(decoder.rows(*group.arrays(), by=by))
    return made


def groups(server: Any, since: tuple[str, int], table: str = "") -> list[RowEvents]:
    client = Client(server)
    mariadb = client.mariadb
    client.close()
    found = rows_of(events(server, since), mariadb)
    return [group for group in found if table in ("", group.map.table)]


def texts(made: Decoded) -> list[tuple[str | None, str | None, str | None]]:
    count = len(made.event)
    none: list[str | None] = [None] * count
    lists = [none if a is None else a.to_pylist() for a in (made.before, made.after, made.key)]
    return list(zip(*lists, strict=True))


def loads(text: str | None) -> Any:
    return None if text is None else json.loads(text)
