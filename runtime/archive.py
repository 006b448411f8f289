"""Spark's Java classes, loaded and checked once on a machine and kept: each start then takes half.

`python -m dfc_runtime.archive`, or `dfc warm-up`, makes the archive; jobs on a local master use it when it
is there. Java itself refuses one that was made by another version, or of other files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .errors import ConfigError

_MAKE_SECS = 300.0
# Words of Java's about an archive that it does not use are no news for anybody.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# A small pipeline on all the ways that a job takes through Spark.
_JOB = """\
from dfc_runtime import ACKS, CommitPolicy, Events, Job, Messages, Storage
from dfc_runtime.columns import native
from dfc_runtime.sinks import ConsoleSink
from dfc_runtime.sources import TursoSource

SOURCE = TursoSource(url="warm-up.db", tables=("words",), cdc_mode="polling")


def to_screen(e: Events) -> Messages:
    return Messages(value=native(e))


job = Job("warm-up", sinks=lambda env: (ConsoleSink("screen", to_screen),), storage=Storage("memory"))
spark = job.session()
events = spark.readStream.format("dfc_turso").options(**job.options(SOURCE)).load()
acks = events.mapInArrow(job.deliver(), ACKS)
job.run(acks.writeStream.foreachBatch(job.settle(CommitPolicy.required("screen"))))
"""


def java_options() -> str:
    """What has Java use the archive, when there is one for this Java and this Spark."""
    path = _path()
    return f"-XX:SharedArchiveFile={path} {_QUIET}" if path is not None and path.exists() else ""


def make() -> Path:
    """Runs a small pipeline, and keeps what Java has loaded for it; once is enough."""
    path = _path()
    if path is None:
        raise ConfigError("no Java found: set JAVA_HOME")
    if path.exists():
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dfc-warm-up-") as name:
        folder = Path(name)
        new = folder / "classes.jsa"
        (folder / "job.py").write_text(_JOB)
        with sqlite3.connect(folder / "warm-up.db") as database:
            database.execute("CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT)")
            database.execute("INSERT INTO words VALUES (1, 'warm')")
        database.close()
        keep = f"spark.driver.extraJavaOptions=-XX:ArchiveClassesAtExit={new}"
        done = subprocess.run(
            [sys.executable, "job.py", "--once", "--master", "local[2]", "--conf", keep],
            cwd=folder,
            env={**os.environ, "DFC_JAVA_ARCHIVE": "0"},
            capture_output=True,
            text=True,
            timeout=_MAKE_SECS,
        )
        deadline = time.monotonic() + _MAKE_SECS
        # Java writes it while it ends, and that is not waited for.
        while done.returncode == 0 and not _is_whole(new) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not _is_whole(new):
            last = (done.stderr.strip().splitlines() or ["Java did not write it"])[-1]
            raise ConfigError(f"the archive of Java's classes was not made: {last}")
        beside = path.with_suffix(f".{os.getpid()}")
        shutil.move(new, beside)  # perhaps from another disk
        beside.rename(path)
    return path


def _is_whole(path: Path) -> bool:
    """Its head is written last."""
    try:
        with path.open("rb") as file:
            return any(file.read(4))
    except FileNotFoundError:
        return False


def _path() -> Path | None:
    """Where the archive is for the Java and the Spark that a job would start; None without Java."""
    if os.environ.get("DFC_JAVA_ARCHIVE") == "0":
        return None
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        return None
    import pyspark

    looks = os.stat(os.path.realpath(java))
    made_of = (os.path.realpath(java), looks.st_size, looks.st_mtime_ns, pyspark.__file__)
    key = hashlib.sha256(repr((*made_of, pyspark.__version__)).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(cache, "dfc", f"java-{key}.jsa")
    return None if " " in str(path) else path  # options are divided by spaces


if __name__ == "__main__":
    try:
        print(make())
    except (ConfigError, subprocess.TimeoutExpired) as error:
        sys.exit(f"dfc: {error}")
