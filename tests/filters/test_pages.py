"""The page of each built-in filter, docs/filters/*.md: it has every field of the config, and its examples are good."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from pydantic import TypeAdapter

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.settings import CalledBackendRef, SecretRef
from egressproxy.ir.policy import spelling

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "filters"
#: Pages of no type, or of several.
OTHERS = {"pipelines.md", "tutorial.md", "types.md"}
#: Pages that leave fields to another one.
SHARED = {"webhook.md": "external-processor.md"}
#: What stands beside a part of a config that is no whole one.
BESIDE = {
    "bind": {"secretRef": {"name": "s"}},
    "presidio": {"applyTo": "Requests"},
}


def types() -> dict[str, Any]:
    """By page: its type."""
    made = {}
    for page in sorted(FOLDER.glob("*.md")):
        if page.name not in OTHERS:
            (name,) = set(re.findall(r"^`(egressproxy\.io/[A-Za-z]+:v1)`", page.read_text("utf-8"), re.MULTILINE))
            made[page.name] = Catalog().get(name)
    return made


def classes_in(annotation: Any) -> Iterator[type[Any]]:
    """The dataclasses that stand anywhere in an annotation."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        yield annotation
    for each in get_args(annotation):
        yield from classes_in(each)


def fields_of(model: type[Any]) -> set[str]:
    """Every field of a config, and of all that is in it, as manifests write them; but for those of references, which
    are explained once for all filters.
    """
    found: set[str] = set()
    if issubclass(model, SecretRef | CalledBackendRef):
        return found
    if not dataclasses.is_dataclass(model):
        return {info.alias or name for name, info in model.model_fields.items()}
    hints = get_type_hints(model, include_extras=True)
    for field in dataclasses.fields(model):
        found.add(spelling(field.name))
        for inner in classes_in(hints[field.name]):
            found |= fields_of(inner)
    return found


def test_every_built_in_type_has_a_page_here():
    assert {kind.name for kind in types().values()} == {name for name in Catalog().names() if "egressproxy.io" in name}


@pytest.mark.parametrize("page", types())
def test_a_page_has_every_field_of_the_config(page: str):
    written: set[str] = set()
    for name in filter(None, (page, SHARED.get(page))):
        for code in re.findall(r"```.*?```|`[^`]+`", (FOLDER / name).read_text("utf-8"), re.DOTALL):
            written |= set(re.findall(r"[A-Za-z][A-Za-z0-9]*", code))
    assert sorted(fields_of(types()[page].config_model) - written) == []


def parts() -> list[tuple[str, dict[str, Any]]]:
    """The examples that are a config, or a part of one."""
    found = []
    for page, kind in types().items():
        known = fields_of(kind.config_model)
        for block in re.findall(r"^```yaml\n(.*?)^```$", (FOLDER / page).read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for document in yaml.safe_load_all(block):
                if isinstance(document, dict) and "kind" not in document and set(document) <= known | {"config"}:
                    found.append((page, document.get("config", document)))
    return found


@pytest.mark.parametrize(("page", "config"), parts(), ids=[f"{page}-{'-'.join(config)}" for page, config in parts()])
def test_a_part_of_a_config_is_good(page: str, config: dict[str, Any]):
    beside = {name: value for part, more in BESIDE.items() if part in config for name, value in more.items()}
    TypeAdapter(types()[page].config_model).validate_python({**beside, **config})


def test_the_parts_are_found():
    assert len(parts()) >= 8
