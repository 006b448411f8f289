"""The worker's side of a script: a process that runs it, called with columns, killed when it hangs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

from ..errors import ConfigError, ProcessorError
from .engine import FAR

MODULES = {"quickjs": ("quickjs", "quickjs-ng"), "v8": ("py_mini_racer", "mini-racer")}
_GRACE_SECS = 2.0  # beyond the limits, which the engine itself should have kept
_START_SECS = 60.0
_PLACE = re.compile(r"(?:<input>|<anonymous>):([0-9]+)")


@dataclass(frozen=True, slots=True)
class Script:
    """A user's JavaScript and its limits."""

    id: str
    script: str
    cpu_ms: int = 50
    mem_mb: int = 128
    timeout_ms: int = 500
    on_error: str = "fail"
    deterministic: bool = False
    engine: str = "quickjs"


@dataclass(slots=True)
class Answer:
    """What came of a call: sections of the driver's text, or an error; and what the script said."""

    sections: list[str] = field(default_factory=list)
    error: str | None = None
    row: int = -1  # of the event at which a script that takes one at a time failed
    at_start: bool = False  # the script did not even begin, whatever the events
    too_slow: bool = False  # time ran out, so that fewer events may do
    news: dict[str, Any] = field(default_factory=dict)


class Sandbox:
    """One script's process. Not for several threads; `sandbox_for` gives each its own."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.looks = False  # whether it has read a row when it was called last
        self.most = 1 << 30  # events of a call, once time has run out for more
        self._limit_secs = min(script.cpu_ms, script.timeout_ms) / 1000
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, rows: int, columns: Sequence[bytes]) -> Answer:
        """Runs the script once over these columns."""
        if self._process is None:
            self._start()
        self._send([str(rows).encode(), *columns])
        text = self._receive(self._limit_secs)
        if text is None:
            return Answer(error=self._lost())
        match text[:1]:
            case "+":
                *sections, last = text[1:].split("\x1e")
                news = _news(last)
                self.looks = news["looked"]
                return Answer(sections, news=news)
            case "!":
                news = _news(text[1:])
                at_start = news.get("at_start", False)
                return Answer(error=_told(news), row=news["at"], at_start=at_start, news=news)
            case _:
                stop = json.loads(text[1:])
                error = f"stopped: it {stop['why']}"
                return Answer(error=error, at_start=stop["at_start"], too_slow=stop["time"])

    def processor_time(self) -> float:
        """Seconds that its process has used so far."""
        return 0.0 if self._process is None else _processor_time(self._process.pid)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> None:
        folder = files(__package__)
        program = folder.joinpath("engine.py").read_text("utf-8")
        driver = folder.joinpath("driver.js").read_text("utf-8")
        self._process = subprocess.Popen(
            # No settings of the user's, no modules of this package, no environment with secrets.
            [sys.executable, "-I", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"TZ": "UTC", "LC_ALL": "C.UTF-8"},
            cwd="/",
        )
        for pipe in (self._process.stdin, self._process.stdout):
            _widen(pipe)
        settings = {**asdict(self.script), "path": [p for p in sys.path if p]}
        # From its bracket on: what stands above it is for people.
        code = driver[driver.index("(function") :].strip()
        self._send([json.dumps(settings).encode(), code.encode()])
        trouble = self._receive(_START_SECS)
        if trouble is None:
            trouble = self._lost()
        if trouble:
            self.close()
            raise ProcessorError(f"script `{self.script.id}`: its engine does not start: {trouble}")

    def _lost(self) -> str:
        """Why there is no answer; the process is gone after this."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)  # its pipe closes a moment before it ends
        code = self._process.poll()
        self.close()
        if code is None:
            return f"stopped: it did not end within {self._limit_secs * 1000:.0f} ms"
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"its process {how}, as when memory runs out"

    def _send(self, parts: Sequence[bytes]) -> None:
        assert self._process is not None and self._process.stdin is not None
        head = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
        with contextlib.suppress(BrokenPipeError):  # shows as an answer that does not come
            self._process.stdin.write(b"".join([head, *parts]))
            self._process.stdin.flush()

    def _receive(self, limit_secs: float) -> str | None:
        """The answer; None when the process is gone, or hangs where its engine cannot stop it."""
        process = self._process
        assert process is not None and process.stdout is not None
        descriptor = process.stdout.fileno()
        poll = select.poll()  # a worker may have more files open than select() can tell apart
        poll.register(descriptor, select.POLLIN)
        limit = limit_secs + _GRACE_SECS
        began, used = time.monotonic(), _processor_time(process.pid)
        data = bytearray()
        wanted = 4
        while len(data) < wanted:
            if poll.poll(500):
                chunk = os.read(descriptor, max(wanted - len(data), 1 << 16))
                if not chunk:
                    return None
                data += chunk
                if wanted == 4 and len(data) >= 4:
                    wanted += struct.unpack("<I", data[:4])[0]
                continue
            # A machine that has no time for us is not the script's fault: what it used counts.
            spent = _processor_time(process.pid) - used
            if spent > limit or time.monotonic() - began > 60 * limit:
                return None
        return data[4:].decode("utf-8", "replace")


def _widen(pipe: Any) -> None:
    """Room for a whole call in a pipe: the two sides need not wait for each other half-way."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # a user may have used up what the system allows
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)


def _processor_time(pid: int) -> float:
    """Seconds of processor time that a process has used; of the clock where this is not known."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # Linux's number for a process's own clock
    except (OSError, OverflowError):
        return time.monotonic()


def _news(text: str) -> dict[str, Any]:
    """What the driver tells; half a surrogate pair, which no log can hold, becomes U+FFFD."""
    news: dict[str, Any] = json.loads(text)
    news["lines"] = [(level, _sound(line)) for level, line in news["lines"]]
    news["fields"] = [_sound(name) for name in news["fields"]]
    if "error" in news:
        news["error"] = _sound(news["error"])
    return news


def _sound(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _told(news: dict[str, Any]) -> str:
    """An error of the script with its line, where the trace shows one."""
    stack = news.get("stack") or ""
    # Where JSON.parse stumbled in a text is no place in the script.
    stack = stack.rpartition("parse (native)")[2]
    lines = [int(number) for number in _PLACE.findall(stack)]
    own = next((line for line in lines if line < FAR), None)
    return f"{f'line {own}: ' if own else ''}{news['error']}"


_local = threading.local()


def sandbox_for(script: Script) -> Sandbox:
    """The process that this worker keeps for a script, across batches and epochs."""
    kept: dict[Script, Sandbox] = _local.__dict__.setdefault("kept", {})
    if script not in kept:
        check_engine(script.engine)
        kept[script] = Sandbox(script)
    return kept[script]


def check_engine(engine: str) -> None:
    """Refuses a script whose engine is not installed here."""
    from importlib.util import find_spec

    module, package = MODULES[engine]
    if find_spec(module) is None:
        raise ConfigError(f"`engine: {engine}` needs the package {package}: pip install {package}")
