"""Random tables and rows of PostgreSQL: what is decoded is what the server's own to_json says."""

from __future__ import annotations

import itertools
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .postgres_captures import WAYS, Capture, capture
from .services import Postgres


@dataclass(frozen=True, repr=False)
class Kind:
    """A type of a column: its name in SQL, what has to be made for it, and its values as SQL.

    `shown` makes of to_json's value what the decoder shall show.
    """

    name: str
    values: st.SearchStrategy[str]
    shown: Any = field(default=lambda value: value)
    made: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name} {self.made}"


class Number(str):
    """A number of JSON as it is written."""


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literals(values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return values.map(lambda value: quoted(str(value)))


def moment(precision: int) -> Any:
    def shown(value: str) -> str:
        found = re.fullmatch(
            r"(?:(\d+)-(\d\d-\d\d)T)?(\d\d:\d\d:\d\d)(\.\d+)?([-+][\d:]+)?( BC)?", value
        )
        if found is None:
            assert value in ("infinity", "-infinity")
            return value
        year, day, clock, fraction, zone, bc = found.groups(default="")
        fraction = (fraction or ".").ljust(precision + 1, "0") if precision else fraction
        zone = {"+00:00": "Z", "+00": "Z"}.get(zone, zone)
        if re.fullmatch(r"[-+]\d\d", zone):
            zone += ":00"
        return f"{day and calendar(year, day, bc) + 'T'}{clock}{fraction}{zone}"

    return shown


def calendar(year: str, day: str, bc: str) -> str:
    number = 1 - int(year) if bc else int(year)
    signed = f"{number:04}" if 0 <= number <= 9999 else f"{number:+07}"
    return f"{signed}-{day}"


def date(value: str) -> str:
    found = re.fullmatch(r"(\d+)-(\d\d-\d\d)( BC)?", value)
    return calendar(*found.groups(default="")) if found else value


def base64(value: str) -> Any:
    return {"_base64": b64encode(bytes.fromhex(value[2:])).decode()}


characters = st.characters(exclude_characters="\0", exclude_categories=("Cs",))
texts = st.text(characters, max_size=12) | st.text("\\\"'{}(),;N UL=>\n\t\r[]:", max_size=8)
floats64 = st.floats() | st.floats(width=16)
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
# JSON text as the server keeps it: \\u0000 is not for jsonb.
dumped = documents.map(lambda d: json.dumps(d, ensure_ascii=False))
moments = st.datetimes().map(str) | st.sampled_from(
    ["infinity", "-infinity", "0044-03-15 12:00:00.5 BC", "294276-12-31 23:59:59.999999"]
)
zones = st.sampled_from(["+00", "-08", "+05:30", "-03:30:15", "+15"])
numerics = st.decimals(allow_nan=False, allow_infinity=False) | st.sampled_from(
    ["NaN", "Infinity", "-Infinity"]
)

SCALARS = [
    Kind("bool", st.sampled_from(["true", "false"])),
    Kind("int2", literals(st.integers(-(2**15), 2**15 - 1))),
    Kind("int4", literals(st.integers(-(2**31), 2**31 - 1))),
    Kind("int8", literals(st.integers(-(2**63), 2**63 - 1))),
    Kind("oid", literals(st.integers(0, 2**32 - 1))),
    Kind("numeric", literals(numerics), shown=str),
    Kind("numeric(12,3)", literals(st.decimals(-(10**8), 10**8, places=3)), shown=str),
    Kind("float8", literals(floats64)),
    Kind("float4", literals(st.floats(width=32))),
    Kind("text", literals(texts)),
    Kind("varchar(40)", literals(texts)),
    Kind("char(20)", literals(texts)),
    Kind("bytea", st.binary(max_size=9).map(lambda b: f"'\\x{b.hex()}'"), base64),
    Kind("json", literals(dumped)),
    Kind("jsonb", literals(dumped)),
    Kind("uuid", literals(st.uuids())),
    Kind("date", literals(st.dates() | st.sampled_from(["infinity", "0044-03-15 BC", "10000-01-01"])), date),
    Kind("time", literals(st.times()), moment(0)),
    Kind("time(2)", literals(st.times()), moment(2)),
    Kind("timetz", literals(st.builds("{}{}".format, st.times(), zones)), moment(0)),
    Kind("timestamp", literals(moments), moment(0)),
    Kind("timestamp(4)", literals(st.datetimes().map(str)), moment(4)),
    Kind("timestamptz", literals(st.datetimes().map(lambda d: f"{d}+00") | moments), moment(0)),
    Kind("interval", literals(st.timedeltas().map(lambda d: f"{d.days} days {d.seconds} seconds"))),
    Kind("inet", literals(st.ip_addresses())),
    Kind("int4range", literals(st.tuples(st.integers(-9, 0), st.integers(0, 9)).map(lambda p: f"[{p[0]},{p[1]}]"))),
    Kind("tsvector", literals(st.lists(st.text("abc", min_size=1, max_size=3)).map(" ".join))),
    Kind("point", literals(st.tuples(st.integers(-99, 99), st.integers(-99, 99)))),
    Kind("box", literals(st.tuples(*[st.integers(-99, 99)] * 4))),
    Kind("hstore", st.dictionaries(texts, st.none() | texts, max_size=3).map(
        lambda d: "hstore(" + ("ARRAY[" + ",".join(
            f"{quoted(k)}, {'NULL' if v is None else quoted(v)}" for k, v in d.items()) + "]" if d else "''") + ")")),
    Kind("citext", literals(texts)),
]  # fmt: skip

_numbers = itertools.count()


def nullable(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(values, values, values, st.just("NULL"))


def mapped(shown: Any) -> Any:
    def inner(value: Any) -> Any:
        if value is None:
            return None
        return [inner(part) for part in value] if isinstance(value, list) else shown(value)

    return inner


def _array(of: Kind) -> st.SearchStrategy[Kind]:
    name = of.name + "[]"

    def value(shape: tuple[int, ...], parts: list[str], low: int) -> str:
        if not all(shape):
            return f"'{{}}'::{name}"
        flat = iter(parts * 30)

        def level(rest: tuple[int, ...]) -> str:
            inner = [level(rest[1:]) if rest[1:] else next(flat) for _ in range(rest[0])]
            return "ARRAY[" + ",".join(inner) + "]"

        made = f"{level(shape)}::{name}"
        # Another lower bound, where the elements can be given one by one.
        return (
            f"array_fill({parts[0]}::{of.name}, ARRAY[{shape[0]}], ARRAY[{low}])" if low else made
        )

    shapes = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
    values = st.builds(
        value,
        shapes,
        st.lists(nullable(of.values), min_size=1, max_size=9),
        st.sampled_from([0, 0, 0, -3, 7]),
    )
    return st.just(Kind(name, values, mapped(of.shown), of.made))


def _domain(of: Kind) -> st.SearchStrategy[Kind]:
    def make(number: int) -> Kind:
        name = f"domain_{number}"
        return replace(
            of,
            name=name,
            values=of.values.map(lambda value: f"({value})::{name}"),
            made=(*of.made, f"CREATE DOMAIN {name} AS {of.name}"),
        )

    return st.builds(make, st.builds(lambda: next(_numbers)))


def _composite(parts: list[Kind]) -> st.SearchStrategy[Kind]:
    def make(number: int) -> Kind:
        name = f"composite_{number}"
        attributes = ", ".join(f'"A {i}" {part.name}' for i, part in enumerate(parts))

        def shown(value: dict[str, Any]) -> dict[str, Any]:
            shows = [mapped(part.shown) if part.name[-1:] != "]" else part.shown for part in parts]
            return {
                key: None if v is None else show(v)
                for (key, v), show in zip(value.items(), shows, strict=True)
            }

        rows = st.tuples(*(nullable(part.values) for part in parts))
        made = tuple(dict.fromkeys(itertools.chain(*(part.made for part in parts))))
        values = rows.map(lambda row: f"ROW({', '.join(row)})::{name}")
        return Kind(name, values, shown, (*made, f"CREATE TYPE {name} AS ({attributes})"))

    return st.builds(make, st.builds(lambda: next(_numbers)))


# An array of arrays is one of more dimensions, so arrays are of what is none, but may be so in a domain.
kinds = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.filter(lambda kind: not kind.name.endswith("[]")).flatmap(_array),
        inner.flatmap(_domain),
        st.lists(inner, min_size=1, max_size=3).flatmap(_composite),
    ),
    max_leaves=3,
)


@pytest.fixture(scope="module")
def log(postgres_server: Postgres) -> Iterator[Capture]:
    with capture(postgres_server) as made:
        for extension in ("hstore", "citext"):
            made.execute(f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA public")
        yield made


def loaded(text: str) -> Any:
    return json.loads(text, parse_int=Number, parse_float=Number)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # rows are small; shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), columns=st.lists(kinds, min_size=1, max_size=4))
def test_random_rows_are_what_to_json_says(
    log: Capture, data: st.DataObject, columns: list[Kind]
) -> None:
    table = f"random_{next(_numbers)}"
    rows = data.draw(
        st.lists(st.tuples(*(nullable(c.values) for c in columns)), min_size=1, max_size=4)
    )
    made = dict.fromkeys(itertools.chain(*(column.made for column in columns)))
    names = [f"c{i}" for i in range(len(columns))]
    described = ", ".join(f"{n} {c.name}" for n, c in zip(names, columns, strict=True))
    log.execute(
        ";".join([*made, f"CREATE TABLE {table} (id int PRIMARY KEY, {described})"])
        + f"; ALTER TABLE {table} REPLICA IDENTITY FULL;"
        + ";".join(
            f"INSERT INTO {table} VALUES ({i}, {', '.join(row)})" for i, row in enumerate(rows)
        )
    )
    told = log.execute(f"SELECT to_json(t)::text FROM {table} t ORDER BY id")
    expected = []
    for (text,) in told:
        row = loaded(text)
        for name, column in zip(names, columns, strict=True):
            row[name] = None if row[name] is None else column.shown(row[name])
        expected.append(row)

    log.execute(f"UPDATE {table} SET id = -1 - id; DELETE FROM {table} WHERE id < -1")
    split = log.split("compiled")
    groups = [group for group in split.groups() if group[0].name == table]
    assert len({relation for relation, _ in groups}) == 1  # sent again after DDL, but the same
    changes = np.sort(np.concatenate([messages for _, messages in groups]))
    count = len(rows)
    texts = set()
    for way in WAYS:
        decoder = log.decoder(groups[0][0], (0,), way=way)
        decoded = decoder.rows(split, changes)
        before, after = decoded.before.to_pylist(), decoded.after.to_pylist()
        assert decoded.odd == ()
        assert [loaded(text) for text in after[:count]] == expected
        assert before == [None] * count + after[:count] + after[count + 1 : 2 * count]
        assert after[2 * count :] == [None] * (count - 1)
        assert log.copied(table, decoder).after.to_pylist() == after[count : count + 1]
        texts.add("\n".join(text or "-" for text in before + after))
    assert len(texts) == 1
    log.execute(f"DROP TABLE {table}")
    log.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", log.name)
