"""The kafka sink against a real broker: what is in the topics, and what becomes of failures."""

from __future__ import annotations

import _ctypes
import base64
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.cimpl
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from dfc_runtime.agreement import Agreement
from dfc_runtime.batch import Batch
from dfc_runtime.deadletters import DeadLetters, Journal
from dfc_runtime.deliver import Delivery
from dfc_runtime.errors import (
    Barred,
    ConfigError,
    Fenced,
    Rejected,
    SinkError,
    Unavailable,
    reason,
)
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import KafkaSink, Lane, kafka_client, kafka_limits
from dfc_runtime.sinks.kafka_positions import TOPIC as POSITIONS
from dfc_runtime.sinks.kafka_positions import Entry, agreed
from dfc_runtime.storage import Storage

from .jobs.tiny_source import events
from .services import Kafka
from .services.fixtures import Services

ROOT = Path(__file__).resolve().parents[1]
_count = itertools.count()


def new_topic(server: Kafka, partitions: int = 1, **config: str) -> str:
    name = f"orders-{next(_count)}"
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(20)
    return name


def make(server: Kafka, **settings: Any) -> KafkaSink:
    settings.setdefault("brokers", server.address)
    return KafkaSink(
        settings.pop("id", "bus"), lambda e: Messages(to="x", value=e.after["id"]), **settings
    )


def unit(first: int, last: int, to: Any, **parts: Any) -> tuple[Messages, Events]:
    """Events first to last, with the number as the value."""
    numbers = range(first, last + 1)
    column = pa.array([to(i) for i in numbers], pa.string()) if callable(to) else to
    value = pa.array([str(i) for i in numbers], pa.string())
    happened = Events(events(first - 1, last), pipeline="p", tenant="acme")
    return Messages(to=column, value=parts.pop("value", value), **parts), happened


def at(number: int) -> str:
    return f"{number:016x}"


def put(sink: KafkaSink, first: int, last: int, to: Any, **parts: Any) -> None:
    sink.write(*unit(first, last, to, **parts))
    sink.commit(at(last))


def is_open(server: Kafka, topic: str, partitions: Iterable[int]) -> bool:
    """Whether a transaction is, in one of them."""
    admin = AdminClient({"bootstrap.servers": server.address})
    places = {TopicPartition(topic, n): OffsetSpec.latest() for n in partitions}

    def ends(level: IsolationLevel) -> list[int]:
        asked = admin.list_offsets(places, isolation_level=level)
        return [asked[place].result(20).offset for place in places]

    return ends(IsolationLevel.READ_COMMITTED) != ends(IsolationLevel.READ_UNCOMMITTED)


def read(server: Kafka, topic: str, isolation: str = "read_committed") -> list[Any]:
    """All there is in a topic, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    if isolation == "read_committed":
        # The brokers' word on a transaction comes before the marks that end it for readers.
        deadline = time.monotonic() + 3
        while is_open(server, topic, partitions) and time.monotonic() < deadline:
            time.sleep(0.05)
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in partitions])
    left, found, deadline = set(partitions), [], time.monotonic() + 30
    while left:
        assert time.monotonic() < deadline
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                left.discard(message.partition())
    consumer.close()
    return found


def numbers(server: Kafka, topic: str, isolation: str = "read_committed") -> list[int]:
    return [int(message.value()) for message in read(server, topic, isolation)]


@pytest.fixture(scope="module")
def fragile(services: Services) -> Kafka:
    """A broker to stop and freeze."""
    return services.start(Kafka)


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def exactly_once(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# --- messages -----------------------------------------------------------------------------------


def test_bytes_keys_and_tombstones(kafka_server: Kafka, exactly_once: bool) -> None:
    topic = new_topic(kafka_server)
    sink = make(kafka_server, exactly_once=exactly_once)
    sink.open(Lane(topic))
    value = pa.array(['{"name":"Zoë ☃"}', None, ""], pa.string())
    key = pa.array([None, '{"id":2}', "ключ"], pa.string())
    put(sink, 1, 3, topic, value=value, key=key)
    put(sink, 4, 4, topic, value="same", key="for all")
    sink.close()
    assert [(m.key(), m.value(), m.headers()) for m in read(kafka_server, topic)] == [
        (None, '{"name":"Zoë ☃"}'.encode(), None),
        (b'{"id":2}', None, None),
        ("ключ".encode(), b"", None),
        (b"for all", b"same", None),
    ]


def test_headers_of_some_rows(kafka_server: Kafka, exactly_once: bool) -> None:
    topic = new_topic(kafka_server)
    sink = make(kafka_server, exactly_once=exactly_once)
    sink.open(Lane(topic))
    headers = pa.array(['{"trace":"é","empty":""}', None, "{}"], pa.string())
    put(sink, 1, 3, topic, headers=headers)
    put(sink, 4, 4, topic, headers='{"n":1,"half":"\\ud800"}')
    sink.close()
    assert [(m.value(), m.headers()) for m in read(kafka_server, topic)] == [
        (b"1", [("trace", "é".encode()), ("empty", b"")]),
        (b"2", None),
        (b"3", None),
        (b"4", [("n", b"1"), ("half", b"?")]),
    ]


def test_order_of_each_key_in_several_topics(kafka_server: Kafka, exactly_once: bool) -> None:
    topics = [new_topic(kafka_server, 3) for _ in range(3)]
    sink = make(kafka_server, exactly_once=exactly_once)
    sink.open(Lane(topics[0]))
    for first in (1, 5001):
        key = pa.array([str(i % 17) for i in range(first, first + 5000)], pa.string())
        put(sink, first, first + 4999, lambda i: topics[i % 3], key=key)
    sink.close()
    seen = []
    for index, topic in enumerate(topics):
        by_key: dict[bytes, list[int]] = {}
        for message in read(kafka_server, topic):
            by_key.setdefault(message.key(), []).append(int(message.value()))
        assert len(by_key) == 17 and all(each == sorted(each) for each in by_key.values())
        found = sorted(number for each in by_key.values() for number in each)
        assert all(number % 3 == index for number in found)
        seen += found
    assert sorted(seen) == list(range(1, 10_001))


def test_more_than_the_client_queues(kafka_server: Kafka, exactly_once: bool) -> None:
    topic = new_topic(kafka_server)
    small = {"queue.buffering.max.messages": "100", "queue.buffering.max.kbytes": "1"}
    sink = make(kafka_server, exactly_once=exactly_once, client_conf=small)
    sink.open(Lane(topic))
    put(sink, 1, 1000, topic)
    put(sink, 1001, 1500, topic, headers='{"h":"x"}')
    sink.close()
    assert numbers(kafka_server, topic) == list(range(1, 1501))


def test_messages_of_no_topic(kafka_server: Kafka) -> None:
    sink = make(kafka_server)
    sink.open(Lane("p"))
    for bad in ("two words", "", "..", "x" * 250, POSITIONS):
        with pytest.raises(Rejected, match="not a topic for events") as rejected:
            sink.write(*unit(1, 4, lambda i, bad=bad: "good" if i == 2 else bad))
        assert list(rejected.value.rows) == [0, 2, 3]
        with pytest.raises(Rejected) as rejected:
            sink.write(*unit(1, 2, bad))
        assert list(rejected.value.rows) == [0, 1]
    sink.close()


# --- what does not work -------------------------------------------------------------------------


def test_topic_missing(kafka_server: Kafka, exactly_once: bool) -> None:
    topic = new_topic(kafka_server)
    sink = make(kafka_server, exactly_once=exactly_once)
    sink.open(Lane(topic))
    with pytest.raises(SinkError) as refused:
        sink.write(*unit(1, 4, lambda i: topic if i % 2 else "never.made"))
    assert "no topic never.made: kafka-topics.sh" in str(refused.value)
    assert "--create --topic never.made" in str(refused.value)
    sink.abort()
    sink.close()
    assert read(kafka_server, topic, "read_uncommitted") == []


def test_brokers_that_make_topics(services: Services) -> None:
    server = services.start(Kafka, config={"auto.create.topics.enable": "true"})
    for exactly_once in (False, True):
        sink = make(server, exactly_once=exactly_once)
        sink.open(Lane("p"))
        put(sink, 1, 3, f"made-{exactly_once}")
        sink.close()
        assert numbers(server, f"made-{exactly_once}") == [1, 2, 3]
    resource = ConfigResource(ConfigResource.Type.TOPIC, POSITIONS)
    admin = AdminClient({"bootstrap.servers": server.address})
    assert admin.describe_configs([resource])[resource].result(20)["cleanup.policy"].value == (
        "compact"
    )


def test_positions_topic_that_forgets(services: Services) -> None:
    server = services.start(Kafka)
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(POSITIONS, 1, 1)])[POSITIONS].result(20)
    with pytest.raises(ConfigError, match=r"`cleanup.policy` to `compact`"):
        make(server, exactly_once=True).open(Lane("p"))


@pytest.mark.parametrize("headers", [None, '{"h":"x"}'])
def test_too_large_is_rejected_before_anything_goes_out(
    kafka_server: Kafka, exactly_once: bool, headers: str | None
) -> None:
    topic = new_topic(kafka_server)
    sink = make(kafka_server, exactly_once=exactly_once)
    sink.open(Lane(topic))
    extra = 0 if headers is None else len("hx") + 10
    fits = "x" * (1_000_000 - 36 - len("key") - extra)
    value = pa.array(["small", fits + "x", "small", fits + "yy"], pa.string())
    with pytest.raises(Rejected) as rejected:
        sink.write(*unit(1, 4, topic, value=value, key="key", headers=headers))
    assert list(rejected.value.rows) == [1, 3]
    assert "1000001 bytes" in rejected.value.rows[1] and "1000000" in rejected.value.rows[1]
    sink.abort()
    sink.close()
    assert read(kafka_server, topic, "read_uncommitted") == []
    sink.open(Lane(topic))
    put(sink, 1, 1, topic, value=pa.array([fits]), key="key", headers=headers)
    sink.close()
    assert len(read(kafka_server, topic)[0].value()) == len(fits)


def test_too_large_for_the_topic(kafka_server: Kafka, exactly_once: bool) -> None:
    topic = new_topic(kafka_server, **{"max.message.bytes": "5000"})
    plain = {"compression.type": "none", "client.id": topic}
    sink = make(kafka_server, exactly_once=exactly_once, client_conf=plain)
    value = pa.array(["a" * 3000, "b" * 6000, "c" * 3000])
    for _ in range(2):  # in one batch with the others, then by itself
        sink.open(Lane(topic))
        with pytest.raises(SinkError, match=r"message of up to \d+ bytes.*`max.message.bytes`"):
            put(sink, 1, 3, topic, value=value)
        sink.abort()
    sink.open(Lane(topic))
    with pytest.raises(Rejected, match=f"6000 bytes is too large for topic {topic}, which takes 5000") as rejected:  # fmt: skip
        sink.write(*unit(1, 3, topic, value=value))
    assert list(rejected.value.rows) == [1]
    put(sink, 1, 2, topic, value=pa.array(["a" * 3000, "c" * 3000]))
    sink.close()
    kept = [len(message.value()) for message in read(kafka_server, topic)]
    assert kept[-2:] == [3000, 3000] and 6000 not in kept


def test_a_topic_whose_limit_was_raised_takes_the_message(
    kafka_server: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_limits, "_FRESH_SECS", 0.0)
    topic = new_topic(kafka_server, **{"max.message.bytes": "5000"})
    sink = make(kafka_server, client_conf={"compression.type": "none", "client.id": topic})

    def attempt() -> None:
        sink.open(Lane(topic))
        try:
            put(sink, 1, 1, topic, value=pa.array(["a" * 6000]))
        finally:
            sink.abort()

    for kind in (SinkError, SinkError, Rejected, Rejected):
        with pytest.raises(kind):
            attempt()
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    entry = ConfigEntry("max.message.bytes", "9000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)
    attempt()
    assert [len(message.value()) for message in read(kafka_server, topic)] == [6000]


def test_too_large_for_the_topic_is_a_dead_letter_and_the_others_are_there(
    kafka_server: Kafka, exactly_once: bool, tmp_path: Path
) -> None:
    """By what the broker says, which counts compressed bytes: two of the three are no trouble."""
    topic = new_topic(kafka_server, **{"max.message.bytes": "5000"})
    noise = base64.b64encode(os.urandom(6000)).decode()
    values = ["x" * 8000, noise, "y" * 8000]
    sink = KafkaSink(
        "bus",
        lambda e: Messages(to=topic, value=pa.array([values[n] for n in ids(e)])),
        brokers=kafka_server.address,
        exactly_once=exactly_once,
        client_conf={"client.id": topic},
    )
    kept = Storage(path=str(tmp_path / "state.db"))
    dead = DeadLetters(Journal(), kept, "shop")
    delivery = Delivery(topic, None, 1, lambda e: e, (sink,), Batch(), dead)
    for _ in range(4):
        (acks,) = list(delivery.run(iter([events(0, 3)]), 0, {}))
        ack = acks.to_pylist()[0]
        if ack["error"] is None:
            break
    assert (ack["error"], ack["position"]) == (None, at(3))
    sink.close()
    there = [message.value().decode()[0] for message in read(kafka_server, topic)]
    assert there[-2:] == ["x", "y"] and noise[0] not in there[-2:]
    storage = kept.open()
    ((_, letter),) = storage.peek("dlq", "shop", 10)
    storage.close()
    assert b"is too large for topic" in letter


def ids(e: Events) -> list[int]:
    return [int(position, 16) - 1 for position in e.position.to_pylist()]


def test_settings_that_the_client_does_not_take() -> None:
    def refused(**conf: str) -> str:
        sink = KafkaSink(
            "bus",
            lambda e: Messages(value=""),
            brokers="localhost:1",
            exactly_once=True,
            client_conf={name.replace("_", "."): value for name, value in conf.items()},
        )
        with pytest.raises(ConfigError) as error:
            sink.check()
        text = str(error.value)
        assert not any(value in text for value in conf.values())
        return text.removeprefix("sink `bus`: `client_conf`: ")

    assert refused(no_such_key="hunter2") == "the Kafka client knows no setting `no.such.key`"
    assert refused(linger_ms="hunter2") == (
        "`linger.ms` has a value that the Kafka client does not take"
    )
    assert refused(linger_ms="99999999") == (
        "`linger.ms` has a value that the Kafka client does not take: it goes from 0 to 900000"
    )
    assert "`security.protocol`" in refused(security_protocol="hunter2")
    assert "`sasl.mechanism`" in refused(security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM")
    assert "ssl.ca.location" in refused(security_protocol="SSL", ssl_ca_location="/nowhere/ca")
    sink = KafkaSink(
        "bus", lambda e: Messages(value=""), brokers="b:1", client_conf={"on_delivery": "x"}
    )
    with pytest.raises(ConfigError, match="`on_delivery`, which is no setting"):
        sink.check()


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"delivery.timeout.ms": "5000", "acks": "-1", "compression.codec": "zstd"},
        {"acks": "1", "enable.idempotence": "false", "linger.ms": "0"},
        {"transaction.timeout.ms": "10000"},
    ],
)
def test_settings_that_it_takes(conf: dict[str, str]) -> None:
    for exactly_once in (False, "enable.idempotence" not in conf):
        for secs in (1, 30, 3600):
            KafkaSink(
                "bus",
                lambda e: Messages(value=""),
                brokers="localhost:1",
                exactly_once=exactly_once,
                send_timeout_secs=secs,
                client_conf=conf,
            ).check()


def test_without_the_client_library(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = KafkaSink("bus", lambda e: Messages(value=""), brokers="b:1")
    another = _ctypes.__file__  # a library like any other
    for patch in (
        lambda: monkeypatch.setattr(confluent_kafka.cimpl, "__file__", another),
        lambda: monkeypatch.setitem(sys.modules, "confluent_kafka", None),
    ):
        monkeypatch.delitem(sys.modules, "dfc_runtime.sinks.librdkafka", raising=False)
        patch()
        with pytest.raises(Unavailable, match=r"confluent-kafka, 2.12 or newer"):
            sink.check()


def test_nobody_there(exactly_once: bool) -> None:
    sink = KafkaSink(
        "bus",
        lambda e: Messages(value=""),
        brokers="127.0.0.1:1",
        exactly_once=exactly_once,
        send_timeout_secs=1,
    )
    sink.check()
    with pytest.raises(SinkError, match=r"sink `bus`: .* after 1 s: .*Connection refused"):
        sink.open(Lane("p"))


# --- TLS and passwords --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(services: Services) -> Kafka:
    return services.start(Kafka, secure=True)


def conf_for(server: Kafka, protocol: str) -> dict[str, Any]:
    conf = server.client(protocol)
    return {"brokers": conf.pop("bootstrap.servers"), "client_conf": conf}


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_encrypted_and_logged_in(secure: Kafka, protocol: str, exactly_once: bool) -> None:
    topic = new_topic(secure)
    sink = make(secure, exactly_once=exactly_once, **conf_for(secure, protocol))
    sink.check()
    sink.open(Lane(topic))
    put(sink, 1, 3, topic)
    sink.close()
    assert numbers(secure, topic) == [1, 2, 3]


def test_wrong_password(secure: Kafka, exactly_once: bool) -> None:
    settings = conf_for(secure, "SASL_SSL")
    settings["client_conf"]["sasl.password"] = "hunter2-hunter2"
    sink = make(secure, exactly_once=exactly_once, **settings)
    sink.check()
    began = time.monotonic()
    with pytest.raises(Barred, match=r"do not let it in: .*uthentication failed") as refused:
        sink.open(Lane("p"))
    assert time.monotonic() - began < 25  # of 30
    assert "hunter2" not in str(refused.value)
    assert "hunter2-hunter2" in sink.secrets
    assert "hunter2" not in reason(ValueError("x hunter2-hunter2"), sink.secrets)


def test_unknown_certificate(secure: Kafka) -> None:
    settings = conf_for(secure, "SSL")
    del settings["client_conf"]["ssl.ca.location"]
    sink = make(secure, **settings)
    began = time.monotonic()
    with pytest.raises(Barred, match=r"do not let it in: .*certificate"):
        sink.open(Lane("p"))
    assert time.monotonic() - began < 25


def test_rights(services: Services) -> None:
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # who comes without a password: this test
    }
    server = services.start(Kafka, secure=True, config=config)
    topic = new_topic(server)
    sink = make(server, **conf_for(server, "SASL_SSL"))
    sink.open(Lane(topic))
    began = time.monotonic()
    with pytest.raises(Barred, match=rf"topic {topic}: .*; the user of this sink lacks"):
        sink.write(*unit(1, 3, topic))
    assert time.monotonic() - began < 25
    allow(server, ResourceType.TOPIC, topic, "DESCRIBE")
    sink.open(Lane(topic))
    with pytest.raises(SinkError, match=r"AUTHORIZATION_FAILED\); the user of this sink lacks"):
        put(sink, 1, 3, topic)
    sink.abort()
    allow(server, ResourceType.TOPIC, topic, "WRITE")
    sink.open(Lane(topic))
    put(sink, 1, 3, topic)

    sink = make(server, exactly_once=True, **conf_for(server, "SASL_SSL"))
    with pytest.raises(Barred, match=r"topic dfc\.positions cannot be .*AUTHORIZATION_FAILED"):
        sink.open(Lane(topic))
    allow(server, ResourceType.TOPIC, POSITIONS, "DESCRIBE", "READ", "WRITE")
    with pytest.raises(Barred, match=r"cannot be made: .*kafka-topics\.sh .*=compact"):
        sink.open(Lane(topic))
    allow(server, ResourceType.TOPIC, POSITIONS, "CREATE")
    with pytest.raises(Barred, match=r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED.*lacks the right"):
        sink.open(Lane(topic))
    allow(server, ResourceType.TRANSACTIONAL_ID, "dfc-", "DESCRIBE", "WRITE")
    assert sink.open(Lane(topic)) == ""
    put(sink, 4, 6, topic)
    sink.close()
    assert numbers(server, topic) == [1, 2, 3, 4, 5, 6]


def allow(server: Kafka, kind: Any, name: str, *what: str) -> None:
    prefixed = name.endswith("-")
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    rights = [
        AclBinding(
            kind, name, pattern, "User:dfc", "*", AclOperation[each], AclPermissionType.ALLOW
        )
        for each in what
    ]
    admin = AdminClient({"bootstrap.servers": server.address})
    for done in admin.create_acls(rights).values():
        done.result(20)


# --- exactly once -------------------------------------------------------------------------------


def test_unit_and_position_are_one_transaction(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)
    sink = make(kafka_server, exactly_once=True)
    assert sink.open(Lane(topic)) == ""
    put(sink, 1, 3, topic)
    sink.write(*unit(4, 6, topic))
    sink._client.flush()  # type: ignore[union-attr]
    assert numbers(kafka_server, topic, "read_uncommitted") == [1, 2, 3, 4, 5, 6]
    assert numbers(kafka_server, topic) == [1, 2, 3]
    sink.abort()
    assert numbers(kafka_server, topic) == [1, 2, 3]
    sink.close()
    assert sink.open(Lane(topic)) == at(3)
    put(sink, 4, 6, topic)
    assert numbers(kafka_server, topic) == [1, 2, 3, 4, 5, 6]
    sink.close()
    last = [m for m in read(kafka_server, POSITIONS) if m.key() == f"{topic}/bus/0".encode()][-1]
    assert json.loads(last.value())["position"] == at(6)


def test_units_without_events_cost_nothing(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)
    sink = make(kafka_server, exactly_once=True)
    sink.open(Lane(topic))
    before = len(read(kafka_server, POSITIONS))
    sink.commit(at(5))
    sink.close()
    assert len(read(kafka_server, POSITIONS)) == before


def test_producer_is_kept_between_epochs(kafka_server: Kafka, exactly_once: bool) -> None:
    topic = new_topic(kafka_server)
    sink = make(kafka_server, exactly_once=exactly_once)
    clients = set()
    for number in range(1, 5):
        # A task gets its own copy of the sink.
        task = pickle.loads(pickle.dumps(make_picklable(sink)))
        assert task.open(Lane(topic)) == (at(number - 1) if exactly_once and number > 1 else "")
        clients.add(id(task._client))
        put(task, number, number, topic)
        task.close()
    assert len(clients) == 1
    assert numbers(kafka_server, topic) == [1, 2, 3, 4]


def make_picklable(sink: KafkaSink) -> KafkaSink:
    sink.messages = str  # type: ignore[assignment]
    return sink


def test_new_runner_goes_on_and_fences_the_old_one(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)
    old, new = make(kafka_server, exactly_once=True), make(kafka_server, exactly_once=True)
    old.open(Lane(topic))
    put(old, 1, 3, topic)
    old.write(*unit(4, 6, topic))  # under way when the other one comes
    assert new.open(Lane(topic)) == at(3)
    put(new, 4, 9, topic)
    with pytest.raises(Fenced, match=f"another runner of pipeline `{topic}` has taken over sink"):
        old.commit(at(6))
    old.close()
    for _ in range(2):  # whoever tries again on its behalf
        with pytest.raises(Fenced):
            old.open(Lane(topic))
    new.close()
    assert new.open(Lane(topic)) == at(9)
    put(new, 10, 12, topic)
    new.close()
    assert numbers(kafka_server, topic) == list(range(1, 13))


def test_fencing_ends_the_job(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)
    sink = KafkaSink(
        "bus",
        lambda e: Messages(to=topic, value=e.after["id"]),
        brokers=kafka_server.address,
        exactly_once=True,
    )
    delivery = Delivery(topic, None, 1, lambda e: e, (sink,), Batch(max_events=6))

    def batches() -> Any:
        yield events(0, 9)
        make(kafka_server, exactly_once=True).open(Lane(topic))
        yield events(9, 18)

    (acks,) = delivery.run(batches(), 0, {})
    told = {row["sink"]: row["error"] for row in acks.to_pylist()}
    assert f"another runner of pipeline `{topic}` has taken over sink `bus`" in told[""]
    assert numbers(kafka_server, topic) == list(range(1, 7))


def test_another_worker_of_the_same_run_may_take_the_lane(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)
    sink = make_picklable(make(kafka_server, exactly_once=True))
    here = pickle.loads(pickle.dumps(sink))
    assert here.open(Lane(topic)) == ""
    put(here, 1, 3, topic)
    here.close()
    (place,) = [key for key in kafka_client._CACHE if topic in key]
    kept = kafka_client._CACHE.pop(place)  # as another process, which has none
    there = pickle.loads(pickle.dumps(sink))
    assert there.open(Lane(topic)) == at(3)
    put(there, 4, 6, topic)
    kafka_client._CACHE[place] = kept
    back = pickle.loads(pickle.dumps(sink))
    assert back.open(Lane(topic)) == at(6)
    put(back, 7, 9, topic)
    with pytest.raises(SinkError, match="another worker"):  # a task that was given up, and lives
        put(there, 7, 9, topic)
    there.abort()
    back.close()
    assert numbers(kafka_server, topic) == list(range(1, 10))


def test_number_of_lanes(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)

    def opened(index: int, count: int, known: str = "") -> KafkaSink:
        sink = make(kafka_server, exactly_once=True)
        sink.position = sink.open(Lane(topic, index, count, known))  # type: ignore[attr-defined]
        return sink

    one = opened(0, 1)
    put(one, 1, 3, topic)
    zero, other = opened(0, 2), opened(1, 2)
    assert zero.position == other.position == at(3)  # type: ignore[attr-defined]
    put(zero, 4, 6, topic)
    with pytest.raises(ConfigError, match="2 lanes, which stand at different positions"):
        opened(0, 1)
    put(other, 7, 9, topic)
    for sink in (one, zero, other):
        sink.abort()
    single = opened(0, 1, at(9))  # storage knows that lane 0 had nothing after its 6
    assert single.position == at(9)  # type: ignore[attr-defined]
    put(single, 10, 12, topic)
    single.close()
    assert opened(1, 2).position == at(12)  # type: ignore[attr-defined]


def test_agreement_on_lanes() -> None:
    def of(**entries: Entry) -> dict[int, Entry]:
        return {int(name[1:]): entry for name, entry in entries.items()}

    assert agreed({}, 3, "5", "s") == Agreement(3)
    assert agreed(of(l0=Entry("5", 1)), 1, "9", "s") == Agreement(1)
    assert agreed(of(l0=Entry("5", 1)), 2, "", "s") == Agreement(2, "5", 1)
    assert agreed(of(l0=Entry("5", 2, 1, "4")), 2, "", "s") == Agreement(2, "4", 1)
    assert agreed(of(l0=Entry("5", 2), l1=Entry("5", 2)), 1, "", "s") == Agreement(1, "5", 1)
    with pytest.raises(ConfigError):
        agreed(of(l0=Entry("5", 2)), 1, "", "s")  # lane 1 has written nothing
    assert agreed(of(l0=Entry("5", 2)), 1, "5", "s") == Agreement(1, "5", 1)
    old = of(l0=Entry("7", 1, 3, "6"), l1=Entry("2", 2, 2, "1"))
    assert agreed(old, 2, "", "s") == Agreement(2, "7", 4)


# --- brokers that go away -----------------------------------------------------------------------


def patiently(sink: KafkaSink, lane: Lane) -> str:
    """Opens it as the job does: again, until it works."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return sink.open(lane)
        except SinkError:
            if time.monotonic() > deadline:
                raise


def until_ended(server: Kafka, *topics: str) -> None:
    """Waits until no transaction is open in them.

    A single broker that dies between its word and the marks that end a transaction may forget the marks
    (seen with Kafka 4.3): it then stays open until somebody ends it by hand.
    """
    deadline = time.monotonic() + 60
    while any(is_open(server, topic, [0]) for topic in topics):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def later(secs: float, what: Callable[[], None]) -> threading.Thread:
    thread = threading.Timer(secs, what)
    thread.start()
    return thread


def test_paused_broker_that_comes_back(fragile: Kafka, exactly_once: bool) -> None:
    topic = new_topic(fragile)
    sink = make(fragile, exactly_once=exactly_once, send_timeout_secs=20)
    sink.open(Lane(topic))
    put(sink, 1, 3, topic)
    fragile.pause()
    thread = later(1.5, fragile.resume)
    put(sink, 4, 6, topic)
    thread.join()
    sink.close()
    assert numbers(fragile, topic) == [1, 2, 3, 4, 5, 6]


def test_broker_gone_for_longer_than_the_timeout(fragile: Kafka, exactly_once: bool) -> None:
    topic = new_topic(fragile)
    sink = make(fragile, exactly_once=exactly_once, send_timeout_secs=2)
    patiently(sink, Lane(topic))
    put(sink, 1, 3, topic)
    until_ended(fragile, topic, *([POSITIONS] if exactly_once else []))
    sink.write(*unit(4, 6, topic))
    fragile.kill()
    try:
        began = time.monotonic()
        with pytest.raises(SinkError):
            sink.write(*unit(7, 9, topic))
            sink.commit(at(9))
        sink.abort()
        assert time.monotonic() - began < 30
        with pytest.raises(SinkError):
            sink.open(Lane(topic))
    finally:
        fragile.start()
    position = patiently(sink, Lane(topic))
    # The first part may have gone out before the broker went.
    assert position == (at(3) if exactly_once else "")
    put(sink, 4, 9, topic)
    sink.close()
    found = numbers(fragile, topic)
    if exactly_once:
        assert found == list(range(1, 10))
    else:
        assert set(found) == set(range(1, 10)) and found[-6:] == list(range(4, 10))


def test_aborted_unit_does_not_go_out_later(fragile: Kafka, exactly_once: bool) -> None:
    topic = new_topic(fragile)
    sink = make(fragile, exactly_once=exactly_once, send_timeout_secs=1)
    patiently(sink, Lane(topic))
    put(sink, 1, 3, topic)
    with fragile.paused():
        time.sleep(0.2)  # a process of many threads takes a moment to stop
        sink.write(*unit(4, 6, topic))
        with pytest.raises(SinkError):
            sink.commit(at(6))
        sink.abort()
        sink.close()
    time.sleep(1)
    found = numbers(fragile, topic)
    if exactly_once:
        sink = make(fragile, exactly_once=True)
        position = sink.open(Lane(topic))
        assert (found, position) == ([1, 2, 3], at(3))
    else:
        assert found in ([1, 2, 3], [1, 2, 3, 4, 5, 6])  # what was on the wire may arrive


def test_transaction_that_the_broker_has_given_up(services: Services) -> None:
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    server = services.start(Kafka, config=config)
    topic = new_topic(server)
    short = {"transaction.timeout.ms": "1000"}
    sink = make(server, exactly_once=True, client_conf=short)
    sink.open(Lane(topic))
    put(sink, 1, 3, topic)
    sink.write(*unit(4, 6, topic))
    sink._client.flush()  # type: ignore[union-attr]
    time.sleep(3)
    with pytest.raises(SinkError, match="ended by the brokers"):  # nobody else is there: no Fenced
        sink.commit(at(6))
    sink.abort()
    assert sink.open(Lane(topic)) == at(3)
    put(sink, 4, 6, topic)
    sink.close()
    assert numbers(server, topic) == [1, 2, 3, 4, 5, 6]


def test_open_transaction_of_others_does_not_hide_a_position(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)
    other = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_server.address, "transactional.id": topic}
    )
    other.init_transactions(10)
    sink = make(kafka_server, exactly_once=True)
    sink.open(Lane(topic))
    other.begin_transaction()
    other.produce(POSITIONS, b"{}", b"somebody else's")
    other.flush(10)
    put(sink, 1, 3, topic)
    thread = later(1.0, lambda: other.commit_transaction(10))
    assert make(kafka_server, exactly_once=True).open(Lane(topic)) == at(3)
    thread.join()


def test_predecessor_cut_off_in_its_commit_does_not_hold_up(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)
    make(kafka_server, exactly_once=True).open(Lane(topic))
    gone = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_server.address, "transactional.id": f"dfc-{topic}/bus/0"}
    )
    gone.init_transactions(10)
    gone.begin_transaction()
    gone.produce(topic, b"1")
    gone.produce(POSITIONS, Entry(at(1)).encoded(), f"{topic}/bus/0".encode())
    gone.flush(10)
    began = time.monotonic()
    assert make(kafka_server, exactly_once=True).open(Lane(topic)) == ""
    assert time.monotonic() - began < 30, "not the 60 s that a transaction may be open"
    assert read(kafka_server, topic) == []


def test_killed_at_random_moments(kafka_server: Kafka) -> None:
    topic = new_topic(kafka_server)
    command = [sys.executable, "-m", "tests.jobs.kafka_writer", kafka_server.address, topic]
    done = subprocess.run(
        [*command, "15", "7"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    count = int(done.stdout)
    assert count > 300
    assert numbers(kafka_server, topic) == list(range(1, count + 1))
