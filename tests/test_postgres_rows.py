"""Values of every type of PostgreSQL as JSON: out of the log and out of COPY, in all three ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from dfc_runtime.kernels.postgres_rows import Decoded
from dfc_runtime.sources.postgres_types import SESSION

from .postgres_captures import WAYS, Capture, capture
from .services import Postgres

_DIGITS = "1" + "0" * 1000

# SQL type, its value as SQL text, and the JSON it becomes.
CASES: list[tuple[str, str, str]] = [
    ("bool", "t", "true"),
    ("bool", "f", "false"),
    ("int2", "-32768", "-32768"),
    ("int4", "2147483647", "2147483647"),
    ("int8", "-9223372036854775808", "-9223372036854775808"),
    ("int8", "9223372036854775807", "9223372036854775807"),
    ("int8", "0", "0"),
    ("oid", "4294967295", "4294967295"),
    ("xid", "4294967295", "4294967295"),
    ("cid", "1", "1"),
    ("xid8", "18446744073709551615", "18446744073709551615"),
    ("numeric", "1.50", '"1.50"'),
    ("numeric", "-0.000", '"0.000"'),
    ("numeric", "NaN", '"NaN"'),
    ("numeric", "Infinity", '"Infinity"'),
    ("numeric", "-Infinity", '"-Infinity"'),
    ("numeric", "1e1000", f'"{_DIGITS}"'),
    ("numeric", "1e-20", '"0.00000000000000000001"'),
    ("numeric(20,4)", "1234567890123456.7", '"1234567890123456.7000"'),
    ("float4", "1.1", "1.1"),
    ("float4", "3.4028235e38", "3.4028235e+38"),
    ("float4", "1e-45", "1e-45"),
    ("float4", "NaN", '"NaN"'),
    ("float8", "0.1", "0.1"),
    ("float8", "-0", "-0"),
    ("float8", "5e-324", "5e-324"),
    ("float8", "1.7976931348623157e308", "1.7976931348623157e+308"),
    ("float8", "0.30000000000000004", "0.30000000000000004"),
    ("float8", "Infinity", '"Infinity"'),
    ("float8", "-Infinity", '"-Infinity"'),
    ("money", "-1234.5", '"-$1,234.50"'),
    ("money", "92233720368547758.07", '"$92,233,720,368,547,758.07"'),
    ("text", "", '""'),
    ("text", "NULL", '"NULL"'),
    ("text", "\\N", r'"\\N"'),
    ("text", 'a"b\\c\t\n\r\b\f\x01\x7f', r'"a\"b\\c\t\n\r\b\f\u0001' + '\x7f"'),
    ("text", "naïve 東京 🐘", '"naïve 東京 🐘"'),
    ("text", "007", '"007"'),
    ("varchar(3)", "abc", '"abc"'),
    ("char(5)", "ab", '"ab   "'),
    ("name", "someone", '"someone"'),
    ('"char"', "x", '"x"'),
    ('"char"', "", '""'),
    ("refcursor", "c", '"c"'),
    ("bytea", "\\x", '{"_base64":""}'),
    ("bytea", "\\x00ff", '{"_base64":"AP8="}'),
    ("bytea", "\\xdeadbe", '{"_base64":"3q2+"}'),
    ("bytea", "\\xdeadbeef", '{"_base64":"3q2+7w=="}'),
    ("json", ' { "b" : [1.0, 2e5 , -0] ,\n "a":"x y\\u0000\\/" } ',
     '{"b":[1.0,2e5,-0],"a":"x y\\u0000\\/"}'),
    ("json", '{"a":1,"a":2}', '{"a":1,"a":2}'),
    ("json", "null", "null"),
    ("json", "[" * 2000 + "]" * 2000, "[" * 2000 + "]" * 2000),
    ("jsonb", '{"b": [true, false, null, {}], "a": 12345678901234567890.10}',
     '{"a":12345678901234567890.10,"b":[true,false,null,{}]}'),
    ("jsonb", '"\\"q\\" 東 \\u001f"', '"\\"q\\" 東 \\u001f"'),
    ("jsonpath", "$.a[*]", '"$.\\"a\\"[*]"'),
    ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ("date", "2024-02-29", '"2024-02-29"'),
    ("date", "infinity", '"infinity"'),
    ("date", "-infinity", '"-infinity"'),
    ("date", "0044-03-15 BC", '"-000043-03-15"'),
    ("date", "0001-12-31 BC", '"0000-12-31"'),
    ("date", "0001-01-01", '"0001-01-01"'),
    ("date", "4714-11-24 BC", '"-004713-11-24"'),
    ("date", "10000-01-01", '"+010000-01-01"'),
    ("date", "5874897-12-31", '"+5874897-12-31"'),
    ("time", "24:00:00", '"24:00:00"'),
    ("time", "23:59:59.999999", '"23:59:59.999999"'),
    ("time", "12:00:00.5", '"12:00:00.5"'),
    ("time(3)", "12:00:00.5", '"12:00:00.500"'),
    ("time(0)", "12:00:00.4", '"12:00:00"'),
    ("timetz", "12:00:00.5+05:30", '"12:00:00.5+05:30"'),
    ("timetz", "12:00:00+00", '"12:00:00Z"'),
    ("timetz", "12:00:00-08", '"12:00:00-08:00"'),
    ("timetz", "12:00:00+15:59:59", '"12:00:00+15:59:59"'),
    ("timetz(2)", "12:00:00+00", '"12:00:00.00Z"'),
    ("timestamp", "2024-02-29 12:00:00", '"2024-02-29T12:00:00"'),
    ("timestamp", "2024-02-29 12:00:00.123456", '"2024-02-29T12:00:00.123456"'),
    ("timestamp", "infinity", '"infinity"'),
    ("timestamp", "-infinity", '"-infinity"'),
    ("timestamp", "4714-11-24 00:00:00 BC", '"-004713-11-24T00:00:00"'),
    ("timestamp", "294276-12-31 23:59:59.999999", '"+294276-12-31T23:59:59.999999"'),
    ("timestamp(3)", "2024-02-29 12:00:00", '"2024-02-29T12:00:00.000"'),
    ("timestamp(3)", "0044-03-15 12:00:00.25 BC", '"-000043-03-15T12:00:00.250"'),
    ("timestamp(0)", "2024-02-29 12:00:00.6", '"2024-02-29T12:00:01"'),
    ("timestamp(6)", "2024-02-29 12:00:00.6", '"2024-02-29T12:00:00.600000"'),
    ("timestamptz", "2024-02-29 23:00:00.5-08", '"2024-03-01T07:00:00.5Z"'),
    ("timestamptz", "0044-03-15 01:00:00+02 BC", '"-000043-03-14T23:00:00Z"'),
    ("timestamptz", "-infinity", '"-infinity"'),
    ("timestamptz", "294276-12-31 23:59:59.999999+00", '"+294276-12-31T23:59:59.999999Z"'),
    ("timestamptz(1)", "2024-02-29 12:00:00+00", '"2024-02-29T12:00:00.0Z"'),
    ("interval", "1 year 2 mons -3 days 04:05:06.7", '"1 year 2 mons -3 days +04:05:06.7"'),
    ("interval", "-00:00:00.000001", '"-00:00:00.000001"'),
    ("interval", "178000000 years", '"178000000 years"'),
    ("bit(1)", "1", '"1"'),
    ("bit(8)", "00000101", '"00000101"'),
    ("varbit", "", '""'),
    ("varbit", "01" * 40, f'"{"01" * 40}"'),
    ("inet", "192.168.0.1/24", '"192.168.0.1/24"'),
    ("inet", "::1", '"::1"'),
    ("cidr", "10.0.0.0/8", '"10.0.0.0/8"'),
    ("macaddr", "08:00:2B:01:02:03", '"08:00:2b:01:02:03"'),
    ("macaddr8", "08:00:2b:01:02:03:04:05", '"08:00:2b:01:02:03:04:05"'),
    ("xml", '<a b="c">&amp;</a>', r'"<a b=\"c\">&amp;</a>"'),
    ("pg_lsn", "16/B374D848", '"16/B374D848"'),
    ("tid", "(1,2)", '"(1,2)"'),
    ("pg_snapshot", "10:20:10,14", '"10:20:10,14"'),
    ("tsvector", "a:1A fat:2B,4C 'it''s'", "\"'a':1A 'fat':2B,4C 'it''s'\""),
    ("tsquery", "fat & (rat | !cat)", "\"'fat' & ( 'rat' | !'cat' )\""),
    ("point", "(1.5,-2)", '"(1.5,-2)"'),
    ("line", "{1,2,3}", '"{1,2,3}"'),
    ("lseg", "[(1,2),(3,4)]", '"[(1,2),(3,4)]"'),
    ("box", "(1,2),(3,4)", '"(3,4),(1,2)"'),
    ("path", "((1,2),(3,4))", '"((1,2),(3,4))"'),
    ("polygon", "((1,2),(3,4))", '"((1,2),(3,4))"'),
    ("circle", "<(1,2),3>", '"<(1,2),3>"'),
    ("regclass", "pg_catalog.pg_class", '"pg_class"'),
    ("regtype", "integer", '"integer"'),
    ("regproc", "now", '"now"'),
    ("regprocedure", "lower(text)", '"lower(text)"'),
    ("regoperator", "!~~*(text,text)", '"!~~*(text,text)"'),
    ("regnamespace", "pg_catalog", '"pg_catalog"'),
    ("regconfig", "simple", '"simple"'),
    ("regclass", "0", '"-"'),
    ("int2vector", "1 2 3", '"1 2 3"'),
    ("oidvector", "10 20", '"10 20"'),
    ("int4range", "[1,5]", '"[1,6)"'),
    ("int4range", "empty", '"empty"'),
    ("int8range", "(,5]", '"(,6)"'),
    ("numrange", "[1.50,)", '"[1.50,)"'),
    ("daterange", "[2024-02-28,2024-03-01]", '"[2024-02-28,2024-03-02)"'),
    ("tsrange", '["2024-01-01 10:00:00",infinity]', r'"[\"2024-01-01 10:00:00\",infinity]"'),
    ("tstzrange", '["2024-01-01 10:00:00+02",)', r'"[\"2024-01-01 08:00:00+00\",)"'),
    ("int4multirange", "{[1,2],[5,9)}", '"{[1,3),[5,9)}"'),
    ("span", '["a b",c)', r'"[\"a b\",c)"'),
    # arrays
    ("int4[]", "{}", "[]"),
    ("int4[]", "{1,NULL,-3}", "[1,null,-3]"),
    ("int4[]", "[2:3]={1,2}", "[1,2]"),
    ("int4[][]", "{{1,2},{3,NULL}}", "[[1,2],[3,null]]"),
    ("int4[][]", "[0:1][-1:0]={{1,2},{3,4}}", "[[1,2],[3,4]]"),
    ("int8[][][]", "{{{1},{2}},{{3},{4}}}", "[[[1],[2]],[[3],[4]]]"),
    ("int2[]", "{-32768}", "[-32768]"),
    ("bool[]", "{t,f,NULL}", "[true,false,null]"),
    ("text[]", '{t,007,"NULL",NULL,"",null2}', '["t","007","NULL",null,"","null2"]'),
    ("text[]", '{"a\\"b","c\\\\d","e,f","{g}"," h "}', r'["a\"b","c\\d","e,f","{g}"," h "]'),
    ("text[]", "{東京,🐘}", '["東京","🐘"]'),
    ("varchar(5)[]", "{a,b}", '["a","b"]'),
    ("char(3)[]", "{a}", '["a  "]'),
    ("name[]", "{a}", '["a"]'),
    ("numeric[]", "{1.50,NaN,-Infinity}", '["1.50","NaN","-Infinity"]'),
    ("numeric(6,3)[]", "{1.5}", '["1.500"]'),
    ("float8[]", "{0.1,NaN,1e300}", '[0.1,"NaN",1e+300]'),
    ("float4[]", "{1.1}", "[1.1]"),
    ("bytea[]", '{"\\\\x00ff","\\\\x"}', '[{"_base64":"AP8="},{"_base64":""}]'),
    ("json[]", '{"{\\"a\\": [1, 2]}","null",NULL}', '[{"a":[1,2]},null,null]'),
    ("jsonb[]", '{"\\"x\\"",1}', '["x",1]'),
    ("uuid[]", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
     '["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]'),
    ("date[]", '{2024-02-29,infinity,"0044-03-15 BC"}',
     '["2024-02-29","infinity","-000043-03-15"]'),
    ("timestamp(3)[]", '{"2024-02-29 12:00:00.5"}', '["2024-02-29T12:00:00.500"]'),
    ("timestamptz[]", '{"2024-02-29 12:00:00+02"}', '["2024-02-29T10:00:00Z"]'),
    ("time[]", "{12:00:00}", '["12:00:00"]'),
    ("timetz(1)[]", "{12:00:00+01}", '["12:00:00.0+01:00"]'),
    ("interval[]", '{"1 day"}', '["1 day"]'),
    ("money[]", '{"$1,000.00"}', '["$1,000.00"]'),
    ("bit(2)[]", "{10}", '["10"]'),
    ("inet[]", "{::1}", '["::1"]'),
    ("point[]", '{"(1,2)"}', '["(1,2)"]'),
    ("box[]", "{(1,2),(3,4);(5,6),(7,8)}", '["(3,4),(1,2)","(7,8),(5,6)"]'),
    ("int4range[]", '{"[1,2)",empty}', '["[1,2)","empty"]'),
    ("int4multirange[]", '{"{[1,2)}"}', '["{[1,2)}"]'),
    ("xid8[]", "{5}", "[5]"),
    ("regclass[]", "{pg_class}", '["pg_class"]'),
    ("oid[]", "{4294967295}", "[4294967295]"),
    ("int2vector[]", '{"1 2"}', '["1 2"]'),
    # enums, domains, composites
    ("mood", "so, so", '"so, so"'),
    ("mood[]", '{happy,"so, so"}', '["happy","so, so"]'),
    ("cents", "100", "100"),
    ("cents2", "100", "100"),
    ("cents[]", "{1,2}", "[1,2]"),
    ("matrix", "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
    ("matrix[]", '{"{{1,2}}","{{3,4}}"}', "[[[1,2]],[[3,4]]]"),
    ("millis", "2024-01-01 00:00:00.5", '"2024-01-01T00:00:00.500"'),
    ("pair", "(1,x)", '{"a":1,"b b":"x"}'),
    ("pair", "(,)", '{"a":null,"b b":null}'),
    ("pair", '(,"")', '{"a":null,"b b":""}'),
    ("pair", '(-1,"a ""q"" \\\\ , () \n")', r'{"a":-1,"b b":"a \"q\" \\ , () \n"}'),
    ("pair[]", '{"(1,x)",NULL,"(,\\"y,z\\")"}',
     '[{"a":1,"b b":"x"},null,{"a":null,"b b":"y,z"}]'),
    ("one", "()", '{"x":null}'),
    ("one", "(t)", '{"x":true}'),
    ("nothing", "()", "{}"),
    ("nothing[]", "{()}", "[{}]"),
    ("pair_domain", "(1,x)", '{"a":1,"b b":"x"}'),
    ("pair_domain[]", '{"(1,x)"}', '[{"a":1,"b b":"x"}]'),
    ("nest", '("(1,x)","{""(2,\\\\""y z\\\\"")"",NULL}","{""k"": [1, ""v""]}",\\\\x01,'
     '"2024-01-01 00:00:00")',
     '{"p":{"a":1,"b b":"x"},"ps":[{"a":2,"b b":"y z"},null],"j":{"k":[1,"v"]},'
     '"raw":{"_base64":"AQ=="},"at":"2024-01-01T00:00:00.000"}'),
    ("nest", "(,{},,,)", '{"p":null,"ps":[],"j":null,"raw":null,"at":null}'),
    ("deep", '("{""(\\\\""{{1,2},{3,4}}\\\\"",t)""}")', '{"d":[{"m":[[1,2],[3,4]],"t":true}]}'),
    # contrib
    ("hstore", 'a=>1, "b c"=>NULL, "q\\"\\\\"=>"x=>y, z"',
     r'{"a":"1","b c":null,"q\"\\":"x=>y, z"}'),
    ("hstore", "", "{}"),
    ("hstore[]", '{"a=>1","b=>NULL"}', '[{"a":"1"},{"b":null}]'),
    ("citext", "MiXed", '"MiXed"'),
    ("citext[]", "{A,b}", '["A","b"]'),
    ("ltree", "a.b.c", '"a.b.c"'),
    ("ltree[]", "{a.b,c}", '["a.b","c"]'),
    ("lquery", "a.*{2}.b", '"a.*{2}.b"'),
    ("cube", "(1,2),(3,4)", '"(1, 2),(3, 4)"'),
    ("seg", "1 .. 2", '"1 .. 2"'),
]  # fmt: skip

TYPES = """
CREATE TYPE mood AS ENUM ('happy', 'so, so');
CREATE TYPE span AS RANGE (subtype = text);
CREATE DOMAIN cents AS int8 CHECK (VALUE >= 0);
CREATE DOMAIN cents2 AS cents NOT NULL;
CREATE DOMAIN matrix AS int4[];
CREATE DOMAIN millis AS timestamp(3);
CREATE TYPE pair AS (a int4, "b b" text);
CREATE TYPE one AS (x bool);
CREATE TYPE nothing AS ();
CREATE DOMAIN pair_domain AS pair;
CREATE TYPE nest AS (p pair, ps pair[], j jsonb, raw bytea, at millis);
CREATE TYPE inner_most AS (m matrix, t bool);
CREATE TYPE deep AS (d inner_most[]);
"""


@pytest.fixture(scope="module")
def log(postgres_server: Postgres) -> Iterator[Capture]:
    with capture(postgres_server) as made:
        for extension in ("hstore", "citext", "ltree", "cube", "seg"):
            made.execute(f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA public")
        made.execute(TYPES)
        yield made


Matrix = dict[str, list[Any]]


@pytest.fixture(scope="module")
def matrix(log: Capture) -> Matrix:
    """The JSON text of each case, by where it is from."""
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(CASES))
    log.execute(f"CREATE TABLE cases (id int PRIMARY KEY, {columns})")
    marks = ", ".join(["%s"] * len(CASES))
    log.execute(f"INSERT INTO cases VALUES (1, {marks})", *(value for _, value, _ in CASES))
    found: Matrix = {}
    for way in WAYS:
        streamed, copied = _both(log, "cases", way)
        assert streamed.odd == copied.odd == ()
        assert streamed.after.equals(copied.after)
        found[way] = _members(streamed.after[0].as_py())
    return found


def _both(log: Capture, table: str, way: str, **more: Any) -> tuple[Decoded, Decoded]:
    """The rows as they were streamed, and as a snapshot has them."""
    split = log.split(way)
    ((relation, rows),) = [group for group in split.groups() if group[0].name == table]
    decoder = log.decoder(relation, (0,), way=way, **more)
    return decoder.rows(split, rows), log.copied(table, decoder)


def _members(row: str) -> list[str]:
    """The texts of the values of an object with the keys id, c0, c1... in this order."""
    rest, values = row, []
    for i in range(len(CASES), 0, -1):
        rest, value = rest.rsplit(f',"c{i - 1}":', 1)
        values.append(value)
    values[0] = values[0].removesuffix("}")
    assert rest == '{"id":1'
    return values[::-1]


@pytest.mark.parametrize(
    "case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]} {CASES[i][1][:20]!r}"
)
def test_value_of_each_type(matrix: Matrix, case: int) -> None:
    assert {way: values[case] for way, values in matrix.items()} == dict.fromkeys(
        WAYS, CASES[case][2]
    )
    if len(CASES[case][2]) < 2000:  # deeper than json goes
        json.loads(CASES[case][2])


def test_null_of_each_type(log: Capture) -> None:
    kinds = dict.fromkeys(kind for kind, _, _ in CASES if kind != "cents2")  # that is NOT NULL
    log.execute(
        f"CREATE TABLE nulls (id int PRIMARY KEY, {', '.join(f'c{i} {k}' for i, k in enumerate(kinds))})"
    )
    log.execute("INSERT INTO nulls VALUES (1)")
    expected = {"id": 1, **{f"c{i}": None for i in range(len(kinds))}}
    for way in WAYS:
        streamed, copied = _both(log, "nulls", way)
        assert json.loads(streamed.after[0].as_py()) == expected
        assert streamed.after.equals(copied.after) and streamed.odd == copied.odd == ()


def test_a_key_has_the_columns_of_the_primary_key_alone(matrix: Matrix, log: Capture) -> None:
    for way in WAYS:
        for decoded in _both(log, "cases", way):
            assert decoded.key.to_pylist() == ['{"id":1}']


@pytest.mark.parametrize("way", WAYS)
def test_wide_integers_as_strings_when_asked_for(log: Capture, way: str) -> None:
    log.execute("CREATE TABLE IF NOT EXISTS wide (id int8 PRIMARY KEY, many int8[], of pair)")
    if not log.execute("SELECT 1 FROM wide"):
        edge = 2**53
        log.execute(
            "INSERT INTO wide VALUES (%s, ARRAY[%s, %s, %s, 1000000000000000, NULL], ROW(7, '1'))",
            edge + 1, edge, -edge, -edge - 1,
        )  # fmt: skip
    for decoded in _both(log, "wide", way, wide=True):
        assert decoded.after.to_pylist() == [
            '{"id":"9007199254740993","many":[9007199254740992,-9007199254740992,'
            '"-9007199254740993",1000000000000000,null],"of":{"a":7,"b b":"1"}}'
        ]
        assert decoded.key.to_pylist() == ['{"id":"9007199254740993"}']


@pytest.mark.parametrize("way", WAYS)
def test_names_of_columns_are_quoted_as_json(log: Capture, way: str) -> None:
    log.execute(
        'CREATE TABLE IF NOT EXISTS names (id int PRIMARY KEY, "a ""b\\\\" int, "日\n" int)'
    )
    log.execute("INSERT INTO names VALUES (1, 2, 3) ON CONFLICT DO NOTHING")
    for decoded in _both(log, "names", way):
        assert decoded.after.to_pylist() == [r'{"id":1,"a \"b\\\\":2,"日\n":3}']


def test_bytes_that_are_no_text_are_shown_as_bytes(postgres_server: Postgres, log: Capture) -> None:
    """A database without an encoding may hold anything, and the server sends it as it is."""
    log.connection.execute("CREATE DATABASE anything ENCODING 'SQL_ASCII' TEMPLATE template0")
    dsn = postgres_server.dsn.rsplit("/", 1)[0] + "/anything"
    with capture(postgres_server, dsn, "SQL_ASCII") as other:
        other.execute("CREATE TABLE t (id int PRIMARY KEY, x text, xs text[], j json)")
        other.execute(
            "INSERT INTO t VALUES (1, E'\\xc8', ARRAY[E'a\\xff', E'\\xc3\\xa9'], E'[\"\\xff\"]')"
        )
        for way in WAYS:
            for decoded in _both(other, "t", way):
                assert decoded.after.to_pylist() == [
                    '{"id":1,"x":{"_base64":"yA=="},"xs":[{"_base64":"Yf8="},"é"],'
                    '"j":{"_base64":"WyL/Il0="}}'
                ]
                assert decoded.odd == ("j",)


def test_settings_of_roles_and_databases_change_nothing(
    postgres_server: Postgres, log: Capture
) -> None:
    """The session says how values are printed, in COPY as in the decoding of the log."""
    others = {
        "DateStyle": "SQL, DMY",
        "IntervalStyle": "iso_8601",
        "TimeZone": "Asia/Kolkata",
        "bytea_output": "escape",
        "extra_float_digits": "0",
        "search_path": "public",
        "quote_all_identifiers": "on",
        "client_encoding": "LATIN1",
    }
    assert set(others) == set(SESSION)
    user, database = log.execute("SELECT current_user, current_database()")[0]
    for name, value in others.items():
        log.execute(f"ALTER ROLE {user} IN DATABASE {database} SET {name} = '{value}'")
    try:
        with capture(postgres_server) as other:
            other.execute(
                "CREATE TABLE t (id int PRIMARY KEY, ts timestamptz, d date, i interval, b bytea, f float8,"
                " r regclass, x text)"
            )
            other.execute(
                "INSERT INTO t VALUES (1, '2024-02-29 12:00Z', '2024-03-04', '1 day 2 hours', '\\x00ff',"
                " 0.1::float8 + 0.2, 't', 'ł')"
            )
            expected = (
                '{"id":1,"ts":"2024-02-29T12:00:00Z","d":"2024-03-04","i":"1 day 02:00:00",'
                '"b":{"_base64":"AP8="},"f":0.30000000000000004,'
                f'"r":"{other.name}.t","x":"ł"}}'
            )
            for decoded in _both(other, "t", "python"):
                assert decoded.after.to_pylist() == [expected]
    finally:
        log.execute(f"ALTER ROLE {user} IN DATABASE {database} RESET ALL")
