"""Event fixtures: JSON lines, whole native events or short ones written by hand, as event columns.

The images of an event reach the sinks digit for digit as the line has them. Only blanks between
their parts go, since no source writes any.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from .columns import native
from .errors import ConfigError
from .events import EVENT_COLUMNS, MADE_COLUMNS, OUTBOX_MARK, Events, arrow_schema
from .messages import Messages
from .patterns import matches, selected

FIRST_TS_MS = 1_700_000_000_000
_VERSION = "dfc-test"  # not the runtime's own: a new release must not change what is expected
_CONNECTORS = {"mysql": "mysql", "postgres": "postgresql", "turso": "turso"}
_ROW_IDS = {"mysql": "myrow", "postgres": "pgrow", "turso": "tsrow"}
_OPS = {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate"}

_text_or_blank = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
_blank = re.compile(r"[ \t\r\n]*").match

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """What every event of a pipeline has in common."""

    kind: str  # mysql, postgres or turso
    pipeline: str
    tenant: str | None = None
    tables: tuple[str, ...] = ()  # patterns of what its source reads; none for all
    outbox: tuple[str, ...] = ()  # patterns of the source's outbox tables, or message prefixes


class FixtureError(ConfigError):
    """Lines that are no events of the pipeline: (line number, what is wrong with it)."""

    def __init__(self, problems: Sequence[tuple[int, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"line {number}: {what}" for number, what in problems))

    def __reduce__(self) -> tuple[type[FixtureError], tuple[Any, ...]]:
        return FixtureError, (self.problems,)


def read_events(text: str, origin: Origin, columns: str) -> Events:
    """The events of a file of fixtures, with these columns; every bad line is in the one error."""
    rows: list[Row] = []
    problems: list[tuple[int, str]] = []
    for number, line in _lines(text):
        row, wrong = _row(line, len(rows) + 1, origin)
        problems += [(number, what) for what in wrong]
        rows.append(row)
    if not rows:
        problems.append((1, "there are no events in the file"))
    if problems:
        raise FixtureError(problems)
    schema = arrow_schema(columns.split())
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row.get(name) for row in rows], schema.field(name).type)
            for name in schema.names
        ],
        schema=schema,
    )
    # What sources never fill, but an event that came by another pipeline's sink may have.
    for name in ("trace_id", "tags", "synthetic"):
        values = [row.get(name) for row in rows]
        if any(value is not None for value in values):
            batch = batch.append_column(name, pa.array(values, MADE_COLUMNS[name]))
    return Events(batch, pipeline=origin.pipeline, tenant=origin.tenant)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines(), which also cuts at characters that JSON strings may hold.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


# --- one line --------------------------------------------------------------------------------


def _row(line: str, n: int, origin: Origin) -> tuple[Row, list[str]]:
    """The columns of the n-th event, and what is wrong with its line."""
    try:
        given = _members(line)
    except ValueError as error:
        return {}, [str(error)]
    wrong = []
    for name, (_, found) in given.items():
        if name not in _FIELDS:
            wrong.append(f"unknown field `{name}`{_near(name, _FIELDS)}")
        elif found is not None and not _FIELDS[name][0](found):
            wrong.append(_bad_value(name, found))
    if given.get("op", ("", None))[1] is None:
        wrong.append("`op` is missing: one of " + ", ".join(_OPS))
    if wrong:
        return {}, wrong

    def value(name: str) -> Any:
        return given[name][1] if name in given else None

    def written(name: str) -> str | None:
        return compact(given[name][0]) if value(name) is not None else None

    tenant = value("tenant_id")
    if tenant is not None and tenant != origin.tenant:
        wrong.append(
            f"`tenant_id` comes from the pipeline, which has `{origin.tenant}`: leave it out"
        )
    # Everything but a few fields is in a whole event; then what is not there has a meaning too.
    whole = value("event_id") is not None
    tx_end = value("tx_end")
    if tx_end is None:
        tx_end = not whole and value("transaction") is None
    row: Row = {
        "position": f"{n:016x}",
        "tx_end": tx_end,
        "op": value("op"),
        "ts_ms": FIRST_TS_MS + n if value("ts_ms") is None else value("ts_ms"),
        "transaction": written("transaction"),
        "tx_id": _tx_id(value("transaction")),
        "event_id": value("event_id") or _event_id(origin, n),
        **{name: value(name) for name in ("schema_version", "schema_sequence")},
        **{name: written(name) for name in ("before", "after", "primary_key", "ddl", "tags")},
        **{name: value(name) for name in ("trace_id", "synthetic")},
    }
    if value("source") is not None:
        if value("table") is not None:
            wrong.append("`table` is short for `source`: give one of them")
        row |= _place(value("source"), origin, wrong)
        row["source"] = written("source")
    elif value("table") is None:
        wrong.append("`table` (or the whole `source`) is missing")
    else:
        source = _made_source(value("table"), row, n, origin, wrong)
        row |= {name: source.get(name) for name in ("db", "schema", "table")}
        row["source"] = _json(source)
    if not wrong and not _is_read(row, origin):
        # It would pass here, and never come in earnest.
        place = f"{row['schema'] or row['db']}.{row['table']}"
        wrong.append(
            f"the source does not read `{place}`: its tables are {', '.join(origin.tables)}"
        )
    return row, wrong


def _members(line: str) -> dict[str, tuple[str, Any]]:
    """Text and value of each member of a JSON object; ValueError says what is wrong with it."""
    try:
        if not isinstance(_decoder.decode(line), dict):
            raise ValueError("not a JSON object")
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    found: dict[str, tuple[str, Any]] = {}
    at = line.index("{") + 1
    while line[at := _skip(line, at)] != "}":
        name, at = _decoder.raw_decode(line, at)
        at = _skip(line, _skip(line, at) + 1)
        value, end = _decoder.raw_decode(line, at)
        if name in found:
            raise ValueError(f"`{name}` stands there twice")
        found[name] = (line[at:end], value)
        at = _skip(line, end)
        at += line[at] == ","
    return found


def _skip(line: str, at: int) -> int:
    return _blank(line, at).end()  # type: ignore[union-attr]


def _number(digits: str) -> int | float:
    # Python reads no integers of thousands of digits; the text counts here, not the value.
    return int(digits) if len(digits) < 1000 else float(digits)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name} is no JSON value")


_decoder = json.JSONDecoder(parse_int=_number, parse_constant=_refuse)


def compact(text: str) -> str:
    """JSON text without the blanks between its parts."""
    return _text_or_blank.sub(lambda match: match[1] or "", text)


# --- fields ----------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return (
        isinstance(value, str) and value != "" and value == value.encode(errors="replace").decode()
    )


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "before": (_is_object, "an object or null"),
    "after": (_is_object, "an object or null"),
    "source": (_is_object, "an object"),
    "op": (lambda value: value in tuple(_OPS), f"one of {', '.join(_OPS)}"),
    "ts_ms": (_is_int, "an integer: milliseconds since 1970"),
    "transaction": (_is_object, "an object"),
    "event_id": (_is_text, "a text"),
    "tenant_id": (_is_text, "a text"),
    "schema_version": (_is_text, "a text"),
    "schema_sequence": (_is_int, "an integer"),
    "ddl": (lambda value: True, ""),
    "trace_id": (_is_text, "a text"),
    "tags": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of texts"),
    "synthetic": (_is_text, "a text"),
    "tx_end": (lambda value: isinstance(value, bool), "true or false"),
    "primary_key": (_is_object, "an object such as {\"id\":1}"),
    "table": (_is_text, "a text such as `orders`"),
}  # fmt: skip


def _bad_value(name: str, value: Any) -> str:
    long = {word: letter for letter, word in _OPS.items()}
    help = f"; did you mean `{long[value]}`?" if name == "op" and value in tuple(long) else ""
    return f"`{name}` must be {_FIELDS[name][1]}, not {_json(value)[:40]}{help}"


def _near(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"; did you mean `{close[0]}`?" if close else ""


# --- where an event comes from ---------------------------------------------------------------


def _place(source: dict[str, Any], origin: Origin, wrong: list[str]) -> Row:
    """Columns out of a whole `source`, which must be one that the pipeline's reader could write."""
    place = {name: source.get(name) for name in ("db", "schema", "table")}
    wrong += [
        f"`source.{name}` must be a text"
        for name, value in place.items()
        if not (_is_text(value) or (value is None and name == "schema"))
    ]
    fixed = {"connector": _CONNECTORS[origin.kind], "name": origin.pipeline}
    if origin.kind == "turso":
        fixed["db"] = "main"
    # The compiler has put these into the job as constants, so another value would be half true.
    wrong += [
        f"`source.{name}` is {_json(source.get(name))[:40]}, but events of this pipeline have "
        f"{_json(value)}"
        for name, value in fixed.items()
        if source.get(name) != value
    ]
    return place


def _made_source(name: str, row: Row, n: int, origin: Origin, wrong: list[str]) -> dict[str, Any]:
    """`source` as the reader would write it, for an event of which only the table is known."""
    db, schema, table = _split(name, row["op"], origin, wrong)
    source: dict[str, Any] = {
        "version": _VERSION,
        "connector": _CONNECTORS[origin.kind],
        "name": origin.pipeline,
        "ts_ms": row["ts_ms"],
        "db": db,
    }
    source |= {"schema": schema} if schema else {}
    source["table"] = table
    if origin.kind == "turso":
        source["sequence"] = str(n)
    elif row["op"] == "r" and row["ddl"] is None:
        source["snapshot"] = "true"  # a copied row has no place in the log
    elif origin.kind == "mysql":
        source["server_id"] = 1
        source |= {"gtid": row["tx_id"]} if row["tx_id"] else {}
        source |= {"file": "mysql-bin.000001", "pos": n}
    else:
        known = re.fullmatch("[0-9]{1,10}", row["tx_id"] or "")
        source |= {"lsn": f"0/{n:X}", "txId": int(known[0]) if known else n}
    return source


def _split(name: str, op: str, origin: Origin, wrong: list[str]) -> tuple[str, str | None, str]:
    """Database, schema and table of a short `table`."""
    parts = name.split(".")
    # Messages of the log are always new; of an outbox table any change is marked, since what is no
    # insert is the processor's to drop.
    outbox = (op == "c" or origin.kind == "mysql") and any(
        matches(pattern, parts[0] if len(parts) > 1 else None, ".".join(parts[1:]) or name)
        for pattern in origin.outbox
    )
    match origin.kind, parts:
        case "turso", [table] | ["main", table]:
            return "main", None, table
        case "mysql", [db, table]:
            return db, OUTBOX_MARK if outbox else None, table
        case "postgres", _ if outbox:  # a message of the log, whose prefix stands for the table
            return "postgres", OUTBOX_MARK, name
        case "postgres", [table]:
            return "postgres", "public", table
        case "postgres", [schema, table]:
            return "postgres", schema, table
        case "postgres", [db, schema, table]:
            return db, schema, table
    form = {"turso": "`table`", "mysql": "`db.table`", "postgres": "`schema.table`"}[origin.kind]
    wrong.append(f"`table` is {form} here, not `{name}`; give `source` for names with dots")
    return "", None, name


def _is_read(row: Row, origin: Origin) -> bool:
    if row["ddl"] is not None or (row["schema"] or "").startswith("__"):
        return True  # changes of schemas and messages of the log come whatever the tables are
    read = (*origin.tables, *origin.outbox) if origin.tables else ()
    return selected(row["schema"] or row["db"], row["table"], read)


def _tx_id(transaction: dict[str, Any] | None) -> str | None:
    found = (transaction or {}).get("id")
    return found if found is None or isinstance(found, str) else _json(found)


def _event_id(origin: Origin, n: int) -> str:
    digest = hashlib.sha256(f"fixture {n}".encode()).hexdigest()
    return f"dfid:v1:{_ROW_IDS[origin.kind]}:{digest[:32]}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- the way back ----------------------------------------------------------------------------


def recorded(e: Events) -> Messages:
    """Events as lines for a file of fixtures: native, and with the primary key."""
    # The tenant is the pipeline's; in a fixture it would only be one more thing to keep right.
    lines = native(Events(e.batch, pipeline=e.pipeline))
    key = pc.binary_join_element_wise(',"primary_key":', e.primary_key, "")
    body = pc.utf8_slice_codeunits(lines, 0, -1)
    return Messages(value=pc.binary_join_element_wise(body, pc.fill_null(key, ""), "}", ""))


def event_text(events: Events) -> str:
    """One event with what the job carries of it, in the order of the native form."""
    parts = []
    for name in _FIELDS:
        if name not in EVENT_COLUMNS and name not in MADE_COLUMNS:
            continue
        if not events.has(name) or name in ("table", "primary_key"):
            continue
        value = events.batch.column(name)[0].as_py()
        if value is None or value is False:
            continue
        as_it_is = name in ("before", "after", "source", "transaction", "ddl", "tags")
        parts.append(f'"{name}":{value if as_it_is else _json(value)}')
    return "{" + ",".join(parts) + "}"
