"""JSON Schema of every kind, for editors: one `oneOf` over apiVersion and kind, generated from the models.

Descriptions are the docstrings below the fields of the models. They are read from the source, since Python keeps no
docstrings of attributes, and only when a schema is generated: pydantic's `use_attribute_docstrings` would parse the
source at import. `gateway_api_fields.md` lists the served fields of Gateway API's kinds and their levels, and
docs/gateway-api.md repeats its tables; `config.compile.status.supported_features` lists our own unserved fields.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from egressproxy.config.compile.status.supported_features import UNSERVED
from egressproxy.config.resources.kinds import KINDS
from egressproxy.config.resources.meta import Model, Resource
from egressproxy.config.resources.values import Duration

#: Sections for types that several kinds share -> the models.
SHARED: Final[Mapping[str, tuple[str, ...]]] = {
    "Listeners": ("Listener",),
    "parentRefs": ("ParentReference",),
    "backendRefs": ("BackendRef", "HttpBackendRef", "GrpcBackendRef"),
    "Filters": ("HttpFilter", "GrpcFilter"),
    "sessionPersistence": ("SessionPersistence",),
}
#: Gateway API's support levels, from mandatory to vendor-specific.
_LEVELS: Final = ("core", "extended", "implementation-specific")
_KEY: Final = "x-egressproxy-support"
_ROW: Final = re.compile(r"\| `([^`]+)` \| ([a-z-]+) \| (yes|partly|no) \| (\S+) \|\s?(.*)\|")
#: A link to another page, which is useless in a description.
_SEE: Final = re.compile(r"(?:^|(?<=\. ))See \[[^]]*\]\([^)]*\)[.;] ?")
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


class FieldSupport(NamedTuple):
    """One row: the level in the API, `yes`, `partly` or `no`, since which version (– for none), and a note."""

    level: str
    served: str
    since: str
    note: str


class ManifestJsonSchema(GenerateJsonSchema):
    """Writes defaults as a manifest has them."""

    def encode_default(self, dft: Any) -> Any:
        """The default in a manifest's form: a duration as text, no empty sections."""
        if isinstance(dft, Duration):
            return str(dft)
        return {} if isinstance(dft, Model) else super().encode_default(dft)


def json_schema(kinds: tuple[type[Resource], ...] = KINDS) -> dict[str, Any]:
    """A JSON Schema (2020-12) for objects of these kinds, with descriptions and support levels. It lacks rules between
    fields, which the loader checks.
    """
    references, definitions = models_json_schema(
        [(kind, "validation") for kind in kinds], by_alias=True, schema_generator=ManifestJsonSchema
    )
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


def written_schema(_request: bytes) -> bytes:
    """The JSON Schema as JSON, for `Loader.schema`; the request is empty."""
    return json.dumps(json_schema()).encode()


def models_by_name() -> dict[str, type[Model]]:
    """The loaded models by class name, which is also the name in a JSON Schema."""
    found: dict[str, type[Model]] = {}
    left = [Model]
    while left:
        for model in left.pop().__subclasses__():
            found.setdefault(model.__name__, model)
            left.append(model)
    return found


def field_descriptions(model: type[Model]) -> dict[str, str]:
    """The descriptions of fields, by name in a manifest; a model's own override its bases'."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        for attribute, text in _of_module(each.__module__).get(each.__qualname__, {}).items():
            info = model.model_fields.get(attribute)
            if info is not None:
                found[info.alias or attribute] = text
    return found


@cache
def gateway_api_fields() -> Mapping[str, Mapping[str, FieldSupport]]:
    """Section (a kind, or one of SHARED) -> path such as `spec.rules[].name` -> support of the field."""
    sections: dict[str, dict[str, FieldSupport]] = {}
    rows: dict[str, FieldSupport] = {}
    for line in files("egressproxy.config").joinpath("gateway_api_fields.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line.removeprefix("## "), {})
        elif match := _ROW.fullmatch(line):
            rows[match[1]] = FieldSupport(match[2], match[3], match[4], match[5].strip())
    return sections


def publish_support(parts: Mapping[str, dict[str, Any]], roots: Mapping[str, str]) -> None:
    """Write support levels into the parts of a JSON Schema. `roots`: the part of each kind of Gateway API.

    A field gets `x-egressproxy-support`, and a sentence in its description, which `kubectl explain` shows. The level of
    an object is the first level of its fields.
    """
    by_field: dict[int, tuple[dict[str, Any], list[FieldSupport]]] = {}
    leaves: set[int] = set()
    for section, rows in gateway_api_fields().items():
        for start in SHARED.get(section, (roots.get(section, ""),)):
            for path, support in rows.items():
                steps = _along(parts, start, path)
                for field in steps[path.startswith("spec.") :]:  # the root has no level
                    by_field.setdefault(id(field), (field, []))[1].append(support)
                leaves.update(map(id, steps[-1:]))
    for key, (field, supports) in by_field.items():
        _say(field, supports, key in leaves)
    for field_name, instead in UNSERVED.items():
        model, _, name = field_name.partition(".")
        field = parts.get(model, {}).get("properties", {}).get(name)
        if field is not None:
            field[_KEY] = {"level": _LEVELS[2], "served": "no"}
            field["description"] = f"{field.get('description', '')} Not supported yet: {instead}.".strip()


def _is_api(kind: type[Resource]) -> bool:
    """Whether the kind is Gateway API's; its Backend is the working group's, with our fields."""
    return kind.GROUP.startswith("gateway.networking.") and kind.KIND != "Backend"


def _part_of(reference: dict[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _without_titles(part: Any) -> None:
    """Remove the generated titles, which repeat field names and hide descriptions in editors."""
    if isinstance(part, dict):
        if isinstance(part.get("title"), str):
            del part["title"]
        for value in part.values():
            _without_titles(value)
    elif isinstance(part, list):
        for value in part:
            _without_titles(value)


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Class -> attribute -> docstring, of a module; empty without its source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for pair in pairwise(node.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def _along(parts: Mapping[str, dict[str, Any]], start: str, path: str) -> list[dict[str, Any]]:
    """The properties along a path; empty if the part or the path is missing."""
    found: list[dict[str, Any]] = []
    part = parts.get(start, {})
    for name in path.replace("[]", "").split("."):
        field = part.get("properties", {}).get(name)
        if field is None:
            return []
        found.append(field)
        part = parts.get(_referred(field), {})
    return found


def _referred(field: Mapping[str, Any]) -> str:
    """The name of the part in a field or its items, "" for none."""
    schema = field.get("items", field)
    for each in (schema, *schema.get("anyOf", ())):
        each = each.get("items", each)
        if "$ref" in each:
            return str(each["$ref"]).rpartition("/")[2]
    return ""


def _say(field: dict[str, Any], supports: list[FieldSupport], is_leaf: bool) -> None:
    level = min((support.level for support in supports), key=_LEVELS.index)
    served = {support.served for support in supports}
    how = served.pop() if len(served) == 1 else "partly"
    field[_KEY] = {"level": level, "served": how, **({"since": supports[0].since} if how != "no" else {})}
    note = next((support.note for support in supports if support.note), "") if is_leaf else ""
    words = {"yes": "", "partly": ", served in part", "no": ", not served"}[how]
    before = " ".join(filter(None, (field.get("description", ""), _LINK.sub(r"\1", _SEE.sub("", note)).strip())))
    field["description"] = f"{before} Support: {level}{words}.".strip()
