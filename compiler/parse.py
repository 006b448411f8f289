"""Stage 1: YAML text -> located tree. Keeps line and column of everything, decides nothing.

Built from parser events, not from the library's own tree: that way nesting is bounded before it
reaches the stack, duplicate keys are seen, and words such as `on` or `1:30` stay the text they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from .diagnostics import Diagnostics, quote
from .span import Span

MAX_BYTES = 4 << 20
MAX_DEPTH = 48
MAX_NODES = 500_000  # after aliases are followed: a few lines of them can stand for billions


@dataclass(frozen=True, slots=True)
class Scalar:
    value: str | int | float | bool | None
    span: Span
    raw: str = ""  # as written, without quotes
    exact: bool = False  # one line and no escapes: column + n is where raw[n] stands
    default: bool = False  # not written by the user
    block: Span | None = None  # of a `|` block: where its first line begins; the rest lies below

    def place(self, line: int, col: int) -> Span | None:
        """Where a line and column of the text stand in the file; None when that cannot be told."""
        if self.block is not None:
            return Span(self.span.file, self.block.line + line - 1, self.block.col + col - 1)
        return self.span.right(col - 1) if self.exact and line == 1 else None


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Node, ...]
    span: Span
    default: bool = False


@dataclass(frozen=True, slots=True)
class Map:
    items: dict[str, Node]
    span: Span
    keys: dict[str, Span] = field(default_factory=dict)
    default: bool = False


Node = Scalar | Seq | Map

# A leading zero is an octal number to some and a decimal one to others: it stays text.
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_LONGEST_INT = 1000  # characters; Python refuses to print integers of more than 4300 digits
_WORDS: dict[str, bool | float | None] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF"), math.inf),
    "-.inf": -math.inf,
}
# What the YAML library would refuse; NEL (U+0085) is a line break to it.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff\ud800-\udfff]")


def parse(data: bytes, file: str, diagnostics: Diagnostics) -> Map | None:
    """The one document of a file, or None with the reasons in `diagnostics`."""
    start = Span(file, 1, 1)
    if len(data) > MAX_BYTES:
        diagnostics.error(
            "DFC101",
            start,
            f"the file has more than {MAX_BYTES:,} bytes",
            "is this the right file? One file describes one pipeline",
        )
        return None
    text = _decode(data, file, diagnostics)
    if text is None:
        return None
    before = len(diagnostics.found)
    try:
        root = _Builder(text, file, diagnostics).document()
    except yaml.MarkedYAMLError as error:
        _syntax_error(error, text, file, diagnostics)
        return None
    except _Stop:
        return None
    if isinstance(root, Scalar) and root.value is None:
        diagnostics.error(
            "DFC104",
            start,
            "the file holds no pipeline",
            "start from examples/quickstart.yaml, or see `dfc schema`",
        )
        return None
    if not isinstance(root, Map):
        diagnostics.error(
            "DFC105",
            root.span,
            f"a pipeline is a mapping, this is {describe(root)}",
            "the top level has `metadata:` and `spec:`",
        )
        return None
    return None if len(diagnostics.found) > before else root


def describe(node: Node) -> str:
    """What a node is, in the words of a diagnostic; scalars are quoted by the caller where safe."""
    match node:
        case Map():
            return "a mapping"
        case Seq():
            return "a list"
        case Scalar(value=None):
            return "empty"
        case Scalar(value=bool()):
            return "true or false"
        case Scalar(value=int() | float()):
            return "a number"
        case _:
            return "text"


class _Stop(Exception):
    """A diagnostic has been given and reading on makes no sense."""


class _Builder:
    def __init__(self, text: str, file: str, diagnostics: Diagnostics) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self.lines = text.splitlines()
        self.file = file
        self.diagnostics = diagnostics
        self.anchors: dict[str, Node | None] = {}  # None: still being built, so an alias is a loop
        self.extents: dict[int, tuple[int, int]] = {}  # of anchored nodes: how many, how deep
        self.nodes = 0
        self.deepest = 0

    def document(self) -> Node:
        root: Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self.diagnostics.error(
                        "DFC106",
                        self.span(event),
                        "a second document starts here",
                        "put each pipeline in a file of its own",
                    )
                    raise _Stop
                root = self.node(next(self.events), 0)
        return root if root is not None else Scalar(None, Span(self.file, 1, 1))

    def span(self, event: Any) -> Span:
        return Span(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def node(self, event: Any, depth: int) -> Node:
        span = self.span(event)
        self.descend(depth, span)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, span, depth)
        if event.anchor:
            self.anchors[event.anchor] = None
        before, deepest, self.deepest = self.nodes, self.deepest, depth
        self.count(1, span)
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            node = self.scalar(event, span)
        elif isinstance(event, yaml.SequenceStartEvent):
            self.tag(event, span, "tag:yaml.org,2002:seq")
            items = []
            while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
                items.append(self.node(inner, depth + 1))
            node = Seq(tuple(items), span)
        else:
            self.tag(event, span, "tag:yaml.org,2002:map")
            node = self.mapping(span, depth)
        if event.anchor:
            self.anchors[event.anchor] = node
            self.extents[id(node)] = (self.nodes - before, self.deepest - depth)
        self.deepest = max(self.deepest, deepest)
        return node

    def alias(self, event: Any, span: Span, depth: int) -> Node:
        if event.anchor not in self.anchors:
            self.diagnostics.error("DFC108", span, f"no anchor {quote('&' + event.anchor)} above")
            raise _Stop
        node = self.anchors[event.anchor]
        if node is None:
            self.diagnostics.error(
                "DFC109",
                span,
                f"{quote('*' + event.anchor)} stands inside its own anchor",
                "a value cannot hold itself; write the part out",
            )
            raise _Stop
        nodes, height = self.extents[id(node)]
        self.count(nodes, span)
        self.descend(depth + height, span)  # aliases of aliases go deeper than the text does
        return node

    def descend(self, depth: int, span: Span) -> None:
        self.deepest = max(self.deepest, depth)
        if depth > MAX_DEPTH:
            self.diagnostics.error(
                "DFC107",
                span,
                f"nested more than {MAX_DEPTH} levels deep",
                "no pipeline needs that",
            )
            raise _Stop

    def count(self, nodes: int, span: Span) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            self.diagnostics.error(
                "DFC110", span, f"more than {MAX_NODES:,} values once aliases are followed"
            )
            raise _Stop

    def mapping(self, span: Span, depth: int) -> Map:
        items: dict[str, Node] = {}
        keys: dict[str, Span] = {}
        merged: list[Node] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            at = self.span(event)
            if not isinstance(event, yaml.ScalarEvent):
                self.diagnostics.error("DFC111", at, "a key must be plain text")
                raise _Stop
            self.tag(event, at, "tag:yaml.org,2002:str")
            key = event.value
            value = self.node(next(self.events), depth + 1)
            if key in keys:
                self.diagnostics.error(
                    "DFC113",
                    at,
                    f"duplicate key {quote(key)}, first given at line {keys[key].line}",
                    "merge several with `<<: [*a, *b]`" if key == "<<" else "keep one of the two",
                )
                continue
            keys[key] = at
            if key == "<<" and not event.style:
                merged += value.items if isinstance(value, Seq) else [value]
                if not all(isinstance(m, Map) for m in merged):
                    self.diagnostics.error(
                        "DFC112", at, "`<<` merges mappings, and this is not one"
                    )
                    raise _Stop
            else:
                items[key] = value
        for other in merged:
            assert isinstance(other, Map)
            for key, value in other.items.items():
                if key not in items:
                    items[key], keys[key] = value, other.keys[key]
        return Map(items, span, keys)

    def scalar(self, event: Any, span: Span) -> Scalar:
        text: str = event.value
        one_line = event.start_mark.line == event.end_mark.line
        quotes = 1 if event.style in ("'", '"') else 0
        width = event.end_mark.column - event.start_mark.column
        exact = one_line and event.style not in ("|", ">") and width == len(text) + 2 * quotes
        at = span.right(quotes) if exact else span
        if event.tag not in (None, "!"):
            self.tag(event, span, "tag:yaml.org,2002:str")
            return Scalar(text, at, text, exact)
        if event.style == "|":
            return Scalar(text, at, text, block=self.block(event, text))
        if event.style or event.tag == "!":
            return Scalar(text, at, text, exact)
        return Scalar(_plain(text), at, text, exact)

    def block(self, event: Any, text: str) -> Span | None:
        """Where the text of a literal block begins: below its `|`, behind the indentation."""
        first = event.start_mark.line + 1
        for number, line in enumerate(text.split("\n")):
            if line.strip() and first + number < len(self.lines):
                written = self.lines[first + number]
                if written.endswith(line):
                    return Span(self.file, first + 1, len(written) - len(line) + 1)
                break
        return None

    def tag(self, event: Any, span: Span, allowed: str) -> None:
        if event.tag not in (None, "!", allowed):
            self.diagnostics.error(
                "DFC114",
                span,
                f"the tag {quote(event.tag)} is not part of the pipeline language",
                "leave the tag out",
            )
            raise _Stop


def _plain(text: str) -> str | int | float | bool | None:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        if len(text) > _LONGEST_INT:
            return text
        return int(text, 16) if text[:2] == "0x" else int(text)
    if _FLOAT.match(text):
        return float(text)
    return text


def _decode(data: bytes, file: str, diagnostics: Diagnostics) -> str | None:
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        good = data[: error.start].decode()
        diagnostics.error(
            "DFC102",
            _at(good, len(good), file),
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            "save the file as UTF-8",
        )
        return None
    if bad := _CONTROL.search(text):
        diagnostics.error(
            "DFC103",
            _at(text, bad.start(), file),
            f"the control character U+{ord(bad.group()):04X} cannot stand in YAML",
            'in a double-quoted value write it as an escape, such as "\\x07"',
        )
        return None
    return text


def _at(text: str, index: int, file: str) -> Span:
    line = text.count("\n", 0, index)
    return Span(file, line + 1, index - (text.rfind("\n", 0, index) + 1) + 1)


def _syntax_error(
    error: yaml.MarkedYAMLError, text: str, file: str, diagnostics: Diagnostics
) -> None:
    """The parser's complaint, at the place where the mistake was made rather than noticed."""
    problem, context = error.problem or "cannot be read", error.context or ""
    mark = error.problem_mark or error.context_mark
    help = ""
    if "quoted scalar" in context and error.context_mark:
        mark, problem, help = error.context_mark, "a quote is never closed", "close it"
    elif ("flow mapping" in context or "flow sequence" in context) and error.context_mark:
        mark = error.context_mark
        problem, help = "a bracket is never closed", "close it with `]` or `}`"
    line, col = (mark.line, mark.column) if mark else (0, 0)
    lines = text.split("\n")
    shown = lines[line] if line < len(lines) else ""
    indent = len(shown) - len(shown.lstrip())
    if "\t" in shown[:indent]:
        problem, help = "a tab in the indentation", "YAML is indented with spaces"
        col = shown.index("\t")
    elif "mapping values are not allowed" in problem:
        key = shown[:col].lstrip("- ")
        if ":" in key:
            problem, help = "a second `:` in one line", "a value that holds `: ` needs quotes"
        else:
            problem, col = "this line is indented differently from its neighbours", indent
            help = "keys of one mapping start in one column"
    elif "did not find expected key" in problem or "did not find expected '-'" in problem:
        problem, col = "this line is indented differently from its neighbours", indent
        help = "keys of one mapping, and entries of one list, start in one column"
    elif "could not find expected ':'" in problem:
        help = "write `key: value`"
    elif "found character" in problem and "start any token" in problem:
        help = "put the value in quotes"
    diagnostics.error("DFC100", Span(file, line + 1, col + 1), f"not YAML: {problem}", help)
