"""Addresses of NATS servers, and the ways to log in."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError, SinkError

Address = tuple[str, int, bool, str | None, str | None]  # host, port, TLS, user or token, password


@dataclass(frozen=True)
class Login:
    """How to log in; never shown, not even by accident."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials_file: str | None = None


def addresses(url: str) -> list[Address]:
    """The servers of a list such as `nats://a:4222,tls://user:password@b`."""
    found = []
    for part in filter(None, (p.strip() for p in url.split(","))):
        try:
            split = urlsplit(part if "://" in part else f"nats://{part}")
            host, port = split.hostname, split.port or 4222
        except ValueError:
            split, host, port = urlsplit(""), None, 0
        if split.scheme not in ("nats", "tls") or not host:
            # Without the text itself, which may hold a password.
            raise ConfigError("a server address is not of the form nats://host:port or tls://…")
        user = unquote(split.username) if split.username else None
        password = unquote(split.password) if split.password else None
        found.append((host, port, split.scheme == "tls", user, password))
    if not found:
        raise ConfigError("there is no server address")
    return found


def login_for(login: Login, user: str | None, password: str | None) -> Login:
    """The settings, or what the address says."""
    if login.credentials_file or login.token is not None or login.username is not None:
        return login
    if user is not None and password is None:
        return Login(token=user)
    return Login(username=user, password=password)


def read_credentials(path: str) -> tuple[str, str]:
    """The JWT and the seed out of a file as `nsc` writes it."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise SinkError(f"credentials file {path}: {error.strerror}") from None
    parts = re.findall(r"-----BEGIN [^-]+-----\s*(\S+)\s*-+END [^-]+-+", text)
    if len(parts) < 2:
        raise SinkError(f"credentials file {path}: there is no JWT and seed in it")
    return parts[0], parts[1]


def check_signing() -> None:
    try:
        import nacl.signing  # noqa: F401
    except ImportError:
        raise ConfigError(
            "`credentials_file` needs the package pynacl: pip install pynacl"
        ) from None


def sign(seed: str, nonce: str) -> str:
    check_signing()
    import nacl.signing

    try:
        # Two bytes say what kind of key it is, two more at the end are a checksum.
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))[2:-2]
        signature = nacl.signing.SigningKey(raw).sign(nonce.encode()).signature
    except Exception:
        raise SinkError("the seed in the credentials file is not an nkey") from None
    return base64.urlsafe_b64encode(signature).decode().rstrip("=")
