"""Record batches that wait: in memory while they are few, in a file beyond that."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

import pyarrow as pa

IN_MEMORY_BYTES = 16 << 20


class Spool:
    """Filled by one thread, then read once by another."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._path = ""
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def put(self, batch: pa.RecordBatch) -> None:
        self._bytes += batch.nbytes
        if self._writer is None and self._bytes <= IN_MEMORY_BYTES:
            self._batches.append(batch)
            return
        if self._writer is None:
            if self._folder:
                os.makedirs(self._folder, exist_ok=True)
            handle, self._path = tempfile.mkstemp(".spool", "dfc-", self._folder or None)
            os.close(handle)
            self._writer = pa.ipc.new_file(self._path, batch.schema)
        self._writer.write_batch(batch)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches
        if self._writer is None:
            return
        self._writer.close()
        with pa.memory_map(self._path) as file:
            spooled = pa.ipc.open_file(file)
            for index in range(spooled.num_record_batches):
                yield spooled.get_batch(index)

    def close(self) -> None:
        self._batches = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._path)
