"""A producer that outlives the epochs of its worker, and the words for what can happen to it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ..errors import ConfigError, DfcError, SinkError, Unavailable
from .base import Lane

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

Headers = list[tuple[str, bytes]]

_PACKAGE = "the package confluent-kafka, 2.12 or newer: pip install 'dfc[run]'"
# Two names of librdkafka's for one setting: whichever the user writes wins over ours.
_SAME = (
    {"acks", "request.required.acks"},
    {"compression.type", "compression.codec"},
    {"linger.ms", "queue.buffering.max.ms"},
    {"message.timeout.ms", "delivery.timeout.ms"},
    {"max.in.flight", "max.in.flight.requests.per.connection"},
    {"retries", "message.send.max.retries"},
    {"sasl.mechanism", "sasl.mechanisms"},
)
_NOT_SETTINGS = re.compile(r".*_cb|on_delivery|logger")  # the Python client's own, no text
_PUBLIC_TRANSACTION_MS = 900_000  # what brokers allow unless told otherwise
_FLUSH_STEP = 0.19  # from 0.2 on the client loses the exceptions of its callbacks
_CONNECT_STEP = 0.5  # seconds between looks at what has gone wrong so far
_NEW_TOPIC_SECS = 3.0  # for a broker that makes topics when they are first asked for
_CACHE: dict[Any, Any] = {}  # clients between the epochs of this process


@dataclass(frozen=True)
class Settings:
    """What a sink's producer is made from."""

    sink: str
    brokers: str
    exactly_once: bool
    send_timeout_secs: int
    client_conf: Mapping[str, str]

    @property
    def max_bytes(self) -> int:
        return self._number("message.max.bytes", 1_000_000)

    @property
    def queue(self) -> tuple[int, int]:
        """Messages and bytes to have on their way at once, well below where the client refuses."""
        messages = self._number("queue.buffering.max.messages", 100_000) or 100_000
        size = self._number("queue.buffering.max.kbytes", 1_048_576) * 1024
        return max(messages // 2, 1), max(min(size // 2, 67_108_864), 1)

    def chunk(self, messages: int, size: int) -> tuple[int, int]:
        """How much to hand over at once: no more than the queue takes."""
        most, most_bytes = self.queue
        return min(messages, most), min(size, most_bytes)

    def common(self) -> dict[str, Any]:
        """For any client of these brokers: the user's settings say how to log in."""
        return {"bootstrap.servers": self.brokers, "log_level": "0", **self.client_conf}

    def producer(self, name: str) -> dict[str, Any]:
        """Ours, then the user's; `name` is that of the transactions."""
        timeout = self.send_timeout_secs * 1000
        ours: dict[str, Any] = {
            "bootstrap.servers": self.brokers,
            "log_level": "0",  # what nobody fetches would pile up between epochs
            "client.id": f"dfc-{self.sink}",
            "acks": "all",
            "enable.idempotence": "true",
            "compression.type": "lz4",
            "linger.ms": "5",
            "message.timeout.ms": str(timeout),
        }
        if self.exactly_once:
            transaction = max(60_000, min(timeout, _PUBLIC_TRANSACTION_MS))
            transaction = self._number("transaction.timeout.ms", transaction)
            ours["transactional.id"] = name
            ours["transaction.timeout.ms"] = str(transaction)
            ours["message.timeout.ms"] = str(min(timeout, transaction))
        for names in _SAME:
            if names & self.client_conf.keys():
                ours = {key: value for key, value in ours.items() if key not in names}
        return {**ours, **self.client_conf}

    def key(self) -> tuple[Any, ...]:
        conf = tuple(sorted(self.client_conf.items()))
        return self.sink, self.brokers, self.exactly_once, self.send_timeout_secs, conf

    def _number(self, name: str, otherwise: int) -> int:
        text = self.client_conf.get(name, "")
        return int(text) if text.isdecimal() else otherwise


def quiet() -> logging.Logger:
    """librdkafka's log goes nowhere: what matters comes as an error, and into the sink's."""
    logger = logging.getLogger("dfc.kafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
    return logger


def check(settings: Settings) -> None:
    """Whether there is a client library, and whether it takes the settings; connects nowhere."""
    sink = f"sink `{settings.sink}`"
    try:
        from confluent_kafka import KafkaException, Producer
    except ImportError:
        raise Unavailable(f"{sink}: the kafka sink needs {_PACKAGE}") from None
    if not hasattr(Producer, "produce_batch"):
        raise Unavailable(f"{sink}: the kafka sink needs {_PACKAGE}")
    for key in settings.client_conf:
        if _NOT_SETTINGS.fullmatch(key):
            raise ConfigError(f"{sink}: `client_conf` has `{key}`, which is no setting")
    conf = settings.producer("dfc")
    # Without brokers it has nobody to ask for a producer id, which an idempotent one does at once.
    del conf["bootstrap.servers"]
    try:
        Producer(conf, logger=quiet())
    except KafkaException as error:
        raise ConfigError(f"{sink}: `client_conf`: {_conf_error(error, settings)}") from None


def _conf_error(error: Exception, settings: Settings) -> str:
    """Which setting is wrong, without what it is set to."""
    text = str(error.args[0].str()).strip().removeprefix("Failed to create producer: ")
    if match := re.match(r'No such configuration property: "(.*)"', text):
        return f"the Kafka client knows no setting `{match[1]}`"
    if match := re.search(r'onfiguration property "([^"]*)"(.*)', text, re.DOTALL):
        names: set[str] = next((names for names in _SAME if match[1] in names), {match[1]})
        written = sorted(names & settings.client_conf.keys()) or [match[1]]
        limits = re.search(r"outside allowed range (\S+)", match[2])
        rest = f": it goes from {limits[1].replace('..', ' to ')}" if limits else ""
        return f"`{written[0]}` has a value that the Kafka client does not take{rest}"
    if "sasl mechanism" in text.lower():
        return "the Kafka client does not know this `sasl.mechanism`"
    return text


def said(error: KafkaError) -> str:
    """An error of the client's in its own words."""
    return f"{error.str().strip()} ({error.name()})"


def kept_for(settings: Settings, lane: Lane, run: str) -> Any:
    """The client that an earlier epoch has left in this process; it is the caller's alone."""
    return _CACHE.pop(_place(settings, lane, run), None)


def _place(settings: Settings, lane: Lane, run: str) -> tuple[Any, ...]:
    return os.getpid(), lane.pipeline, lane.index, run, settings.key()


@contextlib.contextmanager
def raising(say: Callable[[KafkaError], Exception]) -> Iterator[None]:
    """The client's exceptions as ours.

    It raises fatal errors out of whatever call serves its callbacks, and goes on to call them with
    that exception pending: then it comes as the cause of Python's complaint about this.
    """
    from confluent_kafka import KafkaException

    try:
        yield
    except (KafkaException, SystemError) as error:
        found = error if isinstance(error, KafkaException) else error.__cause__
        if not isinstance(found, KafkaException):
            raise
        raise say(found.args[0]) from None


class Heard:
    """What the client reports from its own threads, kept apart so that nothing holds the client."""

    def __init__(self) -> None:
        self.failed: list[tuple[KafkaError, str, int]] = []  # messages: topic and size
        self.refused: str | None = None  # by somebody who will not change their mind
        self.last: str | None = None

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and len(self.failed) < 100:
            self.failed.append((error, message.topic(), len(message)))

    def on_error(self, error: KafkaError) -> None:
        name = error.name()
        if name in ("_AUTHENTICATION", "_SSL"):
            self.refused = said(error)
        elif name != "_ALL_BROKERS_DOWN" or self.last is None:
            self.last = said(error)


class Failed(Exception):
    """Carries an error of the client's."""


class Client:
    """The producer of one sink and lane."""

    def __init__(self, settings: Settings, lane: Lane, run: str) -> None:
        self.settings = settings
        self.lane = lane
        self.run = run
        self.heard = Heard()
        self._topics: set[str] = set()
        self._bytes = 0  # handed over since the queue was last seen empty
        self.producer = self._producer(self.transactional_id(lane.index))
        self.connect()

    @classmethod
    def take(cls, settings: Settings, lane: Lane, run: str) -> Self:
        """One that an earlier epoch has left, or a new one; it is the caller's alone."""
        kept = kept_for(settings, lane, run)
        if not isinstance(kept, cls):
            return cls(settings, lane, run)
        return kept if kept.serve() is None else cls(settings, lane, run)

    def keep(self) -> None:
        """For the next epoch: a new one would take a while to connect."""
        _CACHE[_place(self.settings, self.lane, self.run)] = self

    @property
    def position(self) -> str:
        """What the lane holds durably; "" because there is nothing but the messages."""
        return ""

    def transactional_id(self, lane: int) -> str:
        # Names may hold `-`, so another sign keeps those of two pipelines apart.
        return f"dfc-{self.lane.pipeline}/{self.settings.sink}/{lane}"

    # --- a unit ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the first messages of a unit."""
        self.heard.failed.clear()
        self.heard.refused = self.heard.last = None

    def send(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None]
    ) -> None:
        messages: list[dict[str, Any]] = [
            {"value": value, "key": key} for value, key in zip(values, keys, strict=True)
        ]
        taken = self.producer.produce_batch(topic, messages, on_delivery=self.heard.on_delivery)
        if taken < len(messages):
            error = next(m["_error"] for m in messages if "_error" in m)
            raise self.error(error)

    def send_with_headers(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        headers: Sequence[Headers | None],
    ) -> None:
        """One by one, because the client's batches have no headers."""
        produce, on_delivery = self.producer.produce, self.heard.on_delivery
        with self.full_queue(), raising(self.error):
            for value, key, pairs in zip(values, keys, headers, strict=True):
                produce(topic, value, key, on_delivery=on_delivery, headers=pairs or [])

    @contextlib.contextmanager
    def full_queue(self) -> Iterator[None]:
        try:
            yield
        except BufferError:
            raise SinkError(f"sink `{self.settings.sink}`: the client's queue is full") from None

    def make_room(self, messages: int, size: int) -> None:
        """Waits for what is on its way, when more would be too much."""
        most, most_bytes = self.settings.queue
        if len(self.producer) + messages > most or self._bytes + size > most_bytes:
            self.flush()
        self._bytes += size

    def commit(self, position: str) -> None:
        self.flush()

    def flush(self) -> None:
        """Until everything handed over is acknowledged."""
        deadline = time.monotonic() + self.settings.send_timeout_secs
        left = len(self.producer)
        while left and self.heard.refused is None and (wait := deadline - time.monotonic()) > 0:
            with raising(self.error):
                left = self.producer.flush(min(wait, _FLUSH_STEP))
        self._bytes = 0
        if self.heard.failed:
            raise self.delivery_error()
        if left:
            raise self.late(f"{left} messages are not acknowledged")

    def abort(self) -> None:
        """Nothing of the open unit goes out any more; the client is not used again."""
        self.producer.purge()
        self.serve()

    def serve(self) -> KafkaError | None:
        """Hears what has happened; returns the error after which this producer is of no more use."""
        try:
            with raising(Failed):
                self.producer.poll(0)
        except Failed as fatal:
            return fatal.args[0]
        return None

    # --- brokers and topics ------------------------------------------------------------------

    def connect(self) -> None:
        """Finds the brokers, or says why not, without waiting long for what cannot get better."""
        self._asked("no broker answers", self.producer.cluster_id)

    def _asked(self, otherwise: str, ask: Callable[..., Any], *what: str) -> Any:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self.settings.send_timeout_secs
        while True:
            wait = min(max(deadline - time.monotonic(), 0.01), _CONNECT_STEP)
            try:
                return ask(*what, timeout=wait)
            except KafkaException:
                if (fatal := self.serve()) is not None:
                    raise self.error(fatal) from None
                if self.heard.refused is not None:
                    raise SinkError(self._refused()) from None
                if time.monotonic() >= deadline:
                    raise self.late(otherwise) from None
                # It answers at once when nobody is there; the client goes on trying by itself.
                time.sleep(min(wait, 0.05))

    def ensure(self, topic: str) -> None:
        """Looks a topic up once: a message for one that is missing would wait for half a minute."""
        if topic in self._topics:
            return
        patience = time.monotonic() + _NEW_TOPIC_SECS
        while True:
            found = self._asked(
                f"topic {topic} is not looked up", self.producer.list_topics, topic
            ).topics[topic]
            if found.error is None and found.partitions:
                self._topics.add(topic)
                return
            if time.monotonic() > patience:
                break
            time.sleep(0.1)
        raise self.error(found.error, topic) if found.error else self.late(f"topic {topic}")

    # --- errors ------------------------------------------------------------------------------

    def error(self, error: KafkaError, topic: str | None = None) -> DfcError:
        """The client's error, and what helps where that is known."""
        text = said(error) if topic is None else f"topic {topic}: {said(error)}"
        name = error.name()
        if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION") and topic:
            text = (
                f"there is no topic {topic}: kafka-topics.sh --bootstrap-server "
                f"{self.settings.brokers} --create --topic {topic}"
            )
        elif name == "MSG_SIZE_TOO_LARGE":
            text += (
                "; the topic's `max.message.bytes` is smaller than what the client sends at once"
            )
            text += ": raise it, or lower `batch.size` and `message.max.bytes` in `client_conf`"
        elif name.endswith("AUTHORIZATION_FAILED"):
            text += "; the user of this sink lacks the right to it"
            if name.startswith("CLUSTER"):
                text += ": WRITE for one topic at least, or IDEMPOTENT_WRITE"
        elif self.heard.refused is not None:
            return SinkError(self._refused())
        elif name in ("_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT") and self.heard.last:
            text += f"; {self.heard.last}"
        return SinkError(f"sink `{self.settings.sink}`: {text}")

    def delivery_error(self) -> DfcError:
        failed = self.heard.failed
        # What was thrown out because of another message says nothing by itself.
        error, topic, size = next(
            (each for each in failed if not each[0].name().startswith("_PURGE")), failed[0]
        )
        if error.name() == "MSG_SIZE_TOO_LARGE":
            size = max(each[2] for each in failed)
            return self.error(error, f"{topic}, message of up to {size} bytes")
        return self.error(error, topic)

    def late(self, what: str) -> SinkError:
        self.serve()
        if self.heard.refused is not None:
            return SinkError(self._refused())
        after = f"after {self.settings.send_timeout_secs} s"
        why = f": {self.heard.last}" if self.heard.last else ""
        return SinkError(f"sink `{self.settings.sink}`: {what} {after}{why}")

    def _refused(self) -> str:
        return f"sink `{self.settings.sink}`: the brokers do not let it in: {self.heard.refused}"

    def _producer(self, name: str) -> Any:
        from confluent_kafka import Producer

        conf = {
            **self.settings.producer(name),
            "error_cb": self.heard.on_error,
            "delivery.report.only.error": True,
        }
        return Producer(conf, logger=quiet())
