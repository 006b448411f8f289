"""The command line: what each command prints and writes, and its exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dfc.compiler import __version__
from dfc.compiler.cli import main
from dfc.compiler.parse import MAX_BYTES

from .places import SCHEMA
from .specs import KAFKA, MYSQL, NATS, POSTGRES, REDIS, SCRIPT, TURSO, Json, having, spec, to_yaml

COMMANDS = ["validate", "plan", "compile", "run", "test", "schema", "diff", "warm-up", "version"]
SECRET = having(REDIS, uri="redis://:hunter2@cache")


class Dfc:
    """Runs commands in a folder of its own, inside this process: faster, and just as true."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        try:
            code = main(arguments)
        except SystemExit as exit:
            code = int(exit.code or 0)
        self.out, self.err = self.capsys.readouterr()
        assert "fault of dfc" not in self.err
        assert "Traceback" not in self.err
        return code

    def write(self, name: str, document: Json | str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else to_yaml(document), "utf-8")
        return name

    def files(self) -> list[str]:
        return sorted(
            str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()
        )


@pytest.fixture
def dfc(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dfc:
    monkeypatch.chdir(tmp_path)
    return Dfc(tmp_path, capsys)


def named(name: str, **parts: Json) -> Json:
    document = spec(**parts)
    document["metadata"]["name"] = name
    return document


def process(*arguments: str, **options: Json) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dfc.compiler.cli", *arguments]
    return subprocess.run(command, capture_output=True, **options)


# --- usage -----------------------------------------------------------------------------------


def test_help_names_every_command(dfc: Dfc) -> None:
    assert dfc("--help") == 0
    assert all(f"  {command} " in dfc.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(dfc: Dfc, command: str) -> None:
    assert dfc(command, "--help") == 0
    assert dfc.out.startswith(f"usage: dfc {command}")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["--frobnicate"],
        *([command] for command in ("validate", "plan", "compile", "run", "test", "diff")),
        ["validate", "--frobnicate", "a.yaml"],
        ["plan", "--json", "--mermaid", "a.yaml"],
        ["compile", "-o"],
        ["schema", "a.yaml"],
        ["version", "x"],
        ["diff", "a.yaml"],
        ["diff", "a.yaml", "b.yaml", "c.yaml"],
        ["run", "a.yaml", "b.yaml"],
        ["run", "a.yaml", "--conf"],
        ["run", "a.yaml", "--master"],
        ["validate", "missing.yaml"],
        ["validate", "a.yaml", "missing.yaml"],
        ["validate", "empty"],
        ["compile", "a.yaml", "--check"],
        ["compile", "a.yaml", "b.yaml"],
        ["compile", "a.yaml", "b.yaml", "-o", "a.yaml"],
        ["compile", "a.yaml", "-o", "a.yaml/job.py"],
        ["compile", "a.yaml", "-o", "/proc/none/job.py"],
        ["diff", "a.yaml", "missing.yaml"],
        ["diff", "a.yaml", "empty"],
        ["diff", "a.yaml", "two"],
        ["run", "two"],
        ["run", "missing.yaml"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_with_a_reason(dfc: Dfc, arguments: list[str]) -> None:
    for name in ("a", "b", "two/c", "two/d"):
        dfc.write(f"{name}.yaml", named(name[-1]))
    (dfc.folder / "empty").mkdir()
    before = dfc.files()
    assert dfc(*arguments) == 2
    assert dfc.out == ""
    assert dfc.err.startswith("dfc")
    assert dfc.files() == before


def test_an_unreadable_file_is_named(dfc: Dfc, monkeypatch: pytest.MonkeyPatch) -> None:
    dfc.write("a.yaml", named("a"))

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert dfc("validate", "a.yaml") == 2
    assert dfc.err == "dfc: cannot read a.yaml: Permission denied\n"


def test_a_fault_of_dfc_says_so_without_quoting_the_spec(
    dfc: Dfc, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("hunter2")

    dfc.write("a.yaml", named("a"))
    monkeypatch.setattr("dfc.compiler.cli.plan_pipeline", fail)
    assert main(["validate", "a.yaml"]) == 2
    said = capsys.readouterr().err
    assert "fault of dfc" in said and "ValueError in test_cli.py:" in said
    assert "hunter2" not in said
    monkeypatch.setenv("DFC_TRACEBACK", "1")
    with pytest.raises(ValueError, match="hunter2"):
        main(["validate", "a.yaml"])


def test_version(dfc: Dfc) -> None:
    assert dfc("version") == 0
    assert dfc.out == f"dfc {__version__}\n"
    assert dfc("--version") == 0
    assert dfc.out == f"dfc {__version__}\n"


def test_schema_is_printed_whole(dfc: Dfc) -> None:
    assert dfc("schema") == 0
    assert json.loads(dfc.out) == SCHEMA


# --- reading ---------------------------------------------------------------------------------


def test_several_files_and_folders_in_one_call(dfc: Dfc) -> None:
    for name in ("a.yaml", "in/b.yml", "in/deep/c.yaml"):
        dfc.write(name, named(Path(name).stem))
    dfc.write("in/notes.txt", "not a spec")
    assert dfc("validate", "a.yaml", "in") == 0
    assert dfc.out == "3 pipelines valid: a, b, c\n"
    assert dfc("validate", "a.yaml") == 0
    assert dfc.out == "1 pipeline valid: a\n"


def test_a_file_named_twice_is_read_once(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a"))
    assert dfc("validate", "a.yaml", ".", str(dfc.folder / "a.yaml")) == 0
    assert dfc.out == "1 pipeline valid: a\n"


def test_two_files_of_one_name_clash(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("x"))
    dfc.write("b.yaml", named("x"))
    assert dfc("compile", ".", "-o", "out") == 1
    assert "b.yaml:1:1: error[DFC501]: the name `x` is taken by a.yaml" in dfc.err
    assert dfc.files() == ["a.yaml", "b.yaml"]


def test_two_readers_of_one_slot_are_warned_about(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a", source=POSTGRES))
    dfc.write("b.yaml", named("b", source=POSTGRES))
    assert dfc("validate", ".") == 0
    assert "b.yaml" in dfc.err and "warning[DFC502]" in dfc.err


def test_errors_of_all_files_come_at_once(dfc: Dfc) -> None:
    dfc.write("a.yaml", "metadata: 1\n")
    dfc.write("b.yaml", named("b", batch={"max_ms": 0}))
    dfc.write("c.yaml", "a: [")
    assert dfc("validate", ".") == 1
    assert [line.split(":")[0] for line in dfc.err.splitlines() if "error[" in line] == [
        *("a.yaml", "a.yaml", "b.yaml", "c.yaml")
    ]
    assert dfc.err.endswith("4 errors\n")
    assert dfc.out == ""


def test_a_thousand_errors_are_enough(dfc: Dfc) -> None:
    dfc.write("a.yaml", {f"k{n}": 1 for n in range(5_000)})
    dfc.write("b.yaml", "metadata: 1\n")
    assert dfc("validate", "a.yaml", "b.yaml") == 1
    assert dfc.err.count("error[") <= 1_001
    assert dfc.err.endswith(" errors, and there may be more\n")


@pytest.mark.parametrize("command", [["validate"], ["plan"], ["compile"]])
def test_standard_input_is_a_spec_too(
    dfc: Dfc, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for document, code in ((named("a"), 0), ("metadata: 1", 1)):
        text = document if isinstance(document, str) else to_yaml(document)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert dfc(*command, "-") == code
        assert ("<stdin>:" in dfc.err) == (code == 1)


def test_an_endless_file_is_refused_without_being_read(dfc: Dfc) -> None:
    assert dfc("validate", "/dev/zero") == 1
    assert "DFC101" in dfc.err
    dfc.write("big.yaml", "#" * (MAX_BYTES + 1))
    assert dfc("validate", "big.yaml") == 1
    assert "DFC101" in dfc.err


# --- validate --------------------------------------------------------------------------------


def test_json_diagnostics_have_a_stable_shape(dfc: Dfc) -> None:
    dfc.write("a.yaml", "metadata: {name: a, tenant: b}\nspek: {}\n")
    assert dfc("validate", "--json", "a.yaml") == 1
    assert dfc.err == ""
    assert json.loads(dfc.out) == [
        {
            "code": "DFC201",
            "severity": "error",
            "file": "a.yaml",
            "line": 2,
            "col": 1,
            "message": "unknown field `spek` in the pipeline",
            "help": "did you mean `spec`?",
        }
    ]


def test_warnings_are_shown_and_fail_nothing(dfc: Dfc) -> None:
    dfc.write("a.yaml", "metadata: {name: a, tenant: b}\nspec:\n  journal: {max_event_bytes: 2048}\n"
              "  source: {type: turso, config: {id: a, url: x, tables: [y]}}\n"
              "  sinks: [{type: console, config: {id: c}}]\n")  # fmt: skip
    said = (
        "a.yaml:3:13: warning[DFC421]: `journal.max_event_bytes` has no effect while `enabled` "
        "is false\n  help: set `journal.enabled: true`\n"
    )
    for command in ("validate", "plan", "compile"):
        assert dfc(command, "a.yaml") == 0
        assert dfc.out
        assert dfc.err == said
    assert dfc("validate", "--json", "a.yaml") == 0
    assert [(d["code"], d["severity"]) for d in json.loads(dfc.out)] == [("DFC421", "warning")]
    assert dfc("plan", "--json", "a.yaml") == 0
    assert (json.loads(dfc.out)["name"], dfc.err) == ("a", said)
    assert dfc("diff", "--check", "a.yaml", "a.yaml") == 0


def test_json_of_no_diagnostics_is_an_empty_list(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a"))
    assert dfc("validate", "--json", "a.yaml") == 0
    assert (json.loads(dfc.out), dfc.err) == ([], "")


# --- plan ------------------------------------------------------------------------------------


def test_plan_as_tree_json_and_graph(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a", processors=[SCRIPT, {"type": "flatten"}]))
    assert dfc("plan", "a.yaml") == 0
    assert dfc.out.startswith("pipeline a  (tenant acme)\n")
    assert "runs in quickjs" in dfc.out and "runs as a kernel over JSON text" in dfc.out
    assert dfc("plan", "--json", "a.yaml") == 0
    assert json.loads(dfc.out)["name"] == "a"
    assert dfc("plan", "--mermaid", "a.yaml") == 0
    assert dfc.out.startswith("flowchart LR\n")
    assert "source --> step1" in dfc.out and "step2 --> sink1" in dfc.out


def test_several_plans_are_one_json_list(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a"))
    dfc.write("b.yaml", named("b"))
    assert dfc("plan", "--json", ".") == 0
    assert [plan["name"] for plan in json.loads(dfc.out)] == ["a", "b"]


# --- compile ---------------------------------------------------------------------------------


def test_compile_prints_the_job(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a"))
    assert dfc("compile", "a.yaml") == 0
    compile(dfc.out, "job.py", "exec")
    assert dfc.files() == ["a.yaml"]


@pytest.mark.parametrize(
    ("specs", "output", "written"),
    [
        (["in/a.yaml"], "job.py", ["job.py"]),
        (["in/a.yaml"], "new/deep/job.py", ["new/deep/job.py"]),
        (["in/a.yaml"], "there", ["there/a.py"]),
        (["in/a.yaml"], "new/", ["new/a.py"]),
        (["in/a.yaml", "in/b.yaml"], "new", ["new/a.py", "new/b.py"]),
        (["in"], "new", ["new/a.py", "new/b.py"]),
        (["one"], "new", ["new/c.py"]),
    ],
)
def test_compile_writes_where_it_is_told(
    dfc: Dfc, specs: list[str], output: str, written: list[str]
) -> None:
    for name in ("in/a", "in/b", "one/c"):
        dfc.write(f"{name}.yaml", named(name[-1]))
    (dfc.folder / "there").mkdir()
    before = dfc.files()
    assert dfc("compile", *specs, "-o", output) == 0
    assert (dfc.out, dfc.err) == ("", "")
    assert sorted(set(dfc.files()) - set(before)) == written
    for name in written:
        compile((dfc.folder / name).read_text("utf-8"), name, "exec")


def test_a_broken_spec_writes_nothing(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a"))
    dfc.write("b.yaml", "metadata: 1\n")
    assert dfc("compile", "a.yaml", "b.yaml", "-o", "out") == 1
    assert dfc.files() == ["a.yaml", "b.yaml"]


def test_check_tells_whether_the_file_is_up_to_date_and_never_writes(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a"))
    assert dfc("compile", "a.yaml", "-o", "job.py", "--check") == 1
    assert "job.py is missing" in dfc.err
    assert dfc.files() == ["a.yaml"]
    assert dfc("compile", "a.yaml", "-o", "job.py") == 0
    job = (dfc.folder / "job.py").read_bytes()
    assert dfc("compile", "a.yaml", "-o", "job.py", "--check") == 0
    assert (dfc.out, dfc.err) == ("", "")
    (dfc.folder / "job.py").write_bytes(job + b"# edited\n")
    assert dfc("compile", "a.yaml", "-o", "job.py", "--check") == 1
    assert "job.py differs" in dfc.err
    assert (dfc.folder / "job.py").read_bytes() == job + b"# edited\n"


def test_check_of_a_folder_names_each_file(dfc: Dfc) -> None:
    for name in "abc":
        dfc.write(f"in/{name}.yaml", named(name))
    assert dfc("compile", "in", "-o", "out") == 0
    (dfc.folder / "out/b.py").unlink()
    (dfc.folder / "out/c.py").write_text("x")
    assert dfc("compile", "in", "-o", "out", "--check") == 1
    assert [line.split()[0] for line in dfc.err.splitlines()] == ["out/b.py", "out/c.py"]
    assert dfc("compile", "in", "-o", "out") == 0
    assert dfc("compile", "in", "-o", "out", "--check") == 0


def test_a_job_is_utf_8_in_any_locale(dfc: Dfc) -> None:
    dfc.write(
        "a.yaml", named("a", processors=[{**SCRIPT, "inline": "(event) => event // grün 😀"}])
    )
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = process("compile", "a.yaml", cwd=dfc.folder, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "grün 😀".encode() in done.stdout


@pytest.mark.parametrize("command", [["compile"], ["validate"], ["plan"], ["validate", "--json"]])
def test_literal_secrets_need_leave(dfc: Dfc, command: list[str]) -> None:
    dfc.write("a.yaml", named("a", sinks=[SECRET]))
    assert dfc(*command, "a.yaml") == 1
    assert "hunter2" not in dfc.out + dfc.err
    assert dfc(*command, "--allow-literal-secrets", "a.yaml") == 0


def test_a_closed_pipe_is_no_error(dfc: Dfc) -> None:
    dfc.write("a.yaml", named("a"))
    dfc.write("b.yaml", "metadata: 1\n")
    for command in ("schema", "version", "compile a.yaml", "validate --json b.yaml"):
        line = f'"$0" -m dfc.compiler.cli {command} | true; exit "${{PIPESTATUS[0]}}"'
        done = subprocess.run(
            ["bash", "-c", line, sys.executable], capture_output=True, cwd=dfc.folder
        )
        assert done.stderr == b""
        assert done.returncode in (0, 1)


# --- run -------------------------------------------------------------------------------------


def test_run_refuses_a_broken_spec_before_anything_starts(dfc: Dfc) -> None:
    dfc.write("a.yaml", "metadata: 1\n")
    assert dfc("run", "a.yaml", "--once") == 1
    assert dfc.files() == ["a.yaml"]


def test_run_hands_its_flags_to_the_job(dfc: Dfc, monkeypatch: pytest.MonkeyPatch) -> None:
    dfc.write("a.yaml", named("a"))
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    flags = ["--once", "--dry-run", "--verbose", "--master", "local[2]", "--storage", "memory"]
    flags += ["--storage-backend", "postgres", "--storage-path", "p", "--storage-dsn", "${D}"]
    flags += ["--conf", "a=b", "--conf", "c=d=e"]
    main(["run", "a.yaml", *flags])
    (words,) = started
    assert words[0] == sys.executable
    assert Path(words[1]).read_text("utf-8").startswith("# Code generated by dfc.")
    assert words[2:] == flags


def test_run_without_spark_says_what_to_install(dfc: Dfc, monkeypatch: pytest.MonkeyPatch) -> None:
    dfc.write("a.yaml", named("a"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert dfc("run", "a.yaml") == 2
    assert "pip install '.[run]'" in dfc.err


# --- diff ------------------------------------------------------------------------------------

BASE = spec(
    having(KAFKA, key="${after.id}"),
    REDIS,
    source=MYSQL,
    processors=[SCRIPT, {"type": "filter", "id": "keep", "ops": ["create", "update"]}],
)


def changed(path: str, value: Json) -> Json:
    document = json.loads(json.dumps(BASE))
    *steps, last = path.split("/")
    node = document
    for step in steps:
        node = node[int(step)] if step.isdigit() else node.setdefault(step, {})
    if last.isdigit():
        node[int(last) : int(last) + 1] = [] if value is None else [value]
    else:
        node[last] = value
    return document


KAFKA_AT = "spec/sinks/0/config"


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (BASE, changed(f"{KAFKA_AT}/topic", "other"), "sinks.events.topic"),
        (BASE, changed(f"{KAFKA_AT}/topic", "cdc.${source.table}"), "sinks.events.topic"),
        (changed(f"{KAFKA_AT}/topic", "a.${op}"), BASE, "sinks.events.topic"),
        (BASE, changed(f"{KAFKA_AT}/key", "${after.customer}"), "sinks.events.key"),
        (BASE, changed(f"{KAFKA_AT}/key", None), "sinks.events.key"),
        (BASE, changed(f"{KAFKA_AT}/brokers", "${BROKERS}"), "sinks.events.brokers"),
        (BASE, changed(f"{KAFKA_AT}/exactly_once", True), "sinks.events.exactly_once"),
        (BASE, changed(f"{KAFKA_AT}/required", False), "sinks.events.delivery.required"),
        (
            BASE,
            changed(f"{KAFKA_AT}/envelope", {"type": "debezium"}),
            "sinks.events.delivery.envelope.type",
        ),
        (
            BASE,
            changed(f"{KAFKA_AT}/filter", {"exclude_synthetic": True}),
            "sinks.events.delivery.filter",
        ),
        (BASE, changed("spec/sinks/1/config/stream", "other"), "sinks.cache.stream"),
        (BASE, changed("spec/sinks/1", having(NATS, id="cache")), "sinks.cache.kind"),
        (BASE, changed("spec/sinks/1", None), "sinks.cache"),
        (BASE, changed("spec/sinks/1/config/id", "cache2"), "sinks.cache"),
        (BASE, changed("spec/commit_policy", {"mode": "all"}), "commit.mode"),
        (
            BASE,
            changed("spec/commit_policy", {"mode": "quorum", "quorum": 1}),
            "commit.quorum",
        ),
        (BASE, changed("metadata/name", "other"), "name"),
        (BASE, changed("metadata/tenant", "other"), "tenant"),
        (BASE, changed("spec/source/config/id", "other"), "source.id"),
        (BASE, changed("spec/source/config/dsn", "${OTHER_DSN}"), "source.dsn"),
        (BASE, changed("spec/source/config/tables", ["shop.orders"]), "source.tables"),
        (BASE, changed("spec/source", POSTGRES), "source.kind"),
        (
            BASE,
            changed("spec/source/config/json_wide_integers", "string"),
            "source.json_wide_integers",
        ),
        (BASE, changed("spec/sharding", {"count": 4}), "lanes.count"),
        (BASE, changed("spec/batch/respect_source_tx", False), "batch.respect_source_tx"),
        (BASE, changed("spec/storage", {"backend": "memory"}), "storage.backend"),
        (BASE, changed("spec/processors/0", None), "processors.derive"),
        (BASE, changed("spec/processors/0/inline", "(e) => []"), "processors.derive.script"),
        (BASE, changed("spec/processors/1/ops", ["create"]), "processors.keep.ops"),
        (
            BASE,
            changed("spec/processors", [BASE["spec"]["processors"][1], SCRIPT]),
            "processors",
        ),
        (spec(source=POSTGRES), spec(source=having(POSTGRES, slot="other")), "source.slot"),
        (
            spec(source=having(TURSO, cdc_mode="triggers")),
            spec(source=having(TURSO, cdc_mode="polling")),
            "source.cdc_mode",
        ),
        (spec(source=MYSQL), spec(source=having(MYSQL, tables=["shop.x"])), "source.tables"),
        (
            spec(source=having(MYSQL, tables=[])),
            spec(source=having(MYSQL, tables=["shop.x"])),
            "source.tables",
        ),
        (
            spec(source=having(MYSQL, tables=["shop.%"])),
            spec(source=having(MYSQL, tables=["shop.order%"])),
            "source.tables",
        ),
    ],
)
def test_diff_calls_out_what_breaks_consumers(dfc: Dfc, old: Json, new: Json, path: str) -> None:
    dfc.write("old.yaml", old)
    dfc.write("new.yaml", new)
    assert dfc("diff", "--json", "old.yaml", "new.yaml") == 0
    breaking = {row["path"] for row in json.loads(dfc.out) if row["breaks"]}
    assert path in breaking, dfc.out
    assert dfc("diff", "--check", "old.yaml", "new.yaml") == 1
    assert f"! {path}: " in dfc.out
    assert "    breaks: " in dfc.out


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/batch", {"max_events": 10, "max_bytes": 1000, "max_ms": 5, "max_inflight": 2}),
        ("spec/sink_batch_deadline_secs", 30),
        (f"{KAFKA_AT}/send_timeout_secs", 5),
        (f"{KAFKA_AT}/client_conf", {"linger.ms": "5"}),
        ("spec/sinks/1/config/batch_timeout_secs", 5),
        ("spec/sinks/1/config/maxlen", 5),
        ("metadata/labels", {"team": "x"}),
        ("metadata/annotations", {"note": "x"}),
        ("spec/processors/0/limits", {"timeout_ms": 5, "cpu_ms": 5, "mem_mb": 5}),
        ("spec/source/config/tables", ["shop.orders", "shop.outbox", "shop.more"]),
        ("spec/source/config/tables", ["shop.outbox", "shop.orders"]),
        ("spec/source/config/tables", []),
        ("spec/source/config/tables", ["shop.%"]),
        ("spec/source/config/tables", ["o*"]),
        ("spec/journal", {"enabled": True}),
        ("spec/schema_sensing", {"enabled": True}),
        ("spec/sinks", [*BASE["spec"]["sinks"], NATS]),
        ("spec/sinks", [*reversed(BASE["spec"]["sinks"])]),
    ],
    ids=str,
)
def test_diff_lets_harmless_changes_be(dfc: Dfc, path: str, value: Json) -> None:
    dfc.write("old.yaml", BASE)
    dfc.write("new.yaml", changed(path, value))
    assert dfc("diff", "--json", "--check", "old.yaml", "new.yaml") == 0, dfc.out
    assert not [row for row in json.loads(dfc.out) if row["breaks"]]


def test_what_follows_from_another_change_is_no_change_of_its_own(dfc: Dfc) -> None:
    dfc.write("old.yaml", spec(KAFKA))
    dfc.write("new.yaml", spec(KAFKA, processors=[SCRIPT]))
    assert dfc("diff", "--json", "old.yaml", "new.yaml") == 0
    assert [row["path"] for row in json.loads(dfc.out)] == ["processors.derive"]


def test_a_label_is_compared_whatever_its_name(dfc: Dfc) -> None:
    dfc.write("old.yaml", BASE)
    dfc.write("new.yaml", changed("metadata/labels", {"raw": "x", "env": "y"}))
    assert dfc("diff", "--json", "old.yaml", "new.yaml") == 0
    assert [row["path"] for row in json.loads(dfc.out)] == ["labels.raw", "labels.env"]


@pytest.mark.parametrize("modes", [("auto", "triggers"), ("triggers", "auto")], ids=str)
def test_positions_stay_between_auto_and_triggers(dfc: Dfc, modes: tuple[str, str]) -> None:
    for name, mode in zip(("old.yaml", "new.yaml"), modes, strict=True):
        dfc.write(name, spec(source=having(TURSO, cdc_mode=mode)))
    assert dfc("diff", "--check", "old.yaml", "new.yaml") == 0
    assert dfc.out.endswith("1 change, 0 breaking\n")


def test_moved_lines_are_no_change(dfc: Dfc) -> None:
    dfc.write("old.yaml", BASE)
    dfc.write("new.yaml", "# a comment\n\n\n" + to_yaml(BASE).replace("\n", "\n\n"))
    assert dfc("diff", "old.yaml", "new.yaml") == 0
    assert dfc.out == "the plans are the same\n"


def test_diff_counts_and_prints_each_change(dfc: Dfc) -> None:
    document = changed(f"{KAFKA_AT}/topic", "other")
    document["spec"]["batch"] = {"max_ms": 5}
    dfc.write("old.yaml", BASE)
    dfc.write("new.yaml", document)
    assert dfc("diff", "old.yaml", "new.yaml") == 0
    assert "! sinks.events.topic: orders -> other\n    breaks: consumers of" in dfc.out
    assert "~ batch.max_ms: 50 -> 5\n" in dfc.out
    assert dfc.out.endswith("2 changes, 1 breaking\n")


def test_no_control_character_reaches_the_terminal(dfc: Dfc) -> None:
    evil = "a\x1b[31m\n! faked\x9b\u202e"
    sinks = [having(REDIS, stream=evil), having(REDIS, id="more", key=evil)]
    dfc.write("old.yaml", spec(*sinks, source=MYSQL))
    dfc.write("new.yaml", spec(having(REDIS, stream=evil + "2"), source=MYSQL))
    dfc.write("tables.yaml", spec(source=having(MYSQL, tables=["shop.a\x9b31m"])))
    for command in (
        *(["plan", "old.yaml"], ["plan", "tables.yaml"], ["plan", "--mermaid", "old.yaml"]),
        *(["diff", "old.yaml", "new.yaml"], ["diff", "tables.yaml", "old.yaml"]),
    ):
        assert dfc(*command) == 0, dfc.err
        assert all(line.isprintable() for line in dfc.out.split("\n")), dfc.out
        assert not [line for line in dfc.out.split("\n") if line.startswith("! faked")]


def test_diff_refuses_broken_specs_and_secrets(dfc: Dfc) -> None:
    dfc.write("old.yaml", BASE)
    dfc.write("new.yaml", changed("spec/sinks/1", SECRET))
    assert dfc("diff", "old.yaml", "new.yaml") == 1
    assert "new.yaml" in dfc.err and "hunter2" not in dfc.out + dfc.err
    assert dfc("diff", "--allow-literal-secrets", "old.yaml", "new.yaml") == 0
    dfc.write("new.yaml", "metadata: 1\n")
    assert dfc("diff", "old.yaml", "new.yaml") == 1
