"""Members of the objects in a column of JSON texts, found in one pass over each text.

A member is its exact text: `"a\\u0062"` keeps its quotes and its escape, `1.00` its zeros. Of
duplicate keys the last one counts; a key may be written with escapes. A text that is no object has
no members.

As in `jsontext` there are two ways that agree, a scanner in Python and kernels (see jit.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .jit import Kernel
from .jsontext import MISSING, buffers, copy, end_of, strings, u, unescape

_space = re.compile(r"[\0-\x20]*").match
_key = re.compile(r'[\0-\x20,]*("[^"\\]*(?:\\.[^"\\]*)*")[\0-\x20:]*', re.DOTALL).match
_decoder: Any = json.JSONDecoder(strict=False)
_string = _decoder.parse_string
_scan = _decoder.scan_once


class Member(NamedTuple):
    """One member of each row: its text, null where there is none, and the first byte of that."""

    text: pa.Array
    kind: np.ndarray[Any, np.dtype[np.uint8]]  # as in jsontext: STRING, OBJECT, ...


def find(texts: pa.Array, names: Sequence[str]) -> dict[str, Member]:
    """The members of these names."""
    wanted = tuple(dict.fromkeys(names))
    split, gather = SPLIT.after(len(texts)), GATHER.after(len(texts))
    if split is None or gather is None:
        return find_python(texts, wanted)
    return find_buffers(texts, wanted, split, gather)


def without(texts: pa.Array, names: Sequence[str]) -> pa.Array:
    """The objects without the members of these names, and without space between the others."""
    split = SPLIT.after(len(texts))
    if split is None:
        return without_python(texts, names)
    return without_buffers(texts, names, split)


# --- Python ----------------------------------------------------------------------------------


def find_python(texts: pa.Array, names: Sequence[str]) -> dict[str, Member]:
    found: dict[str, list[str | None]] = {name: [None] * len(texts) for name in names}
    for row, text in enumerate(texts.to_pylist()):
        for name, _, value in _members(text or ""):
            if name in found:
                found[name][row] = value
    return {
        name: Member(
            pa.array(column, pa.string()),
            np.array([MISSING if value is None else ord(value[0]) for value in column], np.uint8),
        )
        for name, column in found.items()
    }


def without_python(texts: pa.Array, names: Sequence[str]) -> pa.Array:
    def kept(text: str) -> str:
        return ",".join(
            f"{key}:{value}" for name, key, value in _members(text) if name not in names
        )

    return pa.array([f"{{{kept(text or '')}}}" for text in texts.to_pylist()], pa.string())


def _members(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, key as written and value as written of each member."""
    at = _space(text, 0).end()  # type: ignore[union-attr]
    if text[at : at + 1] != "{":
        return
    at += 1
    while found := _key(text, at):
        key, at = found[1], found.end()
        end = _end(text, at)
        yield (_string(key, 1, False)[0] if "\\" in key else key[1:-1]), key, text[at:end]
        at = end


def _end(text: str, at: int) -> int:
    try:
        end: int = _scan(text, at)[1]
        return end
    except (RecursionError, ValueError):  # deep, or an integer of thousands of digits
        return end_of(text, at)


# --- kernels ---------------------------------------------------------------------------------


def find_buffers(
    texts: pa.Array,
    names: Sequence[str],
    split: Callable[..., Any] | None = None,
    gather: Callable[..., Any] | None = None,
) -> dict[str, Member]:
    """The same by `split_rows` and `gather_rows`, compiled or, in tests, as plain functions."""
    rows = len(texts)
    given, starts, ends = _arguments(texts, names)
    run: Callable[..., Any] = split or split_rows
    run(*given, starts, ends, False, np.empty(0, np.int32), np.empty(0, np.uint8))
    found = {}
    for index, (name, size) in enumerate(zip(names, (ends - starts).sum(axis=1), strict=True)):
        kind = np.zeros(rows, np.uint8)
        if size == 0:
            found[name] = Member(pa.nulls(rows, pa.string()), kind)
            continue
        places, out = np.zeros(rows + 1, np.int32), np.empty(size, np.uint8)
        (gather or gather_rows)(given[0], starts[index], ends[index], kind, places, out)
        found[name] = Member(strings(out, places, kind != MISSING), kind)
    return found


def without_buffers(
    texts: pa.Array, names: Sequence[str], split: Callable[..., Any] | None = None
) -> pa.Array:
    """The same by `split_rows`."""
    rows = len(texts)
    given, starts, ends = _arguments(texts, names)
    places = np.zeros(rows + 1, np.int32)
    # Longer than the texts themselves only for what is no JSON, where a byte may become two.
    out = np.empty(2 * (int(given[1][-1] - given[1][0]) + rows), np.uint8)
    run: Callable[..., Any] = split or split_rows
    used = run(*given, starts, ends, True, places, out)
    return strings(out[:used].copy(), places, np.ones(rows, np.bool_))


def _arguments(texts: pa.Array, names: Sequence[str]) -> tuple[tuple[Any, ...], Any, Any]:
    data, offsets, valid = buffers(texts)
    encoded = [name.encode() for name in names]
    joined = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    name_ends = np.cumsum([0] + [len(name) for name in encoded]).astype(np.int64)
    # Room for any key without its escapes.
    scratch = np.empty(int(np.diff(offsets).max(initial=0)) + 8, np.uint8)
    starts, ends = (np.zeros((len(names), len(texts)), np.int32) for _ in range(2))
    return (data, offsets, valid, joined, name_ends, scratch), starts, ends


def gather_rows(data: Any, starts: Any, ends: Any, kind: Any, places: Any, out: Any) -> None:
    """What is between `starts` and `ends`, one after the other, and what it begins with."""
    used = 0
    for row in range(len(starts)):
        if starts[row] < ends[row]:
            kind[row] = data[starts[row]]
            used = copy(data, starts[row], ends[row], out, used)
        places[row + 1] = used


def split_rows(
    data: Any,
    offsets: Any,
    valid: Any,
    names: Any,
    name_ends: Any,
    scratch: Any,
    starts: Any,
    ends: Any,
    keep: bool,
    places: Any,
    out: Any,
) -> int:
    """Notes where the members of these names have their values; 0 to 0 where there is none.

    `keep` writes an object of the other members to `out`; the number of bytes written. It is one
    long loop because calls for each member would take as long again as all the rest.
    """
    used = 0
    for row in range(len(valid)):
        first = used
        at = int(offsets[row])
        stop = int(offsets[row + 1]) if valid[row] else at
        while at < stop and data[at] <= 32:
            at += 1
        if at < stop and data[at] != 123:
            at = stop
        at += 1
        while True:
            while at < stop and (data[at] <= 32 or data[at] == 44):
                at += 1
            if at >= stop or data[at] != 34:
                break
            key = at + 1
            at = key
            escaped = False
            while at < stop:
                c = data[u(at)]
                if c == 34:
                    break
                if c == 92:
                    escaped = True
                    at += 1
                at += 1
            key_end = at
            at += 1
            while at < stop and (data[at] <= 32 or data[at] == 58):
                at += 1
            if at >= stop:
                break
            value = at
            depth = 0
            while at < stop:
                c = data[u(at)]
                at += 1
                if c == 34:
                    while at < stop:
                        c = data[u(at)]
                        at += 1
                        if c == 34:
                            break
                        if c == 92:
                            at += 1
                    if depth == 0:
                        break
                elif c < 91:  # most of what is between strings: digits, colons, commas
                    if depth == 0 and (c == 44 or c <= 32):
                        at -= 1
                        break
                elif c == 123 or c == 91:
                    depth += 1
                elif c == 125 or c == 93:
                    if depth == 0:
                        at -= 1
                        break
                    depth -= 1
                    if depth == 0:
                        break
            at = min(at, stop)
            size = key_end - key
            if escaped:
                size = unescape(data, key, key_end, scratch, 0, True)
            wanted = False
            for index in range(len(name_ends) - 1):
                name = name_ends[index]
                if name_ends[index + 1] - name != size:
                    continue
                i = 0
                if escaped:
                    while i < size and scratch[u(i)] == names[u(name + i)]:
                        i += 1
                else:
                    while i < size and data[u(key + i)] == names[u(name + i)]:
                        i += 1
                if i == size:
                    wanted = True
                    starts[index, row] = value
                    ends[index, row] = at
                    break
            if keep and not wanted:
                out[used] = 123 if used == first else 44
                used = copy(data, key - 1, key_end + 1, out, used + 1)
                out[used] = 58
                used = copy(data, value, at, out, used + 1)
        if keep:
            if used == first:
                out[used] = 123
                used += 1
            out[used] = 125
            used += 1
            places[row + 1] = used
    return used


SPLIT = Kernel(split_rows, unescape, copy)
GATHER = Kernel(gather_rows, copy)
