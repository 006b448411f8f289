"""Dates and times in the formats before MySQL 5.6, and MariaDB's own of them with fractions.

MariaDB still writes them with mysql56_temporal_format=OFF, and for tables that were made so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import n64
from .mysql_layout import (
    OP_HIRES_TIME,
    OP_HIRES_TIMESTAMP,
    OP_OLD_DATETIME,
    OP_OLD_TIME,
    OP_OLD_TIMESTAMP,
)
from .mysql_values import (
    big_endian,
    little_endian,
    put_clock,
    put_date,
    put_fraction,
    put_moment,
    put_time,
)

u = np.uint64


def put_old_time(data: Any, at: int, size: int, op: int, digits: int, out: Any, used: int) -> int:
    """The value with its quotes; `digits` of a second are those that the column keeps."""
    part = n64(0)
    if op == OP_OLD_TIME:
        moment = n64(little_endian(data, at, 3))
        negative = moment >= 0x800000
        if negative:
            moment = 0x1000000 - moment
        hour = moment // 10000
        used = put_time(out, used, negative, hour, moment // 100 % 100, moment % 100)
    elif op == OP_OLD_DATETIME:
        moment = n64(little_endian(data, at, 8) % u(100000000000000))
        day = moment // 1000000
        out[u(used)] = 34
        used = put_date(out, used + 1, day // 10000, day // 100 % 100, day % 100)
        used = put_clock(out, used, moment // 10000 % 100, moment // 100 % 100, moment % 100)
    elif op == OP_OLD_TIMESTAMP:
        out[u(used)] = 34
        used = put_moment(out, used + 1, n64(little_endian(data, at, 4)))
    elif op == OP_HIRES_TIMESTAMP:
        out[u(used)] = 34
        used = put_moment(out, used + 1, n64(big_endian(data, at, 4)))
        part = n64(big_endian(data, at + 4, size - 4))
    else:
        # One number of the smallest part that the column keeps.
        scale = 1
        for _ in range(digits):
            scale *= 10
        moment = n64(big_endian(data, at, size) & u(0x7FFFFFFFFFFFFFFF))
        if op == OP_HIRES_TIME:
            moment -= 3020400 * scale
            negative = moment < 0
            moment = abs(moment)
            part = moment % scale
            moment //= scale
            hour = moment // 3600 % 1000
            used = put_time(out, used, negative, hour, moment // 60 % 60, moment % 60)
        else:
            part = moment % scale
            moment //= scale
            days = moment // 86400
            moment -= days * 86400
            months = days // 32
            out[u(used)] = 34
            used = put_date(out, used + 1, months // 13 % 10000, months % 13, days % 32)
            used = put_clock(out, used, moment // 3600, moment // 60 % 60, moment % 60)
    for _ in range(6 - digits):
        part *= 10
    used = put_fraction(out, used, u(part), digits)
    if op == OP_OLD_TIMESTAMP or op == OP_HIRES_TIMESTAMP:
        out[u(used)] = 90
        used += 1
    out[u(used)] = 34
    return used + 1
