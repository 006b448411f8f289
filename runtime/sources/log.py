"""What a database's log looks like to the segment reader, and how its failures are told apart."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Protocol, runtime_checkable

import pyarrow as pa

from ..errors import DfcError

logger = logging.getLogger("dfc.source")


class SourceError(DfcError):
    """The source cannot go on: one line that says why and what to do."""


class TransientError(SourceError):
    """The source could not go on just now: worth another try at the same position."""


class LogReader(Protocol):
    """One connection to a database's log, used by one thread at a time.

    Positions are texts that compare bytewise as the log runs; "" is before everything. Batches hold
    whole transactions, except for one that is too large to be held in memory: it comes in several
    results of `read`, and only its last event has `tx_end`. Every event's position is one to begin at.
    """

    @property
    def position(self) -> str:
        """Everything at or below it has been handed out, or was not ours to hand out."""

    def open(self, start: str) -> str:
        """Connects and stands behind `start`; returns where it really stands."""

    def read(self, wait: float) -> list[pa.RecordBatch]:
        """The next transactions, in order; empty after about `wait` seconds without any."""

    def copied(self) -> bool:
        """Whether the rows that were there before the log have all been handed out."""

    def quiet(self) -> float:
        """Seconds for which `read` is known to bring nothing: no use in waiting to fill a batch."""

    def head(self) -> str:
        """The position that covers everything committed in the database at this moment."""

    def ceiling(self) -> str:
        """No event that was ever handed out is above it, as far as the database can tell."""

    def durable(self, position: str) -> None:
        """Every sink holds everything up to here: what the database kept for us may go."""

    def close(self) -> None:
        """Gives the connection back; `open` may follow."""


@runtime_checkable
class KeptLog(Protocol):
    """A log that its database keeps for this reader alone, however long that takes."""

    def untouched(self) -> None:
        """Nothing was handed out since it was opened before everything, and nothing is to be copied:

        no sink will ever ask for what was read so far, though none holds a position that says so.
        """


def log_to_stderr(pipeline: str) -> None:
    """Spark's source process comes without any logging set up; one that somebody made is left."""
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    if not sys.stderr.isatty():
        handler.setFormatter(_JsonLines(pipeline))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _JsonLines(logging.Formatter):
    """The form that the job's own lines have."""

    def __init__(self, pipeline: str) -> None:
        super().__init__()
        self._pipeline = pipeline

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "ts": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "pipeline": self._pipeline,
            "event": "source",
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
