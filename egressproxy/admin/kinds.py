"""The kinds that the admin API serves, as Kubernetes names them. Source: the CRDs of Gateway API, core Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["KINDS", "ServedKind", "group_versions", "served"]

_GATEWAY: Final = "gateway.networking.k8s.io"
_OURS: Final = "egressproxy.io"


@dataclass(frozen=True, slots=True)
class ServedKind:
    """`versions`: the preferred one first; the core group is ""."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    is_namespaced: bool = True
    short_names: tuple[str, ...] = ()

    @property
    def singular(self) -> str:
        return self.kind.lower()


KINDS: Final = (
    ServedKind("", "Namespace", "namespaces", ("v1",), is_namespaced=False, short_names=("ns",)),
    ServedKind("", "Secret", "secrets", ("v1",)),
    ServedKind("", "ConfigMap", "configmaps", ("v1",), short_names=("cm",)),
    ServedKind("", "Service", "services", ("v1",), short_names=("svc",)),
    ServedKind("", "ServiceAccount", "serviceaccounts", ("v1",), short_names=("sa",)),
    ServedKind("", "Pod", "pods", ("v1",), short_names=("po",)),
    ServedKind("discovery.k8s.io", "EndpointSlice", "endpointslices", ("v1",)),
    ServedKind(_GATEWAY, "GatewayClass", "gatewayclasses", ("v1", "v1beta1"), is_namespaced=False, short_names=("gc",)),
    ServedKind(_GATEWAY, "Gateway", "gateways", ("v1", "v1beta1"), short_names=("gtw",)),
    ServedKind(_GATEWAY, "ListenerSet", "listenersets", ("v1",), short_names=("lset",)),
    ServedKind(_GATEWAY, "HTTPRoute", "httproutes", ("v1", "v1beta1")),
    ServedKind(_GATEWAY, "GRPCRoute", "grpcroutes", ("v1", "v1alpha2")),
    ServedKind(_GATEWAY, "TLSRoute", "tlsroutes", ("v1", "v1alpha3", "v1alpha2")),
    ServedKind(_GATEWAY, "TCPRoute", "tcproutes", ("v1", "v1alpha2")),
    ServedKind(_GATEWAY, "BackendTLSPolicy", "backendtlspolicies", ("v1", "v1alpha3"), short_names=("btlspolicy",)),
    ServedKind(_GATEWAY, "ReferenceGrant", "referencegrants", ("v1", "v1beta1"), short_names=("refgrant",)),
    ServedKind(_GATEWAY, "Backend", "backends", ("v1alpha1",)),
    ServedKind("gateway.networking.x-k8s.io", "XBackend", "xbackends", ("v1alpha1",)),
    ServedKind("ainetworking.prototype.x-k8s.io", "XBackendDestination", "xbackenddestinations", ("v0alpha0",)),
    ServedKind(_OURS, "Backend", "backends", ("v1alpha1",)),
    ServedKind(_OURS, "EgressPolicy", "egresspolicies", ("v1alpha1",)),
    ServedKind(_OURS, "PayloadProcessingPipeline", "payloadprocessingpipelines", ("v1alpha1",)),
)

_BY_PLURAL: Final = {(kind.group, version, kind.plural): kind for kind in KINDS for version in kind.versions}


def served(group: str, version: str, plural: str) -> ServedKind | None:
    """The kind behind a path, or None."""
    return _BY_PLURAL.get((group, version, plural))


def group_versions() -> dict[str, list[str]]:
    """Every group (the core group left out) and its versions, in the order of Kubernetes' version priority."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        if kind.group:
            versions = found.setdefault(kind.group, [])
            versions += (version for version in kind.versions if version not in versions)
    return {group: sorted(versions, key=_priority) for group, versions in found.items()}


def _priority(version: str) -> tuple[int, list[int]]:
    """v1 before v1beta1 before v1alpha3 before v1alpha2 (Kubernetes API versioning, version priority)."""
    stability = 2 if "alpha" in version else 1 if "beta" in version else 0
    numbers = [int(part) for part in version.replace("alpha", " ").replace("beta", " ").lstrip("v").split()]
    return stability, [-number for number in numbers]
