"""Storage for tests: one that is new, on each backend."""

from __future__ import annotations

import secrets

import psycopg
from dfc_runtime.storage import Storage

from .services import Postgres

every_backend = ("sqlite", "postgres")


def fresh_schema(server: Postgres) -> Storage:
    """A schema of its own in the server's database, with nothing in it."""
    name = f"state_{secrets.token_hex(6)}"
    with psycopg.connect(server.dsn, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}")
    return Storage("postgres", dsn=f"{server.dsn}?options=-csearch_path%3D{name}")
