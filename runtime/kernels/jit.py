"""Kernels: functions over Arrow buffers that numba compiles, once that is worth its time.

Each kernel has a Python way beside it that gives the same results. That way is taken as long as a
process has seen few rows, and always where numba is missing or DFC_JIT is 0.
"""

from __future__ import annotations

import hashlib
import logging
import os
import types
from collections.abc import Callable
from typing import Any, cast

import numpy as np

# Kernels count in 64 bits; to a type checker that is an int like any other.
n64 = cast(type[int], np.int64)

WORTH_COMPILING = 50_000  # rows; a fifth of a second to two seconds of the Python way
WORTH_LOADING = 10_000  # where an earlier run has left the compiled kernel: a fifth of a second
logger = logging.getLogger("dfc.source.kernels")


class Kernel:
    """A function over buffers with the functions it calls; all of them run as plain Python too."""

    def __init__(
        self,
        plain: Callable[..., Any],
        *helpers: Callable[..., Any],
        worth_compiling: int = WORTH_COMPILING,
        name: str = "",
        takes: str = "",
    ) -> None:
        """`name` and `takes` are for the log, where somebody would notice the time it takes."""
        self.plain = plain
        self.worth_compiling = worth_compiling
        self.name, self.takes = name, takes
        self.seen = 0
        self._helpers = helpers
        self._compiled: Callable[..., Any] | None = None
        self._failed = self._looked = False

    def after(self, rows: int) -> Callable[..., Any] | None:
        """The compiled kernel, when these rows come on top of enough others; None before that."""
        self.seen += rows
        if self._compiled is None and self.seen < self.worth_compiling:
            if self.seen < WORTH_LOADING or self._looked:
                return None
            self._looked = True
            if not self._is_stored():
                return None
        return self.compiled()

    def compiled(self) -> Callable[..., Any] | None:
        """Compiled at the first call; None where numba is missing or switched off."""
        if self._compiled is None and not self._failed:
            try:
                if os.environ.get("DFC_JIT") == "0":
                    raise ImportError
                self._compiled = self._compile(cache=True)
                if not stored(self._compiled):
                    self._tell("once on this machine")
            except ImportError:
                self._failed = True
            except RuntimeError:  # no place for the cache, as inside a zip: for this run only
                self._compiled = self._compile(cache=False)
                self._tell("for this run, as there is no place to keep it")
        return self._compiled

    def _is_stored(self) -> bool:
        """Whether an earlier run has compiled the same."""
        try:
            return os.environ.get("DFC_JIT") != "0" and stored(self._compile(cache=True))
        except (ImportError, RuntimeError):
            return False

    def _tell(self, how_often: str) -> None:
        if self.takes:
            logger.info("compiling %s, %s: %s", self.name, how_often, self.takes)

    def _compile(self, cache: bool) -> Callable[..., Any]:
        import numba

        jit: Any = numba.njit(cache=cache, nogil=True)
        # A kernel calls its helpers by global names, which must be the compiled ones here and the
        # plain ones when it runs as Python. Each keeps the constants of its own module.
        functions = (*self._helpers, self.plain)
        modules = {id(f.__globals__): dict(f.__globals__) for f in functions}
        stamp = _stamp(functions) if cache else ""
        for function in functions:
            name, defaults = function.__name__, function.__defaults__
            names = modules[id(function.__globals__)]
            copy = types.FunctionType(function.__code__, names, name, defaults)
            copy.__qualname__ = name + stamp
            made = jit(copy)
            for module in modules.values():
                if module.get(name, function) is function:
                    module[name] = made
        compiled: Callable[..., Any] = made
        return compiled


def stored(compiled: Any) -> bool:
    """Whether numba's cache has a kernel, made of its file as it is now; yes when it cannot say."""
    look = getattr(getattr(compiled._cache, "_cache_file", None), "_load_index", None)
    return look is None or bool(look())


def _stamp(functions: tuple[Callable[..., Any], ...]) -> str:
    """A mark of all that a kernel is made of, for the name that its cache goes by.

    numba looks at a function's own file alone, and would go on with the helpers and constants of
    other modules as they were.
    """
    digest = hashlib.sha256()
    for function in functions:
        code = function.__code__
        digest.update(code.co_code)
        digest.update(_text(code.co_consts).encode())
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, types.ModuleType):
                value = tuple(getattr(value, name, None) for name in code.co_names)
            digest.update(f"{name} {_text(value)}".encode())
    return f"_{digest.hexdigest()[:12]}"


def _text(value: Any) -> str:
    """A constant in words that stay the same; nothing for what is none."""
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value) if isinstance(value, int | float | str | bytes | np.generic) else ""
