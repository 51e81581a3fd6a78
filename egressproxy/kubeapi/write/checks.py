"""What has to hold of an object before anything is worked out on it: the shape of its metadata and its bounds.

The schema of its kind comes later and says the rest; what stands here is what patches, owners and Secrets rely on.
Source: apimachinery meta/v1 ObjectMeta, ManagedFieldsEntry; FieldsV1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from egressproxy.config.reading.yaml import MAX_DEPTH

#: Levels of an object; below what the reader of files takes, since its file is read again.
MAX_LEVELS: Final = MAX_DEPTH - 10
#: Values in one object; an EgressPolicy with ten thousand entries has half as many.
MAX_VALUES: Final = 200_000
#: Of a list whose items are merged one by one: each is looked for among the others.
MAX_ITEMS: Final = 512
#: Levels of managedFields: a step for every level of the object, one for an item, and the leaf.
MAX_FIELD_LEVELS: Final = 2 * MAX_LEVELS

_VALUES: Final = ("data", "stringData")


def depth_of(value: Any, limit: int) -> int:
    """How many levels of objects and lists a value has, without recursion; more than `limit` is `limit` + 1."""
    return sum(1 for _ in islice(_levels(value), limit + 1))


def too_large(value: Any) -> str:
    """Why an object cannot be taken: it is too deep or has too much in it; "" where it is neither."""
    count = 0
    for level, values in enumerate(_levels(value), 1):
        count += sum(map(len, values))
        if level > MAX_LEVELS:
            return f"it is nested deeper than {MAX_LEVELS} levels"
        if count > MAX_VALUES:
            return f"it has more than {MAX_VALUES} values"
    return ""


def _levels(value: Any) -> Iterator[list[Any]]:
    """The objects and lists of a value, level by level."""
    values = [value]
    while values := [each for each in values if isinstance(each, dict | list)]:
        yield values
        values = [inner for each in values for inner in (each.values() if isinstance(each, dict) else each)]


def faults(manifest: Mapping[str, Any], *, is_secret: bool) -> list[tuple[str, str]]:
    """(field, what it has to be) of every field that is something else; metadata itself is an object.

    A null is a field that is not there.
    """
    metadata = manifest["metadata"]
    found = [(f"metadata.{name}", what) for name, (what, holds) in _METADATA.items() if not holds(metadata.get(name))]
    if not found:
        for index, entry in enumerate(metadata.get("managedFields") or ()):
            if not _is_owner(entry):
                found.append((f"metadata.managedFields[{index}]", "a manager with its fields (fieldsV1)"))
    if is_secret:
        found += [(name, "an object of texts") for name in _VALUES if not _is_text_map(manifest.get(name))]
    return found


def _is_text(value: Any) -> bool:
    return not value or isinstance(value, str)


def _is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: not value or (isinstance(value, list) and all(isinstance(each, kind) for each in value))


def _is_text_map(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(isinstance(each, str) or each is None for each in value.values())
    )


#: Of ObjectMeta: what a field has to be, and whether it is.
_METADATA: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    **dict.fromkeys(("name", "generateName", "namespace", "uid", "resourceVersion"), ("text", _is_text)),
    **dict.fromkeys(("labels", "annotations"), ("an object of texts", _is_text_map)),
    "finalizers": ("a list of texts", _is_list_of(str)),
    **dict.fromkeys(("managedFields", "ownerReferences"), ("a list of objects", _is_list_of(dict))),
}


def _is_owner(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(
        isinstance(entry.get(name, ""), str) for name in ("manager", "operation", "apiVersion", "time", "subresource")
    ):
        return False
    fields = entry.get("fieldsV1")
    return fields is None or (isinstance(fields, dict) and _are_steps(fields))


def _are_steps(fields: dict[str, Any]) -> bool:
    """FieldsV1: `.`, `f:name`, `k:{"key":"value"}` (or v: and i:, which we do not write), each with more of them."""
    return all(
        level <= MAX_FIELD_LEVELS
        and all(isinstance(inner, dict) and _is_step(step) for each in values for step, inner in each.items())
        for level, values in enumerate(_levels(fields), 1)
    )


def _is_step(step: str) -> bool:
    if not step.startswith("k:"):
        return step == "." or step.startswith(("f:", "v:", "i:"))
    try:
        keys = json.loads(step[2:])
    except (ValueError, RecursionError):
        return False
    return isinstance(keys, dict) and not any(isinstance(each, dict | list) for each in keys.values())
