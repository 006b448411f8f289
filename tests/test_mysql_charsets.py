"""Every charset of the server, letter by letter, against the server's own conversion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
from dfc_runtime.kernels import mysql_charsets
from dfc_runtime.kernels.mysql_text import put_text
from dfc_runtime.sources.mysql_columns import charset_of

from .mysql_log import Client


@pytest.fixture(scope="module")
def client(mariadb_server: Any) -> Iterator[Client]:
    made = Client(mariadb_server)
    yield made
    made.close()


def codes(charset: str) -> list[bytes]:
    """Every byte, and every sequence of two or three that can be a letter."""
    found: chain[bytes] = chain(bytes((first,)) for first in range(256))
    if len(mysql_charsets.table(charset)) > 256:
        found = chain(found, map(bytes, product(range(0x81, 0x100), range(0x40, 0x100))))
    if charset in ("ujis", "eucjpms"):
        found = chain(found, map(bytes, product((0x8F,), range(0xA1, 0x100), range(0xA1, 0x100))))
    return list(found)


def test_every_letter_is_the_servers(client: Client) -> None:
    names = [str(row[0]) for row in client.query("SHOW CHARACTER SET")]
    by_table = [n for n in names if mysql_charsets.reading(n) == mysql_charsets.TABLE]
    assert len(by_table) > 25  # KeyError above for one that is not known
    client.query(
        "CREATE TEMPORARY TABLE letters (id int PRIMARY KEY, b varbinary(4)) ENGINE=MEMORY"
    )
    for charset in by_table:
        wanted = codes(charset)
        client.query("TRUNCATE letters")
        for at in range(0, len(wanted), 5000):
            part = enumerate(wanted[at : at + 5000], at)
            client.query(
                "INSERT INTO letters VALUES " + ",".join(f"({n},0x{c.hex()})" for n, c in part)
            )
        rows = client.query(
            f"SELECT HEX(CONVERT(CONVERT(b USING {charset}) USING utf32)) FROM letters ORDER BY id"
        )
        wrong = []
        for code, (found,) in zip(wanted, rows, strict=True):
            theirs = bytes.fromhex(found or "").decode("utf-32-be")
            ours = mysql_charsets.decode(code, charset)
            # A question mark or U+FFFD is what the server has for no letter.
            if theirs and "?" not in theirs and "\ufffd" not in theirs and ours != theirs:
                wrong.append((code.hex(), theirs, ours))
        assert wrong == [], charset


def test_the_kernel_reads_as_the_tables_say() -> None:
    for charset in ("latin1", "gbk", "sjis", "ujis", "gb18030", "koi8r"):
        table = mysql_charsets.table(charset)
        for code in codes(charset)[::37]:
            data = np.frombuffer(code, np.uint8)
            out = np.zeros(64, np.uint8)
            used = put_text(data, 0, len(code), mysql_charsets.TABLE, table, 0, out, 0)
            made = out[:used].tobytes().decode()
            letters = mysql_charsets.decode(code, charset)
            if "\ufffd" in letters:
                assert made.startswith('{"_base64":"'), (charset, code)
            else:
                assert made == json.dumps(letters, ensure_ascii=False), (charset, code)


@pytest.mark.parametrize(
    "text", ["漢字", "😀", "\U00010000", "€", "ä", "\u3000", "\ue5e5", "\uffff"]
)
def test_gb18030_of_two_and_four_bytes(text: str) -> None:
    assert mysql_charsets.decode(text.encode("gb18030"), "gb18030") == text


def test_every_collation_has_its_charset(client: Client) -> None:
    rows = client.query(
        "SELECT ID, CHARACTER_SET_NAME FROM"
        " information_schema.COLLATION_CHARACTER_SET_APPLICABILITY WHERE ID > 0"
    )
    assert len(rows) > 200
    assert [(n, charset_of(int(n))) for n, _ in rows] == [(n, str(name)) for n, name in rows]
