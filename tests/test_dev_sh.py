"""The developer's script, as far as it goes without setting anything up."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DEV_SH = ROOT / "dev.sh"


def dev(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(DEV_SH), *args], capture_output=True, text=True, cwd=cwd)


def commands_in_help() -> set[str]:
    return set(re.findall(r"^  ([a-z]+)", dev("help").stdout, re.MULTILINE))


def test_help_lists_the_commands() -> None:
    expected = {"demo", "test", "lint", "fmt", "run", "dfc", "up", "down", "status", "setup"}
    assert expected | {"clean", "help"} <= commands_in_help()


def test_help_lists_every_command_that_is_understood() -> None:
    body = DEV_SH.read_text(encoding="utf-8").split("case $command in", 1)[1].split("esac", 1)[0]
    understood = {
        name.strip()
        for names in re.findall(r"^    ([a-z][^)\n]*)\)", body, re.MULTILINE)
        for name in names.split("|")
        if not name.strip().startswith("-")
    }
    offered = commands_in_help()
    # A benchmark command without benchmarks would be an empty promise.
    if not (ROOT / "tests" / "bench" / "run.py").exists():
        assert "bench" not in offered
        understood.discard("bench")
    assert understood == offered


def test_no_command_means_help() -> None:
    assert dev().returncode == 0
    assert dev().stdout == dev("help").stdout == dev("--help").stdout


def test_unknown_command_is_wrong_usage() -> None:
    done = dev("frobnicate")
    assert done.returncode == 2
    assert "frobnicate" in done.stderr
    assert "./dev.sh help" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_services_say_plainly_that_there_are_none(command: str) -> None:
    done = dev(command)
    assert done.returncode == 0
    assert "no services are needed yet" in done.stdout


def test_works_from_another_directory(tmp_path: Path) -> None:
    assert dev("help", cwd=tmp_path).stdout == dev("help").stdout


def test_works_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "project").symlink_to(ROOT)
    linked = [str(tmp_path / "project" / "dev.sh"), "status"]
    done = subprocess.run(linked, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == dev("status").stdout


def test_ci_calls_the_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert len(commands) == 2
    assert commands[1].endswith('dev.sh" test')


def test_scripts_are_executable() -> None:
    for script in (DEV_SH, ROOT / ".ci" / "run"):
        assert script.stat().st_mode & 0o111, f"{script.name} cannot be run"
