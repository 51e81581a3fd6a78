"""One object as a client gets it. A Secret's data is redacted here, whatever the object itself says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from uuid import UUID, uuid5

from egressproxy.model.published_object import Key, PublishedObject

#: base64 of "redacted": clients of the API decode a Secret's values.
REDACTED: Final = "cmVkYWN0ZWQ="

#: kubectl keeps the whole object here, a Secret's data included.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_OBJECTS: Final = UUID("5f0b7c0e-9b0a-5c55-9a0c-1d3f6d0a7e11")


def published(entry: PublishedObject, version: int | None = None, api_version: str | None = None) -> dict[str, Any]:
    """The manifest with uid, resourceVersion, generation, creationTimestamp and status.

    `version` None gives no resourceVersion, `api_version` None leaves the one that was written.
    """
    manifest: dict[str, Any] = json.loads(entry.manifest)
    if api_version is not None:
        manifest["apiVersion"] = api_version
    metadata = manifest["metadata"] = dict(manifest.get("metadata") or {})
    metadata.setdefault("uid", uid_of(entry.key))
    metadata.pop("resourceVersion", None)
    if version is not None:
        metadata["resourceVersion"] = str(version)
    if entry.created and not metadata.get("creationTimestamp"):
        metadata["creationTimestamp"] = entry.created
    if entry.generation:
        metadata["generation"] = entry.generation
    if entry.kind == "Secret" and entry.group == "":
        _redact(manifest, metadata)
    if entry.status is not None:
        manifest["status"] = json.loads(entry.status)
    if entry.kind == "Namespace" and entry.group == "":
        metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": entry.name}
        manifest.setdefault("status", {"phase": "Active"})
    return manifest


def _redact(manifest: dict[str, Any], metadata: dict[str, Any]) -> None:
    keys = sorted({*(manifest.get("data") or ()), *(manifest.pop("stringData", None) or ())})
    manifest["data"] = dict.fromkeys(keys, REDACTED)
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != LAST_APPLIED}
    if annotations:  # other tools than kubectl keep the whole object there, too
        metadata["annotations"] = dict.fromkeys(annotations, "redacted")
    else:
        metadata.pop("annotations", None)


def metadata_only(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The object without all but its metadata: meta.k8s.io/v1 PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": manifest["metadata"]}


@lru_cache(4096)
def uid_of(key: Key) -> str:
    """The uid of an object that brings none: the same for the same key, over reloads and restarts."""
    return str(uuid5(_OBJECTS, "/".join(key)))
