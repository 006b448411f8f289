"""What the kernels of PostgreSQL rows are told about columns: a tree of types, and it as numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# How the text of a value becomes JSON.
TEXT = 0  # a string
BOOL = 1  # t, f
INTEGER = 2  # a number
WIDE = 3  # a number, or a string beyond 2^53
FLOAT = 4  # a number, or "NaN", "Infinity", "-Infinity"
BYTES = 5  # {"_base64":...} of \x and hex digits
JSON = 6  # itself, without space between its parts
DATE = 7
TIME = 8
TIMETZ = 9
TIMESTAMP = 10
TIMESTAMPTZ = 11  # in UTC
HSTORE = 12  # an object of strings and nulls
ARRAY = 13  # a list, of lists where it has several dimensions
COMPOSITE = 14  # an object


@dataclass(frozen=True, slots=True)
class Node:
    """A type: what is done with its text, and with that of its parts."""

    op: int = TEXT
    element: Node | None = None  # of an array
    delimiter: str = ","
    precision: int = 0  # digits that the fraction of a time has at least
    attributes: tuple[tuple[str, Node], ...] = ()  # of a composite, by name

    @property
    def depth(self) -> int:
        """How many texts stand inside each other: 0 for a value without parts."""
        parts = [node for _, node in self.attributes]
        if self.element is not None:
            parts.append(self.element)
        if self.op not in (ARRAY, COMPOSITE):
            return 0
        return 1 + max((part.depth for part in parts), default=0)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    node: Node
    key: bool = False  # part of the replica identity, and so in an old row that has the key alone


class Program:
    """The columns of one table as arrays, for kernels that know nothing of Python objects.

    `nodes` has a row (op, element, delimiter, first entry, number of entries, precision) for each type,
    `entries` a row (node, start and end of its label in `labels`) for each column, then for each
    column of the primary key, then for each attribute of a composite. A label is `,"name":`; the
    comma gives way to a brace where there is nothing before it.
    """

    def __init__(self, columns: Sequence[Column], key: Sequence[int], wide: bool) -> None:
        self._wide = wide
        self._nodes: list[list[int]] = []
        self._labels = bytearray()
        self._known: dict[Node, int] = {}
        own = [(column.name, column.node) for column in columns]
        count = len(own) + len(key)
        self._entries: list[list[int]] = [[0, 0, 0] for _ in range(count)]
        for place, (name, node) in enumerate([*own, *(own[i] for i in key)]):
            self._entries[place] = self._entry(name, node)
        self.nodes = np.array(self._nodes, np.int64).reshape(-1, 6)
        self.entries = np.array(self._entries, np.int64).reshape(-1, 3)
        self.labels = np.frombuffer(bytes(self._labels) or b"\0", np.uint8)
        self.depth = max((column.node.depth for column in columns), default=0)
        self.longest_label = int((self.entries[:, 2] - self.entries[:, 1]).max(initial=0))

    def _entry(self, name: str, node: Node) -> list[int]:
        start = len(self._labels)
        self._labels += b"," + json.dumps(name, ensure_ascii=False).encode() + b":"
        end = len(self._labels)
        return [self._node(node), start, end]

    def _node(self, node: Node) -> int:
        if node in self._known:
            return self._known[node]
        index = self._known[node] = len(self._nodes)
        op = WIDE if node.op == INTEGER and self._wide else node.op
        self._nodes.append([op, 0, ord(node.delimiter), 0, 0, node.precision])
        if node.element is not None:
            self._nodes[index][1] = self._node(node.element)
        if node.attributes:
            first = len(self._entries)
            self._nodes[index][3:5] = [first, len(node.attributes)]
            self._entries += [[0, 0, 0] for _ in node.attributes]
            for place, (name, part) in enumerate(node.attributes):
                self._entries[first + place] = self._entry(name, part)
        return index
