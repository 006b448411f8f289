"""Event columns of a mysql source, out of decoded rows and what is known of their transactions."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import ids
from ..events import EVENT_COLUMNS, OUTBOX_MARK
from .mysql_position import positions
from .mysql_registry import Version
from .settings import ReaderSettings
from .version import RUNTIME_VERSION

OPS = ("c", "u", "d", "t", "r")
CREATE, UPDATE, DELETE, TRUNCATE, READ = range(5)
DDL_TABLE = "_ddl"


@dataclass(frozen=True, slots=True)
class Shown:
    """A table as events name it."""

    db: str
    table: str
    outbox: bool = False
    version: Version | None = None


@dataclass(slots=True)
class Transactions:
    """Arrays with an entry for each transaction."""

    starts: Any
    millis: Any
    micros: Any  # 0 where the server tells seconds only
    servers: Any
    numbers: Any
    sources: Any  # index into `names`, -1 for none
    names: list[str]  # as GTIDs have them: the part before the number


@dataclass(slots=True)
class Rows:
    """Arrays with an entry for each event, in the order of the log."""

    tx: Any  # index of the transaction
    number: Any  # of the rows event in the transaction
    row: Any
    pos: Any  # end of the rows event in its file
    id_pos: Any  # what stands for it in event ids
    table: Any  # index into the tables
    op: Any
    tx_end: Any
    total: Any  # place among the transaction's events
    of_table: Any  # place among those of the same table
    before: pa.Array | None
    after: pa.Array | None
    key: pa.Array | None
    ddl: pa.Array | None = None


class EventBuilder:
    """Builds the wanted columns and no others."""

    def __init__(self, settings: ReaderSettings, mariadb: bool) -> None:
        self.wanted = settings.needed
        self._schema = pa.schema([(name, EVENT_COLUMNS[name]) for name in self.wanted])
        self._name = settings.pipeline or settings.id
        self._gtid_sign = "-" if mariadb else ":"

    def batch(
        self,
        era: int,
        file: tuple[str, int],
        tables: Sequence[Shown],
        txs: Transactions,
        rows: Rows,
    ) -> pa.RecordBatch:
        count = len(rows.tx)
        made: dict[str, Any] = {}

        def once(name: str, make: Callable[[], Any]) -> Any:
            if name not in made:
                made[name] = make()
            return made[name]

        def spread(values: Any) -> Any:
            """A value of each transaction to each of its rows."""
            if len(values) == 1:
                only = values[0] if isinstance(values, pa.Array) else pa.scalar(values[0].item())
                return pa.repeat(only, count)
            if not isinstance(values, pa.Array):
                values = pa.array(values)
            if len(values) == count and rows.tx[0] == 0 and rows.tx[-1] == count - 1:
                return values  # sorted, so each has one row
            return values.take(pa.array(rows.tx))

        def by_table(
            texts: Sequence[str | int | None], kind: pa.DataType | None = None
        ) -> pa.Array:
            values = pa.array(texts, kind or pa.string())
            if len(tables) == 1 or len(set(texts)) == 1:
                return pa.repeat(values[0], count)
            return values.take(pa.array(rows.table))

        def gtids() -> pa.Array:
            """Null for transactions without one."""
            numbers = pa.array(txs.numbers).cast(pa.string())
            if len(txs.names) == 1 and (txs.sources == 0).all():
                return _join(txs.names[0] + self._gtid_sign, numbers)
            names = pa.array([name + self._gtid_sign for name in txs.names], pa.string())
            chosen = pa.array(np.where(txs.sources < 0, 0, txs.sources), mask=txs.sources < 0)
            if not txs.names:
                return pa.nulls(len(numbers), pa.string())
            return _join(names.take(chosen), numbers)

        def tx_ids() -> pa.Array:
            known = once("gtids", gtids)
            if not known.null_count:
                return known
            return pc.coalesce(known, _join(f"{file[0]}:", pa.array(txs.starts).cast(pa.string())))

        def source() -> pa.Array:
            known = once("gtids", gtids)
            head = f'{{"version":"dfc-{RUNTIME_VERSION}","connector":"mysql","name":{_json(self._name)},"ts_ms":'
            places = []
            for table in tables:
                mark = f',"schema":{_json(OUTBOX_MARK)}' if table.outbox else ""
                places.append(
                    f',"db":{_json(table.db)}{mark},"table":{_json(table.table)},"server_id":'
                )
            times = pa.array(txs.millis).cast(pa.string())
            gtid = ""
            if known.null_count < len(known):
                gtid = _join(',"gtid":"', known, '"')
                if known.null_count:
                    gtid = pc.coalesce(gtid, pa.scalar(""))
            file_text = f',"file":{_json(file[0])},"pos":'
            server = pa.array(txs.servers).cast(pa.string())
            pos = pa.array(rows.pos).cast(pa.string())
            row = pa.array(rows.row).cast(pa.string())
            end: Any = "}"
            if txs.micros.any():
                finer = _join(',"ts_us":', pa.array(txs.micros).cast(pa.string()), "}")
                end = spread(pc.if_else(pa.array(txs.micros > 0), finer, "}"))
            if len(places) == 1:
                start = spread(_join(head, times, places[0], server, gtid, file_text))
                return _join(start, pos, ',"row":', row, end)
            first, last = spread(_join(head, times)), spread(_join(server, gtid, file_text))
            return _join(first, by_table(places), last, pos, ',"row":', row, end)

        def transaction() -> pa.Array:
            start = spread(_join('{"id":"', once("tx_ids", tx_ids), '","total_order":'))
            return _join(
                start,
                pa.array(rows.total).cast(pa.string()),
                ',"data_collection_order":',
                pa.array(rows.of_table).cast(pa.string()),
                "}",
            )

        def column(name: str) -> pa.Array:
            match name:
                case "position":
                    return positions(era, file[1], txs.starts[rows.tx], rows.number, rows.row)
                case "tx_end":
                    return pa.array(rows.tx_end)
                case "op":
                    return _named(OPS, rows.op)
                case "ts_ms":
                    return spread(txs.millis)
                case "db":
                    return by_table([table.db for table in tables])
                case "schema":
                    return by_table([OUTBOX_MARK if t.outbox else None for t in tables])
                case "table":
                    return by_table([table.table for table in tables])
                case "primary_key":
                    return _or_nulls(rows.key, count)
                case "before":
                    return _or_nulls(rows.before, count)
                case "after":
                    return _or_nulls(rows.after, count)
                case "source":
                    return source()
                case "transaction":
                    return transaction()
                case "tx_id":
                    return spread(once("tx_ids", tx_ids))
                case "event_id":
                    return self._event_ids(file[0], txs, rows)
                case "schema_version":
                    return by_table([t.version.fingerprint if t.version else None for t in tables])
                case "schema_sequence":
                    return by_table(
                        [t.version.sequence if t.version else None for t in tables], pa.int64()
                    )
                case _:
                    return _or_nulls(rows.ddl, count)

        return pa.RecordBatch.from_arrays([column(n) for n in self.wanted], schema=self._schema)

    def _event_ids(self, file: str, txs: Transactions, rows: Rows) -> pa.Array:
        # Rows whose ids begin alike go together: of one origin, nearly always all of them.
        source, server = txs.sources[rows.tx], txs.servers[rows.tx]
        kind = np.where(rows.op >= TRUNCATE, -1, np.where(source < 0, server, (source + 1) << 33))
        parts, order = [], []
        for one in np.unique(kind).tolist():
            mine = np.flatnonzero(kind == one)
            first = mine[0]
            pos, row = rows.id_pos[mine], rows.row[mine]
            if one < 0:
                parts.append(self._statement_ids(file, txs, rows, mine))
            elif source[first] < 0:
                parts.append(ids.mysql_rows_without_gtid(int(server[first]), file, pos, row))
            else:
                name = gtid_source(txs.names[int(source[first])])
                parts.append(ids.mysql_rows(name, txs.numbers[rows.tx[mine]], pos, row))
            order.append(mine)
        if len(parts) == 1:
            return parts[0]
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(back))

    def _statement_ids(self, file: str, txs: Transactions, rows: Rows, mine: Any) -> pa.Array:
        made = []
        for at in mine.tolist():
            tx = rows.tx[at]
            source = int(txs.sources[tx])
            lineage = (
                ids.mysql_lineage_without_gtid(int(txs.servers[tx]), file)
                if source < 0
                else ids.mysql_lineage(gtid_source(txs.names[source]))
            )
            made.append(ids.ddl(lineage, f"{file}:{rows.id_pos[at]}", int(rows.row[at])))
        return pa.array(made, pa.string())


def gtid_source(name: str) -> uuid.UUID:
    """What stands for the origin of a transaction in event ids.

    MySQL has a UUID; one with a tag gets another, made of both. MariaDB has a domain and a server.
    """
    server, _, tag = name.partition(":")
    if len(server) == 36:
        made = uuid.UUID(server)
        return uuid.uuid5(made, tag) if tag else made
    domain, _, number = name.partition("-")
    return uuid.UUID(bytes=b"mariadb\0" + struct.pack(">II", int(domain), int(number)))


def _join(*parts: Any) -> pa.Array:
    if not any(isinstance(part, pa.Array) for part in parts):
        raise TypeError("nothing to join")
    return pc.binary_join_element_wise(*parts, "")


def _named(names: Sequence[str], index: Any) -> pa.Array:
    if len(index) and (index == index[0]).all():
        return pa.repeat(pa.scalar(names[int(index[0])]), len(index))
    return pa.array(names, pa.string()).take(pa.array(index))


def _or_nulls(column: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if column is None else column


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
