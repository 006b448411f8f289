"""The command line: arguments, exit codes, and the only place that reads or writes anything.

Exit codes: 0 done, 1 the spec has errors (or a check found a difference), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import Spec, __version__, emit_job, plan_pipeline
from .diagnostics import MOST, Diagnostics, Enough, quote
from .parse import MAX_BYTES
from .plan import Plan, PostgresSource, spelled
from .span import Span

# Flags that say which storage, for jobs and for the commands that look into it.
_NEED_JOB = ("status", "replay", "reset", "set")
_STORAGE = ("storage", "storage_backend", "storage_path", "storage_dsn")


class UsageError(Exception):
    """Something about the call, not about a spec: exit code 2."""


class Refused(Exception):
    """Diagnostics have been printed: exit code 1."""


def main(argv: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A job is UTF-8 whatever the terminal is; file names may hold what is not even that.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        try:
            code = command(arguments)
        except Refused:
            code = 1
        sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last moments
        return code
    except UsageError as error:
        print(f"dfc: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `dfc compile … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("DFC_TRACEBACK"):
            raise
        # Not the error's own words: they may quote the spec, and with it a password.
        what = f"{type(error).__name__} {_origin(error)}"
        print(f"dfc: this is a fault of dfc, not of the spec: {what}", file=sys.stderr)
        print("  help: DFC_TRACEBACK=1 shows more; please report it", file=sys.stderr)
        return 2


def _origin(error: Exception) -> str:
    last = error.__traceback__
    while last and last.tb_next:
        last = last.tb_next
    return f"in {Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}" if last else ""


# --- commands --------------------------------------------------------------------------------


def _validate(arguments: argparse.Namespace) -> int:
    plans = _plans(arguments)
    if not arguments.json:
        names = ", ".join(plan.name for _, plan in plans)
        print(f"{len(plans)} pipeline{'s' * (len(plans) != 1)} valid: {names}")
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from .serialise import plan_json
    from .show import mermaid, tree

    render = plan_json if arguments.json else mermaid if arguments.mermaid else tree
    plans = _plans(arguments, diagnostics_json=False)
    if arguments.json and len(plans) > 1:
        print(json.dumps([json.loads(render(p)) for _, p in plans], indent=2, ensure_ascii=False))
    else:
        print("\n".join(render(plan) for _, plan in plans), end="")
    return 0


def _compile(arguments: argparse.Namespace) -> int:
    plans = _plans(arguments)
    out = Path(arguments.output) if arguments.output else None
    if arguments.check and out is None:
        raise UsageError("--check compares with what is on disk: say where with -o")
    # A folder of one spec may hold two tomorrow: where they go does not depend on their number.
    folder = arguments.output is not None and arguments.output.endswith(("/", os.sep))
    many = len(plans) > 1 or folder or any(Path(given).is_dir() for given in arguments.specs)
    many = many or (out is not None and out.is_dir())
    if many and out is None:
        raise UsageError(f"{len(plans)} pipelines need a folder to go to: -o FOLDER")
    if many and out is not None and out.is_file():
        raise UsageError(f"{out} is a file; {len(plans)} pipelines need a folder")
    differing = []
    for spec, plan in plans:
        job = emit_job(plan, spec)
        if out is None:
            sys.stdout.write(job)
            continue
        target = out / f"{plan.name}.py" if many else out
        if arguments.check:
            if not target.is_file() or _bytes(target) != job.encode():
                differing.append(target)
        else:
            _write(target, job)
    for target in differing:
        what = "differs from what dfc would write" if target.is_file() else "is missing"
        print(f"{target} {what}; run `dfc compile` without --check", file=sys.stderr)
    return 1 if differing else 0


def _run(arguments: argparse.Namespace) -> int:
    plans = _plans(arguments)
    if len(plans) != 1:
        raise UsageError(f"`dfc run` takes one pipeline, not {len(plans)}")
    _start(arguments, *plans[0])


def _start(arguments: argparse.Namespace, spec: Spec, plan: Plan, *flags: str) -> NoReturn:
    from importlib.util import find_spec

    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise UsageError(
            "running a job needs Spark: install dfc with its `run` extra, as in pip install '.[run]'"
        )
    job = Path(".dfc") / f"{plan.name}.job.py"
    _write(job, emit_job(plan, spec))
    words = [flag for flag in ("--once", "--dry-run", "--verbose") if _given(arguments, flag)]
    for name in ("master", *_STORAGE):
        if (value := getattr(arguments, name)) is not None:
            words += [f"--{name.replace('_', '-')}", value]
    for setting in arguments.conf:
        words += ["--conf", setting]
    sys.stdout.flush()
    # The job takes this process over, so that signals and the exit code are its own.
    os.execv(sys.executable, [sys.executable, str(job), *words, *flags])


def _test(arguments: argparse.Namespace) -> int:
    from importlib.util import find_spec
    from subprocess import run

    if "-" in arguments.specs:
        raise UsageError("`dfc test` reads fixtures next to a spec: give a file or a folder")
    if arguments.record is not None:
        return _record(arguments)
    flags = ["--once", "--master", "--conf", *(f"--{n.replace('_', '-')}" for n in _STORAGE)]
    given = [flag for flag in flags if _given(arguments, flag)]
    if given:
        raise UsageError(f"{', '.join(given)}: only for --record, a replay starts no Spark")
    plans = _plans(arguments, side_by_side=False)  # offline nothing is shared
    if find_spec("pyarrow") is None or find_spec("dfc_runtime") is None:
        raise UsageError(
            "a replay needs the runtime: install dfc with its `run` extra, as in pip install '.[run]'"
        )
    named = {os.path.realpath(path) for path in arguments.specs if not Path(path).is_dir()}
    cases = []
    folders: dict[str, str] = {}
    for spec, plan in plans:
        folder = str(_fixtures(spec))
        if folder in folders:
            raise UsageError(
                f"{folders[folder]} and {spec.file} have one folder of fixtures: {folder}"
            )
        folders[folder] = spec.file
        cases.append(
            {
                "spec": spec.file,
                "folder": folder,
                "name": plan.name,
                "tenant": plan.tenant,
                "job": emit_job(plan, spec),
                "journal": plan.journal.enabled,
                "named": arguments.require_all or os.path.realpath(spec.file) in named,
            }
        )
    manifest = {"update": arguments.update, "verbose": arguments.verbose, "cases": cases}
    sys.stdout.flush()
    # A process of its own: the compiler knows nothing of the runtime. -P keeps the modules of
    # whatever folder this is called in out of it.
    command = [sys.executable, "-P", "-m", "dfc_runtime.replay"]
    return run(command, input=json.dumps(manifest).encode()).returncode


def _record(arguments: argparse.Namespace) -> int:
    plans = _plans(arguments)
    if len(plans) != 1:
        raise UsageError(f"--record takes one pipeline, not {len(plans)}")
    target = _fixtures(plans[0][0]) / "events.jsonl"
    if target.exists() and not arguments.update:
        raise UsageError(f"{target} is there already; --update writes it anew")
    _start(arguments, *plans[0], "--record", str(arguments.record), "--record-to", str(target))


def _fixtures(spec: Spec) -> Path:
    """The folder next to a spec that `dfc test` keeps its fixtures in."""
    return Path(spec.file).with_suffix(".test")


def _admin(arguments: argparse.Namespace) -> int:
    """Asks the runtime about one pipeline's storage."""
    from importlib.util import find_spec
    from subprocess import run

    plans = _plans(arguments, side_by_side=False, diagnostics_json=False)
    if len(plans) != 1:
        raise UsageError(f"this takes one pipeline, not {len(plans)}")
    if find_spec("dfc_runtime") is None:
        raise UsageError("this needs the runtime: install dfc with its `run` extra")
    if arguments.request == "replay" and not (arguments.ids or arguments.all or arguments.sink):
        raise UsageError("which letters? --id N, --sink ID or --all")
    if arguments.request == "replay" and arguments.ids and arguments.all:
        raise UsageError("--id names some letters and --all means all: give one of them")
    if not getattr(arguments, "yes", True):
        raise UsageError(
            "this removes events for good: add --yes"
            if arguments.request == "purge"
            else "back from where it stands, a sink gets events a second time, exactly once or not, "
            "and forward it never gets some: add --yes"
        )
    spec, plan = plans[0]
    request = {
        name: getattr(arguments, name)
        for name in ("sink", "position", "limit", "id", "ids", "json", "dry_run")
        if hasattr(arguments, name)
    }
    request |= {
        "command": arguments.request,
        "pipeline": plan.name,
        "tenant": plan.tenant,
        "job": emit_job(plan, spec) if arguments.request in _NEED_JOB else "",
        "source": plan.source.id,
        "backend": plan.storage.backend,
        "path": spelled(plan.storage.path),
        "dsn": spelled(plan.storage.dsn) if plan.storage.dsn else None,
        "flags": {name: getattr(arguments, name) for name in _STORAGE},
        "lanes": plan.lanes.count,
        "sinks": [sink.id for sink in plan.sinks],
    }
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "dfc_runtime.admin"]
    return run(command, input=json.dumps(request).encode()).returncode


def _diff(arguments: argparse.Namespace) -> int:
    from .diff import diff_plans

    diagnostics = Diagnostics()
    plans = []
    for path in (arguments.old, arguments.new):
        found = _read([path])
        if len(found) != 1:
            raise UsageError(f"{path} holds {len(found)} pipelines; `dfc diff` compares two files")
        plans.append(plan_pipeline(found[0], diagnostics, arguments.allow_literal_secrets))
    _report(diagnostics, False)
    old, new = plans
    assert old and new
    changes = diff_plans(old, new)
    breaking = [c for c in changes if c.breaks]
    if arguments.json:
        rows = [
            {"path": c.path, "old": c.old, "new": c.new, "breaks": c.breaks or None}
            for c in changes
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif not changes:
        print("the plans are the same")
    else:
        for change in changes:
            print(change.text())
        print(f"{len(changes)} change{'s' * (len(changes) != 1)}, {len(breaking)} breaking")
    return 1 if arguments.check and breaking else 0


def _schema(arguments: argparse.Namespace) -> int:
    from importlib.resources import files

    sys.stdout.write(files("dfc.schemas").joinpath("pipeline.schema.json").read_text("utf-8"))
    return 0


def _warm_up(arguments: argparse.Namespace) -> int:
    from importlib.util import find_spec
    from subprocess import run

    if find_spec("dfc_runtime") is None or find_spec("pyspark") is None:
        raise UsageError("this needs Spark: install dfc with its `run` extra")
    return run([sys.executable, "-P", "-m", "dfc_runtime.archive"]).returncode


def _version(arguments: argparse.Namespace) -> int:
    print(f"dfc {__version__}")
    return 0


# --- specs -----------------------------------------------------------------------------------


def _plans(
    arguments: argparse.Namespace,
    diagnostics_json: bool | None = None,
    side_by_side: bool = True,
) -> list[tuple[Spec, Plan]]:
    """The plans of all specs of the call; all diagnostics of all of them first."""
    diagnostics = Diagnostics()
    plans: list[tuple[Spec, Plan]] = []
    for spec in _read(arguments.specs):
        plan = plan_pipeline(spec, diagnostics, arguments.allow_literal_secrets)
        if plan:
            plans.append((spec, plan))
    if side_by_side:
        with suppress(Enough):
            _across(plans, diagnostics)
    as_json = getattr(arguments, "json", False) if diagnostics_json is None else diagnostics_json
    _report(diagnostics, as_json)
    return plans


def _across(plans: list[tuple[Spec, Plan]], diagnostics: Diagnostics) -> None:
    """What must differ between pipelines that run side by side."""
    names: dict[str, str] = {}
    slots: dict[tuple[str, str], str] = {}
    for spec, plan in plans:
        if plan.name in names:
            diagnostics.error(
                "DFC501",
                Span(spec.file, 1, 1),
                f"the name {quote(plan.name)} is taken by {names[plan.name]}",
                "positions are kept by pipeline name; give each its own",
            )
        names.setdefault(plan.name, spec.file)
        if isinstance(plan.source, PostgresSource):
            slot = (spelled(plan.source.dsn), spelled(plan.source.slot))
            if slot in slots:
                diagnostics.warning(
                    "DFC502",
                    plan.source.span,
                    f"the slot {quote(slot[1])} of this server is used by {slots[slot]}",
                    "a slot serves one reader; give each pipeline its own",
                )
            slots.setdefault(slot, spec.file)


def _read(paths: Sequence[str]) -> list[Spec]:
    specs: list[Spec] = []
    seen: set[str] = set()  # `dfc validate . a.yaml` names a.yaml twice
    for given in paths:
        if given == "-":
            specs.append(Spec("<stdin>", sys.stdin.buffer.read(MAX_BYTES + 1)))
            continue
        path = Path(given)
        files = [path]
        if path.is_dir():
            files = sorted(
                p for p in path.rglob("*") if p.suffix in (".yaml", ".yml") and p.is_file()
            )
            if not files:
                raise UsageError(f"no *.yaml or *.yml under {given}")
        for file in files:
            if (real := os.path.realpath(file)) not in seen:
                seen.add(real)
                specs.append(Spec(str(file), _bytes(file, MAX_BYTES + 1)))
    return specs


def _bytes(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)  # one byte more than allowed is enough to refuse
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _report(diagnostics: Diagnostics, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(diagnostics.json())
    else:
        sys.stderr.write(diagnostics.text())
    if diagnostics.failed:
        if not as_json:
            errors = sum(1 for d in diagnostics if d.severity == "error")
            more = ", and there may be more" if len(diagnostics.found) >= MOST else ""
            print(f"{errors} error{'s' * (errors != 1)}{more}", file=sys.stderr)
        raise Refused


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: a reader never sees half a job.
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_bytes(text.encode())
        aside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


# --- arguments -------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\ntry `{self.prog} --help`\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dfc", description="Compiles change data capture pipelines from YAML to PySpark jobs."
    )
    parser.add_argument("--version", action="version", version=f"dfc {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], help: str, specs: str = ""
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(command=run)
        if specs:
            sub.add_argument(
                "specs", nargs="+" if specs == "many" else 1, metavar="SPEC",
                help="a YAML file, a folder of them, or - for standard input",
            )  # fmt: skip
        if specs or name == "diff":
            sub.add_argument(
                "--allow-literal-secrets",
                action="store_true",
                help="let passwords stand in the file, for throw-away demos",
            )
        return sub

    sub = command("validate", _validate, "check specs and say all that is wrong with them", "many")
    sub.add_argument("--json", action="store_true", help="diagnostics as JSON on standard output")

    sub = command("plan", _plan, "show what a spec means, defaults filled in", "many")
    form = sub.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the whole plan as JSON")
    form.add_argument("--mermaid", action="store_true", help="a Mermaid graph")

    sub = command("compile", _compile, "write the PySpark job of a spec", "many")
    sub.add_argument("-o", "--output", metavar="PATH", help="file, or folder for several specs")
    sub.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if PATH is not up to date"
    )

    def storage_flags(sub: argparse._ActionsContainer) -> None:
        sub.add_argument(
            "--storage",
            metavar="WHERE",
            help="sqlite:PATH, memory or postgres:DSN, instead of the spec's `storage`",
        )
        kinds = ("sqlite", "memory", "postgres")
        sub.add_argument(
            "--storage-backend", metavar="KIND", choices=kinds, help=f"one of {', '.join(kinds)}"
        )
        sub.add_argument("--storage-path", metavar="PATH", help="file of the sqlite backend")
        sub.add_argument(
            "--storage-dsn",
            metavar="DSN",
            help="database of the postgres backend; '${NAME}' (in quotes) keeps the password out of "
            "the command line",
        )

    def job_flags(sub: argparse._ActionsContainer) -> None:
        sub.add_argument("--once", action="store_true", help="drain what is there and stop")
        sub.add_argument("--master", metavar="URL", help="Spark master (default: local[*])")
        sub.add_argument(
            "--conf", action="append", default=[], metavar="K=V", help="a Spark setting; repeatable"
        )
        storage_flags(sub)

    sub = command("run", _run, "compile a spec and run it on Spark", "one")
    sub.add_argument(
        "--dry-run", action="store_true", help="print what each sink would get; send nothing"
    )
    job_flags(sub)
    sub.add_argument("--verbose", action="store_true", help="whole tracebacks and Spark's warnings")

    sub = command("test", _test, "replay recorded events and compare what each sink gets", "many")
    sub.description = (
        "Replays the events in SPEC's folder, orders.test/events.jsonl for orders.yaml, through its "
        "processors, routing and envelopes, and compares what each sink would get with "
        "orders.test/expected/. Nothing is connected to. docs/testing.md says more."
    )
    sub.add_argument(
        "--update", action="store_true", help="write what comes out as what is expected"
    )
    sub.add_argument(
        "--require-all", action="store_true", help="in folders too, a spec without events fails"
    )
    sub.add_argument(
        "--verbose", action="store_true", help="log lines of processors, and whole tracebacks"
    )
    live = sub.add_argument_group("recording", "events for one spec, from its live source")
    live.add_argument(
        "--record",
        type=_count,
        metavar="N",
        help="write the next N events; sends and keeps nothing",
    )
    job_flags(live)

    def admin(name: str, request: str, help: str, under: Any = commands) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = under.add_parser(name, help=help, description=help)
        sub.set_defaults(command=_admin, request=request)
        sub.add_argument("specs", nargs=1, metavar="SPEC", help="the pipeline's YAML file")
        storage_flags(sub)
        sub.add_argument("--allow-literal-secrets", action="store_true", help=argparse.SUPPRESS)
        return sub

    sub = admin("status", "status", "show who runs a pipeline, and where its sinks stand")
    sub.description = (
        "Shows who runs a pipeline, how many dead letters it has, and for each sink its position, how "
        "long ago that was saved, the age of the last event it got, and how far it is behind the "
        "source, which is asked for it."
    )
    sub.add_argument("--json", action="store_true", help="the same for machines")

    def group(name: str, help: str) -> Any:
        sub = commands.add_parser(name, help=help, description=help)
        return sub.add_subparsers(title="commands", metavar="COMMAND", required=True)

    positions = group("checkpoint", "look at and move the positions of sinks")
    admin("list", "positions", "list the positions", positions)
    sub = admin("show", "show", "print positions as JSON", positions)
    sub.add_argument("--sink", metavar="ID", help="only this sink")
    for name, help in (
        ("reset", "let sinks start from the beginning"),
        ("set", "let a sink go on behind a position"),
    ):
        sub = admin(name, name, help, positions)
        sub.add_argument("--sink", metavar="ID", required=name == "set", help="only this sink")
        if name == "set":
            sub.add_argument("--position", metavar="TEXT", required=True, help="as `list` shows it")
        sub.add_argument("--yes", action="store_true", help="do it")

    letters = group("dlq", "look at, replay and clear the dead letter queue")
    sub = admin("list", "letters", "list dead letters, the oldest first", letters)
    sub.add_argument("--sink", metavar="ID", help="only of this sink or processor")
    sub.add_argument("--limit", type=int, default=50, metavar="N", help="so many (default: 50)")
    sub = admin("show", "letter", "print one dead letter with its event", letters)
    sub.add_argument("id", type=int, metavar="ID", help="as `list` shows it")
    sub = admin("replay", "replay", "deliver dead letters again", letters)
    sub.description = (
        "Delivers dead letters again, the oldest first, through the pipeline as it is now: processors, "
        "routing, envelope. What a processor could not take goes to all sinks, what a sink could not "
        "take to that sink. Letters that are delivered leave the queue, the others stay with their "
        "new error. The pipeline must not be running."
    )
    sub.add_argument(
        "--id", dest="ids", type=int, nargs="+", action="extend", default=[], metavar="N",
        help="these letters, by the ids that `list` shows",
    )  # fmt: skip
    sub.add_argument("--all", action="store_true", help="all of them")
    sub.add_argument("--sink", metavar="ID", help="only of this sink or processor")
    sub.add_argument(
        "--dry-run", action="store_true", help="print what each sink would get; change nothing"
    )
    sub = admin("purge", "purge", "remove dead letters for good", letters)
    sub.add_argument("ids", type=int, nargs="*", metavar="ID", help="these; all when none is named")
    sub.add_argument("--yes", action="store_true", help="do it")

    command("schema", _schema, "print the JSON Schema of the pipeline language")

    sub = command("diff", _diff, "compare two specs by their plans")
    sub.add_argument("old", metavar="OLD")
    sub.add_argument("new", metavar="NEW")
    sub.add_argument("--json", action="store_true", help="the changes as JSON")
    sub.add_argument("--check", action="store_true", help="exit 1 if a change breaks consumers")

    command(
        "warm-up", _warm_up,
        "keep Spark's Java classes as they are in memory, once on a machine: jobs then start sooner",
    )  # fmt: skip
    command("version", _version, "print the version")
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number above 0: {text}")
    return int(text)


def _given(arguments: argparse.Namespace, flag: str) -> bool:
    return bool(getattr(arguments, flag.lstrip("-").replace("-", "_"), False))


if __name__ == "__main__":
    sys.exit(main())
