"""Processors that a pipeline may name already, so that it compiles; what they do comes later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import Unavailable
from ..events import Events


@dataclass(frozen=True, slots=True)
class Script:
    """A user's JavaScript and its limits."""

    id: str
    script: str
    cpu_ms: int = 50
    mem_mb: int = 128
    timeout_ms: int = 500
    on_error: str = "fail"
    deterministic: bool = False
    engine: str = "quickjs"


def javascript(events: Events, *scripts: Script, **settings: Any) -> NoReturn:
    raise Unavailable("the javascript processor is not built yet")
