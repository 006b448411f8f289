"""Writes units to a file sink in children that are killed at random moments, over and over.

Usage: file_writer.py FOLDER KILLS SEED. Children are forked, so that a round takes milliseconds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pyarrow as pa
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import FileSink, Lane

TABLES = 3


def unit(first: int, count: int) -> tuple[Messages, Events]:
    numbers = range(first, first + count)
    batch = pa.record_batch({"position": pa.array([f"{i:016x}" for i in numbers], pa.string())})
    to = pa.array([f"t/{i % TABLES}" for i in numbers], pa.string())
    value = pa.array([f'{{"id":{i},"pad":"{"x" * (i % 50)}"}}' for i in numbers], pa.string())
    return Messages(to=to, value=value), Events(batch, pipeline="p")


def sink(folder: str) -> FileSink:
    return FileSink("files", lambda e: Messages(value=""), path=folder, roll_max_events=70)


def write_on(folder: str, seed: int) -> None:
    """Goes on behind the sink's own position until it is killed."""
    chance = random.Random(seed)
    while True:
        one = sink(folder)
        at = int(one.open(Lane("p")) or "0", 16)
        for _ in range(chance.randrange(1, 20)):
            size = chance.randrange(1, 40)
            half = size // 2
            if half:
                one.write(*unit(at + 1, half))
            one.write(*unit(at + 1 + half, size - half))
            at += size
            one.commit(f"{at:016x}")
        one.close()


def main() -> None:
    folder, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    unit(1, 10)
    for number in range(kills):
        child = os.fork()
        if child == 0:
            try:
                write_on(folder, seed * 1000 + number)
            finally:
                os._exit(9)
        time.sleep(chance.uniform(0.001, 0.06))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the writer failed by itself"
    # What the last child had begun is begun again, as the next run would.
    last = sink(folder)
    at = int(last.open(Lane("p")) or "0", 16)
    last.write(*unit(at + 1, TABLES))
    last.commit(f"{at + TABLES:016x}")
    last.close()
    last.finish("p")


if __name__ == "__main__":
    main()
