"""Messages: what a sink gets, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from .columns import Part, Text, as_text
from .errors import Rejected, RoutingError
from .events import Events


class Messages:
    """Value, destination, key and headers; each one text for all, a column, or None.

    `headers` are JSON objects of strings as text. A null destination is an error of its event; a
    sink that has no destinations, such as the console, leaves `to` empty.
    """

    __slots__ = ("headers", "key", "to", "value")

    def __init__(
        self, *, value: Part, to: Part = "", key: Part = None, headers: Part = None
    ) -> None:
        self.to: Text = as_text(to)
        self.key: Text = as_text(key)
        self.value: Text = as_text(value)
        self.headers: Text = as_text(headers)

    def slice(self, start: int, stop: int) -> Messages:
        def part(column: Text) -> Text:
            return column.slice(start, stop - start) if isinstance(column, pa.Array) else column

        return Messages(
            value=part(self.value),
            to=part(self.to),
            key=part(self.key),
            headers=part(self.headers),
        )

    def where(self, mask: pa.Array) -> Messages:
        """The messages for which the mask holds."""

        def part(column: Text) -> Text:
            return column.filter(mask) if isinstance(column, pa.Array) else column

        return Messages(
            value=part(self.value),
            to=part(self.to),
            key=part(self.key),
            headers=part(self.headers),
        )

    def column(self, name: str, rows: int) -> pa.Array:
        """One of the four as a column, also when it is the same for all."""
        text: Text = getattr(self, name)
        return text if isinstance(text, pa.Array) else pa.repeat(pa.scalar(text, pa.string()), rows)

    def rows(self, count: int) -> Iterator[tuple[str, str | None, str | None, str | None]]:
        """(to, key, value, headers) of each message, for sinks whose client takes one at a time."""
        names = ("to", "key", "value", "headers")
        columns = []
        for name in names:
            text = getattr(self, name)
            columns.append(text.to_pylist() if isinstance(text, pa.Array) else [text] * count)
        return zip(*columns, strict=True)

    def unrouted(self, count: int) -> int:
        """Index of the first message without a destination; `count` when all have one."""
        if self.to is None:
            return 0
        if isinstance(self.to, str) or self.to.null_count == 0:
            return count
        return int(pc.index(pc.is_null(self.to), True).as_py())


def check_destinations(messages: Messages, count: int, why: Callable[[str], str | None]) -> None:
    """Raises Rejected for all rows whose destination will not do, as `why` says."""
    to = messages.to
    names = pc.unique(to).to_pylist() if isinstance(to, pa.Array) else [to]
    bad = {
        name: said
        for name in names
        if (said := "it has no destination" if name is None else why(name)) is not None
    }
    if bad:
        rows = enumerate(messages.column("to", count).to_pylist())
        raise Rejected({row: bad[name] for row, name in rows if name in bad})


def identity(events: Events, row: int) -> str:
    """What an event is called in an error."""
    name = "event_id" if events.has("event_id") else "position"
    return str(events.column(name)[row].as_py())


def routing_error(events: Events, row: int, sink: str) -> RoutingError:
    """The error for an event whose destination has a missing or null part."""
    return RoutingError(
        f"sink `{sink}`: no destination for event {identity(events, row)}: "
        "a field of its destination template is missing or null"
    )
