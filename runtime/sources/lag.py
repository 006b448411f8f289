"""How far a position stands behind the head of its source, for `dfc status`.

A source that can tell has a module here with `lag(source, position) -> Lag`. It asks the database and
leaves no trace in it; a SourceError says why there is no answer, NotAPosition that there never will be.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..errors import DfcError

PATIENCE_SECS = 5.0
_TELLERS = {  # by format of the source
    "dfc_mysql": "mysql_lag",
    "dfc_postgres": "postgres_lag",
    "dfc_turso": "turso_lag",
}


@dataclass(frozen=True, slots=True)
class Lag:
    """What is committed in the source and above the position."""

    amount: int
    unit: str  # events, or bytes of the log
    retained: int | None = None  # bytes of its log that the source keeps for this pipeline


class NotAPosition(DfcError):
    """A text that stands for no place in this source."""


class Wrong(str):
    """Why a position is none of the source's."""

    __slots__ = ()


def lag(source: Any, position: str) -> Lag | None:
    """None for a source that cannot tell."""
    module = _TELLERS.get(source.format)
    if module is None:
        return None
    found: Lag = import_module(f".{module}", __package__).lag(source, position)
    return found


def lags(
    source: Any, positions: Iterable[str], patience: float = PATIENCE_SECS
) -> dict[str, Lag | str]:
    """By position: the lag, or why it is not known. A database that is away costs little time."""
    wanted = list(dict.fromkeys(positions))
    found: dict[str, Lag | str] = {}

    def ask() -> None:
        for position in wanted:
            try:
                answer = lag(source, position)
                kind = source.format.removeprefix("dfc_")
                found[position] = answer or f"a {kind} source does not tell"
            except NotAPosition as error:
                found[position] = Wrong(error)
            except DfcError as error:
                found[position] = str(error)
            except Exception as error:  # its words may quote an address with a password
                found[position] = type(error).__name__

    asking = threading.Thread(target=ask, name="dfc-lag", daemon=True)
    asking.start()
    asking.join(patience)
    late = f"the source did not answer within {patience:g} s"
    return {position: found.get(position, late) for position in wanted}
