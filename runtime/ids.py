"""Event ids: `dfid:v1:<class>:<32 hex>`, a hash over the coordinates of a change in its source.

The same change has the same id on every replay, so receivers can tell a repetition.
"""

from __future__ import annotations

import hashlib
import re
import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .kernels.sha256 import hashed, hashed_pieces

_DOMAIN = b"DeltaForge.EventId.v1\0"
_CLASSES = {"myrow": 1, "pgrow": 2, "snap": 3, "ddl": 4, "msg": 5, "syn": 6, "tsrow": 7}
_FORM = re.compile(r"dfid:v1:([a-z]+):([0-9a-f]{32})")
_BIAS = 1 << 63  # moves signed row ids into u64 without changing their order

Lineage = bytes


def _text(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) > 0xFFFF:
        raise ValueError("a coordinate of an event id is longer than 65535 bytes")
    return struct.pack(">H", len(encoded)) + encoded


def _id(kind: str, coordinates: bytes) -> str:
    digest = hashlib.sha256(_head(kind) + coordinates).hexdigest()
    return f"dfid:v1:{kind}:{digest[:32]}"


def _head(kind: str) -> bytes:
    return _DOMAIN + bytes([_CLASSES[kind]])


def _numbers(*fields: Any) -> Any:
    """Types and columns by turns, as the bytes of each row."""
    kinds, columns = fields[::2], fields[1::2]
    made = np.empty(len(columns[0]), [(str(at), kind) for at, kind in enumerate(kinds)])
    for at, column in enumerate(columns):
        made[str(at)] = column
    return made.view(np.uint8).reshape(len(made), made.itemsize)


def parse(event_id: str) -> tuple[str, bytes]:
    """Class and hash; anything but the exact form is refused."""
    match = _FORM.fullmatch(event_id)
    if match is None or match.group(1) not in _CLASSES:
        raise ValueError("not an event id of the form dfid:v1:<class>:<32 lower-case hex>")
    return match.group(1), bytes.fromhex(match.group(2))


def mysql_row(source: uuid.UUID, number: int, position: int, row: int) -> str:
    """A row of a transaction with a GTID."""
    return _id("myrow", b"\1" + source.bytes + struct.pack(">QQI", number, position, row))


def mysql_row_without_gtid(server_id: int, file: str, position: int, row: int) -> str:
    return _id(
        "myrow",
        b"\0" + struct.pack(">I", server_id) + _text(file) + struct.pack(">QI", position, row),
    )


def mysql_rows(source: uuid.UUID, numbers: Any, positions: Any, rows: Any) -> pa.Array:
    """The same for arrays: rows of transactions that one server made."""
    head = _head("myrow") + b"\1" + source.bytes
    return hashed("dfid:v1:myrow:", head, _numbers(">u8", numbers, ">u8", positions, ">u4", rows))


def mysql_rows_without_gtid(server_id: int, file: str, positions: Any, rows: Any) -> pa.Array:
    head = _head("myrow") + b"\0" + struct.pack(">I", server_id) + _text(file)
    return hashed("dfid:v1:myrow:", head, _numbers(">u8", positions, ">u4", rows))


def postgres_row(system_id: int, final_lsn: int, relation: int, ordinal: int) -> str:
    return _id("pgrow", struct.pack(">QQII", system_id, final_lsn, relation, ordinal))


def postgres_rows(system_id: int, lsns: Any, relations: Any, ordinals: Any) -> pa.Array:
    """The same for arrays of changes."""
    head = _head("pgrow") + struct.pack(">Q", system_id)
    tail = _numbers(">u8", lsns, ">u4", relations, ">u4", ordinals)
    return hashed("dfid:v1:pgrow:", head, tail)


def snapshot_row(generation: int, db: str, table: str, key: Sequence[str]) -> str:
    head = struct.pack(">Q", generation) + _text(db) + _text(table)
    return _id("snap", head + struct.pack(">H", len(key)) + b"".join(map(_text, key)))


def snapshot_rows(generation: int, db: str, table: str, key: Sequence[pa.Array]) -> pa.Array:
    """The same for whole columns of the key, texts without nulls."""
    head = _head("snap") + struct.pack(">Q", generation) + _text(db) + _text(table)
    parts = []
    for column in key:
        sizes = pc.binary_length(column).to_numpy(zero_copy_only=False)
        if len(sizes) and int(sizes.max()) > 0xFFFF:
            raise ValueError("a coordinate of an event id is longer than 65535 bytes")
        size = pa.py_buffer(sizes.astype(">u2").tobytes())
        parts.append(pa.Array.from_buffers(pa.binary(2), len(sizes), [None, size]))
        parts.append(column)
    parts = [part.cast(pa.binary()).cast(pa.large_binary()) for part in parts]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    _, ends, data = joined.buffers()
    places = np.frombuffer(ends, np.int64)[joined.offset : joined.offset + len(joined) + 1]
    head += struct.pack(">H", len(key))
    return hashed_pieces("dfid:v1:snap:", head, np.frombuffer(data or b"", np.uint8), places)


def postgres_lineage(system_id: int) -> Lineage:
    return b"\1" + struct.pack(">Q", system_id)


def mysql_lineage(source: uuid.UUID) -> Lineage:
    return b"\2" + source.bytes


def mysql_lineage_without_gtid(server_id: int, file: str) -> Lineage:
    return b"\3" + struct.pack(">I", server_id) + _text(file)


def ddl(lineage: Lineage, position: str, ordinal: int) -> str:
    return _id("ddl", lineage + _text(position) + struct.pack(">I", ordinal))


def message(lineage: Lineage, position: str, ordinal: int) -> str:
    return _id("msg", lineage + _text(position) + struct.pack(">I", ordinal))


def synthetic(parent: str, processor_digest: str, ordinal: int) -> str:
    """An event that a processor made out of `parent`."""
    try:
        kind, digest = parse(parent)
        head = bytes([_CLASSES[kind]]) + digest
    except ValueError:  # an id of somebody else's making, as in a fixture
        head = b"\0" + hashlib.sha256(parent.encode()).digest()[:16]
    return _id("syn", head + _text(processor_digest) + struct.pack(">I", ordinal))


def turso_row(source_id: str, change_id: int) -> str:
    return _id("tsrow", _text(source_id) + struct.pack(">Q", change_id))


def turso_rows(source_id: str, change_ids: Iterable[int]) -> list[str]:
    """The same for many changes, with what they share hashed once."""
    shared = hashlib.sha256(_head("tsrow") + _text(source_id))
    made, pack = [], struct.Struct(">Q").pack
    for change_id in change_ids:
        digest = shared.copy()
        digest.update(pack(change_id))
        made.append("dfid:v1:tsrow:" + digest.hexdigest()[:32])
    return made


def turso_polled_row(source_id: str, table: str, rowid: int) -> str:
    return _id("tsrow", _text(source_id) + _text(table) + struct.pack(">Q", rowid + _BIAS))
