"""What every sink is."""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ..events import Events
from ..messages import Messages


@dataclass(frozen=True, slots=True)
class Lane:
    """A share of the rows that one task delivers in order."""

    pipeline: str
    index: int = 0
    count: int = 1
    known: str = ""  # position that storage has for the sink's lane


@dataclass(frozen=True, slots=True)
class SinkFilter:
    """Which events a sink takes, by whether a processor made them; all that is set must hold."""

    exclude_synthetic: bool = False
    synthetic_only: bool = False
    producers: tuple[str, ...] = ()

    def apply(self, events: Events) -> Events:
        if not events.has("synthetic"):
            # No processor has made anything: all events are the source's own.
            return events.slice(0, 0) if self.synthetic_only or self.producers else events
        masks: list[Any] = []
        if self.exclude_synthetic:
            masks.append(pc.is_null(events.synthetic))
        if self.synthetic_only:
            masks.append(pc.is_valid(events.synthetic))
        if self.producers:
            masks.append(pc.is_in(events.synthetic, pa.array(self.producers, pa.string())))
        return events.where(*masks)


class Sink(ABC):
    """A destination. Constructors open nothing and never fail; the object travels to the workers.

    In a worker: open, then for each unit write (any number of times) and commit, then close. After
    an exception the unit is aborted and the sink closed; the next attempt opens it again.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        id: str,
        messages: Callable[[Events], Messages],
        *,
        required: bool = True,
        filter: SinkFilter | None = None,
    ) -> None:
        self.id = id
        self.messages = messages
        self.required = required
        self.filter = filter

    @property
    def tick_secs(self) -> int:
        """How often the sink wants tick() while the source is idle; 0 for never."""
        return 0

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in an error."""
        return ()

    def check(self) -> None:  # noqa: B027  (most sinks have nothing to check without connecting)
        """Driver, before Spark starts: raises when the sink cannot work as configured."""

    def try_out(self, lane: Lane) -> None:
        """Driver: raises when the lane cannot be opened; leaves nothing open."""
        other = copy.copy(self)
        try:
            other.open(lane)
        finally:
            with contextlib.suppress(Exception):
                other.abort()  # else the client would be kept
            with contextlib.suppress(Exception):
                other.close()

    @abstractmethod
    def open(self, lane: Lane) -> str:
        """Connects; returns the position that this lane holds durably, "" when the sink has none."""

    @abstractmethod
    def write(self, messages: Messages, events: Events) -> None:
        """Takes a part of the current unit; may only collect it."""

    @abstractmethod
    def commit(self, position: str) -> None:
        """Makes the unit durable together with its position, or not at all."""

    def redeliver(self, messages: Messages, events: Events, position: str, mark: str) -> None:
        """Makes events durable that the lane has left behind, as one unit; it stays at `position`.

        A sink that keeps its position with its data keeps `mark` with them in the same way.
        """
        self.write(messages, events)
        self.commit(position)

    def redelivered(self) -> str:
        """The mark of the last unit that was redelivered; "" when the sink keeps none."""
        return ""

    def move(self, pipeline: str, lanes: int, position: str) -> None:  # noqa: B027
        """Driver, while nobody runs: puts all lanes there, wherever they stand.

        Only a sink that keeps its position by itself has something to do; storage's is not its own.
        """

    def abort(self) -> None:  # noqa: B027
        """Forgets the open unit."""

    def give_up(self) -> None:  # noqa: B027
        """From another thread, while a call has not come back: what can be held back is not sent.

        Somebody else may deliver the same events next, and later ones; that call then ends as soon
        as it can, and is followed by abort() and close(), or by close() alone.
        """

    def tick(self) -> None:  # noqa: B027
        """Time has passed: a chance to roll files."""

    def close(self) -> None:  # noqa: B027
        """Lets go of connections and locks."""

    def output(self) -> str | None:
        """Text for the driver's standard output since the last call."""
        return None

    def finish(self, pipeline: str) -> None:  # noqa: B027
        """Driver, after the last epoch of a clean stop."""
