"""Members of the objects in a column of JSON texts, found in one pass over each text.

A member is its exact text: `"a\\u0062"` keeps its quotes and its escape, `1.00` its zeros. Of
duplicate keys the last one counts; a key may be written with escapes. A text that is no object has
no members.

As in `jsontext` there are two ways that agree, a scanner in Python and kernels (see jit.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .jit import Kernel
from .jsontext import MISSING, NULL, buffers, copy, end_of, extract, strings, u, unescape

_space = re.compile(r"[\0-\x20]*").match
_key = re.compile(r'[\0-\x20,]*("[^"\\]*(?:\\.[^"\\]*)*")[\0-\x20:]*', re.DOTALL).match
_decoder: Any = json.JSONDecoder(strict=False)
_string = _decoder.parse_string
_scan = _decoder.scan_once


_Kinds: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
_LARGEST = 2**31 - 1  # bytes of a string column


class Member:
    """One member of each row: the first byte of its text and, once somebody asks, that text.

    Rows of kind MISSING have none, whatever the places say.
    """

    def __init__(
        self,
        data: Any,
        starts: Any,
        ends: Any,
        kind: _Kinds,
        gather: Callable[..., Any] | None = None,
    ) -> None:
        self.data, self.starts, self.ends = data, starts, ends
        self.kind = kind  # as in jsontext: STRING, OBJECT, ...
        self._gather = gather

    @cached_property
    def text(self) -> pa.Array:
        """JSON text, null where there is none."""
        if self._gather is None:
            places = zip(self.starts, self.ends, self.kind, strict=True)
            texts = [
                bytes(self.data[at:end]).decode() if kind else None for at, end, kind in places
            ]
            return pa.array(texts, pa.string())
        return self._gathered(self._gather, plain=False)

    @cached_property
    def plain(self) -> pa.Array:
        """As a template inserts it: strings without quotes and escapes, null for JSON's null."""
        if self._gather is None:
            return extract(self.text, ())
        return self._gathered(self._gather, plain=True)

    def without(self, rows: Any) -> Member:
        """The same but for these rows, which have none."""
        if not rows.any():
            return self
        kind = np.where(rows, np.uint8(MISSING), self.kind)
        return Member(self.data, self.starts, self.ends, kind, self._gather)

    def otherwise(self, other: Member) -> Member:
        """The same, and in rows that have none that of another member."""
        take = self.kind == MISSING
        kind = np.where(take, other.kind, self.kind)
        if self.data is other.data:
            starts = np.where(take, other.starts, self.starts)
            ends = np.where(take, other.ends, self.ends)
            return Member(self.data, starts, ends, kind, self._gather)
        return _member(pc.coalesce(self.text, other.text).to_pylist())

    def _gathered(self, gather: Callable[..., Any], plain: bool) -> pa.Array:
        rows = len(self.kind)
        places = np.zeros(rows + 1, np.int32)
        out = np.empty(int((self.ends - self.starts).sum()), np.uint8)
        filled = gather(self.data, self.starts, self.ends, self.kind, plain, places, out)
        if filled == 0:
            return pa.nulls(rows, pa.string())
        present = None
        if filled < rows:
            present = self.kind != MISSING
            if plain:
                present &= self.kind != NULL
        return strings(out, places, present)


def find(texts: pa.Array, names: Sequence[str]) -> dict[str, Member]:
    """The members of these names."""
    wanted = tuple(dict.fromkeys(names))
    kernels = [kernel.after(len(texts)) for kernel in (SPLIT, GATHER, BEGIN)]
    if None in kernels:
        return find_python(texts, wanted)
    return find_buffers(texts, wanted, *kernels)


def without(texts: pa.Array, names: Sequence[str]) -> pa.Array:
    """The objects without the members of these names, and without space between the others."""
    split = SPLIT.after(len(texts))
    if split is None:
        return without_python(texts, names)
    return without_buffers(texts, names, split)


def cut(texts: pa.Array, part: str) -> tuple[pa.Array, int]:
    """The texts without the first place where they read like this, and how many had one."""
    kernel = CUT.after(len(texts))
    return cut_python(texts, part) if kernel is None else cut_buffers(texts, part, kernel)


def as_strings(members: Mapping[str, Member], tail: str) -> pa.Array | None:
    """JSON objects with the scalars among these members as strings, and `tail` as their last member.

    None where that takes more than copying: strings with escapes, and members that `find` did not
    find together.
    """
    one = next(iter(members.values()))
    kernel = WRITE.after(len(one.kind))
    if kernel is None or any(member.data is not one.data for member in members.values()):
        return None
    return as_strings_buffers(members, tail, kernel)


# --- Python ----------------------------------------------------------------------------------


def find_python(texts: pa.Array, names: Sequence[str]) -> dict[str, Member]:
    found: dict[str, list[str | None]] = {name: [None] * len(texts) for name in names}
    for row, text in enumerate(texts.to_pylist()):
        for name, _, value in _members(text or ""):
            if name in found:
                found[name][row] = value
    return {name: _member(column) for name, column in found.items()}


def _member(column: Sequence[str | None]) -> Member:
    kind = np.array([MISSING if text is None else ord(text[0]) for text in column], np.uint8)
    text = pa.array(column, pa.string())
    data, ends, _ = buffers(text)
    member = Member(data, ends[:-1], ends[1:], kind)
    member.text = text
    return member


def without_python(texts: pa.Array, names: Sequence[str]) -> pa.Array:
    def kept(text: str) -> str:
        return ",".join(
            f"{key}:{value}" for name, key, value in _members(text) if name not in names
        )

    return pa.array([f"{{{kept(text or '')}}}" for text in texts.to_pylist()], pa.string())


def cut_python(texts: pa.Array, part: str) -> tuple[pa.Array, int]:
    rest = pc.replace_substring(texts, part, "", max_replacements=1)
    return rest, pc.not_equal(pc.binary_length(rest), pc.binary_length(texts)).true_count


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
    begin: Callable[..., Any] | None = None,
) -> dict[str, Member]:
    """The same by `split_rows` and others, compiled or, in tests, as plain functions."""
    given, starts, ends = _arguments(texts, names)
    run: Callable[..., Any] = split or split_rows
    run(*given, starts, ends, False, np.empty(0, np.int32), np.empty(0, np.uint8))
    kinds = np.zeros(starts.shape, np.uint8)
    run = begin or begin_rows
    run(given[0], starts, ends, kinds)
    places = zip(starts, ends, kinds, strict=True)
    found = (Member(given[0], *of, gather=gather or gather_rows) for of in places)
    return dict(zip(names, found, strict=True))


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


def cut_buffers(
    texts: pa.Array, part: str, kernel: Callable[..., Any] | None = None
) -> tuple[pa.Array, int]:
    """The same by `cut_rows`."""
    data, offsets, valid = buffers(texts)
    places = np.zeros(len(texts) + 1, np.int32)
    out = np.empty(int(offsets[-1] - offsets[0]), np.uint8)
    run: Callable[..., Any] = kernel or cut_rows
    cuts = run(data, offsets, valid, *_search(part), places, out)
    return strings(out[: places[-1]], places, valid if texts.null_count else None), cuts


@lru_cache(maxsize=64)
def _search(part: str) -> tuple[Any, Any]:
    """The bytes to look for and, by the byte below the last of them, how far to move on."""
    wanted = np.frombuffer(part.encode(), np.uint8)
    steps = np.full(256, len(wanted), np.int64)
    steps[wanted[:-1]] = np.arange(len(wanted) - 1, 0, -1)
    return wanted, steps


def as_strings_buffers(
    members: Mapping[str, Member], tail: str, kernel: Callable[..., Any] | None = None
) -> pa.Array | None:
    """The same by `write_rows`."""
    found = list(members.values())
    rows = len(found[0].kind)
    labels, label_ends = _labels(tuple(members))
    starts, ends = np.array([m.starts for m in found]), np.array([m.ends for m in found])
    kinds = np.array([m.kind for m in found])
    end = np.frombuffer(tail.encode() + b"}", np.uint8)
    # Beside its text each member has its label, two quotes and a comma.
    most = int((ends - starts).sum()) + rows * (len(labels) + 3 * len(found) + len(end) + 1)
    if most > _LARGEST:
        return None
    places, out = np.zeros(rows + 1, np.int32), np.empty(most, np.uint8)
    run: Callable[..., Any] = kernel or write_rows
    used = run(found[0].data, starts, ends, kinds, labels, label_ends, end, places, out)
    return None if used < 0 else strings(out[:used], places)


def _arguments(texts: pa.Array, names: Sequence[str]) -> tuple[tuple[Any, ...], Any, Any]:
    data, offsets, valid = buffers(texts)
    joined, name_ends = _bytes(tuple(names))
    # Room for any key without its escapes.
    scratch = np.empty(int(offsets[-1] - offsets[0]) + 8, np.uint8)
    starts, ends = np.zeros((2, len(names), len(texts)), np.int32)
    return (data, offsets, valid, joined, name_ends, scratch), starts, ends


@lru_cache(maxsize=64)
def _labels(names: tuple[str, ...]) -> tuple[Any, Any]:
    return _bytes(tuple(f"{json.dumps(name, ensure_ascii=False)}:" for name in names))


@lru_cache(maxsize=64)
def _bytes(texts: tuple[str, ...]) -> tuple[Any, Any]:
    """Texts one after the other, and where each ends."""
    encoded = [text.encode() for text in texts]
    joined = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    return joined, np.cumsum([0] + [len(text) for text in encoded]).astype(np.int64)


def begin_rows(data: Any, starts: Any, ends: Any, kinds: Any) -> None:
    """What the values at these places begin with."""
    for index in range(starts.shape[0]):
        for row in range(starts.shape[1]):
            if starts[index, row] < ends[index, row]:
                kinds[index, row] = data[starts[index, row]]


def gather_rows(
    data: Any, starts: Any, ends: Any, kinds: Any, plain: bool, places: Any, out: Any
) -> int:
    """Puts what is between `starts` and `ends` one after the other; how many rows have something."""
    used = 0
    filled = 0
    for row in range(len(starts)):
        kind = kinds[row]
        if kind != 0 and not (plain and kind == 110):
            filled += 1
            at = int(starts[row])
            end = int(ends[row])
            escaped = False
            if plain and kind == 34:
                at += 1
                end -= 1
                for i in range(at, end):
                    escaped |= data[u(i)] == 92
            if escaped:
                used = unescape(data, at, end, out, used)
            else:
                used = copy(data, at, max(at, end), out, used)
        places[row + 1] = used
    return filled


def cut_rows(
    data: Any, offsets: Any, valid: Any, part: Any, steps: Any, places: Any, out: Any
) -> int:
    """Writes the rows to `out`, without the first `part` of each; how many rows had one."""
    used = 0
    cuts = 0
    size = len(part)
    for row in range(len(valid)):
        if valid[row]:
            begin = int(offsets[row])
            stop = int(offsets[row + 1])
            at = begin
            found = False
            while not found and at + size <= stop:
                i = 0
                while i < size and data[u(at + i)] == part[u(i)]:
                    i += 1
                if i == size:
                    found = True
                else:
                    at += steps[data[u(at + size - 1)]]
            if found:
                cuts += 1
                used = copy(data, begin, at, out, used)
                begin = at + size
            used = copy(data, begin, stop, out, used)
        places[row + 1] = used
    return cuts


def write_rows(
    data: Any,
    starts: Any,
    ends: Any,
    kinds: Any,
    labels: Any,
    label_ends: Any,
    tail: Any,
    places: Any,
    out: Any,
) -> int:
    """Writes an object of each row's scalars to `out`, as strings; the number of bytes written.

    -1 as soon as a text has an escape, or a control byte that lacks one.
    """
    used = 0
    for row in range(len(places) - 1):
        out[used] = 123
        used += 1
        for index in range(len(starts)):
            kind = kinds[index, row]
            if kind == 0 or kind == 110 or kind == 123 or kind == 91:
                continue
            used = copy(labels, label_ends[index], label_ends[index + 1], out, used)
            at = int(starts[index, row])
            end = int(ends[index, row])
            for i in range(at, end):
                if data[u(i)] == 92 or data[u(i)] < 32:
                    return -1
            if kind != 34:
                out[used] = 34
                used += 1
            used = copy(data, at, end, out, used)
            if kind != 34:
                out[used] = 34
                used += 1
            out[used] = 44
            used += 1
        used = copy(tail, 0, len(tail), out, used)
        places[row + 1] = used
    return used


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
    long loop because calls for each member would take as long again as all the rest; and so would
    one more array to write to.
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
BEGIN = Kernel(begin_rows)
GATHER = Kernel(gather_rows, unescape, copy)
CUT = Kernel(cut_rows, copy)
WRITE = Kernel(write_rows, copy)
