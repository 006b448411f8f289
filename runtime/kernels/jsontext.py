"""One value out of each JSON text of a column, without parsing the rest into objects.

The result is what a template inserts: strings unescaped, any other value as its exact text
(`1.00` stays `1.00`, big integers keep every digit), null for a missing path or a JSON null.
Of duplicate keys the last one counts, as for JSON.parse and json.loads. An escaped half of a
surrogate pair, which has no UTF-8 form, becomes U+FFFD.

Two ways that agree: a scanner in Python, and a kernel over the Arrow buffers (see jit.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .jit import Kernel

if TYPE_CHECKING:
    from .documents import Documents

# What a value begins with tells what it is; a digit or a minus begins a number.
MISSING, STRING, NULL, TRUE, FALSE, OBJECT, LIST = 0, *b'"ntf{['
NUMBER = np.isin(np.arange(256), list(b"-0123456789"))  # by kind

_space = re.compile(r"[\0-\x20]*").match
_scalar = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^\0-\x20,\]}]*', re.DOTALL).match
_marks = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL).finditer
_lone = re.compile("[\ud800-\udfff]")
_decoder: Any = json.JSONDecoder(strict=False)
_string = _decoder.parse_string


class Values:
    """One value of each row, as template text and by the first byte of its JSON text."""

    def __init__(self, text: pa.Array, kind: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.text = text
        self.kind = kind

    def floats(self) -> Any:
        """Numbers as 64-bit floats, NaN elsewhere; None when one of them is no number after all."""
        numbers = NUMBER[self.kind]
        text = self.text
        if not numbers.all():
            text = pc.if_else(pa.array(numbers), text, pa.scalar(None, pa.string()))
        try:
            return pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return None


def extract(texts: pa.Array, path: tuple[str, ...]) -> pa.Array:
    """String column with the value at `path` of each JSON text."""
    return values(texts, path).text


def values(texts: pa.Array | Documents, path: tuple[str, ...]) -> Values:
    """The same, with the kind of each value: a string and a number may read alike."""
    if not isinstance(texts, pa.Array):
        return texts.values(path)
    if texts.null_count == len(texts):
        return Values(pa.nulls(len(texts), pa.string()), np.zeros(len(texts), np.uint8))
    kernel = KERNEL.after(len(texts))
    return values_python(texts, path) if kernel is None else values_buffers(texts, path, kernel)


# --- Python ----------------------------------------------------------------------------------


def values_python(texts: pa.Array, path: tuple[str, ...]) -> Values:
    found = [(None, MISSING) if t is None else value_at(t, path) for t in texts.to_pylist()]
    return Values(
        pa.array([text for text, _ in found], pa.string()),
        np.array([kind for _, kind in found], np.uint8),
    )


def value_at(text: str, path: tuple[str, ...]) -> tuple[str | None, int]:
    """The value at `path` of one JSON text, as template text, and its kind."""
    at = _space(text, 0).end()  # type: ignore[union-attr]
    for name in path:
        if text[at : at + 1] != "{":
            return None, MISSING
        at = _member(text, at + 1, name)
        if at < 0:
            return None, MISSING
    kind = ord(text[at])
    if kind == STRING:
        return _lone.sub("\ufffd", _string(text, at + 1, False)[0]), kind
    return (None if kind == NULL else text[at : end_of(text, at)]), kind


def _member(text: str, at: int, name: str) -> int:
    """Where the last member called `name` has its value; `at` is behind the opening brace."""
    found = -1
    at = _space(text, at).end()  # type: ignore[union-attr]
    while text[at] != "}":
        key, at = _string(text, at + 1, False)
        at = _space(text, at).end() + 1  # type: ignore[union-attr]
        at = _space(text, at).end()  # type: ignore[union-attr]
        if key == name:
            found = at
        at = _space(text, end_of(text, at)).end()  # type: ignore[union-attr]
        if text[at] == ",":
            at = _space(text, at + 1).end()  # type: ignore[union-attr]
    return found


def end_of(text: str, at: int) -> int:
    """Where the value that begins at `at` ends; however deep it is, without recursion."""
    if text[at] not in "{[":
        return _scalar(text, at).end()  # type: ignore[union-attr]
    depth = 0
    for mark in _marks(text, at):
        c = text[mark.start()]
        if c in "{[":
            depth += 1
        elif c != '"':
            depth -= 1
            if depth == 0:
                return mark.end()
    return len(text)


# --- kernel ----------------------------------------------------------------------------------


def values_buffers(
    texts: pa.Array, path: tuple[str, ...], kernel: Callable[..., Any] | None = None
) -> Values:
    """The same by `scan_rows`, which is the compiled kernel or, in tests, the plain function."""
    rows = len(texts)
    data, offsets, valid = buffers(texts)
    names = [name.encode() for name in path]
    name_data = np.frombuffer(b"".join(names) or b"\0", np.uint8)
    name_ends = np.cumsum([0] + [len(name) for name in names]).astype(np.int64)
    # Unescaped text is never longer than the text it came from, so this is always enough.
    out = np.empty(int(offsets[-1] - offsets[0]) + 8, np.uint8)
    ends = np.zeros(rows + 1, np.int32)
    kind = np.zeros(rows, np.uint8)
    run = scan_rows if kernel is None else kernel
    used = run(data, offsets, valid, name_data, name_ends, out, ends, kind)
    present = (kind != MISSING) & (kind != NULL)
    return Values(strings(out[:used].copy(), ends, present), kind)


def buffers(texts: pa.Array) -> tuple[Any, Any, Any]:
    """A string column as arrays: its bytes, where each row ends in them, which rows are there."""
    rows = len(texts)
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + rows + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    valid = np.ones(rows, np.uint8)
    if texts.null_count:
        valid = texts.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)
    for array in (data, offsets, valid):
        # Some are and some are not; numba would compile a kernel for each combination.
        array.flags.writeable = False
    return data, offsets, valid


def strings(data: Any, ends: Any, present: Any = None) -> pa.Array:
    """The way back: a string column of these bytes, with nulls where rows are not `present`."""
    bits = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(data), bits)


# An index that may be negative is checked at every step, and keeps a loop from being compiled to
# wide moves; an unsigned one is not.
u = np.uint64


def copy(data: Any, at: int, end: int, out: Any, used: int) -> int:
    """Puts data[at:end] to out[used:]; the new end."""
    for i in range(end - at):
        out[u(used + i)] = data[u(at + i)]
    return used + end - at


def skip_space(data: Any, at: int, stop: int) -> int:
    while at < stop and data[u(at)] <= 32:
        at += 1
    return at


def skip_string(data: Any, at: int, stop: int) -> int:
    """Behind the closing quote of the string whose content begins at `at`."""
    while at < stop:
        c = data[u(at)]
        if c == 34:
            return at + 1
        if c == 92:
            at += 1
        at += 1
    return stop


def skip_value(data: Any, at: int, stop: int) -> int:
    """Behind the value that begins at `at`."""
    c = data[u(at)]
    if c == 34:
        return skip_string(data, at + 1, stop)
    if c != 123 and c != 91:
        while at < stop:
            c = data[u(at)]
            if c == 44 or c == 125 or c == 93 or c <= 32:
                return at
            at += 1
        return stop
    depth = 0
    while at < stop:
        c = data[u(at)]
        at += 1
        if c == 34:
            at = skip_string(data, at, stop)
        elif c == 123 or c == 91:
            depth += 1
        elif c == 125 or c == 93:
            depth -= 1
            if depth == 0:
                return at
    return stop


def unescape(data: Any, at: int, end: int, out: Any, used: int, exact: bool = False) -> int:
    """Writes the string content data[at:end] without its escapes to out[used:]; the new end.

    `exact` keeps lone halves of surrogate pairs apart, for comparing; that is no UTF-8.
    """
    while at < end:
        c = int(data[at])
        if c != 92 or at + 1 >= end:
            out[used] = c
            used += 1
            at += 1
            continue
        c = int(data[at + 1])
        at += 2
        if c != 117:  # not \u
            if c == 98:
                c = 8
            elif c == 102:
                c = 12
            elif c == 110:
                c = 10
            elif c == 114:
                c = 13
            elif c == 116:
                c = 9
            out[used] = c
            used += 1
            continue
        code = 0
        for i in range(at, min(at + 4, end)):
            d = int(data[i])
            code = code * 16 + (d - 48 if d < 58 else (d & 95) - 55)
        at += 4
        if 0xD800 <= code < 0xDC00 and at + 6 <= end and data[at] == 92 and data[at + 1] == 117:
            low = 0
            for i in range(at + 2, at + 6):
                d = int(data[i])
                low = low * 16 + (d - 48 if d < 58 else (d & 95) - 55)
            if 0xDC00 <= low < 0xE000:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                at += 6
        if not exact and 0xD800 <= code < 0xE000:
            code = 0xFFFD
        if code < 0x80:
            out[used] = code
            used += 1
        elif code < 0x800:
            out[used] = 0xC0 | (code >> 6)
            out[used + 1] = 0x80 | (code & 63)
            used += 2
        elif code < 0x10000:
            out[used] = 0xE0 | (code >> 12)
            out[used + 1] = 0x80 | ((code >> 6) & 63)
            out[used + 2] = 0x80 | (code & 63)
            used += 3
        else:
            out[used] = 0xF0 | (code >> 18)
            out[used + 1] = 0x80 | ((code >> 12) & 63)
            out[used + 2] = 0x80 | ((code >> 6) & 63)
            out[used + 3] = 0x80 | (code & 63)
            used += 4
    return used


def scan_rows(
    data: Any,
    offsets: Any,
    valid: Any,
    names: Any,
    name_ends: Any,
    out: Any,
    ends: Any,
    kinds: Any,
) -> int:
    """Finds the path in every row and writes its value to `out`; the number of bytes written."""
    used = 0
    for row in range(len(valid)):
        ends[row] = used
        if valid[row] == 0:
            continue
        stop = int(offsets[row + 1])
        at = skip_space(data, int(offsets[row]), stop)
        end = stop
        found = True
        for level in range(len(name_ends) - 1):
            if at >= stop or data[at] != 123:
                found = False
                break
            name = int(name_ends[level])
            size = int(name_ends[level + 1]) - name
            value_at = -1
            value_end = -1
            q = at + 1
            while True:
                while q < stop and (data[u(q)] <= 32 or data[u(q)] == 44):
                    q += 1
                if q >= stop or data[q] != 34:
                    break
                key = q + 1
                escaped = False
                q = key
                while q < stop:
                    c = data[u(q)]
                    if c == 34:
                        break
                    if c == 92:
                        escaped = True
                        q += 1
                    q += 1
                key_end = min(q, stop)
                q += 1
                while q < stop and (data[u(q)] <= 32 or data[u(q)] == 58):
                    q += 1
                if q >= stop:
                    break
                begin = q
                q = skip_value(data, q, stop)
                if escaped:
                    # Free space behind what is written serves as scratch: the key is part of a
                    # row whose bytes are all still to come.
                    length = unescape(data, key, key_end, out, used) - used
                    same = length == size
                    i = 0
                    while same and i < size:
                        same = out[used + i] == names[name + i]
                        i += 1
                else:
                    same = key_end - key == size
                    i = 0
                    while same and i < size:
                        same = data[key + i] == names[name + i]
                        i += 1
                if same:
                    value_at = begin
                    value_end = q
            if value_at < 0:
                found = False
                break
            at = value_at
            end = value_end
        if not found or at >= end:
            continue
        kinds[row] = data[at]
        if data[at] == 110:
            continue
        if data[at] == 34:
            used = unescape(data, at + 1, end - 1, out, used)
        else:
            used = copy(data, at, end, out, used)
    ends[len(valid)] = used
    return used


KERNEL = Kernel(scan_rows, copy, skip_space, skip_string, skip_value, unescape)
