"""Servers that freeze or die now and then, and come back."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ..services import Server

_BETWEEN_SECS = 3.0, 9.0
_FROZEN_SECS = 0.5, 5.0
_DEAD_SECS = 0.1, 3.0


class Weather(threading.Thread):
    """One outage after the other until `over` says so, or told to stop; all servers are up then."""

    def __init__(
        self,
        servers: Sequence[Server],
        seed: int,
        say: Callable[[str], None],
        over: Callable[[], bool],
    ) -> None:
        super().__init__(name="weather", daemon=True)
        self.outages: Counter[str] = Counter()
        self.failed: BaseException | None = None
        self._servers = list(servers)
        self._choice = random.Random(seed)
        self._say = say
        self._over = over
        self._done = threading.Event()

    def finish(self) -> None:
        self._done.set()
        self.join(180)
        if self.failed is not None:
            raise self.failed

    def run(self) -> None:
        try:
            while not (self._done.wait(self._choice.uniform(*_BETWEEN_SECS)) or self._over()):
                self._strike(self._choice.choice(self._servers), self._choice.random() < 0.5)
        except BaseException as error:
            self.failed = error

    def _strike(self, server: Server, dies: bool) -> None:
        started = time.monotonic()
        if dies:
            server.kill()
            self._done.wait(self._choice.uniform(*_DEAD_SECS))
            server.start()
        else:
            with server.paused():
                self._done.wait(self._choice.uniform(*_FROZEN_SECS))
        what = f"{server.name} {'killed' if dies else 'frozen'}"
        self.outages[what] += 1
        self._say(f"outage: {what}, away for {time.monotonic() - started:.1f} s")
