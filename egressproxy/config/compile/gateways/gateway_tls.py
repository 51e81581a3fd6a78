"""`spec.tls` of a Gateway. Source: Gateway API v1 GatewayTLSConfig; GEP-91 (frontend), GEP-3155 (backend)."""

from __future__ import annotations

from dataclasses import replace

from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.gateway import FrontendValidation, Gateway
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.gateway import CertificateIR
from egressproxy.model.certificate import CertificateUse


def frontend_validation(gateway: Gateway, port: int) -> FrontendValidation | None:
    """The validation of clients of this port: its `perPort` entry, else the default, else None."""
    tls = gateway.spec.tls
    if tls is None or tls.frontend is None:
        return None
    of_port = (entry.tls for entry in tls.frontend.per_port if entry.port == port)
    return next(of_port, tls.frontend.default).validation


def set_frontend_conditions(gateway: Gateway, conditions: Conditions) -> None:
    """State `InsecureFrontendValidationMode` if clients are accepted with an invalid certificate, or without one."""
    tls = gateway.spec.tls
    if tls is None or tls.frontend is None:
        return
    entries = [("the default", tls.frontend.default), *((f"port {e.port}", e.tls) for e in tls.frontend.per_port)]
    open_to_all = [
        where
        for where, entry in entries
        if entry.validation is not None and entry.validation.mode == "AllowInsecureFallback"
    ]
    if open_to_all:
        message = f"clients are let in with any certificate, or none: AllowInsecureFallback of {', '.join(open_to_all)}"
        conditions.set("InsecureFrontendValidationMode", True, "ConfigurationChanged", message)


class ClientCertificates:
    """The client certificates of Gateways (`tls.backend.clientCertificateRef`), by the Gateway as text."""

    __slots__ = ("_by_gateway", "_shown")

    def __init__(self, resources: ResourceSet, references: References) -> None:
        self._by_gateway: dict[str, CertificateIR | UnresolvedRef] = {}
        self._shown: dict[tuple[BackendIR, str], BackendIR] = {}
        for gateway in resources.of(Gateway):
            tls = gateway.spec.tls
            if tls is None or tls.backend is None or tls.backend.client_certificate_ref is None:
                continue
            try:
                self._by_gateway[str(gateway)] = references.key_pair(
                    gateway, tls.backend.client_certificate_ref, CertificateUse.CLIENT
                )
            except UnresolvedRef as unresolved:
                self._by_gateway[str(gateway)] = unresolved

    def set_condition(self, gateway: Gateway, conditions: Conditions) -> None:
        """State `ResolvedRefs` of a Gateway with a client certificate. A bad one does not refuse the Gateway."""
        found = self._by_gateway.get(str(gateway))
        if isinstance(found, UnresolvedRef):
            reason = found.reason if found.reason == "RefNotPermitted" else "InvalidClientCertificateRef"
            message = f"{found.with_hint}; backends with TLS are answered with 500 until it is there"
            conditions.set("ResolvedRefs", False, reason, message)
        elif found is not None:
            conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")

    def shown_to(self, backend: BackendIR, gateway: str) -> BackendIR:
        """The backend for routes of this Gateway: with the Gateway's certificate, unless it has its own.

        A Dynamic backend gets no certificate, since the client chooses the destination. Raises UnresolvedRef for an
        unusable certificate: a backend may treat a client without one differently.
        """
        tls, found = backend.tls, self._by_gateway.get(gateway)
        if found is None or tls is None or tls.client_certificate or backend.destination is Destination.DYNAMIC:
            return backend
        if isinstance(found, UnresolvedRef):
            message = f"the client certificate of {gateway} cannot be used: {found.message}"
            raise UnresolvedRef("InvalidClientCertificateRef", message)
        made = self._shown.get((backend, gateway))
        if made is None:
            shown = replace(
                tls, client_certificate=found.chain_pem, client_key=found.key_pem, client_source=f"Secret {found.name}"
            )
            made = self._shown[backend, gateway] = replace(backend, tls=shown)
        return made
