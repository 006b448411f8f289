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
from .errors import SinkError
from .events import Events
from .ledger import DeadLetter
from .messages import identity
from .storage import SqliteStorage

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
    path: str  # of the storage
    pipeline: str

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Keeps them durably; raises SinkError when the queue is full and waits for room."""
        storage = SqliteStorage(self.path)
        try:
            for letter in letters:
                self._put(storage, letter)
        finally:
            storage.close()

    def _put(self, storage: SqliteStorage, letter: DeadLetter) -> None:
        events, journal, key = letter.events, self.journal, self.pipeline
        name = f"{letter.where}/{identity(events, 0)}"
        if storage.holds(NAMESPACE, key, name):
            return  # it comes again
        if journal.max_age_secs:
            storage.drop_older(NAMESPACE, key, int(time.time()) - journal.max_age_secs)
        about = {"at": letter.where, "event_id": identity(events, 0), "reason": letter.error}
        if storage.count(NAMESPACE, key) >= journal.max_entries:
            match journal.overflow_policy:
                case "block":
                    raise SinkError(
                        f"the dead letter queue is full ({journal.max_entries} letters) and this "
                        f"event has no place in it: {letter.error}; make room with `dfc dlq purge`"
                    )
                case "reject":
                    events.ledger.count(letter.where, "dead_letters_refused", events.position)
                    events.ledger.say("error", "dead letter refused: the queue is full", **about)
                    return
                case _:
                    storage.drop_oldest(NAMESPACE, key)
                    events.ledger.say("warning", "the oldest dead letter made room for a new one")
        storage.push(NAMESPACE, key, self._entry(letter).encode(), name=name)
        events.ledger.count(letter.where, "dead_lettered", events.position)
        events.ledger.say("warning", "dead letter", **about)

    def _entry(self, letter: DeadLetter) -> str:
        events = letter.events
        text = native(events)[0].as_py()
        truncated = len(text.encode()) > self.journal.max_event_bytes
        if truncated:
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
        return json.dumps(head, ensure_ascii=False)[:-1] + f', "event": {text}}}'


def letters_of(
    events: Events, rows: Sequence[int], where: str, kind: str, errors: Sequence[str]
) -> list[DeadLetter]:
    """Letters about these rows, for a sink."""
    return [
        DeadLetter(events.slice(row, row + 1), where, error, kind, at_sink=True)
        for row, error in zip(rows, errors, strict=True)
    ]
