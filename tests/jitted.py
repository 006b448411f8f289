"""A kernel as numba compiles it; one that quietly ran as Python would be tested twice in that way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dfc_runtime.kernels.jit import Kernel


def jitted(kernel: Kernel) -> Callable[..., Any]:
    compiled = kernel.compiled()
    assert compiled is not None, "numba is among the packages that the tests install"
    return compiled
