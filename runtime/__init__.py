"""All names a job may import.

Each is loaded when it is asked for: a job has half a dozen processes, and most of them need little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import Batch
    from .deadletters import Journal
    from .deliver import ACKS
    from .env import Env
    from .errors import ConfigError, DfcError, Unavailable
    from .events import Events
    from .job import Job
    from .messages import Messages
    from .policy import CommitPolicy
    from .storage import Storage

__all__ = [
    "ACKS",
    "Batch",
    "CommitPolicy",
    "ConfigError",
    "DfcError",
    "Env",
    "Events",
    "Job",
    "Journal",
    "Messages",
    "Storage",
    "Unavailable",
]
_MODULES = {
    "ACKS": "deliver",
    "Batch": "batch",
    "CommitPolicy": "policy",
    "ConfigError": "errors",
    "DfcError": "errors",
    "Env": "env",
    "Events": "events",
    "Job": "job",
    "Journal": "deadletters",
    "Messages": "messages",
    "Storage": "storage",
    "Unavailable": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
