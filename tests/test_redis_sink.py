"""The Redis sink against a real server: what is in the streams, and that it is there once."""

from __future__ import annotations

import contextlib
import json
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from dfc_runtime.batch import Batch
from dfc_runtime.columns import idempotency_key, native
from dfc_runtime.deliver import Delivery
from dfc_runtime.errors import Barred, ConfigError, Rejected, SinkError
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import Lane, RedisSink, redis_entries
from dfc_runtime.sinks import redis as sink_module
from dfc_runtime.sinks.redis_address import parse
from dfc_runtime.sinks.redis_wire import Refused, Wire
from hypothesis import given
from hypothesis import strategies as st

from .jobs.tiny_source import events
from .services import Redis
from .services.certificates import Certificates
from .services.fixtures import Services
from .services.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
LANE = Lane("p")
Entry = dict[bytes, bytes]


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis.Redis(port=redis_server.port) as made:
        made.flushall()
        made.config_resetstat()
        yield made


@pytest.fixture(scope="module")
def fragile(services: Services) -> Redis:
    """A server to stop and freeze."""
    return services.start(Redis)


def make(server: Redis, **settings: Any) -> RedisSink:
    settings.setdefault("uri", server.env()["REDIS_URI"])
    return RedisSink("cache", lambda e: Messages(to="s", value=native(e)), **settings)


def unit(first: int, last: int, to: Any = "s", **parts: Any) -> tuple[Messages, Events]:
    """Events first to last, with the number as the value."""
    numbers = range(first, last + 1)
    column = pa.array([to(i) for i in numbers], pa.string()) if callable(to) else to
    value = pa.array([str(i) for i in numbers], pa.string())
    happened = Events(events(first - 1, last), pipeline="p", tenant="acme")
    return Messages(to=column, value=parts.pop("value", value), **parts), happened


def at(number: int) -> str:
    return f"{number:016x}"


def numbers(client: Any, stream: str = "s") -> list[int]:
    return [int(fields[b"df-event"]) for _, fields in client.xrange(stream)]


def put(sink: RedisSink, first: int, last: int, to: Any = "s") -> None:
    sink.write(*unit(first, last, to))
    sink.commit(at(last))


# --- entries ------------------------------------------------------------------------------------


def test_an_entry_byte_for_byte(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    sink.write(*unit(7, 7, "orders", key="k", headers='{"a":"b"}', value='{"id":7}'))
    sink.commit(at(7))
    sink.close()
    ((_, fields),) = client.xrange("orders")
    event_id = f"dfid:v1:tsrow:{7:032x}".encode()
    assert list(fields.items()) == [
        (b"event_id", event_id),
        (b"idempotency_key", b"acme|main.t0|2|" + event_id),
        (b"df-event", b'{"id":7}'),
        (b"df-key", b"k"),
        (b"df-headers", b'{"a":"b"}'),
    ]


def test_keys_and_headers_are_there_where_an_event_has_them(
    redis_server: Redis, client: Any
) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    keys = pa.array(["k1", "", None, "k4", None], pa.string())
    headers = pa.array(['{"h":"1"}', None, '{"h":"3"}', "{}", None], pa.string())
    sink.write(*unit(1, 5, key=keys, headers=headers))
    sink.write(*unit(6, 6, key="", headers=None))
    sink.write(*unit(7, 8, key="k", headers=pa.array([None, None], pa.string())))
    sink.commit(at(8))
    sink.close()
    found = [(f.get(b"df-key"), f.get(b"df-headers")) for _, f in client.xrange("s")]
    assert found == [
        (b"k1", b'{"h":"1"}'),
        (None, None),
        (None, b'{"h":"3"}'),
        (b"k4", None),
        (None, None),
        (None, None),
        (b"k", None),
        (b"k", None),
    ]


TEXTS = ["ünïcode ✓ 🦀", "nul\0byte", "line\r\nend\n-ERR no\r\n$5\r\n", "", "x" * 70_000, '"\\']


@pytest.mark.parametrize("maxlen", [None, 100])
def test_any_text_arrives_as_it_is(redis_server: Redis, client: Any, maxlen: int | None) -> None:
    sink = make(redis_server, maxlen=maxlen)
    sink.open(LANE)
    count = len(TEXTS)
    streams = pa.array([text[:50] or "empty" for text in TEXTS])
    column = pa.array(TEXTS)
    sink.write(*unit(1, count, streams, value=column, key=column, headers=column))
    sink.write(*unit(count + 1, count + 1, TEXTS[0], value=TEXTS[1], key=TEXTS[2]))
    sink.write(*unit(count + 2, count + 2, "null", value=pa.array([None], pa.string())))
    sink.commit(at(count + 2))
    for text in TEXTS:
        _, fields = client.xrange(text[:50] or "empty")[0]
        assert fields[b"df-event"].decode() == text
        assert fields.get(b"df-key", b"").decode() == text
        assert fields.get(b"df-headers", b"").decode() == (text if len(text) > 2 else "")
    assert client.xrange(TEXTS[0][:50])[1][1][b"df-key"].decode() == TEXTS[2]
    assert client.xrange("null")[0][1][b"df-event"] == b"null"
    sink.close()


def test_streams_keep_the_order_of_the_log(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    sink.write(*unit(1, 5, lambda i: f"s:{i % 3}"))
    sink.write(*unit(6, 9, lambda i: f"s:{i % 3}"))
    sink.commit(at(9))
    put(sink, 10, 12, lambda i: f"s:{i % 3}")
    sink.close()
    assert [numbers(client, f"s:{n}") for n in range(3)] == [
        [3, 6, 9, 12],
        [1, 4, 7, 10],
        [2, 5, 8, 11],
    ]


def test_maxlen_trims_by_and_by(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server, maxlen=200)
    sink.open(LANE)
    for first in range(1, 3001, 500):
        put(sink, first, first + 499)
    sink.close()
    there = numbers(client)
    assert 200 <= len(there) < 500 and there[-1] == 3000


def test_a_compiled_job_carries_what_the_sink_needs(redis_server: Redis, client: Any) -> None:
    """Through the delivering pass, with no other columns than the compiler asks for."""
    job = runpy.run_path(str(ROOT / "golden" / "rules" / "redis-settings" / "job.py"))
    (sink,) = job["sinks"]({})
    sink.uri = redis_server.env()["REDIS_URI"]
    delivery = Delivery("shop", "acme", 1, job["process"], (sink,), Batch(max_events=6))
    rows = [batch.select(job["COLUMNS"].split()) for batch in (events(0, 9), events(9, 18))]
    for _ in range(2):  # the second time all of it is behind the sink's position
        (acks,) = delivery.run(iter(rows), 0, {})
        ack = acks.to_pylist()[0]
        assert (ack["error"], ack["position"]) == (None, at(18))
    found = [fields for _, fields in client.xrange("orders:c")]
    assert [fields[b"df-key"] for fields in found] == [b"%d" % i for i in range(1, 19)]
    for fields in found:
        value = json.loads(fields[b"df-event"])
        assert value["event_id"].encode() == fields[b"event_id"]
        transaction = value["transaction"]["id"]
        assert fields[b"idempotency_key"].decode() == (
            f"acme|main.t0|{transaction}|{value['event_id']}"
        )


# --- the protocol -------------------------------------------------------------------------------

SOME = st.one_of(
    st.none(), st.text(max_size=12), st.sampled_from(["{}", '{"a":"b"}', "\r\n-ERR\r\n"])
)


@given(
    rows=st.lists(st.tuples(st.text(min_size=1, max_size=9), SOME, SOME, SOME), min_size=1),
    maxlen=st.one_of(st.none(), st.integers(1, 10**6)),
    alike=st.booleans(),
)
def test_commands_are_those_of_redis_py(
    rows: list[tuple[str, str | None, str | None, str | None]], maxlen: int | None, alike: bool
) -> None:
    if alike:
        rows = rows[:1] * len(rows)
    to, key, headers, value = zip(*rows, strict=True)

    def part(texts: tuple[str | None, ...]) -> Any:
        return texts[0] if alike else pa.array(texts, pa.string())

    messages = Messages(to=part(to), key=part(key), headers=part(headers), value=part(value))
    happened = Events(events(0, len(rows)), pipeline="p", tenant="acme")
    made = b"".join(redis_entries.entries(messages, happened, maxlen))
    packer = redis.Redis().connection_pool.make_connection()
    expected = b""
    keys = idempotency_key(happened).to_pylist()
    for i in range(len(rows)):
        trim = [] if maxlen is None else ["MAXLEN", "~", maxlen]
        words = ["XADD", to[i], *trim, "*", "event_id", f"dfid:v1:tsrow:{i + 1:032x}"]
        given_value = value[i]
        words += ["idempotency_key", keys[i]]
        words += ["df-event", "null" if given_value is None else given_value]
        words += ["df-key", key[i]] if key[i] else []
        words += ["df-headers", headers[i]] if len((headers[i] or "").encode()) > 2 else []
        expected += b"".join(packer.pack_command(*words))
    assert made == expected


class Spoon:
    """A socket that gives a few bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self._sock = self
        self._data, self._size = data, size

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def recv(self, _: int) -> bytes:
        piece, self._data = self._data[: self._size], self._data[self._size :]
        return piece


@pytest.mark.parametrize("size", [1, 2, 3, 7, 9, 10, 64, 1 << 20])
def test_replies_are_read_however_they_are_cut(size: int) -> None:
    ids = [f"$15\r\n170000000000{i:01d}-{i % 10}\r\n".encode() for i in range(8)]
    wrong, rest = b"-WRONGTYPE no\r\n", b"+OK\r\n$2\r\n-x\r\n*2\r\n$-1\r\n:3\r\n"

    def hear(queued: bytes, answer: bytes) -> Any:
        wire = Wire(Spoon(queued + answer + rest, size), None, 1)
        wire.until(5)
        refused = wire.queued(9)
        if refused is not None:
            return str(refused)
        done = wire.executed(8)
        assert [wire.reply() for _ in range(3)] == [b"OK", b"-x", [None, 3]]
        return done if isinstance(done, bool) else str(done)

    fine = b"+QUEUED\r\n" * 9
    assert hear(fine, b"*9\r\n" + b"".join(ids) + b":2\r\n") is True
    assert hear(fine, b"*-1\r\n") is False
    assert hear(fine, b"*9\r\n" + b"".join(ids) + b"-ERR last\r\n") == "ERR last"
    for count in (1, 4, 8):
        for place in (0, 8 - count):
            mixed = [*ids[:place], *[wrong] * count, *ids[place + count :]]
            assert hear(fine, b"*9\r\n" + b"".join(mixed) + b":2\r\n") == "WRONGTYPE no"
    for place in (0, 5, 8):
        replies = [b"+QUEUED\r\n"] * 9
        replies[place] = b"-OOM\r\n"
        assert hear(b"".join(replies), b"-EXECABORT\r\n") == "OOM"
    with pytest.raises(Refused, match="EXECABORT"):
        hear(fine, b"-EXECABORT\r\n")
    for other in (b"*3\r\n", b"HTTP/1.1 400 Bad Request\r\n"):
        with pytest.raises(ConnectionError, match="not the"):
            hear(fine, other)
    with pytest.raises(ConnectionError, match="closed"):
        wire = Wire(Spoon(fine, size), None, 1)
        wire.until(5)
        wire.queued(10)


# --- the position -------------------------------------------------------------------------------


def test_reopening_goes_on_behind_what_was_committed(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server)
    assert sink.open(LANE) == ""
    put(sink, 1, 3)
    put(sink, 4, 5)
    sink.close()
    assert sink.open(LANE) == at(5)
    put(sink, 6, 6)
    sink.close()
    assert make(redis_server).open(LANE) == at(6)
    assert numbers(client) == [1, 2, 3, 4, 5, 6]
    assert client.hget("dfc:position:p/cache/0", "position") == at(6).encode()


def test_entries_and_position_are_one_transaction(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    with client.monitor() as monitor:
        put(sink, 1, 2)
        seen = []
        while not seen or seen[-1] != "EXEC":
            seen.append(monitor.next_command()["command"].split()[0].upper())
    sink.close()
    assert seen[seen.index("MULTI") :] == ["MULTI", "XADD", "XADD", "HSET", "EXEC"]


def test_a_unit_without_events_is_not_a_transaction(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    sink.write(*unit(1, 0))
    sink.commit(at(4))
    assert "cmdstat_exec" not in client.info("commandstats")
    put(sink, 5, 5)
    sink.close()
    assert sink.open(LANE) == at(5)
    sink.close()


@pytest.mark.parametrize("early", [1, 1 << 30])
def test_what_was_not_committed_is_not_there(
    redis_server: Redis, client: Any, monkeypatch: pytest.MonkeyPatch, early: int
) -> None:
    monkeypatch.setattr(sink_module, "EARLY_BYTES", early)
    sink = make(redis_server)
    sink.open(LANE)
    put(sink, 1, 2)
    sink.write(*unit(3, 9))
    sink.abort()
    sink.close()
    assert sink.open(LANE) == at(2)
    sink.write(*unit(3, 4))
    sink.close()
    assert sink.open(LANE) == at(2)
    put(sink, 3, 4)
    sink.close()
    assert numbers(client) == [1, 2, 3, 4]


def test_a_large_unit_goes_out_as_it_comes_and_counts_as_a_whole(
    redis_server: Redis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "EARLY_BYTES", 100)
    sink = make(redis_server)
    sink.open(LANE)
    for first in range(1, 40, 3):
        sink.write(*unit(first, first + 2, lambda i: f"s:{i // 10}"))
        assert sink._bytes == 0, "nothing is kept here"
        assert not client.exists("s:0")
    sink.commit(at(39))
    sink.close()
    assert [n for i in range(4) for n in numbers(client, f"s:{i}")] == list(range(1, 40))


def test_columns_too_large_for_arrow_are_cut(
    redis_server: Redis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_entries, "_AT_ONCE", 1000)
    sink = make(redis_server)
    sink.open(LANE)
    put(sink, 1, 50, lambda i: "s")
    sink.close()
    assert numbers(client) == list(range(1, 51))


def test_fifty_thousand_events_in_one_unit(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    put(sink, 1, 50_000)
    put(sink, 50_001, 50_003)
    sink.close()
    assert numbers(client) == list(range(1, 50_004))


def test_each_lane_has_a_position_and_does_not_disturb_the_others(
    redis_server: Redis, client: Any
) -> None:
    one, two = make(redis_server), make(redis_server)
    one.open(Lane("p", 0, 2))
    two.open(Lane("p", 1, 2))
    for i in range(1, 20, 2):
        put(one, i, i)
        put(two, i + 1, i + 1)
    one.close()
    two.close()
    assert numbers(client) == list(range(1, 21))
    assert (one.open(Lane("p", 0, 2)), two.open(Lane("p", 1, 2))) == (at(19), at(20))
    one.close()
    two.close()


def test_pipelines_and_sinks_have_positions_of_their_own(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    put(sink, 1, 3)
    assert make(redis_server).open(Lane("q")) == ""
    other = RedisSink("other", sink.messages, uri=sink.uri)
    assert other.open(LANE) == ""


# --- another number of lanes --------------------------------------------------------------------


def stand(server: Redis, *positions: int) -> None:
    """Leaves lanes that stand here, as a kill would."""
    for lane, position in enumerate(positions):
        sink = make(server)
        sink.open(Lane("p", lane, len(positions)))
        put(sink, position, position)
        sink.close()


def test_another_number_of_lanes_needs_a_common_position(redis_server: Redis, client: Any) -> None:
    stand(redis_server, 10, 5)
    for known in ("", at(5), at(9)):
        with pytest.raises(ConfigError, match="run once with 2 lanes"):
            make(redis_server).open(Lane("p", 0, 1, known))
    same = make(redis_server)
    assert same.open(Lane("p", 1, 2, at(9))) == at(5), "the old number goes on"
    sink = make(redis_server)
    assert sink.open(Lane("p", 0, 1, at(10))) == at(10), "storage has them all at the end"
    same.write(*unit(11, 11))
    with pytest.raises(SinkError, match="another writer"):
        same.commit(at(11))
    put(sink, 11, 11)
    sink.close()
    assert sink.open(Lane("p", 0, 1)) == at(11)
    sink.close()


def test_new_lanes_begin_where_the_one_stood(redis_server: Redis, client: Any) -> None:
    """Storage may be behind after a kill: a lane without a key must not begin there."""
    stand(redis_server, 10)
    one, two = make(redis_server), make(redis_server)
    assert one.open(Lane("p", 0, 2, at(5))) == at(10)
    assert two.open(Lane("p", 1, 2, at(5))) == at(10)
    put(two, 12, 12)
    two.close()
    with pytest.raises(ConfigError, match="run once with 2 lanes"):
        one.open(Lane("p", 0, 1, at(11)))
    assert one.open(Lane("p", 0, 1, at(12))) == at(12)
    # Back to two: the key of lane 1 has the right number, from an earlier time.
    assert two.open(Lane("p", 1, 2, at(5))) == at(12)
    one.close()
    two.close()


# --- two writers --------------------------------------------------------------------------------


def test_a_stale_writer_gets_nothing_in(redis_server: Redis, client: Any) -> None:
    stale, new = make(redis_server), make(redis_server)
    stale.open(LANE)
    put(stale, 1, 2)
    assert new.open(LANE) == at(2)
    stale.write(*unit(3, 4))
    put(new, 3, 5)
    with pytest.raises(SinkError, match=f"another writer has moved on from position {at(2)}"):
        stale.commit(at(4))
    assert numbers(client) == [1, 2, 3, 4, 5]
    assert stale.open(LANE) == at(5)
    put(stale, 6, 6)
    new.write(*unit(6, 6))
    with pytest.raises(SinkError, match="another writer"):
        new.commit(at(6))
    with pytest.raises(SinkError, match="not open"):
        new.write(*unit(6, 6))
        new.commit(at(6))
    stale.close()
    assert numbers(client) == [1, 2, 3, 4, 5, 6]


def test_a_writer_that_comes_right_behind_a_unit_is_noticed(
    redis_server: Redis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a transaction and the watch of the next one."""
    sink = make(redis_server)
    sink.open(LANE)
    place = sink._place
    assert place is not None
    look = place.look
    intruder = ("HSET", "dfc:position:p/cache/0", "position", at(9))
    monkeypatch.setattr(type(place), "look", [intruder, *look[1:]])
    put(sink, 1, 2)
    sink.write(*unit(3, 3))
    with pytest.raises(SinkError, match="another writer"):
        sink.commit(at(3))
    assert numbers(client) == [1, 2]


# --- failures -----------------------------------------------------------------------------------


def test_a_server_that_is_away_is_a_failure_and_nothing_is_lost(fragile: Redis) -> None:
    sink = make(fragile)
    sink.open(Lane("away"))
    put(sink, 1, 3)
    sink.write(*unit(4, 5))
    fragile.kill()
    with pytest.raises(SinkError, match=f"redis at 127.0.0.1:{fragile.port}: "):
        sink.commit(at(5))
    with pytest.raises(SinkError, match="Connection refused"):
        sink.open(Lane("away"))
    fragile.start()
    assert sink.open(Lane("away")) == at(3)
    put(sink, 4, 5)
    sink.close()
    with redis.Redis(port=fragile.port) as client:
        assert numbers(client) == [1, 2, 3, 4, 5]
        client.flushall()


@pytest.mark.parametrize("when", ["before the unit", "with the unit", "and a writer waits"])
def test_a_frozen_server_may_have_the_unit_or_not_and_gets_it_once(
    fragile: Redis, when: str
) -> None:
    """The answer to EXEC does not come in time: whether it was carried out shows at the next look."""
    sink = make(fragile, send_timeout_secs=1, batch_timeout_secs=1)
    sink.open(LANE)
    put(sink, 1, 3)
    sink.write(*unit(4, 5))
    if when == "before the unit":
        fragile.pause()
    else:
        wire, _ = sink._opened()
        send = wire.send

        def frozen(*texts: Any) -> None:
            if len(texts) > 1:  # the unit, not the question before it
                fragile.pause()
            send(*texts)

        wire.send = frozen  # type: ignore[method-assign]
    with pytest.raises(SinkError, match="no answer in time"):
        sink.commit(at(5))
    other = make(fragile, send_timeout_secs=20)
    opened: list[str] = []
    thread = threading.Thread(target=lambda: opened.append(other.open(LANE)))
    if when == "and a writer waits":
        thread.start()
        time.sleep(0.2)
    fragile.resume()
    if when != "and a writer waits":
        thread.start()
    thread.join()
    place = int(opened[0], 16)
    assert place in (3, 5)
    try:
        put(other, place + 1, 7)
    except SinkError as error:  # the late EXEC came between its look and its unit
        assert "another writer" in str(error) and (when, place) == ("and a writer waits", 3)
        assert other.open(LANE) == at(5)
        put(other, 6, 7)
    other.close()
    with redis.Redis(port=fragile.port) as client:
        assert numbers(client) == [1, 2, 3, 4, 5, 6, 7]
        client.flushall()


def test_a_connection_that_breaks_with_the_answer_on_its_way(
    redis_server: Redis, client: Any
) -> None:
    with Cut(redis_server.port) as cut:
        sink = make(redis_server, uri=f"redis://127.0.0.1:{cut.port}")
        sink.open(LANE)
        put(sink, 1, 2)
        cut.armed = True
        sink.write(*unit(3, 4))
        with pytest.raises(SinkError, match=r"closed the connection|reset"):
            sink.commit(at(4))
        assert sink.open(LANE) == at(4), "it was carried out"
        put(sink, 5, 5)
        sink.close()
    assert numbers(client) == [1, 2, 3, 4, 5]


class Cut:
    """A relay that lets one EXEC through and hangs up instead of passing the answer on."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.armed = self._silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for pair in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, forth: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                last = forth and self.armed and b"EXEC" in data
                self._silent = self._silent or last
                if forth or not self._silent:
                    target.sendall(data)
                if last:
                    time.sleep(0.2)  # for the server to do it
                    break
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if forth:
            self.armed = self._silent = False


def test_a_killed_connection_is_a_failure(redis_server: Redis, client: Any) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    put(sink, 1, 1)
    sink.write(*unit(2, 2))
    client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(SinkError, match="redis at"):
        sink.commit(at(2))
    assert sink.open(LANE) == at(1)
    put(sink, 2, 2)
    sink.close()
    assert numbers(client) == [1, 2]


def test_a_key_that_is_no_stream_is_named_and_nothing_is_written(
    redis_server: Redis, client: Any
) -> None:
    client.set("taken", "text")
    sink = make(redis_server)
    sink.open(LANE)
    sink.write(*unit(1, 4, lambda i: "taken" if i == 3 else "s"))
    with pytest.raises(SinkError, match="the key `taken` holds a string, not a stream"):
        sink.commit(at(4))
    assert not client.exists("s") and sink.open(LANE) == ""
    client.delete("taken")
    put(sink, 1, 4, lambda i: "taken" if i == 3 else "s")
    sink.close()
    assert (numbers(client), numbers(client, "taken")) == ([1, 2, 4], [3])


@pytest.mark.parametrize("first", [True, False])
def test_a_stream_that_is_replaced_under_way_loses_nothing(
    redis_server: Redis, client: Any, first: bool
) -> None:
    """Redis does not take back a transaction that fails in part, so its position is put back."""
    sink = make(redis_server)
    sink.open(LANE)
    if not first:
        put(sink, 1, 2)
    begin = 1 if first else 3
    sink._streams.add("taken")  # looked at, a moment ago
    client.set("taken", "text")
    sink.write(*unit(begin, 5, lambda i: "taken" if i % 2 else "s"))
    with pytest.raises(SinkError, match="the key `taken` holds a string"):
        sink.commit(at(5))
    assert sink.open(LANE) == ("" if first else at(2))
    client.delete("taken")
    put(sink, begin, 5, lambda i: "taken" if i % 2 else "s")
    sink.close()
    assert numbers(client, "taken") == [i for i in range(begin, 6) if i % 2]
    assert set(numbers(client)) >= {2, 4}, "these may be there twice"


def test_a_late_stream_is_looked_at_from_outside(
    redis_server: Redis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "EARLY_BYTES", 1)
    client.set("taken", "text")
    sink = make(redis_server)
    sink.open(LANE)
    sink.write(*unit(1, 1))
    with pytest.raises(SinkError, match="the key `taken` holds a string"):
        sink.write(*unit(2, 2, "taken"))
    assert not client.exists("s")


def test_a_server_out_of_memory_takes_a_unit_later_and_whole(services: Services) -> None:
    server = services.start(Redis, config={"maxmemory-policy": "noeviction"})
    with redis.Redis(port=server.port) as client:
        sink = make(server)
        sink.open(LANE)
        put(sink, 1, 1)
        client.config_set("maxmemory", 1)
        sink.write(*unit(2, 500))
        with pytest.raises(SinkError, match="OOM command not allowed"):
            sink.commit(at(500))
        with pytest.raises(SinkError, match="OOM"):
            sink.open(LANE)
        client.config_set("maxmemory", 0)
        assert sink.open(LANE) == at(1)
        put(sink, 2, 500)
        sink.close()
        assert numbers(client) == list(range(1, 501))
    server.stop()


def test_a_replica_is_refused(services: Services, redis_server: Redis) -> None:
    config = {"replicaof": f"127.0.0.1 {redis_server.port}"}
    server = services.start(Redis, config=config)
    with pytest.raises(SinkError, match="READONLY"):
        make(server).open(LANE)
    server.stop()


def test_a_cluster_is_refused(services: Services) -> None:
    server = services.start(Redis, config={"cluster-enabled": "yes", "cluster-port": free_port()})
    with pytest.raises(ConfigError, match=r"sink `cache`: redis at .*: .*Redis Cluster"):
        make(server).open(LANE)
    server.stop()


def test_logins(services: Services) -> None:
    server = services.start(Redis, config={"requirepass": "s3cr3t/p@ss"})
    where = f"127.0.0.1:{server.port}"
    good = make(server, uri=f"redis://:s3cr3t%2Fp%40ss@{where}/3")
    assert good.open(LANE) == ""
    put(good, 1, 2)
    with redis.Redis(port=server.port, password="s3cr3t/p@ss", db=3) as client:
        assert numbers(client) == [1, 2]
        client.execute_command("ACL SETUSER reader on >w0rds ~* +@read +info +watch +multi")
    for login, word in ((":wr0ng", "wr0ng"), ("reader:w0rds", "w0rds"), ("", "s3cr3t")):
        sink = make(server, uri=f"redis://{login}{'@' if login else ''}{where}")
        with pytest.raises(Barred, match=f"redis at {where}: refuses this user: ") as refused:
            sink.open(LANE)
        assert word not in str(refused.value) and sink.uri not in str(refused.value)
    good.close()
    server.stop()


def test_tls(services: Services, tmp_path: Path) -> None:
    made = Certificates.make(tmp_path)
    port = free_port()
    settings = {
        "tls-port": port,
        "tls-cert-file": made.certificate("server"),
        "tls-key-file": made.key("server"),
        "tls-ca-cert-file": made.ca,
        "tls-auth-clients": "no",
    }
    server = services.start(Redis, config=settings)
    sink = make(server, uri=f"rediss://127.0.0.1:{port}?ssl_ca_certs={made.ca}")
    sink.open(LANE)
    put(sink, 1, 20_000)
    put(sink, 20_001, 20_002)
    sink.close()
    with redis.Redis(port=server.port) as client:
        assert numbers(client) == list(range(1, 20_003))
    with pytest.raises(Barred, match="certificate verify failed"):
        make(server, uri=f"rediss://127.0.0.1:{port}").open(LANE)
    server.stop()


def test_sentinel_leads_to_the_server(services: Services, redis_server: Redis, client: Any) -> None:
    server = services.start(Sentinel, config={"watched": redis_server.port})
    sink = make(redis_server, uri=f"redis+sentinel://localhost:{server.port},localhost:1/shop/0")
    sink.open(LANE)
    put(sink, 1, 3)
    sink.close()
    assert numbers(client) == [1, 2, 3]
    lost = make(redis_server, uri=f"redis+sentinel://localhost:{server.port}/other")
    with pytest.raises(SinkError, match="redis at other of sentinel localhost"):
        lost.open(LANE)
    server.stop()


class Sentinel(Redis):
    name = "redis-sentinel"
    commands = ("redis-server",)

    def prepare(self) -> None:
        text = f"port {self.port}\nbind 127.0.0.1\nsentinel monitor shop 127.0.0.1 "
        text += f"{self.config['watched']} 1\n"
        (self.home / "redis.conf").write_text(text, encoding="utf-8")

    def command(self) -> list[str]:
        return [*super().command(), "--sentinel"]


# --- events that cannot go anywhere -------------------------------------------------------------


def test_an_entry_too_large_is_rejected_by_its_row(
    redis_server: Redis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_entries, "LARGEST", 1000)
    sink = make(redis_server)
    sink.open(LANE)
    with pytest.raises(Rejected) as refused:
        sink.write(*unit(1, 3, value=pa.array(["a", "b" * 2000, "c"])))
    assert list(refused.value.rows) == [1]
    assert refused.value.rows[1].endswith("bytes are too much for Redis")
    sink.abort()
    put(sink, 1, 1)
    sink.close()
    assert numbers(client) == [1]


@pytest.mark.parametrize(
    ("to", "why"),
    [
        (lambda i: None if i == 2 else "s", "no destination"),
        (lambda i: "" if i == 2 else "s", "stream is empty"),
    ],
)
def test_events_without_a_stream(
    redis_server: Redis, client: Any, to: Callable[[int], str | None], why: str
) -> None:
    sink = make(redis_server)
    sink.open(LANE)
    with pytest.raises(Rejected, match=why) as rejected:
        sink.write(*unit(1, 3, to))
    assert list(rejected.value.rows) == [1]
    sink.close()


# --- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "shown", "db"),
    [
        ("redis://h", "h:6379", 0),
        ("redis://", "localhost:6379", 0),
        ("rediss://u:p%40ss@h:1/2", "h:1", 2),
        ("redis://:pa:ss@[::1]:7/", "::1:7", 0),
        ("redis://[::1]", "::1:6379", 0),
        ("redis+sentinel://a,b:1/main/4", "main of sentinel a:26379,b:1", 4),
        ("rediss+sentinel://:x@a/main?sentinel_password=y", "main of sentinel a:26379", 0),
    ],
)
def test_addresses(uri: str, shown: str, db: int) -> None:
    address = parse(uri)
    assert (str(address), address.db) == (shown, db)
    assert "p@ss" not in repr(address)
    RedisSink("a", lambda e: Messages(value=""), uri=uri).check()


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("hunter2", "not the URI of a Redis server"),
        ("http://hunter2@h", "not the URI of a Redis server"),
        ("redis+cluster://:hunter2@h", "Redis Cluster is not supported"),
        ("redis://:hunter2", "not HOST:PORT"),
        ("redis://h:hunter2", "not HOST:PORT"),
        ("redis://h:99999", "not HOST:PORT"),
        ("redis://a,b", "several hosts"),
        ("redis://h/hunter2", "not the number of a database"),
        ("redis://h/0/1", "not the number of a database"),
        ("redis+sentinel://h", "lacks the service"),
        ("redis://h?hunter2=1", "options"),
        ("redis://h?max_connections=hunter2", "options"),
    ],
)
def test_wrong_addresses_are_told_at_the_start_and_not_shown(uri: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^sink `a`: .*{why}") as refused:
        RedisSink("a", lambda e: Messages(value=""), uri=uri).check()
    assert "hunter2" not in str(refused.value)


def test_secrets_are_the_uri_and_what_is_in_it() -> None:
    uri = "redis://u:p%40ss@h?sentinel_password=other"
    sink = RedisSink("a", lambda e: Messages(value=""), uri=uri)
    assert set(sink.secrets) == {uri, "p%40ss", "p@ss", "other"}


def test_without_the_library_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match="needs the Python package `redis`"):
        RedisSink("a", lambda e: Messages(value=""), uri="redis://h").check()


# --- crashes ------------------------------------------------------------------------------------


def test_killed_writers_lose_and_repeat_nothing(redis_server: Redis, client: Any) -> None:
    command = [sys.executable, "-m", "tests.jobs.redis_writer", redis_server.env()["REDIS_URI"]]
    ended = subprocess.run(
        [*command, "20", "7"], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    last = int(ended.stdout)
    assert last > 200
    for table in range(3):
        ids = [int(f[b"event_id"][-32:], 16) for _, f in client.xrange(f"crash:t{table}")]
        assert ids == [i for i in range(1, last + 1) if i % 3 == table]
