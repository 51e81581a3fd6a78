"""The kinds of patches: a manifest and a patch in, a new manifest out.

Lists with keys are merged item by item, all other lists are taken whole. The values of a Secret, which are shown to no
client, are redacted before a patch, and put back after it.
Sources: RFC 7396 (merge patch), RFC 6902 (JSON patch), Kubernetes' strategic merge patch (directives $patch,
$deleteFromPrimitiveList, $retainKeys; $setElementOrder orders), x-kubernetes-list-map-keys in the CRDs of Gateway API
v1, patchMergeKey in k8s.io/api/core/v1.
"""

from __future__ import annotations

import copy
import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from jsonpatch import JsonPatch, JsonPatchException, JsonPatchTestFailed
from jsonpointer import JsonPointer, JsonPointerException

from egressproxy.config.resources.core import REDACTED
from egressproxy.config.resources.meta import LAST_APPLIED
from egressproxy.config.served_kinds import GATEWAY, OURS
from egressproxy.kubeapi.kinds import BACKENDS
from egressproxy.kubeapi.write.bodies import MAX_ITEMS, MAX_LEVELS, depth_of
from egressproxy.kubeapi.write.refusals import invalid
from egressproxy.kubeapi.write.write import Write, WriteRefused

#: Operations in one JSON patch; as the API server of Kubernetes.
MAX_OPERATIONS = 10_000
#: The most bytes copied by one JSON patch: each copy could double the object.
MAX_COPIED = 3 * 1024 * 1024
#: Fields from the object down to the list -> fields that tell its items apart.
Shape = Mapping[tuple[str, ...], tuple[str, ...]]
_CONDITIONS: Final[Shape] = {("status", "conditions"): ("type",)}
_LISTENERS: Final[Shape] = {("spec", "listeners"): ("name",)}
_TARGETS: Final[Shape] = {("spec", "targetRefs"): ("group", "kind", "name", "sectionName")}
_EXTENSIONS: Final[Shape] = {("spec", "extensions"): ("name",)}
_BACKEND: Final[Shape] = {("spec", "destination", "ports"): ("number",), **_EXTENSIONS}
_PROCESSORS: Final[Shape] = {("spec", "processors"): ("name",)}
_SHAPES: Final[Mapping[tuple[str, str], Shape]] = {
    (GATEWAY, "Gateway"): {**_LISTENERS, ("spec", "tls", "frontend", "perPort"): ("port",)},
    (GATEWAY, "ListenerSet"): _LISTENERS,
    (GATEWAY, "BackendTLSPolicy"): _TARGETS,
    ("gateway.networking.x-k8s.io", "XTelemetryPolicy"): {("spec", "tracing", "attributes"): ("name",)},
    # Ours has lists that are one value: their keys may be left out, and a CustomResourceDefinition takes no such keys.
    **dict.fromkeys((each for each in BACKENDS if each[0] != OURS), _BACKEND),
    (OURS, "EgressPolicy"): _EXTENSIONS,
    (OURS, "PayloadProcessingPipeline"): _PROCESSORS,
    (GATEWAY, "PayloadProcessingPipeline"): _PROCESSORS,
    ("", "Service"): {("spec", "ports"): ("port", "protocol")},
    ("", "ServiceAccount"): {("secrets",): ("name",), ("imagePullSecrets",): ("name",)},
    ("", "Pod"): {("spec", "containers"): ("name",), ("status", "podIPs"): ("ip",)},
}
_COMMON: Final[Shape] = {("metadata", "ownerReferences"): ("uid",), **_CONDITIONS}
#: Defaults of keys.
_DEFAULTS: Final = {"protocol": "TCP", "sectionName": ""}
Manifest = dict[str, Any]


def merge_patch(target: Any, patch: Any) -> Any:
    """The target after a merge patch (RFC 7396 section 2): null removes a field."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge_patch(made.get(name), value)
    return made


def json_patch(target: Any, patch: Any) -> Any:
    """The target after a JSON patch (RFC 6902). Raises WriteRefused(400, 413, 422); values are told to nobody."""
    if not isinstance(patch, list) or len(patch) > MAX_OPERATIONS:
        raise WriteRefused(400, "BadRequest", f"a JSON patch is a list of at most {MAX_OPERATIONS} operations")
    made, copied = copy.deepcopy(target), 0
    for index, operation in enumerate(patch):
        try:
            copied += _copied(made, operation)
            if copied > MAX_COPIED:
                raise WriteRefused(413, "RequestEntityTooLarge", f"the patch copies more than {MAX_COPIED} bytes")
            made = JsonPatch([operation]).apply(made, in_place=True)
        except JsonPatchTestFailed:
            raise WriteRefused(422, "Invalid", f"the patch's test failed: operation {index}") from None
        except (JsonPatchException, JsonPointerException, TypeError, LookupError, ValueError, AttributeError) as error:
            # What the library says may have values in it.
            message = f"the patch cannot be applied: operation {index} ({type(error).__name__})"
            raise WriteRefused(422, "Invalid", message) from None
    return made


def strategic_merge_patch(target: Any, patch: Any, shape: Shape, path: tuple[str, ...] = ()) -> Any:
    """As a merge patch, but lists with keys are merged item by item. Raises WriteRefused(422)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {name: copy.deepcopy(value) for name, value in patch.items() if not name.startswith("$")}
    made = dict(target) if isinstance(target, dict) else {}
    if patch.get("$patch") == "delete":
        return {}
    if "$retainKeys" in patch:
        retained = set(patch["$retainKeys"])
        made = {name: value for name, value in made.items() if name in retained}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            gone = set(value)
            made[field] = [each for each in made.get(field) or () if each not in gone]
        elif name.startswith("$"):
            continue
        elif value is None:
            made.pop(name, None)
        elif isinstance(value, list):
            made[name] = _merged_list(made.get(name), value, shape, (*path, name))
        else:
            made[name] = strategic_merge_patch(made.get(name), value, shape, (*path, name))
    for name, order in patch.items():
        if name.startswith("$setElementOrder/"):
            field = name.partition("/")[2]
            made[field] = _ordered(made.get(field) or [], order, shape.get((*path, field)))
    return made


def shape_of(group: str, kind: str) -> Shape:
    """The lists with keys of a kind, those of every object included."""
    return {**_COMMON, **_SHAPES.get((group, kind), {})}


def item_key(item: Any, names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The key of a list item; None for an item without."""
    if not isinstance(item, Mapping):
        return None
    key = tuple(item.get(name, _DEFAULTS.get(name)) for name in names)
    return None if None in key or any(isinstance(each, dict | list) for each in key) else key


def without_values(secret: Manifest) -> Manifest:
    """The Secret with redacted values: otherwise a patch could test them, or copy them to visible fields."""
    shown = dict(secret)
    metadata = shown.get("metadata") or {}
    if metadata.get("annotations"):
        shown["metadata"] = {**metadata, "annotations": dict.fromkeys(metadata["annotations"], "redacted")}
    if shown.get("data"):
        shown["data"] = dict.fromkeys(shown["data"], REDACTED)
    return shown


def with_values(made: Manifest, current: Mapping[str, Any] | None, write: Write) -> Manifest:
    """The Secret to store: redacted values are restored from `current`. Raises WriteRefused(422) for missing ones."""
    current = current or {}
    old = current.get("data") or {}
    data = dict(made.get("data") or {})
    for key, text in (made.get("stringData") or {}).items():
        data[key] = b64encode((text or "").encode()).decode()
    for key, value in data.items():
        if value == REDACTED:
            if key not in old:
                message = f"Invalid value: this is how values are shown, and none is kept for {key}"
                causes = [("FieldValueInvalid", message, f"data.{key}")]
                raise invalid(write, causes)
            data[key] = old[key]
    metadata = dict(made.get("metadata") or {})
    kept = (current.get("metadata") or {}).get("annotations") or {}
    annotations = {
        key: kept.get(key, value) if value == "redacted" else value
        for key, value in (metadata.pop("annotations", None) or {}).items()
        if key != LAST_APPLIED  # it has the values, too
    }
    if annotations:
        metadata["annotations"] = annotations
    rest = {key: value for key, value in made.items() if key not in ("data", "stringData")}
    return {**rest, "metadata": metadata, **({"data": data} if data else {})}


def _copied(target: Any, operation: Any) -> int:
    """The bytes of JSON that an operation copies or moves. Raises WriteRefused(422) if the object would become too
    deep by the combined operations.
    """
    if not isinstance(operation, dict):
        raise WriteRefused(400, "BadRequest", "an operation of a JSON patch is an object")
    level = len(JsonPointer(operation.get("path", "")).parts)
    value, size = operation.get("value"), 0
    if operation.get("op") in ("copy", "move"):
        source = JsonPointer(operation.get("from", ""))
        level = max(level, len(source.parts))
        if level <= MAX_LEVELS:
            value = source.resolve(target)
            size = len(json.dumps(value))
    if level + depth_of(value, MAX_LEVELS) > MAX_LEVELS:
        raise WriteRefused(422, "Invalid", f"the patch would nest the object deeper than {MAX_LEVELS} levels")
    return size


def _merged_list(target: Any, patch: list[Any], shape: Shape, path: tuple[str, ...]) -> list[Any]:
    names = shape.get(path)
    if names is None or not isinstance(target, list):
        return [
            strategic_merge_patch({}, each, shape, path)
            for each in patch
            if not (isinstance(each, dict) and each.get("$patch") == "delete")
            and each != {"$patch": "replace"}
        ]  # fmt: skip
    if any(isinstance(each, dict) and each.get("$patch") == "replace" for each in patch):
        return [copy.deepcopy(each) for each in patch if each.get("$patch") != "replace"]
    made = list(target)
    if len(patch) > MAX_ITEMS or len(made) > MAX_ITEMS:
        raise WriteRefused(422, "Invalid", f"{'.'.join(path)} has more than {MAX_ITEMS} items")
    for each in patch:
        key = item_key(each, names)
        if key is None:
            where = ".".join(path)
            raise WriteRefused(422, "Invalid", f"an item of {where} in the patch has not the key {', '.join(names)}")
        at = next((index for index, item in enumerate(made) if item_key(item, names) == key), None)
        if each.get("$patch") == "delete":
            if at is not None:
                del made[at]
        elif at is None:
            made.append(strategic_merge_patch({}, each, shape, path))
        else:
            made[at] = strategic_merge_patch(made[at], each, shape, path)
    return made


def _ordered(items: list[Any], order: list[Any], names: tuple[str, ...] | None) -> list[Any]:
    """The items that `order` names, in that order, and the others behind them."""

    def key(item: Any) -> Any:
        return item_key(item, names) if names else item

    positions = {key(each): position for position, each in reversed(list(enumerate(order)))}
    return sorted(items, key=lambda item: positions.get(key(item), len(positions)))
