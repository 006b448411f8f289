"""Compiled kernels: which of them may come out of the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HELPERS = """
import numpy as np
STEP = {step}
TABLE = np.array([{entry}, 0])
def more(x):
    return x + STEP
"""
KERNEL = """
import sys
from dfc_runtime.kernels.jit import Kernel
import helpers
from helpers import TABLE, more
def run(x):
    return more(x) + TABLE[0]
print(Kernel(run, more).compiled()(1), flush=True)
"""


def test_a_cached_kernel_notices_helpers_and_constants_of_other_modules(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)

    def result(step: int, entry: int) -> int:
        (tmp_path / "helpers.py").write_text(HELPERS.format(step=step, entry=entry))
        # Python's own cache goes by whole seconds.
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "kernel.py"], cwd=tmp_path, env=env, capture_output=True, check=True
        )
        return int(done.stdout)

    assert result(10, 100) == 111
    cached = set(tmp_path.rglob("*.nbc"))
    assert cached
    assert result(10, 100) == 111
    assert set(tmp_path.rglob("*.nbc")) == cached, "it was compiled again"
    assert result(20, 100) == 121
    assert result(20, 200) == 221


SAYS = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from dfc_runtime.kernels import jit
def run(x):
    return x + 1
kernel = jit.Kernel(run, name="the adder", takes="a moment")
early = kernel.after(jit.WORTH_LOADING)
print("early" if early else "late", (early or kernel.compiled())(1), flush=True)
"""


def test_the_first_compilation_is_announced_and_the_next_run_takes_it_sooner(
    tmp_path: Path,
) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "DFC_JIT": "1"}

    def said() -> list[str]:
        done = subprocess.run(
            [sys.executable, "says.py"], cwd=tmp_path, env=env, capture_output=True, check=True
        )
        return done.stdout.decode().splitlines()

    assert said() == ["compiling the adder, once on this machine: a moment", "late 2"]
    assert said() == ["early 2"]
