"""dfc reads the JSON Schema itself; the `jsonschema` package says whether it reads it right."""

from __future__ import annotations

import copy
import inspect
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dfc.compiler.serialise import plan_dict
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from .goldens import EXAMPLES, GOLDEN
from .places import PLACES, SCHEMA, Place, follow
from .specs import (
    CONSOLE,
    KAFKA,
    MYSQL,
    NATS,
    POSTGRES,
    REDIS,
    Json,
    Result,
    compiled,
    having,
    spec,
    to_yaml,
)

ORACLE = Draft202012Validator(SCHEMA)
SPECS = {
    path.parent.name if path.name == "pipeline.yaml" else path.stem: path
    for path in sorted([*EXAMPLES.glob("*.yaml"), *GOLDEN.glob("*/*/pipeline.yaml")])
}


def agree(document: Json, result: Result) -> None:
    """2xx exactly when the oracle refuses. A text that breaks a rule of its own (1xx, 3xx) is not
    measured against its pattern as well."""
    text_rules = {c for c in result.codes if c[3] in "13"}
    schema_rules = {c for c in result.codes if c[3] == "2"}
    if ORACLE.is_valid(document):
        assert not schema_rules, result.diagnostics.text()
    else:
        assert schema_rules or text_rules, [e.message for e in ORACLE.iter_errors(document)]
        assert schema_rules or all("pattern" in e for e in _keywords(document))


def _keywords(document: Json) -> Iterator[set[str]]:
    """The keywords that each failure comes down to, inside unions too."""

    def reasons(error: Any) -> set[str]:
        inner = [reasons(e) for e in error.context or ()]
        return {error.validator}.union(*inner)

    for error in ORACLE.iter_errors(document):
        yield reasons(error)


# --- the goldens and examples ----------------------------------------------------------------


class _Strict(yaml.SafeLoader):
    """YAML as dfc reads it: `on` and `1:30` are text."""


_Strict.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith(("bool", "int", "timestamp"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Strict.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))
_Strict.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^-?(0|[1-9][0-9]*)$"), list("-0123456789")
)


def load(path: Path) -> Json | None:
    try:
        return yaml.load(path.read_text("utf-8"), Loader=_Strict)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return None  # the parser's business


@pytest.mark.parametrize("path", SPECS.values(), ids=SPECS)
def test_every_golden_and_example_is_judged_as_the_oracle_does(path: Path) -> None:
    result = compiled(path.read_bytes())
    if any(code < "DFC120" for code in result.codes):
        return  # it never got as far as the schema
    document = load(path)
    if document is not None:
        agree(document, result)


# --- every place of the language -------------------------------------------------------------

ODD: list[Json] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2.0,
    2.5,
    10**12,
    1e300,
    "",
    "x",
    "1",
    "a b\n",
    [],
    {},
]
ODD += [["x"], [1], ["x", "x"], [None], {"type": "x"}, {"": "x"}, {"x": "y"}, {"x": 1}, [[]], [{}]]


def edges(schema: Json) -> list[Json]:
    """Values on both sides of each limit."""
    values: list[Json] = []
    for name in ("minimum", "maximum"):
        if name in schema:
            values += [schema[name] + step for step in (-1, 0, 1, 0.5)]
    for name in ("minLength", "maxLength"):
        if name in schema:
            values += ["x" * max(0, schema[name] + step) for step in (-1, 0, 1)]
    for word in [*schema.get("enum", ()), schema.get("const")]:
        if isinstance(word, str):
            values += [word, word.upper(), word + " ", [word], [word, word]]
    return values


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_every_place_takes_and_refuses_what_the_oracle_does(place: Place) -> None:
    values: list[Json] = [v for v in ODD if not place.is_key or isinstance(v, str)]
    for value in values + edges(place.schema):
        document = place.holding(value)
        result = compiled(document)
        agree(document, result)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_an_unknown_neighbour_is_refused_where_the_oracle_does(place: Place) -> None:
    if isinstance(place.path[-1], str) and not place.is_key:
        document = Place("", (*place.path[:-1], "zzz"), {}, place.base).holding(1)
        agree(document, compiled(document))


# --- random changes --------------------------------------------------------------------------

WORDS = sorted(
    {step for place in PLACES for step in place.path if isinstance(step, str)} | {"zzz", ""}
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([*WORDS, "${A}", "${source.table}", "on", "1e3", "017", "a.b", "2000"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=5,
)
GOOD = [load(path) for path in SPECS.values() if path.parent.parent.name != "errors"]


def nodes(value: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from nodes(child, (*path, key))


@st.composite
def mutants(draw: st.DrawFn) -> Json:
    document = copy.deepcopy(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([p for p in nodes(document) if p] or [()]))
        if not path:
            break
        parent: Any = document
        for step in path[:-1]:
            parent = parent[step]
        match draw(st.sampled_from(["drop", "replace", "add", "copy"])):
            case "drop":
                del parent[path[-1]]
            case "replace":
                parent[path[-1]] = draw(VALUES)
            case "copy":
                other = draw(st.sampled_from([p for p in nodes(document) if p]))
                found: Any = document
                for step in other:
                    found = found[step]
                parent[path[-1]] = copy.deepcopy(found)
            case _ if isinstance(parent, dict):
                parent[draw(st.sampled_from(WORDS))] = draw(VALUES)
            case _:
                parent.append(draw(VALUES))
    return document


@settings(max_examples=300, deadline=None)
@given(mutants())
def test_changed_specs_are_judged_as_the_oracle_does(document: Json) -> None:
    result = compiled(document)
    agree(document, result)
    assert (result.maybe_plan is None) == result.diagnostics.failed


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(WORDS), VALUES, min_size=1, max_size=4))
def test_any_mapping_is_judged_as_the_oracle_does(document: Json) -> None:
    agree(document, compiled(document))


def test_specs_round_trip_through_the_notation_of_these_tests() -> None:
    for document in GOOD[:20]:
        assert yaml.safe_load(to_yaml(document)) == document


# --- the schema and its reader ---------------------------------------------------------------

# What describes, names or groups, and asks nothing of a document.
ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}


def keywords_in(schema: Json) -> Iterator[str]:
    for keyword, value in schema.items():
        yield keyword
        if keyword in ("properties", "$defs"):
            for child in value.values():
                yield from keywords_in(child)
        elif keyword in ("oneOf", "anyOf", "allOf", "prefixItems"):
            for child in value:
                yield from keywords_in(child)
        elif isinstance(value, dict) and not keyword.startswith(("default", "x-")):
            yield from keywords_in(value)


def test_no_keyword_of_the_schema_goes_unread() -> None:
    source = inspect.getsource(sys.modules["dfc.compiler.validate"])
    used = set(keywords_in(SCHEMA)) - ANNOTATIONS
    assert {keyword for keyword in used if f'"{keyword}"' not in source} == set()


def test_names_of_keys_are_only_ever_asked_for_a_length() -> None:
    """All that the reader looks at in `propertyNames`."""
    asked = [s["propertyNames"] for s in _schemas(SCHEMA) if "propertyNames" in s]
    assert asked and all(names.keys() == {"minLength"} for names in asked)


def _schemas(schema: Json) -> Iterator[Json]:
    yield schema
    for value in schema.values():
        if isinstance(value, dict):
            yield from _schemas(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    yield from _schemas(item)


def defaults(schema: Json) -> Json:
    """What an object of the schema is when nothing is said: the schema's own answer."""
    schema = follow(schema)
    if "properties" not in schema:
        return schema.get("default")
    return {
        key: defaults(child) if follow(child).get("default") == {} else follow(child).get("default")
        for key, child in schema["properties"].items()
    }


@pytest.mark.parametrize("part", ["batch", "journal", "storage", "schema_sensing"])
def test_what_is_left_out_takes_the_defaults_of_the_schema(part: str) -> None:
    expected = defaults(SCHEMA["properties"]["spec"]["properties"][part])
    shown = plan_dict(compiled(spec()).plan)[part]
    shown.pop("at", None)
    if part == "journal":
        expected |= expected.pop("dlq")
    if part == "schema_sensing":
        flat: dict[str, Json] = {}
        _flatten("", expected, flat)
        shown = {"enabled": shown["enabled"], **shown["settings"]}
        expected = flat
    assert shown == expected


def _flatten(prefix: str, value: Json, into: dict[str, Json]) -> None:
    for key, child in value.items():
        if isinstance(child, dict):
            _flatten(f"{prefix}{key}.", child, into)
        else:
            into[prefix + key] = child


@pytest.mark.parametrize("sink", [KAFKA, REDIS, NATS, CONSOLE], ids=lambda sink: sink["type"])
def test_sinks_take_the_defaults_of_the_schema(sink: Json) -> None:
    expected = defaults(SCHEMA["$defs"][f"{sink['type']}_sink"]["properties"]["config"])
    shown = plan_dict(compiled(spec(sink)).plan)["sinks"][0]
    shown |= shown.pop("delivery")
    for key in expected.keys() - sink["config"].keys() - {"envelope"}:
        assert shown[key] == expected[key], key
    assert shown["envelope"]["type"] == expected["envelope"]["type"]


@pytest.mark.parametrize("source", [MYSQL, POSTGRES], ids=lambda source: source["type"])
def test_sources_take_the_defaults_of_the_schema(source: Json) -> None:
    expected = defaults(SCHEMA["$defs"][f"{source['type']}_source"]["properties"]["config"])
    shown = plan_dict(compiled(spec(source=source)).plan)["source"]
    for key in expected.keys() & shown.keys() - source["config"].keys():
        assert shown[key] == expected[key], key


def test_a_whole_number_may_be_written_with_an_exponent() -> None:
    result = compiled("metadata: {name: a, tenant: b}\nspec:\n  batch: {max_ms: 1e3}\n"
                      "  source: {type: turso, config: {id: a, url: x, tables: [y]}}\n"
                      "  sinks: [{type: console, config: {id: c}}]\n")  # fmt: skip
    assert result.plan.batch.max_ms == 1000
    assert "max_ms=1000," in result.job


def test_a_default_written_out_changes_nothing() -> None:
    written = having(KAFKA, key=None, required=True, client_conf={}, filter=None, encoding="json")
    assert plan_dict(compiled(spec(written)).plan)["sinks"][0]["delivery"] == (
        plan_dict(compiled(spec(KAFKA)).plan)["sinks"][0]["delivery"]
    )


# --- far too much ----------------------------------------------------------------------------

HEAD = "metadata: {name: a, tenant: b}\n"
BODY = HEAD + "spec:\n  source: {type: turso, config: {id: a, url: x, tables: [y]}}\n  sinks: "


@pytest.mark.parametrize(
    "text",
    [
        f"x: &s {{type: kafka, config: {{a: 1, b: 2}}}}\n{BODY}[{', '.join(['*s'] * 60_000)}]\n",
        HEAD + "spec: {" + ", ".join(f"k{n}: 1" for n in range(100_000)) + "}\n",
        f"{BODY}[{{type: kafka, config: {{id: c, topic: t, brokers: '{'${a b}' * 100_000}'}}}}]\n",
        f"{BODY}[{{type: kafka, config: {{id: c, topic: t, brokers: '{'$$' * 1_000_000}'}}}}]\n",
        f"{BODY}[{{type: kafka, config: {{id: c, topic: t, brokers: '{'${A}' * 100_000}'}}}}]\n",
        f"{BODY}[{{type: nats, config: {{id: c, url: u, subject: {'a.' * 400_000}}}}}]\n",
        f"{BODY}[{{type: redis, config: {{id: c, uri: '{'a:@/,' * 300_000}', stream: s}}}}]\n",
    ],
    ids=["aliases", "keys", "bad-references", "dollars", "references", "pattern", "url"],
)
def test_far_too_much_of_anything_is_answered_quickly(text: str) -> None:
    started = time.process_time()
    result = compiled(text)
    assert len(result.diagnostics.text()) < 1_000_000
    assert time.process_time() - started < 10
