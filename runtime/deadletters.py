"""The dead letter queue: events that a processor or a sink can never take, kept with the reason.

A letter is in storage before any sink commits past its event: a crash in between brings the event
again, and the letter is recognised as the one that is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .columns import native
from .errors import SinkError, StorageError
from .events import Events
from .ledger import DeadLetter
from .messages import identity
from .storage import Backend, Storage

NAMESPACE = "dlq"


@dataclass(frozen=True, slots=True)
class Journal:
    """How much the queue holds, and what happens when it is full."""

    max_event_bytes: int = 262_144
    max_entries: int = 10_000
    max_age_secs: int = 604_800  # 0: for good
    overflow_policy: str = "drop_oldest"


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """One pipeline's queue, as the tasks see it; it travels to them with the job."""

    journal: Journal
    storage: Storage
    pipeline: str

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Keeps them durably; raises SinkError when the queue is full and waits for room, or when
        storage is away."""
        named = {_name(letter): letter for letter in letters}
        try:
            storage = self.storage.open()
            try:
                there = storage.held(NAMESPACE, self.pipeline, list(named))  # and come again
                if new := {name: letter for name, letter in named.items() if name not in there}:
                    self._put(storage, new)
            finally:
                storage.close()
        except StorageError as error:
            raise SinkError(f"no dead letter can be kept: {error}") from error

    def _put(self, storage: Backend, new: dict[str, DeadLetter]) -> None:
        journal, key, names = self.journal, self.pipeline, list(new)
        say = new[names[0]].events.ledger.say
        secs = journal.max_age_secs
        if secs and (dropped := storage.drop_older(NAMESPACE, key, secs)):
            say("warning", "dead letters were too old, and are gone", count=dropped)
        room = max(journal.max_entries - storage.count(NAMESPACE, key), 0)
        waits = journal.overflow_policy != "drop_oldest"
        kept = names[:room] if waits else names
        storage.push_all(NAMESPACE, key, {name: self._entry(new[name]).encode() for name in kept})
        for name in kept:
            _say(new[name], "dead_lettered", "warning", "dead letter")
        if not waits and len(names) > room:
            dropped = storage.drop_oldest(NAMESPACE, key, len(names) - room)
            say("warning", "the oldest dead letters made room for new ones", count=dropped)
        for name in names[len(kept) :]:
            if journal.overflow_policy == "block":
                raise SinkError(
                    f"the dead letter queue is full ({journal.max_entries} letters) and this event "
                    f"has no place in it: {new[name].error}; make room with `dfc dlq purge`"
                )
            what = "dead letter refused: the queue is full"
            _say(new[name], "dead_letters_refused", "error", what)

    def _entry(self, letter: DeadLetter) -> str:
        events = letter.events
        text = native(events)[0].as_py()
        # As the source gave it, so that it can go through the processors again.
        row = events.origin(0)
        truncated = len(text.encode()) > self.journal.max_event_bytes
        if truncated:
            row = None
            text = native(events.with_columns(before=None, after=None))[0].as_py()
        head = {
            "timestamp": int(time.time()),
            "pipeline": self.pipeline,
            "stream": "dlq",
            "event_id": events.event_id[0].as_py(),
            "source_cursor": events.position[0].as_py(),
            "payload_truncated": truncated,
            "meta": {
                "sink_id": letter.where if letter.at_sink else None,
                "processor_id": None if letter.at_sink else letter.where,
                "error_kind": letter.kind,
                "error_message": letter.error,
                "attempts": 1,
            },
        }
        # The event's own text, not a reading of it.
        ending = f', "row": {json.dumps(row, ensure_ascii=False)}}}' if row is not None else "}"
        return json.dumps(head, ensure_ascii=False)[:-1] + f', "event": {text}{ending}'


def _name(letter: DeadLetter) -> str:
    return f"{letter.where}/{identity(letter.events, 0)}"


def _say(letter: DeadLetter, count: str, level: str, what: str) -> None:
    ledger, events = letter.events.ledger, letter.events
    ledger.count(letter.where, count, events.position)
    ledger.say(level, what, at=letter.where, event_id=identity(events, 0), reason=letter.error)


def letters_of(
    events: Events, rows: Sequence[int], where: str, kind: str, errors: Sequence[str]
) -> list[DeadLetter]:
    """Letters about these rows, for a sink."""
    return [
        DeadLetter(events.slice(row, row + 1), where, error, kind, at_sink=True)
        for row, error in zip(rows, errors, strict=True)
    ]
