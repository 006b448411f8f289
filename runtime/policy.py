"""The commit policy: whose acknowledgements let the source move on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Whose acknowledgements let the source move on, and how many of them it takes."""

    mode: str
    sinks: tuple[str, ...]
    needed: int

    @classmethod
    def required(cls, *sinks: str) -> CommitPolicy:
        """Every sink named here, which are the required ones."""
        return cls("required", sinks, len(sinks))

    @classmethod
    def all(cls, *sinks: str) -> CommitPolicy:
        """Every sink of the pipeline."""
        return cls("all", sinks, len(sinks))

    @classmethod
    def quorum(cls, needed: int, *sinks: str) -> CommitPolicy:
        """Any `needed` of these sinks."""
        return cls("quorum", sinks, needed)

    def met(self, acknowledged: Iterable[str]) -> bool:
        return len(set(self.sinks) & set(acknowledged)) >= self.needed
