"""Segments that the reader finishes while a task delivers: the task takes them up at once.

An epoch costs Spark a fifth of a second before its first event moves. So a task that is through with
its own segments goes on with those behind them for a while, as they come. Nobody needs to know: the
sinks hold how far it came, and the next epoch, which has these segments too, leaves out what they have.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import pyarrow as pa

STOP = "stop"  # a file beside the segments by which the job asks for an end
FOLLOW_SECS = 2.0  # storage learns how far the sinks are when the epoch ends, so it has to
QUIET_SECS = 0.5  # without anything new, and the epoch may as well end
_LOOK_SECS = 0.005

_NAME = re.compile(r"(?P<store>[0-9a-f]+)-(?P<number>\d+)-(?P<lane>\d+)\.arrow")


def segment_name(store: str, number: int, lane: int, whole: bool) -> str:
    """The file of a segment, numbered without gaps; one that ends inside a transaction is not followed."""
    return f"{store}-{number:08d}-{lane}{'' if whole else '.open'}.arrow"


def mapped(path: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as file:
        segment = pa.ipc.open_file(file)
        for index in range(segment.num_record_batches):
            yield segment.get_batch(index)


def follow(path: str, seconds: float) -> Iterator[pa.RecordBatch | None]:
    """Batches of the segments behind this one; None each time that the next is not there yet.

    Only for a reader with one lane: of several, each would end somewhere else.
    """
    found = _NAME.fullmatch(os.path.basename(path))
    if found is None or seconds <= 0:
        return
    folder, store, lane = os.path.dirname(path), found["store"], int(found["lane"])
    number = int(found["number"])
    stop = os.path.join(folder, STOP)
    now = time.monotonic()
    end, quiet = now + seconds, now + QUIET_SECS
    while now < min(end, quiet) and not os.path.exists(stop):
        whole, inside = (
            os.path.join(folder, segment_name(store, number + 1, lane, kind))
            for kind in (True, False)
        )
        if os.path.exists(whole):
            yield from mapped(whole)
            number += 1
            now = time.monotonic()
            quiet = now + QUIET_SECS
            continue
        yield None
        if os.path.exists(inside):
            return
        time.sleep(_LOOK_SECS)
        now = time.monotonic()
