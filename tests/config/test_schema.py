"""The JSON Schema for editors."""

import json
from typing import Any

import pytest

from egressproxy.config.resources.kinds import KINDS
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.schema import json_schema


def part(schema: dict[str, Any], *path: str) -> dict[str, Any]:
    """Follow property names from a kind on, through references."""
    found: dict[str, Any] = schema["$defs"][path[0]]
    for name in path[1:]:
        found = found["properties"][name]
        options = [found, *found.get("anyOf", [])]
        reference = next((option["$ref"] for option in options if "$ref" in option), None)
        if reference is not None:
            found = schema["$defs"][reference.rpartition("/")[2]]
    return found


def test_every_kind_is_a_branch_with_its_api_versions() -> None:
    schema = json_schema()
    assert len(schema["oneOf"]) == len(KINDS)
    for kind, branch in zip(KINDS, schema["oneOf"], strict=True):
        found = schema["$defs"][branch["$ref"].rpartition("/")[2]]
        assert found["properties"]["kind"] == {"const": kind.KIND}
        assert all(version.startswith(kind.GROUP) for version in found["properties"]["apiVersion"]["enum"])


def test_references_lead_somewhere() -> None:
    schema = json_schema()
    text = json.dumps(schema)
    for reference in {piece.partition('"')[0] for piece in text.split('"$ref": "')[1:]}:
        assert reference.rpartition("/")[2] in schema["$defs"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("EgressPolicy",), "Rules for egress traffic"),
        (("EgressPolicy", "spec", "destinations"), "Deny beats allow"),
        (("Backend", "spec", "destination"), "exactly the block of its type"),
    ],
)
def test_descriptions_are_there_for_editors(path: tuple[str, ...], text: str) -> None:
    assert text in part(json_schema(), *path)["description"]


def test_unknown_fields_are_errors_in_editors_too() -> None:
    assert part(json_schema(), "EgressPolicy", "spec")["additionalProperties"] is False


def test_fields_have_the_spelling_of_manifests() -> None:
    schema = json_schema((EgressPolicy,))
    assert {"minTTL", "maxTTL", "staleTTL"} <= part(schema, "EgressPolicy", "spec", "dns")["properties"].keys()
