from __future__ import annotations

import uuid

import pytest
from dfc_runtime import ids

SERVER = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
FIRST = "dfid:v1:myrow:b8107ad4ab475b60e3a0c28b6c336688"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (ids.mysql_row(SERVER, 23, 1547, 0), FIRST),
        (
            ids.snapshot_row(1, "orders", "customers", ["42"]),
            "dfid:v1:snap:67994950b9ad4240be0a4e73135c5257",
        ),
        (
            ids.ddl(ids.postgres_lineage(0x1234567890ABCDEF), "0/16B374D8", 0),
            "dfid:v1:ddl:bfa60f51fbf665a7129e6566f0f2cc39",
        ),
        (
            ids.message(ids.mysql_lineage(SERVER), "mysql-bin.000008:15248355", 0),
            "dfid:v1:msg:d5f3b61c68d8e522c998c54ae149b459",
        ),
        (ids.synthetic(FIRST, "js:abc123", 0), "dfid:v1:syn:e6e4b2a25cdb888cf8ff42bc36c64934"),
    ],
)
def test_known_vectors(made: str, expected: str) -> None:
    assert made == expected


def test_many_turso_rows_get_the_ids_they_get_one_by_one() -> None:
    assert ids.turso_rows("shop", [1, 2**40]) == [
        ids.turso_row("shop", 1),
        ids.turso_row("shop", 2**40),
    ]


def test_every_class_gives_its_own_ids() -> None:
    made = [
        ids.mysql_row_without_gtid(1, "bin.1", 4, 0),
        ids.postgres_row(1, 2, 3, 4),
        ids.turso_row("shop", 1),
        ids.turso_row("shop", 2),
        ids.turso_polled_row("shop", "orders", 1),
        ids.turso_polled_row("shop", "orders", -1),
        ids.ddl(ids.mysql_lineage_without_gtid(1, "bin.1"), "4", 0),
    ]
    assert len(set(made)) == len(made)
    assert all(ids.parse(one) for one in made)


@pytest.mark.parametrize(
    "text", [FIRST.upper(), FIRST + "0", FIRST[:-1] + "G", "dfid:v2" + FIRST[7:], "", FIRST + "\n"]
)
def test_parsing_is_strict(text: str) -> None:
    with pytest.raises(ValueError, match="event id"):
        ids.parse(text)
