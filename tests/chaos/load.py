"""The database that a pipeline reads, and somebody who changes it all the time."""

from __future__ import annotations

import random
import sqlite3
import threading
from pathlib import Path

# Between transactions: shortly before a kill, and while a run recovers from one. Then it has to find
# work, but not so much that catching up takes longer than the campaign.
BUSY_SECS, QUIET_SECS = 0.05, 0.8


def make_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.executescript(
            "PRAGMA journal_mode = WAL;"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT);"
            "CREATE TABLE items (name TEXT, number INTEGER);"
        )


def is_watched(path: Path) -> bool:
    """Changes count from the moment that the job has its triggers on both tables."""
    query = "SELECT count(DISTINCT tbl_name) FROM sqlite_master WHERE type = 'trigger'"
    with sqlite3.connect(path, timeout=30) as database:
        (tables,) = database.execute(query).fetchone()
    return int(tables) >= 2


def last_number(path: Path) -> int:
    """Of the changes that the source has counted."""
    with sqlite3.connect(path, timeout=30) as database:
        (last,) = database.execute("SELECT n FROM _df_cdc_seq").fetchone()
    return int(last)


class Writer(threading.Thread):
    """Changes rows in small transactions, some of them rolled back, until told to stop."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(name="writer", daemon=True)
        self.path = path
        self.changes = 0  # committed: what every sink must have in the end
        self.failed: BaseException | None = None
        self.pause = QUIET_SECS
        self._choice = random.Random(seed)
        self._done = threading.Event()

    def finish(self) -> None:
        self._done.set()
        self.join(60)
        if self.failed is not None:
            raise self.failed

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self.failed = error

    def _write(self) -> None:
        database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        n = 0
        while not self._done.wait(self.pause):
            changed = 0
            database.execute("BEGIN IMMEDIATE")
            for _ in range(self._choice.randrange(1, 12)):
                n += 1
                database.execute("INSERT INTO orders (id, note) VALUES (?, ?)", (n, f"order {n}"))
                database.execute("INSERT INTO items VALUES (?, ?)", (f"item {n}", n))
                changed += 2
                if n % 3 == 0:
                    update = "UPDATE orders SET note = note || '!' WHERE id = ?"
                    # Rows of long ago too, so that a key's events are far apart.
                    for row in (n - 1, self._choice.randrange(1, n)):
                        changed += database.execute(update, (row,)).rowcount
                if n % 5 == 0:
                    delete = "DELETE FROM items WHERE number = ?"
                    changed += database.execute(delete, (n - 2,)).rowcount
            if self._choice.random() < 0.1:
                database.execute("ROLLBACK")
            else:
                database.execute("COMMIT")
                self.changes += changed
        database.close()
