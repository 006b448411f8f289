"""What every storage can do: values with an expiry, logs, versioned slots and queues.

All of it is by namespace and key. Each call is one transaction, and several processes may call at
once. A call that fails raises StorageError with the one line that people need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

# Namespace and key of a slot, and what its state must still hold for a write to be done.
SlotGuard = tuple[str, str, str]


class Backend(Protocol):
    """One open storage."""

    def close(self) -> None: ...

    # --- values --------------------------------------------------------------------------

    def get(self, ns: str, key: str) -> bytes | None: ...

    def put(self, ns: str, key: str, value: bytes, ttl_secs: int | None = None) -> None: ...

    def put_all(
        self,
        ns: str,
        values: Mapping[str, bytes],
        ttl_secs: int | None = None,
        guard: SlotGuard | None = None,
        gone: Collection[str] = (),
    ) -> None:
        """All of them, without the keys that are `gone`, or nothing of it.

        With a guard, only while that slot's state still names its token.
        """

    def delete(self, ns: str, key: str) -> None: ...

    def items(self, ns: str, prefix: str = "") -> dict[str, bytes]:
        """Live values whose key starts with `prefix`, in order of key."""

    def sweep(self) -> int:
        """Removes what has expired; returns how many values that were."""

    # --- logs ----------------------------------------------------------------------------

    def append(self, ns: str, key: str, value: bytes) -> int:
        """Adds to a log; returns the entry's sequence number."""

    def since(
        self, ns: str, key: str, seq: int = 0, limit: int = 1_000_000
    ) -> list[tuple[int, bytes]]:
        """Entries of a log behind `seq`."""

    # --- slots ---------------------------------------------------------------------------

    def slot(self, ns: str, key: str) -> tuple[int, bytes] | None:
        """Version and state, or None."""

    def swap(self, ns: str, key: str, version: int, state: bytes) -> bool:
        """Replaces the state when it still has `version` (0: none yet); the next one is higher."""

    # --- queues --------------------------------------------------------------------------

    def push(self, ns: str, key: str, value: bytes, name: str | None = None) -> int:
        """Adds an entry, and returns its id; one whose name is there already is left as it is."""

    def push_all(self, ns: str, key: str, entries: Mapping[str, bytes]) -> None:
        """The same for entries by name: all of them or none."""

    def held(self, ns: str, key: str, names: Sequence[str]) -> set[str]:
        """Those of the names that entries of the queue have."""

    def drop_older(self, ns: str, key: str, secs: int) -> int:
        """Removes entries that are older than this; returns how many."""

    def remove(self, ns: str, key: str, ids: Sequence[int]) -> int:
        """Removes these entries; returns how many there were."""

    def peek(self, ns: str, key: str, limit: int = 100) -> list[tuple[int, bytes]]:
        """The oldest entries, which stay in the queue."""

    def ack(self, ns: str, key: str, up_to: int) -> int:
        """Removes the entries up to this id; returns how many."""

    def count(self, ns: str, key: str) -> int: ...

    def drop_oldest(self, ns: str, key: str, number: int = 1) -> int:
        """Removes so many of the oldest entries; returns how many there were."""
