"""Where a MySQL or MariaDB server is: `mysql://user:password@host:port/db?ssl-mode=...`.

No text of the address gets into an error but host, port and user.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from .log import SourceError, TransientError

CONNECT_SECS = 30
READ_SECS = 90  # of silence on a connection that should have answered
_FORM = "mysql://USER:PASSWORD@HOST:PORT/DB"
_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_OPTIONS = ("ssl-mode", "ssl-ca", "ssl-capath", "ssl-cert", "ssl-key", "connect-timeout")
# What a server says that starts, stops, or has too much to do: it may be otherwise in a moment.
_PASSING = frozenset(
    {1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1927}
    | {2002, 2003, 2006, 2013, 2014, 2055, 3032, 3168, 4031}
)
_LOGIN = frozenset({1044, 1045, 1227, 1251, 1698, 1862, 2054, 2059, 2061, 3118})


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    mode: str = "PREFERRED"
    ca: str | None = None
    capath: str | None = None
    cert: str | None = None
    key: str | None = None
    connect_secs: int = CONNECT_SECS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def connect(self) -> Any:
        """A connection of PyMySQL: autocommit, UTC, utf8mb4."""
        pymysql = library()
        with self.guarded():
            return pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password,
                database=self.database or None,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=self.connect_secs,
                read_timeout=READ_SECS,
                write_timeout=READ_SECS,
                program_name="dfc",
                init_command="SET SESSION time_zone = '+00:00'",
                **self._tls(),
            )

    def _tls(self) -> dict[str, Any]:
        if self.mode == "DISABLED":
            return {"ssl_disabled": True}
        if self.mode == "PREFERRED" and not (self.ca or self.capath or self.cert):
            return {}
        try:
            context = ssl.create_default_context(cafile=self.ca, capath=self.capath)
            context.check_hostname = self.mode == "VERIFY_IDENTITY"
            checked = self.mode in ("VERIFY_CA", "VERIFY_IDENTITY")
            context.verify_mode = ssl.CERT_REQUIRED if checked else ssl.CERT_NONE
            # Certificates that servers make for themselves lack what the newest rules ask for.
            context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"the certificates of the DSN (ssl-ca, ssl-cert, ssl-key) cannot be read: {error}"
            ) from None
        return {"ssl": context}

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Errors of the client library as ours, told apart by whether another try may help."""
        err = library().err
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise self._refused(f"its certificate was not accepted: {error.reason}") from None
        except err.MySQLError as error:
            raise self.error(error) from None
        except OSError as error:
            raise TransientError(f"server {self}: {error or type(error).__name__}") from None
        except RuntimeError as error:
            # PyMySQL without `cryptography`, which a password over a plain connection needs.
            raise self._refused(f"{error}; or use TLS: ssl-mode=REQUIRED") from None

    def error(self, error: Exception) -> SourceError:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1] if len(error.args) > 1 else error)
        if self.password:
            text = text.replace(self.password, "***")
        if "certificate verify failed" in text:
            return self._refused(f"its certificate was not accepted: {text}")
        if number in _LOGIN:
            return self._refused(f"the login of `{self.user}` was refused: {text} ({number})")
        if number in _PASSING or isinstance(error, library().err.InterfaceError):
            return TransientError(f"server {self}: {text} ({number})")
        return SourceError(f"server {self}: {text} ({number})")

    def _refused(self, why: str) -> SourceError:
        return SourceError(f"server {self}: {why}")


def parse(dsn: str) -> Address:
    """Raises a SourceError that does not show the DSN."""
    scheme, found, rest = dsn.partition("://")
    if not found or scheme.lower() not in ("mysql", "mariadb"):
        raise SourceError(f"the dsn is not of the form {_FORM}")
    # The last @ ends the login, whatever an unescaped password holds.
    login, at, place = rest.rpartition("@")
    place, _, query = place.partition("?")
    user, _, password = login.partition(":")
    if not at or not user:
        raise SourceError(f"the dsn names no user: {_FORM}")
    try:
        parts = urlsplit(f"mysql://{place}")
        host, port = parts.hostname or "localhost", parts.port or 3306
    except ValueError:
        raise SourceError(f"the dsn's address is not HOST:PORT: {_FORM}") from None
    path = parts.path.strip("/")
    if "/" in path:
        raise SourceError(f"the dsn has more than a database behind its address: {_FORM}")
    return Address(
        host=unquote(host),
        port=port,
        user=unquote(user),
        password=unquote(password),
        database=unquote(path),
        **_options(query),
    )


def _options(query: str) -> dict[str, Any]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        known = name.lower().replace("_", "-")
        if known not in _OPTIONS:
            raise SourceError(f"the dsn has an option {name!r}; there are {', '.join(_OPTIONS)}")
        given[known] = value
    made: dict[str, Any] = {
        name.removeprefix("ssl-"): value
        for name, value in given.items()
        if name in ("ssl-ca", "ssl-capath", "ssl-cert", "ssl-key") and value
    }
    if "ssl-mode" in given:
        mode = given["ssl-mode"].upper().replace("-", "_")
        if mode not in _MODES:
            raise SourceError(
                f"the dsn's ssl-mode is {given['ssl-mode']!r}; there are {', '.join(_MODES)}"
            )
        made["mode"] = mode
    elif "ca" in made or "capath" in made:
        made["mode"] = "VERIFY_CA"  # as the servers' own clients take it
    mode = made.get("mode", "PREFERRED")
    if "key" in made and "cert" not in made:
        raise SourceError("the dsn has ssl-key without ssl-cert")
    if mode == "DISABLED" and len(made) > 1:
        raise SourceError("the dsn has certificates, but its ssl-mode is DISABLED")
    if "connect-timeout" in given:
        text = given["connect-timeout"]
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= 3600):
            raise SourceError("the dsn's connect-timeout is not a number of seconds")
        made["connect_secs"] = int(text)
    return made


def library() -> Any:
    try:
        import pymysql
    except ImportError:
        raise SourceError(
            "the mysql source needs the package PyMySQL: pip install 'dfc[run]'"
        ) from None
    return pymysql
