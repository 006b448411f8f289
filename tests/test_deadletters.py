"""Dead letters: kept before anything moves past them, once each, within the limits of the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dfc_runtime.batch import Batch
from dfc_runtime.columns import native
from dfc_runtime.deadletters import DeadLetters, Journal
from dfc_runtime.deliver import Delivery, Standing
from dfc_runtime.errors import Rejected
from dfc_runtime.events import Events
from dfc_runtime.ledger import DeadLetter
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import Lane, Sink
from dfc_runtime.storage import SqliteStorage

from .fixtures import fixture_events


class Picky(Sink):
    """Rejects what it is told to; keeps the rest."""

    kind = "picky"

    def __init__(self, to: Any = "x", rejects: tuple[str, ...] = ()) -> None:
        super().__init__("picky", lambda e: Messages(to=to(e) if callable(to) else to, value=native(e)))  # fmt: skip
        self.rejects = rejects
        self.unit: list[str] = []
        self.units: list[list[str]] = []

    def open(self, lane: Lane) -> str:
        return ""

    def write(self, messages: Messages, events: Events) -> None:
        ids = events.event_id.to_pylist()
        bad = {row: "too large" for row, i in enumerate(ids) if i in self.rejects}
        if bad:
            raise Rejected(bad)
        assert len(messages.column("value", len(events))) == len(ids)
        self.unit += ids

    def commit(self, position: str) -> None:
        self.units.append(self.unit)
        self.unit = []


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state.db")


def event_id(n: int) -> str:
    return f"dfid:v1:tsrow:{n:032x}"


def entries(path: str) -> list[dict[str, Any]]:
    storage = SqliteStorage(path)
    try:
        return [json.loads(value) for _, value in storage.peek("dlq", "shop", 10_000)]
    finally:
        storage.close()


def run(
    path: str,
    sink: Sink,
    process: Any = lambda e: e,
    journal: Journal | None = None,
    standing: dict[str, Standing] | None = None,
) -> dict[str, dict[str, Any]]:
    dead = DeadLetters(journal or Journal(), path, "shop")
    delivery = Delivery("shop", "acme", 1, process, (sink,), Batch(max_events=4), dead)
    (acks,) = list(delivery.run(iter([fixture_events("mysql").batch]), 0, standing or {}))
    return {row["sink"]: row for row in acks.to_pylist()}


def test_events_without_destination_and_rejected_ones_are_kept_and_the_others_go_on(
    path: str,
) -> None:
    sink = Picky(lambda e: e.after["customer_id"], rejects=(event_id(6),))
    acks = run(path, sink)
    assert acks["picky"]["error"] is None
    assert acks["picky"]["position"] == f"{12:016x}", "nothing stands still"
    assert [i for unit in sink.units for i in unit] == [event_id(0)]
    letters = entries(path)
    assert len(letters) == 11
    kinds = {letter["event_id"]: letter["meta"]["error_kind"] for letter in letters}
    assert kinds[event_id(6)] == "rejected" and kinds[event_id(1)] == "routing error"
    first = next(letter for letter in letters if letter["event_id"] == event_id(2))
    assert first["event"]["after"]["id"] == 9007199254740993
    assert first["meta"]["sink_id"] == "picky" and first["meta"]["processor_id"] is None
    assert "no destination for event" in first["meta"]["error_message"]
    assert first["source_cursor"] == f"{3:016x}" and first["payload_truncated"] is False
    counts = json.loads(acks[""]["ledger"])["counts"]
    assert ["picky", "dead_lettered", 11] in counts


def test_a_letter_that_comes_again_is_the_same_letter(path: str) -> None:
    for _ in range(3):
        run(path, Picky(rejects=(event_id(3),)))
    assert [letter["event_id"] for letter in entries(path)] == [event_id(3)]


def test_letters_of_processors(path: str) -> None:
    def process(e: Events) -> Events:
        e.ledger.dead.append(DeadLetter(e.slice(1, 2), "risky", "script `risky`, line 2: oops"))
        return e.slice(0, 1).then(e.slice(2, len(e)))

    sink = Picky()
    acks = run(path, sink, process)
    assert acks[""]["error"] is None and acks["picky"]["events"] == 11
    (letter,) = entries(path)
    assert letter["meta"]["processor_id"] == "risky" and letter["meta"]["sink_id"] is None
    assert letter["meta"]["error_kind"] == "script error"


def test_without_a_queue_the_pipeline_stands_still_and_says_why() -> None:
    delivery = Delivery("shop", "acme", 1, lambda e: e, (Picky(rejects=(event_id(3),)),), Batch())
    (acks,) = list(delivery.run(iter([fixture_events("mysql").batch]), 0, {}))
    ack = acks.to_pylist()[0]
    assert ack["lasting"] and ack["position"] == ""
    assert ack["error"] == f"sink `picky`: event {event_id(3)}: too large"


def test_a_full_queue_drops_the_oldest_refuses_or_blocks(path: str, tmp_path: Path) -> None:
    three = tuple(event_id(n) for n in (1, 4, 8))
    run(path, Picky(rejects=three), journal=Journal(max_entries=2))
    assert [letter["event_id"] for letter in entries(path)] == [event_id(4), event_id(8)]

    refused = str(tmp_path / "refused.db")
    journal = Journal(max_entries=2, overflow_policy="reject")
    acks = run(refused, Picky(rejects=three), journal=journal)
    assert [letter["event_id"] for letter in entries(refused)] == [event_id(1), event_id(4)]
    assert acks["picky"]["error"] is None
    ledger = json.loads(acks[""]["ledger"])
    assert ["picky", "dead_letters_refused", 1] in ledger["counts"]
    assert any(
        line["level"] == "error" and event_id(8) in line["reason"] for line in ledger["lines"]
    )

    blocked = str(tmp_path / "blocked.db")
    journal = Journal(max_entries=2, overflow_policy="block")
    ack = run(blocked, Picky(rejects=three), journal=journal)["picky"]
    assert "the dead letter queue is full (2 letters)" in ack["error"] and not ack["lasting"]
    assert ack["position"] == f"{8:016x}", "up to the unit before"
    storage = SqliteStorage(blocked)
    storage.ack("dlq", "shop", 1 << 40)
    storage.close()
    standing = {"picky": Standing((ack["position"],))}
    ack = run(blocked, Picky(rejects=three), journal=journal, standing=standing)["picky"]
    assert ack["error"] is None and ack["position"] == f"{12:016x}"


def test_a_full_queue_holds_processors_back_too(path: str) -> None:
    def process(e: Events) -> Events:
        e.ledger.dead += [DeadLetter(e.slice(n, n + 1), "risky", "oops") for n in range(3)]
        return e.slice(3, len(e))

    journal = Journal(max_entries=2, overflow_policy="block")
    acks = run(path, Picky(), process, journal)
    assert "queue is full" in acks["picky"]["error"] and acks["picky"]["position"] == ""
    assert acks[""]["error"] is None, "there is something to wait for"


def test_large_events_are_kept_without_their_rows(path: str) -> None:
    run(path, Picky(rejects=(event_id(0),)), journal=Journal(max_event_bytes=300))
    (letter,) = entries(path)
    assert letter["payload_truncated"] is True and letter["event"]["after"] is None
    assert letter["event"]["event_id"] == event_id(0)


def test_old_letters_make_room(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, Picky(rejects=(event_id(1),)))
    from dfc_runtime import deadletters

    later = deadletters.time.time() + 1_000_000
    monkeypatch.setattr(deadletters.time, "time", lambda: later)
    run(
        path,
        Picky(rejects=(event_id(1), event_id(2))),
        standing={"picky": Standing((f"{2:016x}",))},
    )
    assert [letter["event_id"] for letter in entries(path)] == [event_id(2)]


def test_storage_of_an_earlier_version_gets_what_it_lacks(tmp_path: Path) -> None:
    import sqlite3

    old = tmp_path / "old.db"
    db = sqlite3.connect(old)
    db.execute(
        "CREATE TABLE df_queue (id INTEGER PRIMARY KEY AUTOINCREMENT, ns TEXT NOT NULL,"
        " key TEXT NOT NULL, val BLOB NOT NULL, ts INTEGER NOT NULL)"
    )
    db.execute("INSERT INTO df_queue (ns, key, val, ts) VALUES ('a', 'b', x'00', 1)")
    db.commit()
    db.close()
    storage = SqliteStorage(old)
    assert storage.push("a", "b", b"1", name="n") and storage.holds("a", "b", "n")
    storage.push("a", "b", b"2", name="n")
    assert [value for _, value in storage.peek("a", "b")] == [b"\0", b"1"]
    storage.close()
    SqliteStorage(old).close()
