"""Stage 4: the plan -> job.py, formatted."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import BaseLoader, Environment, StrictUndefined, Template

from ..plan import Plan
from .format import format_source
from .view import build_view


def emit(plan: Plan, provenance: str) -> str:
    """`provenance` names the spec, its digest and the compiler; the same input gives the same bytes."""
    return format_source(_template().render(job=build_view(plan, provenance)))


@cache
def _template() -> Template:
    text = files("dfc.templates").joinpath("job.py.j2").read_text("utf-8")
    environment = Environment(
        loader=BaseLoader(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Python, not HTML: every string of the view is source text already
    )
    return environment.from_string(text)
