"""Answers to reads: a resource and a view of all objects in, JSON out, and no I/O. Source: Kubernetes API concepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any

from egressproxy.admin.status import ApiError, not_found
from egressproxy.kubeapi.list_options import ApiResource, Form, Options, Position
from egressproxy.kubeapi.read.objects import View
from egressproxy.kubeapi.read.representations import in_form, metadata_only, published, row, table
from egressproxy.model.encoding import encoded, line


def get(asked: ApiResource, options: Options, form: Form, view: View) -> bytes:
    """One object as JSON. Raises ApiError(404) where there is none."""
    entry = next(filter(asked.has, view.entries()), None)
    if entry is None:
        raise not_found(asked.kind, asked.name)
    manifest = published(entry, view.version_at(entry.key), asked.api_version)
    return encoded(in_form(form, asked.kind, manifest, options.include_object))


def listing(asked: ApiResource, options: Options, form: Form, view: View) -> bytes:
    """A list, or a piece of one, as JSON. Raises ApiError(410) if objects have changed, 504 for a later version."""
    check_has_been(options.version, view, asked)
    after, where = options.after, attrgetter("namespace", "name")
    is_old = options.is_exact and options.version and options.version != view.version
    if is_old or (after is not None and after.version != view.version):
        message = "the objects have changed since this list was begun; list from the start, without continue"
        raise ApiError(410, "Expired", message)
    start = ("", "") if after is None else where(after)
    entries = sorted((entry for entry in view.entries() if asked.has(entry) and where(entry) > start), key=where)
    metadata: dict[str, Any] = {"resourceVersion": str(view.version)}
    field, now = "items", datetime.now(UTC)
    shape: Callable[[dict[str, Any]], dict[str, Any]]
    match form:
        case Form.TABLE:
            head, field = table(asked.kind, (), metadata), "rows"
            shape = partial(row, asked.kind, now=now, include_object=options.include_object)
        case Form.METADATA:
            head, shape = _list("PartialObjectMetadata", "meta.k8s.io/v1", metadata), metadata_only
        case Form.PLAIN:
            head, shape = _list(asked.kind.kind, asked.api_version, metadata), dict
    found: list[bytes] = []
    seen = 0
    for entry in entries:
        seen += 1
        manifest = published(entry, view.version_at(entry.key), asked.api_version)
        if matches(manifest, options):
            found.append(line(shape(manifest)))
            if len(found) == options.limit:
                break
    if seen < len(entries):
        metadata["continue"] = Position(view.version, *where(entries[seen - 1])).to_token()
        if not options.select:
            metadata["remainingItemCount"] = len(entries) - seen
    return _joined(head, field, found)


def check_has_been(version: int | None, view: View, asked: ApiResource) -> None:
    """Raises ApiError(504) for a version that is not reached yet."""
    if version is not None and version > view.version:
        message = f"Too large resource version: {version}, current: {view.version}"
        raise ApiError(504, "Timeout", message, asked.kind, retry_after_s=1)


def everything(view: View) -> bytes:
    """All objects in one List, redacted: what to attach to a bug report. Events are left out."""
    entries = (entry for entry in view.entries() if entry.kind != "Event")
    found = [line(published(entry)) for entry in sorted(entries, key=attrgetter("key"))]
    return _joined(_list("", "v1", {"resourceVersion": str(view.version)}), "items", found)


def matches(manifest: dict[str, Any], options: Options) -> bool:
    return all(test(manifest) for test in options.select)


def _list(kind: str, api_version: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": []}


def _joined(head: dict[str, Any], field: str, lines: Sequence[bytes]) -> bytes:
    """`head` with the encoded `lines` in `field`: of ten thousand objects one at a time was decoded."""
    rest = {name: value for name, value in head.items() if name != field}
    start = line(rest)[:-1] + f', "{field}": [\n'.encode()
    return start + b",\n".join(lines) + b"\n]}\n"
