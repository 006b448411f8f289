"""What the servers have in common: where they live, how they start, stop and freeze."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from . import processes

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
# The account that every server with accounts has.
USER = "dfc"
PASSWORD = "dfc"
DATABASE = "shop"

# Not always on the PATH of somebody who is not root, nor that of a package manager's server of a
# certain version.
_PLACES = (
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
    "/opt/homebrew/sbin",
)


class ServiceError(Exception):
    """A server cannot be had; the message says why and what to do."""


def which(command: str, places: Iterable[str | Path] = ()) -> str | None:
    path = os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath), *_PLACES])
    return shutil.which(command, path=path)


class Server(ABC):
    """One server with its own data under `home`, on loopback.

    `config` holds settings in the server's own words, over those given here. Without `durable` a
    server does not wait for the disk, which is enough for tests: only a loss of power loses data.
    """

    name: ClassVar[str]
    usual_port: ClassVar[int]
    commands: ClassVar[tuple[str, ...]]  # without which it cannot run
    packages: ClassVar[tuple[str, ...]]  # of Debian, which bring them
    runs_as: ClassVar[tuple[str, ...]] = ()  # users to be when we are root, which it refuses to be
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    patience: ClassVar[float] = 60

    def __init__(
        self,
        home: Path,
        *,
        config: Mapping[str, str | int] | None = None,
        durable: bool = True,
        guard: processes.Guard | None = None,
    ) -> None:
        self.home = home
        self.config = dict(config or {})
        self.durable = durable
        self._guard = guard
        self._state: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            self._state = json.loads(self._state_file.read_text(encoding="utf-8"))

    # --- what each server says about itself

    def initialise(self) -> None:  # noqa: B027
        """Fills an empty data folder."""

    def prepare(self) -> None:  # noqa: B027
        """Writes what it reads when it starts."""

    @abstractmethod
    def command(self) -> list[str]:
        """What runs in the foreground; called after `prepare`."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether clients are served."""

    @abstractmethod
    def env(self) -> dict[str, str]:
        """The address, in the variables that the examples use."""

    @classmethod
    def missing(cls) -> list[str]:
        return [command for command in cls.commands if which(command) is None]

    # --- where it is

    @property
    def port(self) -> int:
        return self._port("port")

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process, while that lives."""
        pid, birth = self._state.get("pid"), self._state.get("born")
        return pid if pid is not None and processes.born(pid) == birth else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @cached_property
    def data(self) -> Path:
        """The data folder: a link to one elsewhere, when the server's user cannot reach `home`."""
        data = self.home / "data"
        if data.exists():
            return data.resolve()
        self.home.mkdir(parents=True, exist_ok=True)
        data.unlink(missing_ok=True)  # a link to a folder that is gone
        data.mkdir(mode=0o700)
        if not self._user:
            return data
        os.chown(data, self._user["user"], self._user["group"])
        if subprocess.run(["test", "-w", str(data)], cwd="/", **self._user).returncode == 0:
            return data
        data.rmdir()
        elsewhere = Path(tempfile.mkdtemp(prefix=f"dfc-{self.name}-"))
        os.chown(elsewhere, self._user["user"], self._user["group"])
        data.symlink_to(elsewhere)
        return elsewhere

    @property
    def log(self) -> Path:
        return self.home / "log"

    def size(self) -> int:
        """Bytes that its data takes."""
        total = 0
        for folder, _, names in os.walk((self.home / "data").resolve()):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        return total

    # --- its life

    def start(self, ports: Iterable[int] = ()) -> None:
        """Starts it unless it runs, and waits until it is ready.

        The port is the first of `ports` that is free, or the one it had before, or any.
        """
        if self.running:
            self._wait()
            return
        if missing := self.missing():
            raise ServiceError(f"{self.name}: not installed: {', '.join(missing)}")
        self._await_own_ports()
        wanted = [*ports, *filter(None, [self._ports().get("port")])]
        for attempt in range(3):
            others = {key: port for key, port in self._ports().items() if processes.is_free(port)}
            port = next(filter(processes.is_free, wanted), None) or self._unused(others)
            self._state = {"ports": others | {"port": port}}
            self.home.mkdir(parents=True, exist_ok=True)
            self._initialise_once()
            self.prepare()
            self._launch()
            try:
                self._wait()
            except ServiceError:
                # Somebody else may have taken the port meanwhile.
                if self.running or attempt == 2 or not processes.answers(self.port):
                    self.stop()
                    raise
                wanted, self._state = [], {}
            else:
                return

    def _await_own_ports(self) -> None:
        """A killed process of many threads is gone before the last of them lets its sockets go."""
        deadline = time.monotonic() + 5
        while not all(map(processes.is_free, self._ports().values())):
            if time.monotonic() > deadline:
                return  # somebody else's by now
            time.sleep(0.05)

    def stop(self) -> None:
        if (pid := self.pid) is not None:
            processes.end(pid, self._state["born"], self.stop_signal, 30)

    def kill(self) -> None:
        """As a failing machine would."""
        if (pid := self.pid) is not None:
            processes.end(pid, self._state["born"], signal.SIGKILL, 10)

    def pause(self) -> None:
        """Freezes it: connections stay open and nothing answers."""
        if (pid := self.pid) is not None:
            processes.send(processes.family(pid), signal.SIGSTOP)

    def resume(self) -> None:
        if (pid := self.pid) is not None:
            processes.send(reversed(processes.family(pid)), signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def wipe(self) -> None:
        """Removes its data, after stopping it."""
        self.stop()
        data = self.home / "data"
        if data.is_symlink():
            shutil.rmtree(data.resolve(), ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)
        self._state = {}
        self.__dict__.pop("data", None)

    # --- for the servers

    def _port(self, key: str) -> int:
        """A port of this server; those beside the first are any that is free."""
        ports = self._ports()
        if key not in ports:
            if key == "port":
                raise ServiceError(f"{self.name} is not running: ./dev.sh up {self.name}")
            ports[key] = self._unused(ports)
        return ports[key]

    def _ports(self) -> dict[str, int]:
        ports: dict[str, int] = self._state.setdefault("ports", {})
        return ports

    @staticmethod
    def _unused(ports: Mapping[str, int]) -> int:
        """Those that are chosen but not in use yet look free."""
        while (port := processes.free_port()) in ports.values():
            pass
        return port

    @cached_property
    def _user(self) -> dict[str, Any]:
        """For subprocess: the user to be, when it must not be us."""
        if not self.runs_as or os.geteuid() != 0:
            return {}
        for name in self.runs_as:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        raise ServiceError(f"{self.name} does not run as root, and there is no user `nobody`")

    def _run(self, *command: str | Path, given: str = "") -> None:
        """A step of the preparations."""
        done = subprocess.run(
            list(map(str, command)),
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.data,
            **self._user,
        )
        if done.returncode != 0:
            what = Path(command[0]).name
            raise ServiceError(f"{self.name}: {what} failed:\n{_end_of(done.stdout)}")

    def _initialise_once(self) -> None:
        done = self.home / "initialised"
        if done.exists() and any(self.data.iterdir()):
            return
        # What an interrupted attempt has left.
        for left in self.data.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        self.initialise()
        done.touch()

    def _launch(self) -> None:
        command = self.command()
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.data,
                **self._user,
            )
        birth = processes.born(process.pid)
        process.returncode = 0  # not Popen's to wait for: `up` leaves it behind
        self._state |= {"pid": process.pid, "born": birth}
        self._state_file.write_text(json.dumps(self._state) + "\n", encoding="utf-8")
        if self._guard is not None and birth is not None:
            self._guard.watch(process.pid, birth, self.stop_signal)

    def _wait(self) -> None:
        deadline = time.monotonic() + self.patience
        while not (processes.answers(self.port) and self.ready()):
            log = self.log.read_text(encoding="utf-8", errors="replace")
            if not self.running:
                raise ServiceError(f"{self.name} did not start:\n{_end_of(log)}")
            if time.monotonic() > deadline:
                late = f"{self.name} was not ready after {self.patience:.0f} s"
                raise ServiceError(f"{late}:\n{_end_of(log)}")
            time.sleep(0.05)

    @property
    def _state_file(self) -> Path:
        return self.home / "state.json"


def succeeds(command: list[str], env: Mapping[str, str] | None = None) -> bool:
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            command, capture_output=True, env=environment, stdin=subprocess.DEVNULL, timeout=10
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def talk(port: int, send: bytes, done: Callable[[bytes], bool]) -> bytes:
    """What a server says to `send`, until `done` with it or it hangs up."""
    heard = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((HOST, port), timeout=2) as connection,
    ):
        connection.sendall(send)
        while not done(heard) and (piece := connection.recv(65536)):
            heard += piece
    return heard


def _end_of(text: str) -> str:
    return "\n".join(text.splitlines()[-25:])
