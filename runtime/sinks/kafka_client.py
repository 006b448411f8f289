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

from ..errors import Barred, ConfigError, DfcError, SinkError, Unavailable
from .base import Lane
from .kafka_limits import Fingerprint, fingerprint, limits_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from .librdkafka import Producer, Sent

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
_STEP = 0.5  # seconds between looks at what has gone wrong so far
_LIMIT_SECS = 5.0  # for a topic's limit
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
    def batch_size(self) -> int:
        return self._number("batch.size", 1_000_000)

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
        from confluent_kafka import KafkaException

        from .librdkafka import Producer
    except (ImportError, AttributeError):  # none, or one whose library lacks what we call
        raise Unavailable(f"{sink}: the kafka sink needs {_PACKAGE}") from None
    for key in settings.client_conf:
        if _NOT_SETTINGS.fullmatch(key):
            raise ConfigError(f"{sink}: `client_conf` has `{key}`, which is no setting")
    conf = settings.producer("dfc")
    # Without brokers it has nobody to ask for a producer id, which an idempotent one does at once.
    del conf["bootstrap.servers"]
    try:
        Producer(conf, Heard())
    except KafkaException as error:
        raise ConfigError(f"{sink}: `client_conf`: {_conf_error(error, settings)}") from None


def _conf_error(error: Exception, settings: Settings) -> str:
    """Which setting is wrong, without what it is set to."""
    text = str(error.args[0].str()).strip()
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
    """The client's exceptions as ours."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise say(error.args[0]) from None


class Heard:
    """What the client reports from its own threads, kept apart so that nothing holds the client."""

    def __init__(self) -> None:
        self.failed: list[tuple[KafkaError, str, int]] = []  # messages: topic and size
        self.too_large: dict[str, list[Fingerprint]] = {}  # by topic
        self.refused: str | None = None  # by somebody who will not change their mind
        self.last: str | None = None

    def on_failed(self, error: KafkaError, topic: str, size: int, message: Sent) -> None:
        if len(self.failed) < 100:
            self.failed.append((error, topic, size))
            if error.name() == "MSG_SIZE_TOO_LARGE":
                self.too_large.setdefault(topic, []).append(fingerprint(*message()))

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
        self.limits = limits_of(settings.key())
        self.batch_size = self.limits.batch_size(settings.batch_size)
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

    @property
    def redelivered(self) -> str:
        """The mark of the last unit of old events; "" because nothing holds one."""
        return ""

    def transactional_id(self, lane: int) -> str:
        # Names may hold `-`, so another sign keeps those of two pipelines apart.
        return f"dfc-{self.lane.pipeline}/{self.settings.sink}/{lane}"

    # --- a unit ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the first messages of a unit."""
        self.heard.failed.clear()
        self.heard.too_large.clear()
        self.heard.refused = self.heard.last = None

    def send(
        self, topic: str, value: Any, key: Any, headers: Sequence[Headers | None] | None, count: int
    ) -> None:
        """`value` and `key` are a column or one for all."""
        with raising(self.error):
            if headers is None:
                self.producer.produce_columns(topic, value, key, count)
            else:
                self.producer.produce_with_headers(topic, value, key, headers)

    def make_room(self, messages: int, size: int) -> None:
        """Waits for what is on its way, when more would be too much."""
        most, most_bytes = self.settings.queue
        if len(self.producer) + messages > most or self._bytes + size > most_bytes:
            self.flush()
        self._bytes += size

    def commit(self, position: str, mark: str = "") -> None:
        """`mark` is that of a unit of old events."""
        self.flush()

    def flush(self) -> None:
        """Until everything handed over is acknowledged."""
        deadline = time.monotonic() + self.settings.send_timeout_secs
        left = len(self.producer)
        while left and self.heard.refused is None and (wait := deadline - time.monotonic()) > 0:
            with raising(self.error):
                left = self.producer.flush(min(wait, _STEP))
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
                self.producer.poll()
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
            wait = min(max(deadline - time.monotonic(), 0.01), _STEP)
            try:
                return ask(*what, timeout=wait)
            except KafkaException:
                if (fatal := self.serve()) is not None:
                    raise self.error(fatal) from None
                if self.heard.refused is not None:
                    raise self._refused() from None
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
            partitions, error = self._asked(
                f"topic {topic} is not looked up", self.producer.partitions, topic
            )
            if error is None and partitions:
                self._topics.add(topic)
                return
            if time.monotonic() > patience:
                break
            time.sleep(0.1)
        raise self.error(error, topic) if error else self.late(f"topic {topic}")

    def too_large(self, topic: str) -> set[Fingerprint]:
        """Messages that the topic has refused, each by itself."""
        return self.limits.refuses(topic, self._limit)

    def _limit(self, topic: str) -> int:
        """The most that a topic takes; 0 when it cannot be told."""
        from confluent_kafka.admin import AdminClient, ConfigResource

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            admin = AdminClient(self.settings.common(), logger=quiet())
            asked = admin.describe_configs([resource], request_timeout=_LIMIT_SECS)[resource]
            return int(asked.result(_LIMIT_SECS)["max.message.bytes"].value)
        except Exception:
            return 0  # not everybody may ask

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
            return Barred(f"sink `{self.settings.sink}`: {text}")
        elif self.heard.refused is not None:
            return self._refused()
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
            for name, refused in self.heard.too_large.items():
                self.limits.learn(name, refused, self.batch_size, self._limit)
            size = max(each[2] for each in failed)
            return self.error(error, f"{topic}, message of up to {size} bytes")
        return self.error(error, topic)

    def late(self, what: str) -> SinkError:
        self.serve()
        if self.heard.refused is not None:
            return self._refused()
        after = f"after {self.settings.send_timeout_secs} s"
        why = f": {self.heard.last}" if self.heard.last else ""
        return SinkError(f"sink `{self.settings.sink}`: {what} {after}{why}")

    def _refused(self) -> Barred:
        return Barred(
            f"sink `{self.settings.sink}`: the brokers do not let it in: {self.heard.refused}"
        )

    def _producer(self, name: str) -> Producer:
        from .librdkafka import Producer

        conf = {**self.settings.producer(name), "batch.size": str(self.batch_size)}
        return Producer(conf, self.heard)
