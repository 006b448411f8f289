"""Numbers, dates and times of MySQL and MariaDB as JSON, written by functions that kernels call.

Both ways to a row, the log and a SELECT, end here and in mysql_text, so that they give the same bytes. A writer puts its text to out[used:], where the caller has made room,
and returns the new end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import n64
from .jsontext import copy as copy
from .shortest import scaled, shortest, upper

u = np.uint64
_0, _1, _10, _100 = u(0), u(1), u(10), u(100)
_SAFE = u(1 << 53)
_FRACTION = u((1 << 52) - 1)
_DIGITS = np.frombuffer(b"".join(b"%02d" % n for n in range(100)), np.uint8)

FIXED = 128  # bytes that any value of a fixed size takes at most


# --- numbers ---------------------------------------------------------------------------------


def put_number(out: Any, used: int, value: Any) -> int:
    """An unsigned integer in decimal."""
    size = 1
    rest = value
    while rest >= _10:
        rest //= _10
        size += 1
    at = used + size
    while value >= _100:
        pair = value % _100
        value //= _100
        at -= 2
        out[u(at)] = _DIGITS[pair + pair]
        out[u(at + 1)] = _DIGITS[pair + pair + _1]
    if value >= _10:
        out[u(at - 2)] = _DIGITS[value + value]
        out[u(at - 1)] = _DIGITS[value + value + _1]
    else:
        out[u(at - 1)] = 48 + n64(value)
    return used + size


def put_padded(out: Any, used: int, value: Any, width: int) -> int:
    """The last `width` digits of an unsigned integer."""
    for i in range(width):
        out[u(used + width - 1 - i)] = 48 + n64(value % _10)
        value //= _10
    return used + width


def put_two(out: Any, used: int, value: int, mark: int) -> int:
    """Two digits and what stands before them; `value` is below 100."""
    out[u(used)] = mark
    out[u(used + 1)] = _DIGITS[u(2 * value)]
    out[u(used + 2)] = _DIGITS[u(2 * value + 1)]
    return used + 3


def put_integer(out: Any, used: int, negative: bool, size: Any, wide: bool) -> int:
    """An integer by its sign and size; `wide` puts quotes around what doubles cannot hold."""
    quoted = wide and size > _SAFE
    if quoted:
        out[u(used)] = 34
        used += 1
    if negative:
        out[u(used)] = 45
        used += 1
    used = put_number(out, used, size)
    if quoted:
        out[u(used)] = 34
        used += 1
    return used


def put_word(out: Any, used: int, word: int) -> int:
    """null, true or false, by its first letter."""
    if word == 110:
        out[u(used)], out[u(used + 1)], out[u(used + 2)], out[u(used + 3)] = 110, 117, 108, 108
        return used + 4
    if word == 116:
        out[u(used)], out[u(used + 1)], out[u(used + 2)], out[u(used + 3)] = 116, 114, 117, 101
        return used + 4
    out[u(used)], out[u(used + 1)], out[u(used + 2)], out[u(used + 3)] = 102, 97, 108, 115
    out[u(used + 4)] = 101
    return used + 5


def put_digits(out: Any, used: int, digits: Any, exponent: int, own: bool) -> int:
    """digits * 10**exponent as Python writes a float, or as MySQL does in JSON (`own`)."""
    while digits >= _10 and digits % _10 == _0:
        digits //= _10
        exponent += 1
    size = 1
    rest = digits
    while rest >= _10:
        rest //= _10
        size += 1
    point = size + exponent  # digits before the decimal point
    least, most = (-14, 15) if own else (-3, 16)
    if point < least or point > most:
        end = put_number(out, used + 1, digits)  # the first digit moves before the point
        out[u(used)] = out[u(used + 1)]
        if size > 1:
            out[u(used + 1)] = 46
            used = end
        else:
            used += 1
        out[u(used)] = 101
        used += 1
        power = point - 1
        if power < 0:
            out[u(used)] = 45
            used += 1
            power = -power
        elif not own:
            out[u(used)] = 43
            used += 1
        if power < 10 and not own:
            out[u(used)] = 48
            used += 1
        return put_number(out, used, u(power))
    if point <= 0:
        out[u(used)] = 48
        out[u(used + 1)] = 46
        used += 2
        for _ in range(-point):
            out[u(used)] = 48
            used += 1
        return put_number(out, used, digits)
    if exponent >= 0:
        used = put_number(out, used, digits)
        for _ in range(exponent):
            out[u(used)] = 48
            used += 1
        out[u(used)] = 46
        out[u(used + 1)] = 48
        return used + 2
    end = put_number(out, used + 1, digits)
    for i in range(point):
        out[u(used + i)] = out[u(used + i + 1)]
    out[u(used + point)] = 46
    return end


def put_float(out: Any, used: int, bits: Any, double: bool, own: bool, tens: Any) -> int:
    """A float by its bits; NaN and infinities, which no server stores, as strings."""
    if double:
        negative = bits >> u(63) != _0
        exponent = n64(bits >> u(52)) & 2047
        fraction = bits & _FRACTION
        odd = exponent == 2047
    else:
        negative = bits >> u(31) & _1 != _0
        exponent = n64(bits >> u(23)) & 255
        fraction = bits & u(0x7FFFFF)
        odd = exponent == 255
    if odd:
        out[u(used)] = 34
        used += 1
        if fraction != _0:
            out[u(used)], out[u(used + 1)], out[u(used + 2)] = 78, 97, 78
            used += 3
        else:
            if negative:
                out[u(used)] = 45
                used += 1
            out[u(used)], out[u(used + 1)], out[u(used + 2)] = 73, 110, 102
            out[u(used + 3)], out[u(used + 4)], out[u(used + 5)] = 105, 110, 105
            out[u(used + 6)], out[u(used + 7)] = 116, 121
            used += 8
        out[u(used)] = 34
        return used + 1
    if negative:
        out[u(used)] = 45
        used += 1
    if exponent == 0 and fraction == _0:
        out[u(used)], out[u(used + 1)], out[u(used + 2)] = 48, 46, 48
        return used + 3
    digits, power = shortest(tens, fraction, exponent, 52 if double else 23)
    return put_digits(out, used, digits, power, own)


def big_endian(data: Any, at: int, count: int) -> Any:
    value = _0
    for i in range(count):
        value = value << u(8) | u(data[u(at + i)])
    return value


def little_endian(data: Any, at: int, count: int) -> Any:
    value = _0
    for i in range(count):
        value |= u(data[u(at + i)]) << u(8 * i)
    return value


def decimal_size(whole: int, scale: int) -> int:
    """Bytes of a packed decimal with so many digits before and behind the point."""
    left, right = whole // 9, scale // 9
    return 4 * (left + right) + (whole - 9 * left + 1) // 2 + (scale - 9 * right + 1) // 2


def put_decimal(data: Any, at: int, whole: int, scale: int, out: Any, used: int) -> int:
    """A packed decimal without quotes: groups of nine digits, the highest bit is the sign."""
    negative = data[u(at)] < 128
    if negative:
        out[u(used)] = 45
        used += 1
    begin = used
    groups = whole // 9
    digits = whole - 9 * groups
    first = True
    for group in range(groups + 1):
        if group > 0:
            digits = 9
        if digits == 0:
            continue
        size = 4 if digits == 9 else (digits + 1) // 2
        value = _group(data, at, size, negative, first)
        at += size
        first = False
        if used > begin:
            used = put_padded(out, used, value, 9)
        elif value > _0:
            used = put_number(out, used, value)
    if used == begin:
        out[u(used)] = 48
        used += 1
    if scale > 0:
        out[u(used)] = 46
        used += 1
        while scale > 0:
            digits = min(scale, 9)
            size = 4 if digits == 9 else (digits + 1) // 2
            used = put_padded(out, used, _group(data, at, size, negative, first), digits)
            at += size
            scale -= digits
            first = False
    return used


def _group(data: Any, at: int, size: int, negative: bool, first: bool) -> Any:
    value = big_endian(data, at, size)
    if first:
        value ^= u(0x80) << u(8 * (size - 1))
    if negative:
        value ^= (_1 << u(8 * size)) - _1
    return value


# --- dates and times -------------------------------------------------------------------------


def put_date(out: Any, used: int, year: int, month: int, day: int) -> int:
    used = put_padded(out, used, u(year), 4)
    used = put_two(out, used, month, 45)
    return put_two(out, used, day, 45)


def put_clock(out: Any, used: int, hour: int, minute: int, second: int) -> int:
    used = put_two(out, used, hour, 84)
    used = put_two(out, used, minute, 58)
    return put_two(out, used, second, 58)


def put_fraction(out: Any, used: int, micros: Any, digits: int) -> int:
    """A point and the first digits of a number of microseconds."""
    if digits == 0:
        return used
    out[u(used)] = 46
    for _ in range(6 - digits):
        micros //= _10
    return put_padded(out, used + 1, micros, digits)


def put_moment(out: Any, used: int, seconds: int) -> int:
    """Date and time of seconds since 1970; 0 is how servers keep the zero date."""
    if seconds == 0:
        return put_clock(out, put_date(out, used, 0, 0, 0), 0, 0, 0)
    days = seconds // 86400
    rest = seconds - 86400 * days
    # Days in eras of 400 years that begin in March, so that a leap day is the last of its year.
    days += 719468
    era = days // 146097
    day = days - era * 146097
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    month = month + 3 if month < 10 else month - 9
    year += era * 400 + (1 if month <= 2 else 0)
    used = put_date(out, used, year, month, day + 1)
    hour = rest // 3600
    minute = rest // 60 - 60 * hour
    return put_clock(out, used, hour, minute, rest - 3600 * hour - 60 * minute)


def put_time(out: Any, used: int, negative: bool, hour: int, minute: int, second: int) -> int:
    """The quote before a time too; hours go up to 838."""
    out[u(used)] = 34
    used += 1
    if negative:
        out[u(used)] = 45
        used += 1
    if hour < 10:
        out[u(used)] = 48
        used += 1
    used = put_number(out, used, u(hour))
    used = put_two(out, used, minute, 58)
    return put_two(out, used, second, 58)


def put_label(labels: Any, ends: Any, index: int, out: Any, used: int) -> int:
    return copy(labels, ends[index], ends[index + 1], out, used)


WRITERS = (
    copy,
    upper,
    scaled,
    shortest,
    put_number,
    put_padded,
    put_two,
    put_integer,
    put_word,
    put_digits,
    put_float,
    big_endian,
    little_endian,
    decimal_size,
    _group,
    put_decimal,
    put_date,
    put_clock,
    put_fraction,
    put_moment,
    put_time,
    put_label,
)
