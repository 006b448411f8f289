"""`dfc checkpoint reset` and `set`: sinks that keep their position by themselves are moved, too."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from dfc_runtime.admin import Admin
from dfc_runtime.errors import DfcError, TakenOver
from dfc_runtime.lease import Lease
from dfc_runtime.positions import Positions
from dfc_runtime.sinks import Lane

from .fixtures import fixture_events
from .nats_streams import Streams
from .services import Nats
from .test_dlq_replay import CONSOLE, EXACT, FILE, Pipeline, Place, event_id, job_of, put, sink_of
from .test_dlq_replay import place as place  # a fixture

EVENTS = 8
SERVERS = pytest.mark.parametrize("place", ["kafka", "redis", "nats"], indirect=True)


def at(number: int) -> str:
    return f"{number:016x}"


def move(pipeline: Pipeline, position: str = "", **asked: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(pipeline.folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        admin = Admin(pipeline.request(position=position, **asked))
        try:
            code = admin.set() if position else admin.reset()
        finally:
            admin.storage.close()
    return code, out.getvalue(), err.getvalue()


def opened(pipeline: Pipeline, lane: int = 0, lanes: int = 1, known: str = "") -> str:
    """Where a lane of its only sink stands by itself."""
    sink = sink_of(pipeline)
    try:
        return sink.open(Lane("shop", lane, lanes, known))
    finally:
        sink.close()


def delivered(folder: Path, place: Place) -> Pipeline:
    """A pipeline whose sink has the even ones of these events, and stands behind them."""
    pipeline = Pipeline(folder, job_of(place.spec))
    sink = sink_of(pipeline)
    put(sink, pipeline, 0, EVENTS, at(EVENTS))
    storage = pipeline.storage()
    Positions(storage, "shop", "db", [sink.id], 1).advance({(sink.id, 0): at(EVENTS)}, {})
    storage.close()
    return pipeline


@SERVERS
def test_after_a_reset_every_event_comes_again_and_once(place: Place, tmp_path: Path) -> None:
    pipeline = delivered(tmp_path, place)
    evens = [event_id(n) for n in range(0, EVENTS, 2)]
    for times in (2, 3):
        code, out, err = move(pipeline)
        assert (code, err) == (0, "") and out.endswith(": starts from the beginning\n")
        assert pipeline.positions() == {} and opened(pipeline) == ""
        put(sink_of(pipeline), pipeline, 0, EVENTS, at(EVENTS))
        assert sorted(place.found()) == sorted(evens * times)
        assert opened(pipeline) == at(EVENTS)


@SERVERS
def test_all_lanes_of_a_sink_are_moved_whatever_their_number(place: Place, tmp_path: Path) -> None:
    pipeline = delivered(tmp_path, place)
    pipeline.lanes = 2  # and it ran with one
    assert move(pipeline, at(3))[0] == 0
    assert set(pipeline.positions()) == {
        f"shop/db::sink::{sink_of(pipeline).id}::{n}" for n in (0, 1)
    }
    assert [opened(pipeline, lane, 2, at(3)) for lane in (0, 1)] == [at(3)] * 2
    assert move(pipeline)[0] == 0
    assert [opened(pipeline, lane, 2) for lane in (1, 0)] == [""] * 2


@SERVERS
def test_a_writer_from_before_the_move_gets_nothing_in(place: Place, tmp_path: Path) -> None:
    pipeline = delivered(tmp_path, place)
    before = place.found()
    old = sink_of(pipeline)
    rows = fixture_events("turso", pipeline.module.COLUMNS, rows=EVENTS + 2)
    events = rows.slice(EVENTS, EVENTS + 2)
    old.open(Lane("shop", 0, 1, at(EVENTS)))
    assert move(pipeline)[0] == 0
    with pytest.raises(DfcError):
        old.write(old.messages(events), events)
        old.commit(at(EVENTS + 2))
    old.abort()
    assert opened(pipeline) == ""
    if "nats" not in place.spec:  # whose record is looked at when the messages are there
        assert place.found() == before


@EXACT
def test_forward_every_sink_is_moved(place: Place, tmp_path: Path) -> None:
    pipeline = delivered(tmp_path, place)
    assert move(pipeline, at(20))[0] == 0
    storage = pipeline.storage()
    known = Positions(storage, "shop", "db", [sink_of(pipeline).id], 1).start
    storage.close()
    assert max(opened(pipeline), known) == at(20)


def test_a_folder_is_moved_back_by_moving_it_away(tmp_path: Path) -> None:
    place = Place(FILE, list)
    pipeline = delivered(tmp_path, place)
    pipeline.job = job_of(FILE, CONSOLE)
    before = pipeline.positions()
    code, out, err = move(pipeline)
    assert code == 1 and out == "screen: starts from the beginning\n"
    archive = tmp_path / "archive"
    assert f"holds events up to {at(EVENTS)}" in err and f"mv {archive} {archive}.old" in err
    assert pipeline.positions() == before, "the others are moved all the same"
    archive.rename(tmp_path / "archive.old")
    assert move(pipeline)[0] == 0 and pipeline.positions() == {}
    pipeline.job = job_of(FILE)
    assert opened(pipeline) == ""


def test_events_that_nats_still_remembers_come_again_too(nats_server: Nats, tmp_path: Path) -> None:
    """Its duplicate window would drop them without a word."""
    url, name = nats_server.env()["NATS_URL"], "MOVED-remembered"
    streams = Streams(url)
    streams.add(name, f"{name}.>")
    spec = f"{{type: nats, config: {{id: bus, url: '{url}', subject: {name}.a, stream: {name}}}}}"
    pipeline = delivered(tmp_path, Place(spec, list))
    assert move(pipeline)[0] == 0
    put(sink_of(pipeline), pipeline, 0, EVENTS, at(EVENTS))
    ids = [headers["Nats-Msg-Id"].partition("|") for _, headers, _ in streams.messages(name)]
    half = EVENTS // 2
    assert [owner for owner, _, _ in ids] == ["shop/bus"] * half + ["shop/bus/1"] * half
    assert [key for _, _, key in ids[:half]] == [key for _, _, key in ids[half:]]
    streams.delete(name)


def test_whoever_lost_the_lease_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, job_of(CONSOLE))
    pipeline.ran()
    before = pipeline.positions()
    monkeypatch.setattr(Lease, "guard", ("leases", "shop", "another's"))
    with pytest.raises(TakenOver):
        move(pipeline, at(3))
    assert pipeline.positions() == before


def test_a_sink_that_is_away_stays_and_says_why(tmp_path: Path) -> None:
    away = "{type: redis, config: {id: cache, uri: 'redis://127.0.0.1:1', stream: s}}"
    pipeline = Pipeline(tmp_path, job_of(CONSOLE, away))
    pipeline.ran()
    code, out, err = move(pipeline, at(3))
    assert (code, out) == (1, f"screen: {at(3)}\n")
    assert err.startswith("dfc: sink `cache` stays: redis at ") and len(err.splitlines()) == 1
