"""One lane's way into a JetStream stream, where every event is stored once, and in order.

**Where the lane stands** is a record in a bucket (nats_bucket.py):
the position of the last whole unit, and the sequence number of the stream behind it. The stream alone
cannot tell: its messages may be gone (retention, limits, purging), and those of others lie between.

**What is stored beyond that** is the unit that was under way when a job died. The messages behind the
recorded number are read, and those of this sink are left out when their events come again. They are
known by `Nats-Msg-Id`, which names pipeline, sink and event; JetStream's own look at that id ends with
the stream's duplicate window, two minutes if nobody says otherwise.

**Old events** that a replay stores lie behind what the record says only until the pipeline goes on. So the
record also says behind which number the last of them were stored, for a replay that was cut off.

**Order, and writers that should be dead.** The server takes the first message of a write only behind
the number that the writer has seen last, and every other only behind its predecessor
(`Nats-Expected-Last-Sequence`, `Nats-Expected-Last-Msg-Id`). So what is stored of a unit is always a
beginning of it: nothing slips in behind a message that was refused or lost, and of two writers one is
refused at once, however late its bytes arrive. This needs a stream in which nobody else writes at that
moment. When somebody does, or there are several lanes, messages go without these headers for a while.
Then a second writer is stopped by the record, which is only ever replaced if it is the one last seen,
and what it sent before that is told by its id within the duplicate window.

**Without the bucket** (the login may not make it, or it was removed) the last messages of the stream are
read instead, backwards to the first of this sink at or below the position that storage has.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import Barred, ConfigError, SinkError
from .base import Lane
from .nats_bucket import (
    API,
    NAME,
    NO_MESSAGE,
    NO_STREAM,
    WRONG_LAST_SEQUENCE,
    Bucket,
    Record,
    asked,
    decoded,
)
from .nats_client import FORBIDDEN, NO_RESPONDERS, Connection, Reply
from .nats_frames import Rows

_NO_JETSTREAM = (10039, 10076)
_OTHER_STREAM, _WRONG_LAST_ID = 10060, 10070
_ASKED_AT_ONCE = 256
_LOOKED_BACK = 10_000
_SUBJECTS_KEPT = 100_000
_FRESH_SECS = 30.0  # a record is written anew before a write that comes later than this
_FRESH_SECS_AMONG_OTHERS = 0.1  # where the record alone stops a second writer
_APART_SECS = 60.0  # how long others are let be, at first, before order is checked again


@dataclass(frozen=True)
class Found:
    """A message of this sink that is in the stream, though no record says so."""

    sequence: int
    position: str


class StreamWriter:
    """Used by one thread; after an exception it must not be used again."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        sink: str,
        lane: Lane,
        patience: float,
        batch_secs: float,
    ) -> None:
        self.connection = connection
        self.stream = stream
        self._lanes = lane.count
        self._name = f"{lane.pipeline}/{sink}"
        self._patience = patience
        self._batch_secs = batch_secs
        self._bucket = Bucket(connection, stream, sink, lane, patience)
        self._recorded = 0  # number of the record in the bucket
        self._mine = False  # this writer has written it
        self._written = 0.0
        self._position = ""
        self._sequence = 0
        self._epoch = 0
        self._again: tuple[int, ...] = ()
        self._last = 0  # of the stream, as far as it was looked at
        self._created = ""
        self._found: dict[str, Found] = {}
        self._open_unit = False
        self._apart_until = self._apart_secs = 0.0
        self._subjects = re.compile("(?!)")
        self._subject_list = ""
        self._known_subjects: set[str] = set()
        self._stream_largest = -1

    @property
    def owner(self) -> str:
        """How the ids of its messages begin: those of before a move are no longer its own."""
        return f"{self._name}/{self._epoch}|" if self._epoch else f"{self._name}|"

    @property
    def largest(self) -> int:
        """Bytes of headers and content that a message may have."""
        server = int(self.connection.info.get("max_payload", 1_048_576))
        return server if self._stream_largest < 0 else min(server, self._stream_largest)

    @property
    def unfinished(self) -> bool:
        """The stream has messages of a unit that is not recorded."""
        return self._open_unit

    # --- opening -----------------------------------------------------------------------------

    def open(self, known: str) -> str:
        """The lane's position; `known` is the one that storage has."""
        state, kept = self._look()
        record, number = self._bucket.read(kept, self._created)
        first = int(state["first_seq"])
        before, self._last = self._last, int(state["last_seq"])
        same = record is not None and number == self._recorded
        if self._mine and (same if self._bucket.usable else before == self._last):
            return self._position  # nobody else has delivered for this lane
        if record is None or not same:
            self._recorded, self._mine, self._found = number, False, {}
            self._inherit(known)
        if record is None:
            self._look_back(known, first)
            begin = min((f.sequence for f in self._found.values()), default=self._last + 1)
            self._position, self._sequence = "", begin - 1
        else:
            self._position, self._sequence = record.position, record.sequence
            until = _seconds(kept.value["message"]["time"]) + record.lasts_secs
            # What an idle lane has read before need not be read again.
            begin = max((before if same else self._sequence) + 1, first)
            for message in self._read(range(begin, self._last + 1)):
                if _seconds(message["time"]) > until:
                    break
                self._note(message)
        return self._position

    def _look(self) -> tuple[dict[str, Any], Reply]:
        """The stream's state, and what the bucket has for this lane."""
        questions = [(f"{API}.INFO.{self.stream}", b""), self._bucket.question]
        about, kept = self.connection.ask(questions, self._patience)
        state = self._look_at(about)
        if kept.code == NO_STREAM:
            self._bucket.make(int(about.value["config"].get("num_replicas", 1)))
        return state, kept

    def _look_at(self, about: Reply) -> dict[str, Any]:
        if about.code == NO_STREAM:
            raise Barred(
                f"stream `{self.stream}` does not exist on {self.connection.where}; "
                f"make it: nats stream add {self.stream} --subjects '...'"
            )
        if about.code in (*_NO_JETSTREAM, NO_RESPONDERS):
            # A server that has it may be without a leader for a moment.
            passing = about.code == NO_RESPONDERS and self.connection.info.get("jetstream")
            raise (SinkError if passing else Barred)(
                f"{self.connection.where} has no JetStream for this login ({about.text}); "
                "turn it on, or leave `stream` out"
            )
        if about.code:
            kind = Barred if about.code == FORBIDDEN else SinkError
            raise kind(f"stream `{self.stream}`: {about.text}")
        config = about.value["config"]
        subjects = config.get("subjects") or [self.stream]
        self._subjects = re.compile("|".join(map(_pattern, subjects)))
        self._subject_list = ", ".join(subjects)
        if about.value["created"] != self._created:
            self._created, self._known_subjects = about.value["created"], set()
        self._stream_largest = int(config.get("max_msg_size", -1))
        state: dict[str, Any] = about.value["state"]
        return state

    def _inherit(self, known: str) -> None:
        """What the records of all lanes there were have to say to this one.

        Refuses another number of lanes as long as one of the old ones is ahead of storage.
        """
        if not self._bucket.usable:
            return
        newest = 0
        for key, (record, number) in self._bucket.all(self._created).items():
            if record is None:
                continue
            if self._bucket.is_of_others(key) and record.position > known:
                count = key.split(".")[-2]
                were = "1 lane" if count == "1" else f"{count} lanes"
                raise ConfigError(
                    f"stream `{self.stream}` was written in {were}, which stand ahead of storage: "
                    f"run once with {were} to even them out, then change the number"
                )
            self._epoch = max(self._epoch, record.epoch)
            if number > newest and key.endswith(".0"):  # the lane of replays
                newest, self._again = number, record.again

    # --- what is in the stream ---------------------------------------------------------------

    def _read(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """The messages with these numbers that are still there."""
        waiting = list(numbers)
        for begin in range(0, len(waiting), _ASKED_AT_ONCE):
            part = waiting[begin : begin + _ASKED_AT_ONCE]
            questions = [asked(self.stream, seq=number) for number in part]
            for reply in self.connection.ask(questions, self._patience):
                if reply.code == 0:
                    yield reply.value["message"]
                elif reply.code != NO_MESSAGE:
                    raise SinkError(f"stream `{self.stream}` cannot be read: {reply.text}")

    def _note(self, message: dict[str, Any]) -> str | None:
        """Keeps a message in mind if it is this sink's, and tells its position."""
        headers = decoded(message.get("hdrs"))
        identity = re.search(r"\r\nNats-Msg-Id: ([^\r]*)", headers)
        if identity is None or not identity.group(1).startswith(self.owner):
            return None
        position = re.search(r"\r\ndf-position: ([^\r]*)", headers)
        place = position.group(1) if position else ""
        self._found[identity.group(1)] = Found(int(message["seq"]), place)
        return place

    def _look_back(self, known: str, first: int) -> None:
        stop = max(first, self._last - _LOOKED_BACK + 1, 1)
        for message in self._read(range(self._last, stop - 1, -1)):
            position = self._note(message)
            if position is not None and position <= known:
                return

    # --- writing -----------------------------------------------------------------------------

    def write(self, rows: Rows) -> None:
        """Stores the rows that are not there yet; returns when all are acknowledged."""
        if self._found:
            there = pc.is_in(rows.id, pa.array(list(self._found), pa.string()))
            if there.true_count:
                rows = rows.where(pc.invert(there))
        self._claim()
        self._open_unit = True
        end = time.monotonic() + self._batch_secs
        at = 0
        for row in self._strangers(rows):
            self._send(rows.slice(at, row), end)
            self._send(rows.slice(row, row + 1), end, f"Nats-Expected-Stream: {self.stream}\r\n")
            at = row + 1
        self._send(rows.slice(at, len(rows)), end)

    def redeliver(self, rows: Rows) -> None:
        """Stores old events; the record says first behind which number to look for them."""
        begin = min((f.sequence - 1 for f in self._found.values()), default=self._last)
        self._again = (min(begin, self._last),)
        self._put(self._position, self._sequence)
        self.write(rows)

    def find_redelivered(self) -> None:
        """What is there of the old events that were last stored is left out from now on."""
        begin, end = (*self._again, self._last)[:2] if self._again else (self._last, self._last)
        if not self._bucket.usable:
            begin, end = max(self._last - _LOOKED_BACK, 0), self._last
        for message in self._read(range(begin + 1, end + 1)):
            self._note(message)

    def _strangers(self, rows: Rows) -> list[int]:
        """First rows of subjects that the stream does not name.

        The account may map them to others that it does. Each is tried by itself, with a header
        that keeps it out of any other stream, so that nothing behind it overtakes it.
        """
        new = [
            subject
            for subject in rows.subjects()
            if subject not in self._known_subjects and not self._subjects.fullmatch(subject)
        ]
        if not new or len(rows) == 0:
            return []
        if len(self._known_subjects) > _SUBJECTS_KEPT:
            self._known_subjects = set()
        self._known_subjects |= set(new)
        if isinstance(rows.to, str):
            return [0]
        return sorted(int(pc.index(rows.to, subject).as_py()) for subject in new)

    def _send(self, rows: Rows, end: float, trial: str | None = None) -> None:
        while len(rows):
            checked = trial is None and self._checks_order(rows)
            expect = rows.after(self._last) if checked else trial
            data, ends = rows.frames(self.connection.inbox, expect)
            outcome = self.connection.publish(data, ends, self.stream, self._patience, end)
            before = self._last
            self._last = max(self._last, outcome.last)
            if not outcome.refused:
                return
            row, (code, text) = min(outcome.refused.items())
            if not checked or code not in (_WRONG_LAST_ID, WRONG_LAST_SEQUENCE):
                raise self._refusal(rows, row, code, text)
            self._look_for_others(before, set(rows.id.slice(0, row).to_pylist()))
            rows = rows.slice(row, len(rows))

    def _in_order(self) -> bool:
        return self._lanes == 1 and time.monotonic() >= self._apart_until

    def _checks_order(self, rows: Rows) -> bool:
        if not self._in_order():
            return False
        longest = int(pc.max(pc.binary_length(rows.id)).as_py())
        return bool(rows.sizes.max() + longest + 60 <= self.largest)

    def _look_for_others(self, before: int, own: set[str]) -> None:
        """Somebody has written in between: if that is this sink, one of the two must stop."""
        (about,) = self.connection.ask([(f"{API}.INFO.{self.stream}", b"")], self._patience)
        self._last = int(self._look_at(about)["last_seq"])
        ours = dict(self._found)
        self._found = {}
        for message in self._read(range(before + 1, self._last + 1)):
            self._note(message)
        if self._found.keys() - own:
            raise self._bucket.second_writer()
        self._found = ours
        self._apart_secs = min(max(self._apart_secs * 2, _APART_SECS), 3600)
        self._apart_until = time.monotonic() + self._apart_secs

    def _refusal(self, rows: Rows, row: int, code: int, text: str) -> SinkError:
        subject = rows.subject(row)
        if code == NO_RESPONDERS and self._subjects.fullmatch(subject):
            return SinkError(f"stream `{self.stream}` does not answer: it may have no leader now")
        if code == NO_RESPONDERS:
            return SinkError(
                f"no stream takes subject `{subject}`: "
                f"stream `{self.stream}` has {self._subject_list}"
            )
        if code == _OTHER_STREAM:
            return SinkError(
                f"subject `{subject}` belongs to another stream than `{self.stream}`, "
                f"which has {self._subject_list}"
            )
        return SinkError(f"stream `{self.stream}` refuses a message to `{subject}`: {text}")

    # --- the record --------------------------------------------------------------------------

    def commit(self, position: str) -> None:
        """Records a unit all of whose messages are acknowledged."""
        if not self._open_unit:
            return
        # What was found further on still has to be found should this writer die now.
        self._found = {k: f for k, f in self._found.items() if f.position > position}
        pending = min((f.sequence for f in self._found.values()), default=self._last + 1)
        sequence = max(self._sequence, min(self._last, pending - 1))
        if len(self._again) == 1:
            self._again = (*self._again, self._last)
        self._put(position, sequence)
        self._position, self._sequence, self._open_unit = position, sequence, False

    def _claim(self) -> None:
        """Before anything is sent: there is a record by this writer, and not an old one."""
        fresh = _FRESH_SECS if self._in_order() else _FRESH_SECS_AMONG_OTHERS
        if not self._mine or time.monotonic() - self._written > fresh:
            self._put(self._position, self._sequence)

    def _put(self, position: str, sequence: int) -> None:
        self._written, self._mine = time.monotonic(), True
        if self._bucket.usable:
            self._recorded = self._bucket.put(self._record(position, sequence), self._recorded)

    def _record(self, position: str, sequence: int) -> Record:
        lasts = _FRESH_SECS + self._batch_secs + 60
        return Record(position, sequence, self._created, lasts, self._epoch, self._again)

    def move(self, position: str) -> None:
        """Puts all lanes there, of whatever number: their events are stored anew, under new ids."""
        state, kept = self._look()
        self._bucket.read(kept, self._created)
        if not self._bucket.usable:
            raise ConfigError(
                f"this login cannot use bucket {NAME}, so what stream `{self.stream}` has cannot be "
                "told from what is to come again: give the sink a new id"
            )
        there = self._bucket.all(self._created)
        self._epoch = max((r.epoch for r, _ in there.values() if r is not None), default=0) + 1
        lanes = {self._bucket.key_of(lane, self._lanes): (None, 0) for lane in range(self._lanes)}
        for key, (_, number) in {**lanes, **there}.items():
            self._bucket.put(self._record(position, int(state["last_seq"])), number, key)


def _pattern(subject: str) -> str:
    words = {"*": r"[^.]+", ">": r".+"}
    return r"\.".join(words.get(token) or re.escape(token) for token in subject.split("."))


def _seconds(time_: str) -> float:
    return datetime.fromisoformat(time_[:19] + "+00:00").timestamp()
