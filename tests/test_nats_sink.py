"""The NATS sink against a real server: what it stores, once and in order, whatever happens."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import multiprocessing
import os
import random
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dfc_runtime.batch import Batch
from dfc_runtime.columns import join, native
from dfc_runtime.deliver import Delivery, Standing
from dfc_runtime.errors import Barred, ConfigError, Rejected, SinkError
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages
from dfc_runtime.sinks import Lane, NatsSink, nats_bucket, nats_stream
from dfc_runtime.sinks import nats as nats_sink
from dfc_runtime.sinks.nats_login import addresses

from .jobs.tiny_source import events
from .nats_streams import Streams
from .services import Nats
from .services.base import talk
from .services.fixtures import Services


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Each test begins as a new process does."""
    yield
    forget()


def forget() -> None:
    for connection, _ in nats_sink._KEPT.values():
        connection.close()
    nats_sink._KEPT.clear()


@pytest.fixture
def url(nats_server: Nats) -> str:
    return nats_server.env()["NATS_URL"]


@pytest.fixture
def streams(url: str) -> Streams:
    return Streams(url)


@pytest.fixture
def stream(streams: Streams, request: pytest.FixtureRequest) -> Iterator[str]:
    """A stream of this test's own, `<name>.>`, that forgets ids at once."""
    name = "t" + hashlib.sha1(request.node.name.encode()).hexdigest()[:10]
    yield streams.add(name, f"{name}.>", duplicate_window=0.1)
    streams.delete(name)


def sink(
    url: str, stream: str | None, to: Any = None, id: str = "bus", **settings: Any
) -> NatsSink:
    target = f"{stream}.a" if to is None else to

    def messages(e: Events) -> Messages:
        return Messages(to=target(e) if callable(target) else target, value=e.after["id"])

    settings.setdefault("send_timeout_secs", 2)
    settings.setdefault("messages", messages)
    return NatsSink(id, settings.pop("messages"), url=url, stream=stream, **settings)


def wrapped(begin: int, end: int, **named: Any) -> Events:
    return Events(events(begin, end, **named), pipeline="p", tenant="acme")


def give(target: NatsSink, begin: int, end: int, commit: bool = True) -> None:
    """Events begin < i <= end as one unit."""
    e = wrapped(begin, end)
    target.write(target.messages(e), e)
    if commit:
        target.commit(hexed(end))


def hexed(number: int) -> str:
    return f"{number:016x}"


def numbers(streams: Streams, name: str) -> list[int]:
    return [int(content) for _, _, content in streams.messages(name) if content.isdigit()]


def upto(end: int) -> list[int]:
    return list(range(1, end + 1))


# --- what a message is -----------------------------------------------------------------------


def test_messages_byte_for_byte(url: str, streams: Streams, stream: str) -> None:
    def messages(e: Events) -> Messages:
        key = pa.array(["é 1", None, ""], pa.string())
        headers = pa.array(['{"trace":"a\\u00fc","n":1,"none":null}', None, "{}"], pa.string())
        return Messages(
            to=join(f"{stream}.", e.source.table), key=key, value=native(e), headers=headers
        )

    target = sink(url, stream, messages=messages)
    assert target.open(Lane("p")) == ""
    e = wrapped(0, 3, tables=2)
    target.write(target.messages(e), e)
    target.commit(hexed(3))
    values = [text.encode() for text in native(e).to_pylist()]
    ids = [f"p/bus|acme|main.t{n % 2}|0|dfid:v1:tsrow:{n:032x}" for n in (1, 2, 3)]
    common = [{"Nats-Msg-Id": ids[n], "df-position": hexed(n + 1)} for n in range(3)]
    first = {"Nats-Expected-Last-Sequence": "0"}
    assert streams.messages(stream) == [
        (
            f"{stream}.t1",
            {**common[0], "df-key": "é 1", "trace": "aü", "n": "1", **first},
            values[0],
        ),
        (f"{stream}.t0", {**common[1], "Nats-Expected-Last-Msg-Id": ids[0]}, values[1]),
        (f"{stream}.t1", {**common[2], "Nats-Expected-Last-Msg-Id": ids[1]}, values[2]),
    ]


def test_a_null_value_is_the_text_null(url: str, streams: Streams, stream: str) -> None:
    target = sink(url, stream, messages=lambda e: Messages(to=f"{stream}.a", value=None))
    target.open(Lane("p"))
    give(target, 0, 1)
    assert streams.messages(stream)[0][2] == b"null"


def test_events_without_ids_or_with_the_same_ones_are_all_stored(
    url: str, streams: Streams, stream: str
) -> None:
    target = sink(url, stream)
    target.open(Lane("p"))
    e = wrapped(0, 4).with_columns(event_id=pa.array([None, None, "same", "same"], pa.string()))
    target.write(target.messages(e), e)
    target.commit(hexed(4))
    assert numbers(streams, stream) == upto(4)


def test_a_large_unit_in_order(url: str, streams: Streams, stream: str) -> None:
    target = sink(url, stream)
    target.open(Lane("p"))
    give(target, 0, 12_000)
    assert numbers(streams, stream) == upto(12_000)


def test_messages_of_megabytes(url: str, streams: Streams, stream: str) -> None:
    big = "x" * 1_000_000
    target = sink(url, stream, messages=lambda e: Messages(to=f"{stream}.a", value=big))
    target.open(Lane("p"))
    give(target, 0, 20)
    assert [len(content) for _, _, content in streams.messages(stream)] == [1_000_000] * 20


# --- events that no server takes -------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("a b", "not a subject"),
        ("a..b", "not a subject"),
        (".a", "not a subject"),
        ("a.", "not a subject"),
        ("a.*", "not a subject"),
        ("a.>", "not a subject"),
        ("a\r\nPUB b 0", "not a subject"),
        ("", "empty"),
        ("a" * 1001, "longer than 1000 bytes"),
        ("$JS.API.STREAM.DELETE.orders", "the server's own"),
    ],
)
def test_subjects_that_are_none_are_rejected(
    url: str, streams: Streams, stream: str, subject: str, words: str
) -> None:
    column = pa.array([f"{stream}.a", subject, f"{stream}.a"], pa.string())
    target = sink(url, stream, to=lambda e: column)
    target.open(Lane("p"))
    with pytest.raises(Rejected, match=words) as caught:
        give(target, 0, 3)
    assert list(caught.value.rows) == [1]
    assert streams.messages(stream) == []


def test_a_subject_for_all_that_is_none_rejects_all(url: str, stream: str) -> None:
    target = sink(url, stream, to="a b")
    target.open(Lane("p"))
    with pytest.raises(Rejected) as caught:
        give(target, 0, 3)
    assert list(caught.value.rows) == [0, 1, 2]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"key": "a\nNats-Rollup: all"}, "its key has a line break"),
        ({"headers": '{"a":"b\\r\\nc: d"}'}, "its header a has a line break"),
        ({"headers": '{"a b":"c"}'}, "not the name of a NATS header"),
        ({"headers": '{"a:":"c"}'}, "not the name of a NATS header"),
        ({"headers": '{"":"c"}'}, "not the name of a NATS header"),
        ({"headers": '{"nats-rollup":"all"}'}, "only the sink or the server may set"),
        ({"headers": '{"df-position":"1"}'}, "only the sink or the server may set"),
        ({"value": "x" * 1_048_576}, "the server takes 1048576 at most"),
    ],
)
def test_headers_and_sizes_that_cannot_be_are_rejected(
    url: str, streams: Streams, stream: str, named: dict[str, str], words: str
) -> None:
    good = {"value": "v", "key": "k", "headers": "{}"}
    columns = {k: pa.array([v, named.get(k, v)], pa.string()) for k, v in good.items()}
    target = sink(url, stream, messages=lambda e: Messages(to=f"{stream}.a", **columns))
    target.open(Lane("p"))
    with pytest.raises(Rejected, match=words) as caught:
        give(target, 0, 2)
    assert list(caught.value.rows) == [1]
    assert streams.messages(stream) == []


def test_the_streams_own_limit_of_sizes(url: str, streams: Streams) -> None:
    name = streams.add("small", "small.>", max_msg_size=400)
    target = sink(url, name, messages=lambda e: Messages(to="small.a", value="x" * 300))
    target.open(Lane("p"))
    with pytest.raises(Rejected, match="takes 400 at most"):
        give(target, 0, 1)
    streams.delete(name)


def test_a_message_too_large_for_the_headers_of_order_goes_without_them(
    url: str, streams: Streams
) -> None:
    name = streams.add("tight", "tight.>", max_msg_size=400)
    target = sink(url, name, messages=lambda e: Messages(to="tight.a", value="x" * 240))
    target.open(Lane("p"))
    give(target, 0, 2)
    assert all("Nats-Expected-Last-Msg-Id" not in h for _, h, _ in streams.messages(name))
    streams.delete(name)


# --- once ------------------------------------------------------------------------------------


def test_the_position_is_found_again(url: str, streams: Streams, stream: str) -> None:
    target = sink(url, stream)
    assert target.open(Lane("p")) == ""
    give(target, 0, 5)
    give(target, 5, 9)
    target.close()
    assert target.open(Lane("p")) == hexed(9), "on the connection that was kept"
    target.close()
    forget()
    assert sink(url, stream).open(Lane("p")) == hexed(9)
    assert sink(url, stream).open(Lane("other")) == ""
    assert sink(url, stream, id="other").open(Lane("p")) == ""


def test_a_unit_that_died_before_its_commit_is_not_stored_twice(
    url: str, streams: Streams, stream: str
) -> None:
    target = sink(url, stream)
    target.open(Lane("p"))
    give(target, 0, 5)
    give(target, 5, 9, commit=False)
    target.abort()
    time.sleep(0.3)  # the stream has forgotten the ids
    again = sink(url, stream)
    assert again.open(Lane("p")) == hexed(5)
    give(again, 5, 12)
    assert numbers(streams, stream) == upto(12)


def test_units_may_be_cut_in_other_places_the_second_time(
    url: str, streams: Streams, stream: str
) -> None:
    first = sink(url, stream)
    first.open(Lane("p"))
    give(first, 0, 12, commit=False)
    first.abort()
    for end, known in ((4, ""), (8, hexed(4)), (14, hexed(8))):
        time.sleep(0.2)
        again = sink(url, stream)
        assert again.open(Lane("p")) == known
        give(again, int(known or "0", 16), end)
        again.abort()
    assert numbers(streams, stream) == upto(14)


def test_copies_that_share_a_position_are_told_apart(
    url: str, streams: Streams, stream: str
) -> None:
    def copies(count: int) -> Events:
        e = wrapped(0, 4)
        return e.with_columns(position=pa.array([hexed(1)] * 4, pa.string())).slice(0, count)

    target = sink(url, stream)
    target.open(Lane("p"))
    e = copies(2)
    target.write(target.messages(e), e)  # and there it died, between two copies
    target.abort()
    time.sleep(0.3)
    again = sink(url, stream)
    again.open(Lane("p"))
    e = copies(4)
    again.write(again.messages(e), e)
    again.commit(hexed(1))
    assert numbers(streams, stream) == upto(4)


def test_others_in_the_stream_are_left_alone(url: str, streams: Streams, stream: str) -> None:
    streams.publish((f"{stream}.x", "before"))
    target = sink(url, stream)
    target.open(Lane("p"))
    give(target, 0, 5)
    streams.publish((f"{stream}.a", "between"))
    give(target, 5, 9)
    streams.publish((f"{stream}.x", "again"))
    give(target, 9, 12, commit=False)
    streams.publish((f"{stream}.a", "after"))
    target.abort()
    time.sleep(0.3)
    again = sink(url, stream)
    assert again.open(Lane("p")) == hexed(9)
    give(again, 9, 20)
    assert numbers(streams, stream) == upto(20)
    assert len(streams.messages(stream)) == 24


def test_somebody_who_writes_all_the_time(url: str, streams: Streams, stream: str) -> None:
    done = threading.Event()

    async def chatter(client: Any) -> None:
        while not done.is_set():
            await client.jetstream().publish(f"{stream}.x", b"noise")

    thread = threading.Thread(target=streams.run, args=(chatter,))
    thread.start()
    try:
        for end in range(500, 5001, 500):
            target = sink(url, stream)
            target.open(Lane("p"))
            give(target, end - 500, end)
            give(target, end, end + 100, commit=False)
            target.abort()
    finally:
        done.set()
        thread.join()
    assert numbers(streams, stream) == upto(5100)


def test_two_sinks_of_a_pipeline_on_one_stream(url: str, streams: Streams, stream: str) -> None:
    one, two = sink(url, stream, id="one"), sink(url, stream, to=f"{stream}.b", id="two")
    for target in (one, two):
        target.open(Lane("p"))
    for end in (5, 10, 15):
        give(one, end - 5, end)
        give(two, end - 5, end)
    for subject in ("a", "b"):
        found = [int(c) for s, _, c in streams.messages(stream) if s == f"{stream}.{subject}"]
        assert found == upto(15)


def test_two_lanes(url: str, streams: Streams, stream: str) -> None:
    lanes = [Lane("p", index, 2) for index in (0, 1)]
    targets = [sink(url, stream, to=f"{stream}.{lane.index}") for lane in lanes]
    for target, lane in zip(targets, lanes, strict=True):
        assert target.open(lane) == ""

    def half(lane: int, begin: int, end: int) -> Events:
        rows = [n - begin - 1 for n in range(begin + 1, end + 1) if n % 2 == lane]
        return wrapped(begin, end).take(pa.array(rows))

    def write(target: NatsSink, e: Events) -> None:
        target.write(target.messages(e), e)

    for end in (10, 20):
        for lane, target in enumerate(targets):
            write(target, half(lane, end - 10, end))
            target.commit(hexed(end))
    write(targets[0], half(0, 20, 30))
    write(targets[1], half(1, 20, 30))
    targets[1].commit(hexed(30))
    time.sleep(0.3)
    forget()
    again = [sink(url, stream, to=f"{stream}.{lane.index}") for lane in lanes]
    assert [t.open(n) for t, n in zip(again, lanes, strict=True)] == [hexed(20), hexed(30)]
    write(again[0], half(0, 20, 40))
    write(again[1], half(1, 30, 40))
    for lane in (0, 1):
        found = [int(c) for s, _, c in streams.messages(stream) if s == f"{stream}.{lane}"]
        assert found == [n for n in upto(40) if n % 2 == lane]


def test_another_number_of_lanes_waits_until_the_old_ones_are_even(
    url: str, streams: Streams, stream: str
) -> None:
    target = sink(url, stream)
    target.open(Lane("p"))
    give(target, 0, 10)
    with pytest.raises(ConfigError, match="was written in 1 lane, which stand ahead of storage"):
        sink(url, stream).open(Lane("p", 1, 2, known=hexed(5)))
    assert sink(url, stream).open(Lane("p", 1, 2, known=hexed(10))) == ""


def test_a_stream_made_anew_holds_nothing(url: str, streams: Streams, stream: str) -> None:
    target = sink(url, stream)
    target.open(Lane("p"))
    give(target, 0, 10)
    target.close()
    streams.delete(stream)
    streams.add(stream, f"{stream}.>")
    assert target.open(Lane("p")) == ""
    give(target, 0, 3)
    assert numbers(streams, stream) == upto(3)


def test_without_the_bucket_the_stream_itself_tells(
    url: str, streams: Streams, stream: str
) -> None:
    target = sink(url, stream)
    target.open(Lane("p"))
    give(target, 0, 5)
    give(target, 5, 9)
    target.abort()
    streams.delete("KV_dfc_positions")
    streams.publish((f"{stream}.x", "somebody else"))
    time.sleep(0.3)
    again = sink(url, stream)
    assert again.open(Lane("p", known=hexed(3))) == "", "storage is behind"
    give(again, 3, 12)
    assert numbers(streams, stream) == upto(12)


def test_what_was_found_without_a_record_is_found_again(
    url: str, streams: Streams, stream: str
) -> None:
    target = sink(url, stream)
    target.open(Lane("p"))
    give(target, 0, 9)
    target.abort()
    streams.delete("KV_dfc_positions")
    for end in (3, 6, 12):  # each dies after a part of what the first had stored
        time.sleep(0.2)
        again = sink(url, stream)
        at = int(again.open(Lane("p")) or "0", 16)
        give(again, at, end)
        again.abort()
    assert numbers(streams, stream) == upto(12)


def test_an_idle_lane_reads_only_what_is_new(
    url: str, streams: Streams, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sink(url, stream)
    first.open(Lane("p"))
    give(first, 0, 5, commit=False)
    asked: list[int] = []
    read = nats_stream.StreamWriter._read

    def counted(self: Any, numbers: Any) -> Any:
        asked.append(len(numbers))
        return read(self, numbers)

    monkeypatch.setattr(nats_stream.StreamWriter, "_read", counted)
    second = sink(url, stream)
    second.open(Lane("p"))
    second.close()
    give(first, 5, 7, commit=False)
    for _ in range(2):
        assert second.open(Lane("p")) == ""
        second.close()
    assert asked == [5, 2, 0]
    second.open(Lane("p"))
    give(second, 0, 9)
    assert numbers(streams, stream) == upto(9)


def test_messages_that_were_read_and_are_gone(url: str, streams: Streams) -> None:
    name = streams.add("queue", "queue.>", retention="workqueue")
    target = sink(url, name)
    target.open(Lane("p"))
    give(target, 0, 5)
    streams.run(lambda client: client.jetstream().purge_stream(name))
    give(target, 5, 7, commit=False)
    target.abort()
    again = sink(url, name)
    assert again.open(Lane("p")) == hexed(5)
    give(again, 5, 9)

    async def left(client: Any) -> list[bytes | None]:
        return [(await client.jetstream().get_msg(name, seq)).data for seq in (6, 7, 8, 9)]

    assert streams.run(left) == [b"6", b"7", b"8", b"9"]
    assert streams.run(lambda c: c.jetstream().stream_info(name)).state.last_seq == 9
    streams.delete(name)


# --- two writers -----------------------------------------------------------------------------


def test_a_writer_that_should_be_dead_is_refused(url: str, streams: Streams, stream: str) -> None:
    old, new = sink(url, stream), sink(url, stream)
    old.open(Lane("p"))
    give(old, 0, 5)
    assert new.open(Lane("p")) == hexed(5)
    give(new, 5, 9)
    time.sleep(0.3)
    with pytest.raises(SinkError, match="another process delivers for lane 0"):
        give(old, 5, 9)
    assert numbers(streams, stream) == upto(9)


def test_a_writer_that_was_replaced_in_the_middle_cannot_commit(
    url: str, streams: Streams, stream: str
) -> None:
    old, new = sink(url, stream), sink(url, stream)
    old.open(Lane("p"))
    give(old, 0, 5, commit=False)
    new.open(Lane("p"))
    give(new, 0, 7, commit=False)
    with pytest.raises(SinkError, match="another process delivers"):
        old.commit(hexed(5))
    new.commit(hexed(7))
    assert numbers(streams, stream) == upto(7)


def test_a_second_writer_of_one_of_several_lanes_is_refused(
    url: str, streams: Streams, stream: str
) -> None:
    old, new = sink(url, stream), sink(url, stream)
    old.open(Lane("p", 0, 2))
    give(old, 0, 3)
    new.open(Lane("p", 0, 2))
    give(new, 3, 5)
    time.sleep(0.3)
    with pytest.raises(SinkError, match="another process delivers for lane 0"):
        give(old, 3, 5)
    assert numbers(streams, stream) == upto(5)


# --- servers that fail -----------------------------------------------------------------------


def test_a_missing_stream_is_named(url: str) -> None:
    with pytest.raises(Barred, match=r"stream `nowhere` does not exist.*nats stream add nowhere"):
        sink(url, "nowhere").open(Lane("p"))


def test_a_server_without_jetstream_is_named(services: Services) -> None:
    class Plain(Nats):
        def ready(self) -> bool:
            return talk(self.port, b"", lambda heard: b"\r\n" in heard).startswith(b"INFO ")

    server = services.start(Plain, config={"jetstream": "disabled"})
    with pytest.raises(Barred, match=r"has no JetStream for this login.*or leave `stream` out"):
        sink(server.env()["NATS_URL"], "s").open(Lane("p"))


def test_a_subject_that_no_stream_takes_is_named(url: str, streams: Streams, stream: str) -> None:
    column = pa.array([f"{stream}.a", "elsewhere.a", f"{stream}.a"], pa.string())
    target = sink(url, stream, to=lambda e: column)
    target.open(Lane("p"))
    with pytest.raises(SinkError, match=f"no stream takes subject `elsewhere.a`: .*{stream}.>"):
        give(target, 0, 3)
    assert numbers(streams, stream) == [1], "nothing behind it"


def test_a_subject_of_another_stream_stays_out_of_it(
    url: str, streams: Streams, stream: str
) -> None:
    streams.add("neighbour", "neighbour.>")
    target = sink(url, stream, to="neighbour.a")
    target.open(Lane("p"))
    with pytest.raises(SinkError, match=r"`neighbour\.a` belongs to another stream"):
        give(target, 0, 3)
    assert streams.messages("neighbour") == []
    streams.delete("neighbour")


def test_subjects_that_the_account_maps(services: Services) -> None:
    server = services.start(Nats, config={"mappings": '{ "in.*": "mapped.$1" }'})
    streams = Streams(server.env()["NATS_URL"])
    streams.add("mapped", "mapped.>")
    target = sink(streams.url, "mapped", to=lambda e: join("in.", e.after["id"]))
    target.open(Lane("p"))
    give(target, 0, 20)
    assert [s for s, _, _ in streams.messages("mapped")] == [f"mapped.{n}" for n in upto(20)]
    server.stop()


def test_a_full_stream_refuses_and_goes_on_later(url: str, streams: Streams) -> None:
    name = streams.add("full", "full.>", max_msgs=7, discard="new", duplicate_window=0.1)
    target = sink(url, name)
    target.open(Lane("p"))
    give(target, 0, 5)
    with pytest.raises(SinkError, match=r"stream `full` refuses a message to `full\.a`: maximum"):
        give(target, 5, 10)
    target.abort()
    assert numbers(streams, name) == upto(7)

    async def widen(client: Any) -> None:
        await client.jetstream().update_stream(
            name=name, subjects=["full.>"], max_msgs=100, discard="new", duplicate_window=0.1
        )

    streams.run(widen)
    again = sink(url, name)
    assert again.open(Lane("p")) == hexed(5)
    give(again, 5, 10)
    assert numbers(streams, name) == upto(10)
    streams.delete(name)


def test_a_server_that_cannot_be_reached() -> None:
    with pytest.raises(SinkError, match=r"127.0.0.1:1: .*refused") as caught:
        sink("nats://me:hunter2@127.0.0.1:1", None).open(Lane("p"))
    assert "hunter2" not in str(caught.value)


def test_the_next_server_of_the_list_is_taken(url: str, streams: Streams, stream: str) -> None:
    target = sink(f"nats://127.0.0.1:1, {url}", stream)
    target.open(Lane("p"))
    give(target, 0, 2)
    assert numbers(streams, stream) == [1, 2]


def test_a_frozen_server_is_given_up_and_nothing_is_stored_twice(services: Services) -> None:
    server = services.start(Nats)
    streams = Streams(server.env()["NATS_URL"])
    name = streams.add("frozen", "frozen.>", duplicate_window=0.1)
    settings = {"send_timeout_secs": 1, "connect_timeout_secs": 1}
    target = sink(streams.url, name, **settings)
    target.open(Lane("p"))
    give(target, 0, 50)
    with server.paused():
        began = time.monotonic()
        # More than the sockets hold, so that a part of it is on its way.
        with pytest.raises(SinkError, match="not acknowledged within 1 s"):
            give(target, 50, 8050)
        target.abort()
        with pytest.raises(SinkError, match=r"no answer in time"):
            sink(streams.url, name, **settings).open(Lane("p"))
        assert time.monotonic() - began < 30
    for _ in range(50):
        again = sink(streams.url, name, **settings)
        try:
            at = int(again.open(Lane("p")), 16)
            give(again, at, 8050)
            break
        except SinkError as error:
            assert "another process" in str(error), "what was on its way arrives meanwhile"
            again.abort()
    assert numbers(streams, name) == upto(8050)
    server.stop()


def test_a_server_that_goes_away_and_comes_back(services: Services) -> None:
    server = services.start(Nats)
    streams = Streams(server.env()["NATS_URL"])
    name = streams.add("gone", "gone.>", duplicate_window=0.1)
    target = sink(streams.url, name)
    target.open(Lane("p"))
    give(target, 0, 50)
    threading.Timer(0.02, server.stop).start()
    with pytest.raises(SinkError):
        for end in range(2050, 10_000_000, 2000):
            give(target, end - 2000, end)
    target.abort()
    with pytest.raises(SinkError, match=r"refused|closed"):
        sink(streams.url, name).open(Lane("p"))
    while server.running:
        time.sleep(0.02)
    server.start()
    again = sink(streams.url, name)
    at = int(again.open(Lane("p")), 16)
    assert at >= 50
    give(again, at, at + 4000)
    assert numbers(streams, name) == upto(at + 4000)
    server.stop()


def test_a_connection_that_broke_between_epochs_is_made_anew(services: Services) -> None:
    server = services.start(Nats)
    streams = Streams(server.env()["NATS_URL"])
    name = streams.add("again", "again.>")
    target = sink(streams.url, name)
    target.open(Lane("p"))
    give(target, 0, 5)
    target.close()
    server.stop()
    server.start()
    assert target.open(Lane("p")) == hexed(5)
    give(target, 5, 9)
    target.close()
    assert numbers(streams, name) == upto(9)
    server.stop()


def test_the_servers_pings_are_answered_between_two_messages(services: Services) -> None:
    # Six seconds without an answer are too many for the server, and for a busy machine few.
    server = services.start(Nats, config={"ping_interval": '"200ms"', "ping_max": 30})
    streams = Streams(server.env()["NATS_URL"])
    name = streams.add("pings", "pings.>")
    target = sink(streams.url, name)
    target.open(Lane("p"))
    began, end = time.monotonic(), 0
    while time.monotonic() - began < 7:
        give(target, end, end + 1000)
        end += 1000
    assert numbers(streams, name) == upto(end)
    server.stop()


# --- logging in ------------------------------------------------------------------------------


def test_logins(services: Services) -> None:
    server = services.start(Nats, config={"authorization": '{ user: me, password: "hunter2" }'})
    streams = Streams(server.env()["NATS_URL"], user="me", password="hunter2")
    name = streams.add("login", "login.>")
    host = server.address
    for number, (address, login) in enumerate(
        [
            (f"nats://{host}", {"username": "me", "password": "hunter2"}),
            (f"nats://me:hunter2@{host}", {}),
        ]
    ):
        target = sink(address, name, **login)
        target.open(Lane("p"))
        give(target, number, number + 1)
        target.abort()
    for address, login in [
        (f"nats://{host}", {"username": "me", "password": "wrongpass"}),
        (f"nats://me:wrongpass@{host}", {}),
        (f"nats://{host}", {"token": "wrongpass"}),
        (f"nats://{host}", {}),
    ]:
        wrong = sink(address, name, **login)
        acks = run(wrong, [events(0, 3)])
        assert "refuses the login" in acks["error"]
        assert "wrongpass" not in acks["error"] and "hunter2" not in acks["error"]
        with pytest.raises(Barred):
            wrong.open(Lane("p"))
        assert "wrongpass" in wrong.secrets or (not login and "@" not in address)
    assert numbers(streams, name) == [1, 2]
    server.stop()


def test_tokens(services: Services) -> None:
    server = services.start(Nats, config={"authorization": '{ token: "s3cret" }'})
    for address, login in [
        (f"nats://{server.address}", {"token": "s3cret"}),
        (f"nats://s3cret@{server.address}", {}),
    ]:
        assert sink(address, None, **login).open(Lane("p")) == ""
    server.stop()


def test_a_login_that_may_not_make_the_bucket(services: Services) -> None:
    users = (
        '{ users: [ { user: boss, password: "b" }, { user: me, password: "m", permissions: {'
        ' publish: ["few.>", "$JS.API.STREAM.INFO.few", "$JS.API.STREAM.MSG.GET.few"],'
        ' subscribe: ["_INBOX.>"] } } ] }'
    )
    server = services.start(Nats, config={"authorization": users})
    streams = Streams(server.env()["NATS_URL"], user="boss", password="b")
    name = streams.add("few", "few.>", duplicate_window=0.1)
    login = {"username": "me", "password": "m"}
    target = sink(streams.url, name, **login)
    target.open(Lane("p"))
    give(target, 0, 5)
    give(target, 5, 9, commit=False)
    target.abort()
    time.sleep(0.3)
    again = sink(streams.url, name, **login)
    assert again.open(Lane("p", known=hexed(3))) == ""
    give(again, 3, 12)
    assert numbers(streams, name) == upto(12)
    again.abort()
    forbidden = sink(streams.url, name, to="other.a", **login)
    forbidden.open(Lane("p", known=hexed(12)))
    with pytest.raises(Barred, match=r"may not publish to other\.a"):
        give(forbidden, 12, 13)
    server.stop()


def test_tls(services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names]
    subprocess.run(
        [*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    tls = f"{{ cert_file: {json.dumps(str(certificate))}, key_file: {json.dumps(str(key))} }}"
    server = services.start(Nats, config={"tls": tls})
    address = f"tls://{server.address}"
    with pytest.raises(Barred, match="its certificate is not trusted"):
        sink(address, None).open(Lane("p"))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    streams = Streams(address)
    name = streams.add("safe", "safe.>")
    target = sink(address, name)
    target.open(Lane("p"))
    give(target, 0, 9000)
    assert numbers(streams, name) == upto(9000)
    server.stop()


class Keys:
    """An nkey pair, as `nsc` makes them, to sign JWTs with."""

    def __init__(self, prefix: int) -> None:
        import nacl.signing

        self.key = nacl.signing.SigningKey.generate()
        self.public = self._text(bytes([prefix]) + bytes(self.key.verify_key))
        kind = bytes([18 << 3 | prefix >> 5, (prefix & 31) << 3])
        self.seed = self._text(kind + bytes(self.key))

    @staticmethod
    def _text(raw: bytes) -> str:
        checked = raw + struct.pack("<H", binascii.crc_hqx(raw, 0))
        return base64.b32encode(checked).decode().rstrip("=")

    def sign(self, subject: str, claims: dict[str, Any]) -> str:
        def part(data: bytes) -> str:
            return base64.urlsafe_b64encode(data).decode().rstrip("=")

        body = {"iat": int(time.time()), "iss": self.public, "sub": subject, "nats": claims}
        body["jti"] = base64.b32encode(hashlib.sha256(str(body).encode()).digest()).decode()
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = ".".join(part(json.dumps(p).encode()) for p in (head, body))
        return f"{text}.{part(self.key.sign(text.encode()).signature)}"


def test_credentials_files(services: Services, tmp_path: Path) -> None:
    operator, system, account, user = Keys(14 << 3), Keys(0), Keys(0), Keys(20 << 3)
    every = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1}
    about = {"type": "account", "version": 2, "limits": {**limits, "exports": -1, **every}}
    accounts = {
        system.public: operator.sign(system.public, {**about, "limits": {**limits, "exports": -1}}),
        account.public: operator.sign(account.public, about),
    }
    config = {
        "operator": operator.sign(operator.public, {"type": "operator", "version": 2}),
        "system_account": system.public,
        "resolver": "MEMORY",
        "resolver_preload": json.dumps(accounts),
    }
    server = services.start(Nats, config=config)
    own = {
        "type": "user",
        "version": 2,
        "subs": -1,
        "data": -1,
        "payload": -1,
        "pub": {},
        "sub": {},
    }
    path = tmp_path / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{account.sign(user.public, own)}\n"
        "------END NATS USER JWT------\n\n************************* IMPORTANT ***********\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    streams = Streams(server.env()["NATS_URL"], user_credentials=str(path))
    name = streams.add("creds", "creds.>")
    target = sink(server.env()["NATS_URL"], name, credentials_file=str(path))
    target.check()
    target.open(Lane("p"))
    give(target, 0, 3)
    assert numbers(streams, name) == upto(3)
    with pytest.raises(ConfigError, match=r"sink `bus`: credentials file .*gone cannot be read"):
        sink("nats://h", None, credentials_file=str(tmp_path / "gone")).check()
    (tmp_path / "half").write_text("-----BEGIN NATS USER JWT-----\nabc\n")
    with pytest.raises(SinkError, match="no JWT and seed"):
        sink(streams.url, None, credentials_file=str(tmp_path / "half")).open(Lane("p"))
    server.stop()


def test_addresses() -> None:
    assert addresses("a, nats://b:1,tls://u:p%40@c") == [
        ("a", 4222, False, None, None),
        ("b", 1, False, None, None),
        ("c", 4222, True, "u", "p@"),
    ]
    for wrong in ("", "ws://h", "nats://", "nats://h:x"):
        with pytest.raises(ConfigError):
            addresses(wrong)


# --- core NATS -------------------------------------------------------------------------------


def test_core_nats(url: str) -> None:
    heard: list[tuple[str, dict[str, str], bytes]] = []
    ready, done = threading.Event(), threading.Event()

    async def listen(client: Any) -> None:

        subscription = await client.subscribe("core.>")
        await client.flush()
        ready.set()
        while not done.is_set() or subscription.pending_msgs:
            try:
                message = await subscription.next_msg(timeout=0.1)
                heard.append((message.subject, dict(message.headers or {}), message.data))
            except TimeoutError:
                pass

    thread = threading.Thread(target=Streams(url).run, args=(listen,))
    thread.start()
    ready.wait(10)
    target = sink(url, None, to=lambda e: join("core.", e.source.table))
    assert target.open(Lane("p", known=hexed(0))) == ""
    give(target, 0, 3000)
    target.close()
    done.set()
    thread.join()
    assert [int(content) for _, _, content in heard] == upto(3000)
    subject, headers, _ = heard[0]
    assert subject == "core.t0"
    assert headers == {
        "Nats-Msg-Id": f"p/bus|acme|main.t0|0|dfid:v1:tsrow:{1:032x}",
        "df-position": hexed(1),
    }


def test_core_nats_where_nobody_listens(url: str) -> None:
    target = sink(url, None, to="void.a")
    target.open(Lane("p"))
    with pytest.raises(SinkError, match=r"nobody listens to subject `void\.a`"):
        give(target, 0, 3)


# --- through the delivery --------------------------------------------------------------------


def run(target: NatsSink, batches: list[pa.RecordBatch], known: str = "") -> dict[str, Any]:
    delivery = Delivery("p", "acme", 1, lambda e: e, (target,), Batch(max_events=60))
    (acks,) = list(delivery.run(iter(batches), 0, {target.id: Standing((known,))}))
    return {row["sink"]: row for row in acks.to_pylist()}[target.id]


def test_a_rejected_event_is_named_and_lasts(url: str, streams: Streams, stream: str) -> None:
    target = sink(url, stream, to=lambda e: join(f"{stream}.", e.after["name"]))
    ack = run(target, [events(0, 3)])
    assert ack["lasting"] and "event dfid:v1:tsrow:" in ack["error"]
    assert "not a subject to publish to" in ack["error"]


def test_a_unit_that_lacks_room_for_a_dead_letter_is_stored_once(
    url: str, streams: Streams, stream: str
) -> None:
    """Its first events are in the stream by then, and the next attempt has to find them there."""
    full = [True]

    def process(e: Events) -> Events:
        if full and e.position[0].as_py() > hexed(20):
            full.clear()
            raise SinkError("no room for a dead letter")
        return e

    delivery = Delivery("p", "acme", 1, process, (sink(url, stream),), Batch(max_events=60))
    for error in ("no room for a dead letter", None):
        (acks,) = list(delivery.run(iter([events(0, 20), events(20, 40)]), 0, {}))
        assert acks.to_pylist()[0]["error"] == error
    assert numbers(streams, stream) == upto(40)


def test_what_is_left_of_a_unit_when_the_sink_is_closed_is_found(
    url: str, streams: Streams, stream: str
) -> None:
    target = sink(url, stream)
    target.open(Lane("p"))
    give(target, 0, 5, commit=False)
    target.close()
    assert target.open(Lane("p")) == ""
    give(target, 0, 9)
    target.close()
    assert numbers(streams, stream) == upto(9)


def _deliver_until_killed(url: str, stream: str, end: int, begun: Any = None) -> None:
    """In a process of its own: goes on from where the sink stands, until there is nothing left."""
    nats_sink._KEPT.clear()
    target = sink(url, stream)
    at = int(run(target, [])["position"] or "0", 16)
    if begun is not None:
        begun.send(at)
    while at < end:
        cuts = [min(at + rows, end) for rows in (0, 250, 500)]
        ack = run(target, [events(cuts[0], cuts[1]), events(cuts[1], cuts[2])])
        if ack["error"] is None:
            at = int(ack["position"], 16)
        else:
            time.sleep(0.02)  # what the dead one sent may still be arriving
    os._exit(0)


@pytest.mark.parametrize("noise", [False, True])
def test_killed_at_any_moment_every_event_is_stored_once_and_in_order(
    url: str, streams: Streams, noise: bool
) -> None:
    """With the noise of others there is no order of messages to rely on, but ids within two minutes."""
    name = f"killed{int(noise)}"
    streams.add(name, f"{name}.>", duplicate_window=120 if noise else 0.1)
    fork = multiprocessing.get_context("fork")
    dice = random.Random(7)
    stop = threading.Event()

    async def chatter(client: Any) -> None:
        while not stop.wait(0.002):
            await client.jetstream().publish(f"{name}.x", b"noise")

    others = fork.Process(target=streams.run, args=(chatter,))
    if noise:
        others.start()
    try:
        for _ in range(20):
            heard, begun = fork.Pipe(duplex=False)
            child = fork.Process(target=_deliver_until_killed, args=(url, name, 1_000_000, begun))
            child.start()
            if dice.random() < 0.8:
                heard.poll(10)  # else it dies while it looks for where it stands
            time.sleep(dice.random() * 0.15)
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
            time.sleep(dice.choice((0, 0, 0.15)))  # sometimes longer than ids are remembered
    finally:
        if noise:
            others.terminate()
            others.join()
    reached = max(numbers(streams, name), default=0)
    end = (reached // 500 + 2) * 500
    last = fork.Process(target=_deliver_until_killed, args=(url, name, end))
    last.start()
    last.join(30)
    assert last.exitcode == 0
    assert reached > 500, "nothing was killed in the middle"
    assert numbers(streams, name) == upto(end)
    streams.delete(name)


def test_a_stopped_writer_that_wakes_up_is_refused(url: str, streams: Streams, stream: str) -> None:
    """Frozen in the middle of a unit, replaced, and awake when its ids are long forgotten."""
    fork = multiprocessing.get_context("fork")
    old = fork.Process(target=_deliver_until_killed, args=(url, stream, 1_000_000))
    old.start()
    while len(numbers(streams, stream)) < 1000:
        time.sleep(0.02)
    assert old.pid is not None
    os.kill(old.pid, signal.SIGSTOP)
    time.sleep(0.2)
    target = sink(url, stream)
    at = int(target.open(Lane("p")), 16)
    give(target, at, at + 2000)
    time.sleep(0.3)
    os.kill(old.pid, signal.SIGCONT)
    time.sleep(0.3)
    os.kill(old.pid, signal.SIGKILL)
    old.join()
    found = numbers(streams, stream)
    assert found == upto(len(found)), "it may have gone on from its own start, but nothing twice"
    assert len(found) >= at + 2000


# --- the parts -------------------------------------------------------------------------------


def test_keys_of_the_bucket_hold_any_name() -> None:
    assert nats_bucket.token("a.b c/ü") == "a=2Eb=20c=2F=C3=BC"


def test_patterns_of_subjects() -> None:
    import re

    for pattern, subject, fits in [
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a+.b", "aa.b", False),
        (">", "x.y", True),
    ]:
        assert bool(re.fullmatch(nats_stream._pattern(pattern), subject)) is fits
