"""The developer's script, as far as it goes without setting anything up."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .services import SERVERS
from .services.__main__ import parser

ROOT = Path(__file__).resolve().parents[1]
DEV_SH = ROOT / "dev.sh"


def dev(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(DEV_SH), *args], capture_output=True, text=True, cwd=cwd)


def commands_in_help() -> set[str]:
    names = re.findall(r"^  ([a-z-]+(?:, [a-z-]+)*)", dev("help").stdout, re.MULTILINE)
    return {name for line in names for name in line.split(", ")}


def test_help_lists_the_commands() -> None:
    expected = {"demo", "test", "lint", "fmt", "run", "dfc", "up", "down", "status", "setup"}
    assert expected | {"clean", "help"} <= commands_in_help()


def test_help_lists_every_command_that_is_understood() -> None:
    body = DEV_SH.read_text(encoding="utf-8").split("case $command in", 1)[1].split("esac", 1)[0]
    body = re.sub(r"\\\n *", "", body)
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


def test_status_shows_every_service() -> None:
    done = dev("status")
    assert done.returncode == 0
    shown = {line.split()[0] for line in done.stdout.splitlines()}
    assert shown == {"python:", "java:", *SERVERS}
    assert dev("ps").returncode == 0


def test_every_service_command_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    """The parser of the services knows what dev.sh lets through."""
    for command in ("up", "down", *(name for name in commands_in_help() if "-" in name)):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args([command, "--help"])
        assert ended.value.code == 0, capsys.readouterr().err


def test_up_names_the_services_there_are() -> None:
    (line,) = (line for line in dev("help").stdout.splitlines() if line.startswith("  up "))
    assert all(name in line for name in SERVERS)


def test_works_from_another_directory(tmp_path: Path) -> None:
    assert dev("help", cwd=tmp_path).stdout == dev("help").stdout


def test_works_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "project").symlink_to(ROOT)
    linked = [str(tmp_path / "project" / "dev.sh"), "status"]
    done = subprocess.run(linked, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == dev("status").stdout.splitlines()[:2]


def test_ci_calls_the_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert len(commands) == 2
    assert commands[1].endswith('dev.sh" test')


def test_scripts_are_executable() -> None:
    for script in (DEV_SH, ROOT / ".ci" / "run"):
        assert script.stat().st_mode & 0o111, f"{script.name} cannot be run"
