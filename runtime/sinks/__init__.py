"""Names a job may import for its sinks."""

from __future__ import annotations

from .base import Lane, Sink, SinkFilter
from .console import ConsoleSink, DryRunSink
from .file import FileSink
from .kafka import KafkaSink
from .nats import NatsSink
from .redis import RedisSink

__all__ = [
    "ConsoleSink",
    "DryRunSink",
    "FileSink",
    "KafkaSink",
    "Lane",
    "NatsSink",
    "RedisSink",
    "Sink",
    "SinkFilter",
]
