"""SQLite values as JSON, made inside SQLite while a row is read.

A value goes by its own type, never by its column's: integers as exact numbers, reals with the
fewest digits that read back the same, infinities as strings, text as text, blobs as
{"_base64": ...}. SQLite's json_object does integers, text and nulls itself; it would round reals
to 15 digits and refuses blobs, so those two go through Python.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Sequence

from .turso_schema import text

_PER_CALL = 60  # columns: a function takes 127 arguments at most by default, two to a column


def register(connection: sqlite3.Connection) -> None:
    """Gives a connection the functions that the expressions of this module call."""
    encoding = connection.execute("PRAGMA encoding").fetchone()[0]
    if isinstance(encoding, bytes):
        encoding = encoding.decode()
    utf8 = encoding.upper() == "UTF-8"

    def blob(value: bytes) -> str:
        return '{"_base64":"' + base64.b64encode(value).decode() + '"}'

    def odd_text(value: bytes) -> str:
        """Text of unknown soundness: bytes that are no UTF-8 are shown as bytes."""
        try:
            return json.dumps(
                value.decode("utf-8" if utf8 else encoding.lower()), ensure_ascii=False
            )
        except UnicodeDecodeError:
            return blob(value)

    # Python's own repr, without a frame of ours: it is called for each real of each row.
    connection.create_function("dfc_real", 1, float.__repr__, deterministic=True)
    connection.create_function("dfc_blob", 1, blob, deterministic=True)
    connection.create_function("dfc_text", 1, odd_text, deterministic=True)


def json_object(names: Sequence[str], values: Sequence[str], careful: bool = False) -> str:
    """SQL for a JSON object with these keys, in this order, of these SQL expressions.

    `careful` copes with text that is no UTF-8, at a price.
    """
    parts = [
        f"{text(name)},{_value(value, careful)}" for name, value in zip(names, values, strict=True)
    ]
    calls = [
        "json_object(" + ",".join(parts[i : i + _PER_CALL]) + ")"
        for i in range(0, len(parts), _PER_CALL)
    ] or ["json_object()"]
    if len(calls) == 1:
        return calls[0]
    inside = "||','||".join(f"substr({call},2,length({call})-2)" for call in calls)
    return "'{'||" + inside + "||'}'"


def _value(value: str, careful: bool) -> str:
    odd = f"WHEN 'text' THEN json(dfc_text(CAST({value} AS BLOB))) " if careful else ""
    return (
        f"CASE typeof({value}) WHEN 'real' THEN CASE {value} WHEN 9e999 THEN 'Infinity'"
        f" WHEN -9e999 THEN '-Infinity' ELSE json(dfc_real({value})) END "
        f"WHEN 'blob' THEN json(dfc_blob({value})) {odd}ELSE {value} END"
    )
