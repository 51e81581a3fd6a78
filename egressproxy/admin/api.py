"""The read-only Kubernetes-shaped API as a function: a path and the objects in, a status and a JSON document out.

No I/O and no web framework here. Secrets are answered with their data redacted, whatever the object itself says.
Source: Kubernetes API concepts (resource URIs, discovery), metav1.Status, metav1.List.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.admin.kinds import KINDS, ServedKind, group_versions, served
from egressproxy.admin.state import Published

__all__ = ["REDACTED", "Document", "answer", "everything", "failure"]

#: base64 of "redacted": clients of the API decode a Secret's values.
REDACTED: Final = "cmVkYWN0ZWQ="

#: kubectl keeps the whole object here, a Secret's data included.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

#: Parameters that change nothing in a read of everything at once.
_HARMLESS: Final = frozenset(
    {"limit", "timeout", "timeoutSeconds", "pretty", "resourceVersion", "resourceVersionMatch"}
)


@dataclass(frozen=True, slots=True)
class Document:
    status: int
    body: Mapping[str, Any]


def answer(
    path: str,
    query: Mapping[str, str],
    objects: Iterable[Published],
    resource_version: str,
    address: str,
) -> Document:
    """Answer a GET below /api, /apis or /version.

    `path` is decoded and has no trailing slash; `resource_version` is the generation of the configuration; `address` is
    host:port of the server, for discovery.
    """
    parts = path.strip("/").split("/")
    match parts:
        case ["api"]:
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
            return Document(200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses})
        case ["apis"]:
            groups = [_group(name, versions) for name, versions in group_versions().items()]
            return Document(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", group]:
            versions = group_versions().get(group)
            if versions is None:
                return _no_path(path)
            return Document(200, {"apiVersion": "v1", **_group(group, versions)})
        case ["api", version, *rest]:
            return _resources("", version, rest, path, query, objects, resource_version)
        case ["apis", group, version, *rest]:
            return _resources(group, version, rest, path, query, objects, resource_version)
    return _no_path(path)


def everything(objects: Iterable[Published], resource_version: str) -> Document:
    """All objects in one List, redacted: what to attach to a bug report."""
    items = [_published(entry, None) for entry in sorted(objects, key=_order)]
    return Document(
        200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": resource_version}, "items": items}
    )


def failure(code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> Document:
    """A metav1.Status."""
    return Document(
        code,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({"details": details} if details else {}),
            "code": code,
        },
    )


def _no_path(path: str) -> Document:
    return failure(404, "NotFound", f"nothing is served at {path}; /apis lists what is")


def _resources(
    group: str,
    version: str,
    rest: list[str],
    path: str,
    query: Mapping[str, str],
    objects: Iterable[Published],
    resource_version: str,
) -> Document:
    kinds = [kind for kind in KINDS if kind.group == group and version in kind.versions]
    if not kinds:
        return _no_path(path)
    group_version = f"{group}/{version}" if group else version
    if not rest:
        resources = [_api_resource(kind) for kind in kinds]
        return Document(
            200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}
        )
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = served(group, version, rest[0])
    if kind is None or len(rest) > 2 or (namespace is not None and not kind.is_namespaced):
        return _no_path(path)
    refused = sorted(key for key, value in query.items() if key not in _HARMLESS and value not in ("", "0", "false"))
    if refused:
        return failure(400, "BadRequest", f"not supported: {', '.join(refused)}; this API answers plain gets and lists")
    found = [
        entry
        for entry in objects
        if entry[0].group == group and entry[0].kind == kind.kind and namespace in (None, entry[0].namespace)
    ]
    if len(rest) == 1:
        items = [_published(entry, group_version) for entry in sorted(found, key=_order)]
        return Document(
            200,
            {
                "kind": f"{kind.kind}List",
                "apiVersion": group_version,
                "metadata": {"resourceVersion": resource_version},
                "items": items,
            },
        )
    name = rest[1]
    if namespace is None and kind.is_namespaced:
        return _no_path(path)
    for entry in found:
        if entry[0].name == name:
            return Document(200, _published(entry, group_version))
    resource = f"{kind.plural}.{group}" if group else kind.plural
    return failure(
        404, "NotFound", f'{resource} "{name}" not found', {"name": name, "group": group, "kind": kind.plural}
    )


def _published(entry: Published, api_version: str | None) -> dict[str, Any]:
    """The manifest with generation and status. Every served version of a kind has the same shape."""
    resource, generation, status = entry
    manifest = resource.to_manifest()
    if api_version is not None:
        manifest["apiVersion"] = api_version
    metadata = manifest["metadata"] = dict(manifest.get("metadata") or {})
    metadata["generation"] = generation
    annotations = metadata.get("annotations")
    if annotations and LAST_APPLIED in annotations:
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != LAST_APPLIED}
    if resource.kind == "Secret" and resource.group == "":
        keys = sorted({*(manifest.get("data") or ()), *(manifest.pop("stringData", None) or ())})
        manifest["data"] = dict.fromkeys(keys, REDACTED)
        if annotations := metadata.get("annotations"):  # other tools than kubectl keep the whole object there, too
            metadata["annotations"] = dict.fromkeys(annotations, "redacted")
    if status is not None:
        manifest["status"] = status
    return manifest


def _order(entry: Published) -> tuple[str, str, str, str]:
    resource = entry[0]
    return (resource.group, resource.kind, resource.namespace, resource.name)


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    offered = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "name": name, "versions": offered, "preferredVersion": offered[0]}


def _api_resource(kind: ServedKind) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.is_namespaced,
        "kind": kind.kind,
        "verbs": ["get", "list"],
    }
    if kind.short_names:
        made["shortNames"] = list(kind.short_names)
    return made
