"""What a mysql source keeps in storage: servers by era, where it began, and which transactions a
position covers, so that another server can be asked for the rest of them."""

from __future__ import annotations

import hashlib
import json
import zlib
from base64 import b85decode, b85encode
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..positions import NAMESPACE
from ..storage import Backend
from .log import SourceError
from .mysql_gtid import Executed, executed
from .mysql_position import Place
from .settings import ReaderSettings

QUEUE = "mysql_gtids"
_MOST_STAMPS = 64


@dataclass
class Era:
    """One server's numbering of its log files."""

    server: str
    mariadb: bool
    base: str
    digits: int
    stamps: dict[int, int] = field(default_factory=dict)  # when a file was begun, by its number

    def name(self, file: int) -> str:
        return f"{self.base}.{file:0{self.digits}d}"

    def stamp(self, file: int, seconds: int) -> bool:
        """Remembers when a file was begun; False when it was another moment before."""
        if self.stamps.setdefault(file, seconds) != seconds:
            return False
        while len(self.stamps) > _MOST_STAMPS:
            del self.stamps[min(self.stamps)]
        return True


@dataclass(frozen=True, slots=True)
class Run:
    """Transactions of one source, numbered one after the other, in a row in one file."""

    source: str
    first: int
    file: int
    starts: Any  # offsets at which they begin
    ends: Any  # the last event of each that was ours, as event << 28 | row; 0 for none

    @property
    def last(self) -> int:
        return self.first + len(self.starts) - 1


class Notes:
    """All of it, in memory and, unless there is no storage, on disk."""

    def __init__(self, settings: ReaderSettings, tables: object) -> None:
        self._key = f"{settings.pipeline}/{settings.id}"
        self._storage: Backend | None = settings.storage.open() if settings.storage else None
        # What was not captured up to a place may be with other patterns.
        self._tables = hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:16]
        self.eras: list[Era] = []
        self.begin = ""
        self.at = ""  # every transaction before it is delivered; `gtids` are all of them
        self.gtids = ""
        self.last = ""  # nothing that came behind it and before `at` was ours
        self.prepared: dict[str, str] = {}  # where the parts of XA transactions begin
        self._entries: list[tuple[int, str, int, list[Run]]] = []
        if self._storage is not None:
            self._load()

    @property
    def kept(self) -> bool:
        return self._storage is not None

    def close(self) -> None:
        if self._storage is not None:
            self._storage.close()

    def _load(self) -> None:
        assert self._storage is not None
        text = self._storage.get(NAMESPACE, f"{self._key}::mysql")
        if text is None:
            # Positions were deleted to begin anew: what was noted beside them is worth nothing.
            for number, _ in self._storage.peek(QUEUE, self._key, 1 << 31):
                self._storage.ack(QUEUE, self._key, number)
            return
        state = json.loads(text)
        self.eras = [
            Era(e["server"], e["mariadb"], e["base"], e["digits"], {int(n): s for n, s in e["stamps"].items()})
            for e in state["eras"]
        ]  # fmt: skip
        self.begin, self.at, self.gtids = state["begin"], state["at"], state["gtids"]
        self.last = state["last"] if state["tables"] == self._tables else "~"
        self.prepared = state["prepared"]
        for number, value in self._storage.peek(QUEUE, self._key, 1 << 31):
            end, era, runs = json.loads(value)
            self._entries.append((number, end, era, [_run(run) for run in runs]))

    def save(self) -> None:
        if self._storage is None:
            return
        state = {
            "eras": [
                {"server": e.server, "mariadb": e.mariadb, "base": e.base, "digits": e.digits, "stamps": e.stamps}
                for e in self.eras
            ],
            "begin": self.begin,
            "at": self.at,
            "gtids": self.gtids,
            "last": self.last,
            "prepared": self.prepared,
            "tables": self._tables,
        }  # fmt: skip
        self._storage.put(NAMESPACE, f"{self._key}::mysql", json.dumps(state).encode())

    # --- transactions ----------------------------------------------------------------------

    def add(self, era: int, end: str, runs: list[Run]) -> None:
        """Notes the transactions up to `end`; before any event of them is handed out."""
        if self._storage is None or not runs:
            return
        packed = [
            [run.source, run.first, run.file, _packed(run.starts), _packed(run.ends)]
            for run in runs
        ]
        number = self._storage.push(QUEUE, self._key, json.dumps([end, era, packed]).encode())
        self._entries.append((number, end, era, runs))

    def delivered(self, position: str) -> None:
        """Every sink holds everything up to here: the notes on it become one."""
        done = None
        gtids = self._base()
        while self._entries and self._entries[0][1] <= position:
            done = self._entries.pop(0)
            for run in done[3]:
                gtids.add(run.source, run.first, run.last)
        if done is None or self._storage is None:
            return
        # In this order: what is added twice does no harm, what is missing would.
        self.at, self.gtids = done[1], str(gtids)
        self.save()
        self._storage.ack(QUEUE, self._key, done[0])

    def idle(self, position: str, last: str) -> None:
        """Every sink holds everything up to `last`, and nothing up to `position` was ours."""
        self.delivered(position)
        self.at, self.last = max(self.at, position), last
        self.save()

    def executed_at(self, place: Place) -> Executed | None:
        """The transactions up to a position, when they are known."""
        if not self.eras or (not self.gtids and not self._entries):
            return None
        if str(place) < self.at and not (self.last and self.last <= str(place)):
            return None
        gtids = self._base()
        for _, _, era, runs in self._entries:
            for run in runs:
                if (era, run.file) < (place.era, place.file):
                    count = len(run.starts)
                elif (era, run.file) > (place.era, place.file):
                    count = 0
                else:
                    count = int(np.searchsorted(run.starts, place.offset, "left"))
                    if count < len(run.starts) and run.starts[count] == place.offset:
                        # A transaction that is not all delivered is not done: all of it comes again.
                        count += place.event >= 0 and place.ordinal >= run.ends[count]
                if count:
                    gtids.add(run.source, run.first, run.first + count - 1)
        return gtids

    def places(self, but: int) -> dict[str, list[tuple[int, Run]]]:
        """Where transactions stand that were handed out from the logs of other eras, by source."""
        found: dict[str, list[tuple[int, Run]]] = {}
        for _, _, era, runs in self._entries:
            for run in runs:
                if era != but:
                    found.setdefault(run.source, []).append((era, run))
        return found

    def _base(self) -> Executed:
        mariadb = self.eras[-1].mariadb if self.eras else False
        return executed(mariadb, self.gtids)

    def era(self, number: int) -> Era:
        if number >= len(self.eras):
            raise SourceError(
                "the stored position is not in the notes that were kept beside it: give the "
                "pipeline the same storage as before"
            )
        return self.eras[number]


def _packed(numbers: Any) -> str:
    deltas = np.diff(numbers, prepend=0).astype(np.int64)
    return b85encode(zlib.compress(deltas.tobytes(), 1)).decode()


def _unpacked(text: str) -> Any:
    return np.cumsum(np.frombuffer(zlib.decompress(b85decode(text)), np.int64))


def _run(packed: list[Any]) -> Run:
    source, first, file, starts, ends = packed
    return Run(source, first, file, _unpacked(starts), _unpacked(ends))
