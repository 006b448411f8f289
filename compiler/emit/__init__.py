"""Stage 4: the plan as a PySpark job. Sees the plan, never the spec."""

from .render import emit

__all__ = ["emit"]
