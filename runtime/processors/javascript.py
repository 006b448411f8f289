"""The javascript processor: events as columns into a script's process, and what it changed back."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import ids
from ..batch import Batch, sizes
from ..errors import ProcessorError
from ..events import MADE_COLUMNS, OUTBOX_MARK, Events
from ..kernels.canonical import canonical
from ..ledger import DeadLetter
from ..messages import identity
from ..scripts.sandbox import Answer, Script, sandbox_for

_MOST_EVENTS = 500  # of one call: what the default limits are meant for
_MEMORY_SHARE = 32  # the texts of one call take at most this part of the script's memory
_LINES_PER_SEC = 20
_IMPOSSIBLE = "its engine gave an answer that cannot be"
_UNIT, _GROUP = "\x1f", "\x1d"


def javascript(events: Events, *scripts: Script, batch: Batch | None = None) -> Events:
    """The events as the scripts leave them, one script after the other."""
    most = min(batch.max_events, _MOST_EVENTS) if batch else _MOST_EVENTS
    for script in scripts:
        parts, start = [], 0
        while start < len(events):
            # Asked each time: a script that was too slow is called with fewer from then on.
            stop = _end_of_call(events, start, script, min(most, sandbox_for(script).most))
            parts.append(_called(script, events.slice(start, stop)))
            start = stop
        if parts:
            events = parts[0].then(*parts[1:])
    return events


def _end_of_call(events: Events, start: int, script: Script, most: int) -> int:
    """A call is bounded by number, and by bytes for the sake of memory."""
    stop = min(start + most, len(events))
    ends = np.cumsum(sizes(events.batch.slice(start, stop - start)))
    share = (script.mem_mb << 20) // _MEMORY_SHARE
    return start + max(int(np.searchsorted(ends, share, side="right")), 1)


# --- errors ----------------------------------------------------------------------------------


def _called(script: Script, events: Events) -> Events:
    answer = _call(script, events)
    if answer.error is None:
        return _applied(script, events, answer)
    if answer.at_start:
        raise ProcessorError(f"script `{script.id}`, {answer.error}")
    if answer.too_slow and len(events) > 1:
        return _in_smaller_calls(script, events)
    if script.on_error == "fail":
        raise ProcessorError(_blame(script, events, answer))
    parts = list(_sorted_out(script, events, answer))
    return parts[0].then(*parts[1:])


def _in_smaller_calls(script: Script, events: Events) -> Events:
    """Time is for each call: too many events are nobody's fault, and one that loops is found."""
    middle = len(events) // 2
    sandbox_for(script).most = max(middle, 1)
    events.ledger.warn_once(
        "a script is slow: it is called with fewer events at a time",
        script=script.id,
        cpu_ms=script.cpu_ms,
        timeout_ms=script.timeout_ms,
    )
    first = _called(script, events.slice(0, middle))
    return first.then(_called(script, events.slice(middle, len(events))))


def _sorted_out(script: Script, events: Events, answer: Answer) -> Iterator[Events]:
    """Halves a run that failed until only the guilty events are left over, in their places."""
    if len(events) == 1:
        error = f"script `{script.id}`, {answer.error}; event {identity(events, 0)}"
        if script.on_error == "dlq":
            events.ledger.dead.append(DeadLetter(events, script.id, error))
            yield events.slice(0, 0)
        else:
            events.ledger.count(script.id, "skipped", events.position)
            events.ledger.say("warning", "script skipped an event", reason=error)
            yield events
        return
    middle = len(events) // 2
    for half in (events.slice(0, middle), events.slice(middle, len(events))):
        again = _call(script, half)
        if again.error is None:
            yield _applied(script, half, again)
        else:
            yield from _sorted_out(script, half, again)


def _blame(script: Script, events: Events, answer: Answer) -> str:
    """The error of a script with the event at which it comes up."""
    if answer.row < 0:
        found = _guilty(script, events, answer)
        if found is None:
            together = f"{len(events)} events from {identity(events, 0)} on, taken together"
            return f"script `{script.id}`, {answer.error}; {together}"
        events, answer = found
    return f"script `{script.id}`, {answer.error}; event {identity(events, max(answer.row, 0))}"


def _guilty(script: Script, events: Events, answer: Answer) -> tuple[Events, Answer] | None:
    while len(events) > 1:
        middle = len(events) // 2
        first = _call(script, half := events.slice(0, middle))
        if first.error is None:
            first = _call(script, half := events.slice(middle, len(events)))
            if first.error is None:
                return None
        events, answer = half, first
    return events, answer


# --- a call ----------------------------------------------------------------------------------


def _call(script: Script, events: Events) -> Answer:
    sandbox = sandbox_for(script)
    answer = sandbox.call(len(events), _columns(events, sandbox.looks))
    if answer.news:
        _say(script, events, answer.news)
    return answer


def _columns(e: Events, looks: bool) -> list[bytes]:
    """The columns in the driver's order of fields; more about rows for a script that reads them."""
    times = _joined(e.ts_ms)
    return [
        _joined(e.before.text),
        _joined(e.after.text),
        _joined(e.source.text),
        _joined(e.op),
        times,
        _joined(e.transaction.text),
        _joined(e.event_id),
        _one(e.tenant),
        _joined(e.schema_version),
        _joined(e.schema_sequence),
        _joined(e.ddl.text),
        _joined(e.trace_id),
        _joined(e.tags.text),
        _joined(e.synthetic),
        _joined(pc.if_else(pc.fill_null(e.tx_end, False), "1", "")),
        _joined(_qualified(e)),
        times,
        _known(e.before.text) if looks else b"",
        _known(e.after.text) if looks else b"",
    ]


def _known(images: pa.Array) -> bytes:
    """By image `1` when the engine would print it as it is, `2` when it has no wide integer."""
    if images.null_count == len(images):
        return b""
    wide = pc.fill_null(pc.match_substring_regex(images, "[0-9]{16}"), False)
    told = canonical(images)
    if told is not None and told.sum() == len(images) - images.null_count:
        return b"=1"
    if told is None and wide.true_count == 0:
        return b"=2"
    known = pc.if_else(wide, "", "2")
    return _joined(known if told is None else pc.if_else(pa.array(told), "1", known))


def _joined(column: pa.Array) -> bytes:
    """All values in one text, which costs one copy of the bytes and nothing per event."""
    if column.null_count == len(column):
        return b""
    texts = column if column.type == pa.string() else pc.cast(column, pa.string())
    if texts.null_count:
        texts = pc.fill_null(texts, "")
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return b"|" + bytes(pc.binary_join(whole, _UNIT)[0].as_buffer())


def _one(text: str | None) -> bytes:
    return b"=" + text.encode() if text else b""


def _qualified(e: Events) -> pa.Array:
    """`db.table`, or `schema.table` where the source has schemas."""
    qualifier = e.source.db
    if e.has("schema"):
        schema = e.source.schema
        named = pc.and_kleene(pc.is_valid(schema), pc.not_equal(schema, OUTBOX_MARK))
        qualifier = pc.if_else(pc.fill_null(named, False), schema, qualifier)
    return pc.binary_join_element_wise(pc.fill_null(qualifier, ""), e.source.table, ".")


# --- what came back --------------------------------------------------------------------------


def _applied(script: Script, events: Events, answer: Answer) -> Events:
    parents_text, fresh_text, before, after, tags, routing = answer.sections
    result = events
    if parents_text:
        parents = _numbers(parents_text[1:])
        if len(parents) and not (parents.min() >= 0 and parents.max() < len(events)):
            raise ProcessorError(f"script `{script.id}`: {_IMPOSSIBLE}")
        result = events.take(pa.array(parents))
        result = _ended_once(result, parents)
    columns: dict[str, Any] = {}
    for name, text in (("before", before), ("after", after), ("tags", tags)):
        at, values = _changes(text)
        if len(at) and (any(values) or result.has(name)):
            now = result.made(name) if name in MADE_COLUMNS else result.column(name)
            columns[name] = _replaced(now, at, [value or None for value in values])
    at, values = _changes(routing, ",")
    if len(at):
        try:
            chosen = json.loads(f"[{values}]")
        except ValueError:
            raise ProcessorError(f"script `{script.id}`: {_IMPOSSIBLE}") from None
        for name in ("topic", "key", "headers", "raw_payload"):
            made = f"routing_{name}"
            columns[made] = _replaced(result.made(made), at, [one.get(name) for one in chosen])
    fresh = _numbers(fresh_text)
    if len(fresh):
        made_ids = _fresh_ids(script, result.with_columns(**columns).take(pa.array(fresh)))
        columns["event_id"] = _replaced(result.event_id, fresh, made_ids)
        columns["synthetic"] = _replaced(result.synthetic, fresh, [script.id] * len(fresh))
    return result.with_columns(**columns) if columns else result


def _numbers(text: str) -> Any:
    return np.array(text.split(",") if text else [], np.int64)


def _changes(text: str, separator: str = "") -> tuple[Any, Any]:
    """Places and their new texts; with a separator, the texts in one."""
    at, _, values = text.partition(_GROUP)
    if separator:
        return _numbers(at), values.replace(_UNIT, separator)
    return _numbers(at), values.split(_UNIT)


def _replaced(column: pa.Array, at: Any, values: list[Any]) -> pa.Array:
    new = pa.array(values, column.type)
    if len(at) == len(column):
        return new
    mask = np.zeros(len(column), bool)
    mask[at] = True
    return pc.replace_with_mask(column, pa.array(mask), new)


def _ended_once(events: Events, parents: Any) -> Events:
    """Of the events made of a transaction's last one, only the last ends the transaction."""
    last = np.zeros(len(parents), bool)
    if len(parents):
        _, from_behind = np.unique(parents[::-1], return_index=True)
        last[len(parents) - 1 - from_behind] = True
    if last.all():
        return events
    return events.with_columns(tx_end=pc.and_kleene(events.tx_end, pa.array(last)))


def _fresh_ids(script: Script, events: Events) -> list[str | None]:
    """The same script makes the same events of the same parent, and so gives them the same ids.

    What is in an event is part of its id: two that differ never share one, even if batches fall in
    another way and a new event comes to stand beside another parent.
    """
    digest = f"js:{script.id}:{hashlib.sha256(script.script.encode()).hexdigest()[:16]}"
    made: dict[str, int] = {}
    result: list[str | None] = []
    contents = zip(
        events.event_id.to_pylist(),
        events.before.text.to_pylist(),
        events.after.text.to_pylist(),
        strict=True,
    )
    for parent, before, after in contents:
        if parent is None:
            result.append(None)
            continue
        content = hashlib.sha256(f"{before}\n{after}".encode()).hexdigest()[:16]
        key = f"{parent} {content}"
        made[key] = made.get(key, -1) + 1
        result.append(ids.synthetic(parent, f"{digest}:{content}", made[key]))
    return result


# --- the log ---------------------------------------------------------------------------------


class _Rate:
    """Lets a number of lines a second through, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = clock()
        self._said = 0
        self.left_out = 0

    def allows(self) -> bool:
        if self._clock() - self._second >= 1:
            self._second, self._said = self._clock(), 0
        self._said += 1
        if self._said > _LINES_PER_SEC:
            self.left_out += 1
        return self._said <= _LINES_PER_SEC

    def told(self) -> int:
        """How many were left out since this was asked last, once lines may be said again."""
        if self._clock() - self._second < 1:
            return 0
        number, self.left_out = self.left_out, 0
        return number


_rates: dict[str, _Rate] = {}


def _say(script: Script, events: Events, news: dict[str, Any]) -> None:
    ledger, rate = events.ledger, _rates.setdefault(script.id, _Rate())
    if number := rate.told():
        ledger.say("warning", "script's log lines left out", script=script.id, count=number)
    for level, text in news["lines"]:
        if rate.allows():
            ledger.say(level, "script", script=script.id, says=text)
    rate.left_out += news["unsaid"]
    for name in news["fields"]:
        ledger.warn_once(
            "script sets what cannot leave with the event", script=script.id, field=name
        )
