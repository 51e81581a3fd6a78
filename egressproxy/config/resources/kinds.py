"""Which kinds are understood: from apiVersion and kind to the class that reads it."""

from __future__ import annotations

from egressproxy.config.resources.backend import (
    Backend,
    BackendTlsPolicy,
    WorkingGroupBackend,
    XBackend,
    XBackendDestination,
)
from egressproxy.config.resources.core import ConfigMap, EndpointSlice, Namespace, Pod, Secret, Service, ServiceAccount
from egressproxy.config.resources.gateway import Gateway, GatewayClass, ListenerSet, ReferenceGrant
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy, PayloadProcessingPipeline
from egressproxy.config.resources.routes import GrpcRoute, HttpRoute, TcpRoute, TlsRoute

__all__ = ["BY_API_VERSION", "KINDS", "kind_class"]

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
    XBackendDestination,
    Backend,
    EgressPolicy,
    PayloadProcessingPipeline,
    Namespace,
    Secret,
    ConfigMap,
    Service,
    ServiceAccount,
    Pod,
    EndpointSlice,
)

#: (apiVersion, kind) -> class.
BY_API_VERSION: dict[tuple[str, str], type[Resource]] = {
    (f"{kind.GROUP}/{version}" if kind.GROUP else version, kind.KIND): kind
    for kind in KINDS
    for version in kind.VERSIONS
}


def kind_class(api_version: str, kind: str) -> type[Resource] | None:
    """The class that reads this kind, or None."""
    return BY_API_VERSION.get((api_version, kind))
