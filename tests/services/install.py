"""Gets what is missing: packages of Debian, jars from Maven Central."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from . import jars
from .base import ROOT, Server, ServiceError
from .kafka import Kafka

LOG = ROOT / ".dev" / "services" / "install.log"
_POLICY = Path("/usr/sbin/policy-rc.d")
# What the packages would have running after the next boot.
_UNITS = ("mariadb", "nats-server", "postgresql", "redis-server")


def install(servers: Iterable[type[Server]], say: Callable[[str], None] = print) -> None:
    """Installs what the servers lack, or says how to. Quick when that is nothing."""
    servers = list(servers)
    if not any(server.missing() for server in servers):
        return
    with _alone(), ThreadPoolExecutor() as pool:
        work = []
        lacking = [s for s in servers if s.missing() and (s is not Kafka or "java" in s.missing())]
        if lacking:
            work.append(pool.submit(_packages, lacking, say))
        if Kafka in servers and not jars.complete():
            say(f"services: downloading Kafka's jars to {jars.folder()}")
            work.append(pool.submit(jars.fetch))
        problems = [str(problem) for done in work if (problem := done.exception()) is not None]
    if problems:
        raise ServiceError("\n".join(problems))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Tests and `./dev.sh up` may both find something missing."""
    there = jars.folder().parent
    there.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (there / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _packages(servers: list[type[Server]], say: Callable[[str], None]) -> None:
    servers = [server for server in servers if server.missing()]
    names = [package for server in servers for package in server.packages]
    if not names:
        return
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        raise ServiceError(_how_to(servers, names))
    say(f"services: installing {', '.join(names)} (log: {LOG.relative_to(ROOT)})")
    LOG.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with LOG.open("w", encoding="utf-8") as log, _nothing_starts():
        lists = Path("/var/lib/apt/lists")
        fresh = any(lists.glob("*_Packages*")) if lists.is_dir() else False
        # Lists that are there but too old lead to files that are gone: then new ones.
        if not (fresh and _apt(log, names)):
            _run(log, "apt-get", "update")
            _apt(log, names)
        _disable(log, names)
    if still := [
        command for server in servers for command in server.missing() if " " not in command
    ]:
        tail = "\n".join(LOG.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise ServiceError(f"apt-get did not bring {', '.join(still)}:\n{tail}")
    say(f"services: installed in {time.monotonic() - started:.0f} s")


def _apt(log: IO[str], names: list[str]) -> bool:
    # --no-remove: a server that conflicts with one the user has is not worth it.
    options = ["-y", "--no-install-recommends", "--no-remove", "-o", "DPkg::Lock::Timeout=300"]
    return _run(log, "apt-get", "install", *options, *names)


def _run(log: IO[str], *command: str) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    return done.returncode == 0


@contextlib.contextmanager
def _nothing_starts() -> Iterator[None]:
    """Debian starts the servers it installs, unless this file says no."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _disable(log: IO[str], names: list[str]) -> None:
    if shutil.which("systemctl") and Path("/run/systemd/system").is_dir():
        for unit in _UNITS:
            if unit in names:
                _run(log, "systemctl", "disable", unit)


def _how_to(servers: list[type[Server]], names: list[str]) -> str:
    lacking = "; ".join(f"{s.name} needs {', '.join(s.missing())}" for s in servers)
    return (
        f"services: not installed here: {lacking}\n"
        f"  Debian, Ubuntu: sudo apt-get install --no-install-recommends {' '.join(names)}\n"
        "  macOS: brew install mariadb postgresql@17 redis nats-server openjdk@21\n"
        "  other systems: any package that brings these commands"
    )
