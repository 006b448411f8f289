"""Sinks that a pipeline may name already, so that it compiles and runs dry; delivery comes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ..errors import Unavailable
from ..events import Events
from ..messages import Messages
from .base import Lane, Sink, SinkFilter


class _Unbuilt(Sink):
    def check(self) -> None:
        raise Unavailable(
            f"sink `{self.id}`: the {self.kind} sink is not built yet; "
            "--dry-run shows what it would get"
        )

    def open(self, lane: Lane) -> str:
        self.check()
        return ""

    def write(self, messages: Messages, events: Events) -> None:
        self.check()

    def commit(self, position: str) -> None:
        self.check()


class NatsSink(_Unbuilt):
    kind: ClassVar[str] = "nats"

    def __init__(
        self,
        id: str,
        messages: Callable[[Events], Messages],
        *,
        required: bool = True,
        filter: SinkFilter | None = None,
        url: str,
        stream: str | None = None,
        send_timeout_secs: int = 5,
        batch_timeout_secs: int = 30,
        connect_timeout_secs: int = 10,
        credentials_file: str | None = None,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(id, messages, required=required, filter=filter)
        self.url = url
        self.stream = stream
        self.send_timeout_secs = send_timeout_secs
        self.batch_timeout_secs = batch_timeout_secs
        self.connect_timeout_secs = connect_timeout_secs
        self.credentials_file = credentials_file
        self.username = username
        self.password = password
        self.token = token

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(text for text in (self.url, self.password, self.token) if text)
