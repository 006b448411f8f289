"""One value out of each JSON text of a column, without parsing the rest into objects.

The result is what a template inserts: strings unescaped, any other value as its exact text
(`1.00` stays `1.00`, big integers keep every digit), null for a missing path or a JSON null.
Of duplicate keys the last one counts, as for JSON.parse and json.loads. An escaped half of a
surrogate pair, which has no UTF-8 form, becomes U+FFFD.

Two ways that agree: a scanner in Python, and a kernel over the Arrow buffers, compiled by numba.
The kernel is used once this process has seen enough rows to be worth the compiler's time.
"""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

WORTH_COMPILING = 50_000  # rows; about a fifth of a second of the Python way

_space = re.compile(r"[ \t\n\r]*").match
_lone = re.compile("[\ud800-\udfff]")
_decoder: Any = json.JSONDecoder(strict=False)
_scan = _decoder.scan_once
_string = _decoder.parse_string

_seen = 0
_kernel: Callable[..., int] | None = None
_kernel_failed = False


def extract(texts: pa.Array, path: tuple[str, ...]) -> pa.Array:
    """String column with the value at `path` of each JSON text."""
    global _seen
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.string())
    _seen += len(texts)
    kernel = compiled() if _kernel is not None or _seen >= WORTH_COMPILING else None
    return extract_python(texts, path) if kernel is None else extract_buffers(texts, path, kernel)


def compiled() -> Callable[..., int] | None:
    """The kernel, compiled at the first call; None where numba is missing or switched off."""
    global _kernel, _kernel_failed
    if _kernel is None and not _kernel_failed:
        try:
            if os.environ.get("DFC_JIT") == "0":
                raise ImportError
            _kernel = _compile(cache=True)
        except ImportError:
            _kernel_failed = True
        except RuntimeError:  # no place for the cache, as inside a zip: compile for this run only
            _kernel = _compile(cache=False)
    return _kernel


def _compile(cache: bool) -> Callable[..., int]:
    import numba

    jit: Any = numba.njit(cache=cache, nogil=True)
    # The kernel calls its helper by a global name, which must be the compiled one here and the
    # plain one when the kernel runs as Python.
    names = {**globals(), "unescape": jit(unescape)}
    return jit(types.FunctionType(scan_rows.__code__, names, "scan_rows"))


# --- Python ----------------------------------------------------------------------------------


def extract_python(texts: pa.Array, path: tuple[str, ...]) -> pa.Array:
    return pa.array(
        [None if text is None else value_at(text, path) for text in texts.to_pylist()], pa.string()
    )


def value_at(text: str, path: tuple[str, ...]) -> str | None:
    """The value at `path` of one JSON text, as template text."""
    at = _space(text, 0).end()  # type: ignore[union-attr]
    for name in path:
        if text[at : at + 1] != "{":
            return None
        at = _member(text, at + 1, name)
        if at < 0:
            return None
    if text[at] == '"':
        value: str = _string(text, at + 1, False)[0]
        return _lone.sub("\ufffd", value)
    if text[at] == "n":
        return None
    end: int = _scan(text, at)[1]
    return text[at:end]


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
        at = _space(text, _scan(text, at)[1]).end()  # type: ignore[union-attr]
        if text[at] == ",":
            at = _space(text, at + 1).end()  # type: ignore[union-attr]
    return found


# --- kernel ----------------------------------------------------------------------------------


def extract_buffers(
    texts: pa.Array, path: tuple[str, ...], kernel: Callable[..., int] | None = None
) -> pa.Array:
    """The same by `scan_rows`, which is the compiled kernel or, in tests, the plain function."""
    rows = len(texts)
    valid_bits, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + rows + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    valid = np.ones(rows, np.uint8)
    if valid_bits is not None and texts.null_count:
        valid = texts.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)
    names = [name.encode() for name in path]
    name_data = np.frombuffer(b"".join(names) or b"\0", np.uint8)
    name_ends = np.cumsum([0] + [len(name) for name in names]).astype(np.int64)
    # Unescaped text is never longer than the text it came from, so this is always enough.
    out = np.empty(int(offsets[-1] - offsets[0]) + 8, np.uint8)
    ends = np.zeros(rows + 1, np.int32)
    present = np.zeros(rows, np.uint8)
    run = scan_rows if kernel is None else kernel
    used = run(data, offsets, valid, name_data, name_ends, out, ends, present)
    bits = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.StringArray.from_buffers(
        rows, pa.py_buffer(ends), pa.py_buffer(out[:used].copy()), bits
    )


def unescape(data: Any, at: int, end: int, out: Any, used: int) -> int:
    """Writes the string content data[at:end] without its escapes to out[used:]; the new end."""
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
        if 0xD800 <= code < 0xE000:
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
    present: Any,
) -> int:
    """Finds the path in every row and writes its value to `out`; the number of bytes written."""
    used = 0
    for row in range(len(valid)):
        ends[row] = used
        if valid[row] == 0:
            continue
        at = int(offsets[row])
        stop = int(offsets[row + 1])
        while at < stop and data[at] <= 32:
            at += 1
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
                while q < stop and (data[q] <= 32 or data[q] == 44):
                    q += 1
                if q >= stop or data[q] != 34:
                    break
                q += 1
                key = q
                escaped = False
                while q < stop and data[q] != 34:
                    if data[q] == 92:
                        escaped = True
                        q += 1
                    q += 1
                key_end = min(q, stop)
                q += 1
                while q < stop and (data[q] <= 32 or data[q] == 58):
                    q += 1
                begin = q
                depth = 0
                while q < stop:
                    c = data[q]
                    if c == 34:
                        q += 1
                        while q < stop and data[q] != 34:
                            if data[q] == 92:
                                q += 1
                            q += 1
                        q += 1
                        if depth == 0:
                            break
                    elif c == 123 or c == 91:
                        depth += 1
                        q += 1
                    elif c == 125 or c == 93:
                        if depth == 0:
                            break
                        depth -= 1
                        q += 1
                        if depth == 0:
                            break
                    elif depth == 0 and (c == 44 or c <= 32):
                        break
                    else:
                        q += 1
                q = min(q, stop)
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
        if not found or at >= end or data[at] == 110:
            continue
        present[row] = 1
        if data[at] == 34:
            used = unescape(data, at + 1, end - 1, out, used)
        else:
            for i in range(at, end):
                out[used] = data[i]
                used += 1
    ends[len(valid)] = used
    return used
