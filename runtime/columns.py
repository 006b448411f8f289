"""Column expressions of a job: destinations, keys and envelopes, each for all events at once.

Texts are joined by Arrow kernels. A part that is the same for all events is a literal of the join,
and a column without any value is left out before the join, so neither costs anything per event.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .events import Events, Json

Text: TypeAlias = str | pa.Array | None  # one text for all events, a column, or no value at all
Part: TypeAlias = str | pa.Array | Json | None

_SUFFIXES = {"c": "created", "u": "updated", "d": "deleted", "r": "snapshot", "t": "truncated"}


# --- joining ---------------------------------------------------------------------------------


def join(*parts: Part, missing: str | None = None) -> Text:
    """The parts one after the other; null where one is null, unless `missing` stands in for it."""
    ready: list[str | pa.Array] = []
    for part in parts:
        text = as_text(part)
        if text is None or (not isinstance(text, str) and text.null_count == len(text) > 0):
            if missing is None:
                return None
            text = missing
        elif missing is not None and not isinstance(text, str) and text.null_count:
            text = pc.fill_null(text, missing)
        ready.append(text)
    return _concat(ready)


def first(*columns: Part) -> Text:
    """For each event the first text that is neither null nor empty."""
    result: Text = None
    for column in reversed(columns):
        text = as_text(column)
        if text is None or isinstance(text, str):
            result = text or result
        elif text.null_count == len(text):
            continue
        elif _all_filled(text):
            result = text
        else:
            filled = pc.fill_null(pc.greater(pc.binary_length(text), 0), False)
            # An empty text must not win over nothing: both mean that there is no value.
            rest = pa.scalar(None, pa.string()) if result is None else result
            result = pc.if_else(filled, text, rest)
    return result


def _all_filled(text: pa.Array) -> bool:
    """Whether no text is null or empty, which is told by where they end."""
    if text.null_count:
        return False
    ends = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    return bool((ends[1:] > ends[:-1]).all())


def as_text(part: Part) -> Text:
    if isinstance(part, Json):
        return part.text
    if part is None or isinstance(part, str) or part.type == pa.string():
        return part
    return pc.cast(part, pa.string())


def _concat(parts: list[str | pa.Array]) -> str | pa.Array:
    merged: list[str | pa.Array] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif not (isinstance(part, str) and part == ""):
            merged.append(part)
    if len(merged) < 2:
        return merged[0] if merged else ""
    return pc.binary_join_element_wise(*merged, "")


def _optional(before: str, column: Text, after: str = "") -> list[str | pa.Array]:
    """The column between two literals, and nothing at all where it is null."""
    if column is None:
        return []
    if isinstance(column, str):
        return [before + column + after]
    if column.null_count == len(column):
        return []
    whole = _concat([before, column, after])
    return [pc.fill_null(whole, "")] if column.null_count else [before, column, after]


def _carried(e: Events, before: str, name: str, after: str = "") -> list[str | pa.Array]:
    """The same for a column that a job leaves out when its source never fills it."""
    if not e.has(name) or e.column(name).null_count == len(e):
        return []
    column = e.column(name)
    return _optional(before, _escaped(column) if after else as_text(column), after)


def _or_null(column: pa.Array) -> str | pa.Array:
    """JSON texts, with the text `null` for those that are not there."""
    if column.null_count == 0:
        return column
    return "null" if column.null_count == len(column) else pc.fill_null(column, "null")


# --- JSON strings ----------------------------------------------------------------------------


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _escaped(column: pa.Array) -> pa.Array:
    """Content of JSON strings; names and ids hardly ever need it, so look at the bytes first."""
    _, offset_buffer, data = column.buffers()
    if data is None or len(column) == 0:
        return column
    ends = np.frombuffer(offset_buffer, np.int32)
    begin, end = int(ends[column.offset]), int(ends[column.offset + len(column)])
    content = np.frombuffer(data, np.uint8)[begin:end]
    if not ((content < 32) | (content == 34) | (content == 92)).any():
        return column
    return _by_value(column, _escape)


def _by_value(column: pa.Array, function: Callable[[Any], str]) -> pa.Array:
    """function(value) for each event, called once for each different value."""
    encoded = pc.dictionary_encode(column)
    results = [
        None if value is None else function(value) for value in encoded.dictionary.to_pylist()
    ]
    return pa.array(results, pa.string()).take(encoded.indices)


# --- envelopes -------------------------------------------------------------------------------


def native(e: Events) -> pa.Array:
    """The event object itself."""
    return _native(e, "", "")


def debezium(e: Events) -> pa.Array:
    """The event object as the payload of a message without schema."""
    return _native(e, '{"schema":null,"payload":', "}")


def _native(e: Events, head: str, tail: str) -> pa.Array:
    parts: list[str | pa.Array] = [
        head + '{"before":',
        _or_null(e.before.text),
        ',"after":',
        _or_null(e.after.text),
        ',"source":',
        _or_null(e.source.text),
        ',"op":"',
        e.op,
        '","ts_ms":',
        pc.cast(e.ts_ms, pa.string()),
        *_carried(e, ',"transaction":', "transaction"),
        *_optional(',"event_id":"', _escaped(e.event_id), '"'),
        *([f',"tenant_id":"{_escape(e.tenant)}"'] if e.tenant is not None else []),
        *_carried(e, ',"schema_version":"', "schema_version", '"'),
        *_carried(e, ',"schema_sequence":', "schema_sequence"),
        *_carried(e, ',"ddl":', "ddl"),
        *_carried(e, ',"trace_id":"', "trace_id", '"'),
        *_carried(e, ',"tags":', "tags"),
        *_carried(e, ',"synthetic":"', "synthetic", '"'),
    ]
    ending = e.tx_end.true_count
    if ending == len(e):
        parts.append(',"tx_end":true')
    elif ending:
        parts.append(pc.if_else(pc.fill_null(e.tx_end, False), ',"tx_end":true', ""))
    return _column(_concat([*parts, "}" + tail]), len(e))


def cloudevents(e: Events, type_prefix: str) -> pa.Array:
    """CloudEvents 1.0 in structured JSON form."""
    qualified = _by_value(_column(_concat([_qualifier(e), ".", e.source.table]), len(e)), _escape)
    # `source.name` is the pipeline's name in every reader; look it up only when a processor may
    # have written another one.
    name = _escaped(e.source["name"]) if "source" in e.replaced else _escape(e.pipeline)
    identity = e.event_id
    if identity.null_count:
        fresh = pa.array([_fresh_id() for _ in range(identity.null_count)], pa.string())
        identity = pc.replace_with_mask(identity, pc.is_null(identity), fresh)
    suffix = pc.take(
        pa.array(list(_SUFFIXES.values())), pc.index_in(e.op, pa.array(list(_SUFFIXES)))
    )
    parts: list[str | pa.Array] = [
        '{"specversion":"1.0","id":"',
        _escaped(identity),
        '","source":"deltaforge/',
        name,
        "/",
        qualified,
        f'","type":"{_escape(type_prefix)}.',
        suffix,
        '","time":"',
        rfc3339(e.ts_ms),
        '","datacontenttype":"application/json","subject":"',
        qualified,
        '","data":{',
        *_optional('"before":', e.before.text, ","),
        *_optional('"after":', e.after.text, ","),
        '"op":"',
        e.op,
        '"}}',
    ]
    return _column(_concat(parts), len(e))


def raw_or(e: Events, value: pa.Array) -> pa.Array:
    """`after` alone where a processor asked for the raw payload, `value` elsewhere."""
    if not e.has("routing_raw_payload") or e.routing.raw_payload.true_count == 0:
        return value
    raw = pc.fill_null(e.routing.raw_payload, False)
    return pc.if_else(raw, pc.fill_null(e.after.text, "null"), value)


def rfc3339(ts_ms: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as `2026-01-31T08:15:00.000Z`."""
    # Formatting costs over a microsecond a value, and a transaction has one time for all its rows.
    encoded = pc.dictionary_encode(ts_ms)
    texts = pc.cast(pc.cast(encoded.dictionary, pa.timestamp("ms")), pa.string())
    texts = pc.binary_join_element_wise(pc.binary_replace_slice(texts, 10, 11, "T"), "Z", "")
    return texts.take(encoded.indices)


def _qualifier(e: Events) -> str | pa.Array:
    """Schema where the source has schemas, database where it has none."""
    if not e.has("schema") or e.source.schema.null_count == len(e):
        return e.source.db
    schema = e.source.schema
    return pc.coalesce(schema, e.source.db) if schema.null_count else schema


def _fresh_id() -> str:
    import secrets
    import time

    stamp = int(time.time() * 1000) << 80
    return str(uuid.UUID(int=stamp | 0x7 << 76 | 0x2 << 62 | secrets.randbits(62)))


def _column(text: Text, rows: int) -> pa.Array:
    return text if isinstance(text, pa.Array) else pa.repeat(pa.scalar(text, pa.string()), rows)


# --- keys ------------------------------------------------------------------------------------


def table_key(e: Events) -> pa.Array:
    """The primary key, or `db.table` for a table without one: rows of one key stay in order."""
    key = e.primary_key
    if key.null_count == 0:
        return key
    return pc.coalesce(key, _column(_concat([e.source.db, ".", e.source.table]), len(e)))


def idempotency_key(e: Events) -> pa.Array:
    """The same text for the same change, whenever and however often it is delivered."""
    return _column(
        _concat(
            [
                (e.tenant or "_") + "|",
                e.source.db,
                ".",
                e.source.table,
                "|",
                _filled(e.tx_id, "") if e.has("tx_id") else "",
                "|",
                _filled(e.event_id, "_"),
            ]
        ),
        len(e),
    )


def _filled(column: pa.Array, text: str) -> str | pa.Array:
    if column.null_count == 0:
        return column
    return text if column.null_count == len(column) else pc.fill_null(column, text)
