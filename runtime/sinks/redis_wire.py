"""A connection to Redis for bulk work: many commands in one write, their replies read by counting.

redis-py connects, logs in and speaks TLS or to Sentinel. A client that makes an object of every
command and every reply takes several times as long over them as the server does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .redis_entries import command

_QUEUED = b"+QUEUED\r\n"
_PIECE = 1 << 20

Reply = bytes | int | list[Any] | None


class Refused(Exception):
    """An error that the server replied with; its first word says which."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


def good(reply: Reply | Refused) -> Reply:
    if isinstance(reply, Refused):
        raise reply
    return reply


class Wire:
    """`silence_secs` is how long the server may keep still; until() gives the end of all waiting."""

    def __init__(self, connection: Any, pool: Any, silence_secs: float) -> None:
        # Held, because a connection without them closes its socket.
        self._connection, self._pool = connection, pool
        self._socket = connection._sock
        self._silence = silence_secs
        self._end = 0.0
        self._data = bytearray()
        self._at = 0

    def close(self) -> None:
        self._connection.disconnect()

    def until(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def send(self, *texts: bytes | memoryview) -> None:
        # Small ones in one piece: each piece of its own is a call to the kernel and on both sides.
        whole = [b"".join(texts)] if sum(map(len, texts)) <= _PIECE else texts
        for text in whole:
            rest = memoryview(text)
            while rest:
                self._wait_for_at_most(self._silence)
                rest = rest[self._socket.send(rest[:_PIECE]) :]

    def ask(self, *commands: Sequence[str]) -> list[Reply | Refused]:
        """The replies to a few commands, errors among them."""
        self.send(b"".join(command(*words) for words in commands))
        return [self.reply() for _ in commands]

    def reply(self) -> Reply | Refused:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return Refused(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        length = int(rest)
        if kind == b"$":
            return None if length < 0 else self._exactly(length)
        if kind == b"*":
            return None if length < 0 else [self.reply() for _ in range(length)]
        raise ConnectionError("this is not the Redis protocol")

    def queued(self, count: int) -> Refused | None:
        """The replies to the commands of a transaction: the first error, if there is one."""
        left = count
        while left:
            ready = min(left, (len(self._data) - self._at) // len(_QUEUED))
            if ready == 0:
                self._fill(self._silence)
                if self._data[self._at : self._at + 1] == b"-":
                    break
                continue
            end = self._at + ready * len(_QUEUED)
            if self._data[self._at : end] != _QUEUED * ready:
                break
            self._at, left = end, left - ready
        first = None
        for _ in range(left):
            reply = self.reply()
            if isinstance(reply, Refused) and first is None:
                first = reply
        return first

    def executed(self, entries: int) -> bool | Refused:
        """The reply to EXEC of so many XADDs and one more command.

        False when it was called off by a watch; an error when part of it failed, which takes back
        nothing of the rest. An error of the whole is raised.
        """
        header = self._line(patient=True)
        if header[:1] == b"-":
            raise Refused(header[1:].decode(errors="replace"))
        if header == b"*-1":
            return False
        if header != b"*%d" % (entries + 1):
            raise ConnectionError("this is not the reply to a transaction")
        failed = self._ids(entries)
        last = self.reply()
        return failed or (last if isinstance(last, Refused) else True)

    def _ids(self, count: int) -> Refused | None:
        # An id is two lines, an error one line that begins with a minus, as no line of an id does.
        seen, lines = self._at, 0
        while lines < 2 * count:
            if seen == len(self._data):
                seen -= self._fill(self._silence)
            overlap = max(seen - 1, self._at)
            if self._data[self._at : self._at + 1] == b"-" or self._data.find(b"\n-", overlap) >= 0:
                errors = [r for _ in range(count) if isinstance(r := self.reply(), Refused)]
                return errors[0] if errors else None
            lines += self._data.count(b"\n", seen)
            seen = len(self._data)
        end = seen
        for _ in range(lines - 2 * count + 1):
            end = self._data.rfind(b"\n", self._at, end)
        self._at = end + 1
        return None

    # --- bytes ---------------------------------------------------------------------------------

    def _line(self, patient: bool = False) -> bytes:
        while (end := self._data.find(b"\r\n", self._at)) < 0:
            self._fill(None if patient else self._silence)
        line = bytes(self._data[self._at : end])
        self._at = end + 2
        return line

    def _exactly(self, length: int) -> bytes:
        while len(self._data) - self._at < length + 2:
            self._fill(self._silence)
        text = bytes(self._data[self._at : self._at + length])
        self._at += length + 2
        return text

    def _fill(self, silence: float | None) -> int:
        """More bytes; returns by how much the ones there have moved to the front."""
        moved = self._at
        del self._data[: self._at]
        self._at = 0
        self._wait_for_at_most(silence)
        more = self._socket.recv(1 << 18)
        if not more:
            raise ConnectionError("the server closed the connection")
        self._data += more
        return moved

    def _wait_for_at_most(self, silence: float | None) -> None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left if silence is None else min(left, silence))
