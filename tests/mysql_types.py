"""Types of MySQL and MariaDB for tests: literals to store, and what JSON a SELECT's text stands for.

It shares nothing with the decoder, so that the two can be held against each other.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dfc_runtime.sources import mysql_columns as types
from dfc_runtime.sources.mysql_columns import Column
from hypothesis import strategies as st

Expect = Callable[[bytes], str]


@dataclass(frozen=True)
class Kind:
    """A column type: its SQL, literals of its values, and the JSON of what SELECT says."""

    sql: str
    literals: st.SearchStrategy[str]
    expect: Expect
    shown: str = "`{}`"  # what is asked for, around the name
    told: int = 0  # the type that only the catalog knows


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _integer(raw: bytes) -> str:
    return str(int(raw))


def _decimal(raw: bytes) -> str:
    sign, digits = ("-", raw[1:]) if raw[:1] == b"-" else ("", raw)
    whole, point, part = digits.decode().partition(".")
    return f'"{sign}{whole.lstrip("0") or "0"}{point}{part}"'


def _double(raw: bytes) -> str:
    return repr(float(raw))


def _float(raw: bytes) -> str:
    return repr(float(str(np.float32(float(raw)))))


def _bits(raw: bytes) -> str:
    return str(int.from_bytes(raw, "big"))


def _bit(raw: bytes) -> str:
    return "true" if raw[-1] else "false"


def _plain(raw: bytes) -> str:
    return quoted(raw.decode("ascii"))


def _moment(raw: bytes) -> str:
    return quoted(raw.decode("ascii").replace(" ", "T"))


def _timestamp(raw: bytes) -> str:
    return quoted(raw.decode("ascii").replace(" ", "T") + "Z")


def _base64(raw: bytes) -> str:
    return f'{{"_base64":"{b64encode(raw).decode()}"}}'


def compact(raw: bytes) -> str:
    """JSON text without the spaces between its values."""
    return re.sub(r'("(?:[^"\\]|\\.)*")|\s+', lambda m: m[1] or "", raw.decode())


def _text(codec: str) -> Expect:
    return lambda raw: quoted(raw.decode(codec))


def _literal(text: str) -> str:
    """Text that the server takes in as UTF-8, whatever it holds."""
    return f"_utf8mb4 0x{text.encode().hex()}" if text else "''"


def _hex(data: bytes) -> str:
    return f"0x{data.hex()}" if data else "''"


def integer(name: str, bits: int, unsigned: bool = False, more: str = "") -> Kind:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = st.integers(low, high) | st.sampled_from([low, high, 0, 1])
    return Kind(f"{name}{' unsigned' if unsigned else ''}{more}", values.map(str), _integer)


def decimal(precision: int, scale: int) -> Kind:
    top = 10**precision - 1

    def literal(value: int) -> str:
        digits = f"{abs(value):0{scale + 1}d}"
        whole, part = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
        return ("-" if value < 0 else "") + whole + ("." + part if part else "")

    values = st.integers(-top, top) | st.sampled_from([top, -top, 0, 1, -1])
    return Kind(f"decimal({precision},{scale})", values.map(literal), _decimal)


def moment(name: str, digits: int, clock: bool = True) -> Kind:
    """A DATETIME or TIMESTAMP, the zero date and, for DATETIME, ones that are no dates."""
    part = st.integers(0, 10**digits - 1).map(lambda n: f".{n:0{digits}d}" if digits else "")
    if name == "datetime":
        day = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 28))
    else:
        day = st.tuples(st.integers(1971, 2037), st.integers(1, 12), st.integers(1, 28))
    hours = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
    made = st.builds(
        lambda d, h, p: f"'{d[0]:04d}-{d[1]:02d}-{d[2]:02d} {h[0]:02d}:{h[1]:02d}:{h[2]:02d}{p}'",
        day,
        hours,
        part,
    )
    extreme = {
        "datetime": ["'9999-12-31 23:59:59'", "'0000-00-00 00:00:00'", "'2024-02-31 00:00:00'"],
        "timestamp": ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'0000-00-00 00:00:00'"],
    }[name]
    more = f"({digits})" if digits else ""
    null = " null" if name == "timestamp" else ""
    expect = _timestamp if name == "timestamp" else _moment
    return Kind(f"{name}{more}{null}", made | st.sampled_from(extreme), expect)


def clock(digits: int) -> Kind:
    made = st.builds(
        lambda s, h, m, x, p: f"'{s}{h:02d}:{m:02d}:{x:02d}{f'.{p:0{digits}d}' if digits else ''}'",
        st.sampled_from(["", "-"]),
        st.integers(0, 837),
        st.integers(0, 59),
        st.integers(0, 59),
        st.integers(0, 10**digits - 1),
    )
    extreme = st.sampled_from(["'838:59:59'", "'-838:59:59'", "'00:00:00'", "'-00:00:00.999999'"])
    return Kind(f"time({digits})", made | extreme, _plain)


def text(sql: str, charset: str, codec: str, letters: str, size: int = 12) -> Kind:
    """Text of a charset, with letters that it has; a CHAR loses the spaces at its end."""
    alphabet = letters + "aZ09 \"'\\/\n\t\x01\x7f"
    if charset == "sjis":  # the servers have its backslash in another place than Python
        alphabet = alphabet.replace("\\", "")
    values = st.text(st.sampled_from(alphabet), max_size=size).map(_literal)
    return Kind(f"{sql} character set {charset}", values, _text(codec))


CHARSETS = (
    ("utf8mb4", "utf-8", "äß€漢字😀\u2028"),
    ("utf8mb3", "utf-8", "äß€漢字"),
    ("latin1", "cp1252", "äß€š"),
    ("latin2", "iso8859_2", "łőŘ"),
    ("cp1251", "cp1251", "Привет"),
    ("koi8r", "koi8_r", "Привет"),
    ("greek", "iso8859_7", "αβγ"),
    ("ucs2", "utf-16-be", "äß€漢"),
    ("utf16", "utf-16-be", "äß€漢😀"),
    ("utf16le", "utf-16-le", "äß€漢😀"),
    ("utf32", "utf-32-be", "äß€漢😀"),
    ("gbk", "gbk", "漢字中"),
    ("gb2312", "gb2312", "中文"),
    ("big5", "big5", "漢字中"),
    ("sjis", "shift_jis", "漢字ア"),
    ("cp932", "cp932", "漢字ア①"),
    ("ujis", "euc_jp", "漢字ア"),
    ("eucjpms", "euc_jp", "漢字ア"),
    ("euckr", "euc_kr", "한국어"),
)


def binary(sql: str, size: int) -> Kind:
    return Kind(sql, st.binary(max_size=size).map(_hex), _base64)


_LABELS = ("", "a", "b'c", 'd"e', "ä€", "x y")
_FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.sampled_from(
    [1.1, 0.1, 3.4028235e38, 1.1754944e-38, 16777216.0, 1e-45, 0.0, 123456.79]
)
_DOUBLES = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [1.1, 0.1, 1e300, 5e-324, 1.7976931348623157e308, 1e16, 1e15, 0.0001, 0.00001, -0.0]
)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def _document(value: Any) -> str:
    # Half of a surrogate pair has no UTF-8, and no server would take it.
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return _literal(text)


def _join(labels: set[str]) -> str:
    return "'" + ",".join(sorted(labels)) + "'"


KINDS: tuple[Kind, ...] = (
    *(integer(n, b) for n, b in (("tinyint", 8), ("smallint", 16), ("mediumint", 24))),
    *(integer(n, b) for n, b in (("int", 32), ("bigint", 64))),
    *(integer(n, b, True) for n, b in (("tinyint", 8), ("smallint", 16), ("mediumint", 24))),
    *(integer(n, b, True) for n, b in (("int", 32), ("bigint", 64))),
    integer("int(12)", 32, True, " zerofill"),
    Kind("year", st.integers(1901, 2155).map(str) | st.just("0"), _integer),
    *(decimal(p, s) for p, s in ((1, 0), (9, 9), (10, 2), (18, 9), (19, 0), (30, 11), (65, 30))),
    Kind("float", _FLOATS.map(repr), _float, "CAST(`{}` AS DOUBLE)"),
    Kind("double", _DOUBLES.map(repr), _double),
    Kind("bit(1)", st.integers(0, 1).map(str), _bit),
    *(
        Kind(f"bit({n})", st.integers(0, 2**n - 1).map(str), _bits)
        for n in (2, 8, 9, 33, 64)
    ),
    Kind("date", st.dates().map(lambda d: f"'{d}'") | st.sampled_from(["'0000-00-00'", "'2024-00-00'", "'2024-02-31'"]), _plain),
    *(clock(digits) for digits in range(7)),
    *(moment("datetime", digits) for digits in range(7)),
    *(moment("timestamp", digits) for digits in range(7)),
    *(text("varchar(20)", *charset) for charset in CHARSETS),
    *(text("char(20)", *charset) for charset in CHARSETS),
    text("varchar(300)", "utf8mb4", "utf-8", "äß€", 200),
    text("tinytext", "utf8mb4", "utf-8", "äß€"),
    text("text", "latin1", "cp1252", "äß€"),
    text("mediumtext", "utf8mb4", "utf-8", "äß€"),
    text("longtext", "utf8mb4", "utf-8", "äß€"),
    binary("binary(7)", 7),
    binary("varbinary(20)", 20),
    binary("varbinary(300)", 300),
    binary("tinyblob", 20),
    binary("blob", 300),
    binary("longblob", 20),
    Kind("enum('a','b''c','d\"e','ä€','x y','')", st.sampled_from(["0", *map(_literal, _LABELS)]), _text("utf-8")),
    Kind("set('a','b','c d','ä€')", st.sets(st.sampled_from(("a", "b", "c d", "ä€"))).map(_join), _text("utf-8")),
)  # fmt: skip
MARIADB: tuple[Kind, ...] = (
    Kind("json", _DOCUMENTS.map(_document), compact, told=types.JSON),
    Kind("uuid", st.uuids().map(lambda u: f"'{u}'"), _plain, told=types.UUID),
    Kind("inet6", (st.ip_addresses(v=6) | st.sampled_from(["::", "::1", "1::", "::ffff:1.2.3.4", "::1.2.3.4", "1:0:0:2::", "0:0:1::"])).map(lambda a: f"'{a}'"), _plain, told=types.INET6),
    Kind("inet4", st.ip_addresses(v=4).map(lambda a: f"'{a}'"), _plain, told=types.INET4),
    Kind("varchar(40) compressed character set latin1", st.text(st.sampled_from("aaaäß€ "), max_size=40).map(_literal), _text("cp1252")),
    Kind("blob compressed", st.binary(max_size=200).map(_hex), _base64),
    Kind("point", st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(lambda p: f"POINT{p}"), _base64),
)  # fmt: skip


def told_of(kinds: dict[str, Kind]) -> Callable[[Column], Column]:
    """Puts the types that only the catalog knows into columns of a table map."""

    def told(column: Column) -> Column:
        kind = kinds.get(column.name)
        if kind is None or not kind.told or column.type == kind.told:
            return column
        return replace(column, type=kind.told)

    return told
