"""dfc: compiles one page of YAML into one page of PySpark.

The stages, in order: parse, validate, resolve (which gives the plan), emit (which formats).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath

from .diagnostics import Diagnostics, Enough
from .parse import parse
from .plan import Plan
from .resolve import resolve
from .validate import validate

__version__ = "0.1.0"


@dataclass(frozen=True, slots=True)
class Spec:
    """A file as it was read: no stage touches the disk."""

    file: str  # as diagnostics name it
    data: bytes


def plan_pipeline(
    spec: Spec, diagnostics: Diagnostics, allow_literal_secrets: bool = False
) -> Plan | None:
    """The plan of one spec, or None with the reasons in `diagnostics`."""
    before = len(diagnostics.found)
    try:
        tree = parse(spec.data, spec.file, diagnostics)
        checked = validate(tree, diagnostics, allow_literal_secrets) if tree else None
        plan = resolve(checked, diagnostics) if checked else None
    except Enough:
        return None
    failed = any(d.severity == "error" for d in diagnostics.found[before:])
    return None if failed else plan


def compile_pipeline(
    spec: Spec,
    diagnostics: Diagnostics,
    allow_literal_secrets: bool = False,
    version: str = __version__,
) -> str | None:
    """The job of one spec. Same bytes in, same bytes out, on any machine."""
    plan = plan_pipeline(spec, diagnostics, allow_literal_secrets)
    return emit_job(plan, spec, version) if plan else None


def emit_job(plan: Plan, spec: Spec, version: str = __version__) -> str:
    from .emit import emit  # black takes longer to import than the other stages take to run
    from .emit.literals import py_comment

    name = py_comment(PurePath(spec.file).name)
    digest = sha256(spec.data).hexdigest()[:12]
    return emit(plan, f"source: {name}  sha256: {digest}  compiler: {version}")
