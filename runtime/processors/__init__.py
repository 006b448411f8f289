"""Names a job may import for its processors."""

from __future__ import annotations

from ..scripts.sandbox import Script
from .fields import Field, all_of, any_of, field, op_in, table_in
from .flatten import flatten
from .javascript import javascript
from .outbox import outbox

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
