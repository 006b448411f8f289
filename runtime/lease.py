"""One runner for a pipeline: a lease in storage that its holder renews, and others respect.

No clock is trusted: whoever finds a lease watches whether it is renewed. One whose holder ran on this
very machine and is gone is taken over at once, as after `kill -9`; any other after a time without a
sign of life.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .storage import Backend, SlotGuard

NAMESPACE = "leases"
TTL_SECS = 15.0
_LOOKS_PER_TTL = 30


class Lease:
    """Held from acquire() to release(), or until another runner takes it; `lost` is called then."""

    def __init__(
        self,
        storage: Backend,
        pipeline: str,
        lost: Callable[[], None],
        ttl_secs: float = TTL_SECS,
    ) -> None:
        self.token = secrets.token_hex(8)
        self.held = False
        self._storage = storage
        self._pipeline = pipeline
        self._lost = lost
        self._ttl = ttl_secs
        self._version = 0
        self._done = threading.Event()
        self._renewing: threading.Thread | None = None

    def acquire(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Takes the lease, or raises an error that says who has it."""
        slot = self._storage.slot(NAMESPACE, self._pipeline)
        if slot is not None:
            version, holder = slot[0], json.loads(slot[1])
            if holder["token"] and not is_gone(holder):
                self._watch(version, holder, say)
            self._version = version
        if not self._swap(self.token):
            raise self._refused("another runner was quicker")
        self.held = True
        self._renewing = threading.Thread(target=self._renew, name="dfc-lease", daemon=True)
        self._renewing.start()

    @property
    def guard(self) -> SlotGuard:
        """For storage: what must still be so when this runner writes."""
        return NAMESPACE, self._pipeline, self.token

    def release(self) -> None:
        self._done.set()
        if self._renewing is not None:
            self._renewing.join(self._ttl)
        if self.held:
            self.held = False
            self._swap("")

    def _watch(self, version: int, holder: dict[str, Any], say: Callable[[str], None]) -> None:
        """Waits for a sign of life, and returns when there is none."""
        who = f"process {holder['pid']} on {holder['host']}"
        say(f"held by {who}; waiting {self._ttl:.0f} s for a sign of life")
        end = time.monotonic() + self._ttl
        while time.monotonic() < end:
            time.sleep(self._ttl / _LOOKS_PER_TTL)
            slot = self._storage.slot(NAMESPACE, self._pipeline)
            if slot is None or slot[0] != version:
                if slot is not None and not json.loads(slot[1])["token"]:
                    raise self._refused(f"{who} has just stopped: try again")
                raise self._refused(f"it is run by {who}")
            if is_gone(holder):
                return

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(f"the pipeline `{self._pipeline}` has a runner already: {why}")

    def _renew(self) -> None:
        while not self._done.wait(self._ttl / 3):
            try:
                if self._swap(self.token):
                    continue
            except Exception:  # storage is busy or away: there is time until the lease ends
                continue
            self.held = False
            self._lost()
            return

    def _swap(self, token: str) -> bool:
        state = {**_self(), "token": token}
        if self._storage.swap(NAMESPACE, self._pipeline, self._version, json.dumps(state).encode()):
            self._version += 1
            return True
        # An earlier swap may have been carried out though its answer never came.
        slot = self._storage.slot(NAMESPACE, self._pipeline)
        if slot is None or json.loads(slot[1])["token"] != self.token:
            return False
        self._version = slot[0]
        return token == self.token or self._swap(token)


def _self() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pids": _pids(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def _boot() -> str | None:
    """Tells one start of one machine from all others; None where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pids() -> str | None:
    """Tells whose process numbers these are: all containers of a machine share its start."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process began, so that another one of the same number is not taken for it."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "gone" if state == "Z" else rest[18]  # it only waits to be buried
    except (OSError, IndexError):
        return None


def is_gone(holder: dict[str, Any]) -> bool:
    """Whether the holder certainly lives no more: only a process that we can see is told so."""
    if holder["boot"] is None or (holder["boot"], holder.get("pids")) != (_boot(), _pids()):
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # there is one, and it is another user's
    started = _started(holder["pid"])
    return started is not None and started != holder["started"]
