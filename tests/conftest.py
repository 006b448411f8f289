"""Options and fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .services.fixtures import (  # noqa: F401
    kafka_server,
    mariadb_server,
    nats_server,
    postgres_server,
    redis_server,
    servers_of_a_module,
    servers_of_a_test,
    services,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files instead of comparing"
    )


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One local Spark for all tests of a process; jobs use it instead of starting their own."""
    from dfc_runtime import session

    made, _ = session.start("tests", str(tmp_path_factory.mktemp("spark")), "local[2]", {}, False)
    yield made
    made.stop()
