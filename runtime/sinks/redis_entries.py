"""Entries of Redis streams: the XADD commands of many events, made as one text by Arrow kernels."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Text, idempotency_key, join
from ..errors import Rejected
from ..events import Events
from ..messages import Messages

# What a server takes as one argument (its proto-max-bulk-len), unless it is told otherwise.
LARGEST = 512 * 1024 * 1024
_AT_ONCE = 1 << 30  # bytes; a text column of Arrow ends at 2 GiB
_AROUND = 256  # names of fields and lengths, in each command
# Bytes from which on there is something to say; an object without members has two.
_LEAST = {"df-key": 1, "df-headers": 3}

Parts = list[str | pa.Array]


def bulk(text: str) -> str:
    """One argument of a command."""
    return f"${len(text.encode())}\r\n{text}\r\n"


def command(*arguments: str) -> bytes:
    return f"*{len(arguments)}\r\n{''.join(map(bulk, arguments))}".encode()


def entries(messages: Messages, events: Events, maxlen: int | None) -> Iterator[memoryview]:
    """An XADD for each message, in order."""
    count = len(events)
    columns: dict[str, Text] = {
        "event_id": pc.fill_null(events.event_id, ""),
        "idempotency_key": idempotency_key(events),
        "df-event": pc.fill_null(messages.column("value", count), "null"),
        "df-key": messages.key,
        "df-headers": messages.headers,
    }
    size = np.zeros(count, np.int64)
    for text in (messages.to, *columns.values()):
        size += _lengths(text)
    if size.max() > LARGEST:
        rows = np.flatnonzero(size > LARGEST).tolist()
        raise Rejected({row: f"{size[row]} bytes are too much for Redis" for row in rows})
    ends = np.cumsum(size + _AROUND)
    start = 0
    while start < count:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _AT_ONCE, "right")))
        part = {name: _slice(text, start, stop) for name, text in columns.items()}
        yield _bytes(_commands(_slice(messages.to, start, stop), part, maxlen), stop - start)
        start = stop


def _commands(to: Text, columns: dict[str, Text], maxlen: int | None) -> Text:
    trimming = "" if maxlen is None else bulk("MAXLEN") + bulk("~") + bulk(str(maxlen))
    parts: Parts = [bulk("XADD"), *_argument(to), trimming + bulk("*")]
    words = 3 if maxlen is None else 6
    more: list[pa.Array] = []  # words that only some of the commands have
    for name, text in columns.items():
        given = _given(name, text)
        if given is True:
            parts += [bulk(name), *_argument(text)]
            words += 2
        elif given is not False:
            parts.append(pc.if_else(given, join(bulk(name), *_argument(text), missing=""), ""))
            more.append(pc.if_else(given, 2, 0))
    if not more:
        return join(f"*{words}\r\n", *parts)
    number = functools.reduce(pc.add, more, pa.scalar(words))
    return join("*", pc.cast(number, pa.string()), "\r\n", *parts)


def _given(name: str, text: Text) -> bool | pa.Array:
    """Which entries have this field: True for all, False for none."""
    least = _LEAST.get(name, 0)
    if text is None or isinstance(text, str):
        return text is not None and len(text.encode()) >= least
    if least == 0:
        return True
    given = pc.fill_null(pc.greater_equal(pc.binary_length(text), least), False)
    some = int(given.true_count)
    return some > 0 if some in (0, len(given)) else given


def _argument(text: Text) -> Parts:
    if text is None or isinstance(text, str):
        return [bulk(text or "")]
    return ["$", pc.cast(pc.binary_length(text), pa.string()), "\r\n", text, "\r\n"]


def _lengths(text: Text) -> np.ndarray | int:
    if text is None or isinstance(text, str):
        return len((text or "").encode())
    return pc.fill_null(pc.cast(pc.binary_length(text), pa.int64()), 0).to_numpy(
        zero_copy_only=False
    )


def _slice(text: Text, start: int, stop: int) -> Text:
    return text.slice(start, stop - start) if isinstance(text, pa.Array) else text


def _bytes(commands: Text, count: int) -> memoryview:
    if not isinstance(commands, pa.Array):
        return memoryview(str(commands).encode() * count)
    _, offsets, data = commands.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return memoryview(data)[ends[commands.offset] : ends[commands.offset + len(commands)]]
