"""Kernels: functions over Arrow buffers that numba compiles, once that is worth its time.

Each kernel has a Python way beside it that gives the same results. That way is taken as long as a
process has seen few rows, and always where numba is missing or DFC_JIT is 0.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import Any

WORTH_COMPILING = 50_000  # rows; a fifth of a second to two seconds of the Python way


class Kernel:
    """A function over buffers with the functions it calls; all of them run as plain Python too."""

    def __init__(self, plain: Callable[..., Any], *helpers: Callable[..., Any]) -> None:
        self.plain = plain
        self.seen = 0
        self._helpers = helpers
        self._compiled: Callable[..., Any] | None = None
        self._failed = False

    def after(self, rows: int) -> Callable[..., Any] | None:
        """The compiled kernel, when these rows come on top of enough others; None before that."""
        self.seen += rows
        wanted = self._compiled is not None or self.seen >= WORTH_COMPILING
        return self.compiled() if wanted else None

    def compiled(self) -> Callable[..., Any] | None:
        """Compiled at the first call; None where numba is missing or switched off."""
        if self._compiled is None and not self._failed:
            try:
                if os.environ.get("DFC_JIT") == "0":
                    raise ImportError
                self._compiled = self._compile(cache=True)
            except ImportError:
                self._failed = True
            except RuntimeError:  # no place for the cache, as inside a zip: for this run only
                self._compiled = self._compile(cache=False)
        return self._compiled

    def _compile(self, cache: bool) -> Callable[..., Any]:
        import numba

        jit: Any = numba.njit(cache=cache, nogil=True)
        # A kernel calls its helpers by global names, which must be the compiled ones here and the
        # plain ones when it runs as Python.
        names = dict(self.plain.__globals__)
        for function in (*self._helpers, self.plain):
            name, defaults = function.__name__, function.__defaults__
            names[name] = jit(types.FunctionType(function.__code__, names, name, defaults))
        compiled: Callable[..., Any] = names[self.plain.__name__]
        return compiled
