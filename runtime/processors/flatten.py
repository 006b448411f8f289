"""The flatten processor: nested fields of `before` and `after` become fields of the row."""

from __future__ import annotations

from ..errors import ProcessorError
from ..events import Events
from ..kernels import flatten as kernel
from ..messages import identity

_LONGEST_KEY = 200  # of a key in an error


def flatten(
    events: Events,
    *,
    id: str,
    separator: str = "__",
    max_depth: int | None = None,
    on_collision: str = "last",
    empty_object: str = "preserve",
    lists: str = "preserve",
    empty_list: str = "preserve",
) -> Events:
    """The events with flat images; `{"_base64":…}` and `{"_unchanged":true}` are values and stay.

    An object or list is opened while fewer than `max_depth` are open around it, the row not
    counted.
    """
    rules = kernel.Rules(separator, max_depth, on_collision, empty_object, lists, empty_list)
    flat = {}
    for name in ("before", "after"):
        if not events.has(name):
            continue
        texts = events.column(name)
        try:
            made = kernel.flatten(texts, rules)
        except kernel.Collision as error:
            key = error.key if len(error.key) <= _LONGEST_KEY else error.key[:_LONGEST_KEY] + "…"
            raise ProcessorError(
                f"flatten `{id}`: two fields give the key `{key}` "
                f"in event {identity(events, error.row)}"
            ) from None
        except kernel.TooLarge:
            raise ProcessorError(
                f"flatten `{id}`: the flat rows of one batch come to more than 2 GB: "
                "set `max_depth`, or make batches smaller"
            ) from None
        if made is not texts:
            flat[name] = made
    return events.with_columns(**flat) if flat else events
