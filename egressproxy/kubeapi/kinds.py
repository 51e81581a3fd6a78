"""The kinds that the admin API serves, and their names in a URL: those of the CRDs and of core Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind and its names. The core group is ""; every version of a kind has the same fields."""

    group: str
    kind: str
    versions: tuple[str, ...]
    short_names: tuple[str, ...] = ()
    is_namespaced: bool = True
    #: What it may be selected by beside metadata.name and metadata.namespace.
    fields: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """As a URL has it: `policies`, but `gateways`."""
        if self.singular.endswith("y") and self.singular[-2] not in "aeiou":
            return self.singular[:-1] + "ies"
        return self.singular + ("es" if self.singular.endswith("s") else "s")

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def resource(self) -> str:
        """As people and errors name it: `gateways.gateway.networking.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str) -> str:
        """As manifests of this version say it: `gateway.networking.k8s.io/v1`, `v1`."""
        return f"{self.group}/{version}" if self.group else version

    @property
    def categories(self) -> tuple[str, ...]:
        """`kubectl get gateway-api` lists all of these kinds; `get all` the workloads, as with any cluster."""
        if self.group.startswith("gateway.networking."):
            return ("gateway-api",)
        return ("all",) if self.kind in ("Service", "Pod") and not self.group else ()


GATEWAY: Final = "gateway.networking.k8s.io"
_PROTOTYPE: Final = "ainetworking.prototype.x-k8s.io"
#: Discovery lists it first: of two groups with a kind `Backend`, kubectl takes the first that it is told of.
OURS: Final = "egressproxy.io"

#: Those of `config.resources.kinds`, which the process that serves does not import.
CONFIGURED: Final = (
    ServedKind(GATEWAY, "GatewayClass", ("v1", "v1beta1"), ("gc",), is_namespaced=False),
    ServedKind(GATEWAY, "Gateway", ("v1", "v1beta1"), ("gtw", "gw")),
    ServedKind(GATEWAY, "ListenerSet", ("v1",), ("lset",)),
    ServedKind(GATEWAY, "HTTPRoute", ("v1", "v1beta1", "v1alpha2")),
    ServedKind(GATEWAY, "GRPCRoute", ("v1", "v1alpha2")),
    ServedKind(GATEWAY, "TLSRoute", ("v1", "v1alpha3", "v1alpha2")),
    ServedKind(GATEWAY, "TCPRoute", ("v1", "v1alpha2")),
    ServedKind(GATEWAY, "BackendTLSPolicy", ("v1", "v1alpha3"), ("btlspolicy",)),
    ServedKind(GATEWAY, "ReferenceGrant", ("v1", "v1beta1", "v1alpha2"), ("refgrant",)),
    ServedKind("gateway.networking.x-k8s.io", "XBackend", ("v1alpha1",)),
    ServedKind(GATEWAY, "Backend", ("v1alpha1",)),
    ServedKind(GATEWAY, "XBackendDestination", ("v1alpha1",)),
    ServedKind(_PROTOTYPE, "Backend", ("v0alpha0",)),
    ServedKind(_PROTOTYPE, "XBackendDestination", ("v0alpha0",)),
    ServedKind(OURS, "Backend", ("v1alpha1",)),
    ServedKind(OURS, "EgressPolicy", ("v1alpha1",)),
    ServedKind(OURS, "PayloadProcessingPipeline", ("v1alpha1",)),
    ServedKind(OURS, "FilterType", ("v1alpha1",), is_namespaced=False),
    ServedKind("", "Namespace", ("v1",), ("ns",), is_namespaced=False),
    ServedKind("", "Secret", ("v1",), fields=("type",)),
    ServedKind("", "ConfigMap", ("v1",), ("cm",)),
    ServedKind("", "Service", ("v1",), ("svc",)),
    ServedKind("", "ServiceAccount", ("v1",), ("sa",)),
    ServedKind("", "Pod", ("v1",), ("po",)),
    ServedKind("discovery.k8s.io", "EndpointSlice", ("v1",)),
    ServedKind("certificates.k8s.io", "ClusterTrustBundle", ("v1beta1", "v1alpha1"), is_namespaced=False),
)

_INVOLVED: Final = tuple(
    f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
)
_REGARDING: Final = tuple(name.replace("involvedObject", "regarding") for name in _INVOLVED)

#: (group, kind) of those that say where traffic goes, in the shapes of several drafts.
BACKENDS: Final = tuple(
    (kind.group, kind.kind) for kind in CONFIGURED if kind.kind in ("Backend", "XBackendDestination")
)

#: What nobody writes: made by the gateway while it runs. One Event is served in both groups.
OBSERVED: Final = (
    ServedKind("", "Event", ("v1",), ("ev",), fields=(*_INVOLVED, "reason", "type", "reportingComponent", "source")),
    ServedKind(
        "events.k8s.io", "Event", ("v1",), ("ev",), fields=(*_REGARDING, "reason", "type", "reportingController")
    ),
)

KINDS: Final = (*CONFIGURED, *OBSERVED)

_BY_PLURAL: Final = {(kind.group, version, kind.plural): kind for kind in KINDS for version in kind.versions}


def served(group: str, version: str, plural: str) -> ServedKind | None:
    """The kind with this group, version and plural name, as a URL has them; None where none is served."""
    return _BY_PLURAL.get((group, version, plural))


def group_versions() -> dict[str, list[str]]:
    """Every group but the core, ours first, with its versions, in the order of Kubernetes' version priority."""
    found: dict[str, list[str]] = {OURS: []}
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
