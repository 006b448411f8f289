"""MySQL's binary JSON, written: what MariaDB cannot put into a log."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Opaque:
    """A value of another type inside a document."""

    type: int
    data: bytes


def encode(value: Any, large: bool = False) -> bytes:
    """A document: its type, then the value. `large` takes offsets of four bytes throughout."""
    kind, data = _encode(value, large)
    return bytes((kind,)) + data


def _encode(value: Any, large: bool) -> tuple[int, bytes]:
    match value:
        case None:
            return 4, b"\0"
        case bool():
            return 4, b"\1" if value else b"\2"
        case int() if -(2**15) <= value < 2**15:
            return 5, struct.pack("<h", value)
        case int() if 0 <= value < 2**16:
            return 6, struct.pack("<H", value)
        case int() if -(2**31) <= value < 2**31:
            return 7, struct.pack("<i", value)
        case int() if 0 <= value < 2**32:
            return 8, struct.pack("<I", value)
        case int() if -(2**63) <= value < 2**63:
            return 9, struct.pack("<q", value)
        case int():
            return 10, struct.pack("<Q", value)
        case float():
            return 11, struct.pack("<d", value)
        case str():
            data = value.encode()
            return 12, size(len(data)) + data
        case Opaque():
            return 15, bytes((value.type,)) + size(len(value.data)) + value.data
    return _container(value, large)


def size(count: int) -> bytes:
    """Seven bits in each byte, the lowest first."""
    made = bytearray()
    while True:
        made.append(count & 127 | (128 if count > 127 else 0))
        count >>= 7
        if not count:
            return bytes(made)


def _container(value: Any, large: bool) -> tuple[int, bytes]:
    is_object = isinstance(value, dict)
    form, width = ("<I", 4) if large else ("<H", 2)
    keys = sorted((k.encode() for k in value), key=lambda k: (len(k), k)) if is_object else []
    values = [value[k.decode()] for k in keys] if is_object else list(value)
    head = 2 * width + len(keys) * (width + 2) + len(values) * (width + 1)
    tail, entries = b"".join(keys), b""
    at = head
    for key in keys:
        entries += struct.pack(form, at) + struct.pack("<H", len(key))
        at += len(key)
    for item in values:
        kind, data = _encode(item, large)
        if kind in (4, 5, 6) or (large and kind in (7, 8)):
            entries += bytes((kind,)) + data.ljust(width, b"\0")
        elif head + len(tail) > 0xFFFF and not large:
            return _container(value, True)
        else:
            entries += bytes((kind,)) + struct.pack(form, head + len(tail))
            tail += data
    whole = head + len(tail)
    if whole > 0xFFFF and not large:
        return _container(value, True)
    made = struct.pack(form, len(values)) + struct.pack(form, whole) + entries + tail
    return (0 if is_object else 2) + large, made


def packed(count: int) -> bytes:
    """A number as the protocol packs it."""
    if count < 251:
        return bytes((count,))
    return b"\xfc" + struct.pack("<H", count)


def difference(operation: int, path: str, value: Any = None) -> bytes:
    """One change of a document: 0 replaces, 1 inserts, 2 removes."""
    made = bytes((operation,)) + packed(len(path.encode())) + path.encode()
    if operation < 2:
        data = encode(value)
        made += packed(len(data)) + data
    return made
