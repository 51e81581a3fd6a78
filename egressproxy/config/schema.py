"""JSON Schema of every kind, for editors: one `oneOf` over apiVersion and kind, made from the models."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from egressproxy.config.descriptions import field_descriptions, models_by_name
from egressproxy.config.resources.kinds import KINDS
from egressproxy.config.resources.meta import Resource
from egressproxy.config.supported_fields import publish_support


def json_schema(kinds: tuple[type[Resource], ...] = KINDS) -> dict[str, Any]:
    """A JSON Schema (2020-12) that an object of any of these kinds satisfies.

    It holds the shapes, the descriptions, and what is served of it; rules between fields are checked when a manifest is
    loaded.
    """
    references, definitions = models_json_schema([(kind, "validation") for kind in kinds], by_alias=True)
    parts: dict[str, Any] = definitions["$defs"]
    branches = []
    for kind in kinds:
        reference = references[(kind, "validation")]
        # apiVersion and kind tell the branches apart.
        prefix = f"{kind.GROUP}/" if kind.GROUP else ""
        parts[_part_of(reference)]["properties"] |= {
            "apiVersion": {"enum": [prefix + version for version in kind.VERSIONS]},
            "kind": {"const": kind.KIND},
        }
        branches.append(reference)
    models = models_by_name()
    for name, part in parts.items():
        _without_titles(part)
        descriptions = field_descriptions(models[name]) if name in models else {}
        for field in part.get("properties", {}).keys() & descriptions.keys():
            part["properties"][field].setdefault("description", descriptions[field])
    publish_support(parts, {kind.KIND: _part_of(references[(kind, "validation")]) for kind in kinds if _is_api(kind)})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "egressproxy manifests",
        "oneOf": branches,
        "$defs": parts,
    }


def _is_api(kind: type[Resource]) -> bool:
    """Whether it is one of Gateway API's kinds; its Backend is the working group's, and has our fields."""
    return kind.GROUP.startswith("gateway.networking.") and kind.KIND != "Backend"


def _part_of(reference: dict[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _without_titles(part: Any) -> None:
    """The generated titles repeat the field names, and hide the descriptions in editors."""
    if isinstance(part, dict):
        if isinstance(part.get("title"), str):
            del part["title"]
        for value in part.values():
            _without_titles(value)
    elif isinstance(part, list):
        for value in part:
            _without_titles(value)
