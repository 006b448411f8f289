"""What the driver does with acks, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime import commit
from dfc_runtime.commit import Settle, Stopped
from dfc_runtime.deliver import standing_of
from dfc_runtime.errors import ConfigError, Ended, StorageError, TakenOver
from dfc_runtime.ledger import Ledger
from dfc_runtime.policy import CommitPolicy
from dfc_runtime.positions import Positions
from dfc_runtime.storage import SqliteStorage

from .services import Postgres
from .services.fixtures import Services
from .storages import fresh_schema


class Reporter:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.news: list[tuple[Any, ...]] = []

    def settled(self, events: int, size: int, ts_ms: int | None) -> None:
        self.news.append(("settled", events))

    def blocked(self, reasons: dict[str, str]) -> None:
        self.news.append(("blocked", reasons))

    def unblocked(self) -> None:
        pass

    def away(self, sink: str, reason: str) -> None:
        self.news.append(("away", sink, reason))

    def output(self, text: str) -> None:
        self.news.append(("output", text))

    def say(self, level: str, what: str, **about: Any) -> None:
        self.news.append((level, what, about))

    def counted(self, counts: dict[tuple[str, str], int]) -> None:
        if counts:
            self.news.append(("counted", counts))


class Epoch:
    """Stands for the DataFrame of acks: each attempt gives the next rows."""

    def __init__(self, *attempts: list[dict[str, Any]]) -> None:
        self.attempts = list(attempts)
        self.sparkSession = self.sparkContext = self

    def setLocalProperty(self, name: str, value: str) -> None:
        pass

    def collect(self) -> list[dict[str, Any]]:
        return self.attempts.pop(0)


def ack(sink: str, position: str, error: str | None = None, events: int = 1) -> dict[str, Any]:
    return {
        "sink": sink,
        "lane": 0,
        "position": position,
        "events": events,
        "bytes": 10,
        "ts_ms": None,
        "output": None,
        "error": error,
        "lasting": error is not None and "no destination" in error,
        "ledger": None,
    }


def settle(*sinks: str, required: tuple[str, ...] = (), **named: Any) -> Settle:
    positions = Positions(None, "p", "s", sinks, 1)
    policy = CommitPolicy.required(*(required or sinks))
    return Settle(policy, positions, sinks, Reporter(), threading.Event(), **named)


def test_a_sink_ahead_of_its_source_ends_the_job() -> None:
    """A database made anew counts from 1 again: all of it would look old to the sink."""
    one = settle("archive", ceiling=lambda: "03")
    with pytest.raises(ConfigError, match=r"`archive` stands at 0a.* ahead of the source \(03\)"):
        one(Epoch([ack("archive", "0a"), ack("", "03")]), 0)
    assert one.positions.start == "", "nothing is noted"


@pytest.mark.parametrize(
    ("ceiling", "position", "end"),
    [
        ("0a", "0a", "03"),  # after a crash: the log has what the sink has, and replays it
        ("03", "0a", "0a"),  # written since
        ("03", "0a", ""),  # an idle epoch says nothing of the source
        (None, "0a", "03"),  # nor does this source
    ],
)
def test_a_sink_may_be_ahead_of_the_epoch(ceiling: str | None, position: str, end: str) -> None:
    one = settle("archive", ceiling=lambda: ceiling)
    one(Epoch([ack("archive", position), ack("", end)]), 0)
    assert one.positions.start == position


class Stop(threading.Event):
    """Notes how long somebody would have waited, and is set after so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        return len(self.pauses) >= self.times


LOST = "no destination for event 7"


def test_an_event_without_destination_blocks_a_required_sink_without_haste() -> None:
    one = settle("a")
    one.stop = stop = Stop(2)
    rows = [ack("a", "06", LOST), ack("", "09")]
    with pytest.raises(Stopped):
        one(Epoch(rows, rows), 0)
    assert all(pause >= 0.8 * commit._LONGEST_PAUSE for pause in stop.pauses)
    kind, reasons = one.reporter.news[0]  # type: ignore[attr-defined]
    assert kind == "blocked" and LOST in reasons["a"] and "until the pipeline" in reasons["a"]


def test_a_sink_that_may_come_back_is_tried_soon() -> None:
    one = settle("a", "b")
    one.stop = stop = Stop(9)
    bad = [ack("a", "06", "no answer"), ack("b", "09"), ack("", "09")]
    one(Epoch(bad, [ack("a", "09"), ack("b", "09"), ack("", "09")]), 0)
    assert len(stop.pauses) == 1 and stop.pauses[0] < 1


def test_an_optional_sink_is_stuck_and_the_others_go_on() -> None:
    one = settle("a", "b", required=("a",))
    one(Epoch([ack("a", "09"), ack("b", "06", LOST), ack("", "09")]), 0)
    assert one.stuck == {"b"} and LOST in one.away["b"]
    assert one.positions.start == "06" and one.positions.start_without(one.stuck) == "09"


def test_a_sink_that_has_recovered_is_stuck_no_more() -> None:
    """Later it may fail of something that passes, and is gone back for."""
    one = settle("a", "b")
    one.stop = Stop(9)
    bad = [ack("a", "09"), ack("b", "06", LOST), ack("", "09")]
    one(Epoch(bad, [ack("a", "09"), ack("b", "09"), ack("", "09")]), 0)
    assert one.stuck == set()


def test_a_sink_that_was_left_behind_has_more_time_when_it_comes_back() -> None:
    """Else a batch that takes it longer than the others wait would be begun again for ever."""
    one = settle("a", "b", required=("a",))
    told: list[float | None] = []

    class Told(Epoch):
        def setLocalProperty(self, name: str, value: str) -> None:
            told.append(standing_of(value)[0]["b"].patience)

    for error in ("no answer", "no answer", None, None):
        one(Told([ack("a", "09"), ack("b", "06", error), ack("", "09")]), 0)
        one.away.clear()  # as when it is gone back for
    assert told == [2.0, 4.0, 8.0, 2.0]
    one.patient = True
    one(Told([ack("a", "09"), ack("b", "09"), ack("", "09")]), 0)
    assert told[-1] is None, "nobody waits behind the last epoch"


def test_the_tasks_are_told_what_was_counted() -> None:
    one = settle("a")
    told = []

    class Told(Epoch):
        def setLocalProperty(self, name: str, value: str) -> None:
            told.append(standing_of(value)[0][""].positions)

    for end in ("05", "09", "07"):  # the last one after going back
        one(Told([ack("a", end), ack("", end)]), 0)
    one(Told([ack("a", "09"), ack("", "")]), 0)
    assert told == [("",), ("05",), ("09",), ("09",)]


def test_what_processors_say_comes_at_once_and_what_they_count_when_it_is_settled() -> None:
    ledger = Ledger()
    ledger.say("warning", "a field is dropped", script="s")
    ledger.count("flat", "collisions", pa.array(["01", "02"]))
    source = {**ack("", "03"), "ledger": ledger.text()}
    one = settle("archive")
    again = [{**ack("archive", ""), "error": "away"}, source]
    one(Epoch(again, [ack("archive", "03"), source]), 1)
    told = [news for news in one.reporter.news if news[0] in ("warning", "counted")]  # type: ignore[attr-defined]
    line = ("warning", "a field is dropped", {"script": "s"})
    assert told == [line, line, ("counted", {("flat", "collisions"): 2})]


def test_a_processor_that_fails_ends_the_job_and_keeps_what_was_committed() -> None:
    """What was read up to the failure is not delivered, so no sink may be taken to stand there."""
    one = settle("archive")
    rows = [ack("archive", "02"), ack("", "09", "script `s`, line 3: TypeError")]
    with pytest.raises(Ended, match="line 3: TypeError"):
        one(Epoch(rows), 1)
    assert one.positions.of("archive") == ("02",)


def test_events_that_come_again_are_counted_once() -> None:
    ledger = Ledger(counted="02")
    ledger.count("outbox", "non_insert", pa.array(["01", "02", "03"]))
    assert ledger.counts == {("outbox", "non_insert"): 1}
    assert Ledger().text() is None


# --- storage that is away --------------------------------------------------------------------


def away(storage: SqliteStorage, *reasons: str) -> None:
    """Refuses that many writes, each for its reason."""
    left, put_all = list(reasons), storage.put_all

    def refuse(*given: Any, **named: Any) -> None:
        if left:
            raise StorageError(left.pop(0))
        put_all(*given, **named)

    storage.put_all = refuse  # type: ignore[method-assign]


def kept(storage: SqliteStorage) -> Settle:
    one = settle("a")
    one.positions = Positions(storage, "p", "s", ["a"], 1)
    return one


def test_a_job_waits_for_storage_and_goes_on(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "state.db")
    one = kept(storage)
    one.stop = stop = Stop(9)
    away(storage, "locked", "locked", "locked", "full")
    one(Epoch([ack("a", "05"), ack("", "05")]), 0)  # run once: the sink has it
    assert Positions(storage, "p", "s", ["a"], 1).of("a") == ("05",)
    assert one.reporter.news == [  # type: ignore[attr-defined]
        ("warning", "waiting for storage", {"reason": "locked"}),
        ("warning", "waiting for storage", {"reason": "full"}),
        ("info", "storage is back", {}),
        ("settled", 1),
    ]
    assert len(stop.pauses) == 4 and stop.pauses[0] < 0.2 < stop.pauses[3]
    one(Epoch([ack("a", "06"), ack("", "06")]), 1)
    assert Positions(storage, "p", "s", ["a"], 1).of("a") == ("06",)
    storage.close()


def test_a_stop_ends_the_waiting_and_the_epoch_comes_again(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "state.db")
    one = kept(storage)
    one.stop = Stop(3)
    away(storage, *["locked"] * 9)
    with pytest.raises(Stopped):
        one(Epoch([ack("a", "05"), ack("", "05")]), 0)
    assert one.stopped and Positions(storage, "p", "s", ["a"], 1).of("a") == ("",)
    storage.close()


def test_whoever_was_replaced_while_storage_was_away_keeps_nothing(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "state.db")
    storage.swap("leases", "p", 0, b"other")
    one = settle("a")
    one.positions = Positions(storage, "p", "s", ["a"], 1, guard=("leases", "p", "mine"))
    one.stop = Stop(9)
    away(storage, "gone")
    with pytest.raises(TakenOver):
        one(Epoch([ack("a", "05"), ack("", "05")]), 0)
    storage.close()


def test_a_server_that_is_stopped_in_mid_run(services: Services) -> None:
    server = services.start(Postgres)
    spec = fresh_schema(server)
    storage = spec.open()
    one = settle("a")
    one.positions = Positions(storage, "p", "s", ["a"], 1)
    one(Epoch([ack("a", "05"), ack("", "05")]), 0)
    server.stop()

    class Restart(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if not server.running:
                server.start()
            return False

    one.stop = Restart()
    one(Epoch([ack("a", "06"), ack("", "06")]), 1)
    assert ("info", "storage is back", {}) in one.reporter.news  # type: ignore[attr-defined]
    assert Positions(storage, "p", "s", ["a"], 1).of("a") == ("06",)
    storage.close()
