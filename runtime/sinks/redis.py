"""Redis sink: entries of streams, exactly once.

A unit is one transaction, MULTI to EXEC, with its entries and its position. A transaction watches
the key of the lane's position, so a writer that is not the last to have moved it gets nothing in.
Each lane has such a key of its own: with one for all, lanes would call off each other's work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import Barred, ConfigError, SinkError
from ..events import Events
from ..messages import Messages, check_destinations
from .base import Lane, Sink, SinkFilter
from .redis_address import connection, library, login_of, parse
from .redis_entries import command, entries
from .redis_place import Place
from .redis_wire import Refused, Reply, Wire, good

# An unfinished unit of more than this goes to the server as it comes: only there it must be whole.
EARLY_BYTES = 8 << 20
_USABLE = ("none", "stream")
_LOGIN = ("NOAUTH", "WRONGPASS", "NOPERM")
_REFUSES, _UNTRUSTED = "refuses this user", "its certificate is not trusted"
_NOT_LET_IN = (_REFUSES, _UNTRUSTED)


class RedisSink(Sink):
    """`to` is the stream of each event."""

    kind: ClassVar[str] = "redis"

    def __init__(
        self,
        id: str,
        messages: Callable[[Events], Messages],
        *,
        required: bool = True,
        filter: SinkFilter | None = None,
        uri: str,
        maxlen: int | None = None,
        send_timeout_secs: int = 5,
        batch_timeout_secs: int = 30,
        connect_timeout_secs: int = 10,
    ) -> None:
        super().__init__(id, messages, required=required, filter=filter)
        self.uri = uri
        self.maxlen = maxlen
        self.send_timeout_secs = send_timeout_secs
        self.batch_timeout_secs = batch_timeout_secs
        self.connect_timeout_secs = connect_timeout_secs
        self._wire: Wire | None = None
        self._place: Place | None = None
        self._streams: set[str] = set()  # known to be streams, or not there yet
        self._forget()

    def _forget(self) -> None:
        self._unit: list[memoryview] = []  # commands that were not sent yet
        self._bytes = 0
        self._count = 0  # entries, those sent included
        self._unknown: dict[str, None] = {}  # streams of the unit that were not looked at yet
        self._begun = False  # MULTI has been sent

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.uri, *login_of(self.uri))

    def check(self) -> None:
        try:
            connection(parse(self.uri), self.connect_timeout_secs, self.send_timeout_secs)
        except ConfigError as error:
            raise ConfigError(f"sink `{self.id}`: {error}") from None

    # --- a lane's task -------------------------------------------------------------------------

    def open(self, lane: Lane) -> str:
        self.close()
        self._streams = set()
        with self._guard():
            self._wire = self._connect()
            self._place = Place(self._wire, self.id, lane)
            return self._place.take()

    def write(self, messages: Messages, events: Events) -> None:
        count = len(events)
        if count == 0:
            return
        self._note_streams(messages, count)
        for data in entries(messages, events, self.maxlen):
            self._unit.append(data)
            self._bytes += len(data)
        self._count += count
        if self._bytes >= EARLY_BYTES:
            with self._guard():
                wire, _ = self._opened()
                wire.until(self.batch_timeout_secs)
                self._send(wire)

    def commit(self, position: str) -> None:
        self._commit(position)

    def redeliver(self, messages: Messages, events: Events, position: str, mark: str) -> None:
        self.write(messages, events)
        self._commit(position, mark)

    def redelivered(self) -> str:
        with self._guard():
            _, place = self._opened()
            return place.redelivered()

    def move(self, pipeline: str, lanes: int, position: str) -> None:
        with self._guard():
            self._wire = self._connect()
            Place(self._wire, self.id, Lane(pipeline, 0, lanes)).move(position)
        self._disconnect()

    def _commit(self, position: str, mark: str = "") -> None:
        if self._count == 0:
            # Nothing to hold for these events: the position goes down with the next that has.
            return
        with self._guard():
            wire, place = self._opened()
            wire.until(self.batch_timeout_secs)
            place.check()
            last = [place.to(position, mark), ("EXEC",), *place.look]
            self._unit.append(memoryview(b"".join(command(*words) for words in last)))
            self._send(wire)
            refused = wire.queued(self._count + 1)
            if refused is not None:
                raise refused  # EXEC does nothing then
            done = wire.executed(self._count)
            looked = [good(wire.reply()) for _ in place.look]
            if done is False:
                raise place.taken()
            if isinstance(done, Refused):
                self._put_back(wire, place.back(bool(mark)), done)
            place.moved(position, looked)
            self._forget()

    def abort(self) -> None:
        begun = self._begun
        self._forget()
        if begun:
            self._disconnect()  # the server forgets it too

    def close(self) -> None:
        self._forget()
        self._disconnect()

    # --- the server ----------------------------------------------------------------------------

    def _connect(self) -> Wire:
        made, pool = connection(parse(self.uri), self.connect_timeout_secs, self.send_timeout_secs)
        made.connect()
        wire = Wire(made, pool, self.send_timeout_secs)
        wire.until(self.send_timeout_secs)
        return wire

    def _disconnect(self) -> None:
        wire, self._wire, self._place = self._wire, None, None
        if wire is not None:
            with contextlib.suppress(Exception):
                wire.close()

    def _opened(self) -> tuple[Wire, Place]:
        if self._wire is None or self._place is None:
            raise SinkError("the sink is not open")
        return self._wire, self._place

    def _send(self, wire: Wire) -> None:
        """Sends what is there of the unit, once the server has begun a transaction."""
        asked = list(self._unknown)
        if not self._begun:
            *types, begun = wire.ask(*(("TYPE", stream) for stream in asked), ("MULTI",))
            # Without it the entries would be added one by one.
            good(begun)
            self._begun = True
        else:
            types = self._ask_aside([("TYPE", stream) for stream in asked])
        self._check_types(asked, types)
        self._unknown = {}
        wire.send(*self._unit)
        self._unit, self._bytes = [], 0

    def _ask_aside(self, commands: list[tuple[str, ...]]) -> list[Reply | Refused]:
        """Replies from outside of the transaction that is under way."""
        if not commands:
            return []
        wire = self._connect()
        try:
            return wire.ask(*commands)
        finally:
            wire.close()

    def _check_types(self, streams: Iterable[str], types: Iterable[object]) -> None:
        """A transaction goes on behind a command that fails, so what would fail is kept out of it."""
        for stream, kind in zip(streams, types, strict=True):
            if isinstance(kind, bytes) and kind.decode() not in _USABLE:
                raise SinkError(f"the key `{stream}` holds a {kind.decode()}, not a stream")
            self._streams.add(stream)

    def _put_back(self, wire: Wire, back: tuple[str, ...], failed: Refused) -> None:
        """Part of a transaction failed: comes again as a whole, rather than being lost in part."""
        streams = list(self._streams)
        # Watched since the transaction: a writer who has come behind it keeps what it has.
        for reply in wire.ask(("MULTI",), back, ("EXEC",)):
            good(reply)
        self._check_types(streams, wire.ask(*(("TYPE", stream) for stream in streams)))
        raise failed

    def _note_streams(self, messages: Messages, count: int) -> None:
        check_destinations(messages, count, _why_not)
        to = messages.to
        names: list[str] = pc.unique(to).to_pylist() if isinstance(to, pa.Array) else [str(to)]
        self._unknown |= dict.fromkeys(name for name in names if name not in self._streams)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """After a failure nobody knows where the connection stands; the next one looks anew."""
        try:
            yield
        except BaseException as error:
            self._disconnect()
            why = _explained(error)
            if why is None:
                raise
            where = f"redis at {parse(self.uri)}"
            if isinstance(error, ConfigError):
                raise ConfigError(f"sink `{self.id}`: {where}: {why}") from None
            kind = Barred if why.startswith(_NOT_LET_IN) else SinkError
            raise kind(f"{where}: {why}") from None


def _why_not(stream: str) -> str | None:
    return None if stream else "the name of its stream is empty"


def _explained(error: BaseException) -> str | None:
    """One line for a failure that was to be expected; None for any other."""
    if isinstance(error, SinkError | ConfigError):
        return str(error)
    if isinstance(error, Refused):
        return f"{_REFUSES}: {error}" if error.code in _LOGIN else str(error)
    redis = library()
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return f"{_REFUSES}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"{_UNTRUSTED}: {error}"
    if isinstance(error, TimeoutError | redis.TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError | redis.RedisError):
        return str(error) or type(error).__name__
    return None
