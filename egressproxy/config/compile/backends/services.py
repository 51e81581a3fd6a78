"""Core Services as backends. Sources: EndpointSlice v1, Gateway API v1 BackendRef, KEP-3726, GEP-1911 (appProtocol)."""

from __future__ import annotations

from collections import defaultdict

from egressproxy.config.compile.backends.backend_tls import BackendTlsPolicies
from egressproxy.config.compile.references import UnresolvedRef
from egressproxy.config.reading.endpoint_slices import ready_endpoints
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import EndpointSlice, Service, ServicePort
from egressproxy.ir.backend import BackendIR, Destination, EndpointAddress, Protocol

#: In lower case: IANA's names are, and `HTTPS` is written in several ways.
_APP_PROTOCOLS = {
    "": Protocol.HTTP,
    "http": Protocol.HTTP11,
    "kubernetes.io/ws": Protocol.HTTP11,
    "kubernetes.io/h2c": Protocol.H2C,
    "https": Protocol.HTTP,
    "kubernetes.io/wss": Protocol.HTTP11,
    "tcp": Protocol.TCP,
}
_NEEDS_TLS = frozenset({"https", "kubernetes.io/wss"})


class Services:
    """All Services with endpoints and TLS."""

    __slots__ = ("_by_service", "_policies", "_resources")

    def __init__(self, resources: ResourceSet, policies: BackendTlsPolicies) -> None:
        self._resources = resources
        self._policies = policies
        self._by_service: dict[tuple[str, str], list[EndpointSlice]] = defaultdict(list)
        for piece in resources.of(EndpointSlice):
            if piece.service:
                self._by_service[piece.namespace, piece.service].append(piece)

    def backend(
        self, namespace: str, name: str, port: int, *, is_opaque: bool = False, is_secured: bool = False
    ) -> BackendIR:
        """The Service as a backend. `is_opaque`: for streams, whose protocol does not matter. `is_secured`: who leads
        there says its TLS. Raises UnresolvedRef.
        """
        service = self._resources.find(Service, namespace, name)
        if service is None:
            raise UnresolvedRef("BackendNotFound", f"Service {namespace}/{name} does not exist")
        if service.spec.type == "ExternalName":
            remedy = "use a Backend with a destination of type Fqdn"
            message = f"{service} is of type ExternalName, which is not supported: {remedy}"
            raise UnresolvedRef("UnsupportedValue", message)
        entry = next((p for p in service.spec.ports if p.port == port), None)
        if entry is None:
            listed = ", ".join(str(p.port) for p in service.spec.ports) or "none"
            raise UnresolvedRef("BackendNotFound", f"{service} has no port {port}", f"it has {listed}")
        app_protocol = "tcp" if is_opaque else (entry.app_protocol or "").lower()
        if entry.protocol != "TCP" or app_protocol not in _APP_PROTOCOLS:
            spoken = entry.app_protocol or entry.protocol
            message = f"port {port} of {service} speaks {spoken}, which is not supported"
            raise UnresolvedRef("UnsupportedProtocol", message)
        tls = self._policies.of_service(service, entry)
        if tls is None and not is_secured and app_protocol in _NEEDS_TLS:
            message = f"port {port} of {service} speaks {entry.app_protocol}, and no BackendTLSPolicy verifies it"
            raise UnresolvedRef("UnsupportedProtocol", message)
        return BackendIR(
            name=service.full_name,
            destination=Destination.SERVICE,
            port=port,
            endpoints=self._endpoints(service, entry),
            service=service.full_name,
            protocol=_APP_PROTOCOLS[app_protocol],
            tls=tls,
            kind="Service",
        )

    def has_slices(self, service: Service) -> bool:
        """Whether an EndpointSlice belongs to it, be it without an address."""
        return (service.namespace, service.name) in self._by_service

    def refuses_plain_text(self, namespace: str, name: str, port: int) -> bool:
        """Whether this port speaks TLS, and no policy says how to verify it."""
        service = self._resources.find(Service, namespace, name)
        entry = next((p for p in service.spec.ports if p.port == port), None) if service is not None else None
        if service is None or entry is None or (entry.app_protocol or "").lower() not in _NEEDS_TLS:
            return False
        return self._policies.of_service(service, entry) is None

    def _endpoints(self, service: Service, entry: ServicePort) -> tuple[EndpointAddress, ...]:
        slices = self._by_service.get((service.namespace, service.name), ())
        return ready_endpoints((piece.to_manifest() for piece in slices), entry.name)
