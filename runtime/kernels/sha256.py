"""SHA-256 of many short messages that begin alike: event ids, a column at a time."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from .jit import WORTH_LOADING, Kernel, n64

_DIGEST = 16  # bytes of it that an id has
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_MASK = 0xFFFFFFFF
u32: Any = np.uint32


def _primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return found


def _root(number: int, power: int) -> int:
    """The first 32 bits behind the point of a square or cube root, exactly."""
    wanted = number << (32 * power)
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        if middle**power <= wanted:
            low = middle
        else:
            high = middle
    return low & _MASK


_STEPS = np.array([_root(prime, 3) for prime in _primes(64)], np.uint32)
_START = np.array([_root(prime, 2) for prime in _primes(8)], np.uint32)


def hashed(label: str, head: bytes, tail: Any, way: str = "") -> pa.Array:
    """`label` and the first half of the digest of `head` with each row of the bytes `tail`."""
    rows, width = tail.shape
    flat = np.ascontiguousarray(tail).reshape(-1)
    return hashed_pieces(label, head, flat, np.arange(rows + 1) * width, way)


def hashed_pieces(label: str, head: bytes, data: Any, ends: Any, way: str = "") -> pa.Array:
    """The same for pieces of any length: piece i lies between entries i and i + 1 of `ends`."""
    rows = len(ends) - 1
    kernel: Callable[..., Any] | None = RUN.plain
    if way != "plain":
        run = RUN if way == "portable" or RUN.seen < WORTH_LOADING else _fastest()
        kernel = run.compiled() if way else run.after(rows)
        RUN.seen = max(RUN.seen, run.seen)
    if kernel is None:
        return _python(label, head, data, ends)
    start = len(label)
    out = np.empty((rows, start + 2 * _DIGEST), np.uint8)
    out[:, :start] = np.frombuffer(label.encode(), np.uint8)
    front = np.frombuffer(head, np.uint8)
    with np.errstate(over="ignore"):  # as plain Python: sums are cut on purpose
        kernel(front, data, ends, _STEPS, _START, _HEX, out, start)
    places = np.arange(0, out.size + 1, out.shape[1], dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(places), pa.py_buffer(out))


def _python(label: str, head: bytes, data: Any, ends: Any) -> pa.Array:
    shared = hashlib.sha256(head)
    made, raw, start = [], data.tobytes(), int(ends[0])
    for stop in ends[1:].tolist():
        digest = shared.copy()
        digest.update(raw[start:stop])
        made.append(label + digest.hexdigest()[: 2 * _DIGEST])
        start = stop
    return pa.array(made, pa.string())


def turn(x: Any, bits: int) -> Any:
    return u32(u32(x >> u32(bits)) | u32(x << u32(32 - bits)))


def hash_rows(
    head: Any, data: Any, ends: Any, steps: Any, start: Any, digits: Any, out: Any, column: int
) -> None:
    rows = len(ends) - 1
    before = len(head)
    longest = 0
    for row in range(rows):
        longest = max(longest, ends[row + 1] - ends[row])
    message = np.zeros((before + longest + 72) >> 6 << 6, np.uint8)
    message[:before] = head
    words = np.zeros(64, np.uint32)
    state = np.zeros(8, np.uint32)
    for row in range(rows):
        begin = ends[row]
        length = ends[row + 1] - begin
        for i in range(length):
            message[before + i] = data[begin + i]
        size = before + length
        blocks = (size + 72) >> 6
        message[size] = 0x80
        for i in range(size + 1, 64 * blocks - 8):
            message[i] = 0
        for i in range(8):
            message[64 * blocks - 1 - i] = ((8 * size) >> (8 * i)) & 255
            state[i] = start[i]
        for number in range(blocks):
            mix(message, 64 * number, words, steps, state)
        for i in range(16):
            byte = (n64(state[i >> 2]) >> (24 - 8 * (i & 3))) & 255
            out[row, column + 2 * i] = digits[byte >> 4]
            out[row, column + 2 * i + 1] = digits[byte & 15]


def mix(message: Any, at: int, words: Any, steps: Any, state: Any) -> None:
    """The 64 bytes from `at` on into the state; sums are cut to 32 bits at each step."""
    for i in range(16):
        place = at + 4 * i
        high = (n64(message[place]) << 24) | (n64(message[place + 1]) << 16)
        words[i] = high | (n64(message[place + 2]) << 8) | n64(message[place + 3])
    for i in range(16, 64):
        x, y = words[i - 15], words[i - 2]
        s0 = turn(x, 7) ^ turn(x, 18) ^ u32(x >> u32(3))
        s1 = turn(y, 17) ^ turn(y, 19) ^ u32(y >> u32(10))
        words[i] = u32(words[i - 16] + s0 + words[i - 7] + s1)
    a, b, c, d = state[0], state[1], state[2], state[3]
    e, f, g, h = state[4], state[5], state[6], state[7]
    for i in range(64):
        s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)
        one = u32(h + s1 + (g ^ (e & (f ^ g))) + steps[i] + words[i])
        s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)
        most = (a & b) | (c & (a | b))
        h, g, f = g, f, e
        e = u32(d + one)
        d, c, b = c, b, a
        a = u32(one + s0 + most)
    state[0], state[1] = u32(state[0] + a), u32(state[1] + b)
    state[2], state[3] = u32(state[2] + c), u32(state[3] + d)
    state[4], state[5] = u32(state[4] + e), u32(state[5] + f)
    state[6], state[7] = u32(state[6] + g), u32(state[7] + h)


RUN = Kernel(hash_rows, turn, mix)


@cache
def _fastest() -> Kernel:
    """By the processor's own instructions, where it has them."""
    try:
        with open("/proc/cpuinfo") as file:
            if "sha_ni" not in file.read():
                return RUN
        from . import sha_ni

        if not sha_ni.there():
            return RUN
    except (OSError, ImportError):
        return RUN
    by_processor = types.FunctionType(
        hash_rows.__code__, {**globals(), "mix": sha_ni.mix}, hash_rows.__name__
    )
    return Kernel(by_processor, sha_ni.mix)
