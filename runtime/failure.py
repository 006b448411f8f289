"""Out of Spark's pages of traces, the one line that matters."""

from __future__ import annotations

import re

from .errors import DfcError, reason

# The last line of a Python traceback: a dotted exception name and its text.
_RAISED = re.compile(
    r"^\s*(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Unavailable|Env|Exit|Interrupt))(?:: (.*))?$"
)
_OURS = re.compile(r"^\s*dfc_runtime\.[\w.]+: (.*)$")


def _java_is_gone(error: BaseException) -> bool:
    """Whether Java ended under our hands, which shows in many ways."""
    try:
        text = str(error)  # py4j asks Java for it
    except Exception:
        return True
    # Errors of py4j that carry an answer of Java's have a class of their own.
    broken = type(error).__name__ in ("Py4JError", "Py4JNetworkError")
    return broken or isinstance(error, ConnectionError) or "SparkContext was shut down" in text


# What Spark says of a source whose Python process was killed (nothing, or what the socket said), or did
# not get around to answering within ten seconds.
_LOST = re.compile(
    r"^\[STREAM_FAILED\].* terminated with exception: *"
    r"(|Python worker failed to connect back\.?|Broken pipe|Connection reset|Socket closed)"
    r" *(SQLSTATE: \w+)?$"
)


def source_is_lost(error: BaseException) -> bool:
    """Whether a query ended because the process that reads the source is gone."""
    if type(error).__name__ != "StreamingQueryException" or _java_is_gone(error):
        return False
    return _LOST.match((str(error).splitlines() or [""])[0]) is not None


_WORKERS_LOST = re.compile(
    r"failed (\d+) times, most recent failure: .*?"
    r"(?:Python worker (?:exited|failed to connect)|ExecutorLostFailure|Broken pipe|Connection reset)"
)


def failure_line(error: BaseException) -> str:
    """What went wrong, for somebody who has not written this program."""
    if isinstance(error, DfcError):
        return reason(error)
    if _java_is_gone(error):
        return "Java has ended; it may have run out of memory, or been killed"
    if source_is_lost(error):
        return "the process that reads the source has ended, or did not start within 10 s"
    if lost := _WORKERS_LOST.search(str(error)):
        return f"a task has lost its worker {lost[1]} times: the workers were killed, or found no memory"
    lines = str(error).splitlines()
    ours = [match.group(1) for line in lines if (match := _OURS.match(line))]
    if ours:
        return ours[-1].strip()
    raised = [match for line in lines if (match := _RAISED.match(line))]
    # Spark wraps Python's error in its own classes; the innermost name without a package says most.
    plain = [m for m in raised if "." not in m.group(0).strip().split(":")[0]] or raised
    if plain:
        name, text = plain[-1].group(1), plain[-1].group(2)
        return f"{name}: {text.strip()}" if text else name
    return reason(error) if len(lines) < 2 else f"{type(error).__name__}: {lines[0].strip()}"
