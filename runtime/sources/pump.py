"""The thread that reads a log ahead of Spark and fills segments."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ..errors import DfcError, StorageError
from ..scratch import CEILING
from .log import KeptLog, LogReader, SourceError, TransientError, log_to_stderr, logger
from .progress import SinkPositions
from .segments import SegmentStore
from .settings import ReaderSettings

IDLE_SECS = 0.5  # between two looks at anything but the log while it is quiet
CONFIRM_SECS = 3.0
FIRST_BACKOFF_SECS, LONGEST_BACKOFF_SECS = 0.2, 30.0


class Pump(threading.Thread):
    """Log to store, from `start`, until stopped; with `once` until what is committed now is in."""

    def __init__(
        self,
        make_log: Callable[[], LogReader],
        store: SegmentStore,
        settings: ReaderSettings,
        start: str,
        cut: str = "",
        once: bool = False,
    ) -> None:
        super().__init__(name="dfc-source", daemon=True)
        self._make_log = make_log
        self._store = store
        self._settings = settings
        self._position = start
        self._untouched = not start  # some sink has nothing yet, and nothing has come
        self._cut = cut if cut > start else ""  # an end that Spark has already written down
        self._once = once
        self._target: str | None = None
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._deadline = 0.0
        self._confirm_at = time.monotonic() + CONFIRM_SECS
        self._sinks = SinkPositions(settings)
        self.committed: str | None = None

    def run(self) -> None:
        log_to_stderr(self._settings.pipeline)
        try:
            self._pump()
            self._store.finish()
        except SourceError as error:
            self._store.finish(error)
        except DfcError as error:
            self._store.finish(SourceError(str(error)))
        except Exception as error:
            logger.exception("the source failed")
            self._store.finish(
                SourceError(f"source {self._settings.id}: {type(error).__name__}: {error}")
            )

    def _pump(self) -> None:
        failures = 0
        log = self._make_log()
        while not self._store.stopped:
            try:
                log.open(self._position)
                self._note_ceiling(log)
                self._confirm(log)
                if self._once and self._target is None:
                    self._target = log.head()
                while not self._store.stopped:
                    self._step(log)
                    failures = 0
                    if self._target is not None and self._reached(log, self._target):
                        self._publish()
                        self._confirm(log)
                        return
            except (TransientError, StorageError) as error:
                failures += 1
                self._back_off(failures, error)
            finally:
                log.close()

    def _reached(self, log: LogReader, target: str) -> bool:
        return log.copied() and log.position >= target

    def _step(self, log: LogReader) -> None:
        wait = IDLE_SECS
        if self._batches:
            wait = self._deadline - time.monotonic()
            # Holding back pays only while more may still come in time.
            if self._full() or wait <= 0 or log.quiet() >= wait:
                self._publish()
                return
        batches = [batch for batch in log.read(wait) if batch.num_rows]
        if batches and not self._batches:
            self._deadline = time.monotonic() + self._settings.batch_max_ms / 1000
        for batch in batches:
            self._add(batch)
        self._position = log.position
        if self._cut and self._position >= self._cut:
            self._publish()
            self._store.reached(self._cut)
            self._cut = ""
        if time.monotonic() >= self._confirm_at:
            self._confirm(log)

    def _add(self, batch: pa.RecordBatch) -> None:
        if self._cut:
            positions = np.asarray(batch["position"].to_pylist())
            below = int(np.searchsorted(positions, self._cut, side="right"))
            if below < batch.num_rows:  # an epoch known to Spark ends here
                if below:
                    self._append(batch.slice(0, below))
                self._publish()
                self._cut = ""
                batch = batch.slice(below)
        self._append(batch)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._untouched = False
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

    def _full(self) -> bool:
        return (
            self._rows >= self._settings.batch_max_events
            or self._bytes >= self._settings.batch_max_bytes
        )

    def _publish(self) -> None:
        if self._batches:
            last = self._batches[-1]
            whole = "tx_end" not in last.schema.names or bool(last["tx_end"][-1].as_py())
            self._store.put(self._batches, last["position"][-1].as_py(), whole)
        self._batches, self._rows, self._bytes = [], 0, 0

    def _note_ceiling(self, log: LogReader) -> None:
        """Lets the job see a sink that holds more than the source ever had: another source's."""
        settings = self._settings
        if settings.folder and not settings.alone and not settings.guest:
            path = os.path.join(settings.folder, CEILING)
            os.makedirs(settings.folder, exist_ok=True)
            with open(f"{path}.new", "w") as file:
                file.write(log.ceiling())
            os.rename(f"{path}.new", path)

    def _confirm(self, log: LogReader) -> None:
        """Tells the database what nobody will ask for again."""
        self._confirm_at = time.monotonic() + CONFIRM_SECS
        held = self.committed if self._settings.alone else self._sinks.smallest()
        if held:
            log.durable(held)
        elif self._untouched and log.copied() and isinstance(log, KeptLog):
            log.untouched()

    def _back_off(self, failures: int, error: DfcError) -> None:
        longest = min(LONGEST_BACKOFF_SECS, FIRST_BACKOFF_SECS * 2 ** min(failures - 1, 16))
        seconds = longest * random.uniform(0.8, 1.2)
        logger.warning("source %s: %s; again in %.1f s", self._settings.id, error, seconds)
        until = time.monotonic() + seconds
        while not self._store.stopped and time.monotonic() < until:
            time.sleep(min(0.1, seconds))
