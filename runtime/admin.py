"""What a pipeline's storage holds, for people: positions, runner, dead letters.

Called by `dfc status`, `dfc checkpoint` and `dfc dlq` as a program, with the request as JSON on
standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from .deadletters import NAMESPACE as LETTERS
from .env import expand
from .errors import ConfigError, DfcError
from .lease import NAMESPACE as LEASES
from .lease import Lease, is_gone
from .positions import NAMESPACE as CHECKPOINTS
from .storage import SqliteStorage, Storage


class Admin:
    """One pipeline on its storage."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.name: str = request["pipeline"]
        self.sinks: dict[str, dict[str, Any]] = {sink["id"]: sink for sink in request["sinks"]}
        self._prefix = f"{self.name}/{request['source']}::sink::"
        spec = Storage(request["backend"], expand(request["path"]))
        spec.check()
        if spec.backend == "memory":
            raise ConfigError("`storage: {backend: memory}` keeps nothing between runs")
        if not os.path.exists(spec.path):
            raise ConfigError(f"there is no {spec.path}: the pipeline has not run yet")
        self.storage: SqliteStorage = spec.open()

    # --- looking -----------------------------------------------------------------------------

    def status(self) -> None:
        slot = self.storage.slot(LEASES, self.name)
        holder = json.loads(slot[1]) if slot else {"token": ""}
        if not holder["token"]:
            print(f"{self.name}: not running")
        elif is_gone(holder):
            print(f"{self.name}: not running; its last runner (process {holder['pid']}) was killed")
        else:
            print(f"{self.name}: run by process {holder['pid']} on {holder['host']}")
        print(f"dead letters: {self.storage.count(LETTERS, self.name)}")
        self.positions()

    def positions(self) -> None:
        rows = []
        for sink in self.sinks:
            found = self._positions(sink)
            for lane, entry in sorted(found.items()):
                age = max(0, int(time.time() - entry["ts_ms"] / 1000))
                place = entry["position"] or "(beginning)"
                rows.append((sink, str(lane), place, f"{entry['events']:,}", f"{age} s ago"))
            if not found:
                rows.append((sink, "-", "(beginning)", "0", "never"))
        _table(("sink", "lane", "position", "events", "saved"), rows)

    def show(self) -> None:
        for sink in self._chosen():
            for lane, entry in sorted(self._positions(sink).items()):
                print(json.dumps({"sink": sink, "lane": lane, **entry}))

    def letters(self) -> None:
        wanted = self.request.get("sink")
        rows = []
        for number, letter in self._letters():
            meta = letter["meta"]
            where = meta["sink_id"] or meta["processor_id"]
            if wanted in (None, where):
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(letter["timestamp"]))
                rows.append((str(number), when, where, letter["event_id"] or "-", meta["error_message"]))  # fmt: skip
        _table(("id", "when (UTC)", "at", "event", "error"), rows[: self.request["limit"]])
        left = len(rows) - self.request["limit"]
        if left > 0:
            print(f"and {left} more (--limit)")

    def letter(self) -> None:
        for number, letter in self._letters():
            if number == self.request["id"]:
                print(json.dumps(letter, indent=2, ensure_ascii=False))
                return
        raise ConfigError(f"there is no dead letter {self.request['id']}")

    # --- changing ----------------------------------------------------------------------------

    def reset(self) -> None:
        self._move("")

    def set(self) -> None:
        self._move(self.request["position"])

    def purge(self) -> None:
        numbers = self.request["ids"] or [number for number, _ in self._letters()]
        removed = self.storage.remove(LETTERS, self.name, numbers)
        print(f"{removed} dead letter{'s' * (removed != 1)} removed")

    def _move(self, position: str) -> None:
        chosen = self._chosen()
        own = [sink for sink in chosen if self.sinks[sink]["own_position"]]
        if own:
            raise ConfigError(
                f"{', '.join(own)}: such a sink keeps its position with its data, and goes by the "
                "later of the two; to deliver again give it a new destination and a new id"
            )
        # Nobody may run meanwhile: a runner would write over it, or act on what it read before.
        lease = Lease(self.storage, self.name, lambda: None)
        lease.acquire(lambda why: print(why, file=sys.stderr))
        try:
            lanes = self.request["lanes"]
            for sink in chosen:
                for key in self.storage.items(CHECKPOINTS, f"{self._prefix}{sink}::"):
                    self.storage.delete(CHECKPOINTS, key)
                if position:
                    now = int(time.time() * 1000)
                    entry = {"position": position, "lanes": lanes, "ts_ms": now, "events": 0}
                    value = json.dumps(entry).encode()
                    keys = [f"{self._prefix}{sink}::{lane}" for lane in range(lanes)]
                    self.storage.put_all(CHECKPOINTS, dict.fromkeys(keys, value))
                print(f"{sink}: {position or 'starts from the beginning'}")
        finally:
            lease.release()

    # --- parts -------------------------------------------------------------------------------

    def _chosen(self) -> list[str]:
        wanted = self.request.get("sink")
        if wanted is None:
            return list(self.sinks)
        if wanted not in self.sinks:
            raise ConfigError(f"no sink `{wanted}`; there are: {', '.join(self.sinks)}")
        return [wanted]

    def _positions(self, sink: str) -> dict[int, dict[str, Any]]:
        prefix = f"{self._prefix}{sink}::"
        stored = self.storage.items(CHECKPOINTS, prefix)
        return {int(key.removeprefix(prefix)): json.loads(value) for key, value in stored.items()}

    def _letters(self) -> Iterable[tuple[int, dict[str, Any]]]:
        entries = self.storage.peek(LETTERS, self.name, 1_000_000)
        return [(number, json.loads(value)) for number, value in entries]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


def main() -> int:
    request = json.load(sys.stdin)
    try:
        getattr(Admin(request), request["command"])()
    except DfcError as error:
        print(f"dfc: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
