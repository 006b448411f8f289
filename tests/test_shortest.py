"""Floats as the shortest digits: against Python's own for doubles, numpy's for floats."""

from __future__ import annotations

import struct

import numpy as np
from dfc_runtime.kernels.mysql_values import put_float
from dfc_runtime.kernels.shortest import powers
from hypothesis import given, settings
from hypothesis import strategies as st


def told(bits: int, double: bool) -> str:
    out = np.zeros(64, np.uint8)
    with np.errstate(over="ignore"):
        used = put_float(out, 0, np.uint64(bits), double, False, powers())
    return out[:used].tobytes().decode()


def double(value: float) -> str:
    return told(int.from_bytes(struct.pack("<d", value), "little"), True)


@settings(max_examples=400, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_written_as_python_writes_them(value: float) -> None:
    assert double(value) == repr(value)


@settings(max_examples=400, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_read_back_the_same_and_no_shorter_ones_do(value: float) -> None:
    bits = int.from_bytes(struct.pack("<f", value), "little")
    assert told(bits, False) == repr(float(str(np.float32(value))))


def test_every_power_of_two_and_its_neighbours() -> None:
    for exponent in range(2047):
        for bits in (exponent << 52, (exponent << 52) + 1, (exponent << 52) - 1):
            if bits > 0:
                value = struct.unpack("<d", struct.pack("<Q", bits))[0]
                assert told(bits, True) == repr(value)
    for exponent in range(255):
        for bits in (exponent << 23, (exponent << 23) + 1, (exponent << 23) - 1):
            if bits > 0:
                found = np.frombuffer(struct.pack("<I", bits), np.float32)[0]
                assert told(bits, False) == repr(float(str(found)))


def test_what_no_server_stores_is_a_string() -> None:
    assert double(float("inf")) == '"Infinity"'
    assert double(float("-inf")) == '"-Infinity"'
    assert double(float("nan")) == '"NaN"'
    assert [double(0.0), double(-0.0)] == ["0.0", "-0.0"]
