"""`dfc dlq replay`: dead letters delivered again, once each, without moving any sink's position."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic
from dfc.compiler import Spec, emit_job, plan_pipeline
from dfc.compiler.diagnostics import Diagnostics
from dfc_runtime import redelivery
from dfc_runtime.admin import Admin
from dfc_runtime.batch import Batch
from dfc_runtime.deadletters import DeadLetters, Journal
from dfc_runtime.deliver import Delivery
from dfc_runtime.env import Env
from dfc_runtime.errors import Rejected
from dfc_runtime.events import Events
from dfc_runtime.lease import Lease
from dfc_runtime.ledger import DeadLetter
from dfc_runtime.letter_notes import Note, put_notes
from dfc_runtime.messages import Messages
from dfc_runtime.positions import Positions
from dfc_runtime.replay import load_job, process_of
from dfc_runtime.sinks import Lane, Sink
from dfc_runtime.sinks import nats as nats_sink
from dfc_runtime.storage import SqliteStorage, Storage

from .fixtures import fixture_events
from .nats_streams import Streams
from .services import Kafka, Nats, Redis
from .test_kafka_sink import read as read_topic

ROWS = 12
FILE = "{type: file, config: {id: archive, path: ./archive, name: orders}}"
CONSOLE = "{type: console, config: {id: screen}}"
Request = dict[str, Any]


def event_id(n: int) -> str:
    return f"dfid:v1:tsrow:{n:032x}"


def job_of(*sinks: str, processors: str = "[]", journal: str = "") -> str:
    text = f"""\
metadata: {{name: shop, tenant: acme}}
spec:
  source: {{type: turso, config: {{id: db, url: ./shop.db, tables: [orders]}}}}
  storage: {{path: state.db}}
  journal: {{enabled: true{journal}}}
  processors: {processors}
  sinks:
"""
    text += "".join(f"    - {sink}\n" for sink in sinks)
    diagnostics = Diagnostics()
    spec = Spec("shop.yaml", text.encode())
    plan = plan_pipeline(spec, diagnostics)
    assert plan is not None, diagnostics.text()
    return emit_job(plan, spec)


class Stand(Sink):
    """In place of another sink: refuses these events, keeps nothing of the others."""

    kind = "stand"

    def __init__(self, id: str, refuses: Callable[[int], bool]) -> None:
        super().__init__(id, lambda e: Messages(value=e.after.text))
        self.refuses = refuses

    def open(self, lane: Lane) -> str:
        return ""

    def write(self, messages: Messages, events: Events) -> None:
        ids = [text.removesuffix("-copy") for text in events.event_id.to_pylist()]
        numbers = [int(text[-32:], 16) for text in ids]
        if bad := {row: "poison" for row, n in enumerate(numbers) if self.refuses(n)}:
            raise Rejected(bad)

    def commit(self, position: str) -> None:
        pass


class Pipeline:
    """A pipeline that has run, and left dead letters behind."""

    def __init__(self, folder: Path, job: str, lanes: int = 1) -> None:
        self.folder, self.job, self.lanes = folder, job, lanes

    def storage(self) -> SqliteStorage:
        return SqliteStorage(self.folder / "state.db")

    @property
    def module(self) -> ModuleType:
        return load_job("shop", self.job)

    def ran(
        self,
        refused_by: str = "",
        refuses: Callable[[int], bool] = lambda n: False,
        rows: int = ROWS,
        journal: Journal | None = None,
        process: Any = None,
    ) -> None:
        """All its sinks got all events, but this one refused some."""
        module, storage = self.module, self.storage()
        env = Env.stand_in(module.ENV, os.environ)
        dead = DeadLetters(journal or Journal(), Storage(path=storage.path), "shop")
        sinks = tuple(
            Stand(s.id, refuses) if s.id == refused_by else Stand(s.id, lambda n: False)
            for s in module.sinks(env)
        )
        process = process or process_of(module, env)
        delivery = Delivery("shop", "acme", 1, process, sinks, Batch(), dead)
        rows_of = fixture_events("turso", module.COLUMNS, rows=rows).batch
        (acks,) = list(delivery.run(iter([rows_of]), 0, {}))
        assert all(row["error"] is None for row in acks.to_pylist()), acks.to_pylist()
        ids = [sink.id for sink in sinks]
        at = {(sink, lane): f"{rows:016x}" for sink in ids for lane in range(self.lanes)}
        Positions(storage, "shop", "db", ids, self.lanes).advance(at, {})
        storage.close()

    def request(self, **asked: Any) -> Request:
        sinks = self.module.sinks(Env.stand_in(self.module.ENV, os.environ))
        return {
            "command": "replay",
            "ids": [],
            "sink": None,
            "dry_run": False,
            "limit": 50,
            "pipeline": "shop",
            "tenant": "acme",
            "job": self.job,
            "source": "db",
            "backend": "sqlite",
            "path": str(self.folder / "state.db"),
            "dsn": None,
            "flags": {},
            "lanes": self.lanes,
            "sinks": [sink.id for sink in sinks],
            **asked,
        }

    def replay(self, **asked: Any) -> tuple[int, str, str]:
        """In this process."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            admin = Admin(self.request(**asked))
            try:
                code = admin.replay()
            finally:
                admin.storage.close()
        return code, out.getvalue(), err.getvalue()

    def listed(self) -> list[str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            admin = Admin(self.request())
            admin.letters()
            admin.storage.close()
        return out.getvalue().splitlines()

    def letters(self) -> list[int]:
        storage = self.storage()
        try:
            return [number for number, _ in storage.peek("dlq", "shop", 10_000)]
        finally:
            storage.close()

    def positions(self) -> dict[str, bytes]:
        storage = self.storage()
        try:
            return storage.items("checkpoints")
        finally:
            storage.close()

    def files(self) -> list[str]:
        """Ids of the events in the archive, however often each is there."""
        found: list[str] = []
        for path in sorted((self.folder / "archive").rglob("*.jsonl")):
            # Not splitlines(): a text may hold other signs that end a line for Python.
            lines = path.read_text().removesuffix("\n").split("\n")
            found += [json.loads(line)["event_id"] for line in lines]
        return found


def left(pipeline: Pipeline) -> dict[str, int]:
    """How many notes of replays storage has."""
    storage = pipeline.storage()
    try:
        return {ns: len(storage.items(ns)) for ns in ("dlq-notes", "dlq-units")}
    finally:
        storage.close()


# --- what is delivered, and where to -------------------------------------------------------------


def test_a_letter_of_a_sink_goes_to_that_sink_and_leaves_the_queue(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE, CONSOLE))
    pipeline.ran("archive", lambda n: n in (1, 4, 8))
    before = pipeline.positions()
    code, out, err = pipeline.replay(ids=[2])
    assert (code, out, err) == (0, "1 dead letter delivered and removed\n", "")
    assert pipeline.files() == [event_id(4)] and pipeline.letters() == [1, 3]
    code, out, err = pipeline.replay()
    assert (code, out, err) == (0, "2 dead letters delivered and removed\n", "")
    assert sorted(pipeline.files()) == [event_id(n) for n in (1, 4, 8)]
    assert pipeline.letters() == [] and pipeline.positions() == before
    assert pipeline.replay()[:2] == (0, "no dead letters\n")
    assert pipeline.replay(sink="x")[:2] == (0, "no dead letters of `x`\n")
    assert left(pipeline) == {"dlq-notes": 0, "dlq-units": 0}


def test_the_file_sink_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE))
    pipeline.ran("archive", lambda n: n in (1, 4), rows=6)
    module = pipeline.module
    with contextlib.chdir(tmp_path):
        (archive,) = module.sinks(Env.stand_in(module.ENV))
    rows = fixture_events("turso", module.COLUMNS, rows=ROWS)

    def write(start: int, stop: int) -> None:
        events = rows.slice(start, stop)
        archive.write(archive.messages(events), events)
        archive.commit(f"{stop:016x}")
        archive.close()

    assert archive.open(Lane("shop")) == ""
    write(5, 6)
    open_file = {path.name for path in (tmp_path / "archive/orders").iterdir()}
    assert pipeline.replay()[0] == 0
    assert archive.open(Lane("shop")) == f"{6:016x}", "where it stood"
    write(6, 12)
    archive.finish("shop")
    names = sorted(path.name for path in (tmp_path / "archive/orders").iterdir())
    assert open_file == {f".{6:016x}.part"}
    assert names[1] == f"{6:016x}-{12:016x}.jsonl" and len(names) == 2
    assert names[0].startswith(f"{2:016x}-{5:016x}-redelivered-")
    assert pipeline.files() == [event_id(n) for n in (1, 4, 5, 6, 7, 8, 9, 10, 11)]


SCRIPT = """[{type: javascript, id: risky, on_error: dlq, inline: "function processBatch(es) { for
 (const e of es) { if (%s) throw new Error('cannot take it'); e.tags = ['seen']; } return es; }"}]"""


def test_a_letter_of_a_processor_goes_through_all_processors_to_all_sinks(tmp_path: Path) -> None:
    broken = job_of(FILE, CONSOLE, processors=SCRIPT % "e.op === 'd'")
    pipeline = Pipeline(tmp_path, broken)
    pipeline.ran()
    assert len(pipeline.letters()) == 2
    code, out, err = pipeline.replay()
    assert code == 1 and out == "0 dead letters delivered and removed; 2 failed again, and stay\n"
    assert "letter 1: " in err and "cannot take it" in err
    pipeline.job = job_of(FILE, CONSOLE, processors=SCRIPT % "false")
    code, out, err = pipeline.replay()
    *printed, summary = out.splitlines()
    assert (code, err, summary) == (0, "", "2 dead letters delivered and removed")
    assert [json.loads(line)["tags"] for line in printed] == [["seen"], ["seen"]]
    assert [json.loads(line)["event_id"] for line in printed] == [event_id(3), event_id(9)]
    assert pipeline.files() == [event_id(3), event_id(9)] and pipeline.letters() == []
    assert left(pipeline) == {"dlq-notes": 0, "dlq-units": 0}


def test_a_sink_that_has_not_come_to_the_event_gets_it_from_the_pipeline(tmp_path: Path) -> None:
    """It was killed before it committed past the letter, or was left behind."""
    pipeline = Pipeline(tmp_path, job_of(FILE, CONSOLE, processors=SCRIPT % "e.op === 't'"))
    pipeline.ran("archive", lambda n: n == 1, rows=6)  # event 5 is the processor's
    pipeline.job = job_of(FILE, CONSOLE)
    all_of_it = pipeline.positions()
    storage = pipeline.storage()

    def stand(archive: int) -> None:
        for key in all_of_it:
            storage.delete("checkpoints", key)
        at = {("archive", 0): f"{archive:016x}", ("screen", 0): f"{6:016x}"}
        Positions(storage, "shop", "db", ["archive", "screen"], 1).advance(at, {})

    stand(archive=1)
    code, out, err = pipeline.replay()
    assert code == 1 and pipeline.files() == [] and len(pipeline.letters()) == 2
    assert err == (
        "sink `archive` has not come to the event of letter 1, 2 yet: run the pipeline first, and "
        "purge what it has delivered by then\n"
    )
    assert event_id(5) in out, "the other sink has left it behind"
    assert out.endswith(
        "0 dead letters delivered and removed; 2 not tried at every sink, and stay\n"
    )
    assert event_id(5) not in pipeline.replay()[1], "and has it now"
    stand(archive=2)
    assert pipeline.replay()[0] == 1 and pipeline.files() == [event_id(1)]
    stand(archive=6)
    code, out, err = pipeline.replay()
    assert (code, out, err) == (0, "1 dead letter delivered and removed\n", "")
    assert sorted(pipeline.files()) == [event_id(1), event_id(5)] and pipeline.letters() == []
    storage.close()


def test_a_sink_that_has_got_it_does_not_get_it_again(tmp_path: Path) -> None:
    routed = "{type: file, config: {id: archive, path: ./archive, name: '${after.kind}'}}"
    pipeline = Pipeline(tmp_path, job_of(CONSOLE, routed, processors=SCRIPT % "e.op === 'd'"))
    pipeline.ran(rows=6)
    # A deleted row has no `after`, so the archive has no folder for it.
    pipeline.job = job_of(CONSOLE, routed, processors=SCRIPT % "false")
    code, out, err = pipeline.replay()
    assert code == 1 and "no destination for event" in err
    assert json.loads(out.splitlines()[0])["event_id"] == event_id(3)
    pipeline.job = job_of(CONSOLE, FILE, processors=SCRIPT % "false")
    code, out, err = pipeline.replay()
    assert (code, out, err) == (0, "1 dead letter delivered and removed\n", "")
    assert pipeline.files() == [event_id(3)] and pipeline.letters() == []


def test_letters_that_fail_again_stay_with_the_new_error_and_are_counted(tmp_path: Path) -> None:
    routed = "{type: file, config: {id: archive, path: ./archive, name: '${after.kind}'}}"
    pipeline = Pipeline(tmp_path, job_of(routed))
    pipeline.ran("archive", lambda n: n in (0, 3), rows=6)
    assert pipeline.listed()[0].split() == ["id", "when", "(UTC)", "at", "event", "error"]
    for number in (1, 2):
        code, out, _ = pipeline.replay()
        delivered = "1 dead letter" if number == 1 else "0 dead letters"
        assert code == 1
        assert out == f"{delivered} delivered and removed; 1 failed again, and stay\n"
        head, line = pipeline.listed()
        assert "replays" in head and f" {number} " in line and "no destination" in line
    assert pipeline.files() == [event_id(0)]
    out_ = io.StringIO()
    with contextlib.redirect_stdout(out_):
        Admin(pipeline.request(id=2)).letter()
        Admin(pipeline.request(ids=[2])).purge()
    letter = json.loads(out_.getvalue().partition("1 dead letter removed")[0])
    assert letter["meta"]["attempts"] == 3 and "no destination" in letter["meta"]["error_message"]
    assert "row" not in letter and letter["event"]["event_id"] == event_id(3)
    assert left(pipeline)["dlq-notes"] == 0


def copied(events: Events) -> Events:
    """Each event, and a copy of it."""
    ids = [f"{text}-copy" for text in events.event_id.to_pylist()]
    copies = events.with_columns(event_id=redelivery.pa.array(ids), synthetic="twice")
    return events.then(copies)


def test_only_the_event_of_the_letter_is_delivered_not_what_else_its_row_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE))
    monkeypatch.setattr(
        Stand, "write", _refusing(lambda text: text == f"{event_id(2)}-copy"), raising=True
    )
    pipeline.ran(process=copied)
    monkeypatch.setattr(redelivery, "process_of", lambda module, env: copied)
    assert pipeline.replay()[0] == 0
    assert pipeline.files() == [f"{event_id(2)}-copy"]


def _refusing(refuses: Callable[[str], bool]) -> Callable[..., None]:
    def write(self: Stand, messages: Messages, events: Events) -> None:
        ids = events.event_id.to_pylist()
        if bad := {row: "poison" for row, text in enumerate(ids) if refuses(text)}:
            raise Rejected(bad)

    return write


def test_what_the_pipeline_drops_now_or_does_not_make_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE))
    monkeypatch.setattr(Stand, "write", _refusing(lambda text: text.endswith("2-copy")))
    pipeline.ran(process=copied)
    code, out, err = pipeline.replay()
    assert code == 1 and "do not make this event of its row any more" in err

    other = tmp_path / "other"
    other.mkdir()
    pipeline = Pipeline(other, job_of(FILE))
    monkeypatch.setattr(Stand, "write", _refusing(lambda text: text == event_id(3)))
    pipeline.ran()
    pipeline.job = job_of(FILE, processors="[{type: filter, id: no-deletes, ops: [create]}]")
    code, out, err = pipeline.replay()
    assert (code, err) == (0, "")
    assert out == (
        "0 dead letters delivered and removed; 1 removed: the pipeline drops their events now\n"
    )
    assert pipeline.files() == [] and pipeline.letters() == []


def test_several_letters_about_one_row(tmp_path: Path) -> None:
    """The row goes through the processors once, and its events to a sink once."""

    def process(events: Events) -> Events:
        both = copied(events)
        bad = [row for row, t in enumerate(both.event_id.to_pylist()) if event_id(2) in t]
        for row in bad:
            both.ledger.dead.append(DeadLetter(both.slice(row, row + 1), "twice", "oops"))
        return both.where(redelivery.pa.array([row not in bad for row in range(len(both))]))

    pipeline = Pipeline(tmp_path, job_of(FILE))
    pipeline.ran(process=process)
    assert len(pipeline.letters()) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redelivery, "process_of", lambda module, env: copied)
        assert pipeline.replay()[:2] == (0, "2 dead letters delivered and removed\n")
    assert pipeline.files() == [event_id(2), f"{event_id(2)}-copy"]


def test_letters_without_their_row_or_their_sink_stay_and_say_why(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE))
    pipeline.ran("archive", lambda n: n == 1, journal=Journal(max_event_bytes=100))
    code, out, err = pipeline.replay()
    assert code == 1 and "larger than `journal.max_event_bytes`" in err
    assert out == "0 dead letters delivered and removed; 1 failed again, and stay\n"
    storage = pipeline.storage()
    storage.remove("dlq", "shop", pipeline.letters())
    storage.close()
    pipeline.ran("archive", lambda n: n == 2)
    pipeline.job = job_of(CONSOLE)
    code, _, err = pipeline.replay()
    assert code == 1 and "the pipeline has no sink `archive` any more" in err


def test_which_letters(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE, CONSOLE, processors=SCRIPT % "e.op === 't'"))
    pipeline.ran("archive", lambda n: n == 1, rows=6)
    pipeline.job = job_of(FILE, CONSOLE)
    with pytest.raises(Exception, match="there is no dead letter 7, 99"):
        pipeline.replay(ids=[7, 99, 1])
    assert pipeline.replay(sink="risky", dry_run=True)[1].endswith(
        "1 dead letter would be delivered and removed\n"
    )
    assert pipeline.replay(sink="archive")[1] == "1 dead letter delivered and removed\n"
    assert pipeline.files() == [event_id(1)] and len(pipeline.letters()) == 1


# --- who may -------------------------------------------------------------------------------------


def test_a_dry_run_prints_what_each_sink_would_get_and_changes_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE, CONSOLE))
    pipeline.ran("archive", lambda n: n in (1, 4))
    storage = pipeline.storage()
    lease = Lease(storage, "shop", lambda: None)
    lease.acquire()  # a running pipeline does not mind
    code, out, err = pipeline.replay(dry_run=True)
    lease.release()
    storage.close()
    first, second, summary = out.splitlines()
    assert (code, err) == (0, "")
    assert summary == "2 dead letters would be delivered and removed"
    assert json.loads(first)["sink"] == "archive" and json.loads(first)["to"] == "orders"
    assert json.loads(second)["value"]["event_id"] == event_id(4)
    assert len(pipeline.letters()) == 2 and not (tmp_path / "archive").exists()
    assert left(pipeline) == {"dlq-notes": 0, "dlq-units": 0}


def test_a_running_pipeline_is_not_written_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE))
    pipeline.ran("archive", lambda n: n == 1)
    storage = pipeline.storage()
    lease = Lease(storage, "shop", lambda: None, ttl_secs=1.0)
    lease.acquire()
    with pytest.raises(Exception, match=r"has a runner already: .*stop it first"):
        pipeline.replay()
    lease.release()
    storage.close()
    assert len(pipeline.letters()) == 1
    assert pipeline.replay()[0] == 0


def test_a_replay_that_was_taken_over_stops(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE))
    pipeline.ran("archive", lambda n: n == 1)
    storage = pipeline.storage()
    lease = Lease(storage, "shop", lambda: None)
    lease.acquire()
    storage.swap("leases", "shop", 1, b'{"token": "another"}')
    keeper = redelivery.Keeper(storage, "shop", lease.guard)
    with pytest.raises(Exception, match="taken the pipeline `shop` over"):
        keeper.begin("archive", "m", [])
    lease.held = False
    lease.release()
    storage.close()


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(f"""\
metadata: {{name: shop, tenant: acme}}
spec:
  source: {{type: turso, config: {{id: db, url: ./shop.db, tables: [orders]}}}}
  storage: {{path: state.db}}
  journal: {{enabled: true}}
  sinks: [{CONSOLE}]
""")
    pipeline = Pipeline(tmp_path, job_of(CONSOLE))
    pipeline.ran("screen", lambda n: n in (1, 4))

    def dfc(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "dfc.compiler.cli", "dlq", "replay", "shop.yaml", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    assert dfc() == (2, "", "dfc: which letters? --id N, --sink ID or --all\n")
    assert dfc("--all", "--id", "1")[0] == 2
    assert dfc("--id", "77") == (1, "", "dfc: there is no dead letter 77\n")
    code, out, err = dfc("--id", "1", "--id", "2")
    *printed, summary = out.splitlines()
    assert (code, err, summary) == (0, "", "2 dead letters delivered and removed")
    assert [json.loads(line)["event_id"] for line in printed] == [event_id(1), event_id(4)]


# --- real servers --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    for connection, _ in nats_sink._KEPT.values():
        connection.close()
    nats_sink._KEPT.clear()


class Place:
    """Where a sink delivers to, and what is there: event ids in order."""

    def __init__(self, spec: str, found: Callable[[], list[str]]) -> None:
        self.spec, self.found = spec, found


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return PLACES[request.param](request, tmp_path)


def _kafka(request: pytest.FixtureRequest, folder: Path) -> Place:
    server: Kafka = request.getfixturevalue("kafka_server")
    topic = f"letters-{folder.name}"
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    return Place(
        f"{{type: kafka, config: {{id: {topic}, brokers: '{server.address}', topic: {topic}, "
        "exactly_once: true}}",
        lambda: [json.loads(m.value())["event_id"] for m in read_topic(server, topic)],
    )


def _redis(request: pytest.FixtureRequest, folder: Path) -> Place:
    server: Redis = request.getfixturevalue("redis_server")
    stream = f"letters-{folder.name}"

    def found() -> list[str]:
        with redis.Redis(port=server.port) as client:
            entries: Any = client.xrange(stream)
        return [fields[b"event_id"].decode() for _, fields in entries]

    uri = server.env()["REDIS_URI"]
    return Place(
        f"{{type: redis, config: {{id: {stream}, uri: '{uri}', stream: {stream}}}}}", found
    )


def _nats(request: pytest.FixtureRequest, folder: Path) -> Place:
    server: Nats = request.getfixturevalue("nats_server")
    url, name = server.env()["NATS_URL"], f"LETTERS-{folder.name}"
    streams = Streams(url)
    # So short that only the sink itself can tell what is there.
    streams.add(name, f"{name}.>", duplicate_window=0.1)
    return Place(
        f"{{type: nats, config: {{id: {name.lower()}, url: '{url}', subject: {name}.orders, "
        f"stream: {name}}}}}",
        lambda: [json.loads(value)["event_id"] for _, _, value in streams.messages(name)],
    )


def _file(request: pytest.FixtureRequest, folder: Path) -> Place:
    return Place(FILE, Pipeline(folder, "").files)


PLACES = {"kafka": _kafka, "redis": _redis, "nats": _nats, "file": _file}
EXACT = pytest.mark.parametrize("place", list(PLACES), indirect=True)


def prepared(folder: Path, place: Place, rows: int = ROWS) -> tuple[Pipeline, list[str]]:
    """A pipeline whose real sink has the first half of the events, but for its letters."""
    pipeline = Pipeline(folder, job_of(place.spec))
    sink = sink_of(pipeline)
    pipeline.ran(sink.id, lambda n: n % 2 == 1, rows=rows)
    put(sink, pipeline, 0, rows, f"{rows:016x}")
    return pipeline, [event_id(n) for n in range(1, rows, 2)]


def sink_of(pipeline: Pipeline) -> Sink:
    """As a new run of the job has it: a replay has fenced those before it."""
    with contextlib.chdir(pipeline.folder):
        (sink,) = pipeline.module.sinks(Env.stand_in(pipeline.module.ENV))
    return sink  # type: ignore[no-any-return]


def put(sink: Sink, pipeline: Pipeline, start: int, stop: int, at: str) -> None:
    """The even events of these, as the job itself delivers them."""
    events = fixture_events("turso", pipeline.module.COLUMNS, rows=stop)
    events = events.where(
        redelivery.pa.array([n >= start and n % 2 == 0 for n in range(len(events))])
    )
    sink.open(Lane("shop", 0, 1, at if start else ""))
    sink.write(sink.messages(events), events)
    sink.commit(at)
    sink.close()


@EXACT
def test_delivered_behind_what_is_there_and_the_position_stays(
    place: Place, tmp_path: Path
) -> None:
    pipeline, letters = prepared(tmp_path, place)
    if not place.spec.startswith("{type: file"):
        assert sorted(place.found()) == [event_id(n) for n in range(0, ROWS, 2)]
    code, out, err = pipeline.replay()
    assert (code, out, err) == (0, "6 dead letters delivered and removed\n", "")
    assert set(letters) <= set(place.found())
    sink = sink_of(pipeline)
    assert sink.open(Lane("shop", 0, 1, f"{ROWS:016x}")) == f"{ROWS:016x}"
    sink.close()
    put(sink, pipeline, ROWS, ROWS + 4, f"{ROWS + 4:016x}")
    sink.finish("shop")
    expected = sorted([*letters, *(event_id(n) for n in range(0, ROWS + 4, 2))])
    assert sorted(place.found()) == expected, "every event once"


# The replay of a program of its own, which dies at a place that is told to it.
DYING = """
import os, signal, sys
from dfc_runtime import admin, redelivery
redelivery._UNIT_LETTERS = 2
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
where, after = sys.argv[1], int(sys.argv[2])
owner, name = {
    "before the sink has it": (redelivery.Outgoing, "redeliver"),
    "before storage knows": (redelivery.Redelivery, "_settle"),
    "before the letters go": (redelivery.Keeper, "remove"),
    "before the unit ends": (redelivery.Keeper, "ended"),
}.get(where, (redelivery, "replay"))
real, count = getattr(owner, name), 0
def counting(*arguments):
    global count
    count += 1
    if count > after:
        die()
    return real(*arguments)
setattr(owner, name, counting)
sys.exit(admin.main())
"""


def dying(pipeline: Pipeline, where: str, after: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", DYING, where, str(after)],
        cwd=pipeline.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@EXACT
def test_a_replay_killed_anywhere_is_taken_up_and_nothing_comes_twice(
    place: Place, tmp_path: Path
) -> None:
    pipeline, letters = prepared(tmp_path, place)
    manifest = json.dumps(pipeline.request()).encode()
    for where in (
        "before the sink has it",
        "before storage knows",
        "before the letters go",
        "before the unit ends",
    ):
        process = dying(pipeline, where, 1 if where == "before the letters go" else 0)
        process.communicate(manifest, timeout=60)
        assert process.returncode == -signal.SIGKILL
    if place.spec.startswith("{type: nats"):
        time.sleep(0.3)  # its stream has forgotten the ids
    code, _, err = pipeline.replay()
    assert (code, err) == (0, "") and pipeline.letters() == []
    sink = sink_of(pipeline)
    sink.open(Lane("shop", 0, 1, f"{ROWS:016x}"))
    sink.close()
    sink.finish("shop")
    evens = [event_id(n) for n in range(0, ROWS, 2)]
    assert sorted(place.found()) == sorted(letters + evens)


@EXACT
def test_a_killed_replay_is_taken_up_though_the_pipeline_has_run_since(
    place: Place, tmp_path: Path
) -> None:
    pipeline, letters = prepared(tmp_path, place)
    manifest = json.dumps(pipeline.request()).encode()
    for rows in (ROWS + 4, ROWS + 8):
        process = dying(pipeline, "before storage knows", 0)
        process.communicate(manifest, timeout=60)
        assert process.returncode == -signal.SIGKILL
        time.sleep(0.3)  # the stream of NATS has forgotten the ids
        put(sink_of(pipeline), pipeline, rows - 4, rows, f"{rows:016x}")
    code, _, err = pipeline.replay()
    assert (code, err) == (0, "") and pipeline.letters() == []
    sink_of(pipeline).finish("shop")
    evens = [event_id(n) for n in range(0, ROWS + 8, 2)]
    assert sorted(place.found()) == sorted(letters + evens)


@pytest.mark.parametrize("place", ["redis", "file"], indirect=True)
def test_what_was_under_way_is_taken_up_whichever_letters_are_asked_for(
    place: Place, tmp_path: Path
) -> None:
    pipeline, letters = prepared(tmp_path, place)
    process = dying(pipeline, "before storage knows", 0)
    process.communicate(json.dumps(pipeline.request()).encode(), timeout=60)
    assert process.returncode == -signal.SIGKILL
    *others, last = pipeline.letters()[2:]
    code, out, err = pipeline.replay(ids=[last])
    assert (code, out, err) == (0, "1 dead letter delivered and removed\n", "")
    assert pipeline.letters() == others, "the two that the sink had got are done as well"
    assert pipeline.replay()[0] == 0 and pipeline.letters() == []
    sink_of(pipeline).finish("shop")
    evens = [event_id(n) for n in range(0, ROWS, 2)]
    assert sorted(place.found()) == sorted(letters + evens)
    assert left(pipeline) == {"dlq-notes": 0, "dlq-units": 0}


def test_notes_of_letters_that_are_gone_do_not_pile_up(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, job_of(FILE))
    pipeline.ran("archive", lambda n: n == 1)
    storage = pipeline.storage()
    put_notes(storage, "shop", {1: Note(1, "x"), 77: Note(3, "dropped since")})
    storage.close()
    assert pipeline.replay(dry_run=True)[0] == 0 and left(pipeline)["dlq-notes"] == 2
    assert pipeline.replay()[0] == 0 and left(pipeline)["dlq-notes"] == 0


@pytest.mark.parametrize("place", ["redis", "file"], indirect=True)
def test_kill_at_random_moments_until_the_queue_is_empty(place: Place, tmp_path: Path) -> None:
    pipeline, letters = prepared(tmp_path, place, rows=160)
    manifest = json.dumps(pipeline.request()).encode()
    chance = random.Random(4)
    kills, pause = 0, 0.03
    while len(before := pipeline.letters()) and kills < 60:
        process = dying(pipeline, "nowhere", 1 << 30)
        assert process.stdin is not None
        process.stdin.write(manifest)
        process.stdin.close()
        # Not before it has begun: then nothing would ever be under way when it dies.
        while process.poll() is None and pipeline.letters() == before:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, pause))
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert pipeline.letters() == [] and kills >= 3
    assert left(pipeline)["dlq-notes"] == 0
    sink_of(pipeline).finish("shop")
    evens = [event_id(n) for n in range(0, 160, 2)]
    assert sorted(place.found()) == sorted(letters + evens)


def test_a_sink_that_is_away_keeps_its_letters_and_the_others_get_theirs(tmp_path: Path) -> None:
    away = "{type: redis, config: {id: cache, uri: 'redis://127.0.0.1:1', stream: s}}"
    pipeline = Pipeline(tmp_path, job_of(FILE, away, processors=SCRIPT % "e.op === 't'"))
    pipeline.ran("cache", lambda n: n == 1, rows=6)
    pipeline.job = job_of(FILE, away)
    code, out, err = pipeline.replay()
    assert code == 1 and "sink `cache` cannot be reached" in err
    assert out == "0 dead letters delivered and removed; 2 not tried at every sink, and stay\n"
    assert pipeline.files() == [event_id(5)] and len(pipeline.letters()) == 2
    assert "replays" not in pipeline.listed()[0], "nobody has refused them"
    assert pipeline.replay()[0] == 1 and pipeline.files() == [event_id(5)]


def test_one_letter_that_a_sink_cannot_take_does_not_hold_the_others_back(
    redis_server: Redis, tmp_path: Path
) -> None:
    uri = redis_server.env()["REDIS_URI"]
    with redis.Redis(port=redis_server.port) as client:
        client.set("letters:gone", "no stream")
        spec = f"{{type: redis, config: {{id: cache, uri: '{uri}', stream: 'letters:${{before.kind}}'}}}}"
        pipeline = Pipeline(tmp_path, job_of(spec))
        pipeline.ran("cache", lambda n: n in (1, 3), rows=6)
        code, out, err = pipeline.replay()
        assert code == 1 and "holds a string, not a stream" in err
        assert out == "1 dead letter delivered and removed; 1 failed again, and stay\n"
        assert len(client.xrange("letters:new")) == 1  # type: ignore[arg-type]
        client.delete("letters:gone")
        assert pipeline.replay()[0] == 0
        assert len(client.xrange("letters:gone")) == 1  # type: ignore[arg-type]
