"""Rows of MySQL's own log against SELECT, for what MariaDB does not have: run with --mysql."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from dfc_runtime.kernels.mysql_rowloop import decode_rows
from dfc_runtime.kernels.mysql_rows import PARTIAL_UPDATE
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .mysql_log import Client, decoded, groups, loads
from .mysql_types import KINDS, Kind, compact
from .test_mysql_rows import ID, fresh, same, selected, stored

pytestmark = pytest.mark.mysql
JSON = Kind("json", st.none(), compact)  # type: ignore[arg-type]
NUMBER = Kind("int", st.none(), lambda raw: raw.decode())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def client(mysql_server: Any) -> Iterator[Client]:
    made = Client(mysql_server)
    made.query("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
    yield made
    made.close()


@pytest.mark.parametrize("part", range(3))
def test_every_type_is_told_as_select_tells_it(
    client: Client, mysql_server: Any, part: int
) -> None:
    mine = KINDS[part::3]
    kinds = {"id": ID, **{f"c{n}": kind for n, kind in enumerate(mine)}}
    rows: list[list[str]] = []

    @settings(max_examples=6, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.lists(st.tuples(*(k.literals for k in mine)), min_size=6, max_size=6))
    def collect(found: list[tuple[str, ...]]) -> None:
        rows.extend([str(n), *values] for n, values in enumerate(found, len(rows)))

    collect()
    since = stored(client, kinds, rows)
    made = decoded(mysql_server, since, "t", by=decode_rows)
    same(kinds, [after for _, after, _ in made], selected(client, "t", kinds))


_TEXTS = """
    null true false 1 -1 32767 32768 -32768 -32769 65535 65536 2147483647 2147483648 -2147483649
    4294967295 4294967296 9223372036854775807 9223372036854775808 18446744073709551615
    18446744073709551616 -9223372036854775808 1.5 0.1 1e300 1e-7 1e14 1e15 1e16 1e-14 1e-15 1e-16
    -0.0 5e-324 1.7976931348623157e308 100.0 "" "a" [] {} [1,[2,[3,{"a":{"b":[null,true,1.5,"x"]}}]]]
    {"b":1,"a":2,"aa":3,"":4,"é":5} "ä€😀" "q\\"b\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f"
"""
_EXPRESSIONS = (
    "CAST(CAST('12.340' AS DECIMAL(10,3)) AS JSON)",
    "CAST(CAST('-0.05' AS DECIMAL(65,30)) AS JSON)",
    "CAST(TIMESTAMP'2024-02-29 01:02:03.000004' AS JSON)",
    "CAST(DATE'2024-02-29' AS JSON)",
    "CAST(TIME'-12:34:56.789' AS JSON)",
    "CAST(TIME'838:59:59' AS JSON)",
    "JSON_ARRAY(x'0102ff', b'101', CAST('abc' AS BINARY))",
    "CAST(ST_GeomFromText('POINT(1 2)') AS JSON)",
    "JSON_OBJECT('d', DATE'0001-01-01', 'k', CAST(1.5 AS DECIMAL(3,1)))",
    "JSON_ARRAY(REPEAT('x', 70000), 1, 70000, 'y', 1.5, JSON_OBJECT('a', 1))",
    "JSON_OBJECT(REPEAT('k', 300), REPEAT('v', 200))",
    "JSON_ARRAY(1 = 1, 5 > 6, CAST(CAST(1.1 AS FLOAT) AS JSON))",
    f"JSON_ARRAY({','.join(map(str, range(20000)))})",
    f"CAST('{'[' * 100}{']' * 100}' AS JSON)",
)


def test_documents_are_told_as_the_server_shows_them(client: Client, mysql_server: Any) -> None:
    literals = ["_utf8mb4 0x" + text.encode().hex() for text in _TEXTS.split()]
    kinds = {"id": ID, "j": JSON}
    rows = [[str(n), text] for n, text in enumerate((*literals, *_EXPRESSIONS))]
    since = stored(client, kinds, rows)
    made = decoded(mysql_server, since, "t", by=decode_rows)
    assert [after for _, after, _ in made] == selected(client, "t", kinds)
    assert len(made) > 50


def test_documents_that_came_as_differences_are_whole(client: Client, mysql_server: Any) -> None:
    document = json.dumps({"a": 1, "b": [1, 2, {"c": "d" * 50}], "x": "x" * 400, "k y": {'é"q': 1}})
    kinds = {"id": ID, "j": JSON, "x": NUMBER, "k": JSON}
    stored(client, kinds, [])
    client.query("INSERT INTO t VALUES (1, %s, 0, %s)", document, document)
    client.query("SET binlog_row_value_options = PARTIAL_JSON")
    since = client.head()
    wanted = []
    for change in (
        "j = JSON_SET(j, '$.a', 2)",
        "j = JSON_REPLACE(j, '$.b[1]', JSON_OBJECT('n', 1.5)), x = 1",
        "j = JSON_REMOVE(j, '$.b[0]'), k = JSON_REMOVE(k, '$.a')",
        "j = JSON_SET(j, '$.new', 'v')",
        """k = JSON_SET(k, '$."k y"."é\\\\"q"', NULL)""",
        "j = JSON_SET(j, '$.b[9]', 7), k = JSON_ARRAY_APPEND(k, '$.b', 1)",
        "x = 5",
        "j = NULL",
    ):
        client.query(f"UPDATE t SET {change}")
        wanted += selected(client, "t", kinds)
    client.query("SET binlog_row_value_options = ''")
    assert all(k == PARTIAL_UPDATE for g in groups(mysql_server, since, "t") for k in g.kinds)
    made = decoded(mysql_server, since, "t", by=decode_rows)
    assert [after for _, after, _ in made] == wanted
    assert [before for before, _, _ in made][1:] == wanted[:-1]


def test_vectors_and_columns_that_are_not_shown(client: Client, mysql_server: Any) -> None:
    since = fresh(
        client,
        "id int PRIMARY KEY, v vector(3), h int INVISIBLE DEFAULT 3, s int AS (id + 1) STORED,"
        " w int AS (id * 2) VIRTUAL, g varchar(20) CHARACTER SET gb18030, INDEX ((id + 5))",
        "INSERT INTO t (id, v, g) VALUES (1, TO_VECTOR('[1.1,-2,3e38]'), '漢😀')",
        "DELETE FROM t",
    )
    made = decoded(mysql_server, since, "t", by=decode_rows)
    assert loads(made[0][1]) == {"id": 1, "v": [1.1, -2, 3e38], "h": 3, "s": 2, "w": 2, "g": "漢😀"}
    assert made[1][0] == made[0][1]
