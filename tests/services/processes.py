"""Processes by their id, without mistaking one for another; and the guard of a test session.

Run as a script, this file is the guard: it ends the servers of a test session when the session is over,
even one that was killed. It therefore imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc/self/stat").exists()


def _stat(pid: int) -> list[str] | None:
    """What follows the name in /proc/PID/stat: state, parent, ...; [19] is the time of its start."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def born(pid: int) -> str | None:
    """Tells this process from any other that has had or will have its id; None when it is gone."""
    if _PROC:
        stat = _stat(pid)
        if stat is None or stat[0] in "ZX":
            return None
        with contextlib.suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
            return f"{boot[:8]}-{stat[19]}"
        return stat[19]
    ps = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    state, _, start = subprocess.run(ps, capture_output=True, text=True).stdout.partition(" ")
    return start.strip() if start and state[0] != "Z" else None


def family(pid: int) -> list[int]:
    """A process and all that descend from it, parents first."""
    parents: list[tuple[int, int]] = []
    if _PROC:
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (stat := _stat(int(entry))) and stat[0] not in "ZX":
                parents.append((int(entry), int(stat[1])))
    else:
        ps = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
        parents = [(int(a), int(b)) for a, b in map(str.split, ps.stdout.splitlines())]
    found = [pid]
    for member in found:
        found += [child for child, parent in parents if parent == member]
    return found


def send(pids: Iterable[int], what: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def end(pid: int, birth: str, with_signal: signal.Signals, seconds: float) -> bool:
    """Ends a process and its family, by force after `seconds`; false when it took force."""
    if born(pid) != birth:
        return True
    members = {member: born(member) for member in family(pid)}

    def left() -> list[int]:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # ours or not: a dead child of ours would stay otherwise
        return [m for m, b in members.items() if b is not None and born(m) == b]

    # Nothing that is frozen hears a signal.
    send(reversed(members), signal.SIGCONT)
    send([pid], with_signal)
    deadline = time.monotonic() + seconds
    while left():
        if time.monotonic() > deadline:
            members |= {member: born(member) for member in family(pid)}
            while remaining := left():
                send(remaining, signal.SIGKILL)
                time.sleep(0.02)
            return False
        time.sleep(0.02)
    return True


# --- ports ----------------------------------------------------------------------------


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return not answers(port)


def free_port() -> int:
    """Below those that outgoing connections get: a server that was stopped finds its port again,
    though clients are knocking on it all the time."""
    for _ in range(100):
        port = random.SystemRandom().randrange(15_000, 32_000)
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- the guard ------------------------------------------------------------------------


class Guard:
    """Sees to it that servers do not outlive the process that started them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],  # -I: modules beside this file shadow libraries
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C that ends the tests is not for the guard
        )

    def watch(self, pid: int, birth: str, with_signal: signal.Signals) -> None:
        self._tell({"pid": pid, "born": birth, "signal": int(with_signal)})

    def remove(self, folder: Path) -> None:
        """Removes a folder, after everything is ended."""
        self._tell({"folder": str(folder)})

    def close(self) -> None:
        """Ends what is being watched, and waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


def _guard() -> None:
    parent = os.getppid()
    heard = b""
    # The pipe alone would do, if no process that was forked meanwhile could hold it open.
    while os.getppid() == parent:
        if select.select([0], [], [], 0.5)[0]:
            if not (piece := os.read(0, 65536)):
                break
            heard += piece
    messages = [json.loads(line) for line in heard.splitlines() if line.endswith(b"}")]
    watched = [m for m in messages if "pid" in m and born(m["pid"]) == m["born"]]
    # All at once first: they take their time together.
    for message in watched:
        send(reversed(family(message["pid"])), signal.SIGCONT)
        send([message["pid"]], signal.Signals(message["signal"]))
    deadline = time.monotonic() + 10
    for message in watched:
        while born(message["pid"]) == message["born"] and time.monotonic() < deadline:
            time.sleep(0.02)
        end(message["pid"], message["born"], signal.SIGKILL, 0)
    for message in messages:
        if "folder" in message:
            shutil.rmtree(message["folder"], ignore_errors=True)


if __name__ == "__main__":
    _guard()
