"""All names a job may import; none of them loads Spark before the job starts it."""

from __future__ import annotations

from .batch import Batch
from .commit import CommitPolicy
from .deadletters import Journal
from .deliver import ACKS
from .env import Env
from .errors import ConfigError, DfcError, Unavailable
from .events import Events
from .job import Job
from .messages import Messages
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
