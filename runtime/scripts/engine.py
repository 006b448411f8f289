"""The program that runs one script: a process of its own, which the sandbox starts and may kill.

It is started from its text and imports nothing of this package, so that it is up in a moment and
holds nothing that a script could reach even if it broke out of its engine.

Frames on standard input: a count, as many lengths, then the texts; the first frame has the settings
and the driver, each later one the columns of a call. Frames on standard output: a length and a text,
which is the driver's answer (`+` done, `!` an error of the script) or `?` with why it was stopped.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

# The driver's lines are counted from here, so that a line of the script is told from one of them.
FAR = 1_000_000
_MAKE = "globalThis.dfc = " + "\n" * FAR + "%s(%s)"
_ENTRY = "typeof processBatch === 'function' ? processBatch : undefined"
_COMPILING_MS = 250
_SLACK_BYTES = 64 << 20  # of V8 itself, beside what a script holds
_MEMORY = "used more memory than `limits.mem_mb` allows"


class Stopped(Exception):
    """A limit was reached; the engine is not to be used again, unless it says so."""

    def __init__(self, why: str, time: bool = False, usable: bool = False) -> None:
        super().__init__(why)
        self.time = time  # it was time that ran out, so fewer events may do
        self.usable = usable


class ScriptError(Exception):
    """What the script did wrong, and where."""

    def __init__(self, what: str, stack: str = "") -> None:
        super().__init__(what)
        self.stack = stack


class QuickJs:
    """Counts processor time, and stops a script also inside regular expressions and builtins."""

    def __init__(self, settings: dict[str, Any], driver: str) -> None:
        import quickjs

        self._quickjs = quickjs
        context = self._context = quickjs.Context()
        context.set_memory_limit(settings["mem_mb"] << 20)
        self._ms = min(settings["cpu_ms"], settings["timeout_ms"])
        context.eval(_MAKE % (driver, str(settings["deterministic"]).lower()))
        bind, self._call = context.eval("dfc.bind"), context.eval("dfc.call")
        context.eval("delete globalThis.dfc")
        context.set_time_limit(self._ms / 1000)
        completion = self._guarded(context.eval, settings["script"])
        self.without_function = bool(self._guarded(bind, context.eval(_ENTRY), completion))

    def call(self, rows: int, columns: list[str]) -> str:
        answer = str(self._guarded(self._call, rows, *columns))
        if answer[:1] == "!":
            if '"error":"InternalError: out of memory' in answer:
                raise Stopped(_MEMORY)
            if '"error":"thrown: null"' in answer:  # there was no room left for an error either
                raise Stopped(f"threw null, or {_MEMORY}")
        return answer

    def _guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._quickjs.StackOverflow as error:
            raise ScriptError("RangeError: too much recursion", str(error)) from None
        except self._quickjs.JSException as error:
            what, _, stack = str(error).partition("\n")
            if what == "InternalError: interrupted":
                raise Stopped(
                    f"used more than {self._ms} ms of processor time", time=True
                ) from None
            if what == "InternalError: out of memory":
                raise Stopped(_MEMORY) from None
            raise ScriptError(what, stack) from None


class V8:
    """Stops a script by the clock on the wall, and counts processor time when a call is over."""

    def __init__(self, settings: dict[str, Any], driver: str) -> None:
        import py_mini_racer

        self._v8 = py_mini_racer
        context = self._context = py_mini_racer.MiniRacer()
        context.set_hard_memory_limit(settings["mem_mb"] << 20)
        self._cpu_ms, self._timeout_ms = settings["cpu_ms"], settings["timeout_ms"]
        context.eval(_MAKE % (driver, str(settings["deterministic"]).lower()))
        bind, self._call = context.eval("dfc.bind"), context.eval("dfc.call")
        context.eval("delete globalThis.dfc")
        completion = self._guarded(context.eval, settings["script"])
        self.without_function = bool(self._guarded(bind, context.eval(_ENTRY), completion))
        # Its heap does not count what lies in buffers: the process as a whole is looked at too.
        self._most_bytes = _resident() + (settings["mem_mb"] << 20)
        self._spare_ms = _COMPILING_MS

    def call(self, rows: int, columns: list[str]) -> str:
        before = time.process_time()
        answer = str(self._guarded(self._call, rows, *columns))
        used_ms = (time.process_time() - before) * 1000
        if _resident() > self._most_bytes + _SLACK_BYTES:
            raise Stopped(_MEMORY)
        # The first call pays for the compiler as well.
        allowed_ms, self._spare_ms = self._cpu_ms + self._spare_ms, 0
        if used_ms > allowed_ms:
            why = f"used {used_ms:.0f} ms of processor time, more than {self._cpu_ms} ms"
            raise Stopped(why, time=True, usable=True)
        return answer

    def _guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments, timeout_sec=self._timeout_ms / 1000)
        except self._v8.JSTimeoutException:
            raise Stopped(f"took more than {self._timeout_ms} ms", time=True) from None
        except self._v8.JSOOMException:
            raise Stopped(_MEMORY) from None
        except self._v8.JSEvalException as error:
            if self._context.was_hard_memory_limit_reached():
                raise Stopped(_MEMORY) from None
            # Place and source line come first, then the error and its stack.
            told = str(error).rpartition("\n\n")[2].strip() or str(error)
            what, _, stack = told.partition("\n")
            raise ScriptError(what, stack or str(error)) from None


_ENGINES: dict[str, type[QuickJs] | type[V8]] = {"quickjs": QuickJs, "v8": V8}


def main() -> None:
    """Answers frames until the sandbox goes away."""
    incoming, outgoing = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    first = receive(incoming)
    if first is None:
        return
    settings, driver = json.loads(first[0]), first[1]
    sys.path[:] = settings["path"]
    confine()
    try:
        import_module({"quickjs": "quickjs", "v8": "py_mini_racer"}[settings["engine"]])
    except Exception as error:
        send(outgoing, f"{type(error).__name__}: {error}")
        return
    send(outgoing, "")  # from here on the time is the script's
    engine: QuickJs | V8 | None = None
    while (frame := receive(incoming)) is not None:
        try:
            if engine is None:  # at the start, and after one that was stopped
                engine = _ENGINES[settings["engine"]](settings, driver)
            if engine.without_function:
                raise ScriptError(
                    "it defines no processBatch(events) and is no (event) => … either"
                )
            answer = engine.call(int(frame[0]), frame[1:])
        except ScriptError as error:
            at_start = engine is None or engine.without_function
            told = {"error": str(error), "stack": error.stack, "at": -1, "at_start": at_start}
            answer = "!" + json.dumps({**told, "lines": [], "unsaid": 0, "fields": []})
        except Stopped as error:
            why = {"why": str(error), "time": error.time, "at_start": engine is None}
            answer = "?" + json.dumps(why)
            engine = engine if error.usable else None
        send(outgoing, answer)


def confine() -> None:
    """A second fence around the engine's own: it writes no files, and ends with its worker."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        import ctypes

        # A script in a loop must not outlive a worker that was killed.
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def receive(stream: BinaryIO) -> list[str] | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    (count,) = struct.unpack("<I", head)
    lengths = struct.unpack(f"<{count}I", stream.read(4 * count))
    return [stream.read(length).decode() for length in lengths]


def send(stream: BinaryIO, text: str) -> None:
    data = text.encode()
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


if __name__ == "__main__":
    main()
    # Without the interpreter's own leave-taking: V8's threads may never be done.
    os._exit(0)
