"""Before the first query: every sink is tried on the driver, so that what is wrong is said at once.

An idle source would not open any sink for hours, and a sink that lets nobody in is not mended by
trying again. A server that does not answer may come, or be there for the executors alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from .errors import Barred, DfcError, SinkError, reason
from .policy import CommitPolicy
from .sinks import Lane, Sink

_WAIT_SECS = 10.0
_WAIT_FOR_OTHERS_SECS = 2.0  # for those that the policy can do without
_LOOK_SECS = 0.05


def roll_call(
    sinks: Sequence[Sink],
    lane_of: Callable[[str], Lane],
    policy: CommitPolicy,
    warn: Callable[[str, str], None],
    stop: threading.Event,
) -> None:
    """Raises when the policy cannot be met without a person's help; warns of all other trouble."""
    found: dict[str, Exception | None] = {}

    def ask(sink: Sink) -> None:
        try:
            sink.try_out(lane_of(sink.id))
            found[sink.id] = None
        except Exception as error:
            found[sink.id] = error

    for sink in sinks:
        threading.Thread(target=ask, args=(sink,), daemon=True).start()
    began = time.monotonic()
    while len(found) < len(sinks) and not stop.wait(_LOOK_SECS):
        waited = time.monotonic() - began
        enough = policy.met([name for name, error in list(found.items()) if error is None])
        if waited > (_WAIT_FOR_OTHERS_SECS if enough else _WAIT_SECS):
            break
    barred: dict[str, str] = {}
    for sink in sinks:
        error = found.get(sink.id, SinkError("no answer yet"))
        if error is None:
            continue
        if isinstance(error, DfcError) and not isinstance(error, SinkError):
            raise error  # the job itself is wrong
        why = reason(error, sink.secrets).removeprefix(f"sink `{sink.id}`: ")
        if isinstance(error, Barred):
            barred[sink.id] = why
        if not stop.is_set():
            warn(sink.id, why)
    if not policy.met({sink.id for sink in sinks} - barred.keys()):
        raise Barred("; ".join(f"sink `{name}`: {why}" for name, why in barred.items()))
