"""Stage 1: what is read from YAML and where it stands; broken files are told apart and cost little."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from dfc.compiler.diagnostics import Diagnostic, Diagnostics
from dfc.compiler.parse import MAX_BYTES, Map, Node, Scalar, Seq, parse


def read(text: str | bytes) -> Map:
    diagnostics = Diagnostics()
    root = parse(text.encode() if isinstance(text, str) else text, "p.yaml", diagnostics)
    assert root is not None, diagnostics.text()
    assert not diagnostics.found
    return root


def refused(text: str | bytes) -> Diagnostic:
    diagnostics = Diagnostics()
    root = parse(text.encode() if isinstance(text, str) else text, "p.yaml", diagnostics)
    assert root is None
    assert len(diagnostics.found) == 1, diagnostics.text()
    return diagnostics.found[0]


def at(node: Node | Diagnostic) -> tuple[int, int]:
    return node.span.line, node.span.col


def plain(node: Node) -> Any:
    match node:
        case Scalar():
            return node.value
        case Seq():
            return [plain(item) for item in node.items]
        case Map():
            return {key: plain(item) for key, item in node.items.items()}


# --- places ----------------------------------------------------------------------------------


def test_keys_and_values_know_their_line_and_column() -> None:
    root = read("a: 1\nbb:\n  - x\n  -   y\n")
    assert (root.keys["a"].line, root.keys["a"].col) == (1, 1)
    assert (root.keys["bb"].line, root.keys["bb"].col) == (2, 1)
    assert at(root.items["a"]) == (1, 4)
    items = root.items["bb"]
    assert isinstance(items, Seq)
    assert [at(i) for i in items.items] == [(3, 5), (4, 7)]


@pytest.mark.parametrize("quote", ['"', "'"])
def test_a_quoted_text_is_placed_at_its_first_character(quote: str) -> None:
    node = read(f"a: {quote}x ${{y}}{quote}\n").items["a"]
    assert isinstance(node, Scalar)
    assert node.exact
    assert at(node) == (1, 5)


@pytest.mark.parametrize(
    "text", ['"tab\\there"', "'it''s'", "|\n  two\n  lines", ">\n  folded", "plain\n  over two"]
)
def test_a_text_that_does_not_stand_as_it_is_read_has_no_inner_places(text: str) -> None:
    node = read(f"a: {text}\n").items["a"]
    assert isinstance(node, Scalar)
    assert not node.exact
    assert at(node) == (1, 4)


def test_columns_count_characters_not_bytes() -> None:
    root = read('{"ä😀": x, b: y}\n')
    assert at(root.items["b"]) == (1, 14)


def test_an_alias_is_placed_where_its_anchor_is() -> None:
    root = read("a: &x deep\nb: *x\n")
    assert plain(root) == {"a": "deep", "b": "deep"}
    assert root.items["b"] is root.items["a"]


def test_merge_keys_give_way_to_own_keys_and_to_earlier_ones() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n"
    merged = read(text).items["c"]
    assert isinstance(merged, Map)
    assert plain(merged) == {"x": 3, "y": 1, "z": 2}
    assert merged.keys["z"].line == 2, "a merged key is placed where it was written"


def test_a_quoted_merge_key_is_just_a_key() -> None:
    assert plain(read('"<<": text\n')) == {"<<": "text"}


# --- what a plain word means -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((w, w) for w in ("on", "off", "yes", "no", "Yes", "y", "n")),
        *((w, w) for w in ("1:30", "0o17", "017", "1_000", "1.2.3", "0b1", "2024-01-01", "=")),
        *((w, w) for w in (".", "e3", "1e", "+", "0x", "0xg", ".nan", "nUll", "tRue")),
        *((w, None) for w in ("", "~", "null", "Null", "NULL")),
        *((w, True) for w in ("true", "True", "TRUE")),
        *((w, False) for w in ("false", "False", "FALSE")),
        *(("0", 0), ("-0", 0), ("+5", 5), ("12", 12), ("-7", -7), ("0xfF", 255)),
        *((".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("-2.5E-1", -0.25), ("1E+2", 100.0)),
        *((".inf", float("inf")), ("-.inf", float("-inf"))),
    ],
)
def test_plain_words_have_the_type_they_look_like(word: str, value: object) -> None:
    read_value = plain(read(f"a: {word}\n"))["a"]
    assert read_value == value
    assert type(read_value) is type(value)


@pytest.mark.parametrize("word", ["1", "true", "null", "~", "1e3", ""])
@pytest.mark.parametrize("form", ['"{}"', "'{}'", "!!str {}", '! "{}"', "|-\n  {}"])
def test_quoted_words_are_text(word: str, form: str) -> None:
    assert plain(read(f"a: {form.format(word)}\n"))["a"] == word


@pytest.mark.parametrize("digits", ["9" * 5000, "0x" + "f" * 5000])
def test_a_number_too_long_to_print_stays_text(digits: str) -> None:
    """Python refuses to write integers of more than 4300 digits."""
    assert plain(read(f"a: {digits}\n"))["a"] == digits


def test_keys_are_always_text() -> None:
    assert list(read("1: a\ntrue: b\n~: c\non: d\n").items) == ["1", "true", "~", "on"]


# --- files as people have them ---------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfa: x\nb: [1]\n",
        b"a: x\r\nb: [1]\r\n",
        b"a: x\rb: [1]\r",
        b"a: x\nb: [1]",
        b"---\na: x\nb: [1]\n...\n",
        b"# comment\n\n{a: x, b: [1]}\n",
        b"%YAML 1.2\n---\na: x\nb: [1]\n",
    ],
    ids=["bom", "crlf", "cr", "no-last-newline", "markers", "flow", "directive"],
)
def test_the_same_pipeline_in_other_clothes(data: bytes) -> None:
    assert plain(read(data)) == {"a": "x", "b": [1]}


def test_crlf_leaves_no_carriage_return_in_a_block() -> None:
    assert plain(read(b"a: |\r\n  one\r\n  two\r\n")) == {"a": "one\ntwo\n"}


def test_a_bom_does_not_move_the_first_column() -> None:
    assert at(read(b"\xef\xbb\xbfa: x\n").items["a"]) == (1, 4)
    assert at(refused(b"\xef\xbb\xbfa: \xff\n")) == (1, 4)


@pytest.mark.parametrize(
    ("data", "code", "place"),
    [
        (b"", "DFC104", (1, 1)),
        (b"\n\n", "DFC104", (1, 1)),
        (b"\xef\xbb\xbf", "DFC104", (1, 1)),
        (b"# only\n# comments\n", "DFC104", (1, 1)),
        (b"---\n...\n", "DFC104", (1, 1)),
        (b"~\n", "DFC104", (1, 1)),
        (b"just text\n", "DFC105", (1, 1)),
        (b"- a\n", "DFC105", (1, 1)),
        (b"42\n", "DFC105", (1, 1)),
        (b"a: 1\n---\nb: 1\n", "DFC106", (2, 1)),
        (b"---\n---\n", "DFC106", (2, 1)),
    ],
)
def test_a_file_without_one_pipeline(data: bytes, code: str, place: tuple[int, int]) -> None:
    found = refused(data)
    assert (found.code, at(found)) == (code, place)


@pytest.mark.parametrize(
    ("data", "code", "place"),
    [
        (b"a: gr\xfcn\n", "DFC102", (1, 6)),
        (b"a: x\nb: \xc3\n", "DFC102", (2, 4)),
        (b"a: \xed\xa0\x80\n", "DFC102", (1, 4)),
        ("a: x\n".encode("utf-16"), "DFC102", (1, 1)),
        ("a: x\n".encode("utf-16-le"), "DFC103", (1, 2)),
        ("a: x\n".encode("utf-32"), "DFC102", (1, 1)),
        (b"a: x\x00y\n", "DFC103", (1, 5)),
        (b"a: \x1b[31mred\n", "DFC103", (1, 4)),
        (b"a: x\nb: \x7f\n", "DFC103", (2, 4)),
        ("a: \x80\n".encode(), "DFC103", (1, 4)),
        ("a: \x9f\n".encode(), "DFC103", (1, 4)),
        ("a: \uffff\n".encode(), "DFC103", (1, 4)),
    ],
)
def test_bytes_that_are_not_text(data: bytes, code: str, place: tuple[int, int]) -> None:
    found = refused(data)
    assert (found.code, at(found)) == (code, place)


def test_control_characters_come_in_as_escapes() -> None:
    assert plain(read(r'a: "\0\a\e\x7f\x85\u2028\uFEFF"' + "\n"))["a"] == (
        "\0\a\x1b\x7f\x85\u2028\ufeff"
    )


@pytest.mark.parametrize("between", ["\x85", "\u2028", "\u2029"])
def test_line_breaks_of_old_yaml_are_no_trap(between: str) -> None:
    diagnostics = Diagnostics()
    parse(f"a: x{between}b: {{\n".encode(), "p.yaml", diagnostics)
    assert diagnostics.failed


# --- broken YAML -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 'x\nb: 1\n", (1, 4), "quote is never closed"),
        ('a: "x\nb: 1\n', (1, 4), "quote is never closed"),
        ('a: "x\\\n', (1, 4), "quote is never closed"),
        ("a: [1, 2\nb: 1\n", (1, 4), "bracket is never closed"),
        ("a: {b: 1\n", (1, 4), "bracket is never closed"),
        ("a: [1, {b: 2]\n", (1, 8), "bracket is never closed"),
        ("a:\n\tb: 1\n", (2, 1), "tab in the indentation"),
        ("a:\n  b: 1\n   c: 2\n", (3, 4), "indented differently"),
        ("a:\n  - x\n y: 1\n", (3, 2), "indented differently"),
        ("a: b: c\n", (1, 5), "a second `:`"),
        ("a: @x\n", (1, 4), "cannot start any token"),
        ("a: %x\n", (1, 4), "cannot start any token"),
        ("a: 1\nb\n", (3, 1), ""),
        ("a: ]\n", (1, 4), ""),
        ('a: "\\q"\n', (1, 5), ""),
        ('a: "\\ud800"\n', (1, 5), ""),
        ("a: &\n", (1, 4), ""),
        ("a: *\n", (1, 4), ""),
        ("a: !<x\n", (1, 4), ""),
        ("a: !x!y z\n", (1, 4), ""),
        ("%YAML 3.0\n---\na: 1\n", (1, 1), ""),
        ("%TAG\n---\na: 1\n", (1, 1), ""),
        ("a: |9x\n  t\n", (1, 4), ""),
    ],
)
def test_broken_yaml_is_reported_near_the_mistake(
    text: str, place: tuple[int, int], words: str
) -> None:
    found = refused(text)
    assert found.code == "DFC100"
    assert found.span.line == place[0]
    assert words in found.message
    if words:
        assert at(found) == place


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize("cut", range(0, 120, 3))
def test_a_file_cut_off_anywhere_is_read_or_refused(
    cut: int, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the library's C parser and without it, which words its errors otherwise."""
    whole = (
        "a: &x [1, {b: 'c'}]\nd:\n  - \"e\\u0041\"\n  - |\n    f\n  - !!str g\n  - *x\nh: {<<: {i: j}}\n"
        * 2
    )
    monkeypatch.setattr(yaml, "CSafeLoader", getattr(yaml, loader))
    diagnostics = Diagnostics()
    root = parse(whole[:cut].encode(), "p.yaml", diagnostics)
    assert (root is None) == diagnostics.failed


# --- keys, anchors, tags ---------------------------------------------------------------------


def test_duplicate_keys_are_all_reported_with_the_first_line() -> None:
    diagnostics = Diagnostics()
    assert parse(b"a: 1\nb:\n  c: 1\n  c: 2\na: 2\n", "p.yaml", diagnostics) is None
    assert [(d.code, at(d)) for d in diagnostics] == [("DFC113", (4, 3)), ("DFC113", (5, 1))]
    assert "line 3" in diagnostics.found[0].message


def test_a_key_given_by_a_merge_is_no_duplicate() -> None:
    assert plain(read("a: &a {x: 1}\nb: {<<: *a, x: 2}\n"))["b"] == {"x": 2}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: *nowhere\n", "DFC108"),
        ("a: &a [*a]\n", "DFC109"),
        ("a: &a {b: {c: *a}}\n", "DFC109"),
        ("&a a: &b {<<: *b}\n", "DFC109"),
        ("[a]: 1\n", "DFC111"),
        ("{a: b}: 1\n", "DFC111"),
        ("? - a\n: 1\n", "DFC111"),
        ("a: &a x\n*a : 1\n", "DFC111"),
        ("a: {<<: text}\n", "DFC112"),
        ("a: {<<: [{b: 1}, 2]}\n", "DFC112"),
        ("a: {<<: }\n", "DFC112"),
        ("a: !env X\n", "DFC114"),
        ("a: !!int 5\n", "DFC114"),
        ("a: !!binary aGk=\n", "DFC114"),
        ("a: !!set {b}\n", "DFC114"),
        ("a: !!python/object/apply:os.system [id]\n", "DFC114"),
        ("!!python/name:os.system x: 1\n", "DFC114"),
    ],
)
def test_yaml_that_is_no_part_of_the_language(text: str, code: str) -> None:
    assert refused(text).code == code


# --- large and hostile files: an answer, quickly ---------------------------------------------

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
LADDER = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 900))
MERGE_BOMB = (
    "a: &a {"
    + ", ".join(f"k{n}: 1" for n in range(1000))
    + "}\n"
    + "".join(f"b{n}: {{<<: [{', '.join(['*a'] * 100)}]}}\n" for n in range(100))
)


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"a: " + b"x" * 10_000_000, {"DFC101"}),
        (b"a: 1\n" * 2_000_000, {"DFC101"}),
        (b"[" * 100_000, {"DFC107"}),
        (b"{a: " * 100_000, {"DFC107"}),
        (b"- " * 100_000, {"DFC107"}),
        (b"? " * 100_000, {"DFC111"}),
        (b"\n".join(b" " * n + b"a:" for n in range(2_000)), {"DFC107"}),
        (b"a: " + b"[" * 100_000 + b"]" * 100_000, {"DFC107"}),
        (b"[" * 40 + b"]" * 100_000, {"DFC100"}),
        (BOMB.encode(), {"DFC110"}),
        (LADDER.encode(), {"DFC107"}),
        (MERGE_BOMB.encode(), {"DFC110"}),
        (b"[" + b"[]," * 600_000 + b"]", {"DFC110"}),
        (b"a: '" + b"x\n" * 1_000_000, {"DFC100"}),
        (b"a: !" + b"x" * 1_000_000 + b" 1", {"DFC114"}),
        (b"a: *" + b"x" * 1_000_000, {"DFC108"}),
        (b"\0" * 1_000_000, {"DFC103"}),
        (b"\xff" * 1_000_000, {"DFC102"}),
        (b"\t" * 1_000_000, {"DFC100"}),
        (b"a: " + b"9" * 1_000_000, set()),
        (b"a: " + b"x" * (MAX_BYTES - 4) + b"\n", set()),
    ],
    ids=lambda value: f"{bytes(value[:6])!r}" if isinstance(value, bytes) else "",
)
def test_large_and_hostile_files_are_answered_quickly(data: bytes, codes: set[str]) -> None:
    diagnostics = Diagnostics()
    started = time.process_time()
    parse(data, "p.yaml", diagnostics)
    text = diagnostics.text()
    assert time.process_time() - started < 10
    assert {d.code for d in diagnostics.found} == codes
    assert len(text) < 500
