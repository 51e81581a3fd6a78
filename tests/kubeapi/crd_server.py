"""What an API server does with objects of a CustomResourceDefinition, as far as schemas go: to be tried on many.

It takes away nulls of fields that are not nullable, and unknown fields, and fills defaults in; then it validates.
Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions", Defaulting and Nullable.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from cel import Context, Program
from cel import compile as compile_rule
from jsonschema import Draft202012Validator

from egressproxy.kubeapi.crds import OUR_KINDS, crd

FREE = "x-kubernetes-preserve-unknown-fields"
RULES = "x-kubernetes-validations"


@cache
def schema_of(kind: str) -> dict[str, Any]:
    """The schema of the only version of a kind of ours."""
    (found,) = (each for each in OUR_KINDS if each.kind == kind)
    made: dict[str, Any] = crd(found)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return made


@cache
def _validator(kind: str, section: str) -> Draft202012Validator:
    schema = schema_of(kind)
    return Draft202012Validator(
        _as_json_schema(schema["properties"]["spec"]["properties"][section] if section else schema)
    )


def admitted(manifest: dict[str, Any]) -> dict[str, Any]:
    """What is stored where the manifest is taken."""
    made = _admitted(manifest, schema_of(manifest["kind"]))
    assert isinstance(made, dict)
    return {**made, "metadata": manifest["metadata"]}


def faults(stored: dict[str, Any], section: str = "") -> list[str]:
    """Why what `admitted` made is refused: paths and messages. Of the schema, with `section` only that of the spec."""
    kind = stored["kind"]
    looked_at = stored["spec"].get(section) if section else stored
    found = [f"{error.json_path}: {error.message[:200]}" for error in _validator(kind, section).iter_errors(looked_at)]
    if section and section not in stored["spec"]:
        found = []  # a null that was taken away
    return found or list(broken_rules(stored, schema_of(kind), "$"))


def broken_rules(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """The rules in CEL that do not hold for a value that the schema takes."""
    if value is None:
        return
    for rule in schema.get(RULES, ()):
        if not _holds(rule["rule"], value):
            yield f"{path}: {rule['message']}"
    for name, each in value.items() if isinstance(value, dict) else ():
        inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        if inner is not None:
            yield from broken_rules(each, inner, f"{path}.{name}")
    for index, each in enumerate(value if isinstance(value, list) and "items" in schema else ()):
        yield from broken_rules(each, schema["items"], f"{path}[{index}]")


@cache
def _program(rule: str) -> Program:
    return compile_rule(rule)


def _holds(rule: str, value: Any) -> bool:
    context = Context()
    context.add_function("lowerAscii", lambda text: text.lower())
    if isinstance(value, dict) and "namespace" in value:  # a word of CEL, which Kubernetes escapes
        value = {**value, "__namespace__": value["namespace"]}
    context.add_variable("self", value)
    return _program(rule).execute(context) is True


def _admitted(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, dict) and "properties" in schema:
        fields: dict[str, dict[str, Any]] = schema["properties"]
        made = {
            name: _admitted(each, fields[name])
            for name, each in value.items()
            if name in fields and (each is not None or fields[name].get("nullable"))
        }
        return made | {
            name: field["default"] for name, field in fields.items() if "default" in field and name not in made
        }
    if isinstance(value, dict) and "additionalProperties" in schema:
        return {name: _admitted(each, schema["additionalProperties"]) for name, each in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [_admitted(each, schema["items"]) for each in value]
    return value


def _as_json_schema(schema: Any) -> Any:
    """OpenAPI 3.0 as JSON Schema: nullable, and bounds that are not in."""
    if isinstance(schema, list):
        return list(map(_as_json_schema, schema))
    if not isinstance(schema, dict):
        return schema
    made = {name: _as_json_schema(each) for name, each in schema.items()}
    if made.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    if made.get("exclusiveMinimum") is True:
        made["exclusiveMinimum"] = made.pop("minimum")
    return made
