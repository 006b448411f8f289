"""Sinks side by side: each takes its work in order, in a thread of its own.

They wait for networks and disks, so they wait at the same time; meanwhile the next events are made
ready. At most `inflight` batches are on their way to a sink at once.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from .batch import Piece
from .events import Events
from .outlet import Outlet

_LOOK_SECS = 0.2  # how often it is looked at who keeps the others waiting


class Abreast:
    """Outlets of one task.

    `deadline_secs` is how long one may be busy with a batch, and `enough` says whether the source
    may move on with these sinks: then the others have only the patience that is left for them.
    """

    def __init__(
        self,
        outlets: Sequence[Outlet],
        inflight: int,
        deadline_secs: float | None,
        enough: Callable[[Iterable[str]], bool],
    ) -> None:
        self._outlets = outlets
        self._inflight = inflight
        self._deadline = deadline_secs
        self._enough = enough
        self._threads = [ThreadPoolExecutor(1, f"dfc-{o.sink.id}") for o in outlets]
        self._under_way: deque[tuple[int, list[Future[None]]]] = deque()

    def deliver(self, events: Events, pieces: Sequence[Piece]) -> None:
        """Waits for room, and hands the events to every outlet."""
        units = sum(piece.position is not None for piece in pieces)
        # Events that are more than all the room there is pass alone, or they never would.
        while self._under_way and sum(n for n, _ in self._under_way) + units > self._inflight:
            self._await(self._under_way.popleft()[1])
        self._under_way.append((units, self._start(Outlet.deliver, events, pieces)))

    def drain(self) -> None:
        """Waits until nothing is on its way."""
        while self._under_way:
            self._await(self._under_way.popleft()[1])

    def each(self, step: Callable[..., None], *arguments: Any) -> None:
        """Has every outlet make a step behind all that it was given, and waits for it."""
        self.drain()
        self._await(self._start(step, *arguments))

    def close(self) -> None:
        for _, steps in self._under_way:
            with contextlib.suppress(Exception):  # a first one was heard, or will be
                self._await(steps)
        self._await(self._start(Outlet.close))
        for outlet, thread in zip(self._outlets, self._threads, strict=True):
            thread.shutdown(wait=not outlet.late)

    def _start(self, step: Callable[..., None], *arguments: Any) -> list[Future[None]]:
        return [
            thread.submit(_unless_late, outlet, step, *arguments)
            for outlet, thread in zip(self._outlets, self._threads, strict=True)
        ]

    def _await(self, steps: Sequence[Future[None]]) -> None:
        """Waits for all but those that are given up, before one that failed is heard."""
        pairs = list(zip(self._outlets, steps, strict=True))
        while busy := [(o, step) for o, step in pairs if not (o.late or step.done())]:
            wait([step for _, step in busy], _LOOK_SECS)
            through = [o.sink.id for o, step in pairs if step.done() and o.error is None]
            enough = self._enough(through)
            for outlet, step in busy:
                if not step.done():
                    self._look_at(outlet, enough)
        for step in steps:
            if step.done():
                step.result()

    def _look_at(self, outlet: Outlet, enough: bool) -> None:
        since = outlet.since
        if since is None:
            return
        busy, patience = time.monotonic() - since, outlet.patience
        if self._deadline and busy > self._deadline:
            outlet.give_up(
                f"a batch was under way for more than {self._deadline:g} s "
                "(sink_batch_deadline_secs)"
            )
        elif enough and patience is not None and busy > patience:
            outlet.give_up(
                f"no answer for {patience:g} s, and the other sinks wait for nobody else"
            )


def _unless_late(outlet: Outlet, step: Callable[..., None], *arguments: Any) -> None:
    if not outlet.late:
        step(outlet, *arguments)
