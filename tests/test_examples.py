"""The example pipelines are valid as any editor sees them, before the compiler has its say."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

EXAMPLES = sorted(Path(__file__).parent.parent.joinpath("examples").glob("*.yaml"))
SCHEMA: dict[str, Any] = json.loads(
    files("dfc.schemas").joinpath("pipeline.schema.json").read_text("utf-8")
)

each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@each_example
def test_example_is_valid(path: Path) -> None:
    error = best_match(Draft202012Validator(SCHEMA).iter_errors(load(path)))
    assert error is None, f"{path.name}: {error.json_path}: {error.message}"


@each_example
def test_example_names_its_schema_and_says_what_it_shows(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] == "# yaml-language-server: $schema=../schemas/pipeline.schema.json"
    assert lines[1].startswith("# ")
    assert lines[3].startswith(("apiVersion:", "kind:"))
    assert all(line == line.rstrip() and "\t" not in line for line in lines)


@each_example
def test_example_asks_for_idempotence_only_where_all_replicas_answer(path: Path) -> None:
    """`acks: "1"` turns idempotence off in the broker's eyes; the example must say so itself."""
    for sink in load(path)["spec"]["sinks"]:
        conf = sink["config"].get("client_conf", {})
        if conf.get("acks", "all") not in ("all", "-1"):
            assert conf.get("enable.idempotence") == "false"
            assert not sink["config"].get("exactly_once", False)


def test_example_names_differ() -> None:
    names = Counter(load(path)["metadata"]["name"] for path in EXAMPLES)
    assert names.most_common(1)[0][1] == 1


def test_every_kind_of_part_has_an_example() -> None:
    shown = {
        part["type"]
        for spec in (load(path)["spec"] for path in EXAMPLES)
        for part in (spec["source"], *spec.get("processors", []), *spec["sinks"])
    }
    unions = (SCHEMA["$defs"][name]["x-dfc-union"] for name in ("source", "processor", "sink"))
    assert shown == {name for union in unions for name in union}
