"""Damaged texts of PostgreSQL's values: kept as strings and reported, the same in all ways.

A kernel reads bytes without asking whether they are there. What stands beside a value must therefore
never change what becomes of it, and the same code run as Python, where an index is checked, must not fail.
"""

from __future__ import annotations

import json
import random

import pytest
from dfc_runtime.kernels import postgres_program as ops
from dfc_runtime.kernels.postgres_messages import FrameError
from dfc_runtime.kernels.postgres_program import Column, Node
from dfc_runtime.kernels.postgres_rows import Decoded, TupleDecoder

from .postgres_captures import WAYS

INT, TEXT, JSON = Node(ops.INTEGER), Node(), Node(ops.JSON)
STAMP = Node(ops.TIMESTAMPTZ, precision=3)
PAIR = Node(ops.COMPOSITE, attributes=(("a", INT), ("b", TEXT)))
PAIRS = Node(ops.ARRAY, PAIR)
NEST = Node(ops.COMPOSITE, attributes=(("ps", PAIRS), ("j", JSON), ("x", Node(ops.BYTES))))

# Node, and texts of it that are sound.
KINDS: dict[str, tuple[Node, list[bytes]]] = {
    "text": (TEXT, [b'a"b\\c', "東京🐘".encode(), b"\x01\x1f"]),
    "bool": (Node(ops.BOOL), [b"t", b"f"]),
    "integer": (INT, [b"0", b"-12", b"9223372036854775807"]),
    "float": (Node(ops.FLOAT), [b"-1.5e+10", b"NaN", b"-Infinity", b"0.25"]),
    "bytes": (Node(ops.BYTES), [b"\\x", b"\\x00ff10"]),
    "json": (JSON, [b'{"a": [1, 2.5e3, null, true], "b": {"\\u00e9": "x"}}', b"[false,[],{}]"]),
    "date": (Node(ops.DATE), [b"2024-02-29", b"infinity", b"0044-03-15 BC", b"5874897-12-31"]),
    "time": (Node(ops.TIME, precision=2), [b"12:00:00", b"24:00:00.5"]),
    "timetz": (Node(ops.TIMETZ), [b"12:00:00+05:30", b"12:00:00.123-15:59:59", b"01:02:03+00"]),
    "timestamp": (Node(ops.TIMESTAMP), [b"2024-02-29 12:00:00.5", b"0044-03-15 12:00:00 BC"]),
    "timestamptz": (STAMP, [b"2024-02-29 12:00:00+00", b"2024-12-31 23:59:59.5-03:30"]),
    "hstore": (Node(ops.HSTORE), [b'"a"=>"1", "b\\"c"=>NULL', b""]),
    "int[]": (Node(ops.ARRAY, INT), [b"{1,NULL,3}", b"[2:3][0:0]={{1},{2}}", b"{}"]),
    "text[]": (Node(ops.ARRAY, TEXT), [b'{a,"b\\"c,","NULL",NULL}', b"{{a},{b}}"]),
    "box[]": (Node(ops.ARRAY, TEXT, ";"), [b"{(1,2),(3,4);(5,6),(7,8)}"]),
    "stamp[]": (Node(ops.ARRAY, STAMP), [b'{"2024-02-29 12:00:00+02",infinity}']),
    "pair": (PAIR, [b'(1,"a ""b"" \\\\")', b"(,)", b'(-5,"")']),
    "pair[]": (PAIRS, [b'{"(1,x)",NULL,"(,\\"y,z\\")"}']),
    "nest": (NEST, [b'("{""(2,\\\\""y z\\\\"")"",NULL}","{""k"": [1, ""v""]}","\\\\x01")', b"(,,)"]),
    "empty": (Node(ops.COMPOSITE), [b"()"]),
    "nothing[]": (Node(ops.ARRAY, Node(ops.COMPOSITE)), [b"{(),NULL}"]),
}  # fmt: skip

SPICE = b'{}[]()"\\,;=:-+. 0179xNUL\xff\xc3\n\t'


def damaged(sound: list[bytes], dice: random.Random) -> bytes:
    text = bytearray(dice.choice(sound))
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3, 8))):
        at = dice.randint(0, len(text))
        match dice.randrange(5):
            case 0:
                del text[at:]
            case 1:
                del text[at : at + dice.randint(1, 3)]
            case 2:
                text[at:at] = bytes([dice.choice(SPICE)])
            case 3:
                text[at : at + 1] = bytes([dice.choice(SPICE)])
            case _:
                other = dice.choice(sound)
                text[at:at] = other[dice.randint(0, len(other)) :]
    return bytes(text)


def copy_line(*fields: bytes) -> bytes:
    escapes = {92: b"\\\\", 9: b"\\t", 10: b"\\n", 13: b"\\r", 8: b"\\b", 12: b"\\f", 11: b"\\v"}
    return b"\t".join(b"".join(escapes.get(c, bytes([c])) for c in f) for f in fields) + b"\n"


def decode(node: Node, way: str, texts: list[bytes], left: bytes, right: bytes) -> Decoded:
    columns = [Column("l", TEXT), Column("x", node), Column("r", TEXT)]
    data = b"".join(copy_line(left, text, right) for text in texts)
    decoded, used = TupleDecoder(columns, way=way, want=("after",)).copied(data)
    assert used == len(data)
    return decoded


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_texts_become_strings_in_all_ways(kind: str) -> None:
    node, sound = KINDS[kind]
    dice = random.Random(kind)
    texts = [*sound, b"", *(damaged(sound, dice) for _ in range(600))]
    made = [decode(node, way, texts, b"l", b"r") for way in WAYS]
    rows = [d.after.to_pylist() for d in made]
    for text, *shown in zip(texts, *rows, strict=True):
        assert shown[0] == shown[1] == shown[2], text
        value = json.loads(shown[0])["x"]
        # Whatever is no value of its type is a string of all of its text, and nothing else.
        if made[0].odd and isinstance(value, str) and kind in ("json", "hstore", "int[]", "nest"):
            assert value.encode() == text or kind == "json"
    assert made[0].odd == made[1].odd == made[2].odd == (() if kind == "text" else ("x",))
    assert decode(node, "compiled", sound, b"l", b"r").odd == ()


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_beside_a_value_does_not_change_it(kind: str) -> None:
    node, sound = KINDS[kind]
    dice = random.Random(kind + "beside")
    texts = [damaged(sound, dice) for _ in range(3000)]
    seen = set()
    for left, right in ((b"", b""), (b'"{(', b'")}]},'), (b"0" * 40, b"0" * 40), (b"NULL", b" BC")):
        rows = decode(node, "compiled", texts, left, right).after.to_pylist()
        head, tail = json.dumps(left.decode()), json.dumps(right.decode())
        cut = [row[len(f'{{"l":{head},') : -len(f',"r":{tail}}}')] for row in rows]
        seen.add("\n".join(cut))
    assert len(seen) == 1


@pytest.mark.parametrize("way", WAYS)
def test_long_and_deep_values_grow_what_is_written_to(way: str) -> None:
    depth, count = 300, 20_000 if way != "plain" else 2_000
    texts = [
        b'"' * count,
        b"\x01" * count,
        b"a" * (3 * count),
        b"[" * depth + b"]" * depth,
    ]
    columns = [Column("x", TEXT), Column("y", Node(ops.ARRAY, TEXT))]
    quoted = [b'{"' + t.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'",NULL}' for t in texts]
    data = b"".join(copy_line(t, q) for t, q in zip(texts, quoted, strict=True)) * 3
    decoded, _ = TupleDecoder(columns, way=way).copied(data)
    values = [json.loads(row) for row in decoded.after.to_pylist()]
    assert values == [{"x": t.decode(), "y": [t.decode(), None]} for t in texts] * 3


@pytest.mark.parametrize("way", WAYS)
def test_a_composite_with_long_names_has_room_for_them(way: str) -> None:
    name = "n" * 63
    node = Node(ops.COMPOSITE, attributes=tuple((f"{name}{i}", INT) for i in range(100)))
    many = Node(ops.ARRAY, node)
    row = b"(" + b"," * 99 + b")"
    data = copy_line(b'{"' + b'","'.join([row] * 9) + b'"}')
    decoded, _ = TupleDecoder([Column("x", many)], way=way).copied(data)
    value = json.loads(decoded.after[0].as_py())["x"]
    assert decoded.odd == () and value == [{f"{name}{i}": None for i in range(100)}] * 9


def test_lines_are_read_as_copy_writes_them_whatever_the_cut() -> None:
    node = [Column("a", TEXT), Column("b", TEXT)]
    values = [("\\N", "x\ty\nz\\"), ("", "\r\b\f\v"), ("plain", "日本")]
    data = b"".join(copy_line(a.encode(), b.encode()) for a, b in values) + b"\\N\t\\N\n"
    expected = [{"a": a, "b": b} for a, b in values] + [{"a": None, "b": None}]
    for way in WAYS:
        decoder = TupleDecoder(node, way=way, want=("after",))
        for cut in range(len(data) + 1):
            first, used = decoder.copied(data[:cut])
            second, _ = decoder.copied(data[used:])
            rows = first.after.to_pylist() + second.after.to_pylist()
            assert [json.loads(row) for row in rows] == expected


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"1\n", "another number of columns"),
        (b"1\t2\t3\n", "another number of columns"),
        (b"1\t2\n\n", "another number of columns"),
        (b"1\t2\\\n", "a backslash has nothing behind it"),
    ],
)
def test_lines_that_are_not_of_the_table_are_refused(data: bytes, why: str) -> None:
    errors = set()
    for way in WAYS:
        with pytest.raises(FrameError, match=why) as raised:
            TupleDecoder([Column("a", TEXT), Column("b", TEXT)], way=way).copied(data)
        errors.add(str(raised.value))
    assert len(errors) == 1
