"""Transactions that the server sends in pieces before they are over: kept aside until they are.

Their messages wait in memory, beyond a few MiB in files. A commit gives them back as an ordinary transaction,
without what its aborted subtransactions did, so that nothing behind this knows how they came.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from ..kernels.postgres_messages import (
    ORIGIN,
    RELATION,
    STREAM_ABORT,
    STREAM_COMMIT,
    STREAM_START,
    STREAM_STOP,
    TYPE,
    UNIX,
    WHERE,
    FrameError,
    StreamAbort,
    StreamCommit,
    StreamStart,
    parse,
)
from .postgres_stream import Run

IN_MEMORY_BYTES = 4 << 20
_OURS = (STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT)
_KEPT = (RELATION, TYPE)  # what they describe counts, whatever became of where they stood
_HEAD = struct.Struct(">QQ")


class _Pieces:
    """The messages of one transaction, in blocks as they came."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._blocks: list[tuple[bytes, Any]] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self.aborted: set[int] = set()

    def put(self, data: bytes, sizes: Any) -> None:
        self._bytes += len(data) + 8 * len(sizes)
        if self._file is None and self._bytes <= IN_MEMORY_BYTES:
            self._blocks.append((data, sizes))
            return
        if self._file is None:
            if self._folder:
                os.makedirs(self._folder, exist_ok=True)
            # Gone when it is closed, and when the process is.
            folder = self._folder or None
            self._file = tempfile.TemporaryFile(prefix="dfc-", dir=folder)  # noqa: SIM115
            for block in self._blocks:
                self._write(*block)
            self._blocks = []
        self._write(data, sizes)

    def _write(self, data: bytes, sizes: Any) -> None:
        assert self._file is not None
        self._file.write(_HEAD.pack(len(sizes), len(data)))
        self._file.write(sizes.astype(np.int64).tobytes())
        self._file.write(data)

    def __iter__(self) -> Iterator[tuple[bytes, Any]]:
        yield from self._blocks
        if self._file is not None:
            self._file.seek(0)
            while head := self._file.read(_HEAD.size):
                count, size = _HEAD.unpack(head)
                sizes = np.frombuffer(self._file.read(8 * count), np.int64)
                yield self._file.read(size), sizes

    def close(self) -> None:
        self._blocks = []
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


class Large:
    """Sorts the messages of a connection; `folder` is for what does not fit into memory."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._open = 0  # the transaction whose piece is being received
        self._kept: dict[int, _Pieces] = {}

    @property
    def kept(self) -> tuple[int, ...]:
        """Transactions that are not over."""
        return tuple(self._kept)

    def close(self) -> None:
        for pieces in self._kept.values():
            pieces.close()
        self._kept = {}

    def sorted(self, run: Run) -> Iterator[Run]:
        """Ordinary transactions: those of the run, and those that it ends."""
        content = np.frombuffer(run.data, np.uint8)
        kinds = content[run.starts]
        marks = np.flatnonzero(np.isin(kinds, _OURS)).tolist()
        if not marks and not self._open:
            yield run
            return
        done = 0
        for mark in [*marks, len(run.starts)]:
            if mark > done:
                piece = _slice(run, done, mark)
                if self._open:
                    self._keep(piece)
                else:
                    yield piece
            done = mark + 1
            if mark < len(run.starts):
                start, stop = int(run.starts[mark]), int(run.stops[mark])
                yield from self._marked(parse(bytes(run.data[start:stop]), mark, False), mark, run)

    def _marked(self, message: Any, mark: int, run: Run) -> Iterator[Run]:
        match message:
            case StreamStart(xid, _):
                if self._open:
                    raise FrameError(WHERE, mark, 0, "a piece of a transaction begins in another")
                self._open = xid
                self._kept.setdefault(xid, _Pieces(self._folder))
            case StreamAbort(xid, sub_xid):
                pieces = self._kept.get(xid)
                if pieces is not None and sub_xid != xid:
                    pieces.aborted.add(sub_xid)
                elif pieces is not None:
                    self._kept.pop(xid).close()
            case StreamCommit():
                yield from self._committed(message, mark)
            case _:
                if not self._open:
                    raise FrameError(WHERE, mark, 0, "a piece of a transaction ends in none")
                self._open = 0

    def _keep(self, piece: Run) -> None:
        first, last = int(piece.starts[0]), int(piece.stops[-1])
        sizes = piece.stops - piece.starts
        if int(sizes.sum()) == last - first:
            data = bytes(piece.data[first:last])
        else:  # headers of frames lie between them
            data = b"".join(
                piece.data[start:stop]
                for start, stop in zip(piece.starts.tolist(), piece.stops.tolist(), strict=True)
            )
        self._kept[self._open].put(data, sizes)

    def _committed(self, commit: StreamCommit, mark: int) -> Iterator[Run]:
        pieces = self._kept.pop(commit.xid, None)
        if pieces is None:
            raise FrameError(WHERE, mark, 0, "it commits a transaction of which nothing came")
        try:
            time = commit.time - UNIX
            yield _one(b"B" + struct.pack(">QqI", commit.lsn, time, commit.xid), commit.lsn)
            for data, sizes in pieces:
                yield from _ordinary(data, sizes, pieces.aborted, commit.lsn, mark)
            end = struct.pack(">BQQq", 0, commit.lsn, commit.end_lsn, time)
            yield _one(b"C" + end, commit.lsn)
        finally:
            pieces.close()


def _ordinary(data: bytes, sizes: Any, aborted: set[int], lsn: int, mark: int) -> Iterator[Run]:
    """Messages of a piece as an ordinary transaction has them: without the id behind their kind."""
    content = np.frombuffer(bytearray(data), np.uint8)
    stops = np.cumsum(sizes)
    starts = stops - sizes
    if (sizes < 6).any():
        raise FrameError(WHERE, mark, 0, "a message of its transaction is too short")
    kinds = content[starts]
    if (kinds == ORIGIN).any():  # has no id, and says nothing that anybody needs
        keep = kinds != ORIGIN
        starts, stops, kinds = starts[keep], stops[keep], kinds[keep]
    if aborted:
        xids = np.zeros(len(starts), np.int64)
        for byte in range(4):
            xids = (xids << 8) | content[starts + 1 + byte]
        keep = ~np.isin(xids, list(aborted)) | np.isin(kinds, _KEPT)
        starts, stops, kinds = starts[keep], stops[keep], kinds[keep]
    if not len(starts):
        return
    content[starts + 4] = kinds
    yield Run(content.data, starts + 4, stops, np.full(len(starts), lsn, np.int64))


def _one(message: bytes, lsn: int) -> Run:
    return Run(message, np.array([0]), np.array([len(message)]), np.array([lsn], np.int64))


def _slice(run: Run, first: int, last: int) -> Run:
    wal_end = run.wal_end if last == len(run.starts) else 0
    return Run(
        run.data, run.starts[first:last], run.stops[first:last], run.lsns[first:last], wal_end
    )
