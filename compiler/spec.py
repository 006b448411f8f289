"""The checked spec: what the user wrote with the schema's defaults beside it, typed on access.

validate builds it, resolve reads it. Reading a field with the wrong type is a fault of dfc, not of
the user: the schema has been checked by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .env import Written
from .parse import Map, Node, Scalar, Seq
from .plan import EnvRef, Field, Secret, Text
from .span import Span


@dataclass(frozen=True, slots=True)
class Items:
    values: tuple[Checked, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Section:
    """One mapping of the spec."""

    values: dict[str, Checked]
    span: Span
    keys: dict[str, Span] = field(default_factory=dict)  # only what the user wrote
    strange: bool = False  # holds keys that nobody knows, which may have meant anything

    def at(self, key: str) -> Span:
        """Where a key stands, or the mapping itself when it was left to its default."""
        return self.keys.get(key, self.span)

    def given(self, key: str) -> bool:
        return key in self.keys

    def written(self, key: str) -> Written:
        value = self.values[key]
        assert isinstance(value, Written), key
        return value

    def opt_written(self, key: str) -> Written | None:
        value = self.values[key]
        return None if isinstance(value, Scalar) and value.value is None else self.written(key)

    def text(self, key: str) -> Text:
        return as_text(self.written(key))

    def opt_text(self, key: str) -> Text | None:
        written = self.opt_written(key)
        return None if written is None else as_text(written)

    def secret(self, key: str) -> Secret | None:
        match self.opt_written(key):
            case None:
                return None
            case Written(parts=(EnvRef() as reference,)):
                return reference
            case literal:
                return as_text(literal)

    def string(self, key: str) -> str:
        value = self.values[key]
        if isinstance(value, Scalar):
            assert isinstance(value.value, str), key
            return value.value
        text = self.written(key).plain
        return text if text is not None else ""

    def opt_string(self, key: str) -> str | None:
        value = self.values[key]
        return None if isinstance(value, Scalar) and value.value is None else self.string(key)

    def place(self, key: str, line: int, col: int) -> Span | None:
        """Where a line and column of a text stand; None when only the text's own place is known."""
        value = self.values[key]
        return value.place(line, col) if isinstance(value, Scalar) else None

    def integer(self, key: str) -> int:
        value = self.opt_integer(key)
        assert value is not None, key
        return value

    def opt_integer(self, key: str) -> int | None:
        value = self.values[key]
        assert isinstance(value, Scalar), key
        assert value.value is None or isinstance(value.value, int), key
        return value.value

    def flag(self, key: str) -> bool:
        value = self.values[key]
        assert isinstance(value, Scalar) and isinstance(value.value, bool), key
        return value.value

    def strs(self, key: str) -> tuple[str, ...]:
        return tuple(text for text, _ in self.placed(key))

    def placed(self, key: str) -> tuple[tuple[str, Span], ...]:
        """A list of texts, each with the place where it stands."""
        items = self.values[key]
        assert isinstance(items, Items), key
        result = []
        for item in items.values:
            assert isinstance(item, Scalar | Written), key
            text = item.plain if isinstance(item, Written) else item.value
            result.append((str(text), item.span))
        return tuple(result)

    def json(self, key: str) -> object:
        """A value that the schema leaves open."""
        value = self.values[key]
        assert isinstance(value, (Scalar, Seq, Map)), key
        return as_json(value)

    def section(self, key: str) -> Section:
        value = self.values[key]
        assert isinstance(value, Section), key
        return value

    def opt_section(self, key: str) -> Section | None:
        value = self.values[key]
        return value if isinstance(value, Section) else None

    def sections(self, key: str) -> tuple[Section, ...]:
        items = self.values[key]
        assert isinstance(items, Items), key
        return tuple(v for v in items.values if isinstance(v, Section))

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """A map of plain texts, in the order written."""
        section = self.section(key)
        return tuple((k, section.string(k)) for k in section.values)


Checked = Scalar | Written | Items | Section | Map | Seq  # the last two: any JSON


def as_text(written: Written) -> Text:
    return Text(tuple(p for p in written.parts if not isinstance(p, Field)))


def as_json(node: Node) -> object:
    match node:
        case Scalar():
            return node.value
        case Seq():
            return [as_json(item) for item in node.items]
        case Map():
            return {key: as_json(item) for key, item in node.items.items()}
