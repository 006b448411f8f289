"""Console sink: prints each message on the driver's standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ..events import Events
from ..messages import Messages
from .base import Lane, Sink, SinkFilter


class ConsoleSink(Sink):
    """Lines of destination, key and value; `pretty` spreads the value over several lines."""

    kind: ClassVar[str] = "console"

    def __init__(
        self,
        id: str,
        messages: Callable[[Events], Messages],
        *,
        required: bool = True,
        filter: SinkFilter | None = None,
        pretty: bool = False,
    ) -> None:
        super().__init__(id, messages, required=required, filter=filter)
        self.pretty = pretty
        self._unit: list[str] = []
        self._ready: list[str] = []

    def open(self, lane: Lane) -> str:
        self._unit, self._ready = [], []
        return ""

    def write(self, messages: Messages, events: Events) -> None:
        count = len(events)
        value = pc.fill_null(messages.column("value", count), "null")
        if self.pretty:
            value = pa.array([_spread(text) for text in value.to_pylist()], pa.string())
        parts = [
            pc.fill_null(messages.column(name, count), "")
            for name in ("to", "key")
            if getattr(messages, name) not in (None, "")
        ]
        lines = pc.binary_join_element_wise(*parts, value, "  ") if parts else value
        self._unit += lines.to_pylist()

    def commit(self, position: str) -> None:
        self._ready += self._unit
        self._unit = []

    def abort(self) -> None:
        self._unit = []

    def output(self) -> str | None:
        lines, self._ready = self._ready, []
        return "\n".join(lines) if lines else None


def _spread(text: str) -> str:
    # Numbers stay as they are written: a float of Python's would lose digits.
    value = json.loads(text, parse_float=_Number, parse_int=_Number)
    return _indented(value, "")


class _Number(str):
    """Digits that go out as they came in."""


def _indented(value: object, margin: str) -> str:
    inner = margin + "  "
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict) and value:
        members = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_indented(item, inner)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(members) + f"\n{margin}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(inner + _indented(v, inner) for v in value) + f"\n{margin}]"
    return json.dumps(value, ensure_ascii=False)


class DryRunSink(Sink):
    """Stands in for a sink under --dry-run: reports what it would get, sends nothing."""

    kind: ClassVar[str] = "dry-run"

    def __init__(self, instead_of: Sink) -> None:
        super().__init__(
            instead_of.id,
            instead_of.messages,
            required=instead_of.required,
            filter=instead_of.filter,
        )
        self._unit: list[str] = []
        self._ready: list[str] = []

    def open(self, lane: Lane) -> str:
        self._unit, self._ready = [], []
        return ""

    def write(self, messages: Messages, events: Events) -> None:
        head = f'{{"sink":{json.dumps(self.id)}'
        for to, key, value, headers in messages.rows(len(events)):
            line = f'{head},"to":{json.dumps(to, ensure_ascii=False)}'
            line += f',"key":{json.dumps(key, ensure_ascii=False)}'
            self._unit.append(f'{line},"headers":{headers or "null"},"value":{value or "null"}}}')

    def commit(self, position: str) -> None:
        self._ready += self._unit
        self._unit = []

    def abort(self) -> None:
        self._unit = []

    def output(self) -> str | None:
        lines, self._ready = self._ready, []
        return "\n".join(lines) if lines else None
