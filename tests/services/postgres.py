"""PostgreSQL, ready for logical replication."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from . import postgres_versions
from .base import DATABASE, HOST, PASSWORD, USER, Server, succeeds, which


def _folders() -> list[Path]:
    """Where the programs of a server are, newest first: systems keep several versions side by side."""

    def version(folder: Path) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", str(folder))))

    patterns = (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "opt/homebrew/opt/postgresql@*/bin",
        "usr/local/opt/postgresql@*/bin",
    )
    found = [folder for pattern in patterns for folder in Path("/").glob(pattern)]
    return sorted((f for f in found if (f / "postgres").exists()), key=version, reverse=True)


class Postgres(Server):
    name = "postgres"
    usual_port = 5432
    commands = ("postgres", "initdb", "psql")
    packages = ("postgresql",)
    runs_as = ("postgres", "nobody")
    stop_signal = signal.SIGINT  # the one that does not wait for clients to leave

    @classmethod
    def missing(cls) -> list[str]:
        return [command for command in cls.commands if which(command, _folders()) is None]

    @staticmethod
    def program(name: str) -> str:
        other = postgres_versions.asked()
        if other is not None and (other / name).exists():
            return str(other / name)
        return str(which(name, _folders()))

    def initialise(self) -> None:
        options = [
            "--username",
            USER,
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
            "--auth=trust",
        ]
        self._run(self.program("initdb"), "-D", self.data, *options)
        # Not through initdb's password file, which the server's user might not be able to read.
        account = f"ALTER ROLE {USER} PASSWORD '{PASSWORD}';\nCREATE DATABASE {DATABASE};\n"
        # Version 13 would keep the password in a form that pg_hba.conf does not ask for.
        settings = ["-c", "fsync=off", "-c", "password_encryption=scram-sha-256"]
        options = ["--single", "-D", str(self.data), *settings, "postgres"]
        self._run(self.program("postgres"), *options, given=account)
        allowed = [f"host {what} all {HOST}/32 scram-sha-256\n" for what in ("all", "replication")]
        (self.data / "pg_hba.conf").write_text("".join(allowed), encoding="utf-8")

    def command(self) -> list[str]:
        settings = {
            "wal_level": "logical",
            "max_replication_slots": 50,
            "max_wal_senders": 50,
            "timezone": "UTC",
            "password_encryption": "scram-sha-256",
            "fsync": "on" if self.durable else "off",
            **self.config,
            "listen_addresses": HOST,
            "unix_socket_directories": "",  # whose path could be too long, and nobody needs it
            "port": self.port,
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [self.program("postgres"), "-D", str(self.data), *options]

    def ready(self) -> bool:
        return succeeds([self.program("psql"), "-qAtXc", "SELECT 1", self.dsn])

    @property
    def dsn(self) -> str:
        return f"postgres://{USER}:{PASSWORD}@{self.address}/{DATABASE}"

    def env(self) -> dict[str, str]:
        return {"POSTGRES_DSN": self.dsn}
