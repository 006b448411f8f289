"""How many lanes there are, and what carries over when that number changes.

Rows go to other lanes then, so what one old lane holds above the others would be dropped or repeated
by the new ones: only a position that all of them hold carries over. A sink that keeps positions by
itself changes as a whole. It writes down an agreement first, and a lane of an earlier generation
counts as standing at the agreement's start, however late it is opened.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .errors import ConfigError


def common(what: str, positions: Collection[str], known: str = "") -> str:
    """The position that all old lanes hold, and none is above; `known` is storage's."""
    # A lane without news does not write, so it may be further than it says.
    if max(positions) <= known:
        return known
    if len(set(positions)) > 1:
        were = f"{len(positions)} lanes"
        raise ConfigError(
            f"{what} was written in {were}, which stand at different positions: "
            f"run once with {were} to even them out, then change the number"
        )
    return next(iter(positions))


@dataclass(frozen=True, slots=True)
class Agreement:
    """What holds for all lanes of a sink."""

    lanes: int
    start: str = ""
    generation: int = 0

    def counts(self, position: str, generation: int) -> str:
        """Where a lane counts as standing that says this of itself."""
        return position if generation == self.generation else self.start

    def followed(self, lanes: int, start: str) -> Agreement:
        """The one after this."""
        return Agreement(lanes, start, self.generation + 1)
