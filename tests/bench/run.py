"""`./dev.sh bench [NAME]...`: runs the benchmarks of this folder and prints one line per number.

A benchmark is a module here with `run()`, which returns what was measured and how it came out.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def benchmarks() -> dict[str, Path]:
    return {p.stem: p for p in sorted(HERE.glob("*.py")) if p.stem not in ("__init__", "run")}


def run(name: str, path: Path) -> None:
    started = time.monotonic()
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    print(f"== {name}", flush=True)
    for what, value in module.run():
        print(f"{what:<50} {value}", flush=True)
    print(f"({time.monotonic() - started:.0f} s)", flush=True)


def main(names: list[str]) -> int:
    known = benchmarks()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        run(name, known[name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
