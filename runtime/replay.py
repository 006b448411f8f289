"""Offline replays, for `dfc test`: event fixtures through a job's own processors, routing and
envelopes, and each sink's messages held against the expected ones, byte for byte.

    python -m dfc_runtime.replay < manifest.json

Nothing is connected to: sinks are made and asked what they would send.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

from .deliver import Process, through
from .env import Env
from .errors import DfcError, reason
from .events import Events
from .fixtures import FixtureError, Origin, event_text, read_events
from .ledger import Ledger
from .sinks import Sink

FIXTURES = "events.jsonl"
EXPECTED = "expected"  # a folder of its own: a sink may be called `events`
DEAD = "dead-letters.jsonl"
_MOST_DIFF_LINES = 40
_LONGEST_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Case:
    """A spec and its job, as the compiler hands them over."""

    spec: str
    folder: str
    name: str
    tenant: str
    job: str
    journal: bool  # it has a dead letter queue
    named: bool  # it must have fixtures


@dataclass
class Outcome:
    """What is said about a case; `problems` make it a failure."""

    word: str = "ok"
    summary: str = ""
    problems: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fail(self, problem: str, details: Iterable[str] = ()) -> None:
        self.word = "FAILED"
        self.problems.append((problem, tuple(details)))


@dataclass
class Replay:
    """What came out: lines by file, and what the processors had to say."""

    events: int = 0
    files: dict[str, list[str]] = field(default_factory=dict)
    sinks: dict[str, int] = field(default_factory=dict)
    unrouted: dict[str, int] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)


def main() -> int:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    manifest = json.loads(sys.stdin.buffer.read())
    update, verbose = manifest["update"], manifest["verbose"]
    outcomes = []
    try:
        for entry in manifest["cases"]:
            case = Case(**entry)
            outcome = check(case, update, verbose)
            outcomes.append(outcome)
            _show(case, outcome)
        if len(outcomes) > 1:
            print(_total(outcomes))
        sys.stdout.flush()
    except BrokenPipeError:  # `dfc test … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def check(case: Case, update: bool, verbose: bool = False) -> Outcome:
    """Replays one case, and compares what came out with what is expected or puts it there."""
    outcome, folder, made = Outcome(), Path(case.folder), Replay()
    try:
        try:
            text = (folder / FIXTURES).read_bytes().decode()
        except FileNotFoundError:
            return _without_fixtures(case, outcome)
        module = load_job(case.name, case.job)
        replay(module, case, text, made)
        outcome.summary = _summary(made)
        if update:
            outcome.word = "updated"
            outcome.summary += f"; {_update(folder, made.files)}"
        else:
            _compare(case, folder, made.files, outcome)
    except FixtureError as error:
        lines = [f"{folder / FIXTURES}:{number}: {what}" for number, what in error.problems]
        outcome.fail(f"{len(lines)} error{'s' * (len(lines) != 1)} in its fixtures", lines)
    except (OSError, UnicodeDecodeError, DfcError) as error:
        outcome.fail(_why(error))
    except Exception as error:
        outcome.fail(reason(error), traceback.format_exc().splitlines() if verbose else ())
    outcome.notes += _standing_still(case, made)
    if outcome.problems or verbose:
        outcome.notes += map(_line, made.ledger.lines)
    return outcome


# --- running ---------------------------------------------------------------------------------


def replay(module: ModuleType, case: Case, text: str, made: Replay) -> None:
    """Fills `made`; also when a processor fails half way, with what was said until then."""
    source = module.SOURCE
    outbox = tuple(
        pattern
        for name in ("outbox_tables", "outbox_prefixes")
        for pattern in getattr(source, name, ())
    )
    kind = source.format.removeprefix("dfc_")
    origin = Origin(kind, case.name, case.tenant, source.tables, outbox)
    events = read_events(text, origin, module.COLUMNS)
    made.events, made.ledger = len(events), events.ledger
    env = Env.stand_in(module.ENV)
    result = through(process_of(module, env), events)
    dead = [
        _letter("processor", letter.where, letter.error, letter.events)
        for letter in made.ledger.dead
    ]
    for sink in module.sinks(env):
        lines, unrouted = _messages(sink, result)
        made.files[f"{EXPECTED}/{sink.id}.jsonl"] = lines
        made.sinks[sink.id] = len(lines)
        if unrouted:
            made.unrouted[sink.id] = len(unrouted)
            dead += unrouted
    if dead:
        made.files[DEAD] = dead


def load_job(name: str, text: str) -> ModuleType:
    """A job as a module; it is not started."""
    module = ModuleType(f"dfc_job_{name}")
    exec(compile(text, f"{name}.job.py", "exec"), module.__dict__)
    return module


def process_of(module: ModuleType, env: Env) -> Process:
    """The processors of a job, which look at the environment or not."""
    if "env" in inspect.signature(module.process).parameters:
        return lambda events: module.process(events, env)
    process: Process = module.process
    return process


def _messages(sink: Sink, events: Events) -> tuple[list[str], list[str]]:
    """What a sink would send, and the dead letters of events without a destination."""
    if sink.filter is not None:
        events = sink.filter.apply(events)
    lines: list[str] = []
    dead: list[str] = []
    if len(events) == 0:
        return lines, dead
    for n, (to, key, value, headers) in enumerate(sink.messages(events).rows(len(events))):
        if to is None:
            why = "no destination: a field of its template is missing or null"
            dead.append(_letter("sink", sink.id, why, events.slice(n, n + 1)))
        else:
            lines.append(_message(to, key, value, headers))
    return lines, dead


def _message(to: str, key: str | None, value: str | None, headers: str | None) -> str:
    parts = []
    if to:  # a console has no destinations
        parts.append(f'"to":{_json(to)}')
    if key is not None:
        parts.append(f'"key":{_json(key)}')
    if headers is not None:
        parts.append(f'"headers":{headers}')
    value = "null" if value is None else value
    # As it is, so that comparing lines is comparing bytes, and still JSON that anybody can read.
    parts.append(f'"value":{value}' if _is_json_line(value) else f'"text":{_json(value)}')
    return "{" + ",".join(parts) + "}"


def _letter(who: str, name: str, error: str, event: Events) -> str:
    return f'{{"{who}":{_json(name)},"error":{_json(error)},"event":{event_text(event)}}}'


def _is_json_line(text: str) -> bool:
    if "\n" in text or "\r" in text:
        return False
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except ValueError:
        return False
    return True


# --- comparing -------------------------------------------------------------------------------


def _present(folder: Path) -> set[str]:
    names = {f"{EXPECTED}/{path.name}" for path in (folder / EXPECTED).glob("*.jsonl")}
    return names | ({DEAD} if (folder / DEAD).exists() else set())


def _compare(case: Case, folder: Path, files: dict[str, list[str]], outcome: Outcome) -> None:
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        outcome.fail(
            f"{', '.join(missing)} {verb} not there; `dfc test --update {case.spec}` writes what "
            "comes out"
        )
    for name, lines in files.items():
        if name not in missing:
            expected = (folder / name).read_bytes().decode(errors="backslashreplace")
            # Not splitlines(), which also cuts at characters that JSON strings may hold.
            if (old := expected.removesuffix("\n").split("\n") if expected else []) != lines:
                _differs(name, old, lines, outcome)
    for name in sorted(_present(folder) - files.keys()):
        why = "no event ends there" if name == DEAD else "there is no such sink"
        outcome.fail(f"{name} is there, but {why}")


def _differs(name: str, old: list[str], new: list[str], outcome: Outcome) -> None:
    pairs = zip_longest(old, new, fillvalue="")
    at, (was, now) = next((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    was, now = _around_difference(was, now)
    what = f"{Path(name).stem}: line {at} differs: {was or 'nothing'} is now {now or 'nothing'}"
    if len(old) != len(new):
        what += f" ({len(new)} line{'s' * (len(new) != 1)}, not {len(old)})"
    diff = difflib.unified_diff(old, new, f"{name} (expected)", "what came out", n=0, lineterm="")
    lines = [line for _, line in zip(range(_MOST_DIFF_LINES + 1), diff, strict=False)]
    if len(lines) > _MOST_DIFF_LINES:
        lines[-1] = "…"
    outcome.fail(what, lines)


def _around_difference(old: str, new: str) -> tuple[str, str]:
    """The places where two lines part; whole values are too long to see it at a glance."""
    pairs = enumerate(zip(old, new, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))

    def cut(line: str) -> str:
        start, end = max(0, at - 25), at + 25
        return "…" * (start > 0) + line[start:end] + "…" * (end < len(line))

    return cut(old), cut(new)


def _update(folder: Path, files: dict[str, list[str]]) -> str:
    done = []
    for name, lines in files.items():
        path = folder / name
        text = "".join(f"{line}\n" for line in lines)
        if path.is_file() and path.read_bytes() == text.encode():
            continue
        path.parent.mkdir(exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_bytes(text.encode())
        aside.replace(path)
        done.append(f"wrote {name}")
    for name in sorted(_present(folder) - files.keys()):
        (folder / name).unlink()
        done.append(f"removed {name}")
    return ", ".join(done) or "nothing has changed"


# --- saying ----------------------------------------------------------------------------------


def _without_fixtures(case: Case, outcome: Outcome) -> Outcome:
    path = Path(case.folder) / FIXTURES
    if not case.named:
        outcome.word, outcome.summary = "none", f"no {path}"
        return outcome
    outcome.fail(
        f"no {path}: record some with `dfc test --record 20 {case.spec}`, or write them by hand "
        "(docs/testing.md)"
    )
    return outcome


def _summary(made: Replay) -> str:
    sinks = [f"{sink} {count}" for sink, count in made.sinks.items()]
    dead = len(made.files.get(DEAD, ()))
    sinks += [f"dead letters {dead}"] if dead else []
    counts = [f"{who} {what} {n}" for (who, what), n in sorted(made.ledger.counts.items())]
    parts = [f"{made.events} event{'s' * (made.events != 1)}", ", ".join(sinks), ", ".join(counts)]
    return "; ".join(part for part in parts if part)


def _standing_still(case: Case, made: Replay) -> Iterator[str]:
    if not case.journal:
        for sink, count in made.unrouted.items():
            yield (
                f"sink `{sink}`: {count} without destination; with no `journal` to put them into, "
                "the job stands still at the first of them"
            )


def _line(line: dict[str, Any]) -> str:
    about = {key: value for key, value in line.items() if key not in ("level", "what")}
    rest = ", ".join(f"{key} {value}" for key, value in about.items() if value not in (None, ""))
    return f"{line['level']}: {line['what']}{': ' if rest else ''}{rest}"


def _show(case: Case, outcome: Outcome) -> None:
    for said, details in outcome.problems or [(outcome.summary, ())]:
        print(_shown(f"{outcome.word} {case.name}: {said}"))
        for line in details:
            print(f"  {_shown(line)}")
    for line in outcome.notes:
        print(f"  {_shown(line)}")
    sys.stdout.flush()


def _total(outcomes: Sequence[Outcome]) -> str:
    counts = {
        "failed": sum(bool(outcome.problems) for outcome in outcomes),
        "updated": sum(outcome.word == "updated" for outcome in outcomes),
        "passed": sum(outcome.word == "ok" for outcome in outcomes),
        "without fixtures": sum(outcome.word == "none" for outcome in outcomes),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return f"{FIXTURES} is not UTF-8: byte {error.start + 1}"
    return str(error)


def _shown(text: str) -> str:
    """For a terminal, whatever rows hold; the end of a very long line is of no use there."""
    text = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
