"""Spark's Java classes, kept: where, for whom, and that a job uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dfc_runtime import archive


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for name in ("one", "two"):
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / name))
        found.append(archive._path())
        assert archive.java_options() == ""
    assert found[0] != found[1] and found[1] is not None
    found[1].parent.mkdir(parents=True)
    found[1].write_bytes(b"x")
    assert f"-XX:SharedArchiveFile={found[1]} " in archive.java_options()
    monkeypatch.setenv("DFC_JAVA_ARCHIVE", "0")
    assert archive.java_options() == ""


def test_a_cache_folder_that_java_could_not_be_told_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some where")
    assert archive.java_options() == ""


@pytest.mark.spark
def test_an_archive_is_made_once_and_of_other_classes_java_does_without() -> None:
    """./dev.sh test has made it already: to make another takes a minute."""

    def warm_up() -> Path:
        command = [sys.executable, "-m", "dfc.compiler.cli", "warm-up"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return Path(done.stdout.strip())

    path = warm_up()
    made = path.stat().st_mtime_ns
    assert warm_up().stat().st_mtime_ns == made
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    told = [java, "-Xshare:on", f"-XX:SharedArchiveFile={path}", "-Xlog:cds", "-version"]
    refused = subprocess.run(told, capture_output=True, text=True)
    assert "mismatch" in refused.stdout + refused.stderr
