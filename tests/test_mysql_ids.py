"""Event ids of MySQL batches: whatever rows share a batch, each gets the id it gets alone."""

from __future__ import annotations

import json
import uuid

import numpy as np
import pyarrow as pa
from dfc_runtime import ids
from dfc_runtime.sources.mysql_events import DDL_TABLE, EventBuilder, Rows, Shown, Transactions
from dfc_runtime.sources.mysql_events import gtid_source as origin
from dfc_runtime.sources.settings import ReaderSettings
from dfc_runtime.sources.snapshot_events import CopiedRows

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SETTINGS = ReaderSettings(columns=("event_id",), id="shop")


def test_rows_of_several_origins_and_statements_share_a_batch() -> None:
    txs = Transactions(
        starts=np.array([4, 400, 800, 1200]),
        micros=np.zeros(1, np.int64),
        millis=np.zeros(4, np.int64),
        servers=np.array([1, 0, 7, 1]),
        numbers=np.array([23, 0, 9, 24]),
        sources=np.array([0, -1, 1, 0]),
        names=[SERVER, f"{SERVER}:tagged"],
    )
    tx = np.array([0, 0, 1, 1, 2, 3, 3])
    op = np.array([0, 1, 2, 3, 0, 3, 0])
    pos, row = np.arange(100, 107), np.array([0, 1, 0, 0, 5, 0, 2])
    rows = Rows(
        tx=tx,
        number=np.zeros(7, np.int64),
        row=row,
        pos=pos,
        id_pos=pos,
        table=np.zeros(7, np.int64),
        op=op,
        tx_end=np.zeros(7, bool),
        total=row,
        of_table=row,
        before=None,
        after=None,
        key=None,
    )
    batch = EventBuilder(SETTINGS, mariadb=False).batch(
        0, ("bin.000001", 1), [Shown("shop", DDL_TABLE)], txs, rows
    )
    server, tagged = uuid.UUID(SERVER), origin(f"{SERVER}:tagged")
    lineage = ids.mysql_lineage_without_gtid(0, "bin.000001")
    assert batch["event_id"].to_pylist() == [
        ids.mysql_row(server, 23, 100, 0),
        ids.mysql_row(server, 23, 101, 1),
        ids.mysql_row_without_gtid(0, "bin.000001", 102, 0),
        ids.ddl(lineage, "bin.000001:103", 0),
        ids.mysql_row(tagged, 9, 104, 5),
        ids.ddl(ids.mysql_lineage(server), "bin.000001:105", 0),
        ids.mysql_row(server, 24, 106, 2),
    ]


def test_copied_rows_are_known_by_the_texts_of_their_keys() -> None:
    make = CopiedRows(SETTINGS, "mysql", 3).of("shop", "orders")

    def made(*keys: dict[str, object]) -> list[str]:
        texts = [json.dumps(key, ensure_ascii=False, separators=(",", ":")) for key in keys]
        return make(pa.array(texts), pa.array(texts))["event_id"].to_pylist()

    def single(*key: str) -> str:
        return ids.snapshot_row(3, "shop", "orders", key)

    assert made({"id": 1}, {"id": 2**63}) == [single("1"), single(str(2**63))]
    assert made({"b": 'say "ä\n"', "a": 7}, {"b": "", "a": -1}) == [
        single('say "ä\n"', "7"),
        single("", "-1"),
    ]
    assert made({"id": True}) == [single("true")]
    assert made({"id": {"_base64": "AA=="}}, {"id": "x"}) == [
        single('{"_base64": "AA=="}'),
        single("x"),
    ]
