"""Which kinds are understood: from apiVersion and kind to the class that reads it."""

from __future__ import annotations

from egressproxy.config.resources.backend import (
    Backend,
    BackendTlsPolicy,
    GatewayBackend,
    GatewayXBackendDestination,
    PrototypeBackend,
    WorkingGroupBackend,
    XBackendDestination,
)
from egressproxy.config.resources.core import (
    ClusterTrustBundle,
    ConfigMap,
    EndpointSlice,
    Namespace,
    Pod,
    Secret,
    Service,
    ServiceAccount,
)
from egressproxy.config.resources.extension import PayloadProcessingPipeline
from egressproxy.config.resources.filter_type import FilterTypeDefinition
from egressproxy.config.resources.gateway import Gateway, GatewayClass, ListenerSet
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.reference_grant import ReferenceGrant
from egressproxy.config.resources.routes import GrpcRoute, HttpRoute, TcpRoute, TlsRoute
from egressproxy.config.resources.x_backend import XBackend

KINDS: tuple[type[Resource], ...] = (
    GatewayClass,
    Gateway,
    ListenerSet,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    TcpRoute,
    BackendTlsPolicy,
    ReferenceGrant,
    XBackend,
    WorkingGroupBackend,
    GatewayXBackendDestination,
    PrototypeBackend,
    XBackendDestination,
    Backend,
    EgressPolicy,
    PayloadProcessingPipeline,
    FilterTypeDefinition,
    Namespace,
    Secret,
    ConfigMap,
    Service,
    ServiceAccount,
    Pod,
    EndpointSlice,
    ClusterTrustBundle,
)

#: (apiVersion, kind) -> class.
BY_API_VERSION: dict[tuple[str, str], type[Resource]] = {
    (f"{kind.GROUP}/{version}" if kind.GROUP else version, kind.KIND): kind
    for kind in KINDS
    for version in kind.VERSIONS
}


def kind_class(api_version: str, kind: str, spec: object = None) -> type[Resource] | None:
    """The class that reads objects of this kind, or None; by `spec`, too, since one Backend has two shapes."""
    found = BY_API_VERSION.get((api_version, kind))
    if found is WorkingGroupBackend and isinstance(spec, dict) and "destination" not in spec and "type" in spec:
        return GatewayBackend
    return found
