"""What this version of the runtime has, of all that a compiled job may ask for at its start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from .errors import ConfigError, DfcError, Unavailable
from .scripts.sandbox import check_engine

BUILT = frozenset(
    {
        "dfc_mysql",
        "dfc_postgres",
        "dfc_turso",
        "filter",
        "flatten",
        "outbox",
        "javascript",
        "javascript_v8",
        "journal",
    }
)
_LATER = {
    "turso_native": "`cdc_mode: native`",
    "turso_remote": "reading remote Turso databases",
    "schema_sensing": "`schema_sensing`",
    "connection_policy": "`connection_policy`",
}


_ENGINES = {"javascript": "quickjs", "javascript_v8": "v8"}


def check_needs(needs: Sequence[str]) -> None:
    """Refuses a job that asks for more than there is, naming all of it."""
    check_all(
        [
            lambda: _check_built(needs),
            *(partial(check_engine, _ENGINES[n]) for n in needs if n in _ENGINES),
        ]
    )


def _check_built(needs: Sequence[str]) -> None:
    problems = []
    unknown = [name for name in needs if name not in BUILT and name not in _LATER]
    if unknown:
        problems.append(
            f"this version of dfc_runtime does not know {', '.join(unknown)}: "
            "the job was compiled by a newer dfc"
        )
    later = [_LATER[name] for name in needs if name in _LATER]
    if later:
        verb = "is" if len(later) == 1 else "are"
        problems.append(f"{' and '.join(later)} {verb} not built yet")
    if problems:
        raise Unavailable("; ".join(problems))


def check_all(checks: Iterable[Callable[[], None]]) -> None:
    """Makes every check, and raises one error for all that failed."""
    failed: list[DfcError] = []
    for check in checks:
        try:
            check()
        except DfcError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        missing = all(isinstance(error, Unavailable) for error in failed)
        lines = dict.fromkeys(str(error) for error in failed)  # two sinks may lack the same
        raise (Unavailable if missing else ConfigError)("; ".join(lines))
