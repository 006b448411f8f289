"""Dates and times of PostgreSQL, as it writes them in style ISO, in ISO 8601 as JSON strings.

As in postgres_values.py: a `put` function that finds something else returns -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jsontext import copy, u
from .postgres_program import DATE, TIMESTAMPTZ
from .postgres_text import is_infinite, put_text


def number_at(data: Any, at: int, size: int) -> int:
    """The number of `size` digits that stands at `at`; -1 where something else does."""
    number: Any = 0
    for i in range(at, at + size):
        c = np.int64(data[i])
        if c < 48 or c > 57:
            return -1
        number = number * 10 + c - 48
    return number


def put_two(number: int, out: Any, used: int) -> int:
    """Two digits."""
    out[used] = 48 + number // 10
    out[used + 1] = 48 + number % 10
    return used + 2


def put_date(year: int, month: int, day: int, out: Any, used: int) -> int:
    """ISO 8601; before the year 0, which is 1 BC, and behind 9999 with a sign and six digits."""
    width = 4
    if year < 0 or year > 9999:
        out[used] = 43 if year > 0 else 45
        used += 1
        year = abs(year)
        width = 6 if year < 1_000_000 else 7
    for i in range(width):
        out[used + width - 1 - i] = 48 + year % 10
        year //= 10
    used += width
    out[used] = 45
    used = put_two(month, out, used + 1)
    out[used] = 45
    return put_two(day, out, used + 1)


def day_number(year: int, month: int, day: int) -> int:
    """Days since 1 March of the year 0, in the calendar that goes on forever in both directions."""
    if month <= 2:
        year -= 1
        month += 12
    return (
        365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1
    )


def year_of(days: int) -> int:
    """The year, from March to February, that such a day lies in."""
    era = days // 146097
    day = days - era * 146097
    return era * 400 + (day - day // 1460 + day // 36524 - day // 146096) // 365


def zone_at(data: Any, at: int, end: int) -> int:
    """Seconds that `+hh`, `+hh:mm` or `+hh:mm:ss` stands for; a day for anything else."""
    size = end - at
    if not (size == 3 or size == 6 or size == 9) or (data[at] != 43 and data[at] != 45):
        return 86400
    seconds = number_at(data, at + 1, 2) * 3600
    wrong = seconds < 0
    if size > 3:
        minutes = number_at(data, at + 4, 2)
        wrong |= data[at + 3] != 58 or minutes < 0
        seconds += minutes * 60
    if size > 6:
        rest = number_at(data, at + 7, 2)
        wrong |= data[at + 6] != 58 or rest < 0
        seconds += rest
    if wrong:
        return 86400
    return -seconds if data[at] == 45 else seconds


def put_zeros(digits: int, precision: int, out: Any, used: int) -> int:
    """Behind a time whose fraction has so many digits: the zeros that the server does not print."""
    if digits < precision:
        if digits == 0:
            out[used] = 46
            used += 1
        for _ in range(precision - digits):
            out[used] = 48
            used += 1
    return used


def put_usual(
    data: Any, at: int, end: int, out: Any, used: int, zoned: bool, precision: int
) -> int:
    """A timestamp of which only a few bytes have to change; -1 for any other."""
    stop = end - 3 if zoned else end
    usual = (
        stop - at >= 19
        and data[at + 10] == 32
        and data[at + 4] == 45
        and data[at + 7] == 45
        and data[at + 13] == 58
        and data[at + 16] == 58
        and (data[stop - 1] >= 48 and data[stop - 1] <= 57)
    )
    if usual and zoned:
        usual = data[stop] == 43 and data[stop + 1] == 48 and data[stop + 2] == 48
    if usual:
        # All digits but at the places looked at above, and one point.
        digits = 0
        for i in range(at, stop):
            c = data[u(i)]
            digits += 1 if c >= 48 and c <= 57 else 0
        marks = 5 if stop - at == 19 else 6
        usual = digits == stop - at - marks and (marks == 5 or data[at + 19] == 46)
    if not usual:
        return -1
    out[used] = 34
    used += 1
    for i in range(stop - at):
        out[u(used + i)] = data[u(at + i)]
    out[used + 10] = 84
    used = put_zeros(max(stop - at - 20, 0), precision, out, used + stop - at)
    if zoned:
        out[used] = 90
        used += 1
    out[used] = 34
    return used + 1


def put_moment(data: Any, at: int, end: int, out: Any, used: int, op: int, precision: int) -> int:
    """A date, or with a time, or that with a zone: any that PostgreSQL can write in style ISO."""
    timed = op != DATE
    zoned = op == TIMESTAMPTZ
    usual = put_usual(data, at, end, out, used, zoned, precision) if timed else -1
    if usual >= 0:
        return usual
    if is_infinite(data, at, end, 105):
        return put_text(data, at, end, out, used)
    before_christ = end - at > 3 and data[end - 1] == 67 and data[end - 2] == 66
    if before_christ:
        end -= 3
        if data[end] != 32:
            return -1
    first = at
    while at < end and 48 <= data[at] <= 57:
        at += 1
    if at - first < 4 or at - first > 7 or end - at < 6:
        return -1
    year = number_at(data, first, at - first)
    month = number_at(data, at + 1, 2)
    day = number_at(data, at + 4, 2)
    if data[at] != 45 or data[at + 3] != 45 or not 1 <= month <= 12 or not 1 <= day <= 31:
        return -1
    if before_christ:
        year = 1 - year
    at += 6
    out[used] = 34
    used += 1
    if not timed:
        if at != end:
            return -1
        used = put_date(year, month, day, out, used)
        out[used] = 34
        return used + 1
    if end - at < 9 or data[at] != 32 or data[at + 3] != 58 or data[at + 6] != 58:
        return -1
    hour = number_at(data, at + 1, 2)
    minute = number_at(data, at + 4, 2)
    second = number_at(data, at + 7, 2)
    if hour < 0 or minute < 0 or second < 0:
        return -1
    at += 9
    fraction = at
    if at < end and data[at] == 46:
        at += 1
        while at < end and 48 <= data[at] <= 57:
            at += 1
        if at == fraction + 1:
            return -1
    behind = at
    if zoned:
        zone = zone_at(data, at, end)
        if zone == 86400:
            return -1
        if zone != 0:
            seconds = hour * 3600 + minute * 60 + second - zone
            days = day_number(year, month, day) + seconds // 86400
            seconds = seconds % 86400
            hour = seconds // 3600
            minute = seconds // 60 % 60
            second = seconds % 60
            year = year_of(days)
            day = days - day_number(year, 3, 1)
            month = (5 * day + 2) // 153
            day = day - (153 * month + 2) // 5 + 1
            month += 3
            if month > 12:
                month -= 12
                year += 1
    elif at != end:
        return -1
    used = put_date(year, month, day, out, used)
    out[used] = 84
    used = put_two(hour, out, used + 1)
    out[used] = 58
    used = put_two(minute, out, used + 1)
    out[used] = 58
    used = put_two(second, out, used + 1)
    used = copy(data, fraction, behind, out, used)
    used = put_zeros(max(behind - fraction - 1, 0), precision, out, used)
    if zoned:
        out[used] = 90
        used += 1
    out[used] = 34
    return used + 1


def put_time(data: Any, at: int, end: int, out: Any, used: int, zoned: bool, precision: int) -> int:
    """A time of day, or one with its own zone: `+hh:mm`, and `Z` for UTC."""
    stop = end
    zone = 0
    if zoned:
        stop = end - 1
        while stop > at and data[stop] != 43 and data[stop] != 45:
            stop -= 1
        zone = zone_at(data, stop, end)
    size = stop - at
    if zone == 86400 or size < 8 or size == 9 or (size > 9 and data[at + 8] != 46):
        return -1
    for i in range(size):
        c = data[at + i]
        if i == 2 or i == 5:
            if c != 58:
                return -1
        elif i != 8 and (c < 48 or c > 57):
            return -1
    out[used] = 34
    used = copy(data, at, stop, out, used + 1)
    used = put_zeros(max(size - 9, 0), precision, out, used)
    if zoned and zone == 0:
        out[used] = 90
        used += 1
    elif zoned:
        used = copy(data, stop, end, out, used)
        if end - stop == 3:
            out[used] = 58
            out[used + 1] = 48
            out[used + 2] = 48
            used += 3
    out[used] = 34
    return used + 1


HELPERS = (
    number_at,
    put_two,
    put_date,
    day_number,
    year_of,
    zone_at,
    put_zeros,
    put_usual,
    put_moment,
    put_time,
)
