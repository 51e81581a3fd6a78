"""The Kubernetes-shaped API as functions: what is asked and what there is in, a JSON document out.

No I/O and no web framework here.
Source: Kubernetes API concepts (retrieving large results in chunks, resource versions), metav1.List.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from egressproxy.admin.objects import View, key_of
from egressproxy.admin.publishing import metadata_only, published
from egressproxy.admin.questions import Form, Options, Position, Resource
from egressproxy.admin.state import PublishedObject
from egressproxy.admin.status import ApiError, not_found
from egressproxy.admin.tables import table

__all__ = ["everything", "find", "get", "is_wanted", "listing", "matches"]


def get(asked: Resource, options: Options, form: Form, view: View) -> dict[str, Any]:
    """One object. Raises ApiError(404)."""
    entry = find(asked, view)
    manifest = published(entry, view.version_of(entry), asked.api_version)
    return _shaped(asked, [manifest], {"resourceVersion": manifest["metadata"]["resourceVersion"]}, options, form)


def find(asked: Resource, view: View) -> PublishedObject:
    """Raises ApiError(404)."""
    for entry in view.of(asked.kind.group, asked.kind.kind, asked.namespace):
        if entry.name == asked.name:
            return entry
    raise not_found(asked.kind, asked.name)


def listing(asked: Resource, options: Options, form: Form, view: View) -> dict[str, Any]:
    """A list, or a piece of one. Raises ApiError(410) where it went on after a change, 400 for a version to come."""
    _check_version(options, view, asked)
    entries = sorted(
        (
            entry
            for entry in view.of(asked.kind.group, asked.kind.kind, asked.namespace)
            if not _is_before(entry, options)
        ),
        key=lambda entry: (entry.namespace, entry.name),
    )
    wanted = (
        (index, manifest)
        for index, entry in enumerate(entries, 1)
        if matches(manifest := published(entry, view.version_of(entry), asked.api_version), options)
    )
    found = list(islice(wanted, options.limit or None))
    metadata: dict[str, Any] = {"resourceVersion": str(view.version)}
    if options.limit and found and found[-1][0] < len(entries):
        last = entries[found[-1][0] - 1]
        metadata["continue"] = Position(view.version, last.namespace, last.name).to_token()
        if not options.select:
            metadata["remainingItemCount"] = len(entries) - found[-1][0]
    manifests = [manifest for _, manifest in found]
    if form is Form.TABLE:
        return _shaped(asked, manifests, metadata, options, form)
    if form is Form.METADATA:
        items = [metadata_only(manifest) for manifest in manifests]
        return _list("PartialObjectMetadata", "meta.k8s.io/v1", metadata, items)
    return _list(asked.kind.kind, asked.api_version, metadata, manifests)


def everything(view: View) -> dict[str, Any]:
    """All objects in one List, redacted: what to attach to a bug report. What was observed is no configuration."""
    entries = (entry for entry in view.entries() if entry.kind != "Event")
    items = [published(entry) for entry in sorted(entries, key=key_of)]
    return _list("", "v1", {"resourceVersion": str(view.version)}, items)


def matches(manifest: dict[str, Any], options: Options) -> bool:
    """Whether the selectors want it."""
    return all(test(manifest) for test in options.select)


def is_wanted(entry: PublishedObject, asked: Resource) -> bool:
    """Whether it belongs to the collection."""
    kind = asked.kind
    return entry.kind == kind.kind and entry.group == kind.group and asked.namespace in (None, entry.namespace)


def _shaped(
    asked: Resource, manifests: Sequence[dict[str, Any]], metadata: dict[str, Any], options: Options, form: Form
) -> dict[str, Any]:
    if form is Form.TABLE:
        return table(asked.kind, manifests, metadata, datetime.now(UTC), options.include_object)
    return manifests[0] if form is Form.PLAIN else metadata_only(manifests[0])


def _list(kind: str, api_version: str, metadata: dict[str, Any], items: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": list(items)}


def _is_before(entry: PublishedObject, options: Options) -> bool:
    after = options.after
    return after is not None and (entry.namespace, entry.name) <= (after.namespace, after.name)


def _check_version(options: Options, view: View, asked: Resource) -> None:
    version, after = options.version, options.after
    if version is not None and version > view.version:
        message = f"Too large resource version: {version}, current: {view.version}"
        raise ApiError(504, "Timeout", message, asked.kind, retry_after_s=1)
    is_old = options.is_exact and version and version != view.version
    if is_old or (after is not None and after.version != view.version):
        message = "the objects have changed since this list was begun; list from the start, without continue"
        raise ApiError(410, "Expired", message)
