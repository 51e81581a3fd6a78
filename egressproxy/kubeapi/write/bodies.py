"""The body of a write, read: JSON as JSON, everything else as YAML, and nothing that could hurt who works on it.

What has to hold of an object before anything is worked out on it is checked here: the shape of its metadata and its
bounds. The schema of its kind comes later and says the rest; patches, owners and Secrets rely on this.
Sources: RFC 8259; RFC 7493 (I-JSON) on numbers, duplicate names and surrogates; apimachinery meta/v1 ObjectMeta,
ManagedFieldsEntry; FieldsV1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from math import isfinite
from operator import itemgetter
from typing import Any, Final

from egressproxy.config.reading.yaml import MAX_DEPTH, Fault, levels_of, read_documents

#: Of an integer, as in manifests: no field takes more.
MAX_DIGITS: Final = 19
#: Levels of an object; below what the reader of files takes, since its file is read again.
MAX_LEVELS: Final = MAX_DEPTH - 10
#: Values in one object; an EgressPolicy with ten thousand entries has half as many.
MAX_VALUES: Final = 200_000
#: One sentence, however deep this Python's own reader of JSON goes before it gives up.
_TOO_DEEP: Final = f"it is nested deeper than {MAX_LEVELS} levels"
#: Of a list whose items are merged one by one: each is looked for among the others.
MAX_ITEMS: Final = 512
#: Levels of managedFields: a step for every level of the object, one for an item, and the leaf.
MAX_FIELD_LEVELS: Final = 2 * MAX_LEVELS
_VALUES: Final = ("data", "stringData")


def read_body(data: bytes) -> Any:
    """The value of a body, JSON or YAML, within the bounds of `too_large`. Raises ValueError with a sentence."""
    value = read_json(data) if data.lstrip(b" \t\r\n")[:1] in (b"{", b"[") else read_document(data)
    if why := too_large(value):
        raise ValueError(why)
    return value


def read_json(data: bytes) -> Any:
    """The value of JSON; text that only begins like JSON may be YAML in flow style. Raises ValueError."""
    try:
        value = json.loads(data, object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_float)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        return read_document(data)
    if b"\\u" in data:
        _check_surrogates(value)
    return value


def read_document(data: bytes) -> Any:
    """The value of YAML that is one document. Raises ValueError with a sentence."""
    found = list(read_documents(data))
    if len(found) != 1:
        raise ValueError("one object is expected")
    (document,) = found
    if isinstance(document, Fault):
        raise ValueError(document.message)
    for fault in document.faults:
        raise ValueError(fault.message)
    return document.value


def depth_of(value: Any, limit: int) -> int:
    """How many levels of objects and lists a value has, without recursion; more than `limit` is `limit` + 1."""
    return sum(1 for _ in islice(levels_of(value), limit + 1))


def too_large(value: Any) -> str:
    """Why an object cannot be taken: it is too deep or has too much in it; "" where it is neither."""
    count = 0
    for level, values in enumerate(levels_of(value), 1):
        count += sum(map(len, values))
        if level > MAX_LEVELS:
            return _TOO_DEEP
        if count > MAX_VALUES:
            return f"it has more than {MAX_VALUES} values"
    return ""


def faults(manifest: Mapping[str, Any], *, is_secret: bool) -> list[tuple[str, str]]:
    """(field, what it has to be) of every field that is something else, null being absent. metadata is an object."""
    metadata = manifest["metadata"]
    found = [(f"metadata.{name}", what) for name, (what, holds) in _METADATA.items() if not holds(metadata.get(name))]
    if not found:
        for index, entry in enumerate(metadata.get("managedFields") or ()):
            if not _is_owner(entry):
                found.append((f"metadata.managedFields[{index}]", "a manager with its fields (fieldsV1)"))
    if is_secret:
        found += [(name, "an object of texts") for name in _VALUES if not _is_text_map(manifest.get(name))]
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = max(Counter(name for name, _ in pairs).items(), key=itemgetter(1))[0]
        raise ValueError(f"the key {json.dumps(twice[:100])} stands twice")
    return made


def _int(text: str) -> int:
    if len(text.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"an integer has more than {MAX_DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number is too large, or is none")
    return value


def _check_surrogates(value: Any) -> None:
    """A half of a pair is no character: no text can hold it. Raises ValueError."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a \\u escape is half of a surrogate pair") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


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
        for level, values in enumerate(levels_of(fields), 1)
    )


def _is_step(step: str) -> bool:
    if not step.startswith("k:"):
        return step == "." or step.startswith(("f:", "v:", "i:"))
    try:
        keys = json.loads(step[2:])
    except (ValueError, RecursionError):
        return False
    return isinstance(keys, dict) and not any(isinstance(each, dict | list) for each in keys.values())
