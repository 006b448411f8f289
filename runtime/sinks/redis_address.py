"""Redis URIs: what they mean, and connections to where they lead. No text of one gets into an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from ..errors import ConfigError

_SCHEMES = "redis:// and rediss://, or redis+sentinel:// and rediss+sentinel://"


@dataclass(frozen=True, slots=True)
class Address:
    """`service` is the name that the sentinels know the server by; without it, `hosts` is one."""

    tls: bool
    hosts: tuple[tuple[str, int], ...]
    service: str | None
    db: int
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    options: tuple[tuple[str, str], ...] = field(repr=False)

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{self.service} of sentinel {hosts}" if self.service else hosts


def parse(uri: str) -> Address:
    """Raises a ConfigError that does not show the URI."""
    scheme, found, _ = uri.partition("://")
    base, _, way = scheme.lower().partition("+")
    if way == "cluster":
        raise ConfigError(
            "Redis Cluster is not supported: the entries of a batch and its position must be written "
            "in one transaction, and a cluster has those only within one slot"
        )
    if not found or base not in ("redis", "rediss") or way not in ("", "sentinel"):
        raise ConfigError(f"not the URI of a Redis server; there are {_SCHEMES}")
    # Not urlsplit's reading of the host: it knows one only, and its errors quote what may be secret.
    parts = urlsplit(f"{base}://{uri.partition('://')[2]}")
    login, at, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    default = 26379 if way else 6379
    path = [unquote(step) for step in parts.path.strip("/").split("/") if step]
    service = None
    if way:
        if not path:
            raise ConfigError("the URI lacks the service: redis+sentinel://HOST:26379/SERVICE/DB")
        service = path.pop(0)
    if len(path) > 1 or not all(step.isascii() and step.isdigit() for step in path):
        raise ConfigError("the URI's path is not the number of a database")
    found_hosts = tuple(_host(text, default) for text in hosts.split(","))
    if len(found_hosts) > 1 and not way:
        raise ConfigError("the URI has several hosts, which only redis+sentinel:// may have")
    return Address(
        tls=base == "rediss",
        hosts=found_hosts,
        service=service,
        db=int(path[0]) if path else 0,
        username=unquote(username) if at and username else None,
        password=unquote(password) if at and password else None,
        options=tuple(parse_qsl(parts.query)),
    )


def _host(text: str, default: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = host or text, str(default)
    if (
        not (port.isascii() and port.isdigit())
        or int(port) > 65535
        or (":" in host.strip("[]")) != (host.startswith("[") and host.endswith("]"))
    ):
        raise ConfigError("the URI's address is not HOST:PORT")
    return host.strip("[]") or "localhost", int(port)


def login_of(uri: str) -> tuple[str, ...]:
    """The passwords in a URI, as they are written there and as they are meant; also in a wrong one."""
    login, at, _ = uri.partition("://")[2].rpartition("@")
    given = [login.partition(":")[2]] if at else []
    given += [piece.partition("=")[2] for piece in re.split("[?&]", uri) if "password=" in piece]
    return tuple(dict.fromkeys(text for raw in given if raw for text in (raw, unquote(raw))))


def connection(address: Address, connect_secs: float, silence_secs: float) -> tuple[Any, Any]:
    """A connection of redis-py that is not made yet, and the pool that it needs to live."""
    redis = library()
    own = {name: value for name, value in address.options if name.startswith("sentinel_")}
    query = urlencode([(n, v) for n, v in address.options if n not in own])
    try:
        settings: dict[str, Any] = redis.connection.parse_url(f"redis://localhost/?{query}")
        for name in ("host", "port", "username", "password", "db"):
            settings.pop(name, None)
        settings |= {
            "db": address.db,
            "username": address.username,
            "password": address.password,
            "protocol": 2,
            "decode_responses": False,
            "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),  # the job tries again
            "socket_connect_timeout": connect_secs,
            "socket_timeout": silence_secs,
        }
        pool: Any
        if address.service is None:
            ((host, port),) = address.hosts
            kind = redis.connection.SSLConnection if address.tls else redis.connection.Connection
            pool = redis.ConnectionPool(connection_class=kind, host=host, port=port, **settings)
        else:
            timeouts = {"socket_connect_timeout": connect_secs, "socket_timeout": silence_secs}
            login = {name.removeprefix("sentinel_"): value for name, value in own.items()}
            tls = {"ssl": True} if address.tls else {}
            ssl_options = {n: v for n, v in settings.items() if n.startswith("ssl_")}
            sentinel = redis.sentinel.Sentinel(
                address.hosts, sentinel_kwargs={**timeouts, **tls, **ssl_options, **login}
            )
            pool = redis.sentinel.SentinelConnectionPool(
                address.service, sentinel, ssl=address.tls, **settings
            )
        return pool.make_connection(), pool
    except (TypeError, ValueError, redis.RedisError):
        raise ConfigError("the URI's options are not those of redis-py") from None


def library() -> Any:
    try:
        import redis
        import redis.backoff
        import redis.retry
        import redis.sentinel
    except ImportError:
        raise ConfigError(
            "the redis sink needs the Python package `redis`: pip install 'dfc[run]'"
        ) from None
    return redis
