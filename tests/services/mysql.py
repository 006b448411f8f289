"""MySQL itself, out of Debian's unstable packages, unpacked beside the system and not into it.

Only tests that are run with `--mysql` need it: about 60 MB to fetch, 290 MB unpacked. It runs with
the C library that came with it, whatever the system's own is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pymysql

from .base import DATABASE, HOST, PASSWORD, USER, Server, ServiceError

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/mysql/private")
_ACCOUNT = f"""
CREATE DATABASE IF NOT EXISTS {DATABASE};
CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;
"""


def folder() -> Path:
    """Where everybody can read it: the server does not run as root."""
    cache = os.environ.get("DFC_MYSQL_FOLDER")
    return Path(cache) if cache else Path("/var/tmp") / f"dfc-mysql-{os.getuid()}"


def fetch() -> Path:
    """The folder with the server's files; fetched when they are not there."""
    root = folder() / "root"
    if (folder() / "complete").exists():
        return root
    if not _KEYRING.exists() or not shutil.which("apt-get") or os.uname().machine != "x86_64":
        raise ServiceError("mysql: its packages can only be had on Debian for amd64")
    apt = folder() / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "etc"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    folder().chmod(0o755)
    (apt / "status").touch()  # of a system that has nothing: all that it needs comes with it
    sources = apt / "etc" / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] http://deb.debian.org/debian sid main\n")
    settings = {
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/nonexistent",
        "Dir::Etc::parts": "/nonexistent",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    _run("apt-get", *options, "update")
    wanted = ("--download-only", "--no-install-recommends", "mysql-server-core")
    _run("apt-get", *options, "install", "-y", *wanted)
    root.mkdir(exist_ok=True)
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        if not package.name.startswith("perl"):
            _run("dpkg", "-x", str(package), str(root))
    shutil.rmtree(apt)
    (folder() / "complete").touch()
    return root


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise ServiceError(f"mysql: {command[0]} failed:\n{tail}")


class MySQL(Server):
    name = "mysql"
    usual_port = 3307
    commands = ("dpkg",)  # the server itself is fetched
    packages = ()
    runs_as = ("mysql", "nobody")

    def _program(self) -> list[str]:
        root = fetch()
        libraries = ":".join(str(root / path) for path in _LIBRARIES)
        return [str(root / _LOADER), "--library-path", libraries, str(root / "usr/sbin/mysqld")]

    def _settings(self) -> list[str]:
        root = fetch()
        settings = {
            "basedir": root / "usr",
            "datadir": self.data,
            "lc-messages-dir": root / "usr/share/mysql",
            "plugin-dir": root / "usr/lib/mysql/plugin",
            "secure-file-priv": "NULL",
            "mysqlx": 0,
        }
        return ["--no-defaults", *(f"--{key}={value}" for key, value in settings.items())]

    def initialise(self) -> None:
        self._run(*self._program(), *self._settings(), "--initialize-insecure")
        statements = [" ".join(line.split()) for line in _ACCOUNT.strip().splitlines()]
        init = self.data / "account.sql"
        init.write_text("\n".join(statements) + "\n", encoding="utf-8")

    def command(self) -> list[str]:
        settings = {
            "bind-address": HOST,
            "socket": "mysql.sock",  # seen from the data folder: a full path could be too long
            "pid-file": "mysql.pid",
            "init-file": self.data / "account.sql",
            "server-id": 1,
            "log-bin": "binlog",
            "binlog-row-metadata": "FULL",
            "gtid-mode": "ON",
            "enforce-gtid-consistency": "ON",
            "innodb-buffer-pool-size": "64M",
            "innodb-redo-log-capacity": "32M",
            "innodb-flush-log-at-trx-commit": 1 if self.durable else 2,
            "sync-binlog": 1 if self.durable else 0,
            **self.config,
            "port": self.port,
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        return [*self._program(), *self._settings(), *options]

    def ready(self) -> bool:
        try:
            pymysql.connect(host=HOST, port=self.port, user=USER, password=PASSWORD).close()
        except pymysql.err.Error:
            return False
        return True

    @property
    def dsn(self) -> str:
        return f"mysql://{USER}:{PASSWORD}@{self.address}/{DATABASE}"

    def env(self) -> dict[str, str]:
        return {"MYSQL_DSN": self.dsn}
