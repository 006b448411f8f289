"""Where a lane of a Redis sink stands: two keys of the server that every transaction watches.

One is the lane's own and holds its position. The other is shared and holds the agreement on the number
of lanes.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from ..agreement import Agreement, common
from ..errors import ConfigError, SinkError
from .base import Lane
from .redis_wire import Reply, Wire, good

_ATTEMPTS = 20
_FIELDS = ("position", "generation")
_MARK = "redelivered"


class Place:
    """Taken once, then moved with every transaction."""

    def __init__(self, wire: Wire, sink: str, lane: Lane) -> None:
        self._wire = wire
        self._lane = lane
        self._shared = f"dfc:position:{lane.pipeline}/{sink}"
        self._own = self._key(lane.index)
        self._agreement = Agreement(lane.count)
        self._seen: list[Reply] = []  # shared and own key, as they must still be
        self.position = ""

    def _key(self, lane: int) -> str:
        return f"{self._shared}/{lane}"

    # --- taking it -----------------------------------------------------------------------------

    def take(self) -> str:
        """The lane's position; from here on nobody else may move it."""
        for _ in range(_ATTEMPTS):
            new = _text(Agreement(self._lane.count))
            cluster, made, *looked = self._wire.ask(
                ("INFO", "cluster"), ("SET", self._shared, new, "NX"), *self.look
            )
            if isinstance(cluster, bytes) and b"cluster_enabled:1" in cluster:
                raise ConfigError(
                    "this server is part of a Redis Cluster, which is not supported: the entries "
                    "of a batch and its position must be written in one transaction"
                )
            good(made)
            self._seen = [good(reply) for reply in looked[1:]]
            agreement = _agreement(self._seen[0])
            if agreement is not None and agreement.lanes == self._lane.count:
                self._agreement = agreement
                self.position = _position(self._seen[1], agreement)
                return self.position
            if agreement is not None:
                self._change(agreement)
        raise SinkError("another process keeps changing the number of lanes")

    def _change(self, old: Agreement) -> None:
        """Makes a new agreement, unless anything has moved meanwhile."""
        keys = [self._key(lane) for lane in range(old.lanes)]
        replies = self._wire.ask(
            ("WATCH", self._shared, *keys),
            ("GET", self._shared),
            *(("HMGET", key, *_FIELDS) for key in keys),
        )
        _, shared, *lanes = [good(reply) for reply in replies]
        if _agreement(shared) == old:
            there = [_position(reply, old) for reply in lanes]
            self._follow(old, common("it", there, self._lane.known))

    def _follow(self, old: Agreement, start: str) -> bool:
        """Whether nothing that is watched has moved meanwhile."""
        new = _text(old.followed(self._lane.count, start))
        replies = self._wire.ask(("MULTI",), ("SET", self._shared, new), ("EXEC",))
        return [good(reply) for reply in replies][-1] is not None

    def move(self, position: str) -> None:
        """Puts all lanes there: by an agreement that follows, no own key counts any more."""
        for _ in range(_ATTEMPTS):
            _, found = self._wire.ask(("WATCH", self._shared), ("GET", self._shared))
            if self._follow(_agreement(good(found)) or Agreement(self._lane.count), position):
                return
        raise SinkError("another process keeps changing the number of lanes")

    # --- moving it -----------------------------------------------------------------------------

    @property
    def look(self) -> list[tuple[str, ...]]:
        """Commands that watch the place and then read it; seen() takes their replies."""
        return [
            ("WATCH", self._shared, self._own),
            ("GET", self._shared),
            ("HMGET", self._own, *_FIELDS),
        ]

    def to(self, position: str, mark: str = "") -> tuple[str, ...]:
        """The command that moves it; `mark` is that of a unit of old events."""
        place = ("HSET", self._own, "position", position, "generation", self._generation)
        return (*place, _MARK, mark) if mark else place

    def back(self, marked: bool) -> tuple[str, ...]:
        """The command that undoes it, and the mark that came with it."""
        if not self.position:
            return ("DEL", self._own)
        return (*self.to(self.position), _MARK, "") if marked else self.to(self.position)

    def redelivered(self) -> str:
        """The mark of the last unit of old events."""
        (reply,) = self._wire.ask(("HMGET", self._own, _MARK))
        marks = good(reply)
        assert isinstance(marks, list)
        return bytes(marks[0] or b"").decode()

    @property
    def _generation(self) -> str:
        return str(self._agreement.generation)

    def moved(self, position: str, looked: list[Reply]) -> None:
        """The transaction was carried out; `looked` says whether somebody came right behind it."""
        self.position = position
        expected = [self._seen[0], [position.encode(), self._generation.encode()]]
        self._seen = looked[1:]
        if self._seen != expected:
            self._seen = []

    def check(self) -> None:
        if not self._seen:
            raise self.taken()

    def taken(self) -> SinkError:
        return SinkError(f"another writer has moved on from position {self.position or '(none)'}")


def _text(agreement: Agreement) -> str:
    return json.dumps(asdict(agreement), separators=(",", ":"))


def _agreement(reply: Reply) -> Agreement | None:
    if not isinstance(reply, bytes):
        return None
    try:
        return Agreement(**json.loads(reply))
    except (TypeError, ValueError):
        raise SinkError("the key of its positions does not hold what dfc writes there") from None


def _position(reply: Reply, agreement: Agreement) -> str:
    assert isinstance(reply, list)
    position, generation = reply
    if position is None:
        return agreement.start
    return agreement.counts(bytes(position).decode(), int(generation))
