"""Dead letters: kept before anything moves past them, once each, within the limits of the queue."""

from __future__ import annotations

import json
import pickle
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.batch import Batch
from dfc_runtime.columns import native
from dfc_runtime.deadletters import DeadLetters, Journal
from dfc_runtime.deliver import Delivery, Standing
from dfc_runtime.errors import Rejected
from dfc_runtime.events import Events
from dfc_runtime.ledger import DeadLetter
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import FileSink, Lane, Sink
from dfc_runtime.storage import SqliteStorage, Storage

from .fixtures import fixture_events
from .services import Postgres
from .services.fixtures import Services
from .storages import every_backend, fresh_schema


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


@pytest.fixture(params=every_backend)
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    if request.param == "sqlite":
        return lambda: Storage(path=str(tmp_path / f"{secrets.token_hex(4)}.db"))
    server: Postgres = request.getfixturevalue("postgres_server")
    return lambda: fresh_schema(server)


@pytest.fixture
def kept(new: Callable[[], Storage]) -> Storage:
    return new()


def event_id(n: int) -> str:
    return f"dfid:v1:tsrow:{n:032x}"


def entries(kept: Storage) -> list[dict[str, Any]]:
    storage = kept.open()
    try:
        return [json.loads(value) for _, value in storage.peek("dlq", "shop", 10_000)]
    finally:
        storage.close()


def run(
    kept: Storage,
    sink: Sink,
    process: Any = lambda e: e,
    journal: Journal | None = None,
    standing: dict[str, Standing] | None = None,
) -> dict[str, dict[str, Any]]:
    dead = DeadLetters(journal or Journal(), kept, "shop")
    delivery = Delivery("shop", "acme", 1, process, (sink,), Batch(max_events=4), dead)
    (acks,) = list(delivery.run(iter([fixture_events("mysql").batch]), 0, standing or {}))
    return {row["sink"]: row for row in acks.to_pylist()}


def test_events_without_destination_and_rejected_ones_are_kept_and_the_others_go_on(
    kept: Storage,
) -> None:
    sink = Picky(lambda e: e.after["customer_id"], rejects=(event_id(6),))
    acks = run(kept, sink)
    assert acks["picky"]["error"] is None
    assert acks["picky"]["position"] == f"{12:016x}", "nothing stands still"
    assert [i for unit in sink.units for i in unit] == [event_id(0)]
    letters = entries(kept)
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


def test_a_letter_that_comes_again_is_the_same_letter(kept: Storage) -> None:
    for _ in range(3):
        run(kept, Picky(rejects=(event_id(3),)))
    assert [letter["event_id"] for letter in entries(kept)] == [event_id(3)]


def test_letters_of_processors(kept: Storage) -> None:
    def process(e: Events) -> Events:
        e.ledger.dead.append(DeadLetter(e.slice(1, 2), "risky", "script `risky`, line 2: oops"))
        return e.slice(0, 1).then(e.slice(2, len(e)))

    sink = Picky()
    acks = run(kept, sink, process)
    assert acks[""]["error"] is None and acks["picky"]["events"] == 11
    (letter,) = entries(kept)
    assert letter["meta"]["processor_id"] == "risky" and letter["meta"]["sink_id"] is None
    assert letter["meta"]["error_kind"] == "script error"


def test_without_a_queue_the_pipeline_stands_still_and_says_why() -> None:
    delivery = Delivery("shop", "acme", 1, lambda e: e, (Picky(rejects=(event_id(3),)),), Batch())
    (acks,) = list(delivery.run(iter([fixture_events("mysql").batch]), 0, {}))
    ack = acks.to_pylist()[0]
    assert ack["lasting"] and ack["position"] == ""
    assert ack["error"] == f"sink `picky`: event {event_id(3)}: too large"


def test_a_full_queue_drops_the_oldest_refuses_or_blocks(
    kept: Storage, new: Callable[[], Storage]
) -> None:
    three = tuple(event_id(n) for n in (1, 4, 8))
    run(kept, Picky(rejects=three), journal=Journal(max_entries=2))
    assert [letter["event_id"] for letter in entries(kept)] == [event_id(4), event_id(8)]

    refused = new()
    journal = Journal(max_entries=2, overflow_policy="reject")
    acks = run(refused, Picky(rejects=three), journal=journal)
    assert [letter["event_id"] for letter in entries(refused)] == [event_id(1), event_id(4)]
    assert acks["picky"]["error"] is None
    ledger = json.loads(acks[""]["ledger"])
    assert ["picky", "dead_letters_refused", 1] in ledger["counts"]
    assert any(
        line["level"] == "error" and event_id(8) in line["reason"] for line in ledger["lines"]
    )

    blocked = new()
    journal = Journal(max_entries=2, overflow_policy="block")
    ack = run(blocked, Picky(rejects=three), journal=journal)["picky"]
    assert "the dead letter queue is full (2 letters)" in ack["error"] and not ack["lasting"]
    assert ack["position"] == f"{8:016x}", "up to the unit before"
    storage = blocked.open()
    storage.ack("dlq", "shop", 1 << 40)
    storage.close()
    standing = {"picky": Standing((ack["position"],))}
    ack = run(blocked, Picky(rejects=three), journal=journal, standing=standing)["picky"]
    assert ack["error"] is None and ack["position"] == f"{12:016x}"


def test_a_full_queue_holds_processors_back_too(kept: Storage) -> None:
    def process(e: Events) -> Events:
        e.ledger.dead += [DeadLetter(e.slice(n, n + 1), "risky", "oops") for n in range(3)]
        return e.slice(3, len(e))

    journal = Journal(max_entries=2, overflow_policy="block")
    acks = run(kept, Picky(), process, journal)
    assert "queue is full" in acks["picky"]["error"] and acks["picky"]["position"] == ""
    assert acks[""]["error"] is None, "there is something to wait for"


def test_large_events_are_kept_without_their_rows(kept: Storage) -> None:
    run(kept, Picky(rejects=(event_id(0),)), journal=Journal(max_event_bytes=300))
    (letter,) = entries(kept)
    assert letter["payload_truncated"] is True and letter["event"]["after"] is None
    assert letter["event"]["event_id"] == event_id(0)


def test_old_letters_make_room_and_the_log_says_how_many(kept: Storage) -> None:
    run(kept, Picky(rejects=(event_id(1),)))
    time.sleep(2.1)
    acks = run(
        kept,
        Picky(rejects=(event_id(1), event_id(2))),
        journal=Journal(max_age_secs=1),
        standing={"picky": Standing((f"{2:016x}",))},
    )
    assert [letter["event_id"] for letter in entries(kept)] == [event_id(2)]
    lines = json.loads(acks[""]["ledger"])["lines"]
    assert [line["count"] for line in lines if "too old" in line["what"]] == [1]


def test_an_event_that_would_leave_the_folder_is_a_dead_letter(tmp_path: Path) -> None:
    kept = Storage(path=str(tmp_path / "state.db"))
    bad = event_id(6)

    def messages(e: Events) -> Messages:
        to = [f"../{i}" if i == bad else "orders" for i in e.event_id.to_pylist()]
        return Messages(to=pa.array(to), value=e.event_id)

    sink = FileSink("archive", messages, path=str(tmp_path / "archive"))
    ack = run(kept, sink)["archive"]
    assert (ack["error"], ack["position"]) == (None, f"{12:016x}")
    sink.finish("shop")
    (file,) = (tmp_path / "archive" / "orders").iterdir()
    assert file.read_text().split() == [event_id(n) for n in range(12) if n != 6]
    (letter,) = entries(kept)
    assert letter["event_id"] == bad and "not a folder inside" in letter["meta"]["error_message"]


def test_storage_that_is_away_blocks_the_sink_until_it_is_back(services: Services) -> None:
    server = services.start(Postgres)
    kept = fresh_schema(server)
    server.stop()
    sink = Picky(rejects=(event_id(6),))
    ack = run(kept, sink)["picky"]
    assert "no dead letter can be kept: storage: PostgreSQL: " in ack["error"]
    assert not ack["lasting"] and ack["position"] == f"{4:016x}", "up to the unit before"
    server.start()
    ack = run(kept, sink, standing={"picky": Standing((ack["position"],))})["picky"]
    assert ack["error"] is None and ack["position"] == f"{12:016x}"
    assert [letter["event_id"] for letter in entries(kept)] == [event_id(6)]


def test_the_queue_travels_to_the_tasks_without_showing_its_password(
    postgres_server: Postgres,
) -> None:
    dead = DeadLetters(Journal(), fresh_schema(postgres_server), "shop")
    assert pickle.loads(pickle.dumps(dead)) == dead and "dfc:dfc" not in repr(dead)


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
    assert storage.push("a", "b", b"1", name="n") and storage.held("a", "b", ["n"])
    storage.push("a", "b", b"2", name="n")
    assert [value for _, value in storage.peek("a", "b")] == [b"\0", b"1"]
    storage.close()
    SqliteStorage(old).close()
