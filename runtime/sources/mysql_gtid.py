"""Global transaction ids: which transactions a position covers, as MySQL and as MariaDB write it.

Both name a transaction by where it was made and a number. The place is text here: `UUID` or
`UUID:tag` on MySQL, `domain-server` on MariaDB.
"""

from __future__ import annotations

import re
import struct
import uuid
from bisect import bisect_right
from typing import Protocol, Self

_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")


class Executed(Protocol):
    """Every transaction up to some position of a log, and no other."""

    def add(self, source: str, first: int, last: int) -> None:
        """The transactions first..last of one source, in the order of the log."""

    def copy(self) -> Self: ...

    def __str__(self) -> str: ...

    def __bool__(self) -> bool: ...


class MysqlGtids:
    """A GTID set: whatever numbers of whatever servers, kept whole."""

    def __init__(self, text: str = "") -> None:
        self._ranges: dict[str, list[tuple[int, int]]] = {}  # [first, last], sorted, apart
        for part in filter(None, (part.strip() for part in text.split(","))):
            server, *rest = part.split(":")
            name = str(uuid.UUID(server.strip()))
            place = name
            for piece in rest:
                piece = piece.strip().lower()
                if _TAG.fullmatch(piece):
                    place = f"{name}:{piece}"
                    continue
                first, _, last = piece.partition("-")
                self.add(place, int(first), int(last or first))

    def add(self, source: str, first: int, last: int) -> None:
        ranges = self._ranges.setdefault(source, [])
        if ranges and ranges[-1][0] <= first <= ranges[-1][1] + 1:  # how it nearly always is
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
            return
        at = bisect_right(ranges, (first, last))
        ranges.insert(at, (first, last))
        merged: list[tuple[int, int]] = []
        for low, high in ranges:
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        self._ranges[source] = merged

    def has(self, source: str, number: int) -> bool:
        return any(low <= number <= high for low, high in self._ranges.get(source, ()))

    def within(self, other: MysqlGtids) -> bool:
        """Whether every transaction of this set is in the other."""
        return all(
            any(low <= first and last <= high for low, high in other._ranges.get(source, ()))
            for source, ranges in self._ranges.items()
            for first, last in ranges
        )

    def encode(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID has it."""
        tagged = any(":" in source for source in self._ranges)
        count = len(self._ranges)
        if tagged:
            # The form of servers that know tags: told by the first and the last byte.
            head = struct.pack("<Q", 1 | count << 8 | 1 << 56)
        else:
            head = struct.pack("<Q", count)
        parts = [head]
        for source, ranges in sorted(self._ranges.items()):
            server, _, tag = source.partition(":")
            parts.append(uuid.UUID(server).bytes)
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack("<Q", len(ranges)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in ranges]
        return b"".join(parts)

    def copy(self) -> MysqlGtids:
        made = MysqlGtids()
        made._ranges = {source: list(ranges) for source, ranges in self._ranges.items()}
        return made

    def __str__(self) -> str:
        return ",".join(
            source
            + "".join(
                f":{first}" if first == last else f":{first}-{last}" for first, last in ranges
            )
            for source, ranges in sorted(self._ranges.items())
        )

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MysqlGtids) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]


class MariadbGtids:
    """The last transaction of every domain, which is all that MariaDB asks for."""

    def __init__(self, text: str = "") -> None:
        self._last: dict[int, tuple[int, int]] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            domain, server, number = part.split("-")
            self._last[int(domain)] = (int(server), int(number))

    def add(self, source: str, first: int, last: int) -> None:
        domain, _, server = source.partition("-")
        self._last[int(domain)] = (int(server), last)

    def copy(self) -> MariadbGtids:
        made = MariadbGtids()
        made._last = dict(self._last)
        return made

    def __str__(self) -> str:
        return ",".join(
            f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self._last.items())
        )

    def __bool__(self) -> bool:
        return bool(self._last)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariadbGtids) and self._last == other._last

    __hash__ = None  # type: ignore[assignment]


def executed(mariadb: bool, text: str) -> Executed:
    return MariadbGtids(text) if mariadb else MysqlGtids(text)
