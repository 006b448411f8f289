"""Messages as frames of the NATS protocol, for whole columns at once."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Text, idempotency_key
from ..errors import Rejected
from ..events import Events
from ..messages import Messages

_LONGEST_SUBJECT = 1000  # bytes; the line of a frame has 4096 at most
_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f.*>]+(?:\.[^\s\x00-\x20\x7f.*>]+)*")
# Requests to the server itself: an event whose text becomes a subject must not give it orders.
_SERVERS_OWN = ("$JS.", "$SYS.", "$SRV.", "_INBOX.", "_R_.")
_HEADER_NAME = re.compile(r"[!-9;-~]+")
_NUMBERS: list[pa.Array] = [pa.nulls(0, pa.string())]


@dataclass(frozen=True)
class Rows:
    """The messages of one write, checked."""

    to: Any  # one subject for all, or a column
    id: pa.Array
    head: pa.Array  # lines of headers, without those that depend on the stream's state
    value: pa.Array
    sizes: np.ndarray  # of head and value, as the server counts them

    def __len__(self) -> int:
        return len(self.id)

    def where(self, mask: pa.Array) -> Rows:
        return Rows(
            self.to if isinstance(self.to, str) else self.to.filter(mask),
            self.id.filter(mask),
            self.head.filter(mask),
            self.value.filter(mask),
            self.sizes[mask.to_numpy(zero_copy_only=False)],
        )

    def slice(self, start: int, stop: int) -> Rows:
        length = stop - start
        return Rows(
            self.to if isinstance(self.to, str) else self.to.slice(start, length),
            self.id.slice(start, length),
            self.head.slice(start, length),
            self.value.slice(start, length),
            self.sizes[start:stop],
        )

    def subject(self, row: int) -> str:
        return self.to if isinstance(self.to, str) else str(self.to[row].as_py())

    def subjects(self) -> list[str]:
        """Each once, in the order of their first message."""
        return [self.to] if isinstance(self.to, str) else pc.unique(self.to).to_pylist()

    def after(self, sequence: int) -> pa.Array:
        """Headers that let the server take each message only right behind the one before it.

        The first must follow what the stream held, by number; the others their predecessor, by id,
        because the numbers of messages that are not stored yet are not known.
        """
        first = pa.array([f"Nats-Expected-Last-Sequence: {sequence}\r\n"], pa.string())
        before = self.id.slice(0, len(self) - 1)
        rest = pc.binary_join_element_wise("Nats-Expected-Last-Msg-Id: ", before, "\r\n", "")
        return pa.concat_arrays([first, rest])

    def frames(self, inbox: str, expect: Text = None) -> tuple[memoryview, np.ndarray]:
        """HPUB frames one after the other, and where each begins (and the last one ends).

        `expect` is one more line of headers, by which the server checks that a message fits in.
        """
        parts: list[Any] = ["NATS/1.0\r\n", self.head]
        if expect is not None:
            parts.append(expect)
        head = pc.binary_join_element_wise(*parts, "\r\n", "")
        head_size = pc.binary_length(head)
        total = pc.add(head_size, pc.binary_length(self.value))
        frames = pc.binary_join_element_wise(
            "HPUB ",
            self.to,
            f" {inbox}.",
            _numbers(len(self)),
            " ",
            pc.cast(head_size, pa.string()),
            " ",
            pc.cast(total, pa.string()),
            "\r\n",
            head,
            self.value,
            "\r\n",
            "",
        )
        _, offsets, data = frames.buffers()
        ends = np.frombuffer(offsets, np.int32)[frames.offset : frames.offset + len(frames) + 1]
        return memoryview(data)[ends[0] : ends[-1]], (ends - ends[0]).astype(np.int64)


def rows_of(messages: Messages, events: Events, owner: str, largest: int) -> Rows:
    """The messages as rows; raises Rejected for those that no server would take as they are."""
    count = len(events)
    refused: dict[int, str] = {}
    _check_subjects(messages.to, count, refused)
    parts: list[Any] = ["Nats-Msg-Id: "]
    identity = _identity(events, owner)
    _check_lines("event id", identity, refused)
    parts += [identity, "\r\ndf-position: ", events.position, "\r\n"]
    if messages.key is not None:
        key = messages.column("key", count)
        if key.null_count < count:
            _check_lines("key", key, refused)
            line = pc.binary_join_element_wise("df-key: ", key, "\r\n", "")
            # An empty key is a template without a value: there is no key, so there is no header.
            there = pc.fill_null(pc.greater(pc.binary_length(key), 0), False)
            parts.append(line if there.true_count == count else pc.if_else(there, line, ""))
    if messages.headers is not None:
        headers = messages.column("headers", count)
        if headers.null_count < count:
            parts.append(_header_lines(headers, refused))
    head = pc.binary_join_element_wise(*parts, "")
    value = pc.fill_null(messages.column("value", count), "null")
    sizes = pc.add(pc.binary_length(head), pc.binary_length(value)).to_numpy(zero_copy_only=False)
    sizes = sizes + len("NATS/1.0\r\n\r\n")
    for row in np.flatnonzero(sizes > largest).tolist():
        refused.setdefault(
            row, f"{sizes[row]} bytes with its headers, and the server takes {largest} at most"
        )
    if refused:
        raise Rejected(dict(sorted(refused.items())))
    return Rows(messages.to, identity, head, value, sizes)


def _identity(events: Events, owner: str) -> pa.Array:
    """`owner` and the idempotency key: the same for the same event, different for all others."""
    if events.event_id.null_count:
        events = events.with_columns(event_id=pc.coalesce(events.event_id, events.position))
    key = pc.binary_join_element_wise(owner, idempotency_key(events), "")
    if pc.count_distinct(key).as_py() == len(key):
        return key
    # Two events with one id would count as one. Those that share a position always come together,
    # so their order among themselves is the same every time.
    seen: dict[str, int] = {}
    texts = key.to_pylist()
    for row, text in enumerate(texts):
        seen[text] = number = seen.get(text, 0) + 1
        if number > 1:
            texts[row] = f"{text}#{number}"
    return pa.array(texts, pa.string())


def _check_subjects(to: Text, count: int, refused: dict[int, str]) -> None:
    def why(subject: str | None) -> str | None:
        if not subject:
            return "its subject is empty"
        if not _SUBJECT.fullmatch(subject):
            return f"not a subject to publish to: {subject!r}"
        if len(subject.encode()) > _LONGEST_SUBJECT:
            return f"its subject is longer than {_LONGEST_SUBJECT} bytes"
        if subject.startswith(_SERVERS_OWN):
            return f"the subject is one of the server's own: {subject!r}"
        return None

    if not isinstance(to, pa.Array):
        reason = why(to)
        if reason is not None:
            refused |= dict.fromkeys(range(count), reason)
        return
    encoded = pc.dictionary_encode(to)
    reasons = [why(subject) for subject in encoded.dictionary.to_pylist()]
    if not any(reasons):
        return
    for row, code in enumerate(encoded.indices.to_pylist()):
        if reasons[code] is not None:
            refused[row] = str(reasons[code])


def _check_lines(what: str, column: pa.Array, refused: dict[int, str]) -> None:
    """A header is one line; a longer value would be read as headers of the sender's choice."""
    _, offsets, data = column.buffers()
    if data is None:
        return
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    content = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    if not ((content == 10) | (content == 13)).any():
        return
    for row, text in enumerate(column.to_pylist()):
        if text is not None and ("\n" in text or "\r" in text):
            refused.setdefault(row, f"its {what} has a line break, which no NATS header can hold")


def _header_lines(headers: pa.Array, refused: dict[int, str]) -> pa.Array:
    encoded = pc.dictionary_encode(headers)
    texts: list[str | None] = []
    reasons: dict[int, str] = {}
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        lines = []
        for name, value in json.loads(text).items() if text else ():
            if value is None:
                continue
            value = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            reason = _wrong_header(name, value)
            if reason is not None:
                reasons.setdefault(code, reason)
            lines.append(f"{name}: {value}\r\n")
        texts.append("".join(lines))
    if reasons:
        for row, code in enumerate(encoded.indices.to_pylist()):
            if code in reasons:
                refused.setdefault(row, reasons[code])
    return pc.fill_null(pa.array(texts, pa.string()).take(encoded.indices), "")


def _wrong_header(name: str, value: str) -> str | None:
    if not _HEADER_NAME.fullmatch(name):
        return f"not the name of a NATS header: {name!r}"
    if "\n" in value or "\r" in value:
        return f"its header {name} has a line break, which no NATS header can hold"
    lower = name.lower()
    if lower in ("df-key", "df-position") or (lower.startswith("nats-") and lower != "nats-ttl"):
        # These steer the server: Nats-Rollup alone would empty the stream.
        return f"its header {name} is one that only the sink or the server may set"
    return None


def _numbers(count: int) -> pa.Array:
    """The texts 0, 1, 2 and so on."""
    if len(_NUMBERS[0]) < count:
        _NUMBERS[0] = pc.cast(pa.array(np.arange(max(count, 4096)), pa.int64()), pa.string())
    return _NUMBERS[0].slice(0, count)
