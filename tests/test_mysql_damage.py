"""Bytes that are no rows: an error with the event and the place, never a crash, never a hang.

The plain form of the kernel is what tells a read or write out of bounds: numpy checks each of them.
The compiled one checks nothing, so it must come to the same end for the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dfc_runtime.kernels.mysql_rowloop import KERNEL, decode_rows
from dfc_runtime.kernels.mysql_rows import (
    DELETE,
    INSERT,
    PARTIAL_UPDATE,
    UPDATE,
    RowDecoder,
    RowError,
)
from dfc_runtime.sources import mysql_columns as types
from dfc_runtime.sources.mysql_columns import Column, ColumnError, parse_table_map
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .jitted import jitted
from .mysql_documents import difference, encode
from .mysql_log import TABLE_MAP, Client, events, groups, texts
from .mysql_types import KINDS, MARIADB, told_of

Case = tuple[RowDecoder, list[tuple[int, bytes]]]
_OLD = {types.TIME2: types.TIME, types.DATETIME2: types.DATETIME, types.TIMESTAMP2: types.TIMESTAMP}


def tight(*args: Any) -> Any:
    """The plain kernel with no room to spare, so that a buffer that is too small is noticed."""
    return decode_rows(*args[:-2], 1, 64)


def outcome(decoder: RowDecoder, kind: int, body: bytes, by: Callable[..., Any]) -> Any:
    """What becomes of an event: its rows, or the place where it cannot be read."""
    size = (len(decoder.layout.columns) + 7) // 8 * (2 if kind in (UPDATE, PARTIAL_UPDATE) else 1)
    data = np.frombuffer(body, np.uint8)
    try:
        return texts(decoder.rows(data, [size], [len(body)], kind, by=by))
    except RowError as error:
        assert error.event == 0 and 0 <= error.offset <= len(body), error
        return str(error)


@pytest.fixture(scope="module")
def cases(mariadb_server: Any) -> Iterator[list[Case]]:
    """Events of a table with every type, and rows that MariaDB cannot write."""
    client = Client(mariadb_server)
    client.query("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
    kinds = {f"c{n}": kind for n, kind in enumerate((*KINDS, *MARIADB))}
    rows: list[str] = []

    @settings(max_examples=3, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.tuples(*(kind.literals for kind in kinds.values())))
    def collect(found: tuple[str, ...]) -> None:
        rows.append(",".join(found))

    collect()
    made: list[Case] = []
    names = list(kinds)
    for part in range(0, len(names), 9):  # few columns, so that many flips reach each of them
        some = names[part : part + 9]
        client.query("DROP TABLE IF EXISTS damaged")
        client.query(f"CREATE TABLE damaged (id int PRIMARY KEY, {', '.join(f'{n} {kinds[n].sql}' for n in some)})")  # fmt: skip
        since = client.head()
        for n in range(len(rows)):
            literals = ",".join(_literals(rows[n], len(names))[part : part + 9])
            client.query(f"INSERT INTO damaged VALUES ({n},{literals})")
        client.query("UPDATE damaged SET id = id + 100")
        client.query("DELETE FROM damaged")
        for group in groups(mariadb_server, since, "damaged"):
            columns = [told_of(kinds)(column) for column in group.map.columns]
            bodies = list(zip(group.kinds, group.bodies, strict=True))
            made.append((RowDecoder(columns, group.map.key), bodies))
            old = [replace(c, type=_OLD.get(c.type, c.type)) for c in columns]
            made.append((RowDecoder(old, group.map.key), bodies))  # read as what they are not
    client.close()
    made.append(_documents())
    yield made


def _literals(row: str, count: int) -> list[str]:
    """Values of a row, cut at the commas that separate them."""
    found, level, quoted, now = [], 0, False, ""
    for letter in row:
        quoted ^= letter == "'"
        level += (letter == "(") - (letter == ")")
        if letter == "," and not quoted and not level:
            found.append(now)
            now = ""
        else:
            now += letter
    assert len(found) + 1 == count
    return [*found, now]


def _documents() -> Case:
    columns = (
        Column("id", types.LONG, 0),
        Column("j", types.JSON, 4),
        Column("v", types.VECTOR, 4),
        Column("k", types.JSON, 4),
    )
    document = encode({"a": [1, 2.5, "x" * 30, None, True], "b": {"c": 2**40, "d": {}}})
    vector = np.array([1.5, -2, 3e38], np.float32).tobytes()

    def sized(data: bytes) -> bytes:
        return len(data).to_bytes(4, "little") + data

    row = b"\0" + b"\1\0\0\0" + sized(document) + sized(vector) + sized(encode([1]))
    changed = b"\0" + b"\1\0\0\0" + sized(difference(0, "$.a[0]", 9)) + sized(vector) + sized(encode(2))  # fmt: skip
    partial = b"\x0f\x0f" + row + b"\x01\x01" + changed
    return RowDecoder(columns, (0,)), [
        (INSERT, b"\x0f" + row + row),
        (DELETE, b"\x0f" + row),
        (UPDATE, b"\x0f\x0f" + row + row),
        (PARTIAL_UPDATE, partial),
    ]


def damaged(body: bytes, dice: random.Random) -> bytes:
    """The bytes with something flipped, cut out, put in or put behind."""
    made = bytearray(body)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(made)) if made else 0
        match dice.randrange(5):
            case 0 if made:
                made[at] ^= 1 << dice.randrange(8)
            case 1:
                made[at : at + 1] = dice.choice([b"\xff", b"\0", b"\x80", b"\xff\xff\xff\xff"])
            case 2:
                del made[at:]
            case 3:
                del made[at : at + dice.randint(1, 5)]
            case _:
                made += dice.randbytes(dice.randint(1, 9))
    return bytes(made) or b"\0"


def trials(cases: list[Case], each: int) -> Iterator[tuple[RowDecoder, int, bytes]]:
    dice = random.Random(7)
    for decoder, bodies in cases:
        size = (len(decoder.layout.columns) + 7) // 8 * 2
        for kind, body in bodies:
            for _ in range(each):
                made = damaged(body, dice)
                yield decoder, kind, made if len(made) >= size else made.ljust(size, b"\xff")


def test_damaged_rows_are_read_within_bounds(cases: list[Case]) -> None:
    errors = count = 0
    for decoder, kind, body in trials(cases, 8):
        errors += isinstance(outcome(decoder, kind, body, tight), str)
        count += 1
    assert count > 500
    assert errors > count // 4  # the others are other values, or behind their checksum


def test_rows_cut_anywhere_are_an_error(cases: list[Case]) -> None:
    decoder, bodies = cases[-1]
    for kind, body in bodies:
        whole = outcome(decoder, kind, body, tight)
        assert isinstance(whole, list)
        size = 2 if kind in (UPDATE, PARTIAL_UPDATE) else 1
        for end in range(size, len(body)):
            made = outcome(decoder, kind, body[:end], tight)
            assert isinstance(made, str) or len(made) < len(whole)  # cut between two rows


def test_the_compiled_kernel_comes_to_the_same_end(cases: list[Case]) -> None:
    compiled = jitted(KERNEL)
    for decoder, bodies in cases:
        for kind, body in bodies:
            assert outcome(decoder, kind, body, compiled) == outcome(decoder, kind, body, tight)
    for decoder, kind, body in trials(cases, 4):
        assert outcome(decoder, kind, body, compiled) == outcome(decoder, kind, body, tight)


def test_the_event_that_is_damaged_is_named(cases: list[Case]) -> None:
    decoder, bodies = cases[-1]
    body = bodies[0][1]
    data = body + body + body[:-3] + body
    starts = [1, len(body) + 1, 2 * len(body) + 1, 3 * len(body) - 3 + 1]
    stops = [len(body), 2 * len(body), 3 * len(body) - 3, 4 * len(body) - 3]
    with pytest.raises(RowError, match="row event 2 cannot be read at byte") as caught:
        decoder.rows(data, starts, stops, INSERT, by=decode_rows)
    assert caught.value.event == 2 and starts[2] < caught.value.offset <= stops[2]


def test_places_outside_of_the_data_are_an_error(cases: list[Case]) -> None:
    decoder, bodies = cases[-1]
    body = bodies[0][1]
    for start, stop in ((-5, 10), (1, len(body) + 1), (10, 5), (len(body) + 9, len(body) + 10)):
        with pytest.raises(RowError):
            decoder.rows(body, [start], [stop], INSERT, [0], [0], by=tight)
    for bitmap in (-1, len(body), len(body) + 100):
        with pytest.raises(RowError):
            decoder.rows(body, [1], [len(body)], INSERT, [0], [bitmap], by=tight)


def test_damaged_table_maps_are_an_error_or_columns(mariadb_server: Any) -> None:
    client = Client(mariadb_server)
    client.query("DROP TABLE IF EXISTS mapped")
    client.query("CREATE TABLE mapped (id int PRIMARY KEY, e enum('a','b'), s set('x'), v varchar(9),"
                 " b blob, d decimal(9,2), t time(3), c char(255) CHARACTER SET utf8mb4)")  # fmt: skip
    since = client.head()
    client.query("INSERT INTO mapped (id) VALUES (1)")
    client.close()
    bodies = [body for kind, body, _ in events(mariadb_server, since) if kind == TABLE_MAP]
    dice = random.Random(3)
    good = bad = 0
    for n in range(1500):
        body = bodies[0][: n % len(bodies[0])] if n < 300 else damaged(bodies[0], dice)
        try:
            found = parse_table_map(body, mariadb=True)
        except ColumnError:
            bad += 1
            continue
        good += 1
        try:
            RowDecoder(found.columns, found.key)
        except ColumnError:
            bad += 1
    assert good > 20 and bad > 300
