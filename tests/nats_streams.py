"""Streams of a NATS server for tests, through nats-py, which shares nothing with the sink."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.js.api import DeliverPolicy

Message = tuple[str, dict[str, str], bytes]  # subject, headers, content


class Streams:
    def __init__(self, url: str, **login: Any) -> None:
        self.url = url
        self.login = login

    def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def connected() -> Any:
            client = await nats.connect(self.url, **self.login)
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(connected())

    def add(self, name: str, *subjects: str, **config: Any) -> str:
        """A stream; `duplicate_window` in seconds."""

        async def add(client: Any) -> None:
            await client.jetstream().add_stream(name=name, subjects=list(subjects), **config)

        self.run(add)
        return name

    def delete(self, name: str) -> None:
        self.run(lambda client: client.jetstream().delete_stream(name))

    def publish(self, *messages: tuple[str, str]) -> None:
        """What somebody else writes, without an id."""

        async def publish(client: Any) -> None:
            for subject, content in messages:
                await client.jetstream().publish(subject, content.encode())

        self.run(publish)

    def messages(self, name: str) -> list[Message]:
        """Everything that the stream holds, in order."""

        async def read(client: Any) -> list[Message]:
            stream = client.jetstream()
            count = (await stream.stream_info(name)).state.messages
            found: list[Message] = []
            if count:
                subscription = await stream.subscribe(
                    ">", stream=name, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
                )
                while len(found) < count:
                    message = await subscription.next_msg(timeout=5)
                    found.append((message.subject, dict(message.headers or {}), message.data))
            return found

        result: list[Message] = self.run(read)
        return result
