"""Messages of the log made by hand: right ones, truncated ones and damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from dfc_runtime.kernels.pgoutput import Splitter, joined
from dfc_runtime.kernels.postgres_messages import UNIX, FrameError
from dfc_runtime.sources import PostgresSource, SourceError
from dfc_runtime.sources.log import TransientError
from dfc_runtime.sources.postgres_changes import Changes
from dfc_runtime.sources.postgres_events import EventBuilder
from dfc_runtime.sources.postgres_large import Large
from dfc_runtime.sources.postgres_log import PostgresLog
from dfc_runtime.sources.postgres_position import (
    History,
    Place,
    lsn_text,
    parse,
    parse_history,
    parse_lsn,
    positions,
    without_page_header,
)
from dfc_runtime.sources.postgres_registry import Registry
from dfc_runtime.sources.postgres_server import Server
from dfc_runtime.sources.postgres_stream import Run, _run
from dfc_runtime.sources.postgres_tables import Tables
from dfc_runtime.sources.settings import ReaderSettings

from .postgres_logs import events

LSN = 0x1_0000_1000


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message outside transactions has no time but that at which it is read."""
    monkeypatch.setattr("dfc_runtime.sources.postgres_changes._now", lambda: 1_700_000_000_000_000)


def begin(lsn: int = LSN, xid: int = 7) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, 1_700_000_000_000_000 - UNIX, xid)


def commit(lsn: int = LSN) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, lsn, lsn + 48, 1_700_000_000_000_000 - UNIX)


def relation(oid: int = 5, name: str = "orders", xid: int | None = None) -> bytes:
    inner = b"" if xid is None else struct.pack(">I", xid)
    columns = b"\1id\0" + struct.pack(">Ii", 23, -1) + b"\0note\0" + struct.pack(">Ii", 25, -1)
    head = struct.pack(">I", oid) + b"public\0" + name.encode() + b"\0d" + struct.pack(">H", 2)
    return b"R" + inner + head + columns


def tuple_of(*values: str | None) -> bytes:
    made = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            made += b"n"
        else:
            made += b"t" + struct.pack(">I", len(value)) + value.encode()
    return made


def insert(number: int, oid: int = 5, xid: int | None = None) -> bytes:
    inner = b"" if xid is None else struct.pack(">I", xid)
    return b"I" + inner + struct.pack(">I", oid) + b"N" + tuple_of(str(number), "x")


def update(number: int) -> bytes:
    old, new = tuple_of(str(number), None), tuple_of(str(number + 1), "y")
    return b"U" + struct.pack(">I", 5) + b"K" + old + b"N" + new


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 1, *oids)


def message(text: bytes, lsn: int, transactional: bool) -> bytes:
    head = struct.pack(">BQ", transactional, lsn)
    return b"M" + head + b"outbox\0" + struct.pack(">I", len(text)) + text


def frames(messages: Sequence[bytes], lsn: int = LSN) -> list[bytes]:
    """With the header that each has in the stream, 16 bytes of the log apart."""
    return [
        b"w" + struct.pack(">QQq", lsn + 16 * i, lsn + 16 * i, 0) + m
        for i, m in enumerate(messages)
    ]


def run_of(messages: Sequence[bytes]) -> Run:
    return _run(frames(messages), 0)


def log() -> PostgresLog:
    """One that needs no server: everything it would have asked is known."""
    settings = ReaderSettings.parse({"id": "shop"})
    source = PostgresSource(dsn="postgres://h/db", slot="s", publication="p")
    made = PostgresLog(source, settings)
    history = History(1)
    made._server = Server(150000, 42, history, "db", False, 1 << 24)
    tables = Tables(
        made._address,
        settings,
        Registry(None, "k"),
        database="db",
        patterns=(),
        wide=False,
        halt=False,
        reselect=False,
    )
    builder = EventBuilder(settings, "db", 42, history)
    made._changes = Changes(tables, builder, history, ("outbox",), "", None)
    return made


GOOD = [
    begin(),
    relation(),
    insert(1),
    update(1),
    message(b"{}", LSN - 64, True),
    truncate(5),
    b"D" + struct.pack(">I", 5) + b"K" + tuple_of("2", None),
    commit(),
    message(b'{"a": 1}', LSN + 128, False),
    begin(LSN + 256, 8),
    insert(9),
    commit(LSN + 256),
]


def test_messages_made_by_hand_give_their_events() -> None:
    made = log()
    got = events(made._decoded(run_of(GOOD)))
    assert [event["op"] for event in got] == ["c", "u", "c", "t", "d", "c", "c"]
    assert [event["tx_end"] for event in got] == [False] * 4 + [True] * 3
    assert got[1]["before"] == {"id": 1} and got[1]["after"] == {"id": 2, "note": "y"}
    assert [parse(event["position"]) for event in got] == [
        *(Place(1, LSN, ordinal) for ordinal in range(5)),
        Place(1, LSN + 127, 0),
        Place(1, LSN + 256, 0),
    ]
    assert made.position == str(Place(1, LSN + 256 + 48))


def test_transaction_may_come_in_any_number_of_runs() -> None:
    whole = events(log()._decoded(run_of(GOOD)))
    for size in (1, 2, 5):
        made, got, results = log(), [], []
        for first in range(0, len(GOOD), size):
            results.append(events(made._decoded(run_of(GOOD[first : first + size]))))
            got += results[-1]
        assert got == whole
        for result in results:  # whole transactions only
            assert not result or result[-1]["tx_end"]


def test_streamed_pieces_are_put_together_without_aborted_parts() -> None:
    start, stop = b"S" + struct.pack(">IB", 7, 1), b"E"
    pieces = [
        start,
        relation(xid=9),  # described in the part that is rolled back, and used behind it
        insert(1, xid=9),
        insert(2, xid=7),
        stop,
        begin(LSN - 512, 3),
        relation(6, "items"),
        insert(5, 6),
        commit(LSN - 512),
        b"A" + struct.pack(">II", 7, 9),
        b"S" + struct.pack(">IB", 7, 0),
        insert(3, xid=7),
        stop,
        b"c" + struct.pack(">IBQQq", 7, 0, LSN, LSN + 48, 1_700_000_000_000_000 - UNIX),
        b"S" + struct.pack(">IB", 11, 1),
        relation(xid=11),
        insert(4, xid=11),
        stop,
        b"A" + struct.pack(">II", 11, 11),
    ]
    ordinary = [
        begin(LSN - 512, 3),
        relation(6, "items"),
        insert(5, 6),
        commit(LSN - 512),
        *(begin(), relation(), insert(2), insert(3), commit()),
    ]
    wanted = events(log()._decoded(run_of(ordinary)))
    assert [event["after"]["id"] for event in wanted] == [5, 2, 3]
    for size in (1, 3, len(pieces)):
        made, got = log(), []
        for first in range(0, len(pieces), size):
            got += events(made._decoded(run_of(pieces[first : first + size])))
        assert [(e["position"], e["event_id"], e["after"]) for e in got] == [
            (e["position"], e["event_id"], e["after"]) for e in wanted
        ]
        assert made._large.kept == ()


def test_broken_message_is_named_by_its_place_and_tried_anew_three_times() -> None:
    broken = [*GOOD[:3], GOOD[3][:-1], *GOOD[4:]]
    made = log()
    for kind in (TransientError, TransientError, SourceError):
        made._splitter, made._large = Splitter(), Large()
        with pytest.raises(kind, match=f"sent for {lsn_text(LSN + 48)} cannot be read") as caught:
            made._decoded(run_of(broken))
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    "messages",
    [
        [insert(1)],
        [begin(), insert(1)],
        [begin(), begin()],
        [commit()],
        [b"Z"],
        [begin(), relation(), b"I" + struct.pack(">I", 5) + b"N" + struct.pack(">H", 60000)],
        [begin(), relation(), b"I" + struct.pack(">I", 5) + b"N" + tuple_of("1")],
        [begin(), relation(), insert(1) + b"!"],
        [begin(), relation(), b"I" + struct.pack(">I", 5) + b"N\0\2b\0\0\0\1x" + b"n"],
        [begin(), truncate(5)[:-2]],
        [begin(), b"M" + struct.pack(">BQ", 1, 5) + b"no end"],
        [b"E"],
        [b"S" + struct.pack(">IB", 7, 1), b"S" + struct.pack(">IB", 8, 1)],
        [b"c" + struct.pack(">IBQQq", 7, 0, LSN, LSN, 0)],
        [b"S\0"],
        [b"S" + struct.pack(">IB", 7, 1), b"I", b"E", b"c" + struct.pack(">IBQQq", 7, 0, 1, 1, 0)],
    ],
)
def test_message_that_cannot_be_is_an_error_with_its_place(messages: list[bytes]) -> None:
    with pytest.raises(TransientError, match=r"sent for [0-9A-F]+/[0-9A-F]+ cannot be read"):
        log()._decoded(run_of(messages))


def outcome(messages: list[bytes], way: str) -> Any:
    made = log()
    made._splitter = Splitter(way)
    try:
        return [batch.to_pydict() for batch in made._decoded(run_of(messages))]
    except SourceError as error:
        assert "cannot be read" in str(error)
        return str(error)


def test_damage_never_gets_further_than_an_error() -> None:
    chance = Random(5)
    wrong = 0
    for _ in range(200):
        messages = [bytearray(m) for m in GOOD]
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(messages))
            match chance.randrange(4):
                case 0:
                    messages[at] = messages[at][: chance.randrange(1, len(messages[at]) + 1)]
                case 1:
                    messages[at][chance.randrange(len(messages[at]))] = chance.randrange(256)
                case 2:
                    messages[at] += bytes(chance.randrange(1, 9))
                case _:
                    messages[at], messages[0] = messages[0], messages[at]
        damaged = [bytes(m) for m in messages]
        first = outcome(damaged, "plain")
        assert outcome(damaged, "compiled") == first
        wrong += isinstance(first, str)
    assert wrong > 50


def test_frame_shorter_than_its_header_is_an_error() -> None:
    data, starts, stops = joined([b"w" + bytes(10)], 25)
    with pytest.raises(FrameError):
        Splitter().split(data, starts, stops)


# --- positions -------------------------------------------------------------------------------


def test_positions_sort_as_the_log_runs() -> None:
    history = History(3, ((1, 1000), (2, 2000)))
    lsns = np.array([5, 999, 1000, 1999, 2000, 1 << 40])
    texts = positions(history, lsns, np.arange(6)).to_pylist()
    assert texts == sorted(texts)
    assert [parse(text).timeline for text in texts] == [1, 1, 2, 2, 3, 3]
    place = Place(1, 999)
    assert str(place) < f"{place}-s000001.00" < str(Place(1, 999, 0)) < str(Place(1, 999, 16))
    assert str(Place(1, 999, 1 << 31)) < str(Place(1, 1000)) < str(Place(2, 1000))
    assert parse(f"{place}-s000001.00") == place


def test_history_tells_what_a_server_has_not_got() -> None:
    history = parse_history(3, "1\t0/3E8\tno recovery target\n\n2\t0/7D0\twhy # x\n")
    assert history == History(3, ((1, 1000), (2, 2000)))
    assert not history.knows(Place(1, 1000)) and not history.knows(Place(3, 5000))
    assert "left timeline 1 at 0/3E8" in history.knows(Place(1, 1001))
    assert "no timeline 4" in history.knows(Place(4, 10))


def test_log_positions_read_as_they_are_printed() -> None:
    for lsn in (0, 0x16B6C50, 0xFFFFFFFF_FFFFFFFF):
        assert parse_lsn(lsn_text(lsn)) == lsn
    for text in ("", "1", "0/", "g/1", "0/123456789"):
        with pytest.raises(SourceError, match="not a log position"):
            parse_lsn(text)


def test_end_of_the_log_is_not_behind_a_page_header() -> None:
    segment = 1 << 24
    assert without_page_header(segment * 3 + 40, segment) == segment * 3
    assert without_page_header(segment * 3 + 8192 + 24, segment) == segment * 3 + 8192
    assert without_page_header(segment * 3 + 48, segment) == segment * 3 + 48
