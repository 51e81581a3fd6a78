"""The kinds of `config.resources.kinds` and their names in a URL, for processes that read no manifests."""

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
    #: Field selectors beside metadata.name and metadata.namespace.
    fields: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """The plural in URLs: `policies`, `gateways`."""
        if self.singular.endswith("y") and self.singular[-2] not in "aeiou":
            return self.singular[:-1] + "ies"
        return self.singular + ("es" if self.singular.endswith("s") else "s")

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def resource(self) -> str:
        """The full resource name: `gateways.gateway.networking.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str) -> str:
        """The `apiVersion` of a manifest: `gateway.networking.k8s.io/v1`, `v1`."""
        return f"{self.group}/{version}" if self.group else version

    @property
    def categories(self) -> tuple[str, ...]:
        """`kubectl get gateway-api` lists all of these kinds, `get egressproxy` ours, `get all` the workloads."""
        if self.group.startswith("gateway.networking."):
            return ("gateway-api",)
        if self.group == OURS:
            return ("egressproxy",)
        return ("all",) if self.kind in ("Service", "Pod") and not self.group else ()


GATEWAY: Final = "gateway.networking.k8s.io"
_PROTOTYPE: Final = "ainetworking.prototype.x-k8s.io"
AGENTIC: Final = "agentic.networking.x-k8s.io"
#: Our group, first in discovery: of two groups with a kind `Backend`, kubectl takes the first.
OURS: Final = "egressproxy.io"

#: Kinds of Kubernetes' experiments with targets that they never restrict: how connections and records are made.
HARMLESS_POLICIES: Final = frozenset({"XBackendTrafficPolicy", "XTelemetryPolicy"})


def is_experiment(group: str) -> bool:
    """Whether a group is one of Kubernetes' experiments, or the one that AGENTIC graduates to."""
    return f".{group}".endswith(".x-k8s.io") or group == AGENTIC.replace("x-", "")


#: An internal kind among the objects of a cluster: the kinds that are read. No API server has it.
READ_KINDS: Final = "ReadKinds"

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
    ServedKind("gateway.networking.x-k8s.io", "XTelemetryPolicy", ("v1alpha1",), ("xtelemetrypolicy",)),
    ServedKind("gateway.networking.x-k8s.io", "XBackend", ("v1alpha1",)),
    ServedKind(GATEWAY, "Backend", ("v1alpha1",)),
    ServedKind(GATEWAY, "XBackendDestination", ("v1alpha1",)),
    ServedKind(GATEWAY, "PayloadProcessingPipeline", ("v1alpha1",)),
    ServedKind(_PROTOTYPE, "Backend", ("v0alpha0",)),
    ServedKind(_PROTOTYPE, "XBackendDestination", ("v0alpha0",)),
    ServedKind(OURS, "Backend", ("v1alpha1",), ("egb",)),
    ServedKind(OURS, "EgressPolicy", ("v1alpha1",), ("egp",)),
    ServedKind(AGENTIC, "XAccessPolicy", ("v1alpha1", "v0alpha0")),
    ServedKind(OURS, "PayloadProcessingPipeline", ("v1alpha1",), ("ppp",)),
    ServedKind(OURS, "FilterType", ("v1alpha1",), ("egft",), is_namespaced=False),
    ServedKind("", "Namespace", ("v1",), ("ns",), is_namespaced=False),
    ServedKind("", "Secret", ("v1",), fields=("type",)),
    ServedKind("", "ConfigMap", ("v1",), ("cm",)),
    ServedKind("", "Service", ("v1",), ("svc",)),
    ServedKind("", "ServiceAccount", ("v1",), ("sa",)),
    ServedKind("", "Pod", ("v1",), ("po",)),
    ServedKind("discovery.k8s.io", "EndpointSlice", ("v1",)),
    ServedKind("certificates.k8s.io", "ClusterTrustBundle", ("v1beta1", "v1alpha1"), is_namespaced=False),
)


def lease_names(gateway_class: str) -> tuple[str, str]:
    """The two Leases of a GatewayClass: for cluster-scoped objects and those in its own namespace; and for the objects
    of all namespaces.
    """
    name = f"egressproxy-{gateway_class}"[:240]
    return name, f"{name}-namespaces"
