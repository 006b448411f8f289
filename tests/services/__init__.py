"""Real servers for tests and for people: MariaDB, PostgreSQL, Redis, NATS, Kafka, on loopback."""

from __future__ import annotations

from .base import Server, ServiceError
from .kafka import Kafka
from .mariadb import MariaDB
from .nats import Nats
from .postgres import Postgres
from .redis import Redis

SERVERS: dict[str, type[Server]] = {
    server.name: server for server in (MariaDB, Postgres, Kafka, Redis, Nats)
}

__all__ = ["SERVERS", "Kafka", "MariaDB", "Nats", "Postgres", "Redis", "Server", "ServiceError"]
