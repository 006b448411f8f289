"""The storage of a call: what its flags say over what the spec has."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..errors import WrongUsage
from . import Storage

NAMES = ("storage", "storage_backend", "storage_path", "storage_dsn")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a job; those of `dfc` have the same names."""
    parser.add_argument(
        "--storage",
        metavar="sqlite:PATH|memory|postgres:DSN",
        help="where positions are kept, in one word; the next three say the same in parts",
    )
    parser.add_argument(
        "--storage-backend", choices=("sqlite", "memory", "postgres"), help="kind of storage"
    )
    parser.add_argument("--storage-path", metavar="PATH", help="file of the sqlite backend")
    parser.add_argument(
        "--storage-dsn",
        metavar="DSN",
        help="database of the postgres backend; '${NAME}' (in quotes) reads it from the environment",
    )


def chosen(spec: Storage, flags: Mapping[str, str | None]) -> Storage:
    """The storage to use; flags that contradict each other are wrong usage."""
    whole, backend, path, dsn = (flags.get(name) for name in NAMES)
    if whole is not None:
        if backend is not None or path is not None or dsn is not None:
            raise WrongUsage("--storage goes alone, without --storage-backend, -path and -dsn")
        return Storage.parse(whole)
    if path is not None and dsn is not None:
        raise WrongUsage("--storage-path is for sqlite, --storage-dsn for postgres: give one")
    if backend is None:
        if path is None and dsn is None:
            return spec
        backend = "sqlite" if path is not None else "postgres"
    for flag, value, owner in (
        ("--storage-path", path, "sqlite"),
        ("--storage-dsn", dsn, "postgres"),
    ):
        if value is not None and backend != owner:
            raise WrongUsage(f"{flag} has no meaning with --storage-backend {backend}")
        if value == "":
            raise WrongUsage(f"{flag} is empty")
    known = spec if spec.backend == backend else Storage(backend)
    if backend == "postgres" and dsn is None and not known.dsn:
        raise WrongUsage("--storage-backend postgres needs --storage-dsn")
    return Storage(backend, path or known.path, dsn or known.dsn)
