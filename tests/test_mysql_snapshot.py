"""A copy of tables in the binary log of a real server, while others write to them."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dfc_runtime.sources import MysqlSource, Snapshot
from dfc_runtime.sources.log import SourceError
from dfc_runtime.sources.mysql_copy import with_snapshot
from dfc_runtime.sources.mysql_log import BinlogLog
from dfc_runtime.sources.mysql_retention import preflight
from dfc_runtime.sources.settings import ReaderSettings
from dfc_runtime.sources.snapshot import SnapshotLog
from dfc_runtime.storage import Storage

from .mysql_logs import Writer, batches, client, mysql_log
from .services import MariaDB
from .services.base import Server
from .snapshots import Sink, Writing, copied, opened, through


@pytest.fixture(
    params=["mariadb_server", pytest.param("mysql_server", marks=pytest.mark.mysql)],
    ids=["mariadb", "mysql"],
)
def shop(request: pytest.FixtureRequest) -> Writer:
    """A database of the test's own, in either server."""
    server: Server = request.getfixturevalue(request.param)
    name = f"s{abs(hash(request.node.name)) % 10**8}"
    writer = Writer(server, name)
    writer(f"DROP DATABASE `{name}`")
    return Writer(server, name)


def snapshot(
    shop: Writer,
    *tables: str,
    storage: Path | None = None,
    mode: str = "initial",
    size: int = 50,
    within: bool = True,
    columns: str = "",
) -> SnapshotLog:
    copy = Snapshot(mode=mode, chunk_size=size, intra_table_parallel=within, max_parallel_chunks=2)
    source = MysqlSource(
        id="shop",
        dsn=shop.server.dsn,  # type: ignore[attr-defined]
        tables=tuple(f"{shop.database}.{table}" for table in tables or ("%",)),
        snapshot=copy,
    )
    settings = ReaderSettings(
        pipeline="p",
        id="shop",
        storage=Storage("sqlite", str(storage)) if storage else None,
        **({"columns": tuple(columns.split())} if columns else {}),
    )
    return with_snapshot(source, copy, settings)


KINDS = {
    "numbers": "id INT PRIMARY KEY, v INT",
    "names": "id VARCHAR(40) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT",
    "pairs": "a VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_german1_ci, b SMALLINT,"
    " v INT, PRIMARY KEY (b, a)",
    "moments": "id DATETIME(3) PRIMARY KEY, v INT",
    "uniques": "v INT, id BIGINT UNSIGNED NOT NULL, UNIQUE KEY other (v), UNIQUE KEY mine (id)",
    "bags": "id INT, v INT",
}


def values_of(kind: str, number: int) -> dict[str, Any]:
    """A key by its number; not in the order of the key."""
    word = "".join("aäBzÉe"[int(digit)] for digit in _base6(number))
    match kind:
        case "names":
            return {"id": f"{word}{number}"}
        case "pairs":
            return {"a": word[:5], "b": number % 7}
        case "moments":
            return {
                "id": f"2024-01-{1 + number % 28:02d} 00:{number % 60:02d}:01.{number % 1000:03d}"
            }
        case "uniques":
            return {"id": 2**64 - 1 - number}
    return {"id": number * 3}


def _base6(number: int) -> str:
    digits = ""
    while number:
        digits, number = f"{number % 6}{digits}", number // 6
    return digits or "0"


def fill(shop: Writer, kind: str, count: int) -> None:
    shop(f"CREATE TABLE {kind} ({KINDS[kind]})")
    rows = {tuple(values_of(kind, n).values()): n for n in range(count)}
    names = ", ".join(values_of(kind, 0))
    marks = ", ".join(["%s"] * (1 + len(values_of(kind, 0))))
    shop.many(
        f"INSERT IGNORE INTO {kind} ({names}, v) VALUES ({marks})",
        [(*key, n) for key, n in rows.items()],
    )


class Changes(Writing):
    """Inserts, updates, deletes and moves of keys."""

    def __init__(self, shop: Writer, seed: int, count: int, kinds: tuple[str, ...]) -> None:
        super().__init__(seed)
        self.cursor = client(shop.server, shop.database).cursor()
        self.count, self.kinds = count, kinds

    def transaction(self, changes: int) -> None:
        self.cursor.execute("BEGIN" if changes > 1 else "SELECT 1")
        for _ in range(changes):
            self.change(self.cursor)
        self.cursor.execute("COMMIT")

    def change(self, cursor: Any) -> None:
        kind = self.random.choice(self.kinds)
        key = values_of(kind, self.random.randrange(2 * self.count))
        other = values_of(kind, self.random.randrange(2 * self.count))
        where = " AND ".join(f"{name} = %s" for name in key)
        match self.random.randrange(4):
            case 0:
                marks = ", ".join(["%s"] * len(key))
                cursor.execute(
                    f"INSERT IGNORE INTO {kind} ({', '.join(key)}, v) VALUES ({marks}, %s)",
                    (*key.values(), self.random.randrange(10**9)),
                )
            case 1:
                cursor.execute(
                    f"UPDATE IGNORE {kind} SET v = %s WHERE {where}",
                    (self.random.randrange(10**9), *key.values()),
                )
            case 2:
                cursor.execute(f"DELETE FROM {kind} WHERE {where} LIMIT 1", tuple(key.values()))
            case _:
                sets = ", ".join(f"{name} = %s" for name in other)
                cursor.execute(
                    f"UPDATE IGNORE {kind} SET {sets} WHERE {where}",
                    (*other.values(), *key.values()),
                )


def truth(shop: Writer, kind: str) -> Counter[str]:
    """The table as another client shows it, in the form that events have."""
    found = []
    columns = [str(row[0]) for row in shop(f"SHOW COLUMNS FROM {kind}")]
    for row in shop(f"SELECT {', '.join(columns)} FROM {kind}"):
        made = dict(zip(columns, row, strict=True))
        if kind == "moments":
            made["id"] = made["id"].isoformat(timespec="milliseconds")
        found.append(json.dumps(made, ensure_ascii=False, separators=(",", ":")))
    return Counter(found)


def assert_same(shop: Writer, sink: Sink, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        rows = +sink.bags[kind] if kind in sink.bags else Counter(sink.rows[kind].values())
        assert rows == truth(shop, kind), kind


@pytest.mark.parametrize(("seed", "size"), [(1, 7), (2, 60), (3, 1000)])
def test_the_copy_and_the_changes_give_the_table(shop: Writer, seed: int, size: int) -> None:
    kinds = tuple(KINDS)
    for kind in kinds:
        fill(shop, kind, 300)
    changes, sink = Changes(shop, seed, 300, kinds), Sink(("bags",))
    changes.start()
    with opened(snapshot(shop, size=size)) as log:
        while not log.copied():
            sink.take(log.read(0.2))
        changes.end()
        for found in through(log):
            sink.take(found)
    assert changes.done > 5, "there was something to go wrong"
    assert_same(shop, sink, kinds)
    assert set(sink.copied.values()) == {1}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_copy_that_is_cut_off_again_and_again_gives_the_table(
    shop: Writer, seed: int, tmp_path: Path
) -> None:
    kinds, dice = tuple(KINDS), random.Random(seed)
    for kind in kinds:
        fill(shop, kind, 300)
    changes, sink = Changes(shop, seed, 300, kinds), Sink(("bags",))
    changes.start()
    for _ in range(6):
        log = snapshot(shop, size=dice.choice((20, 70)), storage=tmp_path / "state.db")
        with opened(log, sink.position):
            for _ in range(dice.randrange(40)):
                sink.take(log.read(0.05))
        sink.open = []
    changes.end()
    with opened(snapshot(shop, storage=tmp_path / "state.db"), sink.position) as log:
        for found in through(log):
            sink.take(found)
    assert_same(shop, sink, kinds)
    assert set(sink.copied.values()) == {1}


TYPES = """
    id INT PRIMARY KEY, t TINYINT, tu TINYINT UNSIGNED, s SMALLINT, m MEDIUMINT, mu MEDIUMINT UNSIGNED,
    b BIGINT, bu BIGINT UNSIGNED, z INT(8) ZEROFILL, d DECIMAL(30,10), dz DECIMAL(12,3) ZEROFILL,
    d0 DECIMAL(65,0), f FLOAT, fd FLOAT(7,2), g DOUBLE, b1 BIT(1), b9 BIT(9), b64 BIT(64), y YEAR,
    da DATE, ti TIME, ti6 TIME(6), ti3 TIME(3), dt DATETIME, dt6 DATETIME(6), dt1 DATETIME(1),
    ts TIMESTAMP NULL, ts6 TIMESTAMP(6) NULL, c CHAR(5), v VARCHAR(300), vl VARCHAR(50) CHARACTER SET
    latin1, vu VARCHAR(50) CHARACTER SET utf16, vc VARCHAR(50) CHARACTER SET cp1251, tt TINYTEXT,
    tx TEXT, mt MEDIUMTEXT, lt LONGTEXT, bi BINARY(6), vb VARBINARY(300), tb TINYBLOB, bl BLOB,
    e ENUM('x', 'ä"', ''), se SET('p', 'q', 'ü'), j JSON, u UUID, i6 INET6, p POINT, vc2 VARCHAR(99)
    COMPRESSED, bc BLOB COMPRESSED, gv INT AS (t + 1) VIRTUAL, gs INT AS (t + 2) STORED,
    inv INT INVISIBLE DEFAULT 7
"""
SAMPLES: tuple[dict[str, Any], ...] = (
    {
        "t": -128,
        "tu": 255,
        "s": -32768,
        "m": -8388608,
        "mu": 16777215,
        "b": -(2**63),
        "bu": 2**64 - 1,
    },
    {"t": 0, "tu": 0, "s": 32767, "m": 8388607, "mu": 0, "b": 2**63 - 1, "bu": 2**53 + 1, "z": 42},
    {"d": "-12345678901234567890.0123456789", "dz": "1.5", "d0": "9" * 65},
    {"d": "0", "dz": "0", "d0": "-1"},
    {"f": 1.1, "fd": 12345.67, "g": 0.1},
    {"f": -3.4028235e38, "fd": -0.5, "g": 1.7976931348623157e308},
    {"f": 1e-38, "g": 5e-324, "fd": 0},
    {"b1": 1, "b9": 257, "b64": 2**64 - 1, "y": 1901},
    {"b1": 0, "b9": 0, "b64": 1, "y": 2155},
    {"y": 0, "da": "0000-00-00", "dt": "0000-00-00 00:00:00", "ts": "0000-00-00 00:00:00"},
    {"da": "9999-12-31", "ti": "-838:59:59", "ti6": "-00:00:00.000001", "ti3": "838:59:59.999"},
    {"da": "2020-02-30", "dt6": "1000-01-01 00:00:00.000001", "dt1": "2024-00-00 00:00:00.9"},
    {"dt": "2024-02-29 23:59:59", "ti": "00:00:00", "ti6": "12:00:00.5", "ti3": "-34:00:00.001"},
    {
        "ts": "1970-01-01 00:00:01",
        "ts6": "2038-01-19 03:14:07.999999",
        "dt1": "2024-05-06 07:08:09.1",
    },
    {"c": "a  ", "v": 'q"\\\n\t\x01/ü😀', "vl": "äÿ€", "vu": "ü😀", "vc": "Привет", "tt": "é"},
    {"c": "", "v": "x" * 251, "vl": " y ", "tx": "z" * 70000, "mt": "m" * 300, "lt": "l" * 252},
    {
        "bi": b"\1\0\2",
        "vb": b"\xff" * 260,
        "tb": b"",
        "bl": bytes(range(256)),
        "e": 'ä"',
        "se": "p,ü",
    },
    {"bi": b"", "vb": b"", "e": "", "se": "", "j": '{"a": [1, 2.50, "x\\u00e9"], "b": {} }'},
    {"e": "x", "se": "q", "j": "[]", "u": "123e4567-e89b-12d3-a456-426655440000", "i6": "::1"},
    {"i6": "2001:db8::ff00:42:8329", "vc2": "ä" * 90, "bc": b"\0" * 500, "inv": 9},
    {"i6": "::ffff:1.2.3.4", "vc2": "", "bc": b"", "j": '"text"'},
)


def for_mysql(types: str) -> str:
    """Without what only MariaDB has."""
    return re.sub(r" (UUID|INET6)\b", " VARCHAR(99)", types.replace("COMPRESSED", ""))


def test_a_copied_row_is_byte_for_byte_what_the_log_makes_of_it(shop: Writer) -> None:
    shop("SET sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+02:00'")
    mariadb = isinstance(shop.server, MariaDB)
    shop(f"CREATE TABLE kinds ({TYPES if mariadb else for_mysql(TYPES)})")
    log: BinlogLog = mysql_log(shop.server, f"{shop.database}.kinds", id="log")
    log.open("")
    for n, sample in enumerate(SAMPLES):
        names = ", ".join(("id", *sample))
        shop(
            f"INSERT INTO kinds ({names}, p) VALUES (%s{', %s' * len(sample)}, POINT(%s, -1))",
            n,
            *sample.values(),
            n,
        )
    from_log = [row for batch in batches(log) for row in batch.to_pylist()]
    log.close()
    # Chunks are read side by side, so they come in any order.
    rows = sorted(
        copied(snapshot(shop, "kinds", size=4)), key=lambda row: json.loads(row["after"])["id"]
    )
    for told, row in zip(from_log, rows, strict=True):
        assert row["op"] == "r"
        for name in ("after", "primary_key", "db", "table", "schema"):
            assert row[name] == told[name], name


def test_the_server_compares_keys_by_its_own_rules(shop: Writer) -> None:
    """Chunks of one row each: whatever the type of the key, none is left out or comes twice."""
    keys: dict[str, tuple[str, list[Any]]] = {
        "i": ("INT", [-5, 0, 7]),
        "u": ("BIGINT UNSIGNED", [0, 2**63, 2**64 - 1]),
        "dec": ("DECIMAL(20,10)", ["-1.5", "0.0000000000", "1.0000000001"]),
        "f": ("FLOAT", [-0.1, 0.1, 1.1, 3.4e38]),
        "g": ("DOUBLE", [-1e300, 0.1, 0.30000000000000004]),
        "s": ("VARCHAR(20) COLLATE utf8mb4_unicode_ci", ["", "a", "B", "ß", "ü", "z'\"\\", "😀"]),
        "l": ("VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci", ["a", "ä", "AF", "z"]),
        "w": ("CHAR(8) CHARACTER SET utf16", ["a", "ü", "😀"]),
        "b": ("VARBINARY(9)", [b"", b"\0", b"'", b"\xff\xfe"]),
        "bf": ("BINARY(3)", [b"a", b"b\0"]),
        "e": ("ENUM('z', 'a', 'm')", ["z", "a", "m"]),
        "da": ("DATE", ["0000-00-00", "2024-01-01", "9999-12-31"]),
        "ti": ("TIME(2)", ["-838:59:59", "-00:00:00.01", "12:00:00"]),
        "ts": ("TIMESTAMP(6)", ["1970-01-01 00:00:01", "2024-03-31 01:30:00.000001"]),
        "y": ("YEAR", [0, 1901, 2155]),
        "bit": ("BIT(12)", [0, 1, 4095]),
        "uu": ("UUID", ["00000000-0000-0000-0000-000000000001", "ffffffff-0000-1000-8000-00000000000f"]),
        "ip": ("INET6", ["::1", "::ffff:1.2.3.4", "2001:db8::1"]),
        "tx": ("TEXT", ["a" * 300, "b"]),
    }  # fmt: skip
    shop("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'")
    if not isinstance(shop.server, MariaDB):
        del keys["uu"], keys["ip"]
    for name, (kind, values) in keys.items():
        length = "(50)" if kind == "TEXT" else ""
        shop(f"CREATE TABLE k_{name} (k {kind} NOT NULL, n INT, PRIMARY KEY (k{length}))")
        for n, value in enumerate(values):
            shop(f"INSERT INTO k_{name} VALUES (%s, %s)", value, n)
        # The same with another column before it, so that comparing goes on to the second.
        shop(f"CREATE TABLE c_{name} (o INT, k {kind} NOT NULL, n INT, PRIMARY KEY (o, k{length}))")
        shop(f"INSERT INTO c_{name} SELECT o, k, n FROM k_{name}, (SELECT 1 o UNION SELECT 2) x")
    rows = copied(snapshot(shop, size=1))
    found = Counter((row["table"], json.loads(row["after"])["n"]) for row in rows)
    wanted: Counter[tuple[str, int]] = Counter()
    for name, (_, values) in keys.items():
        for n in range(len(values)):
            wanted[f"k_{name}", n], wanted[f"c_{name}", n] = 1, 2
    assert found == wanted


def test_a_table_that_is_altered_meanwhile_is_read_anew(shop: Writer) -> None:
    fill(shop, "numbers", 300)
    sink = Sink()
    with opened(snapshot(shop, size=10, within=False)) as log:
        steps = iter(
            (
                "ALTER TABLE numbers ADD COLUMN more INT NOT NULL DEFAULT 5 FIRST",
                "ALTER TABLE numbers MODIFY COLUMN v BIGINT",
                "ALTER TABLE numbers DROP COLUMN more, FORCE",
            )
        )
        for count, found in enumerate(through(log)):
            sink.take(found)
            if count % 6 == 3:
                for sql in (next(steps, None),):
                    if sql:
                        shop(sql)
                        shop("UPDATE numbers SET v = v + 1 WHERE id % 7 = 0")
    shop_rows = truth(shop, "numbers")
    keys = {json.loads(text)["id"]: json.loads(text)["v"] for text in shop_rows}
    told = {json.loads(text)["id"]: json.loads(text)["v"] for text in sink.rows["numbers"].values()}
    assert told == keys


def test_a_table_that_is_emptied_or_dropped_meanwhile_is_no_failure(shop: Writer) -> None:
    for kind in ("numbers", "names", "moments"):
        fill(shop, kind, 200)
    sink = Sink()
    with opened(snapshot(shop, size=10, within=False)) as log:
        for count, found in enumerate(through(log)):
            sink.take(found)
            if count == 4:
                shop("TRUNCATE TABLE numbers")
                shop("INSERT INTO numbers VALUES (1, 1)")
                shop("DROP TABLE names")
    assert Counter(sink.rows["numbers"].values()) == truth(shop, "numbers")
    assert Counter(sink.rows["moments"].values()) == truth(shop, "moments")


def test_a_key_that_changes_meanwhile_stops_the_copy(shop: Writer) -> None:
    fill(shop, "numbers", 100)
    with (
        opened(snapshot(shop, size=10, within=False)) as log,
        pytest.raises(SourceError, match=r"the key of table .*numbers.* has changed"),
    ):
        log.read(0.2)
        shop("ALTER TABLE numbers DROP PRIMARY KEY, ADD PRIMARY KEY (v)")
        for _ in through(log):
            pass


def test_rows_of_many_megabytes_are_read(shop: Writer) -> None:
    shop("SET GLOBAL max_allowed_packet = 67108864")
    shop.connection = client(shop.server, shop.database)
    shop("CREATE TABLE large (id INT PRIMARY KEY, doc LONGTEXT, tail VARCHAR(9))")
    sizes = [10, 70_000, (1 << 24) - 20, 17_000_000, 20]
    for n, size in enumerate(sizes):
        shop("INSERT INTO large VALUES (%s, REPEAT('x', %s), 'end')", n, size)
    # The first large row has the kernels compiled, which takes a minute on a busy machine.
    log = snapshot(shop, "large", columns="position tx_end op table primary_key after")
    rows = copied(log, seconds=300)
    assert [len(json.loads(row["after"])["doc"]) for row in rows] == sizes
    assert {json.loads(row["after"])["tail"] for row in rows} == {"end"}


def test_initial_copies_once_and_always_at_every_start(shop: Writer, tmp_path: Path) -> None:
    fill(shop, "numbers", 30)

    def run(mode: str, start: str, name: str) -> tuple[str, int]:
        with opened(snapshot(shop, mode=mode, storage=tmp_path / name), start) as log:
            found = [row for got in through(log) for b in got for row in b.to_pylist()]
        return (found[-1]["position"] if found else start), sum(r["op"] == "r" for r in found)

    position, count = run("initial", "", "a.db")
    assert count == 30
    assert run("initial", position, "a.db") == (position, 0)
    position, count = run("always", "", "b.db")
    assert count == 30
    assert run("always", position, "b.db")[1] == 30


def test_copied_rows_are_marked_and_have_ids_that_stay(shop: Writer) -> None:
    shop("CREATE TABLE pairs (a VARCHAR(5), b INT, PRIMARY KEY (a, b))")
    shop("INSERT INTO pairs VALUES ('x', 1), ('y', 2)")
    first, again = copied(snapshot(shop, "pairs")), copied(snapshot(shop, "pairs"))
    source = json.loads(first[0]["source"])
    assert source["snapshot"] == "true" and "pos" not in source
    assert (source["db"], source["table"]) == (shop.database, "pairs")
    assert [row["event_id"] for row in first] == [row["event_id"] for row in again]
    assert len({row["event_id"] for row in first}) == 2
    assert [row["tx_end"] for row in first] == [False, True]
    assert all(row["before"] is None and row["transaction"] is None for row in first)


def test_outbox_tables_are_not_copied(shop: Writer) -> None:
    fill(shop, "numbers", 3)
    shop("CREATE TABLE outbox (id INT PRIMARY KEY)")
    shop("INSERT INTO outbox VALUES (1)")
    copy = Snapshot()
    source = MysqlSource(
        dsn=shop.server.dsn,  # type: ignore[attr-defined]
        tables=(f"{shop.database}.%",),
        outbox_tables=(f"{shop.database}.outbox",),
        snapshot=copy,
    )
    rows = copied(with_snapshot(source, copy, ReaderSettings(pipeline="p", id="mysql")))
    assert {row["table"] for row in rows} == {"numbers"}


@pytest.mark.parametrize(("seconds", "warned"), [(0, ""), (10**6, ""), (1, "HIGH RISK")])
def test_a_log_that_is_kept_too_short_is_told_before(
    seconds: int, warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    def query(_: str) -> list[tuple[Any, ...]]:
        return [("binlog_expire_logs_seconds", seconds), ("expire_logs_days", "0.000000")]

    ask: Callable[..., list[tuple[Any, ...]]] = query
    preflight(ask, 40_000_000, 1, "shop")
    assert (warned in caplog.text) if warned else not caplog.text
