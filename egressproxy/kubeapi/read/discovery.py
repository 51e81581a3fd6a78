"""Which groups, versions and resources there are. Source: Kubernetes API concepts, Discovery; apidiscovery v2."""

from __future__ import annotations

from typing import Any, Final

from egressproxy.config.served_kinds import CONFIGURED, ServedKind
from egressproxy.kubeapi.kinds import KINDS, group_versions

#: Content types of aggregated discovery; what they hold is the same in both.
AGGREGATED: Final = tuple(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" for version in ("v2", "v2beta1")
)
_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "patch", "update")


def legacy_versions(address: str) -> dict[str, Any]:
    """The document at /api. `address` is host:port of the server."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def group_list() -> dict[str, Any]:
    """The document at /apis: the groups, without the core group."""
    groups = [_group(name, versions) for name, versions in group_versions().items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def one_group(name: str) -> dict[str, Any] | None:
    """The document at /apis/GROUP; None where there is no such group."""
    versions = group_versions().get(name)
    return None if versions is None else {"apiVersion": "v1", **_group(name, versions)}


def resource_list(group: str, version: str, is_writable: bool) -> dict[str, Any] | None:
    """The document at /api/v1 or /apis/GROUP/VERSION; None where there is no such version."""
    kinds = _kinds(group, version)
    if not kinds:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version(version),
        "resources": [_resource(kind, is_writable) for kind in kinds],
    }


def aggregated_type(accept: str) -> str | None:
    """The content type of aggregated discovery that an Accept field names first; None where it names none."""
    return next((each for each in accept.replace(" ", "").split(",") if each in AGGREGATED), None)


def aggregated(is_core: bool, content_type: str, is_writable: bool) -> dict[str, Any]:
    """The document at /api (`is_core`) or /apis with all resources, for a client that accepts one of AGGREGATED."""
    groups = {"": ["v1"]} if is_core else group_versions()
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{'v2beta1' if 'v2beta1' in content_type else 'v2'}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {
                        "version": version,
                        "freshness": "Current",
                        "resources": [_aggregated(kind, version, is_writable) for kind in _kinds(group, version)],
                    }
                    for version in versions
                ],
            }
            for group, versions in groups.items()
        ],
    }


def _kinds(group: str, version: str) -> list[ServedKind]:
    return [kind for kind in KINDS if kind.group == group and version in kind.versions]


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    offered = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "name": name, "versions": offered, "preferredVersion": offered[0]}


def _resource(kind: ServedKind, is_writable: bool) -> dict[str, Any]:
    return {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.is_namespaced,
        "kind": kind.kind,
        **_common(kind, is_writable),
    }


def _aggregated(kind: ServedKind, version: str, is_writable: bool) -> dict[str, Any]:
    return {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": version, "kind": kind.kind},
        "scope": "Namespaced" if kind.is_namespaced else "Cluster",
        "singularResource": kind.singular,
        **_common(kind, is_writable),
    }


def _common(kind: ServedKind, is_writable: bool) -> dict[str, list[str]]:
    """What both forms say alike; lists that are empty are left out."""
    verbs = sorted((*_READ, *_WRITE)) if is_writable and kind in CONFIGURED else _READ
    lists = {"verbs": verbs, "shortNames": kind.short_names, "categories": kind.categories}
    return {name: list(values) for name, values in lists.items() if values}
