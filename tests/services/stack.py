"""The servers of `./dev.sh up`: under .dev/services, on their usual ports where those are free."""

from __future__ import annotations

import os
import shlex
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from . import SERVERS, Server, ServiceError
from .base import ROOT
from .install import install

HOME = ROOT / ".dev" / "services"
ENV = HOME / "env"


def server(name: str) -> Server:
    return SERVERS[name](HOME / name)


def up(names: list[str]) -> bool:
    """Starts what does not run yet, all at once; false when some could not."""
    names = names or list(SERVERS)
    HOME.mkdir(parents=True, exist_ok=True)
    problems = []
    try:
        install(SERVERS[name] for name in names)
    except ServiceError as problem:
        problems.append(str(problem))
    servers = [each for name in names if not (each := server(name)).missing()]
    with ThreadPoolExecutor(len(SERVERS)) as pool:
        for done in as_completed([pool.submit(_up, each) for each in servers]):
            try:
                print(done.result(), flush=True)
            except ServiceError as problem:
                problems.append(str(problem))
    _write_env()
    if ENV.exists():
        print(f"\n{ENV.read_text(encoding='utf-8')}\nIn your shell: source {_shown(ENV)}")
    for said in problems:
        print(f"\n{said}")
    return not problems


def _up(each: Server) -> str:
    started = time.monotonic()
    ran = each.running
    each.start(ports=[each.usual_port])
    how = "was running" if ran else f"ready after {time.monotonic() - started:.1f} s"
    return f"{each.name:10}{each.address:18}{how}"


def down(names: list[str], wipe: bool) -> None:
    servers = [server(name) for name in names or SERVERS]
    ran = {each.name for each in servers if each.running}
    had = {each.name for each in servers if wipe and each.home.exists()}
    with ThreadPoolExecutor(len(SERVERS)) as pool:
        list(pool.map(lambda each: each.wipe() if wipe else each.stop(), servers))
    for each in servers:
        what = "stopped" if each.name in ran else "was not running"
        print(f"{each.name:10}{what}{', data removed' if each.name in had else ''}")
    _write_env()


def status() -> None:
    for name in SERVERS:
        each = server(name)
        size = f"{each.size() / 1e6:.0f} MB" if each.home.exists() else ""
        if (pid := each.pid) is not None:
            print(f"{name:10}{'running':11}{each.address:18}pid {pid:<10}{size}".rstrip())
        else:
            print(f"{name:10}{'stopped':11}{'':32}{size}".rstrip())


def _write_env() -> None:
    """The addresses of what runs, for a shell to source."""
    lines = [
        f"export {key}={shlex.quote(value)}\n"
        for name in SERVERS
        if (each := server(name)).running
        for key, value in each.env().items()
    ]
    if lines:
        ENV.write_text("".join(lines), encoding="utf-8")
    else:
        ENV.unlink(missing_ok=True)


def _shown(path: Path) -> str:
    """As seen from where dev.sh was called."""
    if Path(os.environ.get("CALLER", ".")).resolve() == ROOT and path.is_relative_to(ROOT):
        path = path.relative_to(ROOT)
    return shlex.quote(str(path))
