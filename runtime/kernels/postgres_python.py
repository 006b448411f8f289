"""Rows as JSON texts in Python: what the kernels of postgres_rows.py do, for the first few rows.

A function for each type takes the text of a value as bytes and gives its JSON. It raises ValueError or
KeyError for a text that its type does not have.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from . import postgres_program as ops
from . import postgres_times as times
from . import postgres_values as values
from .postgres_fields import ABSENT, NULL, UNCHANGED, Fields
from .postgres_program import Column, Node

Convert = Callable[[bytes], str]

_quoted: Callable[[str], str] = json.encoder.encode_basestring
_integer = re.compile(rb"-?(0|[1-9][0-9]*)").fullmatch
_number = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?").fullmatch
_solid = re.compile(r'"(?:[^"\\]|\\.)*"|[^" \t\n\r]+').findall
_pair = re.compile(rb'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|(NULL))', re.DOTALL).match
_escape = re.compile(rb"\\(.)", re.DOTALL)
_day = re.compile(rb"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])").fullmatch
_usual = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(\+00)?"
).fullmatch


class Writer:
    """The columns of one table."""

    def __init__(self, columns: Sequence[Column], key: Sequence[int], wide: bool) -> None:
        converters = [converter(column.node, wide) for column in columns]
        labels = [_quoted(column.name) + ":" for column in columns]
        own = list(enumerate(zip(labels, converters, strict=True)))
        self._columns = [(place, *rest) for place, rest in own]
        self._key = [self._columns[place] for place in key]

    def image(self, image: Fields, odd: Any, key: bool) -> pa.Array:
        """Objects of the rows that are there; `odd` is set where a text was not of its type."""
        columns = self._key if key else self._columns
        data = memoryview(image.data)
        rows: list[str | None] = []
        for present, starts, sizes in zip(
            image.present.tolist(), image.starts.tolist(), image.sizes.tolist(), strict=True
        ):
            if not present:
                rows.append(None)
                continue
            parts = []
            for place, label, convert in columns:
                size = sizes[place]
                if size >= 0:
                    start = starts[place]
                    raw = data[start : start + size].tobytes()
                    try:
                        parts.append(label + convert(raw))
                    except (ValueError, KeyError):
                        odd[place] = True
                        parts.append(label + text(raw))
                elif size == NULL:
                    parts.append(label + "null")
                elif size == UNCHANGED:
                    parts.append(label + '{"_unchanged":true}')
                else:
                    assert size == ABSENT
            rows.append("{" + ",".join(parts) + "}")
        return pa.array(rows, pa.string())


def converter(node: Node, wide: bool) -> Convert:
    """What turns texts of this type into JSON."""
    match node.op:
        case ops.ARRAY:
            assert node.element is not None
            delimiter = node.delimiter.encode()
            bare = re.compile(rb"[^" + re.escape(delimiter) + rb"}]+", re.DOTALL)
            return partial(_array, converter(node.element, wide), delimiter, bare)
        case ops.COMPOSITE:
            parts = [(_quoted(name) + ":", converter(part, wide)) for name, part in node.attributes]
            return partial(_composite, parts)
        case ops.INTEGER if wide:
            return _wide_integer
        case ops.DATE | ops.TIMESTAMP | ops.TIMESTAMPTZ:
            return partial(_moment, node.op, node.precision)
        case ops.TIME | ops.TIMETZ:
            return partial(_time, node.op == ops.TIMETZ, node.precision)
        case op:
            return _SCALARS[op]


def text(raw: bytes) -> str:
    try:
        return _quoted(raw.decode())
    except UnicodeDecodeError:
        return _base64(raw)


def _base64(raw: bytes) -> str:
    return '{"_base64":"' + base64.b64encode(raw).decode() + '"}'


def _bytes(raw: bytes) -> str:
    if raw[:2] != b"\\x" or not re.fullmatch(rb"[0-9a-fA-F]*", raw[2:]):
        raise ValueError
    return _base64(bytes.fromhex(raw[2:].decode()))


def _plain_integer(raw: bytes) -> str:
    if not _integer(raw):
        raise ValueError
    return raw.decode()


def _wide_integer(raw: bytes) -> str:
    number = _plain_integer(raw)
    digits = number.lstrip("-")
    beyond = len(digits) > 16 or (len(digits) == 16 and digits > "9007199254740992")
    return f'"{number}"' if beyond else number


def _float(raw: bytes) -> str:
    if _number(raw):
        return raw.decode()
    if raw in (b"NaN", b"Infinity", b"-Infinity"):
        return f'"{raw.decode()}"'
    raise ValueError


def _constant(name: str) -> None:
    raise ValueError(name)


_check = json.JSONDecoder(parse_constant=_constant, parse_int=len, parse_float=len).decode


def _json(raw: bytes) -> str:
    document = raw.decode()
    try:
        _check(document)
    except RecursionError:  # deeper than Python goes
        return _by_kernel(values.put_json, raw, np.empty(len(raw), np.uint8), 0)
    return "".join(_solid(document))


def _hstore(raw: bytes) -> str:
    raw.decode()
    parts: list[str] = []
    at = 0
    while at < len(raw) or parts:
        pair = _pair(raw, at)
        if pair is None:
            raise ValueError
        name, value, null = pair.groups()
        shown = "null" if null else _quoted(_escape.sub(rb"\1", value).decode())
        parts.append(_quoted(_escape.sub(rb"\1", name).decode()) + ":" + shown)
        at = pair.end()
        if at == len(raw):
            break
        if raw[at : at + 2] != b", ":
            raise ValueError
        at += 2
    return "{" + ",".join(parts) + "}"


def _by_kernel(put: Callable[..., int], raw: bytes, *more: Any) -> str:
    """By a function of the kernels as it stands there: what is rare does not need a quick way."""
    out = np.empty(6 * len(raw) + 64, np.uint8)
    end = put(np.frombuffer(raw, np.uint8), 0, len(raw), out, 0, *more)
    if end < 0:
        raise ValueError
    return out[:end].tobytes().decode()


def _moment(op: int, precision: int, raw: bytes) -> str:
    if op == ops.DATE:
        if _day(raw):
            return f'"{raw.decode()}"'
    elif (usual := _usual(raw)) and (usual[4] is not None) == (op == ops.TIMESTAMPTZ):
        fraction = usual[3] or b""
        if precision and len(fraction) <= precision:
            fraction = (fraction or b".").ljust(precision + 1, b"0")
        zone = "" if usual[4] is None else "Z"
        return f'"{usual[1].decode()}T{usual[2].decode()}{fraction.decode()}{zone}"'
    return _by_kernel(times.put_moment, raw, op, precision)


def _time(zoned: bool, precision: int, raw: bytes) -> str:
    return _by_kernel(times.put_time, raw, zoned, precision)


_SCALARS: dict[int, Convert] = {
    ops.TEXT: text,
    ops.BOOL: {b"t": "true", b"f": "false"}.__getitem__,
    ops.INTEGER: _plain_integer,
    ops.FLOAT: _float,
    ops.BYTES: _bytes,
    ops.JSON: _json,
    ops.HSTORE: _hstore,
}


# --- values with parts -----------------------------------------------------------------------


_element = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL).match
_attribute = re.compile(rb'"((?:[^"\\]|\\.|"")*)"(?!")', re.DOTALL).match
_attribute_escape = re.compile(rb'\\(.)|"(")', re.DOTALL)


def _array(convert: Convert, delimiter: bytes, bare: re.Pattern[bytes], raw: bytes) -> str:
    at = raw.index(b"=") + 1 if raw[:1] == b"[" else 0  # bounds that do not begin at 1: [2:4]={...}
    out: list[str] = []
    level, may_close, wants = 0, False, True
    while True:
        c = raw[at : at + 1]
        if level == 0 and c != b"{":
            raise ValueError
        if c == b"}" and (may_close or not wants):
            out.append("]")
            level, at, wants, may_close = level - 1, at + 1, False, False
            if level == 0:
                if at != len(raw):
                    raise ValueError
                return "".join(out)
        elif not wants:
            if c != delimiter:
                raise ValueError
            out.append(",")
            at, wants = at + 1, True
        elif c == b"{":
            out.append("[")
            level, at, may_close = level + 1, at + 1, True
        else:
            found = _element(raw, at) if c == b'"' else bare.match(raw, at)
            if found is None:
                raise ValueError
            if c == b'"':
                inner = found[1]
                out.append(convert(_escape.sub(rb"\1", inner) if b"\\" in inner else inner))
            else:
                out.append("null" if found[0] == b"NULL" else convert(found[0]))
            at, wants, may_close = found.end(), False, False


_bare = re.compile(rb"[^,)]+", re.DOTALL).match


def _composite(parts: list[tuple[str, Convert]], raw: bytes) -> str:
    if raw[:1] != b"(" or raw[-1:] != b")":
        raise ValueError
    out, at = [], 1
    for place, (label, convert) in enumerate(parts):
        if place:
            if raw[at : at + 1] != b",":
                raise ValueError
            at += 1
        c = raw[at : at + 1]
        if c in (b",", b")"):
            out.append(label + "null")
            continue
        found = _attribute(raw, at) if c == b'"' else _bare(raw, at)
        if found is None:
            raise ValueError
        content = found[0]
        if c == b'"':
            content = _attribute_escape.sub(rb"\1\2", found[1])
        out.append(label + convert(content))
        at = found.end()
    if at != len(raw) - 1:
        raise ValueError
    return "{" + ",".join(out) + "}"
