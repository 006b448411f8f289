"""Events followed through their transactions: the arrays that the kernel fills, call after call.

What was followed stays until it is taken: whole transactions, or what there is of a large one.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..kernels import binlog as kernel
from .mysql_binlog import Broken, Frames

_ROOM = 1 << 15
_WRONG = {
    kernel.TORN: "a transaction begins or ends inside another",
    kernel.NO_MAP: "rows of a table that nothing was said about",
    kernel.SHORT: "an event ends within its data",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows events of transactions; those before `whole` are complete, and one more may be open."""

    rows: Any
    txs: Any
    whole: int


class Walk:
    """Follows the events of one stream; `sources` are the places where transactions were made."""

    def __init__(self) -> None:
        self.state = np.zeros(kernel.STATE_WIDTH, np.int64)
        self.rows = np.zeros((_ROOM, kernel.ROW_WIDTH), np.int64)
        self.txs = np.zeros((_ROOM, kernel.TX_WIDTH), np.int64)
        self.maps = np.zeros((kernel.MOST_MAPS, 3), np.int64)
        self.at = 0  # the first event that was not followed
        self.names: list[str] = []
        self._numbers: dict[int, int] = {0: -1}
        self._learned = 0

    @property
    def inside(self) -> bool:
        """Whether a transaction is open."""
        return bool(self.state[kernel.S_IN])

    @property
    def pos(self) -> int:
        return int(self.state[kernel.S_POS])

    @property
    def done_pos(self) -> int:
        """Where the last whole transaction ended, or what else there is outside of them."""
        return int(self.state[kernel.S_DONE_POS])

    @property
    def number(self) -> int:
        """Of the open transaction's last rows event or statement."""
        return int(self.state[kernel.S_NUMBER])

    @property
    def open_rows(self) -> int:
        return int(self.state[kernel.S_ROWS] - self.state[kernel.S_DONE_ROWS])

    def follow(self, frames: Frames) -> int:
        """As far as it goes by itself; returns why it stopped, at event `at`."""
        count = frames.count
        if self.at >= count:
            return kernel.AT_END
        run = kernel.FOLLOW.after(count - self.at) or kernel.FOLLOW.plain
        begin = self.at
        self.at, why = run(
            frames.data,
            frames.events,
            begin,
            count,
            self.state,
            self.rows,
            self.txs,
            self.maps,
            kernel.BEGIN_WORD,
            kernel.COMMIT_WORD,
        )
        self._learn(frames)
        if why in _WRONG:
            raise Broken(_WRONG[why], self.at)
        return int(why)

    def _learn(self, frames: Frames) -> None:
        """The names behind the keys of new transactions, as long as their events are there."""
        count = int(self.state[kernel.S_TXS]) + int(self.inside)
        new = self.txs[self._learned : count]
        self._learned = int(self.state[kernel.S_TXS])
        if len(new) == 0:
            return
        keys = new[:, kernel.T_KEY]
        known = np.unique(keys) if (keys != keys[0]).any() else keys[:1]
        for key in known.tolist():
            if key in self._numbers:
                continue
            event = int(new[int(np.argmax(keys == key)), kernel.T_AT])
            if event >= 0:
                body = frames.body(event)
                if frames.events[event, kernel.TYPE] == kernel.MARIADB_GTID:
                    domain = int.from_bytes(body[8:12], "little")
                    name = f"{domain}-{int(frames.events[event, kernel.SERVER])}"
                else:
                    name = str(uuid.UUID(bytes=body[1:17]))
                self.name(key, name)

    def name(self, key: int, name: str) -> None:
        if key not in self._numbers:
            if name not in self.names:
                self.names.append(name)
            self._numbers[key] = self.names.index(name)

    def sources(self, txs: Any) -> Any:
        """Indexes into `names`, -1 for transactions without a GTID."""
        keys = txs[:, kernel.T_KEY]
        if len(keys) and (keys == keys[0]).all():
            return np.full(len(keys), self._numbers[int(keys[0])], np.int64)
        found, places = np.unique(keys, return_inverse=True)
        return np.array([self._numbers[int(key)] for key in found], np.int64)[places]

    # --- by hand: what the kernel leaves to the caller ---------------------------------------

    def passed(self, pos: int) -> None:
        """Over the event at `at`, which ends at `pos` of its file."""
        self.at += 1
        self.state[kernel.S_POS] = pos
        if not self.inside:
            self._done()

    def begin(self, start: int, time: int, server: int) -> None:
        """A transaction that no GTID stands before."""
        self.txs[int(self.state[kernel.S_TXS])] = (start, 0, 0, -1, 0, time, server, 0)
        self.state[[kernel.S_IN, kernel.S_ALONE, kernel.S_NUMBER, kernel.S_MAPS]] = 1, 0, 0, 0

    def begin_named(self, row: tuple[int, ...], alone: bool) -> None:
        self.txs[int(self.state[kernel.S_TXS])] = row
        self.state[[kernel.S_IN, kernel.S_ALONE, kernel.S_NUMBER, kernel.S_MAPS]] = 1, alone, 0, 0

    def statement(self) -> int:
        """The number of a statement in the open transaction."""
        self.state[kernel.S_NUMBER] += 1
        return self.number

    def end(self, pos: int) -> None:
        """Ends the open transaction."""
        self.txs[int(self.state[kernel.S_TXS]), kernel.T_END] = pos
        self.state[kernel.S_TXS] += 1
        self.state[[kernel.S_IN, kernel.S_MAPS]] = 0, 0
        self._done()

    def _done(self) -> None:
        self.state[kernel.S_DONE_EVENT] = self.at
        self.state[kernel.S_DONE_ROWS] = self.state[kernel.S_ROWS]
        self.state[kernel.S_DONE_TXS] = self.state[kernel.S_TXS]
        self.state[kernel.S_DONE_POS] = self.state[kernel.S_POS]

    def take_back(self, rows: int) -> None:
        """Leaves only so many rows events of the open transaction."""
        self.state[kernel.S_ROWS] = self.state[kernel.S_DONE_ROWS] + rows

    def abandon(self) -> None:
        """Drops the open transaction as if it had never begun."""
        self.take_back(0)
        self.state[[kernel.S_IN, kernel.S_MAPS]] = 0, 0

    def new_file(self, pos: int) -> None:
        self.state[kernel.S_POS] = self.state[kernel.S_DONE_POS] = pos

    def open_tx(self) -> Any:
        """The entry of the open transaction."""
        at = int(self.state[kernel.S_TXS])
        return self.txs[at : at + 1]

    # --- taking ------------------------------------------------------------------------------

    def take(self, all_of_it: bool) -> Taken:
        """What was followed: whole transactions, and with `all_of_it` the open one's rows too.

        The arrays are those of the walk: valid until `forget`.
        """
        state = self.state
        whole = int(state[kernel.S_DONE_TXS])
        if all_of_it:
            rows, txs = int(state[kernel.S_ROWS]), int(state[kernel.S_TXS]) + int(self.inside)
        else:
            rows, txs = int(state[kernel.S_DONE_ROWS]), whole
        return Taken(self.rows[:rows], self.txs[:txs], whole)

    def forget(self, frames: Frames, taken: Taken, all_of_it: bool) -> int:
        """Drops what was taken; returns how many events of the stream that were."""
        state = self.state
        events = self.at if all_of_it else int(state[kernel.S_DONE_EVENT])
        rows, whole = len(taken.rows), taken.whole
        left = int(state[kernel.S_ROWS]) - rows
        before = int(frames.events[events, kernel.START]) if events < frames.count else 0
        frames.drop(events)
        shift = before - int(frames.events[0, kernel.START]) if frames.count else 0
        if left:
            kept = self.rows[rows : rows + left].copy()
            kept[:, [kernel.R_BITS, kernel.R_BEGIN, kernel.R_STOP]] -= shift
            kept[:, kernel.R_EVENT] -= events
            kept[:, kernel.R_MAP_AT] = np.maximum(kept[:, kernel.R_MAP_AT] - events, -1)
            kept[:, kernel.R_TX] -= whole
            self.rows[:left] = kept
        if self.inside:
            open_tx = self.txs[int(state[kernel.S_TXS])].copy()
            open_tx[kernel.T_AT] = max(int(open_tx[kernel.T_AT]) - events, -1)
            self.txs[int(state[kernel.S_TXS]) - whole] = open_tx
        maps = int(state[kernel.S_MAPS])
        self.maps[:maps, 2] = np.maximum(self.maps[:maps, 2] - events, -1)
        self.at -= events
        state[kernel.S_ROWS] = left
        state[kernel.S_TXS] -= whole
        state[kernel.S_DONE_ROWS] = 0
        state[kernel.S_DONE_TXS] = 0
        state[kernel.S_DONE_EVENT] = 0
        self._learned = int(state[kernel.S_TXS])
        return events
