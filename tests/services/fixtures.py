"""pytest fixtures: real servers, started when a test first asks for one, gone when the session is.

A missing server is installed, and where that cannot be done the test fails: nothing is skipped. Each
session has its own servers on free ports, whatever `./dev.sh up` has running.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from . import Kafka, MariaDB, Nats, Postgres, Redis, Server
from .install import install
from .mysql import MySQL
from .processes import Guard

S = TypeVar("S", bound=Server)


class Services:
    """Starts servers that end with the test session, however it ends."""

    def __init__(self) -> None:
        self.guard = Guard()
        # Not pytest's folder: the servers' users could not look into it, and it would be kept.
        self.folder = Path(tempfile.mkdtemp(prefix="dfc-services-"))
        self.folder.chmod(0o755)
        self.guard.remove(self.folder)
        self._count = 0
        self._passing: list[Server] = []

    def start(self, server: type[S], keep: bool = False, **settings: Any) -> S:
        """A server of its own for the caller, with `settings` of its class.

        It ends with the test, or with the module whose fixture started it; kept ones stay for all.
        """
        install([server])
        self._count += 1
        home = self.folder / f"{self._count}-{server.name}"
        started = server(home, durable=False, guard=self.guard, **settings)
        started.start()
        if not keep:
            self._passing.append(started)
        return started

    def passing(self) -> int:
        return len(self._passing)

    def end(self, since: int) -> None:
        """Ends those that were started since: each costs a little even when nobody asks it."""
        while len(self._passing) > since:
            server = self._passing.pop()
            if server.running:
                server.kill()


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """For tests that stop or freeze a server, or need one with settings of its own."""
    made = Services()
    yield made
    made.guard.close()


@pytest.fixture(scope="session")
def mariadb_server(services: Services) -> MariaDB:
    return services.start(MariaDB, keep=True)


@pytest.fixture(scope="session")
def mysql_server(services: Services) -> MySQL:
    """For tests with the mark `mysql`."""
    return services.start(MySQL, keep=True)


@pytest.fixture(scope="session")
def postgres_server(services: Services) -> Postgres:
    return services.start(Postgres, keep=True)


@pytest.fixture(scope="session")
def kafka_server(services: Services) -> Kafka:
    return services.start(Kafka, keep=True)


@pytest.fixture(scope="session")
def redis_server(services: Services) -> Redis:
    return services.start(Redis, keep=True)


@pytest.fixture(scope="session")
def nats_server(services: Services) -> Nats:
    return services.start(Nats, keep=True)


def of_its_own(server: type[S]) -> Any:
    """A server for one module, whose names others have too: `kafka_server = of_its_own(Kafka)`."""

    @pytest.fixture(scope="module")
    def started(services: Services) -> S:
        return services.start(server)

    return started


@pytest.fixture(autouse=True, scope="module")
def servers_of_a_module(services: Services) -> Iterator[None]:
    since = services.passing()
    yield
    services.end(since)


@pytest.fixture(autouse=True)
def servers_of_a_test(services: Services, servers_of_a_module: None) -> Iterator[None]:
    since = services.passing()
    yield
    services.end(since)
