"""What the golden tests share: which specs there are, and how a folder is compared or rewritten."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dfc.compiler import Spec, emit_job, plan_pipeline
from dfc.compiler.diagnostics import Diagnostics
from dfc.compiler.serialise import plan_json

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
GOLDEN = ROOT / "golden"
# A constant, so that a release moves no golden.
VERSION = "0.1.0"


@dataclass(frozen=True)
class Case:
    name: str
    spec: Path
    folder: Path

    def outputs(self) -> dict[str, str]:
        spec = Spec(self.spec.name, self.spec.read_bytes())
        diagnostics = Diagnostics()
        plan = plan_pipeline(spec, diagnostics)
        assert plan is not None, diagnostics.text()
        return {"plan.json": plan_json(plan), "job.py": emit_job(plan, spec, VERSION)}


CASES = [
    *(Case(f"example-{p.stem}", p, GOLDEN / "examples" / p.stem) for p in EXAMPLES.glob("*.yaml")),
    *(Case(p.parent.name, p, p.parent) for p in GOLDEN.glob("rules/*/pipeline.yaml")),
]
CASES.sort(key=lambda case: case.name)


def check_folder(folder: Path, outputs: dict[str, str], update: bool) -> None:
    """Every file of the folder but its specs is an output, byte for byte; no stale one stays."""
    # Tests that run the jobs leave Python's own folder beside them.
    kept = {"__pycache__", *outputs}
    stale = {p.name for p in folder.glob("*") if p.suffix != ".yaml"} - kept
    if update:
        folder.mkdir(parents=True, exist_ok=True)
        for name in stale:
            (folder / name).unlink()
        for name, text in outputs.items():
            (folder / name).write_bytes(text.encode())
        return
    assert not stale, f"{folder} holds files that nothing makes any more: {sorted(stale)}"
    for name, text in outputs.items():
        path = folder / name
        assert path.is_file(), f"{path} is missing: run pytest --update-golden and read it"
        assert path.read_bytes().decode() == text, f"{path} differs: --update-golden, then read it"
