"""Floats as the shortest decimal digits that read back the same, for use inside kernels.

The method is Schubfach (R. Giulietti, 2020): the interval of decimals that round to the float is
scaled by a power of ten kept in 128 bits, and the shortest decimal in it found by integers alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

u = np.uint64
_LOW = u(0xFFFFFFFF)
_32 = u(32)
_LEAST, _MOST = -292, 324  # exponents of the powers of ten that doubles need


@cache
def powers() -> Any:
    """The powers of ten as pairs of 64 bits each, rounded up where they do not fit."""
    made = np.empty((_MOST - _LEAST + 1, 2), np.uint64)
    for k in range(_LEAST, _MOST + 1):
        shift = (k * 1741647 >> 19) - 127  # the power has 128 bits once it is shifted by this
        above, below = 10 ** max(k, 0) << max(-shift, 0), 10 ** max(-k, 0) << max(shift, 0)
        value = -(-above // below)
        made[k - _LEAST] = (value >> 64, value & (1 << 64) - 1)
    made.flags.writeable = False
    return made


def scaled(high: Any, low: Any, value: Any) -> Any:
    """The upper 64 bits of the product with a 128-bit number, the lowest of them sticky."""
    x = upper(low, value)
    y = upper(high, value)
    z = high * value + x
    if z < x:
        y += u(1)
    return y | u(1) if z > u(1) else y


def upper(a: Any, b: Any) -> Any:
    """The upper half of a product of two 64-bit numbers."""
    a0 = a & _LOW
    a1 = a >> _32
    b0 = b & _LOW
    b1 = b >> _32
    middle = a1 * b0 + (a0 * b0 >> _32)
    other = a0 * b1 + (middle & _LOW)
    return a1 * b1 + (middle >> _32) + (other >> _32)


def shortest(table: Any, fraction: Any, exponent: int, bits: int) -> tuple[Any, int]:
    """Digits and power of ten of a finite, positive float given by its fields.

    `bits` are those of the fraction: 52 for a double, 23 for a float.
    """
    if exponent == 0:
        c = fraction
        q = 1 - (1075 if bits == 52 else 150)
    else:
        c = fraction | u(1) << u(bits)
        q = exponent - (1075 if bits == 52 else 150)
    closer = fraction == u(0) and exponent > 1
    odd = c & u(1)
    k = (q * 1262611 - (524031 if closer else 0)) >> 22
    h = u(q + (-k * 1741647 >> 19) + 1)
    high = table[-k - _LEAST, 0]
    low = table[-k - _LEAST, 1]
    c = c << u(2)
    left = scaled(high, low, (c - (u(1) if closer else u(2))) << h)
    value = scaled(high, low, c << h)
    right = scaled(high, low, (c + u(2)) << h)
    lower = left + odd
    top = right - odd
    s = value >> u(2)
    if s >= u(10):
        ten = s // u(10)
        below = lower <= u(40) * ten
        above = u(40) * ten + u(40) <= top
        if below != above:
            return (ten + u(1) if above else ten), k + 1
    below = lower <= s << u(2)
    above = (s << u(2)) + u(4) <= top
    if below != above:
        return (s + u(1) if above else s), k
    half = (s << u(2)) + u(2)
    up = value > half or (value == half and (s & u(1)) != u(0))
    return (s + u(1) if up else s), k
