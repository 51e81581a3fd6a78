"""ObjectStore: a cluster's objects of the watched kinds, as JSON.

An object never goes back to an older version, from any source. Numeric resource versions, such as etcd's, are compared
as numbers (KEP-5504).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from egressproxy.config.reading import deep_json
from egressproxy.config.served_kinds import READ_KINDS, ServedKind
from egressproxy.model.published_object import Key

#: The stored parts of `metadata`; the rest changes often, and is not used.
_METADATA: Final = ("name", "namespace", "uid", "generation", "creationTimestamp", "labels", "annotations")
#: Group and kind of EndpointSlices.
SLICES: Final = ("discovery.k8s.io", "EndpointSlice")
#: kubectl's copy of the whole object, including a Secret's values.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
#: The key by which a configuration asks for all Pods; with a namespace, and a selector as the name, for some.
ALL_PODS: Final[Key] = ("", "Pod", "", "")
#: The label of an EndpointSlice with the name of its Service.
OF_SERVICE: Final = "kubernetes.io/service-name"
_ZONE: Final = "topology.kubernetes.io/zone"


class Scope(NamedTuple):
    """The scope of one watch: a kind, in one namespace ("": all, or cluster-scoped), of one name or a label selector;
    or `is_by_name`, for many names.
    """

    kind: ServedKind
    namespace: str = ""
    name: str = ""
    labels: str = ""
    is_by_name: bool = False

    def __str__(self) -> str:
        suffix = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.kind.resource}{f' {self.name}' if self.name else ''}{suffix}"


class StoredObject(NamedTuple):
    """`manifest` is the JSON for a compilation; `status` the server's status, b"" for none; `service` the Service of an
    EndpointSlice.
    """

    resource_version: str
    manifest: bytes
    status: bytes
    service: str = ""  # of an EndpointSlice


def stored(value: Mapping[str, Any], scope: Scope, version: str) -> tuple[Key, StoredObject]:
    """An object from the server. `version`: the requested API version. Raises ValueError for an invalid object."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise ValueError(f"an object of {scope} has no name")
    kind = scope.kind
    if value.get("kind", kind.kind) != kind.kind:
        raise ValueError(f"among {scope} there is an object of another kind")
    namespace = metadata.get("namespace", "") if kind.is_namespaced else ""
    if not isinstance(namespace, str) or scope.namespace not in ("", namespace):
        raise ValueError(f"an object of {scope} is of another namespace")
    if scope.name not in ("", metadata["name"]):
        raise ValueError(f"an object of {scope} has another name")
    kept = {name: metadata[name] for name in _METADATA if metadata.get(name)}
    if isinstance(kept.get("annotations"), dict):
        kept["annotations"] = {name: text for name, text in kept["annotations"].items() if name != _LAST_APPLIED}
    body = {name: part for name, part in value.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    made = {"apiVersion": kind.api_version(version), "kind": kind.kind, "metadata": kept, **body}
    status = value.get("status")
    if (kind.group, kind.kind) == ALL_PODS[:2]:
        made |= _of_pod(body.get("spec"), status)
        kept |= {name: metadata[name] for name in ("deletionTimestamp",) if metadata.get(name)}
        status = None
    if kind.kind == "EndpointSlice" and version != kind.versions[0]:
        made["apiVersion"] = kind.api_version(kind.versions[0])
        made["endpoints"] = [_with_zone(each) for each in body.get("endpoints") or ()]
    key = (kind.group, kind.kind, namespace, metadata["name"])
    packed = deep_json.dumps(made)
    service = (metadata.get("labels") or {}).get(OF_SERVICE, "") if kind.kind == "EndpointSlice" else ""
    held = json.dumps(status).encode() if status else b""
    return key, StoredObject(str(metadata.get("resourceVersion", "")), packed, held, service)


def _of_pod(spec: Any, status: Any) -> dict[str, Any]:
    """The parts of a Pod that are read. Its status is input, and the rest of it changes often."""
    spec, status = spec or {}, status or {}
    found = {name: status[name] for name in ("podIP", "podIPs", "phase") if name in status}
    ready = [
        {"type": "Ready", "status": each.get("status")}
        for each in status.get("conditions") or ()
        if each.get("type") == "Ready"
    ]
    kept = {name: spec[name] for name in ("serviceAccountName", "hostNetwork") if name in spec}
    return {"spec": kept, "status": {**found, **({"conditions": ready} if ready else {})}}


def _with_zone(endpoint: Any) -> Any:
    """An endpoint of discovery.k8s.io/v1beta1 in the form of v1: its zone stands in `topology` there."""
    if not isinstance(endpoint, dict) or "topology" not in endpoint:
        return endpoint
    rest = {name: value for name, value in endpoint.items() if name != "topology"}
    zone = (endpoint["topology"] or {}).get(_ZONE)
    return {"zone": zone, **rest} if zone else rest


def is_older(version: str, than: str) -> bool:
    """Whether a resource version is before another one, as far as that can be told."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


#: Of what is no object of the server's.
READ_SCOPE: Final = Scope(ServedKind("", READ_KINDS, ("",)))


def read_kinds(kinds: Iterable[tuple[str, str]]) -> tuple[Key, StoredObject]:
    """The marker object for the completely read kinds (group and kind)."""
    manifest = {"apiVersion": "", "kind": READ_KINDS, "read": [list(each) for each in kinds]}
    return ("", READ_KINDS, "", ""), StoredObject("", json.dumps(manifest).encode(), b"")


class ObjectStore:
    """`revision` counts the changes of manifests. `changed` has the objects changed since its last clear, except
    EndpointSlices and Pods; `services` (namespace and name) have changed slices, and `pods` has the changed Pods. For
    an object in two scopes the first wins.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.changed: set[Key] = set()
        self.services: set[tuple[str, str]] = set()
        self.pods: set[Key] = set()
        self._scopes: dict[Scope, dict[Key, StoredObject]] = {}

    def replace(self, scope: Scope, objects: Mapping[Key, StoredObject]) -> None:
        """Set the objects of a scope as they were listed; others of it are removed."""
        held = self._scopes.get(scope, {})
        fresh = {
            key: held[key] if key in held and is_older(each.resource_version, held[key].resource_version) else each
            for key, each in objects.items()
        }
        self._scopes[scope] = fresh
        for key in {**held, **fresh}:
            self._compare(key, held.get(key), fresh.get(key))

    def lacks(self, scope: Scope, objects: Mapping[Key, StoredObject]) -> bool:
        """Whether an object of a scope is not among these."""
        return not self._scopes.get(scope, {}).keys() <= objects.keys()

    def put(self, scope: Scope, key: Key, fresh: StoredObject) -> None:
        """Store an added or changed object."""
        objects = self._scopes.setdefault(scope, {})
        held = objects.get(key)
        if held is not None and is_older(fresh.resource_version, held.resource_version):
            return
        objects[key] = fresh
        self._compare(key, held, fresh)

    def remove(self, scope: Scope, key: Key, version: str) -> None:
        """Remove an object that was deleted in this version."""
        objects = self._scopes.get(scope, {})
        held = objects.get(key)
        if held is not None and not is_older(version, held.resource_version):
            del objects[key]
            self._compare(key, held, None)

    def forget(self, scope: Scope) -> None:
        """Remove all objects of an unused scope."""
        for key, held in self._scopes.pop(scope, {}).items():
            self._compare(key, held, None)

    def _compare(self, key: Key, was: StoredObject | None, now: StoredObject | None) -> None:
        """Count a change."""
        if was is not None and now is not None and was.manifest == now.manifest:
            return
        self.revision += 1
        if key[:2] == SLICES:
            self.services.update((key[2], each.service) for each in (was, now) if each is not None)
        else:
            (self.pods if key[:2] == ALL_PODS[:2] else self.changed).add(key)

    def objects(self) -> Iterator[tuple[Key, StoredObject]]:
        """Every object once."""
        seen: set[Key] = set()
        for objects in self._scopes.values():
            for key, each in objects.items():
                if key not in seen:
                    seen.add(key)
                    yield key, each

    def find(self, key: Key) -> StoredObject | None:
        return next((objects[key] for objects in self._scopes.values() if key in objects), None)


def lines(objects: Iterable[StoredObject]) -> bytes:
    """Manifests as JSON, one in a line, for `config.reading.cluster_objects`."""
    return b"\n".join(each.manifest for each in objects)
