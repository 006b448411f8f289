"""Delivery and settling on a real local Spark, with a source of numbered rows."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dfc_runtime import ACKS, Batch, CommitPolicy, Env, Events, Job, Messages, Storage, watch
from dfc_runtime.columns import join, native
from dfc_runtime.errors import SinkError
from dfc_runtime.processors import field
from dfc_runtime.sinks import ConsoleSink, FileSink, Sink
from dfc_runtime.storage import SqliteStorage
from pyspark import cloudpickle

from .jobs import tiny_source
from .jobs.tiny_source import Tiny, TinySource

# Workers cannot import the tests, so their code travels with the job.
cloudpickle.register_pickle_by_value(tiny_source)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

END = f"{300:016x}"


class Flaky(FileSink):
    """Fails so many times, as a file says, at units that end behind a position."""

    def __init__(self, *arguments: Any, trouble: str, behind: int = 0, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.trouble = trouble
        self.behind = behind

    @property
    def secrets(self) -> tuple[str, ...]:
        return ("hunter2",)

    def commit(self, position: str) -> None:
        left = int(Path(self.trouble).read_text())
        if left and int(position, 16) > self.behind:
            Path(self.trouble).write_text(str(left - 1))
            raise SinkError("nobody answers at user:hunter2@broker")
        super().commit(position)


def unchanged(events: Events) -> Events:
    return events


def to_files(e: Events) -> Messages:
    return Messages(to=join("rows/", e.source.table), key=e.primary_key, value=native(e))


def to_screen(e: Events) -> Messages:
    return Messages(to="screen", key=e.primary_key, value=e.after)


class Run:
    """Runs jobs over the tiny source, one after the other, in the same folders."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.trouble = folder / "trouble"
        self.trouble.write_text("0")

    def __call__(
        self,
        sinks: Sequence[Sink],
        policy: CommitPolicy,
        *,
        source: TinySource | None = None,
        process: Callable[[Events], Events] = unchanged,
        arguments: Sequence[str] = ("--once",),
        lanes: int = 1,
        started: Callable[[Job], None] | None = None,
    ) -> Job:
        job = Job(
            "p",
            tenant="acme",
            sinks=lambda env: tuple(sinks),
            storage=Storage(path=str(self.folder / "state.db")),
            batch=Batch(max_events=20),
            lanes=lanes,
            argv=list(arguments),
        )
        spark = job.session()
        spark.dataSource.register(Tiny)
        options = job.options(source or TinySource(rows=300, epoch=120))
        events = spark.readStream.format("dfc_tiny").options(**options).load()
        acks = events.mapInArrow(job.deliver(process), ACKS)
        if started is not None:
            started(job)
        job.run(acks.writeStream.foreachBatch(job.settle(policy)))
        return job

    def files(self, name: str, **settings: Any) -> FileSink:
        return FileSink(name, to_files, path=str(self.folder / name), **settings)

    def flaky(self, name: str, times: int, behind: int = 0, **settings: Any) -> Flaky:
        self.trouble.write_text(str(times))
        return Flaky(
            name,
            to_files,
            path=str(self.folder / name),
            trouble=str(self.trouble),
            behind=behind,
            **settings,
        )

    def delivered(self, name: str) -> list[int]:
        """Row numbers in the order of the files."""
        return [
            json.loads(line)["after"]["id"]
            for path in sorted((self.folder / name).rglob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]

    def stored(self) -> dict[str, Any]:
        storage = SqliteStorage(self.folder / "state.db")
        try:
            return {k: json.loads(v) for k, v in storage.items("checkpoints").items()}
        finally:
            storage.close()


@pytest.fixture
def run(spark: Any, tmp_path: Path) -> Run:
    return Run(spark, tmp_path)


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(x) for x in capsys.readouterr().err.splitlines() if x.startswith("{")]


ALL = list(range(1, 301))


@contextmanager
def stopped_when(done: Callable[[Job], bool]) -> Iterator[Callable[[Job], None]]:
    """Gives a function that has a job watched, and stopped when there is nothing to wait for."""
    helpers: list[threading.Thread] = []

    def watched(job: Job) -> None:
        end = time.monotonic() + 120
        while not done(job) and time.monotonic() < end:
            time.sleep(0.1)
        job.stop()

    def go(job: Job) -> None:
        helpers.append(threading.Thread(target=watched, args=(job,)))
        helpers[0].start()

    yield go
    helpers[0].join()


def test_every_event_once_and_positions_are_kept(run: Run) -> None:
    sinks = [run.files("one"), run.files("two")]
    job = run(sinks, CommitPolicy.all("one", "two"))
    assert run.delivered("one") == run.delivered("two") == ALL
    assert job.progress.events == 300
    stored = run.stored()
    assert set(stored) == {"p/tiny::sink::one::0", "p/tiny::sink::two::0"}
    assert stored["p/tiny::sink::one::0"]["position"] == END
    assert stored["p/tiny::sink::one::0"]["events"] == 300
    again = run([*sinks, run.files("new")], CommitPolicy.all("one", "two", "new"))
    assert again.progress.events == 300, "a new sink gets all there is"
    assert run.delivered("one") == run.delivered("new") == ALL


def test_lost_storage_repeats_nothing_in_the_file_sink(run: Run) -> None:
    run([run.files("one")], CommitPolicy.all("one"))
    (run.folder / "state.db").unlink()
    run([run.files("one")], CommitPolicy.all("one"))
    assert run.delivered("one") == ALL
    assert run.stored()["p/tiny::sink::one::0"]["position"] == END


def test_optional_sink_that_fails_holds_nobody_up_and_catches_up(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks = [run.files("one"), run.flaky("two", 1, behind=150, required=False)]
    run(sinks, CommitPolicy.required("one"))
    assert run.delivered("one") == ALL
    behind = run.delivered("two")
    assert behind == ALL[: len(behind)] and 120 <= len(behind) <= 150
    (left,) = [line for line in logged(capsys) if line["event"] == "sink left behind"]
    assert left["sink"] == "two" and "nobody answers" in left["reason"]
    assert "hunter2" not in left["reason"]
    assert run.stored()["p/tiny::sink::two::0"]["position"] == f"{len(behind):016x}"
    run(sinks, CommitPolicy.required("one"))
    assert run.delivered("two") == run.delivered("one") == ALL


def test_optional_sink_catches_up_while_the_job_runs(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "_FIRST_RETRY_SECS", 0.5)
    sinks = [run.files("one"), run.flaky("two", 2, behind=150, required=False)]
    with stopped_when(lambda job: job._positions is not None and job._positions.start == END) as go:
        run(sinks, CommitPolicy.required("one"), arguments=[], started=go)
    assert run.delivered("one") == run.delivered("two") == ALL
    news = [line["event"] for line in logged(capsys)]
    assert news.count("sink left behind") == news.count("going back for sinks left behind") == 2


def test_idle_source_lets_old_files_roll(run: Run) -> None:
    sink = run.files("one", roll_max_age_secs=1)
    with stopped_when(lambda job: run.delivered("one") == ALL) as go:
        run([sink], CommitPolicy.all("one"), arguments=[], started=go)
    assert run.delivered("one") == ALL


def test_required_sink_that_fails_is_tried_until_it_works(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = ConsoleSink("screen", to_screen, required=False)
    sinks = [run.files("one"), run.flaky("two", 3, behind=150), screen]
    run(sinks, CommitPolicy.required("one", "two"))
    assert run.delivered("one") == run.delivered("two") == ALL
    captured = capsys.readouterr()
    news = [json.loads(x)["event"] for x in captured.err.splitlines() if x.startswith("{")]
    assert news.count("blocked") == 1 and news.count("unblocked") == 1
    assert captured.out.splitlines() == [
        f'screen  {{"id":{i}}}  {{"id":{i},"name":"row {i}"}}' for i in ALL
    ]


def test_quorum_goes_on_without_one(run: Run) -> None:
    sinks = [run.files("one"), run.files("two"), run.flaky("three", 99)]
    run(sinks, CommitPolicy.quorum(2, "one", "two", "three"))
    assert run.delivered("one") == run.delivered("two") == ALL
    assert run.delivered("three") == []


def test_lanes(run: Run) -> None:
    run([run.files("one")], CommitPolicy.all("one"), lanes=2)
    assert sorted(run.delivered("one")) == ALL
    stored = run.stored()
    assert {entry["position"] for entry in stored.values()} == {END}
    assert {entry["lanes"] for entry in stored.values()} == {2} and len(stored) == 2
    run([run.files("one")], CommitPolicy.all("one"), source=TinySource(rows=330), lanes=3)
    assert sorted(run.delivered("one")) == list(range(1, 331))


def drop_all(events: Events) -> Events:
    return events.where(field(events, "id").lt(0))


def test_events_that_all_go_still_move_the_position(run: Run) -> None:
    run([run.files("one")], CommitPolicy.all("one"), process=drop_all)
    assert run.delivered("one") == []
    assert run.stored()["p/tiny::sink::one::0"]["position"] == END


def odd_only(events: Events) -> Events:
    return events.where(field(events, "name").regex("[13579]$"))


def test_processors_run_once_for_all_sinks(run: Run) -> None:
    run([run.files("one"), run.files("two")], CommitPolicy.all("one", "two"), process=odd_only)
    assert run.delivered("one") == run.delivered("two") == ALL[::2]


def broken(events: Events) -> Events:
    raise ValueError("no such field: price")


def test_processor_that_fails_stops_the_job_with_one_line(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run([run.files("one")], CommitPolicy.all("one"), process=broken)
    assert caught.value.code == 1
    errors = [line for line in logged(capsys) if line["level"] == "error"]
    assert [e["reason"] for e in errors] == ["a processor failed: ValueError: no such field: price"]


def test_source_that_fails_stops_the_job_with_one_line(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        source = TinySource(rows=300, epoch=120, fail_at=200)
        run([run.files("one")], CommitPolicy.all("one"), source=source)
    assert caught.value.code == 1
    errors = [line["reason"] for line in logged(capsys) if line["level"] == "error"]
    assert errors == ["RuntimeError: the log is gone"]
    run([run.files("one")], CommitPolicy.all("one"))
    assert run.delivered("one") == ALL


def nowhere(e: Events) -> Messages:
    return Messages(to=join("x/", e.after["none"]), value=native(e))


def test_event_without_destination_is_an_error_of_that_sink(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = FileSink("lost", nowhere, path=str(run.folder / "lost"), required=False)
    run([run.files("one"), lost], CommitPolicy.required("one"))
    assert run.delivered("one") == ALL
    (left,) = [line for line in logged(capsys) if line["event"] == "sink left behind"]
    assert f"dfid:v1:tsrow:{1:032x}" in left["reason"] and "`lost`" in left["reason"]


def test_dry_run_shows_all_and_leaves_no_trace(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run([run.files("one")], CommitPolicy.all("one"), arguments=["--once", "--dry-run"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["value"]["after"]["id"] for line in lines] == ALL
    first = lines[0]
    assert list(first) == ["sink", "to", "key", "headers", "value"]
    assert (first["sink"], first["to"], first["key"]) == ("one", "rows/t0", '{"id":1}')
    assert not (run.folder / "one").exists() and not (run.folder / "state.db").exists()


def test_environment_is_checked_before_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sinks(env: Env) -> tuple[Sink, ...]:
        raise AssertionError("never asked")

    with pytest.raises(SystemExit) as caught:
        Job("p", sinks=sinks, env=("DFC_NO_A", "DFC_NO_B"), argv=[])
    assert caught.value.code == 2
    assert "DFC_NO_A, DFC_NO_B" in capsys.readouterr().err
