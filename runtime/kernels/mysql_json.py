"""MySQL's binary JSON as text: by a kernel for whole documents, in Python for differences.

The text is what the server itself shows, without its spaces: keys in stored order, numbers in its
notation, dates and decimals that a document holds as it writes them.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from .jit import n64
from .mysql_text import put_base64_text, put_utf8
from .mysql_values import (
    copy,
    decimal_size,
    little_endian,
    put_date,
    put_decimal,
    put_float,
    put_integer,
    put_number,
    put_padded,
    put_two,
    put_word,
)
from .shortest import powers

u = np.uint64
_0, _1 = u(0), u(1)
_BASE64 = np.frombuffer(b"base64:type", np.uint8)

DEEPEST = 1024  # levels of a document; MySQL allows 100, MariaDB's text may have more

# Columns of the stack.
_FROM, _TO, _COUNT, _NEXT, _KIND = range(5)


def put_json(data: Any, at: int, end: int, out: Any, used: int, stack: Any, tens: Any) -> int:
    """A binary document as text; -1 when it is damaged.

    Six times the document and a little more is room enough. Each byte may be used once, so that
    a damaged document cannot make the text large or the work long.
    """
    if at == end:  # how the server keeps a null that it has to make up
        return put_word(out, used, 110)
    budget = end - at - 1
    kind = n64(data[u(at)])
    at += 1
    limit = end
    depth = -1
    inline = False
    while True:
        if kind <= 3:
            width = 4 if kind & 1 else 2
            if limit - at < 2 * width:
                return -1
            count = n64(little_endian(data, at, width))
            size = n64(little_endian(data, at + width, width))
            entry = 1 + width if kind > 1 else 3 + 2 * width
            head = 2 * width + count * entry
            budget -= head
            depth += 1
            if size > limit - at or head > size or budget < 0 or depth >= len(stack):
                return -1
            stack[depth, _FROM] = at
            stack[depth, _TO] = at + size
            stack[depth, _COUNT] = count
            stack[depth, _NEXT] = 0
            stack[depth, _KIND] = kind
            out[u(used)] = 123 if kind < 2 else 91
            used += 1
        elif kind == 4:
            if limit - at < 1:
                return -1
            word = data[u(at)]
            if word > 2:
                return -1
            used = put_word(out, used, 110 if word == 0 else 116 if word == 1 else 102)
        elif kind <= 11:
            width = 2 if kind <= 6 else 4 if kind <= 8 else 8
            if limit - at < width:
                return -1
            if not inline:
                budget -= width
            if budget < 0:
                return -1
            raw = little_endian(data, at, width)
            if kind == 11:
                used = put_float(out, used, raw, True, True, tens)
            else:
                negative = kind & 1 == 1 and raw >> u(8 * width - 1) != _0
                if negative:
                    raw = _0 - raw if width == 8 else (_1 << u(8 * width)) - raw
                used = put_integer(out, used, negative, raw, False)
        elif kind == 12 or kind == 15:
            code = 0
            if kind == 15:
                if limit - at < 1:
                    return -1
                code = n64(data[u(at)])
                at += 1
                budget -= 1
            length = 0
            shift = 0
            while True:
                if at >= limit or shift > 28:
                    return -1
                byte = n64(data[u(at)])
                at += 1
                budget -= 1
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            budget -= length
            if length > limit - at or budget < 0:
                return -1
            if kind == 12:
                out[u(used)] = 34
                used = put_utf8(data, at, at + length, out, used + 1)
                if used < 0:
                    return -1
                out[u(used)] = 34
                used += 1
            else:
                used = put_opaque(data, at, length, code, out, used)
                if used < 0:
                    return -1
        else:
            return -1
        while depth >= 0 and stack[depth, _NEXT] == stack[depth, _COUNT]:
            out[u(used)] = 125 if stack[depth, _KIND] < 2 else 93
            used += 1
            depth -= 1
        if depth < 0:
            return used
        base = stack[depth, _FROM]
        limit = stack[depth, _TO]
        count = stack[depth, _COUNT]
        index = stack[depth, _NEXT]
        kind = stack[depth, _KIND]
        stack[depth, _NEXT] = index + 1
        width = 4 if kind & 1 else 2
        large = width == 4
        if index > 0:
            out[u(used)] = 44
            used += 1
        place = base + 2 * width
        head = 2 * width + count * (1 + width if kind > 1 else 3 + 2 * width)
        if kind < 2:
            key = base + n64(little_endian(data, place + index * (width + 2), width))
            length = n64(little_endian(data, place + index * (width + 2) + width, 2))
            budget -= length
            if key < base + head or length > limit - key or budget < 0:
                return -1
            out[u(used)] = 34
            used = put_utf8(data, key, key + length, out, used + 1)
            if used < 0:
                return -1
            out[u(used)] = 34
            out[u(used + 1)] = 58
            used += 2
            place += count * (width + 2)
        place += index * (1 + width)
        kind = n64(data[u(place)])
        inline = 4 <= kind <= 6 or (large and 7 <= kind <= 8)
        if inline:
            at = place + 1
        else:
            at = base + n64(little_endian(data, place + 1, width))
            if at < base + head or at > limit:
                return -1


def put_opaque(data: Any, at: int, size: int, code: int, out: Any, used: int) -> int:
    """A value of another type inside a document, as the server shows it."""
    if code == 246:
        if size < 2:
            return -1
        scale = n64(data[u(at + 1)])
        whole = n64(data[u(at)]) - scale
        if whole < 0 or whole > 65 or scale > 38 or size - 2 != decimal_size(whole, scale):
            return -1
        if size == 2:
            return -1
        return put_decimal(data, at + 2, whole, scale, out, used)
    out[u(used)] = 34
    used += 1
    if code == 7 or code == 10 or code == 11 or code == 12:
        if size != 8:
            return -1
        raw = little_endian(data, at, 8)
        if raw >> u(63) != _0:
            raw = _0 - raw
            out[u(used)] = 45
            used += 1
        micros = raw & u(0xFFFFFF)
        moment = n64(raw >> u(24))
        if code != 11:
            months = moment >> 22
            used = put_date(out, used, months // 13, months % 13, moment >> 17 & 31)
        if code != 10:
            hour = moment >> 12 & (1023 if code == 11 else 31)
            if code != 11:
                out[u(used)] = 32
                used += 1
            if hour < 10:
                out[u(used)] = 48
                used += 1
            used = put_number(out, used, u(hour))
            used = put_two(out, used, moment >> 6 & 63, 58)
            used = put_two(out, used, moment & 63, 58)
            out[u(used)] = 46
            used = put_padded(out, used + 1, micros, 6)
    else:
        used = copy(_BASE64, 0, len(_BASE64), out, used)
        used = put_number(out, used, u(code))
        out[u(used)] = 58
        used = put_base64_text(data, at, at + size, 0, out, used + 1)
    out[u(used)] = 34
    return used + 1


def put_json_text(data: Any, at: int, end: int, out: Any, used: int, stack: Any) -> int:
    """Text that is JSON, without the spaces around its values; -1 when it is not JSON."""
    depth = 0
    state = 0  # 0 a value, 1 behind one, 2 a key, 3 its colon, 4 a value or ], 5 a key or }
    while at < end:
        c = n64(data[u(at)])
        if c == 32 or c == 9 or c == 10 or c == 13:
            at += 1
            continue
        if c == 34:
            if state == 1 or state == 3:
                return -1
            begin = at
            at += 1
            plain = False
            while at < end:
                c = n64(data[u(at)])
                at += 1
                if c == 34:
                    plain = True
                    break
                if c < 32:
                    return -1
                if c == 92:
                    if at >= end:
                        return -1
                    e = n64(data[u(at)])
                    at += 1
                    if e == 117:
                        if end - at < 4:
                            return -1
                        for i in range(4):
                            h = n64(data[u(at + i)]) | 32
                            if not (48 <= h <= 57 or 97 <= h <= 102) or (
                                h < 58 and data[u(at + i)] != h
                            ):
                                return -1
                        at += 4
                    elif not (
                        e == 34
                        or e == 92
                        or e == 47
                        or e == 98
                        or e == 102
                        or e == 110
                        or e == 114
                        or e == 116
                    ):
                        return -1
            if not plain:
                return -1
            # Control bytes are out already, and what has quotes or backslashes has them escaped.
            used = copy_utf8(data, begin, at, out, used)
            if used < 0:
                return -1
            state = 3 if state == 2 or state == 5 else 1
        elif c == 123 or c == 91:
            if not (state == 0 or state == 4) or depth >= len(stack):
                return -1
            stack[depth, 0] = c
            depth += 1
            out[u(used)] = c
            used += 1
            at += 1
            state = 5 if c == 123 else 4
        elif c == 125 or c == 93:
            if depth == 0 or stack[depth - 1, 0] != c - 2:
                return -1
            if not (state == 1 or state == (5 if c == 125 else 4)):
                return -1
            depth -= 1
            out[u(used)] = c
            used += 1
            at += 1
            state = 1
        elif c == 44:
            if state != 1 or depth == 0:
                return -1
            out[u(used)] = 44
            used += 1
            at += 1
            state = 2 if stack[depth - 1, 0] == 123 else 0
        elif c == 58:
            if state != 3:
                return -1
            out[u(used)] = 58
            used += 1
            at += 1
            state = 0
        else:
            if not (state == 0 or state == 4):
                return -1
            stop = scalar_end(data, at, end)
            if stop < 0:
                return -1
            used = copy(data, at, stop, out, used)
            at = stop
            state = 1
    return used if state == 1 and depth == 0 else -1


def scalar_end(data: Any, at: int, end: int) -> int:
    """Behind a number or a word; -1 where there is none."""
    c = n64(data[u(at)])
    if c == 116 or c == 110:
        if end - at < 4:
            return -1
        a = n64(data[u(at + 1)])
        b = n64(data[u(at + 2)])
        d = n64(data[u(at + 3)])
        true = c == 116 and a == 114 and b == 117 and d == 101
        null = c == 110 and a == 117 and b == 108 and d == 108
        return at + 4 if true or null else -1
    if c == 102:
        if end - at < 5:
            return -1
        a = n64(data[u(at + 1)])
        b = n64(data[u(at + 2)])
        d = n64(data[u(at + 3)])
        false = a == 97 and b == 108 and d == 115 and data[u(at + 4)] == 101
        return at + 5 if false else -1
    if c == 45:
        at += 1
    begin = at
    while at < end and 48 <= data[u(at)] <= 57:
        at += 1
    if at == begin or (at - begin > 1 and data[u(begin)] == 48):
        return -1
    if at < end and data[u(at)] == 46:
        at += 1
        begin = at
        while at < end and 48 <= data[u(at)] <= 57:
            at += 1
        if at == begin:
            return -1
    if at < end and data[u(at)] | 32 == 101:
        at += 1
        if at < end and (data[u(at)] == 43 or data[u(at)] == 45):
            at += 1
        begin = at
        while at < end and 48 <= data[u(at)] <= 57:
            at += 1
        if at == begin:
            return -1
    return at


def copy_utf8(data: Any, at: int, end: int, out: Any, used: int) -> int:
    """A piece of text as it is; -1 for what is no UTF-8."""
    high = False
    for i in range(end - at):
        high |= data[u(at + i)] > 127
    if not high:
        return copy(data, at, end, out, used)
    while at < end:
        c = n64(data[u(at)])
        if c < 128:
            out[u(used)] = c
            used += 1
            at += 1
            continue
        begin = at
        at += 1
        while at < end and n64(data[u(at)]) & 0xC0 == 0x80 and at - begin < 4:
            at += 1
        used = put_utf8(data, begin, at, out, used)
        if used < 0:
            return -1
    return used


JSON_WRITERS = (put_opaque, put_json, scalar_end, copy_utf8, put_json_text)


# --- Python: documents that come as differences ----------------------------------------------

Document = bytes | list["Document"] | dict[bytes, "Document"]  # a scalar is its text


class Damaged(ValueError):
    """No binary JSON."""


def patched(document: bytes | None, differences: bytes) -> bytes | None:
    """The text of a document after differences; None when something is damaged.

    Without the document, which a minimal row image leaves out, the differences themselves are told.
    """
    try:
        changes = list(_changes(differences))
        if document is None:
            return _dump({b"_json_diff": [_told(*change) for change in changes]}, stored=False)
        tree: Document = parsed(document)
        for operation, path, value in changes:
            tree = _apply(tree, operation, _legs(path), value)
        return _dump(tree)
    except (ValueError, IndexError, struct.error):
        return None


_OPERATIONS = (b'"replace"', b'"insert"', b'"remove"')


def _told(operation: int, path: bytes, value: bytes | None) -> Document:
    told: dict[bytes, Document] = {b"op": _OPERATIONS[operation], b"path": _quoted(path)}
    if value is not None:
        told[b"value"] = parsed(value)
    return told


def _changes(data: bytes) -> Any:
    at = 0

    def packed() -> int:
        nonlocal at
        first = data[at]
        at += 1
        if first < 251:
            return first
        size = {252: 2, 253: 3, 254: 8}.get(first, 0)
        at += size
        if not size or at > len(data):
            raise Damaged
        return int.from_bytes(data[at - size : at], "little")

    def taken() -> bytes:
        nonlocal at
        size = packed()
        at += size
        if at > len(data):
            raise Damaged
        return data[at - size : at]

    while at < len(data):
        operation = data[at]
        at += 1
        if operation > 2:
            raise Damaged
        path = taken()
        yield operation, path, (taken() if operation < 2 else None)


def _legs(path: bytes) -> list[bytes | int]:
    """`$.a."b c"[3]` as keys and indexes."""
    legs: list[bytes | int] = []
    if path[:1] != b"$":
        raise Damaged
    at = 1
    while at < len(path):
        if path[at] == 91:
            end = path.index(b"]", at)
            legs.append(int(path[at + 1 : end]))
            at = end + 1
        elif path[at : at + 2] == b'."':
            end = at + 2
            while path[end] != 34:
                end += 2 if path[end] == 92 else 1
            legs.append(_unquoted(path[at + 1 : end + 1]))
            at = end + 1
        elif path[at] == 46:
            end = at + 1
            while end < len(path) and path[end] not in b".[":
                end += 1
            legs.append(path[at + 1 : end])
            at = end
        else:
            raise Damaged
    return legs


def _apply(
    tree: Document, operation: int, legs: list[bytes | int], value: bytes | None
) -> Document:
    new = parsed(value) if value is not None else b"null"
    if not legs:
        if operation:
            raise Damaged
        return new
    parent = tree
    for leg in legs[:-1]:
        parent = _child(parent, leg)
    last = legs[-1]
    if isinstance(parent, list) and isinstance(last, int):
        if operation == 0:
            parent[last] = new
        elif operation == 1:
            parent.insert(last, new)
        else:
            del parent[last]
    elif isinstance(parent, dict) and isinstance(last, bytes):
        if (last in parent) == (operation == 1):
            raise Damaged
        if operation == 2:
            del parent[last]
        else:
            parent[last] = new
    else:
        raise Damaged
    return tree


def _child(parent: Document, leg: bytes | int) -> Document:
    if isinstance(parent, list) and isinstance(leg, int):
        return parent[leg]
    if isinstance(parent, dict) and isinstance(leg, bytes) and leg in parent:
        return parent[leg]
    raise Damaged


def parsed(data: bytes) -> Document:
    """A binary document as a tree of texts."""
    if not data:
        return b"null"
    left = [len(data)]  # each byte counts once, as in the kernel
    return _value(data, 1, len(data), data[0], left, 0)


def _value(data: bytes, at: int, end: int, kind: int, left: list[int], depth: int) -> Document:
    if kind > 3:
        size = _scalar_size(data, at, end, kind)
        left[0] -= size
        if left[0] < 0:
            raise Damaged
        return _scalar(bytes((kind,)) + data[at : at + size])
    width, form = (4, "<I") if kind & 1 else (2, "<H")
    count, size = struct.unpack_from(form[0] + 2 * form[1], data, at)
    head = 2 * width + count * (1 + width + (width + 2 if kind < 2 else 0))
    left[0] -= head
    if size > end - at or head > size or left[0] < 0 or depth > 200:
        raise Damaged
    end = at + size
    values = at + 2 * width + (count * (width + 2) if kind < 2 else 0)
    children: list[Document] = []
    for place in range(values, values + count * (1 + width), 1 + width):
        code = data[place]
        if 4 <= code <= 6 or (width == 4 and 7 <= code <= 8):
            child = place + 1
            left[0] += 4  # counted with the head
        else:
            offset = struct.unpack_from(form, data, place + 1)[0]
            child = at + offset
            if offset < head or child > end:
                raise Damaged
        children.append(_value(data, child, end, code, left, depth + 1))
    if kind > 1:
        return children
    keys = []
    for place in range(at + 2 * width, values, width + 2):
        offset = struct.unpack_from(form, data, place)[0]
        length = struct.unpack_from("<H", data, place + width)[0]
        if offset < head or offset + length > size:
            raise Damaged
        keys.append(data[at + offset : at + offset + length])
    return dict(zip(keys, children, strict=True))


def _scalar_size(data: bytes, at: int, end: int, kind: int) -> int:
    sizes = {4: 1, 5: 2, 6: 2, 7: 4, 8: 4, 9: 8, 10: 8, 11: 8}
    if kind in sizes:
        size = sizes[kind]
    elif kind in (12, 15):
        begin, length, shift = at, 0, 0
        at += kind == 15
        while True:
            byte = data[at]
            length |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        size = at - begin + length
        at = begin
    else:
        raise Damaged
    if size > end - at:
        raise Damaged
    return size


def _scalar(data: bytes) -> bytes:
    out = np.empty(6 * len(data) + 64, np.uint8)
    stack = np.zeros((1, 5), np.int64)
    with np.errstate(over="ignore"):
        used = put_json(np.frombuffer(data, np.uint8), 0, len(data), out, 0, stack, powers())
    if used < 0:
        raise Damaged
    return out[:used].tobytes()


def _quoted(text: bytes) -> bytes:
    size = bytearray()
    rest = len(text)
    while True:
        size.append(rest & 127 | (128 if rest > 127 else 0))
        rest >>= 7
        if not rest:
            break
    return _scalar(b"\x0c" + bytes(size) + text)


def _unquoted(text: bytes) -> bytes:
    import json

    found = json.loads(text)
    if not isinstance(found, str):
        raise Damaged
    return found.encode()


def _dump(tree: Document, stored: bool = True) -> bytes:
    if isinstance(tree, bytes):
        return tree
    if isinstance(tree, list):
        return b"[" + b",".join(_dump(item, stored) for item in tree) + b"]"
    # The server keeps keys by length, then by bytes.
    keys = sorted(tree, key=lambda key: (len(key), key)) if stored else list(tree)
    members = [_quoted(key) + b":" + _dump(tree[key], stored) for key in keys]
    return b"{" + b",".join(members) + b"}"
