"""PostgreSQL of another version than the system's, for tests with `--postgres VERSION`."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

from . import jars
from .base import ServiceError

LIST = Path(__file__).with_name("postgres-jars.txt")
ASKED = "DFC_POSTGRES"  # the version, for all processes of a test run


def asked() -> Path | None:
    """The folder of the asked version's programs; fetched when they are not there."""
    version = os.environ.get(ASKED)
    return programs(version) if version else None


def programs(version: str) -> Path:
    found = [jar for jar in jars.listed(LIST) if jar.version.split(".")[0] == version]
    if not found:
        there = ", ".join(jar.version.split(".")[0] for jar in jars.listed(LIST))
        raise ServiceError(f"postgres: {LIST.name} has no version {version}, only {there}")
    (jar,) = found
    # Where everybody can read it: the server does not run as root.
    folder = Path("/var/tmp") / f"dfc-postgres-{os.getuid()}" / jar.version
    if not folder.exists():
        content = jars.download(jars.repository(), jar, LIST)
        part = folder.with_name(f"{jar.version}.{os.getpid()}.part")
        part.mkdir(parents=True)
        part.parent.chmod(0o755)
        with zipfile.ZipFile(io.BytesIO(content)) as inside:
            (name,) = [name for name in inside.namelist() if name.endswith(".txz")]
            with tarfile.open(fileobj=io.BytesIO(inside.read(name)), mode="r:xz") as files:
                files.extractall(part, filter="tar")
        part.chmod(0o755)
        try:
            part.rename(folder)
        except OSError:  # another process was quicker
            if not folder.exists():
                raise
    return folder / "bin"
