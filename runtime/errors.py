"""What can go wrong in a job, by who has to act on it."""

from __future__ import annotations

from collections.abc import Sequence


class DfcError(Exception):
    """Any failure that one line explains; the job prints that line instead of a traceback."""


class ConfigError(DfcError):
    """The job cannot run as it is configured."""


class MissingEnv(ConfigError):
    """Variables without a value: exit code 2, as for wrong usage."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        what = "variable is" if len(names) == 1 else "variables are"
        super().__init__(f"environment {what} not set: {', '.join(names)}")

    def __reduce__(self) -> tuple[type[MissingEnv], tuple[tuple[str, ...]]]:
        return MissingEnv, (self.names,)


class WrongUsage(ConfigError):
    """Flags that contradict each other: exit code 2."""


class TakenOver(DfcError):
    """Another runner has the pipeline now; this one must not go on."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        super().__init__(f"another runner has taken the pipeline `{pipeline}` over")

    def __reduce__(self) -> tuple[type[TakenOver], tuple[str]]:
        return TakenOver, (self.pipeline,)


class StorageError(DfcError):
    """Storage cannot be reached or used for now; what was to be kept is not, or nobody knows."""


class Unavailable(DfcError):
    """A part that this version does not have."""


class RoutingError(DfcError):
    """An event for which no destination can be made."""


class ProcessorError(DfcError):
    """A processor failed; nothing is delivered past it."""


class Ended(DfcError):
    """A task has met what it cannot go on with: the words are its own."""


class SinkError(DfcError):
    """A sink refused or could not be reached; its text must not hold secrets."""


class Barred(SinkError):
    """A sink that lets nobody in until a person mends it: a login, a right, a missing stream.

    At the start of a job this ends it. Later it is tried again as any other failure: passwords and
    rights are changed while jobs run.
    """


class Fenced(DfcError):
    """Another runner writes to the sink now, and this one has to stop."""


class Rejected(SinkError):
    """Events that a sink will never take, such as ones too large for it.

    By their row in what was written, with the reason. Nothing of that write has gone out.
    """

    def __init__(self, rows: dict[int, str]) -> None:
        self.rows = rows
        super().__init__("; ".join(rows.values()))

    def __reduce__(self) -> tuple[type[Rejected], tuple[dict[int, str]]]:
        return Rejected, (self.rows,)


def reason(error: BaseException, secrets: Sequence[str] = ()) -> str:
    """An exception as one line, without the texts that must not be shown."""
    text = " ".join(str(error).split())
    if not isinstance(error, DfcError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text
