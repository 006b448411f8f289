"""Event ids by the column are those of the library, one by one."""

from __future__ import annotations

import hashlib
import itertools
import uuid

import numpy as np
import pyarrow as pa
import pytest
from dfc_runtime import ids
from dfc_runtime.kernels import jit, sha256
from dfc_runtime.kernels.sha256 import hashed, hashed_pieces


@pytest.mark.parametrize("way", ["plain", "portable", "compiled"])
@pytest.mark.parametrize(
    "size", [(0, 1), (31, 16), (3, 52), (40, 15), (40, 16), (40, 20), (40, 30), (70, 60)]
)
def test_digests_are_those_of_hashlib(
    way: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = np.random.default_rng(1)
    head = chance.integers(0, 256, size[0], np.uint8).tobytes()
    tail = chance.integers(0, 256, (50, size[1]), np.uint8)
    expected = ["x:" + hashlib.sha256(head + row.tobytes()).hexdigest()[:32] for row in tail]
    monkeypatch.setattr(
        sha256.RUN, "seen", jit.WORTH_LOADING
    )  # so that the fastest way is looked for
    assert hashed("x:", head, tail, way).to_pylist() == expected


def test_ids_of_many_rows_are_those_of_each() -> None:
    lsns = np.array([1, 0x16B374D8, (1 << 62) + 5])
    relations, ordinals = np.array([3, 16384, 2**32 - 1]), np.array([0, 7, 2**31])
    made = ids.postgres_rows(0x1234567890ABCDEF, lsns, relations, ordinals).to_pylist()
    assert made == [
        ids.postgres_row(0x1234567890ABCDEF, *row)
        for row in zip(lsns.tolist(), relations.tolist(), ordinals.tolist(), strict=True)
    ]


@pytest.mark.parametrize("way", ["plain", "portable", "compiled", ""])
def test_pieces_may_have_any_length(way: str) -> None:
    sizes = np.arange(0, 200, 3)
    ends = np.concatenate(([5], 5 + np.cumsum(sizes)))
    data = np.random.default_rng(2).integers(0, 256, int(ends[-1]), np.uint8)
    expected = [
        "x:" + hashlib.sha256(b"ab" + data[start:stop].tobytes()).hexdigest()[:32]
        for start, stop in itertools.pairwise(ends)
    ]
    assert hashed_pieces("x:", b"ab", data, ends, way).to_pylist() == expected


def test_ids_of_many_mysql_rows_are_those_of_each() -> None:
    server = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
    numbers, positions = np.array([1, 23, 2**63 - 1]), np.array([4, 1547, 2**62])
    rows = np.array([0, 1, 2**32 - 1])
    each = list(zip(numbers.tolist(), positions.tolist(), rows.tolist(), strict=True))
    made = ids.mysql_rows(server, numbers, positions, rows).to_pylist()
    assert made == [ids.mysql_row(server, *row) for row in each]
    made = ids.mysql_rows_without_gtid(2**32 - 1, "binlog.000001", positions, rows).to_pylist()
    assert made == [
        ids.mysql_row_without_gtid(2**32 - 1, "binlog.000001", pos, row) for _, pos, row in each
    ]


@pytest.mark.parametrize("skipped", [0, 2])
def test_ids_of_many_copied_rows_are_those_of_each(skipped: int) -> None:
    first = pa.array(["1", "", "ä" * 300, "42"]).slice(skipped)
    second = pa.array(["x", "y", "z", ""]).slice(skipped)
    each = list(zip(first.to_pylist(), second.to_pylist(), strict=True))
    made = ids.snapshot_rows(7, "shop", "orders", [first, second]).to_pylist()
    assert made == [ids.snapshot_row(7, "shop", "orders", key) for key in each]
    assert ids.snapshot_rows(7, "shop", "orders", [first]).to_pylist() == [
        ids.snapshot_row(7, "shop", "orders", key[:1]) for key in each
    ]
    with pytest.raises(ValueError, match="65535"):
        ids.snapshot_rows(7, "shop", "orders", [pa.array(["x" * 65536])])
