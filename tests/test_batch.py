from __future__ import annotations

import itertools

import pyarrow as pa
from dfc_runtime.batch import Batch, Cutter
from hypothesis import given, settings
from hypothesis import strategies as st


def rows(first: int, ends: list[bool], size: int = 10) -> pa.RecordBatch:
    numbers = range(first, first + len(ends))
    return pa.record_batch(
        {
            "position": pa.array([f"{i:08x}" for i in numbers], pa.string()),
            "tx_end": pa.array(ends, pa.bool_()),
            "after": pa.array(["x" * size for _ in numbers], pa.string()),
        }
    )


def units(batch: Batch, batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    """(events, last position) of each unit, as a sink would see them."""
    cutter = Cutter(batch)
    made, size, seen = [], 0, 0
    for one in batches:
        at = 0
        for piece in cutter.cut(one):
            assert piece.start == at and piece.stop >= at
            at = piece.stop
            size += piece.stop - piece.start
            if piece.position is not None:
                made.append((size, int(piece.position, 16)))
                size = 0
        assert at == one.num_rows
        seen += at
    last = cutter.finish()
    if last is not None:
        made.append((size, int(last, 16)))
    else:
        assert size == 0
    assert sum(count for count, _ in made) == seen
    return made


def test_units_are_whole_transactions_within_the_limit() -> None:
    ends = [i % 3 == 2 for i in range(30)]
    assert units(Batch(max_events=10), [rows(0, ends)]) == [(9, 8), (9, 17), (9, 26), (3, 29)]


def test_a_transaction_above_the_limit_is_one_unit() -> None:
    ends = [True, *[False] * 8, True, True]
    assert units(Batch(max_events=4), [rows(0, ends)]) == [(1, 0), (9, 9), (1, 10)]


def test_bytes_limit() -> None:
    ends = [True] * 10
    assert units(Batch(max_bytes=35), [rows(0, ends)]) == [(3, 2), (3, 5), (3, 8), (1, 9)]
    assert units(Batch(max_bytes=5), [rows(0, ends[:2])]) == [(1, 0), (1, 1)]


def test_without_transactions_any_event_may_end_a_unit() -> None:
    batch = Batch(max_events=4, respect_source_tx=False)
    assert units(batch, [rows(0, [False] * 9 + [True])]) == [(4, 3), (4, 7), (2, 9)]


def test_a_unit_spans_record_batches() -> None:
    batches = [rows(0, [True] * 4), rows(4, [True] * 4), rows(8, [True] * 4)]
    assert units(Batch(max_events=10), batches) == [(10, 9), (2, 11)]


def test_a_transaction_spans_record_batches() -> None:
    batches = [rows(0, [True, False]), rows(2, [False, False]), rows(4, [False, True])]
    assert units(Batch(max_events=3), batches) == [(1, 0), (5, 5)]


def test_what_was_open_ends_before_a_transaction_that_does_not_fit() -> None:
    batches = [rows(0, [True, True]), rows(2, [False, False, True])]
    assert units(Batch(max_events=4), batches) == [(2, 1), (3, 4)]


def test_nothing_gives_nothing() -> None:
    assert units(Batch(), [rows(0, [])]) == []


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=20),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 8),
    st.sampled_from([10_000, 35]),
)
@settings(max_examples=300, deadline=None)
def test_limits_hold_whatever_the_cuts(
    transactions: list[int], cuts: list[int], limit: int, size: int
) -> None:
    ends = [i == n - 1 for n in transactions for i in range(n)]
    batches, at = [], 0
    for length in itertools.cycle(cuts):
        if at >= len(ends):
            break
        batches.append(rows(at, ends[at : at + length]))
        at += length
    made = units(Batch(max_events=limit, max_bytes=size), batches)
    starts = {0, *(i + 1 for i, end in enumerate(ends) if end)}
    begin = 0
    for count, last in made:
        assert last == begin + count - 1 and ends[last], "a unit ends with a transaction"
        inside = [s for s in starts if begin < s <= last]
        assert not inside or (count <= limit and count * 10 <= size), "or it is one transaction"
        begin = last + 1
    assert begin == len(ends)
