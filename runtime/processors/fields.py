"""Masks of the filter processor: by operation, by table, and by what a row holds.

Numbers compare as 64-bit floats (an integer beyond their range exactly), texts by their bytes; a
JSON null counts as missing.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..events import Events
from ..patterns import selected

_MISSING: Any = object()


def op_in(events: Events, *ops: str) -> pa.Array:
    """Events with one of these one-letter operations."""
    return pc.is_in(events.op, pa.array(ops, pa.string()))


def table_in(events: Events, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> pa.Array:
    """Events of the tables that the patterns select; the qualifier is database or schema."""
    taken, left_out = tuple(include), tuple(exclude)
    schemas = events.source.schema if events.has("schema") else None
    parts = [pc.fill_null(events.source.db, ""), events.source.table]
    if schemas is not None:
        parts.append(pc.fill_null(schemas, ""))
    # There are few tables and many events: each name is matched once.
    names = pc.dictionary_encode(pc.binary_join_element_wise(*parts, "\0"))
    verdicts = []
    for name in names.dictionary.to_pylist():
        db, table, *schema = name.split("\0")
        qualifiers = [q for q in (db, *schema) if q] or [""]
        kept = any(selected(q, table, taken) for q in qualifiers)
        verdicts.append(kept and all(selected(q, table, (), left_out) for q in qualifiers))
    return pa.array(verdicts, pa.bool_()).take(names.indices)


def all_of(*masks: pa.Array) -> pa.Array:
    """Events for which every mask holds."""
    result = masks[0]
    for mask in masks[1:]:
        result = pc.and_(result, mask)
    return result


def any_of(*masks: pa.Array) -> pa.Array:
    """Events for which at least one mask holds."""
    result = masks[0]
    for mask in masks[1:]:
        result = pc.or_(result, mask)
    return result


def field(events: Events, *path: str) -> Field:
    """The value at a dotted path of `after`; several arguments are the steps of the path."""
    return Field(events, tuple(path[0].split(".")) if len(path) == 1 else path)


class Field:
    """One field of each event; every method gives a mask without nulls."""

    def __init__(self, events: Events, path: tuple[str, ...]) -> None:
        self._events = events
        self._path = path

    @cached_property
    def _values(self) -> list[Any]:
        """The field of each event; missing when it is not there or null."""
        found = (_at(row, self._path) for row in self._events.parsed("after"))
        return [_MISSING if value is None else value for value in found]

    def _mask(self, test: Callable[[Any], bool], missing: bool = False) -> pa.Array:
        return pa.array(
            [missing if value is _MISSING else test(value) for value in self._values], pa.bool_()
        )

    def exists(self) -> pa.Array:
        return self._mask(lambda value: True)

    def not_exists(self) -> pa.Array:
        return self._mask(lambda value: False, missing=True)

    def eq(self, other: Any) -> pa.Array:
        return self._mask(lambda value: other is not None and _same(value, other))

    def ne(self, other: Any) -> pa.Array:
        return self._mask(lambda value: other is not None and not _same(value, other))

    def gt(self, other: Any) -> pa.Array:
        return self._mask(lambda value: _order(value, other) == 1)

    def gte(self, other: Any) -> pa.Array:
        return self._mask(lambda value: _order(value, other) in (0, 1))

    def lt(self, other: Any) -> pa.Array:
        return self._mask(lambda value: _order(value, other) == -1)

    def lte(self, other: Any) -> pa.Array:
        return self._mask(lambda value: _order(value, other) in (-1, 0))

    def is_in(self, *others: Any) -> pa.Array:
        return self._mask(lambda value: any(_same(value, other) for other in others))

    def not_in(self, *others: Any) -> pa.Array:
        return self._mask(
            lambda value: not any(_same(value, other) for other in others), missing=True
        )

    def contains(self, other: Any) -> pa.Array:
        def test(value: Any) -> bool:
            if isinstance(value, str):
                return isinstance(other, str) and other in value
            return isinstance(value, list) and any(_same(item, other) for item in value)

        return self._mask(test)

    def regex(self, pattern: str) -> pa.Array:
        """Somewhere in a text; the syntax is that of Python's `re`, as the compiler checks it."""
        search = _compiled(pattern).search
        return self._mask(lambda value: isinstance(value, str) and search(value) is not None)

    def changed(self) -> pa.Array:
        before, after = self._events.parsed("before"), self._events.parsed("after")
        result = []
        for old_row, new_row in zip(before, after, strict=True):
            if old_row is None or new_row is None:
                result.append(True)
                continue
            old, new = _at(old_row, self._path), _at(new_row, self._path)
            if old is _MISSING or new is _MISSING:
                result.append(old is not new)
            else:
                result.append(not _identical(old, new))
        return pa.array(result, pa.bool_())


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what later versions of Python may read in it
        return re.compile(pattern)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(number: int | float) -> int | float:
    try:
        return float(number)
    except OverflowError:
        return number  # Python compares it with any float, exactly


def _same(one: Any, other: Any) -> bool:
    if _is_number(one) and _is_number(other):
        return bool(_float(one) == _float(other))
    if isinstance(one, list) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def _identical(one: Any, other: Any) -> bool:
    """As JSON values, integers in full: two big ones may be equal as floats and still differ."""
    return type(one) is type(other) and json.dumps(one, sort_keys=True) == json.dumps(
        other, sort_keys=True
    )


def _order(one: Any, other: Any) -> int | None:
    """-1, 0 or 1; None for two values that have no order."""
    if _is_number(one) and _is_number(other):
        left: Any = _float(one)
        right: Any = _float(other)
    elif isinstance(one, str) and isinstance(other, str):
        left, right = one.encode(), other.encode()
    else:
        return None
    return int(left > right) - int(left < right)
