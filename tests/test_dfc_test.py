"""`dfc test`: what it compares, what it says, its exit codes, and recording."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dfc.compiler.cli import main
from dfc_runtime import Env, Events, Job, Messages
from dfc_runtime.errors import ProcessorError
from dfc_runtime.ledger import DeadLetter
from dfc_runtime.record import Recording
from dfc_runtime.replay import Case, Replay, _show, check, replay
from dfc_runtime.sinks import ConsoleSink, KafkaSink
from dfc_runtime.sources import TursoSource

from .specs import (
    CONSOLE,
    FILE,
    KAFKA,
    MYSQL,
    POSTGRES,
    REDIS,
    TURSO,
    Json,
    Result,
    having,
    spec,
    to_yaml,
)
from .sqlite_files import database, turso_log

ROOT = Path(__file__).resolve().parents[1]
LINE = '{"op":"c","table":"orders","after":{"id":1}}\n'


class Specs:
    """A folder of specs and fixtures; `dfc` calls the command as a shell would."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capfd = capfd
        self.out = self.err = ""

    def write(self, name: str, document: Json | str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else to_yaml(document), "utf-8")
        return name

    def read(self, name: str) -> str:
        return (self.folder / name).read_bytes().decode()

    def dfc(self, *arguments: str) -> int:
        try:
            code = main(["test", *arguments])
        except SystemExit as exit:
            code = int(exit.code or 0)
        self.out, self.err = self.capfd.readouterr()
        assert "Traceback" not in self.out + self.err
        assert "fault of dfc" not in self.err
        return code

    def run(self, *, update: bool = False, journal: bool = False) -> str:
        """The same for orders.yaml within this process, which is quicker; what it says."""
        result = Result(self.read("orders.yaml"))
        case = Case(
            spec="orders.yaml",
            folder="orders.test",
            name=result.plan.name,
            tenant=result.plan.tenant,
            job=result.job,
            journal=journal,
            named=True,
        )
        _show(case, check(case, update))
        return self.capfd.readouterr().out


@pytest.fixture
def specs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Specs:
    monkeypatch.chdir(tmp_path)
    return Specs(tmp_path, capfd)


# --- the command -----------------------------------------------------------------------------


def test_every_example_has_a_test_and_passes(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["test", "--require-all", str(ROOT / "examples")])
    out = capfd.readouterr().out
    assert code == 0, out
    assert out.endswith(f"\n{len(list((ROOT / 'examples').glob('*.yaml')))} passed\n")
    assert "\nok quickstart: 7 events; archive 4, screen 4;" in out


def test_fixtures_of_examples_belong_to_an_example() -> None:
    for folder in (ROOT / "examples").glob("*.test"):
        assert folder.with_suffix(".yaml").is_file(), f"{folder} tests nothing"


def test_update_then_test_then_a_change(specs: Specs) -> None:
    specs.write("orders.yaml", spec(CONSOLE, FILE))
    specs.write("orders.test/events.jsonl", LINE)
    assert specs.dfc("orders.yaml") == 1
    assert specs.out == (
        "FAILED orders: expected/screen.jsonl, expected/archive.jsonl are not there; "
        "`dfc test --update orders.yaml` writes what comes out\n"
    )
    assert specs.dfc("--update", "orders.yaml") == 0
    assert specs.out == (
        "updated orders: 1 event; screen 1, archive 1; "
        "wrote expected/screen.jsonl, wrote expected/archive.jsonl\n"
    )
    assert specs.dfc("orders.yaml") == 0
    assert (specs.out, specs.err) == ("ok orders: 1 event; screen 1, archive 1\n", "")
    before = specs.read("orders.test/expected/archive.jsonl")
    specs.write("orders.yaml", spec(CONSOLE, having(FILE, name="all")))
    assert specs.dfc("orders.yaml") == 1
    assert specs.out.startswith(
        'FAILED orders: archive: line 1 differs: {"to":"archive","value":{"before"… is now '
        '{"to":"all","value":{"before":nul…\n  --- expected/archive.jsonl (expected)\n'
        "  +++ what came out\n  @@ -1 +1 @@\n  -{"
    )
    assert specs.read("orders.test/expected/archive.jsonl") == before


def test_a_folder_of_specs(specs: Specs) -> None:
    for name in ("orders", "tested", "broken"):
        document = spec()
        document["metadata"]["name"] = name
        specs.write(f"in/{name}.yaml", document)
    specs.write("in/tested.test/events.jsonl", LINE)
    specs.write("in/broken.test/events.jsonl", "nonsense\n")
    assert specs.dfc("--update", "in/tested.yaml") == 0
    assert specs.dfc("in") == 1
    assert specs.out == (
        "FAILED broken: 1 error in its fixtures\n"
        "  in/broken.test/events.jsonl:1: not JSON: Expecting value at character 1\n"
        "none orders: no in/orders.test/events.jsonl\n"
        "ok tested: 1 event; screen 1\n"
        "1 failed, 1 passed, 1 without fixtures\n"
    )
    (specs.folder / "in/broken.yaml").unlink()
    assert specs.dfc("in") == 0
    for call in (["in", "--require-all"], ["in", "in/orders.yaml"], ["in/orders.yaml"]):
        assert specs.dfc(*call) == 1
        assert (
            "FAILED orders: no in/orders.test/events.jsonl: record some with "
            "`dfc test --record 20 in/orders.yaml`, or write them by hand (docs/testing.md)\n"
        ) in specs.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-"], "give a file or a folder"),
        (["orders.yaml", "--once"], "--once: only for --record"),
        (["orders.yaml", "--conf", "a=b", "--master", "x"], "--master, --conf: only for --record"),
        (["--record", "0", "orders.yaml"], "not a number above 0: 0"),
        (["--record", "5", "."], "--record takes one pipeline, not 2"),
        (["--record", "5", "orders.yaml"], "events.jsonl is there already; --update writes it"),
        (["orders.yaml", "orders.yml"], "have one folder of fixtures: orders.test"),
        (["missing.yaml"], "cannot read missing.yaml"),
        ([], "required: SPEC"),
    ],
    ids=str,
)
def test_wrong_usage(specs: Specs, arguments: list[str], said: str) -> None:
    specs.write("orders.yaml", spec())
    other = spec()
    other["metadata"]["name"] = "other"
    specs.write("orders.yml", other)
    specs.write("orders.test/events.jsonl", LINE)
    assert specs.dfc(*arguments) == 2
    assert said in specs.err and specs.out == ""


def test_a_broken_spec_is_not_replayed(specs: Specs) -> None:
    specs.write("orders.yaml", "metadata: 1\n")
    assert specs.dfc("orders.yaml") == 1
    assert "error[" in specs.err and specs.out == ""


def test_without_the_runtime_it_says_what_to_install(
    specs: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs.write("orders.yaml", spec())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert specs.dfc("orders.yaml") == 2
    assert "pip install '.[run]'" in specs.err


def test_modules_where_it_is_called_do_not_get_in(specs: Specs) -> None:
    specs.write("orders.yaml", spec())
    specs.write("orders.test/events.jsonl", LINE)
    specs.write("pyarrow.py", "raise SystemExit(7)\n")
    assert specs.dfc("--update", "orders.yaml") == 0


def test_a_closed_pipe_is_no_error(specs: Specs) -> None:
    specs.write("orders.yaml", spec())
    specs.write("orders.test/events.jsonl", LINE)
    line = '"$0" -m dfc.compiler.cli test orders.yaml | true'
    done = subprocess.run(["bash", "-c", line, sys.executable], capture_output=True)
    assert done.stderr == b""


# --- what is compared ------------------------------------------------------------------------


def test_stale_files_fail_and_an_update_removes_them(specs: Specs) -> None:
    specs.write("orders.yaml", spec())
    specs.write("orders.test/events.jsonl", LINE)
    specs.run(update=True)
    specs.write("orders.test/expected/old.jsonl", "{}\n")
    specs.write("orders.test/expected/notes.md", "ours\n")
    specs.write("orders.test/dead-letters.jsonl", "{}\n")
    assert specs.run() == (
        "FAILED orders: dead-letters.jsonl is there, but no event ends there\n"
        "FAILED orders: expected/old.jsonl is there, but there is no such sink\n"
    )
    assert specs.run(update=True) == (
        "updated orders: 1 event; screen 1; removed dead-letters.jsonl, removed expected/old.jsonl\n"
    )
    assert specs.run(update=True) == "updated orders: 1 event; screen 1; nothing has changed\n"
    assert specs.run() == "ok orders: 1 event; screen 1\n"
    assert specs.read("orders.test/expected/notes.md") == "ours\n"


def test_every_byte_of_a_value_counts(specs: Specs) -> None:
    specs.write("orders.yaml", spec())
    specs.write("orders.test/events.jsonl", LINE.replace("1}", '1.0,"t":"a\u2028b"}'))
    specs.run(update=True)
    path = "orders.test/expected/screen.jsonl"
    expected = specs.read(path)
    assert '"after":{"id":1.0,"t":"a\u2028b"}' in expected
    specs.write(path, expected.replace("1.0", "1.00"))
    assert "line 1 differs" in specs.run()
    specs.write(path, expected.removesuffix("\n"))
    assert specs.run().startswith("ok ")
    specs.write(path, expected * 2)
    assert "screen: line 2 differs" in (said := specs.run()) and "(1 line, not 2)" in said
    specs.write(path, "")
    assert "line 1 differs: nothing is now" in (said := specs.run())
    assert "\\u2028" in said, "nothing that is not printable reaches a terminal"


def test_a_sink_that_gets_nothing_has_an_empty_file(specs: Specs) -> None:
    deletes = {"type": "filter", "id": "deletes", "ops": ["delete"]}
    specs.write("orders.yaml", spec(processors=[deletes]))
    specs.write("orders.test/events.jsonl", LINE)
    assert specs.run(update=True).startswith("updated orders: 1 event; screen 0;")
    assert specs.read("orders.test/expected/screen.jsonl") == ""
    assert specs.run() == "ok orders: 1 event; screen 0; deletes dropped 1\n"


def test_long_differences_are_cut(specs: Specs) -> None:
    specs.write("orders.yaml", spec())
    specs.write("orders.test/events.jsonl", LINE * 100)
    specs.write("orders.test/expected/screen.jsonl", "")
    lines = specs.run().splitlines()
    assert len(lines) == 42 and lines[-1] == "  …"


@pytest.mark.parametrize(
    ("source", "table", "to", "key"),
    [
        (TURSO, "orders", "main.orders.${PREFIX}", "main.orders"),
        (MYSQL, "shop.orders", "shop.orders.${PREFIX}", "shop.orders"),
        (POSTGRES, "public.orders", "postgres.orders.${PREFIX}", "postgres.orders"),
    ],
    ids=["turso", "mysql", "postgres"],
)
def test_routing_of_each_source_and_environment_references(
    specs: Specs, source: Json, table: str, to: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of the environment must not matter, nor show: it is the same test on every machine."""
    for name in ("PREFIX", "KAFKA_BROKERS", "REDIS_URI", "MYSQL_DSN", "PG_DSN"):
        monkeypatch.setenv(name, "hunter2")
    topic = "${source.db}.${source.table}.${PREFIX}"
    kafka = having(KAFKA, brokers="${KAFKA_BROKERS}", topic=topic)
    redis = having(REDIS, stream="${STREAM:-fallback}", key="${after.id}")
    specs.write("orders.yaml", spec(kafka, redis, source=source))
    without = LINE.replace("orders", table)
    keyed = without.replace("}\n", ', "primary_key": {"id": 1}}\n')
    specs.write("orders.test/events.jsonl", without + keyed)
    assert specs.run(update=True).startswith("updated orders: 2 events; events 2, cache 2;")
    rows = [json.loads(x) for x in specs.read("orders.test/expected/events.jsonl").splitlines()]
    assert [list(row) for row in rows] == [["to", "key", "value"]] * 2
    assert [(row["to"], row["key"]) for row in rows] == [(to, key), (to, '{"id":1}')]
    assert rows[0]["value"]["source"]["table"] == "orders"
    cached = [json.loads(x) for x in specs.read("orders.test/expected/cache.jsonl").splitlines()]
    assert [(row["to"], row["key"]) for row in cached] == [("fallback", "1")] * 2
    assert specs.run().startswith("ok ")
    assert "hunter2" not in specs.read("orders.test/expected/events.jsonl")


# --- dead letters and failures ---------------------------------------------------------------


def test_events_without_destination_are_dead_letters(specs: Specs) -> None:
    specs.write("orders.yaml", spec(having(KAFKA, topic="x.${after.kind}"), source=MYSQL))
    line = LINE.replace("orders", "shop.orders")
    specs.write("orders.test/events.jsonl", line.replace("1}", '1,"kind":"new"}') + line)
    said = specs.run(update=True)
    assert "2 events; events 1, dead letters 1; wrote expected/events.jsonl" in said
    assert "the job stands still at the first of them" in said
    assert "stands still" not in specs.run(journal=True)
    (letter,) = specs.read("orders.test/dead-letters.jsonl").splitlines()
    found = json.loads(letter)
    assert list(found) == ["sink", "error", "event"]
    assert found["sink"] == "events" and found["error"].startswith("no destination: ")
    assert found["event"]["after"] == {"id": 1}
    assert specs.run().startswith("ok orders: 2 events; events 1, dead letters 1\n")
    (specs.folder / "orders.test/dead-letters.jsonl").unlink()
    assert specs.run().startswith("FAILED orders: dead-letters.jsonl is not there;")


def job(process: Any) -> ModuleType:
    module = ModuleType("job")
    module.ENV, module.COLUMNS = (), "position tx_end op ts_ms db table after"  # type: ignore
    module.SOURCE = TursoSource(url="x")  # type: ignore
    module.process = process  # type: ignore
    module.sinks = lambda env: (  # type: ignore
        ConsoleSink("screen", lambda e: Messages(value=e.after.text, headers='{"h":"v"}', key="k")),
    )
    return module


CASE = Case("a.yaml", "a.test", "a", "acme", "", True, True)


def test_dead_letters_of_processors_counts_and_the_order_of_the_log() -> None:
    def process(events: Events, env: Env) -> Events:
        events.ledger.dead.append(DeadLetter(events.slice(0, 1), "derive", "it was bad"))
        events.ledger.count("derive", "skipped", events.position.slice(0, 1))
        return events.take([2, 1, 1])

    made = Replay()
    lines = "".join(LINE.replace("1}", f"{n}}}") for n in (1, 2, 3))
    replay(job(process), CASE, lines, made)
    assert made.files == {
        "expected/screen.jsonl": [
            f'{{"key":"k","headers":{{"h":"v"}},"value":{{"id":{n}}}}}' for n in (2, 2, 3)
        ],
        "dead-letters.jsonl": [
            '{"processor":"derive","error":"it was bad","event":{"after":{"id":1},"op":"c",'
            '"ts_ms":1700000000001,"tx_end":true}}'
        ],
    }
    assert made.ledger.counts == {("derive", "skipped"): 1}


def test_values_that_are_no_line_of_json_are_kept_as_text() -> None:
    for value in ("not json", '{"a":\n1}'):
        made = Replay()
        module = job(lambda events: events.with_columns(after=value))  # noqa: B023
        replay(module, CASE, LINE, made)
        (line,) = made.files["expected/screen.jsonl"]
        assert json.loads(line)["text"] == value


def test_a_failing_processor_fails_the_test_and_what_was_said_before_is_shown(
    specs: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(events: Events) -> Events:
        events.ledger.say("warning", "odd row", row=7)
        raise ProcessorError("derive: it broke")

    specs.write("orders.yaml", spec())
    specs.write("orders.test/events.jsonl", LINE)
    monkeypatch.setattr("dfc_runtime.replay.load_job", lambda name, text: job(process))
    for update in (False, True):
        assert specs.run(update=update) == (
            "FAILED orders: derive: it broke\n  warning: odd row: row 7\n"
        )
    assert not (specs.folder / "orders.test/expected").exists()

    def fault(events: Events) -> Events:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("dfc_runtime.replay.load_job", lambda name, text: job(fault))
    assert specs.run() == (
        "FAILED orders: a processor failed: ZeroDivisionError: division by zero\n"
    )


def test_a_file_that_is_no_text_is_named(specs: Specs) -> None:
    specs.write("orders.yaml", spec())
    specs.write("orders.test/events.jsonl", LINE)
    (specs.folder / "orders.test/events.jsonl").write_bytes(b"ab\xff")
    assert specs.run() == "FAILED orders: events.jsonl is not UTF-8: byte 3\n"


# --- recording -------------------------------------------------------------------------------


def test_record_starts_the_job_and_names_the_file(
    specs: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs.write("orders.yaml", spec())
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    main(["test", "--record", "5", "orders.yaml", "--once", "--conf", "a=b"])
    assert started[0][1:] == [
        ".dfc/orders.job.py", "--once", "--conf", "a=b",
        "--record", "5", "--record-to", "orders.test/events.jsonl",
    ]  # fmt: skip


def test_a_recording_takes_as_many_as_wanted_and_asks_to_stop_once(tmp_path: Path) -> None:
    stops: list[int] = []
    said = io.StringIO()
    path = tmp_path / "new" / "events.jsonl"
    recording = Recording("shop", 3, str(path), lambda: stops.append(1), said)
    recording.output("a\nb")
    recording.say("info", "started")
    recording.say("warning", "slow", secs=3)
    assert not stops
    for text in ("c\nd", "e"):
        recording.output(text)
    assert stops == [1] and not path.exists()
    recording.stopped()
    assert path.read_text() == "a\nb\nc\n"
    assert said.getvalue() == (
        "shop: 2 of 3 events\nshop: warning: slow: secs 3\nshop: 3 of 3 events\n"
        f"shop: wrote 3 events to {path}: real rows, so read it before you commit it\n"
    )


def test_a_recording_that_is_cut_short_keeps_what_has_come(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    recording = Recording("shop", 3, str(path), lambda: None, io.StringIO())
    recording.stopped()
    assert not path.exists(), "no events are no fixtures"
    recording.output("a")
    recording.stopped()
    assert path.read_text() == "a\n"


def test_a_recording_needs_no_sink_and_only_its_source(tmp_path: Path) -> None:
    def sinks(env: Env) -> tuple[KafkaSink, ...]:
        return (KafkaSink("bus", lambda e: Messages(value=""), brokers=env["NO_SUCH_BROKERS"]),)

    record = ["--record", "2", "--record-to", str(tmp_path / "x")]
    options: Any = {"sinks": sinks, "env": ("NO_SUCH_BROKERS",), "lanes": 4}
    made = Job("a", needs=("dfc_turso", "schema_sensing"), argv=record, **options)
    assert [sink.id for sink in made.sinks] == ["record"] and made.lanes == 1
    for argv in (record[:2], record[2:], ["--record", "-1", *record[2:]]):
        with pytest.raises(SystemExit) as exit:
            Job("a", argv=argv, **options)
        assert exit.value.code == 2


@pytest.mark.spark
def test_record_from_a_live_source_then_replay(specs: Specs) -> None:
    writer = database(
        specs.folder / "shop.db",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)",
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)",
    )
    turso_log(specs.folder / "shop.db").close()  # leaves its triggers, as an earlier run would
    writer.executemany("INSERT INTO orders VALUES (?, ?)", [(n, n * 10.5) for n in range(9)])
    shutil.copy(ROOT / "examples" / "quickstart.yaml", specs.folder)
    tables = writer.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
    done = subprocess.run(
        [sys.executable, "-m", "dfc.compiler.cli", "test", "--record", "3", "quickstart.yaml"],
        env={**os.environ, "SHOP_DB": str(specs.folder / "shop.db")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "quickstart: 3 of 3 events\n" in done.stderr
    assert done.stderr.endswith(
        "wrote 3 events to quickstart.test/events.jsonl: real rows, so read it before you "
        "commit it\n"
    )
    lines = [json.loads(x) for x in specs.read("quickstart.test/events.jsonl").splitlines()]
    assert [line["after"] for line in lines] == [{"id": n, "total": n * 10.5} for n in range(3)]
    assert [line["primary_key"] for line in lines] == [{"id": n} for n in range(3)]
    assert all(line["schema_version"].startswith("sha256:") for line in lines)
    # As for a dry run: nothing is sent, kept, or left in the database.
    assert not (specs.folder / "data").exists()
    assert tables == writer.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
    assert specs.dfc("--update", "quickstart.yaml") == 0
    assert specs.dfc("quickstart.yaml") == 0
    assert specs.out == "ok quickstart: 3 events; archive 2, screen 2; worth-keeping dropped 1\n"
