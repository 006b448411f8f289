"""The pipeline schema is complete: whatever a user may write is described, bounded and has a default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

SCHEMA: dict[str, Any] = json.loads(
    files("dfc.schemas").joinpath("pipeline.schema.json").read_text("utf-8")
)
X_DFC = {"env", "url", "secret", "route", "row_route", "script", "conf"}

Found = list[tuple[str, dict[str, Any]]]


def subschemas(schema: dict[str, Any], path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in the file with its JSON pointer; what `default`, `enum` and the like hold is data."""
    yield path, schema
    for keyword in ("properties", "$defs"):
        for name, child in schema.get(keyword, {}).items():
            yield from subschemas(child, f"{path}/{keyword}/{name}")
    for keyword in ("oneOf", "anyOf"):
        for index, child in enumerate(schema.get(keyword, ())):
            yield from subschemas(child, f"{path}/{keyword}/{index}")
    for keyword in ("items", "additionalProperties"):
        child = schema.get(keyword)
        if isinstance(child, dict):
            yield from subschemas(child, f"{path}/{keyword}")


def resolve(ref: str) -> dict[str, Any]:
    node: Any = SCHEMA
    for part in ref.removeprefix("#/").split("/"):
        node = node[part]
    assert isinstance(node, dict)
    return node


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Validates with the file's own `$defs` at hand, so that `$ref` resolves."""
    return Draft202012Validator({**schema, "$defs": SCHEMA["$defs"]}).is_valid(value)


def types_of(schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema and "type" not in schema:
        return types_of(resolve(schema["$ref"]))
    declared = schema.get("type", [])
    return {declared} if isinstance(declared, str) else set(declared)


ALL: Found = list(subschemas(SCHEMA))
PROPERTIES: Found = [
    (f"{path}/properties/{name}", child)
    for path, schema in ALL
    for name, child in schema.get("properties", {}).items()
]
REQUIRED = {
    f"{path}/properties/{name}" for path, schema in ALL for name in schema.get("required", ())
}
UNIONS: Found = [(path, schema) for path, schema in ALL if "x-dfc-union" in schema]


def each(found: Found) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("path", "schema"), found, ids=[path for path, _ in found])


def test_the_schema_is_valid_draft_2020_12() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(SCHEMA)


def test_every_reference_leads_somewhere_and_every_definition_is_used() -> None:
    used = {schema["$ref"] for _, schema in ALL if "$ref" in schema}
    assert used == {f"#/$defs/{name}" for name in SCHEMA["$defs"]}


@each(PROPERTIES)
def test_every_property_is_described_in_whole_sentences(path: str, schema: dict[str, Any]) -> None:
    description = schema.get("description", "")
    assert description and description[0].isupper() and description.endswith(".")
    assert len(description) <= 160, "longer than a help line should be"


@each(PROPERTIES)
def test_every_property_is_required_or_has_a_default(path: str, schema: dict[str, Any]) -> None:
    assert ("default" in schema) != (path in REQUIRED)


@each([(path, schema) for path, schema in PROPERTIES if "default" in schema])
def test_every_default_is_a_legal_value(path: str, schema: dict[str, Any]) -> None:
    assert accepts(schema, schema["default"])


def test_every_required_name_is_a_property() -> None:
    unions = {f"{path}/properties/type" for path, _ in UNIONS}
    assert {path for path, _ in PROPERTIES} >= REQUIRED - unions


@each([(path, schema) for path, schema in ALL if "object" in types_of(schema)])
def test_every_object_is_closed_or_a_map_or_a_union(path: str, schema: dict[str, Any]) -> None:
    if "$ref" in schema or "x-dfc-union" in schema:
        return
    if "properties" in schema:
        assert schema["additionalProperties"] is False
    else:
        assert schema["additionalProperties"]["type"] == "string"


@each([(path, schema) for path, schema in ALL if "x-dfc" in schema])
def test_every_x_dfc_value_is_known_and_stands_on_text(path: str, schema: dict[str, Any]) -> None:
    assert schema["x-dfc"] in X_DFC
    if schema["x-dfc"] == "conf":
        assert schema["additionalProperties"] == {"type": "string"}
    else:
        assert types_of(schema) <= {"string", "null"}


def test_every_x_dfc_value_occurs() -> None:
    assert {schema["x-dfc"] for _, schema in ALL if "x-dfc" in schema} == X_DFC


@each(UNIONS)
def test_unions_agree_with_their_alternatives(path: str, schema: dict[str, Any]) -> None:
    assert schema["type"] == "object"
    assert schema["required"] == ["type"]
    assert [child["$ref"] for child in schema["oneOf"]] == list(schema["x-dfc-union"].values())
    for name, ref in schema["x-dfc-union"].items():
        variant = resolve(ref)
        assert variant["properties"]["type"]["const"] == name
        assert "type" in variant["required"]
        assert ref == f"#/$defs/{name}_{path.rpartition('/')[2]}"


@each([(path, schema) for path, schema in ALL if "anyOf" in schema])
def test_other_alternatives_are_told_apart_by_their_type(path: str, schema: dict[str, Any]) -> None:
    """So that the compiler can pick one by looking at the node, and its errors concern that one."""
    kinds = [types_of(child) for child in schema["anyOf"]]
    assert all(kinds)
    assert sum(len(kind) for kind in kinds) == len(set().union(*kinds))


@each([(path, schema) for path, schema in ALL if "pattern" in schema])
def test_every_pattern_says_in_words_what_it_wants(path: str, schema: dict[str, Any]) -> None:
    message = schema["patternErrorMessage"]
    assert message and not message.endswith(".")
    assert not re.search(r"[\\^]", message)


# Python's `$` also matches before a last newline, which a YAML block scalar brings along unseen.
@pytest.mark.parametrize(
    ("pointer", "good"),
    [
        ("#/properties/metadata/properties/name", "orders-to.kafka_2"),
        ("#/properties/metadata/properties/tenant", "Acme GmbH"),
        ("#/$defs/id", "a"),
        ("#/$defs/table_pattern", "shop.order_%"),
        ("#/$defs/field_predicate/properties/path", "customer.address.zip code"),
        ("#/$defs/postgres_source/properties/config/properties/slot", "df_${SLOT:-orders}"),
        ("#/$defs/kafka_sink/properties/config/properties/topic", "cdc.${source.table}-v1"),
        ("#/$defs/nats_sink/properties/config/properties/subject", "$JS.${source.table}.x"),
        ("#/$defs/file_sink/properties/config/properties/name", "day/${source.table}"),
        ("#/$defs/cloudevents_envelope/properties/type_prefix", "com.acme"),
    ],
)
def test_patterns_refuse_a_trailing_newline(pointer: str, good: str) -> None:
    schema = resolve(pointer)
    assert accepts(schema, good)
    assert not accepts(schema, good + "\n")


@pytest.mark.parametrize(
    ("pointer", "bad"),
    [
        ("#/properties/metadata/properties/name", "-orders"),
        ("#/properties/metadata/properties/name", "x" * 65),
        ("#/properties/metadata/properties/name", "${NAME}"),
        ("#/$defs/table_pattern", "shop."),
        ("#/$defs/table_pattern", "db.public.orders"),
        ("#/$defs/postgres_source/properties/config/properties/slot", "Orders-Slot"),
        ("#/$defs/kafka_sink/properties/config/properties/topic", "orders events"),
        ("#/$defs/nats_sink/properties/config/properties/subject", "orders.>"),
        ("#/$defs/nats_sink/properties/config/properties/subject", "orders..new"),
        ("#/$defs/nats_sink/properties/config/properties/subject", "${a}" * 200 + " "),
        ("#/$defs/file_sink/properties/config/properties/name", "../x"),
        ("#/$defs/file_sink/properties/config/properties/name", "a/../../x"),
        ("#/$defs/file_sink/properties/config/properties/name", "/etc"),
        ("#/$defs/redis_sink/properties/config/properties/uri", "localhost:6379"),
    ],
)
def test_patterns_refuse(pointer: str, bad: str) -> None:
    assert not accepts(resolve(pointer), bad)


@pytest.mark.parametrize(
    "unfinished", ["cdc.${source.table", "cdc.${}", "cdc.${a.b.c.d}", "cdc.${source.tabel}"]
)
def test_patterns_leave_template_mistakes_to_the_compiler(unfinished: str) -> None:
    """It knows what is wrong inside `${...}`, where a pattern could only say that something is."""
    for pointer in (
        "#/$defs/kafka_sink/properties/config/properties/topic",
        "#/$defs/nats_sink/properties/config/properties/subject",
    ):
        assert accepts(resolve(pointer), unfinished)
