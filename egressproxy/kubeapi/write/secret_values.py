"""The values of a Secret, which are shown to no client: they are redacted before a patch, and put back after it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from egressproxy.config.resources.core import REDACTED
from egressproxy.config.resources.meta import LAST_APPLIED
from egressproxy.kubeapi.write.refusals import invalid
from egressproxy.kubeapi.write.write import Write

Manifest = dict[str, Any]


def without_values(secret: Manifest) -> Manifest:
    """The Secret with its values redacted: a JSON patch could test them one by one, or copy them to where they are
    shown.
    """
    shown = dict(secret)
    metadata = shown.get("metadata") or {}
    if metadata.get("annotations"):
        shown["metadata"] = {**metadata, "annotations": dict.fromkeys(metadata["annotations"], "redacted")}
    if shown.get("data"):
        shown["data"] = dict.fromkeys(shown["data"], REDACTED)
    return shown


def with_values(made: Manifest, current: Mapping[str, Any] | None, write: Write) -> Manifest:
    """A Secret as it is kept: a value that comes back redacted, as clients see it, is the one that was kept.

    Raises WriteRefused(422) for a redacted value that `current` does not have.
    """
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
                raise invalid(write, f"data.{key}: {message}", causes)
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
