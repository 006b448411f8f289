"""Options and fixtures for all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from .services.fixtures import (  # noqa: F401
    kafka_server,
    mariadb_server,
    mysql_server,
    nats_server,
    postgres_server,
    redis_server,
    servers_of_a_module,
    servers_of_a_test,
    services,
)
from .services.postgres_versions import ASKED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files instead of comparing"
    )
    parser.addoption(
        "--mysql", action="store_true", help="also the tests on MySQL itself, which is fetched"
    )
    parser.addoption("--postgres", help="the version of PostgreSQL to test with, which is fetched")


def pytest_configure(config: pytest.Config) -> None:
    if version := config.getoption("--postgres"):
        os.environ[ASKED] = version


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def is_left_out(item: pytest.Item) -> bool:
        if item.get_closest_marker("mysql"):
            return not config.getoption("--mysql")
        return config.getoption("--postgres") == "13" and bool(
            item.get_closest_marker("postgres_14")
        )

    left_out = [item for item in items if is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _no_clients_are_left() -> Iterator[None]:
    """Those of Kafka wait for the next epoch of their lane, which never comes, with a dozen files each."""
    yield
    if client := sys.modules.get("dfc_runtime.sinks.kafka_client"):
        client._CACHE.clear()


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def spark(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One local Spark for all tests of a process; jobs use it instead of starting their own.

    Asked for anew each time: a test may have ended the one before. The last ends with the process.
    """
    from dfc_runtime import session

    made, _ = session.start("tests", str(tmp_path_factory.mktemp("spark")), "local[2]", {}, False)
    return made
