"""What is read as functions: a question and the objects that there are in, a JSON document out.

No I/O and no web framework here.
Source: Kubernetes API concepts (retrieving large results in chunks, resource versions), metav1.List.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from egressproxy.admin.encoding import encoded, line
from egressproxy.admin.status import ApiError, not_found
from egressproxy.kubeapi.list_options import ApiResource, Form, Options, Position
from egressproxy.kubeapi.read.objects import View, key_of
from egressproxy.kubeapi.read.publishing import metadata_only, published
from egressproxy.kubeapi.read.tables import row, table
from egressproxy.kubeapi.state import PublishedObject

__all__ = ["everything", "find", "get", "is_wanted", "listing", "matches"]


def get(asked: ApiResource, options: Options, form: Form, view: View) -> bytes:
    """One object. Raises ApiError(404)."""
    entry = find(asked, view)
    manifest = published(entry, view.version_of(entry), asked.api_version)
    if form is Form.TABLE:
        metadata = {"resourceVersion": manifest["metadata"]["resourceVersion"]}
        return encoded(table(asked.kind, (manifest,), metadata, datetime.now(UTC), options.include_object))
    return encoded(metadata_only(manifest) if form is Form.METADATA else manifest)


def find(asked: ApiResource, view: View) -> PublishedObject:
    """Raises ApiError(404)."""
    for entry in _of(asked, view):
        if entry.name == asked.name:
            return entry
    raise not_found(asked.kind, asked.name)


def listing(asked: ApiResource, options: Options, form: Form, view: View) -> bytes:
    """A list, or a piece of one. Raises ApiError(410) where it goes on after a change, 504 for a version to come."""
    _check_version(options, view, asked)
    entries = sorted(
        (entry for entry in _of(asked, view) if not _is_before(entry, options)),
        key=lambda entry: (entry.namespace, entry.name),
    )
    shape = _shape(asked, options, form)
    found: list[bytes] = []
    seen = 0
    for entry in entries:
        seen += 1
        manifest = published(entry, view.version_of(entry), asked.api_version)
        if matches(manifest, options):
            found.append(line(shape(manifest)))
            if len(found) == options.limit:
                break
    metadata: dict[str, Any] = {"resourceVersion": str(view.version)}
    if seen < len(entries):
        last = entries[seen - 1]
        metadata["continue"] = Position(view.version, last.namespace, last.name).to_token()
        if not options.select:
            metadata["remainingItemCount"] = len(entries) - seen
    if form is Form.TABLE:
        return _joined(table(asked.kind, (), metadata, datetime.now(UTC)), "rows", found)
    if form is Form.METADATA:
        return _joined(_list("PartialObjectMetadata", "meta.k8s.io/v1", metadata), "items", found)
    return _joined(_list(asked.kind.kind, asked.api_version, metadata), "items", found)


def everything(view: View) -> bytes:
    """All objects in one List, redacted: what to attach to a bug report. What was observed is no configuration."""
    entries = (entry for entry in view.entries() if entry.kind != "Event")
    found = [line(published(entry)) for entry in sorted(entries, key=key_of)]
    return _joined(_list("", "v1", {"resourceVersion": str(view.version)}), "items", found)


def matches(manifest: dict[str, Any], options: Options) -> bool:
    """Whether the selectors want it."""
    return all(test(manifest) for test in options.select)


def is_wanted(entry: PublishedObject, asked: ApiResource) -> bool:
    """Whether it belongs to the collection."""
    kind = asked.kind
    return (
        entry.kind == kind.kind
        and entry.group == kind.group
        and asked.namespace in (None, entry.namespace)
        and asked.name in ("", entry.name)
    )


def _of(asked: ApiResource, view: View) -> Iterable[PublishedObject]:
    return view.of(asked.kind.group, asked.kind.kind, asked.namespace)


def _shape(asked: ApiResource, options: Options, form: Form) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What an object is in a list."""
    if form is Form.TABLE:
        now = datetime.now(UTC)
        return lambda manifest: row(asked.kind, manifest, now, options.include_object)
    return metadata_only if form is Form.METADATA else lambda manifest: manifest


def _list(kind: str, api_version: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": []}


def _joined(head: dict[str, Any], field: str, lines: Sequence[bytes]) -> bytes:
    """A list of ten thousand objects, of which no more than one was ever decoded."""
    rest = {name: value for name, value in head.items() if name != field}
    start = line(rest)[:-1] + f', "{field}": [\n'.encode()
    return start + b",\n".join(lines) + b"\n]}\n"


def _is_before(entry: PublishedObject, options: Options) -> bool:
    after = options.after
    return after is not None and (entry.namespace, entry.name) <= (after.namespace, after.name)


def _check_version(options: Options, view: View, asked: ApiResource) -> None:
    version, after = options.version, options.after
    if version is not None and version > view.version:
        message = f"Too large resource version: {version}, current: {view.version}"
        raise ApiError(504, "Timeout", message, asked.kind, retry_after_s=1)
    is_old = options.is_exact and version and version != view.version
    if is_old or (after is not None and after.version != view.version):
        message = "the objects have changed since this list was begun; list from the start, without continue"
        raise ApiError(410, "Expired", message)
