"""This package as one file, for executors that run elsewhere."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_HASHED_UNCHECKED = (1).to_bytes(4, "little")  # of a .pyc: good without a look at its source
_HEADER = 16


def write_package(folder: str) -> str:
    """Writes dfc_runtime to a zip in `folder` that Python imports from, and returns its path."""
    path = os.path.join(folder, "dfc_runtime.zip")
    with zipfile.ZipFile(path, "w") as archive:
        _add(archive, files(__package__), __package__)
    return path


def _add(archive: zipfile.ZipFile, folder: Traversable, name: str) -> None:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inside = f"{name}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                _add(archive, entry, inside)
        elif not entry.name.endswith(".pyc"):
            text = entry.read_bytes()
            archive.writestr(inside, text)
            if isinstance(entry, Path) and (code := _compiled(entry, text)) is not None:
                archive.writestr(inside + "c", code)


def _compiled(source: Path, text: bytes) -> bytes | None:
    """What Python has made of a module here: each worker would compile it anew otherwise.

    One of another version passes it over and takes the source.
    """
    if source.suffix != ".py":
        return None
    try:
        cached = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    except (OSError, NotImplementedError):
        return None
    stamp = source.stat()
    here = int(stamp.st_mtime) & 0xFFFFFFFF, stamp.st_size & 0xFFFFFFFF
    known = tuple(int.from_bytes(cached[i : i + 4], "little") for i in (8, 12))
    if cached[4:8] != bytes(4) or here != known:  # left from an older text
        return None
    head = cached[:4] + _HASHED_UNCHECKED + importlib.util.source_hash(text)
    return head + cached[_HEADER:]
