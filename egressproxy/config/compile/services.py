"""Core Services as backends: their EndpointSlices, and the BackendTLSPolicy that says how to speak TLS to them.

Sources: discovery.k8s.io/v1 EndpointSlice; Gateway API v1 BackendRef, BackendTLSPolicy; KEP-3726 (appProtocol).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from ipaddress import ip_address

from egressproxy.config.compile.contract import Key, Status, age_of
from egressproxy.config.compile.references import References, Unresolved
from egressproxy.config.compile.status import Ancestors
from egressproxy.config.load import ResourceSet
from egressproxy.config.resources.backend import BackendTlsPolicy, BackendTlsValidation
from egressproxy.config.resources.core import EndpointSlice, Service, ServicePort
from egressproxy.config.resources.meta import Resource
from egressproxy.spec.backend import BackendSpec, BackendTlsSpec, Destination, Endpoint, Protocol

__all__ = ["Services", "validation_tls"]

_APP_PROTOCOLS = {
    None: Protocol.HTTP,
    "http": Protocol.HTTP11,
    "kubernetes.io/ws": Protocol.HTTP11,
    "kubernetes.io/h2c": Protocol.H2C,
    "https": Protocol.HTTP,
    "kubernetes.io/wss": Protocol.HTTP11,
    "tcp": Protocol.TCP,
}
_NEEDS_TLS = frozenset({"https", "kubernetes.io/wss"})


class Services:
    """Every Service with its endpoints and its TLS."""

    __slots__ = ("_by_service", "_by_target", "_policies", "_references", "_resources")

    def __init__(self, resources: ResourceSet, references: References) -> None:
        self._resources = resources
        self._references = references
        self._by_service: dict[tuple[str, str], list[EndpointSlice]] = defaultdict(list)
        for piece in resources.of(EndpointSlice):
            if piece.service:
                self._by_service[piece.namespace, piece.service].append(piece)
        self._policies = sorted(resources.of(BackendTlsPolicy), key=age_of)
        #: (namespace, service, port name or "") -> the policy that holds there: the oldest.
        self._by_target: dict[tuple[str, str, str], BackendTlsPolicy] = {}
        for policy in self._policies:
            for ref in policy.spec.target_refs:
                if (ref.group, ref.kind) == ("", "Service"):
                    self._by_target.setdefault((policy.namespace, ref.name, ref.section_name or ""), policy)

    def backend(self, namespace: str, name: str, port: int) -> BackendSpec:
        """The Service as a backend. Raises Unresolved."""
        service = self._resources.get("", "Service", namespace, name)
        if not isinstance(service, Service):
            raise Unresolved("BackendNotFound", f"Service {namespace}/{name} does not exist")
        if service.spec.type == "ExternalName":
            remedy = "use a Backend with a destination of type Fqdn"
            raise Unresolved("UnsupportedValue", f"{service} is of type ExternalName, which is not supported: {remedy}")
        entry = next((p for p in service.spec.ports if p.port == port), None)
        if entry is None:
            raise Unresolved("BackendNotFound", f"{service} has no port {port}")
        if entry.protocol != "TCP" or entry.app_protocol not in _APP_PROTOCOLS:
            said = entry.app_protocol or entry.protocol
            raise Unresolved("UnsupportedProtocol", f"port {port} of {service} speaks {said}, which is not supported")
        tls = self._tls(service, entry)
        if tls is None and entry.app_protocol in _NEEDS_TLS:
            message = (
                f"port {port} of {service} speaks {entry.app_protocol}, and no BackendTLSPolicy says how to verify it"
            )
            raise Unresolved("UnsupportedProtocol", message)
        return BackendSpec(
            name=service.full_name,
            destination=Destination.SERVICE,
            port=port,
            endpoints=self._endpoints(service, entry),
            protocol=_APP_PROTOCOLS[entry.app_protocol],
            tls=tls,
        )

    def policy_statuses(self, generation: Callable[[Key], int]) -> dict[Key, Status]:
        """The status of every BackendTLSPolicy, per target."""
        statuses: dict[Key, Status] = {}
        for policy in self._policies:
            ancestors = Ancestors(generation(policy.key))
            for ref in policy.spec.target_refs:
                written = ref.model_dump(mode="json", by_alias=True, exclude_none=True)
                conditions = ancestors.add({**written, "namespace": policy.namespace})
                conditions.set("Accepted", True, "Accepted", "the policy is in force")
                conditions.set("ResolvedRefs", True, "ResolvedRefs", "")
                winner = self._by_target.get((policy.namespace, ref.name, ref.section_name or ""))
                if (ref.group, ref.kind) != ("", "Service"):
                    message = f"only Services can be targets, not {ref.kind}: a Backend says tls itself"
                    conditions.set("Accepted", False, "TargetNotFound", message)
                elif self._resources.get("", "Service", policy.namespace, ref.name) is None:
                    conditions.set("Accepted", False, "TargetNotFound", f"Service {ref.name} does not exist")
                elif winner is not policy:
                    conditions.set("Accepted", False, "Conflicted", f"{winner} is older and has the same target")
                try:
                    validation_tls(policy, policy.spec.validation, self._references)
                except Unresolved as unresolved:
                    reason = "InvalidKind" if unresolved.reason == "InvalidKind" else "InvalidCACertificateRef"
                    conditions.set("ResolvedRefs", False, reason, unresolved.message)
                    if conditions.holds("Accepted"):
                        conditions.set("Accepted", False, "NoValidCACertificate", unresolved.message)
                if policy.spec.options:
                    conditions.add_note("Accepted", "options are not supported and do nothing.")
            statuses[policy.key] = ancestors.to_status()
        return statuses

    def _tls(self, service: Service, entry: ServicePort) -> BackendTlsSpec | None:
        place = (service.namespace, service.name)
        policy = self._by_target.get((*place, entry.name)) if entry.name else None
        policy = policy or self._by_target.get((*place, ""))
        if policy is None:
            return None
        try:
            return validation_tls(policy, policy.spec.validation, self._references)
        except Unresolved as unresolved:
            # Without the policy the Service would be spoken to in plain text: it is not used at all.
            raise Unresolved(
                "InvalidBackend", f"{service} cannot be verified: {policy}: {unresolved.message}"
            ) from None

    def _endpoints(self, service: Service, entry: ServicePort) -> tuple[Endpoint, ...]:
        """The ready addresses, with the port that each slice has under the Service port's name."""
        found: dict[Endpoint, None] = {}
        for piece in self._by_service.get((service.namespace, service.name), ()):
            port = next((p.port for p in piece.ports if p.name == entry.name and p.protocol == "TCP"), None)
            if port is None or piece.address_type == "FQDN":
                continue
            for endpoint in piece.endpoints:
                if endpoint.conditions.ready is False:
                    continue
                for address in endpoint.addresses[:1]:  # further ones are unused (discovery.k8s.io/v1)
                    try:
                        found[Endpoint(ip_address(address), port)] = None
                    except ValueError:
                        continue
        return tuple(sorted(found, key=lambda e: (e.address.version, int(e.address), e.port)))


def validation_tls(source: Resource, validation: BackendTlsValidation, references: References) -> BackendTlsSpec:
    """How a BackendTLSPolicy (or XBackend) wants the server verified. Raises Unresolved."""
    if any(name.type != "Hostname" for name in validation.subject_alt_names):
        raise Unresolved("UnsupportedValue", "subjectAltNames of type URI are not supported")
    bundles = [references.ca_bundle(source, ref) for ref in validation.ca_certificate_refs]
    return BackendTlsSpec(
        sni=validation.hostname or "",
        ca_pem="".join(bundles),
        names=tuple(name.hostname.lower() for name in validation.subject_alt_names if name.hostname),
    )
