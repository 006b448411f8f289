"""Text with `${...}` -> a route of the plan: event fields checked, constant ones folded away."""

from __future__ import annotations

import re

from ..diagnostics import Diagnostics, quote
from ..env import Written
from ..plan import EnvRef, Field, Literal, Route, Template, Text
from ..span import Span
from .origin import Origin


def event_route(
    written: Written, origin: Origin, diagnostics: Diagnostics, fits: str | None = None
) -> Route:
    """A template over the event. Tenant, connector and pipeline name become literals.

    `fits` is a pattern for texts that may become part of the destination.
    """
    parts: list[Literal | EnvRef | Field] = []
    for part, place in zip(written.parts, written.places, strict=True):
        if not isinstance(part, Field):
            _add(parts, part)
        elif (text := origin.constant(part.path)) is not None:
            if fits and not re.fullmatch(fits, text):
                diagnostics.error(
                    "DFC313",
                    place,
                    f"`${{{'.'.join(part.path)}}}` stands for {quote(text)}, which cannot be part "
                    "of a destination of this sink",
                    "leave it out of the template",
                )
            _add(parts, Literal(text))
        else:
            _check(part.path, place, origin, diagnostics)
            parts.append(part)
    return _route(parts)


def row_route(written: Written) -> Route:
    """A template over the columns of an outbox row: any name may be a column."""
    return _route(list(written.parts))


def fields_of(*routes: Route | None) -> tuple[str, ...]:
    """The event fields that routes read, dotted."""
    found: dict[str, None] = {}
    for route in routes:
        for part in route.parts if route else ():
            if isinstance(part, Field):
                found[".".join(part.path)] = None
    return tuple(found)


def _add(parts: list[Literal | EnvRef | Field], part: Literal | EnvRef) -> None:
    if parts and isinstance(part, Literal) and isinstance(last := parts[-1], Literal):
        parts[-1] = Literal(last.text + part.text)
    else:
        parts.append(part)


def _route(parts: list[Literal | EnvRef | Field]) -> Route:
    if any(isinstance(p, Field) for p in parts):
        return Template(tuple(parts))
    return Text(tuple(p for p in parts if not isinstance(p, Field)))


def _check(path: tuple[str, ...], span: Span, origin: Origin, diagnostics: Diagnostics) -> None:
    """That the field exists at all has been checked; not every source fills every one."""
    if never := origin.never(path):
        why, help = never
        message = f"{quote('${' + '.'.join(path) + '}')} is always empty: {why}"
        diagnostics.error("DFC311", span, message, help)
