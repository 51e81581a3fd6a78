"""meta.k8s.io/v1 Table: a list as the server would print it. Source: Kubernetes API concepts, "Receiving resources as
Tables".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from egressproxy.kubeapi.kinds import ServedKind
from egressproxy.kubeapi.list_options import Form
from egressproxy.kubeapi.read.columns import Column, columns
from egressproxy.kubeapi.read.publishing import metadata_only


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
