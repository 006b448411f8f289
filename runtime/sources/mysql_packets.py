"""What is in the events that are neither rows nor their frame: one at a time, in Python."""

from __future__ import annotations

import struct
import uuid
import zlib
from dataclasses import dataclass

from ..kernels.binlog import HEADER
from ..kernels.mysql_charsets import decode
from .mysql_columns import ColumnError, charset_of

_CHARSET = 4  # among the variables of a statement
# Sizes of the variables that may stand before it; -1: a text with its length in front.
_SIZES = {0: 4, 1: 8, 2: -2, 3: 4, 5: -1, 6: -1}


class Damaged(ValueError):
    """Bytes that do not say what they should."""


def rotation(event: bytes) -> tuple[str, int]:
    """The file that follows, and where in it. It may come before it is known whether events have
    a checksum: this one has when its last bytes are that."""
    if zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
        event = event[:-4]
    body = event[HEADER:]
    return body[8:].decode("utf-8", "replace"), int.from_bytes(body[:8], "little")


def rotated(event: bytes, offset: int) -> bytes:
    """The same, with another place in the file."""
    made = event[:HEADER] + offset.to_bytes(8, "little") + event[HEADER + 8 :]
    if zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
        made = made[:-4] + zlib.crc32(made[:-4]).to_bytes(4, "little")
    return made


def tail_of(body: bytes) -> int:
    """Bytes of checksum behind each event, by what a format description says."""
    return 4 if len(body) > 5 and body[-5] == 1 else 0


def query_text(body: bytes, compressed: bool = False) -> tuple[str, str]:
    """The default database of a statement, and its text."""
    if len(body) < 13:
        raise Damaged("a statement ends within its data")
    db_size = body[8]
    variables = int.from_bytes(body[11:13], "little")
    at = 13 + variables
    database = body[at : at + db_size].decode("utf-8", "replace")
    text = body[at + db_size + 1 :]
    if compressed:
        inflated = inflate(text)
        if inflated is None:
            raise Damaged("a compressed statement is damaged")
        text = inflated
    return database, _decoded(text, body[13:at])


def _decoded(text: bytes, variables: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        pass
    charset = _charset(variables)
    try:
        return decode(text, charset)
    except (KeyError, ValueError):
        return text.decode("utf-8", "replace")


def _charset(variables: bytes) -> str:
    """The client's, as far as the variables before it can be read."""
    at = 0
    while at < len(variables):
        kind = variables[at]
        at += 1
        if kind == _CHARSET and at + 2 <= len(variables):
            try:
                return charset_of(int.from_bytes(variables[at : at + 2], "little"))
            except ColumnError:
                break
        size = _SIZES.get(kind)
        if size is None or at >= len(variables):
            break
        if size >= 0:
            at += size
        else:
            at += 1 + variables[at] + (1 if size == -2 else 0)
            if kind == 5:  # the name of a time zone
                continue
    return "utf8mb4"


def starts_server(body: bytes) -> bool:
    """Whether a format description is the first one of a server that has started."""
    return any(body[52:56])


def heartbeat(event: bytes, pos: int, newer: bool) -> tuple[str, int]:
    """The file and the place up to which the server has looked; `pos` is the one in the header."""
    if zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
        event = event[:-4]
    body = event[HEADER:]
    if not newer:
        return body.decode("utf-8", "replace"), pos
    name, at = "", 0
    while at + 1 < len(body) and body[at]:
        kind, size = body[at], body[at + 1]
        value = body[at + 2 : at + 2 + size]
        if kind == 1:
            name = value.decode("utf-8", "replace")
        elif kind == 2:
            width = {252: 2, 253: 3, 254: 8}.get(value[0], 0) if value else 0
            pos = int.from_bytes(value[1 : 1 + width] if width else value[:1], "little")
        at += 2 + size
    return name, pos


@dataclass(frozen=True, slots=True)
class Tagged:
    """A GTID with a tag, as MySQL from 8.3 on has them."""

    source: str
    number: int
    micros: int


def tagged(body: bytes) -> Tagged:
    """Reads the fields of the event that matter; they have numbers, and sizes that vary."""
    at = 0

    def number() -> int:
        nonlocal at
        first = body[at]
        extra = 0
        while extra < 8 and first >> extra & 1:
            extra += 1
        if extra == 8:
            value = int.from_bytes(body[at + 1 : at + 9], "little")
            at += 9
            return value
        raw = int.from_bytes(body[at : at + 1 + extra], "little")
        at += 1 + extra
        return raw >> (extra + 1)

    def signed() -> int:
        value = number()
        return ~(value >> 1) if value & 1 else value >> 1

    number()  # version of the format
    number()  # size of it all
    number()  # last field that must not be ignored
    found: dict[int, int | bytes] = {}
    while at < len(body):
        field = number()
        if field == 0:
            found[0] = number()
        elif field == 1:
            # Sixteen numbers, one for each byte.
            found[1] = bytes(number() for _ in range(16))
        elif field == 2:
            found[2] = signed()
        elif field == 3:
            size = number()
            found[3] = body[at : at + size]
            at += size
        elif field in (4, 5):
            found[field] = signed()
        elif field in (6, 7):
            found[field] = number()
        else:
            break
    made = found.get(1, b"")
    if not isinstance(made, bytes) or len(made) != 16:
        raise struct.error("a GTID event is damaged")
    tag = found.get(3, b"")
    name = str(uuid.UUID(bytes=made))
    if tag:
        assert isinstance(tag, bytes)
        name = f"{name}:{tag.decode()}"
    number_, micros = found.get(2, 0), found.get(7, found.get(6, 0))
    assert isinstance(number_, int) and isinstance(micros, int)
    return Tagged(name, number_, micros)


def inflate(data: bytes) -> bytes | None:
    """What MariaDB has compressed: a byte with the size of the length, the length, and zlib's."""
    if len(data) < 2 or data[0] & 0xF0 != 0x80:
        return None
    width = data[0] & 7
    try:
        made = zlib.decompress(data[1 + width :])
    except zlib.error:
        return None
    return made if len(made) == int.from_bytes(data[1 : 1 + width], "big") else None


def xid_text(body: bytes) -> str:
    """The name of an XA transaction in the event that ends its first part, as statements write it."""
    form, first, second = struct.unpack_from("<iII", body, 1)
    data = body[13 : 13 + first + second]
    return f"X'{data[:first].hex()}',X'{data[first:].hex()}',{form}".upper()
