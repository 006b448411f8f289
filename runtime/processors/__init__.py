"""Names a job may import for its processors."""

from __future__ import annotations

from .fields import Field, all_of, any_of, field, op_in, table_in
from .flatten import flatten
from .outbox import outbox
from .unbuilt import Script, javascript

__all__ = [
    "Field",
    "Script",
    "all_of",
    "any_of",
    "field",
    "flatten",
    "javascript",
    "op_in",
    "outbox",
    "table_in",
]
