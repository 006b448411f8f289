"""Messages that are too large for their topic, told from those that merely shared a batch with one.

A broker refuses a whole batch, by its size when compressed, which nobody knows before. So the first
refusal tells how much the topic takes; from then on no batch of several messages is larger than that,
and what is still refused was alone. It is kept in mind, and rejected when it comes again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

_FRESH_SECS = 5.0  # a limit is asked for again after this: somebody may have raised it
_MOST_REFUSED = 10_000

Fingerprint = bytes
_KNOWN: dict[Any, Limits] = {}  # by what a client is made from, in this process


def limits_of(key: Any) -> Limits:
    return _KNOWN.setdefault(key, Limits())


def fingerprint(key: bytes | None, value: bytes | None) -> Fingerprint:
    made = hashlib.blake2b(digest_size=16)
    for part in (key or b"", value or b""):
        made.update(b"%d:" % len(part) + part)
    return made.digest()


@dataclass
class Limits:
    """What topics take at most, those that have refused something."""

    topics: dict[str, int] = field(default_factory=dict)
    _refused: dict[str, set[Fingerprint]] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)

    def batch_size(self, otherwise: int) -> int:
        """So that a batch of several messages is refused by none of them."""
        return min([otherwise, *self.topics.values()])

    def learn(
        self, topic: str, refused: Iterable[Fingerprint], batch: int, ask: Callable[[str], int]
    ) -> None:
        """After a refusal by a topic; `batch` is the most that was sent to it at once."""
        self._ask(topic, ask)
        if 0 < batch <= self.topics.get(topic, 0):
            known = self._refused.setdefault(topic, set())
            if len(known) > _MOST_REFUSED:
                known.clear()
            known.update(refused)

    def refuses(self, topic: str, ask: Callable[[str], int]) -> set[Fingerprint]:
        """Messages that the topic has refused by themselves, and would refuse again."""
        if self._refused.get(topic) and time.monotonic() > self._asked[topic] + _FRESH_SECS:
            self._ask(topic, ask)
        return self._refused.get(topic, set())

    def _ask(self, topic: str, ask: Callable[[str], int]) -> None:
        limit = ask(topic)
        self._asked[topic] = time.monotonic()
        if limit != self.topics.get(topic):
            self._refused.pop(topic, None)
            self.topics.pop(topic, None)
            if limit > 0:
                self.topics[topic] = limit
