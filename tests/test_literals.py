"""User text as Python source: a literal that evaluates back to itself, or a comment of one line."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize

import pytest
from dfc.compiler.emit.format import format_source
from dfc.compiler.emit.literals import py_block, py_comment, py_docstring, py_literal, py_name
from hypothesis import given, settings
from hypothesis import strategies as st

# Lone surrogates cannot come from a file, but from an argument or a file name they can.
PIECES = st.sampled_from(
    ["\n", "\r", '"', "'", '"""', "'''", "\\", "\\\n", "\t", " ", "\0", "#", "{{", "%}", "${A}"]
) | st.sampled_from(
    ["\x85", "\u2028", "\u202e", "\ufeff", "\x0c", "\\N{DEGREE SIGN}", "\\u0041", "\ud800", "😀"]
)
TEXT = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3)
    | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
fast = settings(max_examples=500, deadline=None)


@fast
@given(TEXT)
def test_any_text_evaluates_back_to_itself(text: str) -> None:
    for form in (py_literal, py_block):
        source = form(text)
        assert ast.literal_eval(source) == text
        assert all(c.isprintable() or c == "\n" for c in source)


@fast
@given(VALUES)
def test_any_value_evaluates_back_to_itself(value: object) -> None:
    source = py_literal(value)
    namespace = {"float": float, "__builtins__": {}}
    assert eval(source, namespace) == value
    assert repr(eval(source, namespace)) == repr(value), "1 and 1.0 and True stay apart"


@settings(max_examples=120, deadline=None)
@given(TEXT)
def test_the_formatter_keeps_what_a_literal_says(text: str) -> None:
    source = format_source(f"f(x={py_literal(text)}, y=({py_literal(text)}, 1))\n")
    constants = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    assert constants.count(text) == 2


@fast
@given(TEXT)
def test_a_comment_stays_one_line(text: str) -> None:
    comment = py_comment(text)
    assert comment.isprintable()
    source = f"# {comment}\nx = 1\n"
    source.encode()
    kinds = [t.type for t in tokenize.generate_tokens(io.StringIO(source).readline)]
    assert kinds.count(tokenize.COMMENT) == 1
    assert ast.dump(ast.parse(source)) == ast.dump(ast.parse("x = 1"))


@fast
@given(TEXT)
def test_a_docstring_ends_where_it_should(text: str) -> None:
    module = ast.parse(f'"""Pipeline `{py_docstring(text)}`."""\nx = 1\n')
    assert len(module.body) == 2
    assert (ast.get_docstring(module, clean=False) or "").startswith("Pipeline `")


@fast
@given(TEXT)
def test_a_name_is_an_identifier(text: str) -> None:
    name = "to_" + py_name(text)
    assert name.isidentifier() and name.isascii() and not keyword.iskeyword(name)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("", '""'),
        ("plain", '"plain"'),
        ("it's", '"it\'s"'),
        ('say "x"', "'say \"x\"'"),
        ("a\n", '"a\\n"'),
        ("\\", '"\\\\"'),
        ("\t\0\u2028", '"\\t\\x00\\u2028"'),
        ("grün 😀", '"grün 😀"'),
    ],
)
def test_literals_read_well(text: str, source: str) -> None:
    assert py_literal(text) == source


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1e300, 0.1, -0.0])
def test_floats_are_exact(value: float) -> None:
    assert repr(eval(py_literal(value))) == repr(value)
