"""Exactly once with Kafka: a lane's position is a message in the same transaction as its events.

The topic `dfc.positions` is compacted: of each key, `pipeline/sink/lane`, the last message counts.
Whoever begins to write a lane takes over its transactions, so that Kafka refuses those of anybody
before, and says so in the topic. A producer that finds itself refused reads there by whom: by
another worker of the same run it simply begins anew, by another run the job is at an end.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from ..agreement import Agreement, common
from ..errors import Barred, ConfigError, DfcError, Fenced, SinkError
from .base import Lane
from .kafka_client import Client, Failed, Heard, Settings, kept_for, quiet, raising, said

TOPIC = "dfc.positions"
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "4194304"}  # little to read at a start
_REFUSED = {
    "_FATAL",
    "_FENCED",
    "_STATE",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TXN_STATE",
    "PRODUCER_FENCED",
    "UNKNOWN_PRODUCER_ID",
}
_PASSING = {
    "_NOENT",
    "_TRANSPORT",
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_TOPIC_OR_PART",
}
_CLAIM_SECS = 2.0  # in which a runner that has taken over says so
_ABORT_SECS = 5.0
_STEP_SECS = 1.0


# Whose, the client cannot tell. Its own it has just ended.
_OPEN = (
    "a transaction is open in it: brokers end one that was left after its `transaction.timeout.ms`; if it "
    "stays, they have lost its end in a crash, and `kafka-transactions.sh find-hanging` and `abort` end it"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a lane stands, and who writes it."""

    position: str
    lanes: int = 1
    generation: int = 0  # counts changes of the number of lanes
    start: str = ""  # where all lanes of the generation began
    run: str = ""
    token: str = ""  # of the producer
    redelivered: str = ""  # mark of the last unit of old events

    def encoded(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: bytes) -> Entry:
        known = json.loads(text)
        return cls(**{name: known[name] for name in cls.__slots__ if name in known})


def standing(entries: Mapping[int, Entry], lanes: int) -> Agreement:
    """The agreement that the lanes have, on so many when there is none."""
    if not entries:
        return Agreement(lanes)
    latest = max(entries.values(), key=lambda entry: entry.generation)
    return Agreement(latest.lanes, latest.start, latest.generation)


def agreed(entries: Mapping[int, Entry], lanes: int, known: str, sink: str) -> Agreement:
    """The agreement on so many lanes; `known` is storage's position."""
    old = standing(entries, lanes)
    if old.lanes == lanes:
        return old
    there = [entries.get(n, Entry("", generation=-1)) for n in range(old.lanes)]
    positions = [old.counts(entry.position, entry.generation) for entry in there]
    return old.followed(lanes, common(f"sink `{sink}`", positions, known))


class PositionLog:
    """The positions topic as far as it has been read."""

    def __init__(self, settings: Settings) -> None:
        from confluent_kafka import Consumer, TopicPartition
        from confluent_kafka.admin import AdminClient

        self.entries: dict[str, Entry] = {}
        self.runs: dict[str, set[str]] = {}  # that have written the key
        self._settings = settings
        self._heard = Heard()
        self._partition = TopicPartition(TOPIC, 0)
        self._at = 0
        conf = {**settings.common(), "error_cb": self._heard.on_error}
        self._admin = AdminClient(conf, logger=quiet())
        reading = {
            "group.id": f"dfc-{settings.sink}",  # the client wants one; it has no members
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": "10",  # the end of the topic shows in an empty answer
            "allow.auto.create.topics": "false",
        }
        self._consumer = Consumer({**conf, **reading}, logger=quiet())

    def ensure(self) -> None:
        """Makes the topic unless it is there, and refuses one that forgets."""
        from confluent_kafka.admin import ConfigResource, NewTopic

        secs = self._settings.send_timeout_secs
        with self._asking("cannot be looked up"):
            # By the consumer: the others would have a willing broker make it, and not as it should be.
            found = self._consumer.list_topics(TOPIC, timeout=secs).topics[TOPIC]
        if found.error is not None:
            if found.error.name() != "UNKNOWN_TOPIC_OR_PART":
                raise self._error("cannot be looked up", said(found.error))
            with self._asking("cannot be made", "TOPIC_ALREADY_EXISTS"):
                new = NewTopic(TOPIC, 1, -1, config=_CONFIG)
                self._admin.create_topics([new], operation_timeout=secs)[TOPIC].result(secs)
            return
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
        try:
            settings = self._admin.describe_configs([resource])[resource].result(secs)
        except Exception:
            return  # not everybody may ask
        if "compact" not in settings["cleanup.policy"].value:
            raise ConfigError(
                f"sink `{self._settings.sink}`: topic {TOPIC} must keep the last message of "
                "every key: set its `cleanup.policy` to `compact`"
            )

    def end(self) -> int:
        """Behind the last message, whether its transaction is over or not."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import OffsetSpec

        secs = self._settings.send_timeout_secs
        deadline = time.monotonic() + secs
        while True:
            with self._asking("cannot be read"):
                asked = self._admin.list_offsets(
                    {self._partition: OffsetSpec.latest()}, request_timeout=secs
                )
                try:
                    return int(asked[self._partition].result(secs).offset)
                except KafkaException as error:
                    # A topic that was just made, or whose broker went away, has no leader for a moment.
                    if error.args[0].name() not in _PASSING or time.monotonic() > deadline:
                        raise
            time.sleep(0.05)

    def read(self, end: int, wait: bool = False) -> bool:
        """Up to there, or up to the first transaction that is still open unless told to wait.

        None is open for long, because a position is the last thing written; but one that was cut
        off stays until its successor ends it, or for `transaction.timeout.ms`.
        """
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        if end < self._at:  # made anew
            self.entries, self.runs, self._at = {}, {}, 0
        if end == self._at:
            return True
        secs = self._settings.send_timeout_secs
        deadline = time.monotonic() + secs
        with self._asking("cannot be read"):
            self._consumer.list_topics(TOPIC, timeout=secs)  # else the client takes its time
            # Assigned only while it reads: it would go on asking, and to go on after a pause takes a second.
            self._consumer.assign([TopicPartition(TOPIC, 0, self._at or OFFSET_BEGINNING)])
            try:
                at_end = False
                while self._at < end and (wait or not at_end):
                    if time.monotonic() > deadline:
                        why = self._heard.refused or self._heard.last
                        raise self._error("cannot be read to its end", why or _OPEN)
                    for message in self._consumer.consume(1000, 0.05):
                        at_end = self._take(message)
            finally:
                self._consumer.unassign()
        return self._at >= end

    def _take(self, message: Any) -> bool:
        """True when this is no message, but the word that there are no more."""
        error = message.error()
        if error is None:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                key, entry = message.key().decode(), Entry.parse(message.value())
                self.entries[key] = entry
                self.runs.setdefault(key, set()).add(entry.run)
            self._at = max(self._at, message.offset() + 1)
        elif error.name() == "_PARTITION_EOF":
            self._at = max(self._at, message.offset())
            return True
        elif error.name() in ("TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART"):
            raise self._error("cannot be read", said(error))
        else:
            self._heard.last = said(error)
        return False

    @contextlib.contextmanager
    def _asking(self, what: str, but_not: str = "") -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            if error.args[0].name() != but_not:
                raise self._error(what, said(error.args[0])) from None
        except TimeoutError:
            raise self._error(what, self._heard.last or "no answer") from None

    def _error(self, what: str, why: str) -> SinkError:
        text = f"sink `{self._settings.sink}`: topic {TOPIC} {what}: {why}"
        if what == "cannot be made":
            config = "".join(f" --config {name}={value}" for name, value in _CONFIG.items())
            text += (
                f"; somebody who may: kafka-topics.sh --bootstrap-server {self._settings.brokers} "
                f"--create --topic {TOPIC} --partitions 1{config}"
            )
        return Barred(text) if "AUTHORIZATION_FAILED" in why else SinkError(text)


class Transactional(Client):
    """A producer whose units are transactions."""

    def __init__(
        self,
        settings: Settings,
        lane: Lane,
        run: str,
        log: PositionLog | None = None,
        move_to: str | None = None,
    ) -> None:
        super().__init__(settings, lane, run)
        self.token = uuid.uuid4().hex
        self.key = self._key(lane.index)
        self._entry = Entry("")
        self._end = 0  # of the positions topic, unless somebody else has written to it
        self._log = log or PositionLog(settings)
        self._take_over(move_to)

    @classmethod
    def take(cls, settings: Settings, lane: Lane, run: str) -> Self:
        kept = kept_for(settings, lane, run)
        if not isinstance(kept, cls):
            return cls(settings, lane, run)
        if kept._still_ours(lane):
            return kept
        return cls(settings, lane, run, kept._log)

    @property
    def position(self) -> str:
        return self._entry.position

    @property
    def redelivered(self) -> str:
        return self._entry.redelivered

    def begin(self) -> None:
        super().begin()
        with raising(self.error):
            self.producer.begin_transaction()

    def commit(self, position: str, mark: str = "") -> None:
        mark = mark or self._entry.redelivered
        entry = replace(self._entry, position=position, redelivered=mark)
        with raising(self.error):
            self.producer.produce_with_headers(TOPIC, entry.encoded(), self.key, [None], 0)
        self._until_done(self.producer.commit_transaction, self._failure)
        self._entry = entry
        self._end += 2  # the message, and the mark that ends the transaction
        self._bytes = 0

    def abort(self) -> None:
        # So that readers need not wait for it to time out; the producer's successor would do it too.
        with contextlib.suppress(Exception):
            self.producer.abort_transaction(min(self.settings.send_timeout_secs, _ABORT_SECS))

    def error(self, error: Any, topic: str | None = None) -> DfcError:
        if error.fatal() or error.name() in _REFUSED:
            if self._is_overtaken(_CLAIM_SECS):
                return self._fenced()
            return SinkError(
                f"sink `{self.settings.sink}`: its transaction was ended by the brokers, or by "
                f"another worker: {said(error)}"
            )
        return super().error(error, topic)

    def _failure(self, error: Any) -> DfcError:
        return (
            self.delivery_error() if self.heard.failed and not error.fatal() else self.error(error)
        )

    def _until_done(self, call: Callable[[float], None], say: Callable[[Any], DfcError]) -> None:
        """In steps, so that what cannot get better is noticed in between."""
        deadline = time.monotonic() + self.settings.send_timeout_secs
        while True:
            wait = min(max(deadline - time.monotonic(), 0.01), _STEP_SECS)
            try:
                with raising(Failed):
                    return call(wait)
            except Failed as failed:
                error = failed.args[0]
                self.serve()
                again = error.retriable() and self.heard.refused is None
                if not again or time.monotonic() >= deadline:
                    raise say(error) from None

    # --- whose the lane is -------------------------------------------------------------------

    def _key(self, lane: int) -> str:
        return f"{self.lane.pipeline}/{self.settings.sink}/{lane}"

    def _take_over(self, move_to: str | None) -> None:
        """From here on the lane is ours; with `move_to` all lanes stand there from now on."""
        log = self._log
        log.ensure()
        if self._is_overtaken():
            raise self._fenced()  # before we would fence the others
        self._begin_transactions(self.producer)
        if move_to is not None:
            self._end_others(self.lane.count)
        log.read(log.end(), wait=True)
        if self._is_overtaken():
            raise self._fenced()
        entries = self._lanes()
        lane = self.lane
        old = standing(entries, lane.count)
        if move_to is None:
            new = agreed(entries, lane.count, lane.known, self.settings.sink)
        else:
            new = old.followed(lane.count, move_to)
        mine = entries.get(lane.index, Entry("", generation=-1))
        if new.generation > old.generation:
            self._end_others(max((entry.lanes for entry in entries.values()), default=0))
        position = max(new.counts(mine.position, mine.generation), lane.known)
        self._entry = Entry(
            position,
            lane.count,
            new.generation,
            new.start,
            self.run,
            self.token,
            mine.redelivered,
        )
        self.begin()
        self.commit(position)
        self._end = -1  # not known yet

    def _lanes(self) -> dict[int, Entry]:
        prefix = self._key(0).removesuffix("0")
        return {
            int(key.removeprefix(prefix)): entry
            for key, entry in self._log.entries.items()
            if key.startswith(prefix) and key.removeprefix(prefix).isdecimal()
        }

    def _still_ours(self, lane: Lane) -> bool:
        """Whether nobody has begun to write the lane since; asked once for each epoch."""
        if lane.count != self.lane.count or self.serve() is not None:
            return False
        self.lane = lane
        end = self._log.end()
        if (self._end < 0 or end > self._end) and self._log.read(end):
            self._end = end + 1  # the last transaction's mark may be on its way
        latest = self._log.entries.get(self.key)
        return latest is not None and latest.token == self.token

    def _is_overtaken(self, patience: float = 0.0) -> bool:
        """Whether another run has written the lane after this one."""
        deadline = time.monotonic() + patience
        while True:
            try:
                self._log.read(self._log.end())
            except SinkError:
                if patience == 0:
                    raise
            latest = self._log.entries.get(self.key)
            others = latest is not None and latest.run != self.run
            if others and self.run in self._log.runs[self.key]:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another runner of pipeline `{self.lane.pipeline}` has taken over sink "
            f"`{self.settings.sink}`, and this one must not write to it any more: run one of them, "
            "and give every pipeline on these brokers its own name"
        )

    def _end_others(self, lanes: int) -> None:
        """Nobody else ends what is left of lanes that there are no more, or that nobody runs."""
        for index in range(lanes):
            if index != self.lane.index:
                self._begin_transactions(self._producer(self.transactional_id(index)))

    def _begin_transactions(self, producer: Any) -> None:
        """Ends whatever an earlier producer of that name has under way, and fences it."""
        self._until_done(producer.init_transactions, super().error)
