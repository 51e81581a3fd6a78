"""OpenAPI v2 and v3 documents of the API, from the JSON Schema of the models that read manifests.

Fields carry their descriptions, so that `kubectl explain` prints them. References between parts stay references.
Source: Kubernetes API concepts, OpenAPI specifications; extension x-kubernetes-group-version-kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from egressproxy import __version__
from egressproxy.admin.status import ApiError
from egressproxy.config.served_kinds import CONFIGURED, ServedKind

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
#: Before the name of a part, in references to it.
V3: Final = "#/components/schemas/"
_V2: Final = "#/definitions/"

#: Of a value whose fields, or whose type, are not in the schema.
FREE: Final = "x-kubernetes-preserve-unknown-fields"
#: What is not looked into. Older clients check manifests themselves, and refuse fields that a part with properties has
#: not: so the parts of Kubernetes' own kinds, of which we read some fields, are this in v2.
_ANYTHING: Final = {"type": "object", FREE: True}
#: Fields of core kinds that real manifests have, and that nothing here reads.
_FURTHER: Final = {
    "Namespace": ("spec",),
    "ServiceAccount": ("secrets", "imagePullSecrets", "automountServiceAccountToken"),
    "ConfigMap": ("immutable",),
}

_INFO: Final = {"title": "egressproxy", "version": __version__}
_META_DESCRIPTION: Final = "What every object has: name, namespace, labels, annotations."
_STATUS: Final = "What became of it: written by the gateway, ignored on input."


def paths_v3() -> dict[str, Any]:
    """The document at /openapi/v3: the paths of all others."""
    paths = {_group_path(kind, version) for kind in CONFIGURED for version in kind.versions}
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in sorted(paths)}}


def document_v3(path: str, schema: bytes, is_writable: bool) -> dict[str, Any]:
    """/openapi/v3/`path`, from the JSON Schema of all kinds. `is_writable`: it takes writes. Raises ApiError(404)."""
    served = [(kind, each) for kind in CONFIGURED for each in kind.versions if _group_path(kind, each) == path]
    if not served:
        raise ApiError(404, "NotFound", f"there is no document {path}; /openapi/v3 lists them")
    schemas = kind_schemas(served, json.loads(schema), V3)
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": _paths(served, V3, is_writable),
        "components": {"schemas": schemas},
    }


def document_v2(schema: bytes, is_writable: bool) -> dict[str, Any]:
    """The document at /openapi/v2: all kinds in one. Arguments as for `document_v3`."""
    served = [(kind, each) for kind in CONFIGURED for each in kind.versions]
    return {
        "swagger": "2.0",
        "info": _INFO,
        "paths": _paths(served, _V2, is_writable),
        "definitions": kind_schemas(served, json.loads(schema), _V2),
    }


def _group_path(kind: ServedKind, version: str) -> str:
    return f"{'apis' if kind.group else 'api'}/{kind.api_version(version)}"


def part_of(kind: ServedKind, version: str) -> str:
    """The name of a kind's part. Reversed group, version, kind: io.k8s.networking.gateway.v1.HTTPRoute."""
    group = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{group}.{version}.{kind.kind}"


def _gvk(kind: ServedKind, version: str) -> dict[str, str]:
    return {"group": kind.group, "kind": kind.kind, "version": version}


def kind_schemas(served: Iterable[tuple[ServedKind, str]], schema: Mapping[str, Any], base: str) -> dict[str, Any]:
    """The parts of these kinds and versions by name, from the JSON Schema of the models. `base`: as V3."""
    parts: Mapping[str, Any] = schema["$defs"]
    roots = {
        (part["properties"]["apiVersion"]["enum"][0].rpartition("/")[0], part["properties"]["kind"]["const"]): name
        for name, part in parts.items()
        if "const" in part.get("properties", {}).get("kind", {})
    }
    made: dict[str, Any] = {}
    names: list[str] = []
    for kind, version in served:
        part = parts[roots[kind.group, kind.kind]]
        made[part_of(kind, version)] = _root(part, kind, version, base, names)
    made[f"{_META}.ObjectMeta"] = _object_meta()
    while names:
        name = names.pop()
        if _part_name(name) not in made:
            made[_part_name(name)] = _converted(parts[name], base, names)
    fields = [field for part in made.values() for field in part.get("properties", {}).values()]
    described = {_referred(field, base) for field in fields if "description" in field}
    for field in fields:
        _describe(field, made, base)
    for name in {_referred(field, base) for field in fields} - described - {""}:
        made[name].pop("description", None)  # kubectl explain prints both, that of the field and this
    return made


def _referred(field: Mapping[str, Any], base: str) -> str:
    """The part that a field, or each of its items, refers to; "" for none."""
    schema = field.get("items", field)
    reference = schema.get("$ref") or next((each["$ref"] for each in schema.get("allOf", ()) if "$ref" in each), "")
    return str(reference).removeprefix(base)


def _describe(field: dict[str, Any], schemas: Mapping[str, Any], base: str) -> None:
    """Give a field without a description that of what it refers to, or else the values that it may have."""
    if "description" in field:
        return
    schema = field.get("items", field)
    if referred := _referred(field, base):
        words = schemas[referred].get("description", "")
        if words and "$ref" in field and base == V3:
            field["allOf"] = [{"$ref": field.pop("$ref")}]
    else:
        words = _possible(schema) if schema is field else ""
    if words:
        field["description"] = words


def _possible(field: Mapping[str, Any]) -> str:
    sentences = []
    if "enum" in field:
        sentences.append(f"One of {', '.join(map(str, field['enum']))}.")
    if "minimum" in field and "maximum" in field:
        sentences.append(f"From {field['minimum']} to {field['maximum']}.")
    if field.get("default") not in (None, "", [], {}):
        sentences.append(f"Default: {json.dumps(field['default'])}.")
    return " ".join(sentences)


def _part_name(name: str) -> str:
    return f"{_META}.ObjectMeta" if name == "ObjectMeta" else f"io.egressproxy.parts.{name}"


def _root(part: Mapping[str, Any], kind: ServedKind, version: str, base: str, referenced: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = _converted({**part, "additionalProperties": False}, base, referenced)
    properties = made["properties"]
    for name in _FURTHER.get(kind.kind, ()) if not kind.group else ():
        properties.setdefault(name, {**_ANYTHING})
    properties["apiVersion"] = {"type": "string", "description": "The group and version of this kind."}
    properties["kind"] = {"type": "string", "description": "The kind of this object."}
    properties["metadata"] = _converted({"$ref": "ObjectMeta", "description": _META_DESCRIPTION}, base, referenced)
    if not properties.get("status", {}).keys() & {"type", "$ref", "allOf"}:  # that of a Pod is input
        properties["status"] = {"type": "object", "description": _STATUS}
    made["x-kubernetes-group-version-kind"] = [_gvk(kind, version)]
    return made


def _converted(part: Any, base: str, referenced: list[str]) -> Any:
    """JSON Schema 2020-12 as OpenAPI 3.0 and Kubernetes' tools read it: no null type, no const, no prefixItems."""
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        name = str(part["$ref"]).rpartition("/")[2]
        referenced.append(name)
        reference = {"$ref": f"{base}{_part_name(name)}"}
        rest = {key: value for key, value in part.items() if key in _BESIDE}
        if base == V3:
            return {"allOf": [reference], **rest} if rest else reference
        return {**reference, **rest}
    for choice in ("anyOf", "oneOf"):
        if choice in part:
            return _chosen(part, choice, base, referenced)
    made = {key: value for key, value in part.items() if key in _KEPT}
    if "exclusiveMinimum" in part:
        made |= {"minimum": part["exclusiveMinimum"], "exclusiveMinimum": True}
    if isinstance(made.get("type"), list):
        made["type"] = next((each for each in made["type"] if each != "null"), "string")
    if "const" in part:
        made["enum"] = [part["const"]]
    if "properties" in part and base == _V2 and part.get("additionalProperties") is not False:
        return {**_ANYTHING, **({"description": part["description"]} if "description" in part else {})}
    if "properties" in part:
        made["properties"] = {name: _converted(each, base, referenced) for name, each in part["properties"].items()}
        made.setdefault("type", "object")
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            made[key] = _converted(part[key], base, referenced)
    for each in part.get("patternProperties", {}).values():  # keys of this form alone
        made["additionalProperties"] = _converted(each, base, referenced)
    if made.get("type") == "array" and "items" not in made:
        made["items"] = {"type": "object"}
    return made


def _object_meta() -> dict[str, Any]:
    """Whole, as far as clients write it: older ones refuse fields that are not in it."""
    objects = {"type": "array", "items": {**_ANYTHING}}
    pairs = {"type": "object", "additionalProperties": {"type": "string"}}
    types: dict[str, dict[str, Any]] = {
        "labels": pairs, "annotations": pairs, "managedFields": objects, "ownerReferences": objects,
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "generation": {"type": "integer"}, "deletionGracePeriodSeconds": {"type": "integer"},
    }  # fmt: skip
    return {
        "type": "object",
        "description": _META_DESCRIPTION,
        "properties": {
            name: {**types.get(name, {"type": "string"}), "description": words} for name, words in _META_FIELDS.items()
        },
    }


#: The rest of what clients write there is kept as it is, and means nothing here.
_UNUSED: Final = "Kept for clients; nothing here reads it."
_META_FIELDS: Final = {
    "name": "Name of the object, unique among those of its kind in its namespace.",
    "generateName": "Beginning of a name that is made up where none is given.",
    "namespace": 'Namespace of the object; "default" where a file has none.',
    "labels": "What objects are selected by.",
    "annotations": "Notes of tools and people.",
    "creationTimestamp": "When the object was made: of two that say the same the older one wins. Where a file says no"
    " time, that of the file is shown, and the object comes after those that say one.",
    "uid": "Identifies the object.",
    "resourceVersion": "Changes with each change of the object.",
    "generation": "Counts the changes of the spec.",
    "managedFields": "Who owns which fields: for server-side apply.",
    "finalizers": "Kept; they hold up no deletion.",
    "ownerReferences": _UNUSED,
    "selfLink": _UNUSED,
    "deletionTimestamp": _UNUSED,
    "deletionGracePeriodSeconds": _UNUSED,
}


#: `additionalProperties: false` is left out: unknown fields are refused with better words when a manifest is read.
_KEPT: Final = frozenset({
    "type", "description", "default", "enum", "format", "pattern", "required",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties",
    "nullable", "x-egressproxy-support", "x-kubernetes-validations",
})  # fmt: skip
#: What a field keeps beside a reference, or beside a choice of shapes.
_BESIDE: Final = frozenset({"description", "default", "x-egressproxy-support", "nullable"})


def _chosen(part: Mapping[str, Any], choice: str, base: str, referenced: list[str]) -> dict[str, Any]:
    """A choice of shapes, null left out: the one that is left, an integer or text, or else anything."""
    shapes = [each for each in part[choice] if each.get("type") != "null"]
    rest = {key: value for key, value in part.items() if key in _BESIDE and value is not None}
    if len(shapes) == 1:
        made = dict(_converted({**shapes[0], **rest}, base, referenced))
        if "nullable" in rest and "enum" in made and len(part[choice]) > 1:
            made["pattern"] = f"^({'|'.join(made.pop('enum'))})$"  # an enumeration would have to have null, too
        return made
    types = {each.get("type") for each in shapes}
    if types <= {"integer", "string"}:
        return {"x-kubernetes-int-or-string": True, **({"type": "string"} if base == _V2 else {}), **rest}
    return {**({"type": "object"} if types == {"object"} else {}), FREE: True, **rest}


#: Methods -> what they do, with all objects and with one.
_OF_ALL: Final = {"get": "list", "post": "post"}
_OF_ONE: Final = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}


def _paths(served: Iterable[tuple[ServedKind, str]], base: str, is_writable: bool) -> dict[str, Any]:
    """The operations of each path. kubectl looks there for `fieldValidation`, to know whether the server validates."""
    paths: dict[str, Any] = {}
    for kind, version in served:
        prefix = f"/{_group_path(kind, version)}/{'namespaces/{namespace}/' if kind.is_namespaced else ''}{kind.plural}"
        for path, actions in ((prefix, _OF_ALL), (f"{prefix}/{{name}}", _OF_ONE)):
            paths[path] = {
                method: _operation(kind, version, action, base)
                for method, action in actions.items()
                if is_writable or method == "get"
            }
    return paths


def _operation(kind: ServedKind, version: str, action: str, base: str) -> dict[str, Any]:
    names: tuple[str, ...] = ("dryRun", "fieldManager", "fieldValidation") if action in ("post", "put", "patch") else ()
    names += ("force",) if action == "patch" else ()
    text = {"type": "string", "uniqueItems": True}
    shown = {"$ref": f"{base}{part_of(kind, version)}"}
    answer = {"schema": shown} if base == _V2 else {"content": {"application/json": {"schema": shown}}}
    return {
        "operationId": f"{action}{version.capitalize()}{kind.kind}",
        "parameters": [
            {"name": name, "in": "query", **(text if base == _V2 else {"schema": text})} for name in names
        ],
        "responses": {"200": {"description": "OK", **answer}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(kind, version),
    }  # fmt: skip
