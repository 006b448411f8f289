"""MariaDB, with a binary log that has all a reader needs."""

from __future__ import annotations

import os
import subprocess

from .base import DATABASE, HOST, PASSWORD, USER, Server, succeeds, which

# Also after a start with data from before: all of it may be said twice.
_ACCOUNT = f"""
SET sql_log_bin = 0;
CREATE DATABASE IF NOT EXISTS {DATABASE};
CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;
"""


class MariaDB(Server):
    name = "mariadb"
    usual_port = 3306
    commands = ("mariadbd", "mariadb-install-db", "mariadb")
    # The programs without Debian's own server, its data and its service.
    packages = ("mariadb-server-core", "mariadb-client-core")
    runs_as = ("mysql", "nobody")

    def initialise(self) -> None:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        # innodb-flush-method: what is made here is made again after a power loss.
        self._run(
            str(which("mariadb-install-db")),
            "--no-defaults",
            f"--datadir={self.data}",
            *options,
            "--innodb-log-file-size=32M",
            "--innodb-flush-method=nosync",
            "--skip-name-resolve",
        )
        statements = [" ".join(line.split()) for line in _ACCOUNT.strip().splitlines()]
        init = self.data / "account.sql"
        init.write_text("\n".join(statements) + "\n", encoding="utf-8")

    def command(self) -> list[str]:
        settings = {
            "bind-address": HOST,
            "datadir": self.data,
            "socket": "mariadb.sock",  # seen from the data folder: a full path could be too long
            "init-file": self.data / "account.sql",
            "server-id": 1,
            "log-bin": "binlog",
            "binlog-format": "ROW",
            "binlog-row-image": "FULL",
            "binlog-row-metadata": "FULL",
            "gtid-strict-mode": "ON",
            "character-set-server": "utf8mb4",
            "skip-name-resolve": "ON",
            "innodb-buffer-pool-size": "64M",
            "innodb-log-file-size": "32M",
            "innodb-flush-log-at-trx-commit": 1 if self.durable else 2,
            "innodb-flush-method": "fsync" if self.durable else "nosync",
            "sync-binlog": 1 if self.durable else 0,
            **self.config,
            "port": self.port,
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        return [str(which("mariadbd")), "--no-defaults", *options]

    def client(self, *more: str) -> list[str]:
        """The command-line client, logged in once MYSQL_PWD holds the password."""
        login = [f"--host={HOST}", f"--port={self.port}", f"--user={USER}"]
        return [str(which("mariadb")), "--no-defaults", *login, *more, DATABASE]

    def query(self, sql: str) -> list[list[str]]:
        command = self.client("--batch", "--skip-column-names", f"--execute={sql}")
        environment = {**os.environ, "MYSQL_PWD": PASSWORD}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return [line.split("\t") for line in done.stdout.splitlines()]

    def ready(self) -> bool:
        return succeeds(self.client("--execute=SELECT 1"), {"MYSQL_PWD": PASSWORD})

    @property
    def dsn(self) -> str:
        return f"mysql://{USER}:{PASSWORD}@{self.address}/{DATABASE}"

    def env(self) -> dict[str, str]:
        return {"MYSQL_DSN": self.dsn}
