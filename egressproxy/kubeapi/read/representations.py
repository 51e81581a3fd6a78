"""One object as a client gets it: whole, its metadata alone, or as a row of a Table, as the server prints lists.

A Secret's data is redacted here, whatever the object itself says.
Source: Kubernetes API concepts, "Receiving resources as Tables" (meta.k8s.io/v1 Table).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID, uuid5

from egressproxy.config.served_kinds import ServedKind
from egressproxy.kubeapi.list_options import Form
from egressproxy.kubeapi.read.columns import Column, columns
from egressproxy.model.published_object import Key, PublishedObject

#: base64 of "redacted": clients of the API decode a Secret's values.
REDACTED: Final = "cmVkYWN0ZWQ="
#: kubectl keeps the whole object here, a Secret's data included.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_OBJECTS: Final = UUID("5f0b7c0e-9b0a-5c55-9a0c-1d3f6d0a7e11")


def in_form(
    form: Form, kind: ServedKind, manifest: dict[str, Any], include_object: str, has_columns: bool = True
) -> dict[str, Any]:
    """One object in the form that a client wants; see `table` and `row`."""
    if form is not Form.TABLE:
        return metadata_only(manifest) if form is Form.METADATA else manifest
    metadata = {"resourceVersion": manifest["metadata"]["resourceVersion"]}
    made = row(kind, manifest, datetime.now(UTC), include_object)
    return table(kind, (made,), metadata, has_columns)


def table(
    kind: ServedKind, rows: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any], has_columns: bool = True
) -> dict[str, Any]:
    """`rows` as `row` makes them; a watch says the columns only once."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": list(map(_definition, columns(kind.group, kind.kind))) if has_columns else None,
        "rows": rows,
    }


def row(kind: ServedKind, manifest: Mapping[str, Any], now: datetime, include_object: str) -> dict[str, Any]:
    """meta.k8s.io/v1 TableRow; `include_object` is None, Metadata or Object."""
    made: dict[str, Any] = {"cells": [_cell(column, manifest, now) for column in columns(kind.group, kind.kind)]}
    if include_object == "Object":
        made["object"] = manifest
    elif include_object == "Metadata":
        made["object"] = metadata_only(manifest)
    return made


def age(written: str, now: datetime) -> str:
    """Since a time in RFC 3339, as people count: 42s, 17m, 5h, 3d, 2y; `<unknown>` where there is none."""
    try:
        then = datetime.fromisoformat(written)
    except ValueError:
        return "<unknown>"
    seconds = max(int((now - then.replace(tzinfo=then.tzinfo or UTC)).total_seconds()), 0)
    if seconds < 120:
        return f"{seconds}s"
    for unit, length, until in (("m", 60, 2 * 3600), ("h", 3600, 2 * 86400), ("d", 86400, 2 * 365 * 86400)):
        if seconds < until:
            return f"{seconds // length}{unit}"
    return f"{seconds // (365 * 86400)}y"


def published(entry: PublishedObject, version: int | None = None, api_version: str | None = None) -> dict[str, Any]:
    """The manifest, completed. `version` None: no resourceVersion; `api_version` None: the one that was written."""
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


def metadata_only(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The object without all but its metadata: meta.k8s.io/v1 PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": manifest["metadata"]}


@lru_cache(4096)
def uid_of(key: Key) -> str:
    """The uid of an object that brings none: the same for the same key, over reloads and restarts."""
    return str(uuid5(_OBJECTS, "/".join(key)))


def _definition(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "format": "name" if column.name == "Name" else "",
        "description": column.description,
        "priority": int(column.is_wide),
    }


def _cell(column: Column, manifest: Mapping[str, Any], now: datetime) -> str | int:
    value = column.of(manifest)
    return age(str(value), now) if column.is_age else value


def _redact(manifest: dict[str, Any], metadata: dict[str, Any]) -> None:
    keys = sorted({*(manifest.get("data") or ()), *(manifest.pop("stringData", None) or ())})
    manifest["data"] = dict.fromkeys(keys, REDACTED)
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != LAST_APPLIED}
    if annotations:  # other tools than kubectl keep the whole object there, too
        metadata["annotations"] = dict.fromkeys(annotations, "redacted")
    else:
        metadata.pop("annotations", None)
