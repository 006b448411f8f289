"""Columns of MySQL and MariaDB tables, as table map events tell them.

A table map always tells types; names, signs, charsets, labels and the primary key come with it when
the server writes full row metadata. What no table map tells is in the catalog alone: that a MariaDB
column is JSON, a UUID or an address, which the log shows as text or bytes (UUID, INET6, INET4,
MARIADB_VECTOR, and JSON with a charset: whoever asks the catalog puts them in).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import DfcError
from ..kernels.mysql_charsets import decode

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB
VECTOR, JSON, NEWDECIMAL, ENUM, SET = 242, 245, 246, 247, 248
TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = range(249, 256)
# Types that only MariaDB's catalog knows; the log says STRING of 16 or 4 bytes, or VARCHAR.
UUID, INET6, INET4, MARIADB_VECTOR = 1001, 1002, 1003, 1004

_META_BYTES = {
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, BLOB_COMPRESSED), 1),
    **dict.fromkeys((VECTOR, JSON, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, GEOMETRY), 1),
    **dict.fromkeys((VARCHAR, BIT, VARCHAR_COMPRESSED, NEWDECIMAL), 2),
    **dict.fromkeys((ENUM, SET, VAR_STRING, STRING), 2),
}
_PLAIN = (TINY, SHORT, LONG, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR, NEWDATE)
# The columns that have a sign and a charset in the metadata; MySQL and MariaDB count differently.
_NUMBERS = (TINY, SHORT, INT24, LONG, LONGLONG, YEAR, NEWDECIMAL, FLOAT, DOUBLE)
_TEXTS = (VARCHAR, STRING, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB)
_CHARACTERS = {
    False: (*_TEXTS, VECTOR),
    True: (*_TEXTS, BLOB_COMPRESSED, VARCHAR_COMPRESSED, GEOMETRY),
}
_HASH = re.compile(r"DB_ROW_HASH_[0-9]+")


# Fields of the optional metadata.
_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_LABELS, _ENUM_LABELS = 1, 2, 3, 4, 5, 6
_KEY, _KEY_WITH_PREFIXES, _DEFAULT_LABEL_CHARSET, _LABEL_CHARSETS, _VISIBLE = 8, 9, 10, 11, 12


class ColumnError(DfcError):
    """A table map or catalog that cannot be read."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the log's row images hold it.

    `meta` by type, as one number:
    VARCHAR, STRING: most bytes of a value (whether the length takes one byte or two follows).
    ENUM, SET: bytes of the number.  BLOB, JSON, GEOMETRY, VECTOR: bytes of the length.
    NEWDECIMAL: precision * 256 + scale.  BIT: number of bits.  FLOAT, DOUBLE: bytes.
    TIMESTAMP2, DATETIME2, TIME2: digits behind the second; for the old forms of those three too,
    which MariaDB has with fractions: only the catalog tells them.
    A JSON column with a charset is MariaDB's: its bytes are the text.
    """

    name: str
    type: int
    meta: int
    unsigned: bool = False
    charset: str | None = None
    labels: tuple[str, ...] = ()
    visible: bool = True

    @property
    def hidden(self) -> bool:
        """MariaDB's hash of a long unique value: in the log, but in no statement's result."""
        return self.type == LONGLONG and _HASH.fullmatch(self.name) is not None


@dataclass(frozen=True, slots=True)
class TableMap:
    """What a table map event says. Without full metadata `names` is false and names are empty."""

    table_id: int
    db: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[int, ...] = ()  # indexes of the primary key's columns, in the key's order
    names: bool = False


# --- charsets --------------------------------------------------------------------------------

_COLLATIONS = """
armscii8 32 64; ascii 11 65; big5 1 84; binary 63; cp1250 26 34 44 66 99; cp1251 14 23 50-52;
cp1256 57 67; cp1257 29 58 59; cp850 4 80; cp852 40 81; cp866 36 68; cp932 95 96; dec8 3 69;
eucjpms 97 98; euckr 19 85; gb18030 248-250; gb2312 24 86; gbk 28 87; geostd8 92 93; greek 25 70;
hebrew 16 71; hp8 6 72; keybcs2 37 73; koi8r 7 74; koi8u 22 75; latin1 5 8 15 31 47-49 94;
latin2 2 9 21 27 77; latin5 30 78; latin7 20 41 42 79; macce 38 43; macroman 39 53; sjis 13 88;
swe7 10 82; tis620 18 89; ucs2 35 90 128-159 640-671; ujis 12 91; utf16 54 55 101-127 672-703;
utf16le 56 62; utf32 60 61 160-191 736-767; utf8mb3 33 76 83 192-223 576-607;
utf8mb4 45 46 224-247 255-511 608-639
"""


def _collations() -> dict[int, str]:
    found = {}
    for entry in _COLLATIONS.split(";"):
        name, *places = entry.split()
        for place in places:
            first, _, last = place.partition("-")
            found.update(dict.fromkeys(range(int(first), int(last or first) + 1), name))
    return found


_CHARSET_OF = _collations()


def charset_of(collation: int) -> str:
    """The charset of a collation by its number."""
    if 2048 <= collation < 3328:  # MariaDB's uca1400
        return ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")[(collation - 2048) // 256]
    # MariaDB has each collation once more, without padding.
    name = _CHARSET_OF.get(collation - 1024 if 1024 <= collation < 2048 else collation)
    if name is None:
        raise ColumnError(f"collation {collation} is not known")
    return name


# --- table maps ------------------------------------------------------------------------------


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise ColumnError(f"a table map ends within its data, at byte {self.at}")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        first = self.number(1)
        if first < 251:
            return first
        if first in (251, 255):
            raise ColumnError(f"a table map has no number at byte {self.at - 1}")
        return self.number({252: 2, 253: 3, 254: 8}[first])

    def text(self) -> bytes:
        return self.take(self.packed())

    @property
    def more(self) -> bool:
        return self.at < len(self.data)


def parse_table_map(body: bytes, mariadb: bool = False) -> TableMap:
    """A table map event's body: behind its header of 19 bytes, without its checksum."""
    data = _Bytes(bytes(body))
    table_id = data.number(6)
    data.take(2)  # flags
    db = _utf8(data.take(data.number(1) + 1)[:-1])
    table = _utf8(data.take(data.number(1) + 1)[:-1])
    count = data.packed()
    types = data.take(count)
    meta = _Bytes(data.text())
    columns = [_column(code, meta) for code in types]
    data.take((count + 7) // 8)  # which may be null
    found, key, named = _with_metadata(columns, data, mariadb)
    return TableMap(table_id, db, table, tuple(found), key, named)


def _column(code: int, meta: _Bytes) -> Column:
    if code not in _META_BYTES and code not in _PLAIN:
        raise ColumnError(f"a table map has a column of type {code}, which is not known")
    raw = meta.take(_META_BYTES.get(code, 0))
    value = int.from_bytes(raw, "little")
    if code in (STRING, ENUM, SET, VAR_STRING):
        real, length = raw
        if code == STRING and real & 0x30 != 0x30:  # two bits of a length above 255
            length |= ((real & 0x30) ^ 0x30) << 4
            real |= 0x30
        code, value = (real if real in (ENUM, SET, STRING) else STRING), length
    elif code == NEWDECIMAL:
        value = raw[0] << 8 | raw[1]
    elif code == BIT:
        value = raw[0] + 8 * raw[1]
    elif code == NEWDATE:
        code = DATE
    return Column("", code, value)


def _with_metadata(
    columns: list[Column], data: _Bytes, mariadb: bool
) -> tuple[list[Column], tuple[int, ...], bool]:
    fields: dict[int, bytes] = {}
    while data.more:
        kind = data.number(1)
        fields[kind] = data.text()

    def of(types: Sequence[int]) -> list[int]:
        return [i for i, column in enumerate(columns) if column.type in types]

    if _SIGNS in fields:
        for index, bit in zip(of(_NUMBERS), _bits(fields[_SIGNS]), strict=False):
            columns[index] = replace(columns[index], unsigned=bit)
    _charsets(columns, of(_CHARACTERS[mariadb]), fields, _DEFAULT_CHARSET, _CHARSETS)
    _charsets(columns, of((ENUM, SET)), fields, _DEFAULT_LABEL_CHARSET, _LABEL_CHARSETS)
    for kind, code in ((_SET_LABELS, SET), (_ENUM_LABELS, ENUM)):
        if kind in fields:
            read = _Bytes(fields[kind])
            for index in of((code,)):
                labels = [read.text() for _ in range(read.packed())]
                charset = columns[index].charset or "utf8mb4"
                texts = tuple(decode(label, charset) for label in labels)
                columns[index] = replace(columns[index], labels=texts)
    if _NAMES in fields:
        read = _Bytes(fields[_NAMES])
        columns = [replace(column, name=_utf8(read.text())) for column in columns]
    key: tuple[int, ...] = ()
    if _KEY in fields:
        key = tuple(_numbers(fields[_KEY]))
    elif _KEY_WITH_PREFIXES in fields:
        key = tuple(_numbers(fields[_KEY_WITH_PREFIXES]))[::2]
    if any(index >= len(columns) for index in key):
        raise ColumnError("a table map has a primary key with a column that it does not have")
    if _VISIBLE in fields:
        seen = _bits(fields[_VISIBLE])
        columns = [replace(column, visible=next(seen, True)) for column in columns]
    return columns, key, _NAMES in fields


def _charsets(
    columns: list[Column], places: Sequence[int], fields: dict[int, bytes], default: int, each: int
) -> None:
    """Charsets of the columns at these places: one for all with exceptions, or one for each."""
    if default in fields:
        first, *pairs = _numbers(fields[default]) if fields[default] else (-1,)
        found = [first] * len(places)
        for place, collation in zip(pairs[::2], pairs[1::2], strict=False):
            if place >= len(places):
                raise ColumnError("a table map has a charset for a column that it does not have")
            found[place] = collation
    elif each in fields:
        found = list(_numbers(fields[each]))
        if len(found) != len(places):
            raise ColumnError(f"a table map has {len(found)} charsets for {len(places)} columns")
    else:
        return
    for place, collation in zip(places, found, strict=True):
        if columns[place].type not in (GEOMETRY, VECTOR):
            columns[place] = replace(columns[place], charset=charset_of(collation))


def _numbers(data: bytes) -> Iterator[int]:
    read = _Bytes(data)
    while read.more:
        yield read.packed()


def _bits(data: bytes) -> Iterator[bool]:
    for byte in data:
        for bit in range(7, -1, -1):
            yield bool(byte >> bit & 1)


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "replace")
