"""The outbox processor: rows that an application wrote as messages become routed messages.

Sources mark such rows by the schema `__outbox`. Only they are looked at, all of them at once; every
other event stays as it is, in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Part, Text, first, join
from ..errors import ProcessorError
from ..events import EVENT_COLUMNS, OUTBOX_MARK, Events, Json
from ..kernels.jsontext import LIST, MISSING, NULL, OBJECT, STRING, buffers, extract
from ..kernels.members import Member, as_strings, cut, find, without
from ..patterns import matches

_USUAL_COLUMNS = {
    "payload": "payload",
    "aggregate_type": "aggregate_type",
    "aggregate_id": "aggregate_id",
    "event_type": "event_type",
    "topic": "topic",
    "event_id": "id",
}
_HEADERS = {
    "df-event-id": "event_id",
    "df-aggregate-type": "aggregate_type",
    "df-aggregate-id": "aggregate_id",
    "df-event-type": "event_type",
}
_KIND, _OUTBOX = "df-source-kind", '"outbox"'
_REQUIRED = ("topic", "payload", "aggregate_type", "aggregate_id", "event_type")
# The mark in the text of `source`, as sources write it, and wherever else it may stand in an object.
# In a string it would have escapes.
_MEMBER = f'"schema":"{OUTBOX_MARK}",'
_MEMBER_ANYWHERE = r"\s*,\s*{0}|{0}\s*,?\s*".format(rf'"schema"\s*:\s*"{OUTBOX_MARK}"')

_NO_SCALAR = np.isin(np.arange(256), (OBJECT, LIST, NULL))  # by kind

Template = Callable[[Json], Part]


def outbox(
    events: Events,
    *,
    id: str,
    tables: Sequence[str] = (),
    topic: Template | None = None,
    key: Template | None = None,
    default_topic: str | None = None,
    columns: Mapping[str, str] | None = None,
    additional_headers: Mapping[str, str] | None = None,
    raw_payload: bool = False,
    strict: bool = False,
) -> Events:
    """Marked inserts of these tables with their payload as `after`, and topic, key and headers."""
    mine = _marked(events, tables)
    if mine.true_count == 0:
        return events
    events, mine = _inserts(events, mine, id)
    if mine.true_count == 0:
        return events
    names = {**_USUAL_COLUMNS, **(columns or {})}
    more = additional_headers or {}
    texts = _of(events, "after", mine)
    found = find(texts, (*names.values(), *more.values()))
    row = _Row(texts, found)
    parts = {part: found[column] for part, column in names.items()}
    payload = parts["payload"]
    body, absent = payload.without(payload.kind == NULL).text, payload.kind == MISSING
    to = first(topic(row) if topic else None, _scalar(parts["topic"]).plain, default_topic)
    if strict:
        given = {part: _scalar(member).text for part, member in parts.items()}
        _require(events, mine, id, {**given, "payload": body, "topic": to}, names)
    if absent.any():
        rest = without(texts.filter(absent), tuple(names.values()))
        body = pc.replace_with_mask(body, absent, rest)
    headers = {header: parts[part] for header, part in _HEADERS.items()}
    for header, column in more.items():
        value = found[column]
        if header in headers:
            value = _scalar(value).otherwise(headers[header])
        headers[header] = value
    made: dict[str, Text | bool] = {
        "after": body,
        "before": None,
        "schema": None,
        "routing_topic": to,
        "routing_key": first(key(row) if key else None, _scalar(parts["aggregate_id"]).plain),
        "routing_headers": _headers(headers),
        "routing_raw_payload": raw_payload or None,
    }
    if events.has("source"):
        made["source"] = _unmarked(_of(events, "source", mine))
    if not events.has("before"):  # nobody reads it behind this
        del made["before"]
    return events.with_columns(**{name: _put(events, name, mine, v) for name, v in made.items()})


class _Row(Json):
    """The raw row; what was found in it already is not looked for again."""

    def __init__(self, text: pa.Array, found: Mapping[str, Member]) -> None:
        super().__init__(text)
        self._found = found

    def __getitem__(self, path: str | tuple[str, ...]) -> pa.Array:
        name, *rest = (path,) if isinstance(path, str) else path
        if name in self._found:
            found = self._found[name]
            return extract(found.text, tuple(rest)) if rest else found.plain
        return super().__getitem__(path)


# --- which events ----------------------------------------------------------------------------


def _marked(events: Events, tables: Sequence[str]) -> pa.Array:
    marked = _no_nulls(pc.equal(events.source.schema, OUTBOX_MARK))
    if not tables or marked.true_count == 0:
        return marked
    dbs, names = _of(events, "db", marked), _of(events, "table", marked)
    # There are few tables and many events: each name is matched once.
    pairs = pc.dictionary_encode(join(pc.fill_null(dbs, ""), "\0", names))
    verdicts = [_meant(tables, *pair.split("\0")) for pair in pairs.dictionary.to_pylist()]
    meant = pa.array(verdicts, pa.bool_()).take(pairs.indices)
    return pc.replace_with_mask(marked, marked, meant)


def _meant(patterns: Sequence[str], db: str, table: str) -> bool:
    places = [(db, table)]
    if "." in table:  # the prefix of a message may have a qualifier of its own
        qualifier, _, name = table.partition(".")
        places.append((qualifier, name))
    return any(matches(pattern, *place) for pattern in patterns for place in places)


def _inserts(events: Events, mine: pa.Array, id: str) -> tuple[Events, pa.Array]:
    """Leaves out, and counts, marked events that are no messages."""
    inserts = _both(mine, pc.equal(events.op, "c"))
    rows = _both(inserts, _no_nulls(pc.starts_with(events.after.text, "{")))
    reasons = {}
    if inserts.true_count < mine.true_count:
        reasons["non_insert"] = pc.and_not(mine, inserts)
    if rows.true_count < inserts.true_count:
        # Text may begin with space, which is not worth a look at every row.
        text = pc.ascii_ltrim_whitespace(pc.fill_null(events.after.text, "null"))
        rows = pc.and_(inserts, pc.starts_with(text, "{"))
        nothing = pc.starts_with(text, "n")
        reasons["null_payload"] = pc.and_(inserts, nothing)
        reasons["non_object"] = pc.and_not(pc.and_not(inserts, nothing), rows)
    for reason, dropped in reasons.items():
        events.ledger.count(id, reason, events.position.filter(dropped))
    if rows.true_count == mine.true_count:
        return events, mine
    kept = pc.or_(pc.invert(mine), rows)
    return events.where(kept), rows.filter(kept)


def _both(one: pa.Array, other: pa.Array) -> pa.Array:
    return other if one.true_count == len(one) else pc.and_(one, other)


def _no_nulls(mask: pa.Array) -> pa.Array:
    return pc.fill_null(mask, False) if mask.null_count else mask


# --- columns of these events -----------------------------------------------------------------


def _of(events: Events, name: str, mine: pa.Array) -> pa.Array:
    column = events.column(name)
    return column if mine.true_count == len(mine) else column.filter(mine)


def _put(events: Events, name: str, mine: pa.Array, value: Text | bool) -> pa.Array:
    """The column with these values for my events, and as it is for all others."""
    if isinstance(value, pa.Array) and len(value) == len(events):
        return value
    column = events.column(name) if name in EVENT_COLUMNS else events.made(name)
    if isinstance(value, pa.Array):
        return pc.replace_with_mask(column, mine, value)
    if value is None and column.null_count == len(column):
        return column
    if mine.true_count == len(column):
        return pa.repeat(pa.scalar(value, column.type), len(column))
    return pc.if_else(mine, pa.scalar(value, column.type), column)


def _scalar(member: Member) -> Member:
    """Strings, numbers and booleans; anything else is as if it was not there."""
    return member.without(_NO_SCALAR[member.kind])


def _require(
    events: Events, mine: pa.Array, id: str, parts: Mapping[str, Text], names: Mapping[str, str]
) -> None:
    """An error that names the first event that lacks something, and all that it lacks."""
    lacking = {}
    for part in _REQUIRED:
        value = parts[part]
        if not isinstance(value, str):
            missing = pa.array([True]) if value is None else pc.is_null(value)
            if missing.true_count:
                lacking[part] = missing
    if not lacking:
        return
    row = min(pc.index(missing, True).as_py() for missing in lacking.values())
    known = _of(events, "event_id" if events.has("event_id") else "position", mine)
    what = [
        part if part == names[part] or part == "topic" else f"{part} (column `{names[part]}`)"
        for part, missing in lacking.items()
        if parts[part] is None or missing[row].as_py()
    ]
    raise ProcessorError(f"outbox `{id}`: event {known[row].as_py()}: missing {', '.join(what)}")


def _headers(values: Mapping[str, Member]) -> Text:
    """JSON objects with these members as strings, each where it is a scalar."""
    if _KIND not in values:
        copied = as_strings(values, f'"{_KIND}":{_OUTBOX}')
        if copied is not None:
            return copied
    parts: list[str | pa.Array] = ["{"]
    kind: Text = _OUTBOX
    for header, value in values.items():
        text, quote = _string(_scalar(value))
        if header == _KIND:
            own = join(quote, text, quote)
            kind = _OUTBOX if own is None else pc.fill_null(own, _OUTBOX)
        elif text.null_count == 0:
            parts += [f"{_dumped(header)}:{quote}", text, f"{quote},"]
        elif text.null_count < len(text):
            whole = join(f"{_dumped(header)}:{quote}", text, f"{quote},")
            parts.append(pc.fill_null(whole, ""))
    return join(*parts, f'"{_KIND}":', kind, "}")


def _string(scalar: Member) -> tuple[pa.Array, str]:
    """JSON strings of JSON scalars, and the quotes they still need: numbers have none."""
    text, kind = scalar.text, scalar.kind
    strings = kind == STRING
    if not strings.any():
        return text, '"'
    data, ends, _ = buffers(text)
    content = data[ends[0] : ends[-1]]
    if ((content == 92) | (content < 32)).any():
        # An escape may stand for what has no UTF-8 form, so these are written anew, one by one:
        # names and ids hardly ever have any.
        odd = pc.fill_null(pc.match_substring_regex(text, r"[\\\x00-\x1f]"), False)
        anew = [_dumped(value) for value in extract(text.filter(odd), ()).to_pylist()]
        text = pc.replace_with_mask(text, odd, pa.array(anew, pa.string()))
    if not (strings | (kind == MISSING)).all():
        text = pc.if_else(pa.array(strings), text, join('"', text, '"'))
    return text, ""


def _dumped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unmarked(source: pa.Array) -> pa.Array:
    """`source` without its schema, which is not the database's."""
    rest, cuts = cut(source, _MEMBER)
    if cuts == len(source) - source.null_count:
        return rest
    # The last member, or written in another way: one comma goes with it.
    other = pc.replace_substring_regex(source, _MEMBER_ANYWHERE, "", max_replacements=1)
    whole = pc.not_equal(pc.binary_length(rest), pc.binary_length(source))
    return pc.if_else(whole, rest, other)
