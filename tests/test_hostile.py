"""Hostile text in every text field of the language: refused, or data in the job; never code."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from dfc.compiler.serialise import plan_json
from hypothesis import given, settings
from hypothesis import strategies as st

from .goldens import EXAMPLES
from .places import TEXTS, Place
from .specs import Json, Result, compiled, spec

# One of each kind in one text, so that a field needs few compilations; `$` has tests of its own.
CODE = '"""\n__import__("os").system("id")\n"""\n\'\'\'\nraise SystemExit\n'
TEXTS_OF_MALICE = {
    "newline-code": "x\nimport os; os.abort()\n#",
    "quotes": "a\"b'c\"\"\"d'''e\\",
    "code": CODE,
    "jinja": "{{ 7*7 }}{% for x in y %}{# c #}{{ job.__class__ }}",
    "backslashes": '\\\\"\\n\\x41\\N{DASH}\\\n\\',
    "controls": "a\0b\x07\x1b[31m\r\n\x0c\x85\u2028\u2029z",
    "bidi": "\u202e\u2066user\u2069\u200b\ufeffﬁ😀",
    "braces": "{0} {x!r} %s %(y)s {{}} }} {{",
    "shell": "'; rm -rf / #`id`$(id)|&<>",
    "comment": "# --- sink: \\\n# x  # fmt: off",
    "long": "ab\n\"'" * 5_000,
    "words": "None True lambda: 0",
}
EXPECTED_TOP = {"Expr", "ImportFrom", "Assign", "FunctionDef", "If"}


def dumped(document: Json) -> Result:
    return compiled(yaml.safe_dump(document, sort_keys=False))


@cache
def prefix(place: Place) -> str | None:
    """What a text must begin with to be taken here, if anything helps."""
    for start in ("", "mysql://h/", "postgres://h/", "redis://h/", "${NAME}"):
        if not dumped(place.holding(start + "x")).diagnostics.failed:
            return start
    return None


def job_of(result: Result, formatted: bool) -> str:
    """Formatting takes most of the time and changes no meaning: a part of the tests goes without."""
    with pytest.MonkeyPatch.context() as patch:
        if not formatted:
            patch.setattr("dfc.compiler.emit.render.format_source", lambda source: source)
        return result.job


@cache
def harmless(place: Place, start: str, formatted: bool) -> tuple[str, int]:
    job = job_of(dumped(place.holding(start + "x")), formatted)
    return skeleton(job), comments(job)


def skeleton(job: str) -> str:
    """The code without what its strings say; ids give functions and scripts their names."""
    tree = ast.parse(job)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return re.sub(r"'(to|SCRIPT)_\w*'", r"'\1'", ast.dump(tree))


def comments(job: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(job).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        if value[:1] in ('"', "[", "{"):  # the value of a predicate is JSON text
            try:
                yield from strings(json.loads(value))
            except ValueError:
                return
    elif isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            yield ".".join(value)  # a path
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)


def check(place: Place, text: str, formatted: bool) -> None:
    start = prefix(place)
    written = (start or "") + text
    result = dumped(place.holding(written))
    for line in result.diagnostics.text().splitlines():
        assert line.isprintable()
        assert line.startswith(("pipeline.yaml:", "  help: "))
    json.loads(result.diagnostics.json())
    if result.diagnostics.failed:
        assert result.maybe_plan is None
        return
    assert start is not None
    plan = json.loads(plan_json(result.plan))
    spelled = text.replace("$", "$$")  # as a spec would write it
    assert any(text in s or spelled in s for s in strings(plan)), "the plan lost the text"
    job = job_of(result, formatted)
    assert all(c.isprintable() or c == "\n" for c in job)
    assert {type(node).__name__ for node in ast.parse(job).body} <= EXPECTED_TOP
    assert (skeleton(job), comments(job)) == harmless(place, start, formatted)


@pytest.mark.parametrize("place", TEXTS, ids=lambda place: place.name)
def test_hostile_text_is_refused_or_stays_data(place: Place) -> None:
    for name, text in TEXTS_OF_MALICE.items():
        check(place, text, formatted=name == "quotes")


FRAGMENTS = ["\n", '"', "'", '"""', "\\", "{{", "{%", "#", "\0", "\u2028", "\u202e", ";", "(", "\t"]
HOSTILE = st.lists(
    st.sampled_from(FRAGMENTS)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="$"), max_size=5),
    min_size=1,
    max_size=8,
).map("".join)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TEXTS), HOSTILE)
def test_random_text_is_refused_or_stays_data(place: Place, text: str) -> None:
    check(place, text, formatted=True)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([place for place in TEXTS if place.schema.get("x-dfc")]),
    st.lists(
        st.sampled_from(
            ["$", "$$", "${", "}", "${A}", "${A:-", "${op}", "${after.x}", "${source.table}", "\n"]
        )
        | st.sampled_from(
            ['"', "'", "a.b", "{{", "${after.x\n}", '${A:-"""\nimport os\n"""}', "${}", "-"]
        ),
        max_size=6,
    ).map("".join),
)
def test_dollars_and_braces_are_refused_or_compile(place: Place, text: str) -> None:
    result = dumped(place.holding((prefix(place) or "") + text))
    if not result.diagnostics.failed:
        job = result.job
        assert {type(node).__name__ for node in ast.parse(job).body} <= EXPECTED_TOP
        assert not any(isinstance(node, ast.Import) for node in ast.walk(ast.parse(job)))
        assert all(c.isprintable() or c == "\n" for c in job)


@pytest.mark.parametrize(
    "value",
    [*TEXTS_OF_MALICE.values(), {CODE: [CODE, 1.5, None, True]}, [CODE], 10**30, -0.0, 1e300],
    ids=lambda value: type(value).__name__,
)
def test_a_value_to_compare_with_is_data(value: Json) -> None:
    predicate = {"path": CODE.replace("\n", " ").replace(".", " "), "op": "eq", "value": value}
    given = spec(processors=[{"type": "filter", "fields": [predicate]}])
    job = dumped(given).job
    calls = [
        node
        for node in ast.walk(ast.parse(job))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    (compared,) = [
        ast.literal_eval(c.args[0]) for c in calls if getattr(c.func, "attr", "") == "eq"
    ]
    assert compared == value


@pytest.mark.parametrize(
    "name", ["a\nb.yaml", '"""x.yaml', "\udcff.yaml", "{{x}}.yaml", "# é.yaml"]
)
def test_a_hostile_file_name_is_data_too(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(yaml.safe_dump(spec()))
    dfc = [sys.executable, "-m", "dfc.compiler.cli"]
    done = subprocess.run([*dfc, "compile", str(path)], capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert {type(n).__name__ for n in ast.parse(done.stdout).body} <= EXPECTED_TOP
    path.write_text("metadata: 1\n")
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    for flags in ([], ["--json"]):
        command = [*dfc, "validate", *flags, str(path)]
        done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=strict)
        assert done.returncode == 1
        assert b"fault of dfc" not in done.stderr


# --- same input, same bytes ------------------------------------------------------------------


def test_the_same_spec_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    """Hash seed, folder, time zone, language and user are the machine's business."""
    names = ("fan-out.yaml", "outbox-multi-channel.yaml", "schema-sensing.yaml")
    outputs = set()
    for number, (cwd, seed, zone, language) in enumerate(
        [(EXAMPLES, "0", "UTC", "C"), (tmp_path, "4242", "Asia/Tokyo", "tr_TR.UTF-8")]
    ):
        env = {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": language, "HOME": f"/h{number}"}
        env["PATH"] = os.environ["PATH"]
        env["USER"] = f"user{number}"
        output = b""
        for name in names:
            for command in (["compile"], ["plan", "--json"]):
                path = name if cwd == EXAMPLES else str(EXAMPLES / name)
                dfc = [sys.executable, "-m", "dfc.compiler.cli", *command, path]
                output += subprocess.run(
                    dfc, capture_output=True, cwd=cwd, env=env, check=True
                ).stdout
        outputs.add(output)
    assert len(outputs) == 1


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(TEXTS))
def test_compiling_twice_gives_the_same_bytes(place: Place) -> None:
    document = place.holding((prefix(place) or "") + "x")
    first, second = dumped(document), dumped(document)
    if not first.diagnostics.failed:
        assert first.job == second.job
        assert plan_json(first.plan) == plan_json(second.plan)
