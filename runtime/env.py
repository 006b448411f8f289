"""Environment references: `${NAME}`, `${NAME:-default}`, and `$$` for a dollar sign.

Values are read where the job runs and never shown: errors name variables only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import MissingEnv

# Capitals only: a lower-case `${source.table}` is a routing template and no business of ours.
_REFERENCE = re.compile(r"\$\$|\$\{([A-Z_][A-Z0-9_]*)(?::-([^}]*))?\}")


class Env(Mapping[str, str]):
    """The variables of one process, as they were when it started.

    A job's functions may hold on to it and so take it along to the workers. Only the variables that
    the job has named or asked for travel: the others are none of the cluster's business.
    """

    def __init__(self, values: Mapping[str, str], names: Iterable[str] = ()) -> None:
        self._values = dict(values)
        self._used = set(names)

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: self._values[name] for name in self._used if name in self._values}
        return {"_values": kept, "_used": set(self._used)}

    @classmethod
    def require(cls, names: Iterable[str]) -> Env:
        """Reads the environment; every missing name is in the one error that it raises."""
        wanted = set(names)
        missing = tuple(sorted(name for name in wanted if name not in os.environ))
        if missing:
            raise MissingEnv(missing)
        return cls(os.environ, wanted)

    @classmethod
    def stand_in(cls, names: Iterable[str], known: Mapping[str, str] | None = None) -> Env:
        """Its own reference for each variable that is not known: enough to make sinks that never
        connect, the same on every machine, and no secret."""
        return cls({**{name: f"${{{name}}}" for name in names}, **(known or {})}, names)

    def __getitem__(self, name: str) -> str:
        self._used.add(name)
        try:
            return self._values[name]
        except KeyError:
            raise MissingEnv((name,)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            self._used.add(name)
        return name in self._values

    def __repr__(self) -> str:
        return f"Env({len(self._values)} variables)"

    def fill(self, text: str) -> str:
        """`text` with its references replaced."""
        missing: list[str] = []

        def value(match: re.Match[str]) -> str:
            name, default = match.group(1), match.group(2)
            if name is None:
                return "$"
            self._used.add(name)
            found = self._values.get(name)
            if default is not None:
                return found or default  # as in a shell, an empty value takes the default too
            if found is None:
                missing.append(name)
                return ""
            return found

        filled = _REFERENCE.sub(value, text)
        if missing:
            raise MissingEnv(tuple(sorted(set(missing))))
        return filled


def expand(text: str) -> str:
    """`text` with its references replaced from this process's environment."""
    return Env(os.environ).fill(text)
