"""Dead letters delivered once more, for `dfc dlq replay`: through the processors, routing and sinks
of the job as it is now, in one process.

A letter leaves the queue when the sinks it is for hold its event. No sink's position moves. Before a
unit goes to a sink, storage notes its letters and a mark; a sink that keeps its position with its
data keeps the mark with the unit in the same way. After a crash the mark tells whether the unit is
there, so that it does not come a second time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .deliver import Process, through
from .env import Env
from .errors import (
    DfcError,
    ProcessorError,
    Rejected,
    RoutingError,
    SinkError,
    TakenOver,
    reason,
)
from .events import Events, arrow_schema
from .features import check_all
from .lease import Lease
from .ledger import Ledger
from .letter_notes import Keeper, Letter, NoKeeper, Note, forget_notes, notes
from .messages import Messages, routing_error
from .positions import Positions
from .replay import load_job, process_of
from .sinks import DryRunSink, Lane, Sink
from .storage import Backend

_UNIT_LETTERS = 200


@dataclass
class Part:
    """What one source event gives to one sink, and the letters that are settled by it."""

    letters: list[Letter]
    events: Events
    error: str | None = None


class Outgoing:
    """One sink for the time of a replay."""

    def __init__(self, sink: Sink, lane: Lane, passed: str) -> None:
        self.sink = sink
        self.passed = passed  # all its lanes have left this behind, by storage's word
        self.away: str | None = None  # why it cannot be reached
        self._lane = lane
        self._position = ""
        self._opened = False

    def open(self) -> None:
        try:
            self._position = max(self.sink.open(self._lane), self._lane.known)
            self._opened = True
        except Exception as error:
            self.away = self.why(error)

    def redeliver(self, messages: Messages, events: Events, mark: str) -> None:
        self.sink.redeliver(messages, events, self._position, mark)

    def why(self, error: Exception) -> str:
        """A failure of the sink in one line; any other is raised."""
        if isinstance(error, DfcError) and not isinstance(error, SinkError | RoutingError):
            raise error
        return reason(error, self.sink.secrets)

    def again(self) -> None:
        """After a failure: nothing of it is under way any more, and the sink is ready or away."""
        with contextlib.suppress(Exception):
            self.sink.abort()
        self.close()
        self.open()

    def close(self) -> None:
        if self._opened:
            self._opened = False
            with contextlib.suppress(Exception):
                self.sink.close()


class Redelivery:
    """Letters out, oldest first; each says afterwards what has become of it."""

    def __init__(
        self,
        pipeline: str,
        tenant: str | None,
        columns: str,
        process: Process,
        sinks: Sequence[tuple[Sink, Lane, str]],
        keeper: Keeper,
        stopped: Callable[[], None] = lambda: None,
    ) -> None:
        self._pipeline = pipeline
        self._tenant = tenant
        self._schema = arrow_schema(columns.split())
        self._process = process
        self._keeper = keeper
        self._stopped = stopped  # raises when somebody else has the pipeline
        self._queue: dict[int, Letter] = {}
        self.outgoing = {sink.id: Outgoing(sink, lane, at) for sink, lane, at in sinks}

    def run(self, letters: Sequence[Letter], others: Sequence[Letter] = ()) -> None:
        """Delivers the letters; `others` are the rest of the queue, which stays as it is."""
        self._queue = {letter.number: letter for letter in (*others, *letters)}
        for letter in others:
            self._addressed(letter)
        able = [letter for letter in letters if self._addressed(letter)]
        used = set().union(*(letter.due for letter in able))
        try:
            for name, outgoing in self.outgoing.items():
                if name in used:
                    outgoing.open()
                    if outgoing.away is None:
                        self._take_up(outgoing)
            for start in range(0, len(able), _UNIT_LETTERS):
                self._deliver(able[start : start + _UNIT_LETTERS])
        finally:
            for outgoing in self.outgoing.values():
                outgoing.close()

    @property
    def away(self) -> dict[str, str]:
        """Sinks that could not be reached, and why."""
        return {
            name: outgoing.away
            for name, outgoing in self.outgoing.items()
            if outgoing.away is not None
        }

    def _addressed(self, letter: Letter) -> bool:
        """Whether there is something to deliver, and to whom."""
        if letter.row is None:
            letter.error = (
                "it was kept without its row, which was larger than `journal.max_event_bytes`, or by "
                "an earlier version: it cannot be delivered again"
            )
        elif letter.sink is None:
            letter.pending = set(self.outgoing) - set(letter.note.delivered)
        elif letter.sink in self.outgoing:
            letter.pending = {letter.sink}
        else:
            letter.error = f"the pipeline has no sink `{letter.sink}` any more"
        if letter.error is not None:
            return False
        assert letter.row is not None
        # A letter is kept before its sink commits past it: till then the event comes by itself.
        at = letter.row["position"]
        letter.early = {name for name in letter.pending if self.outgoing[name].passed < at}
        return True

    def _take_up(self, outgoing: Outgoing) -> None:
        """What an earlier replay had under way at this sink is there, or is not.

        Also when it holds letters that are not asked for now: nobody would know of it later.
        """
        name = outgoing.sink.id
        mark, numbers = self._keeper.begun(name)
        if mark and outgoing.sink.redelivered() == mark:
            self._settle(name, [self._queue[n] for n in sorted(numbers) if n in self._queue])
        elif mark:
            self._keeper.ended(name)

    # --- a few letters -----------------------------------------------------------------------

    def _deliver(self, letters: Sequence[Letter]) -> None:
        groups: dict[str, list[Letter]] = {}  # letters about one event of the source, or its copies
        for letter in letters:
            if letter.due:
                assert letter.row is not None
                groups.setdefault(letter.row["position"], []).append(letter)
        parts: dict[str, list[Part]] = {}
        for group in groups.values():
            for name, part in self._made(group):
                parts.setdefault(name, []).append(part)
        self._finish([letter for letter in letters if letter.is_done])
        for name, outgoing in self.outgoing.items():
            if outgoing.away is None and name in parts:
                self._send(outgoing, parts[name])
        failed = [letter for letter in letters if letter.error is not None]
        for letter in failed:
            letter.note = letter.note.failed(letter.error or "")
        self._keeper.keep(failed)

    def _made(self, group: list[Letter]) -> list[tuple[str, Part]]:
        """What the job makes of one event of the source now, by sink."""
        row = group[0].row
        assert row is not None
        batch = pa.RecordBatch.from_pylist([row], self._schema)
        ledger = Ledger()
        events = Events(batch, pipeline=self._pipeline, tenant=self._tenant, ledger=ledger)
        try:
            events = through(self._process, events)
        except ProcessorError as error:
            for letter in group:
                letter.error = str(error)
            return []
        self._note_dead(group, ledger)
        live = [letter for letter in group if letter.error is None]
        parts = []
        for name, outgoing in self.outgoing.items():
            mine = [letter for letter in live if name in letter.due]
            if mine:
                filter = outgoing.sink.filter
                part = self._part(mine, events if filter is None else filter.apply(events))
                if part is not None:
                    parts.append((name, part))
                for letter in mine:
                    if part is None or letter not in part.letters:
                        self._without_event(letter, name, row)
        return parts

    def _note_dead(self, group: list[Letter], ledger: Ledger) -> None:
        dead = {letter.events.event_id[0].as_py(): letter.error for letter in ledger.dead}
        known = {letter.event_id for letter in group}
        new = [error for event_id, error in dead.items() if event_id not in known]
        for letter in group:
            if letter.event_id in dead:
                letter.error = dead[letter.event_id]
            elif new and letter.sink is None:
                letter.error = new[0]  # of a copy, which nobody else would hear of

    def _part(self, letters: list[Letter], events: Events) -> Part | None:
        if any(letter.sink is None for letter in letters):
            return Part(letters, events) if len(events) else None
        # The sink has the others that were made of the same: only its own letters' events are new.
        ids = events.event_id.to_pylist()
        wanted = {letter.event_id for letter in letters}
        events = events.where(pa.array([event_id in wanted for event_id in ids], pa.bool_()))
        return Part([x for x in letters if x.event_id in ids], events) if len(events) else None

    def _without_event(self, letter: Letter, sink: str, row: dict[str, Any]) -> None:
        if letter.sink is None or letter.event_id == row.get("event_id"):
            letter.pending.discard(sink)
            letter.dropped = not letter.pending and not letter.note.delivered
        else:
            letter.error = "the processors do not make this event of its row any more"

    # --- one sink ----------------------------------------------------------------------------

    def _send(self, outgoing: Outgoing, parts: list[Part]) -> None:
        try:
            self._write(outgoing, parts)
        except Exception as error:
            why = outgoing.why(error)
            outgoing.again()
            if outgoing.away is None:
                # What failed was perhaps only the word that it is there.
                self._take_up(outgoing)
            left = [part for part in parts if part.error is None and self._is_left(outgoing, part)]
            if len(left) > 1:
                for part in left:  # one of them may be to blame for all
                    if outgoing.away is None:
                        self._send(outgoing, [part])
            elif left:
                left[0].error = why
        for part in parts:
            for letter in part.letters:
                letter.error = letter.error or part.error

    def _is_left(self, outgoing: Outgoing, part: Part) -> bool:
        return any(outgoing.sink.id in letter.pending for letter in part.letters)

    def _write(self, outgoing: Outgoing, parts: list[Part]) -> None:
        """As one unit; what the sink can never take is left out, and is told so."""
        sink, left = outgoing.sink, parts
        while left:
            self._stopped()
            events = left[0].events.then(*(part.events for part in left[1:]))
            messages = sink.messages(events)
            lost = pc.is_null(messages.column("to", len(events))).to_pylist()
            errors = {
                row: str(routing_error(events, row, sink.id))
                for row, is_lost in enumerate(lost)
                if is_lost
            }
            if not errors:
                mark = secrets.token_hex(8)
                letters = [letter for part in left for letter in part.letters]
                self._keeper.begin(sink.id, mark, letters)
                try:
                    outgoing.redeliver(messages, events, mark)
                except Rejected as error:
                    errors = error.rows
                else:
                    if text := sink.output():
                        print(text, flush=True)
                    self._settle(sink.id, letters)
                    return
            row = 0
            for part in left:
                for _ in range(len(part.events)):
                    part.error = part.error or errors.get(row)
                    row += 1
            left = [part for part in left if part.error is None]
        self._keeper.ended(sink.id)

    def _settle(self, sink: str, letters: list[Letter]) -> None:
        """The sink holds their events."""
        for letter in letters:
            letter.pending.discard(sink)
            letter.note = letter.note.delivered_to(sink)
        self._finish(letters)
        self._keeper.ended(sink)

    def _finish(self, letters: list[Letter]) -> None:
        self._keeper.keep(letter for letter in letters if not letter.is_done)
        self._keeper.remove(letter for letter in letters if letter.is_done)


def replay(
    storage: Backend,
    request: dict[str, Any],
    queue: Iterable[tuple[int, dict[str, Any]]],
    wanted: Collection[int],
    lease: Lease | None,
    taken: threading.Event | None = None,
) -> int:
    """Delivers the wanted letters of the queue, and says what has become of them; the exit code.

    Without a lease nothing is sent, and what each sink would get is printed.
    """
    name, lanes = request["pipeline"], request["lanes"]
    module = load_job(name, request["job"])
    env = Env.require(module.ENV) if lease else Env.stand_in(module.ENV, os.environ)
    sinks: Sequence[Sink] = module.sinks(env)
    if lease is None:
        sinks = [DryRunSink(sink) for sink in sinks]
    check_all([sink.check for sink in sinks])
    ids = [sink.id for sink in sinks]
    positions = Positions(storage, name, request["source"], ids, lanes, keep=False)

    def stopped() -> None:
        if taken is not None and taken.is_set():
            raise TakenOver(name)

    redelivery = Redelivery(
        name,
        request["tenant"] or None,
        module.COLUMNS,
        process_of(module, env),
        [
            (sink, Lane(name, 0, lanes, positions.of(sink.id)[0]), min(positions.of(sink.id)))
            for sink in sinks
        ],
        Keeper(storage, name, lease.guard) if lease else NoKeeper(),
        stopped,
    )
    known = notes(storage, name)
    found = [
        Letter(n, x["event_id"], x["meta"]["sink_id"], x.get("row"), known.get(n, Note()))
        for n, x in queue
    ]
    if lease:
        # Of letters that made room for others, or were being removed when a replay was killed.
        forget_notes(storage, name, known.keys() - {letter.number for letter in found})
    letters = [letter for letter in found if letter.number in wanted]
    redelivery.run(letters, [letter for letter in found if letter.number not in wanted])
    return _told(letters, redelivery.away, dry_run=lease is None)


def _told(letters: Sequence[Letter], away: dict[str, str], dry_run: bool) -> int:
    """Says what has become of them; the exit code."""
    for letter in letters:
        if letter.error is not None:
            print(f"letter {letter.number}: {letter.error}", file=sys.stderr)
    for sink in sorted(set().union(*(letter.early for letter in letters))):
        numbers = ", ".join(str(x.number) for x in letters if sink in x.early)
        print(
            f"sink `{sink}` has not come to the event of letter {numbers} yet: run the pipeline first, "
            "and purge what it has delivered by then",
            file=sys.stderr,
        )
    for sink, why in away.items():
        print(f"sink `{sink}` cannot be reached: {why}", file=sys.stderr)
    failed = sum(letter.error is not None for letter in letters)
    dropped = sum(letter.dropped for letter in letters)
    waiting = sum(letter.error is None and bool(letter.pending) for letter in letters)
    done = len(letters) - failed - dropped - waiting
    would = "would be " * dry_run
    said = [f"{_count(done)} {would}delivered and removed"]
    if dropped:
        said.append(f"{dropped} {would}removed: the pipeline drops their events now")
    if failed:
        said.append(f"{failed} {'would stay' if dry_run else 'failed again, and stay'}")
    if waiting:
        said.append(f"{waiting} not tried at every sink, and stay")
    print("; ".join(said))
    return 1 if failed or waiting else 0


def _count(number: int) -> str:
    return f"{number} dead letter{'s' * (number != 1)}"
