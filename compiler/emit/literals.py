"""User text as Python source: the only two ways in are a literal and a one-line comment.

Whatever a spec holds (newlines, quotes, braces, control characters) stays data: a newline that
reaches a comment as it is would be code.
"""

from __future__ import annotations

import ast
import re

from ..diagnostics import printable


def py_literal(value: object) -> str:
    """Python source that evaluates to `value`: None, bool, int, float, str, tuple or dict of them."""
    match value:
        case str():
            return _line(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        case tuple():
            inner = ", ".join(py_literal(item) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case list():
            return f"[{', '.join(py_literal(item) for item in value)}]"
        case dict():
            inner = ", ".join(f"{py_literal(k)}: {py_literal(v)}" for k, v in value.items())
            return f"{{{inner}}}"
        case _:
            return repr(value)


def py_comment(text: str) -> str:
    """Text for a comment: one line, printable characters only."""
    return printable(text)


def py_docstring(text: str) -> str:
    """Text for inside a triple-quoted docstring."""
    return py_comment(text).replace("\\", "\\\\").replace('"', "'")


def py_name(text: str) -> str:
    """An identifier that reads like the text."""
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in text)
    return name if name and not name[0].isdigit() else f"_{name}"


def _line(text: str) -> str:
    if '"' in text and "'" not in text:
        return f"'{_escape(text)}'"
    return '"' + _escape(text).replace('"', '\\"') + '"'


def py_block(text: str) -> str:
    """A script reads as it was written: triple quotes, one source line for each line of text."""
    if "\n" not in text.rstrip("\n"):
        return _line(text)
    body = "\n".join(_escape(line) for line in text.split("\n"))
    # Quotes that would end the literal: three in a row, and those before its end.
    body = re.sub(r'"{3,}|"+\Z', lambda quotes: '\\"' * len(quotes[0]), body)
    literal = f'"""\\\n{body}"""'
    # If anything at all got lost, the plain form is always right.
    return literal if ast.literal_eval(literal) == text else _line(text)


def _escape(text: str) -> str:
    out = []
    for c in text:
        if c == "\\":
            out.append("\\\\")
        elif c == "\t":
            out.append("\\t")
        elif c.isprintable():
            out.append(c)
        else:
            out.append(c.encode("unicode_escape").decode())
    return "".join(out)
