"""Rows of the log as JSON: every type on a real MariaDB, held against what SELECT says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from dfc_runtime.kernels.mysql_rowloop import decode_rows
from dfc_runtime.sources import mysql_columns as types
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .mysql_log import Client, decoded, loads
from .mysql_types import KINDS, MARIADB, Kind, quoted, told_of

ALL = (*KINDS, *MARIADB)


@pytest.fixture(scope="module")
def client(mariadb_server: Any) -> Iterator[Client]:
    made = Client(mariadb_server)
    # Zero dates and dates that are none, as old applications have them.
    made.query("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
    yield made
    made.close()


def selected(client: Client, table: str, kinds: dict[str, Kind]) -> list[str]:
    """The rows of a table as JSON, by way of the text that SELECT gives."""
    shown = ", ".join(kind.shown.format(name) for name, kind in kinds.items())
    client.query("SET character_set_results = NULL")
    connection = client.connection
    kept, unicode = connection.decoders, connection.use_unicode
    connection.decoders, connection.use_unicode = {}, False
    try:
        found = client.query(f"SELECT {shown} FROM `{table}` ORDER BY id")
    finally:
        connection.decoders, connection.use_unicode = kept, unicode
        client.query("SET NAMES utf8mb4")
    rows = []
    for row in found:
        values = zip(kinds.items(), row, strict=True)
        members = [
            f"{quoted(name)}:{'null' if raw is None else kind.expect(raw)}"
            for (name, kind), raw in values
        ]
        rows.append("{" + ",".join(members) + "}")
    return rows


def stored(client: Client, kinds: dict[str, Kind], rows: list[list[str]]) -> tuple[str, int]:
    """Makes table t anew with these rows; where the log stood before."""
    client.query("DROP TABLE IF EXISTS t")
    client.query(
        f"CREATE TABLE t ({', '.join(f'`{n}` {k.sql}' for n, k in kinds.items())}, PRIMARY KEY (id))"
    )
    since = client.head()
    if rows:
        values = ",".join(f"({','.join(row)})" for row in rows)
        client.query(f"INSERT INTO t VALUES {values}")
    return since


def same(kinds: dict[str, Kind], made: list[str | None], wanted: list[str]) -> None:
    """Byte for byte; a difference is told by column."""
    for one, other in zip(made, wanted, strict=True):
        if one != other:
            first, second = loads(one), loads(other)
            differ = {
                n: (kinds[n].sql, first[n], second[n]) for n in kinds if first[n] != second[n]
            }
            assert differ == {}
        assert one == other


ID = Kind("int", st.integers(), lambda raw: raw.decode())


@pytest.mark.parametrize("part", range(4))
def test_every_type_is_told_as_select_tells_it(
    client: Client, mariadb_server: Any, part: int
) -> None:
    mine = ALL[part::4]
    kinds = {"id": ID, **{f"c{n}": kind for n, kind in enumerate(mine)}}
    examples = st.lists(st.tuples(*(k.literals for k in mine)), min_size=10, max_size=10)
    rows: list[list[str]] = []

    @settings(max_examples=8, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(examples)
    def collect(found: list[tuple[str, ...]]) -> None:
        rows.extend([str(n), *values] for n, values in enumerate(found, len(rows)))

    collect()
    assert len({tuple(row[1:]) for row in rows}) > 20  # not the simplest ones alone
    rows.append([str(len(rows)), *["NULL"] * len(mine)])
    since = stored(client, kinds, rows)
    made = decoded(mariadb_server, since, "t", told_of(kinds), by=decode_rows)
    same(kinds, [after for _, after, _ in made], selected(client, "t", kinds))
    assert [key for _, _, key in made] == [f'{{"id":{n}}}' for n in range(len(rows))]
    assert all(loads(after)["id"] == n for n, (_, after, _) in enumerate(made))
    assert not any(before for before, _, _ in made)


# --- images, keys and options ------------------------------------------------------------------


def fresh(client: Client, columns: str, *statements: str) -> tuple[str, int]:
    """Table t anew, then the statements; where the log stood before them."""
    client.query("DROP TABLE IF EXISTS t")
    client.query(f"CREATE TABLE t ({columns})")
    since = client.head()
    for statement in statements:
        client.query(statement)
    return since


def test_updates_and_deletes_have_both_sides_and_the_key(
    client: Client, mariadb_server: Any
) -> None:
    since = fresh(
        client,
        "a int, b varchar(10), c int, PRIMARY KEY (c, a)",
        "INSERT INTO t VALUES (1, 'x', 10), (2, NULL, 20)",
        "UPDATE t SET c = c + 1",
        "DELETE FROM t WHERE a = 2",
    )
    assert decoded(mariadb_server, since, "t", by=decode_rows) == [
        (None, '{"a":1,"b":"x","c":10}', '{"c":10,"a":1}'),
        (None, '{"a":2,"b":null,"c":20}', '{"c":20,"a":2}'),
        ('{"a":1,"b":"x","c":10}', '{"a":1,"b":"x","c":11}', '{"c":11,"a":1}'),
        ('{"a":2,"b":null,"c":20}', '{"a":2,"b":null,"c":21}', '{"c":21,"a":2}'),
        ('{"a":2,"b":null,"c":21}', None, '{"c":21,"a":2}'),
    ]


@pytest.mark.parametrize(
    ("image", "update", "delete"),
    [
        ("MINIMAL", ({"id": 1}, {"v": "new"}), ({"id": 1}, None)),
        (
            "NOBLOB",
            ({"id": 1, "v": "old"}, {"id": 1, "v": "new"}),
            ({"id": 1, "v": "new"}, None),
        ),
    ],
)
def test_row_images_that_leave_columns_out(
    client: Client, mariadb_server: Any, image: str, update: Any, delete: Any
) -> None:
    since = fresh(
        client,
        "b blob, id int PRIMARY KEY, v varchar(10)",
        f"SET binlog_row_image = {image}",
        "INSERT INTO t VALUES ('x', 1, 'old')",
        "UPDATE t SET v = 'new'",
        "DELETE FROM t",
        "SET binlog_row_image = FULL",
    )
    made = decoded(mariadb_server, since, "t", by=decode_rows)
    assert [(loads(before), loads(after)) for before, after, _ in made[1:]] == [update, delete]
    assert loads(made[0][1]) == {"b": {"_base64": "eA=="}, "id": 1, "v": "old"}
    # What the image after the change leaves out of the key, the one before it has.
    assert [key for _, _, key in made] == ['{"id":1}'] * 3


def test_wide_integers_are_quoted_on_demand(client: Client, mariadb_server: Any) -> None:
    since = fresh(
        client,
        "id bigint PRIMARY KEY, u bigint unsigned, b bit(64)",
        "INSERT INTO t VALUES (-9007199254740993, 18446744073709551615, 9007199254740993),"
        " (9007199254740992, 9007199254740991, 1)",
    )
    assert [after for _, after, _ in decoded(mariadb_server, since, "t", wide="string", by=decode_rows)] == [
        '{"id":"-9007199254740993","u":"18446744073709551615","b":"9007199254740993"}',
        '{"id":9007199254740992,"u":9007199254740991,"b":1}',
    ]  # fmt: skip
    assert '"u":18446744073709551615' in str(decoded(mariadb_server, since, "t", by=decode_rows))


def test_invisible_and_generated_columns_are_in_the_row(
    client: Client, mariadb_server: Any
) -> None:
    since = fresh(
        client,
        "id int PRIMARY KEY, hidden int INVISIBLE DEFAULT 7, s int AS (id + 1) STORED,"
        " v int AS (id * 2) VIRTUAL",
        "INSERT INTO t (id) VALUES (1)",
        "UPDATE t SET hidden = 8",
        "DELETE FROM t",
    )
    made = decoded(mariadb_server, since, "t", by=decode_rows)
    assert made[0][1] == '{"id":1,"hidden":7,"s":2,"v":2}'
    assert made[1][:2] == (made[0][1], '{"id":1,"hidden":8,"s":2,"v":2}')
    assert made[2][0] == made[1][1]


def test_the_hash_of_a_long_unique_value_is_no_column(client: Client, mariadb_server: Any) -> None:
    since = fresh(
        client, "id int PRIMARY KEY, b blob UNIQUE, c int", "INSERT INTO t VALUES (1, 'x', 2)"
    )
    made = decoded(mariadb_server, since, "t", by=decode_rows)
    assert made[0][1] == '{"id":1,"b":{"_base64":"eA=="},"c":2}'


def test_many_labels_and_labels_of_another_charset(client: Client, mariadb_server: Any) -> None:
    many = ",".join(f"'label {n}'" for n in range(1, 701))
    most = ",".join(f"'m{n}'" for n in range(64))
    since = fresh(
        client,
        f"id int PRIMARY KEY, e enum({many}), s set({most}), g enum('漢','字') CHARACTER SET gbk,"
        " k set('да','нет') CHARACTER SET koi8r",
        "INSERT INTO t VALUES (1, 700, -1, '字', 'да,нет'), (2, 255, 1, 1, ''), (3, 256, '', 0, 2)",
    )
    rows = [loads(after) for _, after, _ in decoded(mariadb_server, since, "t", by=decode_rows)]
    assert [row["e"] for row in rows] == ["label 700", "label 255", "label 256"]
    assert [row["s"] for row in rows] == [",".join(f"m{n}" for n in range(64)), "m0", ""]
    assert [row["g"] for row in rows] == ["字", "漢", ""]
    assert [row["k"] for row in rows] == ["да,нет", "", "нет"]


def test_names_of_columns_are_escaped(client: Client, mariadb_server: Any) -> None:
    since = fresh(client, '`a"\\b` int PRIMARY KEY, `ä€` int', "INSERT INTO t VALUES (1, 2)")
    (row,) = decoded(mariadb_server, since, "t", by=decode_rows)
    assert loads(row[1]) == {'a"\\b': 1, "ä€": 2}
    assert loads(row[2]) == {'a"\\b': 1}


def test_text_that_is_none_of_its_charset_stays_bytes(client: Client, mariadb_server: Any) -> None:
    since = fresh(
        client,
        "id int PRIMARY KEY, v varchar(10) CHARACTER SET cp1250",
        "INSERT INTO t VALUES (1, _cp1250 0x81)",  # no letter there
    )
    made = decoded(mariadb_server, since, "t", by=decode_rows)
    assert loads(made[0][1])["v"] == {"_base64": "gQ=="}


def test_json_that_was_never_checked_is_told_as_text(client: Client, mariadb_server: Any) -> None:
    kinds = {"j": Kind("json", st.just(""), quoted, told=types.JSON)}  # type: ignore[arg-type]
    since = fresh(
        client,
        "id int PRIMARY KEY, j json",
        "SET check_constraint_checks = 0",
        "INSERT INTO t VALUES (1, '{oops'), (2, ''), (3, ' [1 , {\"a\" : null}] '), (4, 'null')",
        "SET check_constraint_checks = 1",
    )
    made = decoded(mariadb_server, since, "t", told_of(kinds), by=decode_rows)
    texts = [str(after).partition('"j":')[2][:-1] for _, after, _ in made]
    assert texts == ['"{oops"', '""', '[1,{"a":null}]', "null"]


def test_compressed_events_hold_the_same_rows(client: Client, mariadb_server: Any) -> None:
    client.query("SET GLOBAL log_bin_compress = 1, GLOBAL log_bin_compress_min_len = 10")
    try:
        long = "x" * 500
        since = fresh(
            client,
            "id int PRIMARY KEY, v text",
            f"INSERT INTO t VALUES (1, '{long}'), (2, '{long}')",
            f"UPDATE t SET v = CONCAT('{long}', id)",
            "DELETE FROM t",
        )
        made = decoded(mariadb_server, since, "t", by=decode_rows)
    finally:
        client.query("SET GLOBAL log_bin_compress = 0, GLOBAL log_bin_compress_min_len = 256")
    assert [loads(after) for _, after, _ in made[2:4]] == [
        {"id": n, "v": f"{long}{n}"} for n in (1, 2)
    ]
    assert [loads(before)["id"] for before, _, _ in made[4:]] == [1, 2]


def test_dates_and_times_in_the_old_formats(client: Client, mariadb_server: Any) -> None:
    kinds = {"id": ID}
    for n in range(7):
        for name in ("time", "datetime", "timestamp"):
            kinds[f"{name}{n}"] = next(
                k for k in KINDS if k.sql.split()[0] in (f"{name}({n})", name if n == 0 else "")
            )
    client.query("SET GLOBAL mysql56_temporal_format = 0")
    try:
        rows = [
            ["1", *["'-12:34:56.123456'", "'2024-02-29 23:59:59.987654'", "'2024-02-29 01:02:03.5'"] * 7],
            ["2", *["'838:59:59.999999'", "'0000-00-00'", "'0000-00-00'"] * 7],
            ["3", *["'-00:00:00.000001'", "'9999-12-31 23:59:59'", "'2038-01-19 03:14:07'"] * 7],
            ["4", *["'00:00:00'", "'2024-00-00 00:00:00.1'", "NULL"] * 7],
        ]  # fmt: skip
        since = stored(client, kinds, rows)
        wanted = selected(client, "t", kinds)

        def digits(column: types.Column) -> types.Column:
            from dataclasses import replace

            assert column.type not in (types.TIME2, types.DATETIME2, types.TIMESTAMP2)
            return column if column.name == "id" else replace(column, meta=int(column.name[-1]))

        made = decoded(mariadb_server, since, "t", digits, by=decode_rows)
    finally:
        client.query("SET GLOBAL mysql56_temporal_format = 1")
    same(kinds, [after for _, after, _ in made], wanted)


def test_a_row_of_everything_is_json(client: Client, mariadb_server: Any) -> None:
    since = fresh(client, "id int PRIMARY KEY, v varchar(300)",
                  "INSERT INTO t VALUES (1, 'a\tb\\0c\\\\d\"e\x7f')")  # fmt: skip
    (row,) = decoded(mariadb_server, since, "t", by=decode_rows)
    assert json.loads(str(row[1])) == {"id": 1, "v": 'a\tb\0c\\d"e\x7f'}
