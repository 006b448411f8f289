"""What a pipeline's storage holds, for people: positions, runner, dead letters.

Called by `dfc status`, `dfc checkpoint` and `dfc dlq` as a program, with the request as JSON on
standard input.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from .deadletters import NAMESPACE as LETTERS
from .env import Env, expand
from .errors import ConfigError, DfcError, MissingEnv, WrongUsage, reason
from .lease import NAMESPACE as LEASES
from .lease import Lease, is_gone
from .letter_notes import Note, forget_notes, notes
from .positions import NAMESPACE as CHECKPOINTS
from .redelivery import replay
from .replay import load_job
from .sinks import Sink
from .sources.lag import Wrong, lags
from .sources.snapshot import begin_anew
from .storage import Storage
from .storage.flags import chosen


class Admin:
    """One pipeline on its storage."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.name: str = request["pipeline"]
        self.sinks: list[str] = request["sinks"]
        self._prefix = f"{self.name}/{request['source']}::sink::"
        named = Storage(request["backend"], request["path"], request["dsn"])
        spec = chosen(named, request["flags"]).filled(expand)
        if spec.backend == "memory":
            raise ConfigError("`storage: {backend: memory}` keeps nothing between runs")
        storage = spec.find()
        if storage is None:
            where = "table in the database" if spec.shared else spec.path
            raise ConfigError(f"there is no {where}: the pipeline has not run yet")
        self.storage = storage

    # --- looking -----------------------------------------------------------------------------

    def status(self) -> None:
        slot = self.storage.slot(LEASES, self.name)
        holder = json.loads(slot[1]) if slot else {"token": ""}
        runs = bool(holder["token"]) and not is_gone(holder)
        letters = self.storage.count(LETTERS, self.name)
        lanes = self._standing()
        if self.request["json"]:
            runner = {"pid": holder["pid"], "host": holder["host"]} if runs else None
            about = {"pipeline": self.name, "runner": runner, "dead_letters": letters}
            print(json.dumps({**about, "sinks": lanes}, indent=2))
            return
        if not holder["token"]:
            print(f"{self.name}: not running")
        elif runs:
            print(f"{self.name}: run by process {holder['pid']} on {holder['host']}")
        else:
            print(f"{self.name}: not running; its last runner (process {holder['pid']}) was killed")
        print(f"dead letters: {letters}")
        kept = max((lane["retained_bytes"] or 0 for lane in lanes), default=0)
        if kept:
            print(f"log that the source keeps for it: {kept:,} bytes")
        rows = [
            (
                lane["sink"],
                str(lane["lane"]),
                lane["position"] or "(beginning)",
                f"{lane['events']:,}",
                _ago(lane["age_seconds"]) or "never",
                _ago(lane["event_age_seconds"]) or "-",
                _lag(lane),
            )
            for lane in lanes
        ]
        _table(("sink", "lane", "position", "events", "saved", "last event", "lag"), rows)

    def _standing(self) -> list[dict[str, Any]]:
        """Where every lane of every sink stands, and how far that is from the source's head."""
        found = {sink: self._positions(sink) or {0: {}} for sink in self.sinks}
        places = [entry.get("position", "") for lanes in found.values() for entry in lanes.values()]
        known = lags(load_job(self.name, self.request["job"]).SOURCE, places)
        rows = []
        for sink, lanes in found.items():
            for lane, entry in sorted(lanes.items()):
                position, event_ts_ms = entry.get("position", ""), entry.get("event_ts_ms")
                lag, age = known[position], _age(event_ts_ms)
                row: dict[str, Any] = {
                    "sink": sink,
                    "lane": lane,
                    "position": position,
                    "events": entry.get("events", 0),
                    "age_seconds": _age(entry.get("ts_ms")),
                    "event_ts_ms": event_ts_ms,
                    "event_age_seconds": age,
                }
                if isinstance(lag, str):
                    row |= dict.fromkeys(("lag", "lag_unit", "lag_seconds", "retained_bytes"))
                    row["lag_unknown"] = lag
                else:
                    row |= {
                        "lag": lag.amount,
                        "lag_unit": lag.unit,
                        "lag_seconds": age if lag.amount else 0,
                        "retained_bytes": lag.retained,
                        "lag_unknown": None,
                    }
                rows.append(row)
        return rows

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
        known = notes(self.storage, self.name)
        rows = []
        for number, letter in self._chosen_letters():
            note, meta = known.get(number, Note()), letter["meta"]
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(letter["timestamp"]))
            rows.append(
                {
                    "id": str(number),
                    "when (UTC)": when,
                    "at": _where(letter),
                    "event": letter["event_id"] or "-",
                    "replays": str(note.replays or ""),
                    "error": note.error or meta["error_message"],
                }
            )
        if not rows:
            print(self._no_letters())
            return
        shown = rows[: self.request["limit"]]
        head = ["id", "when (UTC)", "at", "event", "replays", "error"]
        if not any(row["replays"] for row in shown):
            head.remove("replays")
        _table(head, [[row[name] for name in head] for row in shown])
        left = len(rows) - self.request["limit"]
        if left > 0:
            print(f"and {left} more (--limit)")

    def letter(self) -> None:
        for number, letter in self._letters():
            if number == self.request["id"]:
                note = notes(self.storage, self.name).get(number, Note())
                meta = letter["meta"]
                meta["attempts"] += note.replays
                meta["error_message"] = note.error or meta["error_message"]
                if note.delivered:
                    meta["delivered_to"] = note.delivered
                letter.pop("row", None)  # for a replay; `event` is what people look for
                print(json.dumps(letter, indent=2, ensure_ascii=False))
                return
        raise ConfigError(f"there is no dead letter {self.request['id']}")

    # --- changing ----------------------------------------------------------------------------

    def reset(self) -> int:
        return self._move("")

    def set(self) -> int:
        return self._move(self.request["position"])

    def purge(self) -> None:
        numbers = self.request["ids"] or [number for number, _ in self._letters()]
        removed = self.storage.remove(LETTERS, self.name, numbers)
        forget_notes(self.storage, self.name, notes(self.storage, self.name).keys() & set(numbers))
        print(f"{removed} dead letter{'s' * (removed != 1)} removed")

    def replay(self) -> int:
        if self.request["dry_run"]:
            return self._replay(None)
        taken = threading.Event()
        lease = Lease(self.storage, self.name, taken.set)
        try:
            lease.acquire(lambda why: print(why, file=sys.stderr))
        except ConfigError as error:
            raise ConfigError(f"{error}; a replay writes in its place: stop it first") from None
        try:
            return self._replay(lease, taken)
        finally:
            lease.release()

    def _replay(self, lease: Lease | None, taken: threading.Event | None = None) -> int:
        asked = set(self.request["ids"])
        queue = list(self._letters())
        found = {number for number, letter in queue if self._is_chosen(letter)}
        if not found and not asked:
            print(self._no_letters())
            return 0
        if missing := asked - found:
            raise ConfigError(f"there is no dead letter {', '.join(map(str, sorted(missing)))}")
        return replay(self.storage, self.request, queue, asked or found, lease, taken)

    def _move(self, position: str) -> int:
        chosen = self._chosen()
        module = load_job(self.name, self.request["job"])
        if position:
            lag = lags(module.SOURCE, [position])[position]
            if isinstance(lag, Wrong):
                raise ConfigError(f"{lag}; `dfc checkpoint list` and `dfc dlq show` have some")
        sinks = {sink.id: sink for sink in module.sinks(Env.require(module.ENV))}
        # Nobody may run meanwhile: a runner would write over it, or act on what it read before.
        lease = Lease(self.storage, self.name, lambda: None)
        lease.acquire(lambda why: print(why, file=sys.stderr))
        try:
            moved = sum(self._move_sink(sinks[sink], position, lease) for sink in chosen)
            if not position and moved == len(self.sinks):
                # What the source has noted beside the positions goes with the last of them.
                source = self.storage.items(CHECKPOINTS, self._prefix.removesuffix("sink::"))
                self.storage.put_all(CHECKPOINTS, {}, guard=lease.guard, gone=source)
                begin_anew(self.storage, self.name, module.SOURCE.id)
        finally:
            lease.release()
        return 0 if moved == len(chosen) else 1

    def _move_sink(self, sink: Sink, position: str, lease: Lease) -> bool:
        """Where the sink itself keeps its position first: the later of the two counts, so a crash in
        between leaves it where it was, or there."""
        lanes = self.request["lanes"]
        try:
            sink.move(self.name, lanes, position)
        except Exception as error:
            print(f"dfc: sink `{sink.id}` stays: {reason(error, sink.secrets)}", file=sys.stderr)
            return False
        prefix, new = f"{self._prefix}{sink.id}::", {}
        if position:
            now = int(time.time() * 1000)
            entry = {"position": position, "lanes": lanes, "ts_ms": now, "events": 0}
            new = {f"{prefix}{lane}": json.dumps(entry).encode() for lane in range(lanes)}
        gone = self.storage.items(CHECKPOINTS, prefix).keys() - new.keys()
        self.storage.put_all(CHECKPOINTS, new, guard=lease.guard, gone=gone)
        print(f"{sink.id}: {position or 'starts from the beginning'}")
        return True

    # --- parts -------------------------------------------------------------------------------

    def _chosen(self) -> list[str]:
        wanted = self.request.get("sink")
        if wanted is None:
            return self.sinks
        if wanted not in self.sinks:
            raise ConfigError(f"no sink `{wanted}`; there are: {', '.join(self.sinks)}")
        return [wanted]

    def _positions(self, sink: str) -> dict[int, dict[str, Any]]:
        prefix = f"{self._prefix}{sink}::"
        stored = self.storage.items(CHECKPOINTS, prefix)
        return {int(key.removeprefix(prefix)): json.loads(value) for key, value in stored.items()}

    def _chosen_letters(self) -> list[tuple[int, dict[str, Any]]]:
        return [(n, letter) for n, letter in self._letters() if self._is_chosen(letter)]

    def _no_letters(self) -> str:
        wanted = self.request.get("sink")
        if wanted is None:
            return "no dead letters"
        others = sorted({_where(letter) for _, letter in self._letters()})
        return f"no dead letters of `{wanted}`" + (f"; of {', '.join(others)}" if others else "")

    def _is_chosen(self, letter: dict[str, Any]) -> bool:
        """Whether it is of the sink or processor that is named, if one is."""
        return self.request.get("sink") in (None, _where(letter))

    def _letters(self) -> Iterable[tuple[int, dict[str, Any]]]:
        entries = self.storage.peek(LETTERS, self.name, 1_000_000)
        return [(number, json.loads(value)) for number, value in entries]


def _where(letter: dict[str, Any]) -> str:
    return str(letter["meta"]["sink_id"] or letter["meta"]["processor_id"])


def _age(ts_ms: int | None) -> int | None:
    return None if ts_ms is None else max(0, int(time.time() - ts_ms / 1000))


def _ago(seconds: int | None) -> str | None:
    return None if seconds is None else f"{seconds} s ago"


def _lag(lane: dict[str, Any]) -> str:
    if lane["lag_unknown"] is not None:
        return f"unknown ({lane['lag_unknown']})"
    if lane["lag"] == 1:
        return f"1 {lane['lag_unit'].removesuffix('s')}"
    return f"{lane['lag']:,} {lane['lag_unit']}" if lane["lag"] else "none"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


def main() -> int:
    request = json.load(sys.stdin)
    try:
        code: int | None = getattr(Admin(request), request["command"])()
    except DfcError as error:
        print(f"dfc: {error}", file=sys.stderr)
        return 2 if isinstance(error, WrongUsage | MissingEnv) else 1
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
