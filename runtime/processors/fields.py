"""Masks of the filter processor: by operation, by table, and by what a row holds.

Numbers compare as 64-bit floats (an integer beyond their range exactly), texts by their bytes; a
JSON null counts as missing. Values are found in the text of a row and compared in whole columns; only
what that cannot tell exactly is read as JSON, value by value.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..events import Events, parse_json
from ..kernels.jsontext import FALSE, LIST, MISSING, NULL, NUMBER, OBJECT, STRING, TRUE
from ..patterns import selected

_ABSENT: Any = object()


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

    def _mask(
        self,
        test: Callable[[Any], bool],
        *,
        strings: Callable[[pa.Array], pa.Array] | None = None,
        numbers: Callable[[_Floats], _Flags] | None = None,
        inside: bool = False,
    ) -> pa.Array:
        """`test` says it for one value; `strings` and `numbers` say the same of many at once.

        Without these two, all strings get the same answer, and so do all numbers. The same goes for
        objects and lists, unless the test looks `inside` of them.
        """
        found = self._events.values("after", self._path)
        floats = None
        kinds = set(np.flatnonzero(np.bincount(found.kind, minlength=256)).tolist())
        kinds -= {MISSING, NULL}
        # As a rule all rows have strings there, or all of them numbers.
        if strings is not None and kinds == {STRING}:
            return _no_nulls(strings(found.text))
        if numbers is not None and kinds & _NUMBERS:
            floats = found.floats()
            if floats is not None and kinds <= _NUMBERS and not np.isinf(floats).any():
                return pa.array(numbers(floats))
        answers = np.zeros(256, np.bool_)  # by kind; a missing value passes no test
        answers[TRUE], answers[FALSE] = test(True), test(False)
        if strings is None:
            answers[STRING] = test("")
        if numbers is None:
            answers[NUMBER] = test(0)
        if not inside:
            answers[OBJECT] = answers[LIST] = test([])
        result: _Flags = answers[found.kind]
        rest = (_ODD | _INSIDE if inside else _ODD)[found.kind]
        if strings is not None and STRING in kinds:
            result = np.where(found.kind == STRING, _flags(strings(found.text)), result)
        if floats is not None and numbers is not None:
            result = np.where(NUMBER[found.kind], numbers(floats), result)
            rest |= np.isinf(floats)
        elif numbers is not None:
            rest |= NUMBER[found.kind]
        if rest.any():
            rows = np.flatnonzero(rest)
            result[rows] = [test(parse_json(t)) for t in found.text.take(rows).to_pylist()]
        return pa.array(result)

    def exists(self) -> pa.Array:
        kind = self._events.values("after", self._path).kind
        return pa.array((kind != MISSING) & (kind != NULL))

    def not_exists(self) -> pa.Array:
        return pc.invert(self.exists())

    def eq(self, other: Any) -> pa.Array:
        return self.is_in(other) if other is not None else self._mask(lambda value: False)

    def ne(self, other: Any) -> pa.Array:
        if other is None:
            return self._mask(lambda value: False)
        return pc.and_(self.exists(), pc.invert(self.is_in(other)))

    def gt(self, other: Any) -> pa.Array:
        return self._ordered(other, lambda order: order == 1, pc.greater, np.greater)

    def gte(self, other: Any) -> pa.Array:
        return self._ordered(
            other, lambda order: order in (0, 1), pc.greater_equal, np.greater_equal
        )

    def lt(self, other: Any) -> pa.Array:
        return self._ordered(other, lambda order: order == -1, pc.less, np.less)

    def lte(self, other: Any) -> pa.Array:
        return self._ordered(other, lambda order: order in (-1, 0), pc.less_equal, np.less_equal)

    def _ordered(
        self,
        other: Any,
        holds: Callable[[int | None], bool],
        strings: Callable[[pa.Array, str], pa.Array],
        numbers: Callable[[_Floats, float], _Flags],
    ) -> pa.Array:
        return self._mask(
            lambda value: holds(_order(value, other)),
            strings=(lambda text: strings(text, other)) if isinstance(other, str) else None,
            numbers=(
                (lambda floats: numbers(floats, _float64(other))) if _is_number(other) else None
            ),
        )

    def is_in(self, *others: Any) -> pa.Array:
        texts = [other for other in others if isinstance(other, str)]
        floats = [_float64(other) for other in others if _is_number(other)]
        return self._mask(
            lambda value: any(_same(value, other) for other in others),
            strings=(lambda text: pc.is_in(text, pa.array(texts))) if texts else None,
            numbers=(lambda numbers: np.isin(numbers, floats)) if floats else None,
            inside=any(isinstance(other, list | tuple | dict) for other in others),
        )

    def not_in(self, *others: Any) -> pa.Array:
        return pc.invert(self.is_in(*others))

    def contains(self, other: Any) -> pa.Array:
        def test(value: Any) -> bool:
            if isinstance(value, str):
                return isinstance(other, str) and other in value
            return isinstance(value, list) and any(_same(item, other) for item in value)

        strings = None
        if isinstance(other, str):
            strings = partial(pc.match_substring, pattern=other)
        return self._mask(test, strings=strings, inside=True)

    def regex(self, pattern: str) -> pa.Array:
        """Somewhere in a text; the syntax is that of Python's `re`, as the compiler checks it."""
        search = _compiled(pattern).search

        def strings(text: pa.Array) -> pa.Array:
            # Often there are few different texts: each is searched once.
            encoded = pc.dictionary_encode(text)
            verdicts = [search(one) is not None for one in encoded.dictionary.to_pylist()]
            return pa.array(verdicts, pa.bool_()).take(encoded.indices)

        return self._mask(lambda value: False, strings=strings)

    def changed(self) -> pa.Array:
        old, new = (self._events.values(image, self._path) for image in ("before", "after"))
        kinds = [np.where(NUMBER[found.kind], ord("0"), found.kind) for found in (old, new)]
        result = kinds[0] != kinds[1]
        same = _flags(pc.equal(old.text, new.text))
        strings = kinds[0] == STRING
        result |= strings & ~same
        # Numbers, objects and lists may be the same in other words. Strings that are alike differ
        # after all when they hold different halves of surrogate pairs.
        unsure = ~result & ~strings & ~same & (kinds[0] != MISSING) & (kinds[0] != NULL)
        if (strings & same).any():
            unsure |= strings & same & _flags(pc.match_substring(new.text, "\ufffd"))
        images = [self._events.column(image) for image in ("before", "after")]
        present = _flags(pc.and_(images[0].is_valid(), images[1].is_valid()))
        rows = np.flatnonzero(unsure & present & ~strings)
        pairs = zip(*(found.text.take(rows).to_pylist() for found in (old, new)), strict=True)
        result[rows] = [_differ(one, other) for one, other in pairs]
        for row in np.flatnonzero(unsure & present & strings):
            one, other = (_at(parse_json(image[row].as_py()), self._path) for image in images)
            result[row] = not _identical(one, other)
        return pa.array(result | ~present)


_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]
_NUMBERS = set(np.flatnonzero(NUMBER).tolist())
_INSIDE = np.isin(np.arange(256), (OBJECT, LIST))  # by kind
_ODD = ~(NUMBER | _INSIDE | np.isin(np.arange(256), (MISSING, NULL, STRING, TRUE, FALSE)))


def _flags(mask: pa.Array) -> _Flags:
    flags: _Flags = _no_nulls(mask).to_numpy(zero_copy_only=False)
    return flags


def _no_nulls(mask: pa.Array) -> pa.Array:
    return pc.fill_null(mask, False) if mask.null_count else mask


def _float64(number: int | float) -> float:
    """For comparing with floats that are finite: whatever is beyond them all is as good."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what later versions of Python may read in it
        return re.compile(pattern)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
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


def _differ(one: str, other: str) -> bool:
    """Whether two JSON texts, which are not the same, mean something else."""
    if one.isdigit() and other.isdigit():
        return True
    return not _identical(parse_json(one), parse_json(other))


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
