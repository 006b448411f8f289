"""A look into the servers of `./dev.sh up`: topics, streams, subjects, SQL."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from . import Kafka, MariaDB, Postgres, Redis, ServiceError, stack
from .base import PASSWORD, which


def _address(name: str) -> str:
    """The address of a running server."""
    each = stack.server(name)
    if not each.running:
        raise ServiceError(f"{name} is not running: ./dev.sh up {name}")
    (address,) = each.env().values()
    return address


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode("utf-8", errors="backslashreplace")


def _headers(headers: Mapping[str, str]) -> str:
    return f"  headers={json.dumps(headers, ensure_ascii=False)}" if headers else ""


# --- Kafka ----------------------------------------------------------------------------


def _admin() -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": _address(Kafka.name)})


def k_list() -> None:
    """topics with their partitions"""
    for name, topic in sorted(_admin().list_topics(timeout=10).topics.items()):
        if not name.startswith("__"):  # Kafka's own
            print(f"{name}  {len(topic.partitions)}")


def k_create(topic: str, partitions: int = 1) -> None:
    """makes a topic"""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    admin = _admin()  # has to outlive the answer
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    except KafkaException as problem:
        raise ServiceError(f"{topic}: {problem.args[0].str()}") from problem
    print(f"{topic}  {partitions}")


def k_consume(topic: str, count: int | None = None, follow: bool = True) -> None:
    """key, headers and value of messages, from the beginning; waits for more until Ctrl-C"""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": _address(Kafka.name),
            "group.id": "dev.sh",  # the client wants one; nothing is committed to it
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found = consumer.list_topics(topic, timeout=10).topics[topic]
    if found.error is not None:
        raise ServiceError(f"{topic}: {found.error.str()}")
    consumer.assign(
        [TopicPartition(topic, number, OFFSET_BEGINNING) for number in found.partitions]
    )
    open_ends, seen = set(found.partitions), 0
    while (count is None or seen < count) and (follow or open_ends):
        message = consumer.poll(0.5)
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise ServiceError(f"{topic}: {error.str()}")
            open_ends.discard(message.partition())
            continue
        seen += 1
        headers = {name: _text(value) for name, value in message.headers() or []}
        place = f"{topic}-{message.partition()}@{message.offset()}"
        print(f"{place}  key={_text(message.key())}{_headers(headers)}")
        print(_text(message.value()), flush=True)
    consumer.close()


def k_inspect(topic: str, count: int | None = None) -> None:
    """the same, without waiting for more"""
    k_consume(topic, count, follow=False)


def k_produce(topic: str) -> None:
    """sends every line that comes in, `key<TAB>value` or a value alone"""
    from confluent_kafka import Producer

    failed: list[str] = []
    producer = Producer({"bootstrap.servers": _address(Kafka.name)})
    for line in sys.stdin:
        key, tab, value = line.rstrip("\n").partition("\t")
        producer.produce(
            topic,
            key=key if tab else None,
            value=value if tab else key,
            on_delivery=lambda error, _: failed.append(error.str()) if error else None,
        )
        producer.poll(0)
    producer.flush()
    if failed:
        raise ServiceError(f"{topic}: {failed[0]}")


# --- Redis ----------------------------------------------------------------------------


def redis_read(stream: str, count: int | None = None) -> None:
    """entries of a stream, from the beginning"""
    import redis

    with redis.Redis.from_url(_address(Redis.name)) as client:
        for entry, fields in client.xrange(stream, count=count):
            print(_text(entry))
            for name, value in fields.items():
                print(f"  {_text(name)}: {_text(value)}")


def redis_sh(*arguments: str) -> None:
    """redis-cli, on ARGUMENTS or at a prompt"""
    cli = str(which("redis-cli"))
    os.execv(cli, [cli, "-u", _address(Redis.name), *arguments])


# --- NATS -----------------------------------------------------------------------------


def nats_sub(subject: str, count: int | None = None) -> None:
    """messages to a subject, as they come until Ctrl-C; those in a JetStream first"""
    url = _address("nats")

    async def listen() -> None:
        import nats
        from nats.js.api import DeliverPolicy
        from nats.js.errors import NotFoundError

        client = await nats.connect(url)
        try:
            subscription: Any = await client.jetstream().subscribe(
                subject, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
            )
        except NotFoundError:
            print(f"no stream holds {subject}: only what comes from now on", file=sys.stderr)
            subscription = await client.subscribe(subject)
        seen = 0
        async for message in subscription.messages:
            print(f"{message.subject}{_headers(message.headers or {})}")
            print(_text(message.data), flush=True)
            seen += 1
            if seen == count:
                break
        await client.close()

    asyncio.run(listen())


def nats_stream_add(stream: str, *subjects: str) -> None:
    """makes a JetStream stream that keeps what is sent to SUBJECTS"""
    url = _address("nats")

    async def add() -> None:
        import nats
        from nats.js.errors import APIError

        client = await nats.connect(url)
        try:
            await client.jetstream().add_stream(name=stream, subjects=list(subjects))
        except APIError as problem:
            raise ServiceError(f"{stream}: {problem.description}") from problem
        finally:
            await client.close()

    asyncio.run(add())
    print(f"{stream}  {' '.join(subjects)}")


# --- SQL ------------------------------------------------------------------------------


def mysql_sh(sql: str | None = None) -> None:
    """MariaDB's client, on SQL or at a prompt"""
    each = stack.server(MariaDB.name)
    assert isinstance(each, MariaDB)
    _address(each.name)
    command = each.client(*([] if sql is None else ["--table", f"--execute={sql}"]))
    os.execve(command[0], command, {**os.environ, "MYSQL_PWD": PASSWORD})


def pg_sh(sql: str | None = None) -> None:
    """psql, on SQL or at a prompt"""
    command = [
        Postgres.program("psql"),
        _address(Postgres.name),
        *([] if sql is None else ["-c", sql]),
    ]
    os.execv(command[0], command)
