"""Where the lanes of a NATS sink stand: records in the key-value bucket `dfc_positions`.

Each lane has a key of its own, and its record is only ever replaced if it is the one last seen. Another
number of lanes has other keys; those of before stay, and tell what must not be lost.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, dataclass

from ..errors import SinkError
from .base import Lane
from .nats_client import Connection, Reply

NAME = "dfc_positions"
API = "$JS.API.STREAM"
NO_MESSAGE, NO_STREAM, WRONG_LAST_SEQUENCE = 10037, 10059, 10071
_NAME_TAKEN = 10058
_KEPT_IN = f"KV_{NAME}"


@dataclass(frozen=True)
class Record:
    """Where a lane stands."""

    position: str
    sequence: int  # messages of the lane's whole units are not behind it
    created: str  # when the stream was made: another one has other numbers
    lasts_secs: float  # for so long after it the writer may have gone on without a new one
    epoch: int = 0  # counts how often the sink was moved: its events come again under new ids
    again: tuple[int, ...] = ()  # old events were last stored behind this number, and up to this


class Bucket:
    """The records of one sink; not `usable` when the login may not make it."""

    def __init__(
        self, connection: Connection, stream: str, sink: str, lane: Lane, patience: float
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._patience = patience
        names = (stream, lane.pipeline, sink)
        self._place = f"$KV.{NAME}." + ".".join(map(token, names))
        self.key = self.key_of(lane.index, lane.count)
        self.usable = True

    def key_of(self, lane: int, lanes: int) -> str:
        return f"{self._place}.{lanes}.{lane}"

    def is_of_others(self, key: str) -> bool:
        """Whether it belongs to another number of lanes."""
        return key.rpartition(".")[0] != self.key.rpartition(".")[0]

    @property
    def question(self) -> tuple[str, bytes]:
        """Asks for this lane's record; read() takes the reply."""
        return asked(_KEPT_IN, last=self.key)

    def read(self, kept: Reply, created: str) -> tuple[Record | None, int]:
        """The record, and its number in the bucket."""
        if kept.code == 0:
            message = kept.value["message"]
            known = json.loads(decoded(message.get("data")))
            record = Record(**{**known, "again": tuple(known.get("again", ()))})
            # One for an earlier stream of this name says nothing about this one.
            return record if record.created == created else None, int(message["seq"])
        if kept.code not in (NO_MESSAGE, NO_STREAM):
            self.usable = False
        return None, 0

    def all(self, created: str) -> dict[str, tuple[Record | None, int]]:
        """The records of every lane there ever was, by key."""
        wanted = json.dumps({"subjects_filter": f"{self._place}.>"}).encode()
        ask = self._connection.ask
        (about,) = ask([(f"{API}.INFO.{_KEPT_IN}", wanted)], self._patience)
        keys = (about.value.get("state") or {}).get("subjects") or {} if about.code == 0 else {}
        replies = ask([asked(_KEPT_IN, last=key) for key in sorted(keys)], self._patience)
        return {
            key: self.read(kept, created) for key, kept in zip(sorted(keys), replies, strict=True)
        }

    def put(self, record: Record, number: int, key: str = "") -> int:
        """Replaces the record of that number (0: none yet); returns the number of the new one."""
        headers = f"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {number}\r\n\r\n"
        content = json.dumps(asdict(record)).encode()
        (kept,) = self._connection.ask(
            [(key or self.key, content)], self._patience, headers.encode()
        )
        if kept.code == WRONG_LAST_SEQUENCE:
            raise self.second_writer()
        if kept.code:
            raise SinkError(f"the position cannot be kept in bucket {NAME}: {kept.text}")
        return int(kept.value["seq"])

    def second_writer(self) -> SinkError:
        lane = self.key.rpartition(".")[2]
        return SinkError(
            f"another process delivers for lane {lane} of this sink to stream `{self._stream}`; "
            "only one may"
        )

    def make(self, replicas: int) -> None:
        config = {
            "name": _KEPT_IN,
            "description": "where the sinks of dfc stand",
            "subjects": [f"$KV.{NAME}.>"],
            "max_msgs_per_subject": 1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msg_size": -1,
            "max_consumers": -1,
            "retention": "limits",
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        }
        question = (f"{API}.CREATE.{_KEPT_IN}", json.dumps(config).encode())
        (made,) = self._connection.ask([question], self._patience)
        self.usable = made.code in (0, _NAME_TAKEN)


def asked(stream: str, *, seq: int = 0, last: str = "") -> tuple[str, bytes]:
    """The question for one message of a stream."""
    wanted = {"seq": seq} if seq else {"last_by_subj": last}
    return f"{API}.MSG.GET.{stream}", json.dumps(wanted).encode()


def token(name: str) -> str:
    """A name as one part of a key; what a key may not hold becomes =XX."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda m: b"=%02X" % m.group()[0], name.encode()).decode()


def decoded(text: str | None) -> str:
    return base64.b64decode(text or "").decode(errors="replace")
