"""Stage 2: the located tree against pipeline.schema.json -> the checked spec, or what is wrong.

Reads the JSON Schema itself, rather than translating a validator's errors: only so can an error
stand at the key that is wrong, name the thing it belongs to, and suggest the right word. The tests
hold this reading against the `jsonschema` package on every golden and on random documents.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from .diagnostics import Diagnostics, Enough, did_you_mean, quote
from .env import UNKNOWN, Written, read_text, setting_kind
from .parse import Map, Node, Scalar, Seq, describe
from .span import Span
from .spec import Checked, Items, Section

Schema = dict[str, Any]

_KINDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "empty",
}
# Words of the wider language that people will try; the answer is better than "unknown".
_NOT_BUILT = {
    "http": "sink",
    "webhook": "sink",
    "s3": "sink",
    "clickhouse": "sink",
    "elasticsearch": "sink",
    "iceberg": "sink",
    "delta": "sink",
    "mongodb": "source",
}


@cache
def load_schema() -> Schema:
    text = files("dfc.schemas").joinpath("pipeline.schema.json").read_text("utf-8")
    schema: Schema = json.loads(text)
    return schema


def validate(
    root: Map, diagnostics: Diagnostics, allow_literal_secrets: bool = False
) -> Section | None:
    """The checked spec, or None where a part of it is not known.

    Values that are refused but known (out of range, of the wrong form, beside an unknown key) leave
    the spec whole, so that the rules between fields can still be held against it: all errors come
    at once. There is no plan then either way.
    """
    walk = _Walk(diagnostics, allow_literal_secrets)
    checked = walk.visit(load_schema(), root, "the pipeline")
    return checked if isinstance(checked, Section) and not walk.holes else None


class _Walk:
    def __init__(self, diagnostics: Diagnostics, allow_literal_secrets: bool) -> None:
        self.diagnostics = diagnostics
        self.allow_literal_secrets = allow_literal_secrets
        self.holes = 0  # values that are missing, or of a type or kind that nothing can be made of

    def hole(self, code: str, span: Span, message: str, help: str = "") -> None:
        self.holes += 1
        self.error(code, span, message, help)

    def error(self, code: str, span: Span, message: str, help: str = "") -> None:
        self.diagnostics.error(code, span, message, help)

    def visit(self, schema: Schema, node: Node, what: str) -> Checked:
        """The node with defaults filled; what is wrong with it is in the diagnostics."""
        schema = _follow(schema)
        if not schema.keys() & {"type", "const", "enum", "oneOf", "anyOf", "minLength"}:
            return node  # any JSON
        if "x-dfc-union" in schema:
            return self.union(schema, node, what)
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                schema = self.alternative(schema, schema[keyword], node)
        if not self.right_type(schema, node, what):
            return node if isinstance(node, Scalar) else Scalar(None, node.span)
        match node:
            case Map():
                return self.mapping(schema, node, what)
            case Seq():
                return self.sequence(schema, node, what)
            case _:
                return self.scalar(schema, node, what)

    # --- which schema applies ------------------------------------------------------------------

    def union(self, schema: Schema, node: Node, what: str) -> Checked:
        variants: dict[str, str] = schema["x-dfc-union"]
        family = next(iter(variants.values())).rpartition("_")[2]
        if not isinstance(node, Map):
            known = isinstance(node, Scalar) and node.value in variants
            example = node.value if known and isinstance(node, Scalar) else next(iter(variants))
            self.hole(
                "DFC202",
                node.span,
                f"{what} must be a mapping with a `type`, this is {describe(node)}",
                f"write `{family}: {{type: {example}}}`",
            )
            return Scalar(None, node.span)
        chosen = node.items.get("type")
        if chosen is None:
            slip = next((k for k in node.items if did_you_mean(k, ["type"])), None)
            self.hole(
                "DFC203",
                node.keys[slip] if slip else node.span,
                f"{what} has no `type`",
                f"types: {', '.join(variants)}",
            )
            return Scalar(None, node.span)
        name = chosen.value if isinstance(chosen, Scalar) else None
        if not isinstance(name, str) or name not in variants:
            self.unknown_type(family, name, variants, chosen)
            return Scalar(None, node.span)
        return self.visit({"$ref": variants[name]}, node, _title(name, family, node, what))

    def unknown_type(self, family: str, name: object, variants: dict[str, str], node: Node) -> None:
        known = ", ".join(variants)
        if isinstance(name, str) and _NOT_BUILT.get(name) == family:
            message = f"the {family} type {quote(name)} is not built yet"
            self.hole("DFC204", node.span, message, f"{family} types: {known}")
            return
        near = did_you_mean(name, variants) if isinstance(name, str) else None
        shown = quote(name) if isinstance(name, str) else describe(node)
        self.hole(
            "DFC205",
            node.span,
            f"unknown {family} type {shown}",
            f"did you mean `{near}`?" if near else f"{family} types: {known}",
        )

    def alternative(self, schema: Schema, options: list[Schema], node: Node) -> Schema:
        """The option that the node's own type asks for; the first, when none does."""
        rest = {k: v for k, v in schema.items() if k not in ("oneOf", "anyOf")}
        followed = [_follow(option) for option in options]
        for option in followed:
            if _fits(option, node) and not ("enum" in option and _text(node) not in option["enum"]):
                return {**rest, **option}
        for option in followed:
            if _fits(option, node):
                return {**rest, **option}
        kinds = [k for option in followed for k in _types(option)]
        return {**rest, "type": kinds or list(_KINDS)}

    def right_type(self, schema: Schema, node: Node, what: str) -> bool:
        if _fits(schema, node):
            return True
        wanted = [k for k in _types(schema) if k != "null"]
        kinds = " or ".join(_KINDS[k] for k in wanted)
        help = ""
        if isinstance(node, Scalar) and node.value is None:
            help = (
                "leave the line out, or give it a value"
                if "default" in schema
                else "give it a value"
            )
        elif wanted == ["string"] and isinstance(node, Scalar):
            hidden = schema.get("x-dfc") == "secret"
            help = "put it in quotes" + ("" if hidden else f': "{node.raw}"')
        elif isinstance(node, Scalar) and isinstance(node.value, str):
            if "${" in node.value:
                help = "only text can come from the environment; write the value out"
            elif wanted in (["integer"], ["number"]) and re.fullmatch(
                r"(0|[1-9][0-9]*)(\.[0-9]+)?", node.value
            ):
                help = "leave the quotes out"
            elif wanted in (["integer"], ["number"]):
                help = "digits only, without unit or separators"
            elif wanted == ["boolean"] and node.value.lower() in ("yes", "on", "no", "off"):
                help = f"write `{str(node.value.lower() in ('yes', 'on')).lower()}`"
            elif wanted == ["array"]:
                word = re.fullmatch(r"[\w.%*-]{1,40}", node.raw)  # no place for a password
                help = f"a list, even of one: [{node.raw}]" if word else "write a list"
            elif wanted == ["object"] and "type" in schema.get("properties", {}):
                help = f"write `{{type: {node.value}}}`"
        self.hole("DFC206", node.span, f"{what} must be {kinds}, this is {describe(node)}", help)
        return False

    # --- mappings, lists, scalars --------------------------------------------------------------

    def mapping(self, schema: Schema, node: Map, what: str) -> Section:
        properties: Schema = schema.get("properties", {})
        extra = schema.get("additionalProperties", True)
        values: dict[str, Checked] = {}
        keys = dict(node.keys)
        strange = False
        if (misplaced := self.misplaced(properties, node, what)) is not None:
            return misplaced
        for key, child in node.items.items():
            label = _label(key, what)
            if key in properties:
                values[key] = self.property(properties[key], key, child, label, what)
            elif isinstance(extra, dict):
                names = schema.get("propertyNames")
                if names and len(key) < names.get("minLength", 0):
                    self.error("DFC211", node.keys[key], f"{what} has an empty key")
                values[key] = self.entry(schema, extra, key, child, what)
            elif extra is False:
                near = did_you_mean(key, [p for p in properties if p not in node.items])
                if near and near not in keys:
                    keys[near] = node.keys[key]
                    guess = self.guess(properties[near], near, child, what)
                    if guess is not None:
                        values[near] = guess
                else:
                    strange = True
                self.error(
                    "DFC201",
                    node.keys[key],
                    f"unknown field {quote(key)} in {what}",
                    f"did you mean `{near}`?" if near else _where_else(key, what, properties),
                )
        for key in schema.get("required", []):
            if key not in keys:
                self.hole(
                    "DFC203",
                    node.span,
                    f"{what} has no `{key}`",
                    str(properties.get(key, {}).get("description", "")),
                )
        for key, sub in properties.items():
            if key not in values:
                values[key] = self.default(_follow(sub), node.span, what)
        ordered = {k: values[k] for k in properties} | values
        known = {k: v for k, v in keys.items() if k in values}
        return Section(ordered, node.span, known, strange)

    def guess(self, schema: Schema, key: str, node: Node, what: str) -> Checked | None:
        """A misspelt key's value as that of the key it was meant to be, if it would do there."""
        trial = _Walk(Diagnostics(), self.allow_literal_secrets)
        try:
            value = trial.property(schema, key, node, _label(key, what), what)
        except Enough:
            value = None
        if trial.diagnostics.found:
            value = None
        self.holes += value is None
        return value

    def misplaced(self, properties: Schema, node: Map, what: str) -> Section | None:
        """Settings beside `config` instead of inside it: one error, not one for each of them."""
        inside = _follow(properties.get("config", {})).get("properties", {})
        beside = [k for k in node.items if k not in properties and k in inside]
        if "config" in node.items or not beside:
            return None
        self.hole(
            "DFC213",
            node.keys[beside[0]],
            f"the settings of {what} stand beside `type`",
            "put them under `config:`, one level deeper",
        )
        return Section({}, node.span)

    def property(self, schema: Schema, key: str, node: Node, label: str, what: str) -> Checked:
        followed = _follow(schema)
        if key == "encoding" and (avro := _avro(node)):
            self.error(
                "DFC204", avro, "the encoding `avro` is not built yet", "use `encoding: json`"
            )
            return Scalar("json", node.span)
        if followed.get("x-dfc-union") or followed.get("type") == "object":
            # A plain object speaks for itself (`batch`); one inside a named thing says whose it is.
            label = f"`{key}`" if what in ("the pipeline", "`spec`") else label
        if key == "config":
            return self.visit(schema, node, what)
        return self.visit(schema, node, label)

    def entry(self, map_schema: Schema, schema: Schema, key: str, node: Node, what: str) -> Checked:
        """One entry of a free map; client settings that hold a secret fall under the secrets rule."""
        label = f"{quote(key)} in {what}"
        if map_schema.get("x-dfc") == "conf":
            schema = {**schema, "x-dfc": setting_kind(key)}
        return self.visit(schema, node, label)

    def sequence(self, schema: Schema, node: Seq, what: str) -> Items:
        if len(node.items) < schema.get("minItems", 0):
            self.hole("DFC207", node.span, f"{what} is empty", "give at least one")
        if "maxItems" in schema and len(node.items) > schema["maxItems"]:
            self.error("DFC207", node.span, f"{what} holds more than {schema['maxItems']} entries")
        if schema.get("uniqueItems"):
            self.unique(node, what)
        inner = schema.get("items", {})
        items = [self.visit(inner, item, _entry(i, what)) for i, item in enumerate(node.items, 1)]
        # A list of tables with a wrong one in it would seem to lack what was meant by that.
        self.holes += any(isinstance(item, Written) and item.wrong for item in items)
        return Items(tuple(items), node.span)

    def unique(self, node: Seq, what: str) -> None:
        seen: set[str] = set()
        for item in node.items:
            text = _text(item)
            if isinstance(text, str) and text in seen:
                self.error("DFC208", item.span, f"{quote(text)} stands twice in {what}")
            elif isinstance(text, str):
                seen.add(text)

    def scalar(self, schema: Schema, node: Scalar, what: str) -> Checked:
        value = node.value
        if "const" in schema and value != schema["const"]:
            self.error("DFC209", node.span, f"{what} can only be `{schema['const']}`")
        elif "enum" in schema and value not in schema["enum"]:
            known = [str(e) for e in schema["enum"] if e is not None]
            near = did_you_mean(str(value), known)
            self.hole(
                "DFC209",
                node.span,
                f"{what} is {quote(node.raw)}; it can be {_listed(known)}",
                f"did you mean `{near}`?" if near else "",
            )
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            self.number(schema, node, value, what)
        if isinstance(value, str):
            return self.text(schema, node, value, what)
        if isinstance(value, float) and "number" not in _types(schema) and value.is_integer():
            return replace(node, value=int(value))  # 1e3 is a whole number too
        return node

    def number(self, schema: Schema, node: Scalar, value: float, what: str) -> None:
        low, high = schema.get("minimum"), schema.get("maximum")
        above = schema.get("exclusiveMinimum")
        if (low is not None and value < low) or (above is not None and value <= above):
            bound = f"at least {low}" if low is not None else f"more than {above}"
            self.error("DFC210", node.span, f"{what} is {node.raw}; it must be {bound}")
        elif high is not None and value > high:
            self.error("DFC210", node.span, f"{what} is {node.raw}; it must be at most {high}")

    def text(self, schema: Schema, node: Scalar, value: str, what: str) -> Checked:
        kind = schema.get("x-dfc")
        if kind == "script":
            self.shape(schema, node, value, what)
            return node
        if "const" in schema or "enum" in schema:
            return node
        before = len(self.diagnostics.found)
        written = read_text(node, kind, what, self.diagnostics, self.allow_literal_secrets)
        if len(self.diagnostics.found) == before:
            self.shape(schema, node, value, what)
            if len(self.diagnostics.found) > before:
                # Fixed text is kept, as ids are compared; of other texts nothing is known now.
                parts = written.parts if kind is None else (UNKNOWN,)
                return replace(written, parts=parts, places=(node.span,), wrong=True)
        elif kind is None:
            self.holes += 1
        return written

    def shape(self, schema: Schema, node: Scalar, text: str, what: str) -> None:
        """Length and pattern of the text as written; patterns let `${...}` through."""
        help = str(schema.get("patternErrorMessage") or schema.get("description", ""))
        if len(text) < schema.get("minLength", 0):
            self.error("DFC211", node.span, f"{what} is empty", help)
        elif "maxLength" in schema and len(text) > schema["maxLength"]:
            most = schema["maxLength"]
            self.error("DFC211", node.span, f"{what} is longer than {most} characters")
        elif "pattern" in schema and not re.search(schema["pattern"], text):
            # The text of a field that may hold a credential is not repeated.
            shown = "" if schema.get("x-dfc") in ("url", "secret") else f": {quote(text)}"
            self.error("DFC212", node.span, f"{what} is not of the right form{shown}", help)

    # --- defaults ------------------------------------------------------------------------------

    def default(self, schema: Schema, span: Span, what: str) -> Checked:
        return self.fill(schema, schema.get("default"), span)

    def fill(self, schema: Schema, value: Any, span: Span) -> Checked:
        schema = _follow(schema)
        if isinstance(value, dict):
            if "x-dfc-union" in schema:
                schema = _follow({"$ref": schema["x-dfc-union"][value["type"]]})
            properties = schema.get("properties", {})
            filled = {
                key: self.fill(sub, value.get(key, _follow(sub).get("default")), span)
                for key, sub in properties.items()
            }
            return Section(filled, span)
        if isinstance(value, list):
            items = schema.get("items", {})
            return Items(tuple(self.fill(items, item, span) for item in value), span)
        node = Scalar(value, span, str(value), default=True)
        plain_text = isinstance(value, str) and "enum" not in schema and "const" not in schema
        return (
            read_text(node, schema.get("x-dfc") or "env", "", Diagnostics()) if plain_text else node
        )


def _where_else(key: str, what: str, properties: Schema) -> str:
    """A field that exists, but not here."""
    schema = load_schema()
    if key == "config":
        return "options of a processor stand beside its `type`, without `config:`"
    if what == "the pipeline" and key in schema["properties"]["spec"]["properties"]:
        return f"`{key}` belongs under `spec:`"
    if what == "`spec`" and key in schema["properties"]["metadata"]["properties"]:
        return f"`{key}` belongs under `metadata:`"
    family = what.partition(" `")[0].rpartition(" ")[2]
    owners = [
        name.removesuffix(f"_{family}")
        for name, variant in schema["$defs"].items()
        if name.endswith(f"_{family}")
        and key in variant["properties"].get("config", variant).get("properties", {})
    ]
    fields = f"fields: {', '.join(properties)}"
    return f"only {' and '.join(owners)} {family}s have it; {fields}" if owners else fields


def _follow(schema: Schema) -> Schema:
    while "$ref" in schema:
        target: Any = load_schema()
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema


def _types(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    if not kinds and "enum" in schema:
        return ["string"]
    if not kinds and "const" in schema:
        return ["string"]
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _fits(schema: Schema, node: Node) -> bool:
    kinds = _types(schema)
    if not kinds:
        return True
    match node:
        case Map():
            return "object" in kinds
        case Seq():
            return "array" in kinds
        case Scalar(value=None):
            return "null" in kinds
        case Scalar(value=bool()):
            return "boolean" in kinds
        case Scalar(value=int()):
            return "integer" in kinds or "number" in kinds
        case Scalar(value=float() as value):
            return "number" in kinds or ("integer" in kinds and value.is_integer())
        case _:
            return "string" in kinds


def _text(node: Node) -> object:
    return node.value if isinstance(node, Scalar) else None


def _avro(node: Node) -> Span | None:
    inner = node.items.get("type") if isinstance(node, Map) else node
    return inner.span if isinstance(inner, Scalar) and inner.value == "avro" else None


def _label(key: str, what: str) -> str:
    return f"`{key}`" if what in ("the pipeline", "`spec`") else f"`{key}` of {what}"


def _entry(number: int, what: str) -> str:
    """`sinks` -> sink 1: an entry of a list is named by number until it has a type and an id."""
    words = {"`sinks`": "sink", "`processors`": "processor"}
    return f"{words[what]} {number}" if what in words else f"entry {number} of {what}"


def _title(name: str, family: str, node: Map, what: str) -> str:
    if family not in ("source", "sink", "processor"):
        return what
    config = node.items.get("config", node)
    ident = config.items.get("id") if isinstance(config, Map) else None
    if isinstance(ident, Scalar) and isinstance(ident.value, str):
        return f"{name} {family} {quote(ident.value)}"
    return f"{name} {family}"


def _listed(words: list[str]) -> str:
    shown = [f"`{w}`" for w in words]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
