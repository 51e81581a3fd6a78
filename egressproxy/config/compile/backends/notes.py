"""What a Backend's status says beside whether it can be used: what became of it, what is insecure, what is idle."""

from __future__ import annotations

from egressproxy.config.compile.backends.kinds import AnyBackend
from egressproxy.config.compile.backends.published_forms import (
    destination_summary,
    notes,
    port_forms,
    port_option_errors,
)
from egressproxy.config.compile.dns_section import dns_notes
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.resources.backend import Backend, XBackend

__all__ = ["backend_notes", "insecure_reason", "invalid_options", "set_degraded", "summary"]


def summary(backend: AnyBackend) -> str:
    """What a Backend means, in whichever form it is written, for people."""
    if not isinstance(backend, XBackend):
        return destination_summary(backend.spec)
    spec = backend.spec
    if spec.external_hostname is None:
        return f"type {spec.type}, which is not served"
    tls = f"TLS {spec.tls.mode}" if spec.tls is not None and spec.tls.mode != "None" else "plain text"
    return f"{spec.external_hostname.hostname}:{spec.port.value} ({spec.protocol or 'HTTP'}, {tls})"


def invalid_options(backend: AnyBackend) -> str:
    """What its protocolOptions say that cannot be right; "" if all is well."""
    return "" if isinstance(backend, XBackend) else "; ".join(port_option_errors(backend.spec))


def set_degraded(conditions: Conditions, reason: str, message: str) -> None:
    """State `Degraded`, or add to it."""
    if conditions.says("Degraded"):
        conditions.add_note("Degraded", message)
    else:
        conditions.set("Degraded", True, reason, message)


def insecure_reason(backend: AnyBackend, has_requests: bool) -> str:
    """Why an external backend is not protected, or another one less than it seems; "" if all is well.

    `has_requests`: requests of ours go there, and not streams of others alone.
    """
    if isinstance(backend, XBackend):
        tls, protocol = backend.spec.tls, backend.spec.protocol
        is_plain = tls.mode == "None" and protocol != "TCP" if tls is not None else protocol == "H2C"
        return "requests go in plain text" if is_plain and has_requests else ""
    forms = port_forms(backend.spec)
    said = []
    is_plain = any(form.tls is not None and form.tls.mode == "None" and form.protocol != "TCP" for form in forms)
    if backend.spec.destination.type == "Fqdn" and is_plain and has_requests:
        said.append("requests go in plain text")
    if any(form.tls is not None and form.tls.is_unverified for form in forms):
        said.append("the server's certificate is not verified (insecureSkipVerify)")
    return "; ".join(said)


def backend_notes(backend: AnyBackend) -> list[str]:
    """Fields that are accepted and do nothing, or less than they seem to."""
    made: list[str] = []
    if not isinstance(backend, XBackend):
        made += notes(backend.spec)
        if isinstance(backend, Backend) and backend.spec.resolver is not None:
            made += dns_notes(backend.spec.resolver, "resolver")
            if backend.spec.destination.type in ("Ip", "Service"):
                made.append(f"resolver does nothing for type {backend.spec.destination.type}: no name is resolved.")
        if backend.spec.destination.type == "Dynamic" and len(backend.spec.destination.ports) > 1:
            made.append("a Dynamic destination takes the port from the request; of ports one entry counts.")
    return made
