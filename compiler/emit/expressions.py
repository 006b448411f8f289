"""Templates as column expressions: `cdc.${source.table}` -> `join("cdc.", e.source.table)`."""

from __future__ import annotations

from collections.abc import Callable

from ..plan import EnvRef, Field, Literal, Text, spelled
from .literals import py_literal

Part = Literal | EnvRef | Field

# These have a column of their own; all other fields of `source` are read from its JSON text.
_SOURCE_COLUMNS = ("db", "schema", "table")


class Imports:
    """Which runtime names the job uses, by module."""

    def __init__(self) -> None:
        self.used: dict[str, set[str]] = {}

    def use(self, module: str, name: str) -> None:
        self.used.setdefault(module, set()).add(name)

    def lines(self) -> list[tuple[str, str]]:
        def order(name: str) -> tuple[int, str]:  # as isort has it: CONSTANTS, Classes, functions
            return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

        return [
            (module, ", ".join(sorted(names, key=order)))
            for module, names in sorted(self.used.items())
        ]


def event_column(path: tuple[str, ...]) -> str:
    root, rest = path[0], path[1:]
    if root == "transaction" and rest == ("id",):
        return "e.tx_id"
    if root == "source" and rest and rest[0] in _SOURCE_COLUMNS:
        return f"e.source.{rest[0]}"
    if root in ("before", "after", "source", "transaction", "ddl"):
        return f"e.{root}[{', '.join(map(py_literal, rest))}]" if rest else f"e.{root}.text"
    return f"e.{root}"


def row_column(path: tuple[str, ...]) -> str:
    return f"row[{', '.join(map(py_literal, path))}]"


def join_parts(
    parts: tuple[Part, ...],
    column: Callable[[tuple[str, ...]], str],
    imports: Imports,
    missing: str | None = None,
) -> str:
    """A literal, a single column, or `join(...)`; `missing` is what an absent value becomes."""
    sources: list[str] = []
    for part in parts:
        match part:
            case Literal(text=text):
                sources.append(py_literal(text))
            case EnvRef(name=name, default=None):
                sources.append(f"env[{py_literal(name)}]")
            case EnvRef():
                sources.append(f"env.fill({py_literal(spelled(Text((part,))))})")
            case Field(path=path):
                sources.append(column(path))
    has_column = any(isinstance(p, Field) for p in parts)
    if len(sources) == 1 and (missing is None or not has_column):
        return sources[0]
    if not has_column and all(isinstance(p, Literal) for p in parts):
        return py_literal("".join(p.text for p in parts if isinstance(p, Literal)))
    imports.use("dfc_runtime.columns", "join")
    if missing is not None and has_column:
        sources.append(f"missing={py_literal(missing)}")
    return f"join({', '.join(sources)})"
