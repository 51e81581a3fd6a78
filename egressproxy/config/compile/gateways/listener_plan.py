"""ListenerPlan: one listener during compilation: protocol, certificates, and allowed routes.

A listener with an unsupported part is not programmed: a listener without its client certificates, for example, would
admit clients that it should refuse. Source: Gateway API v1 Listener.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from egressproxy.config.compile.certificates import covers
from egressproxy.config.compile.gateways.gateway_tls import frontend_validation
from egressproxy.config.compile.interface import Status
from egressproxy.config.compile.references import References, resolve_each
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.resources.gateway import Gateway, Listener, ListenerSet, ListenerTls
from egressproxy.config.resources.meta import GATEWAY_GROUP
from egressproxy.ir.gateway import (
    CertificateIR,
    ClientCertificatesIR,
    ListenerProtocol,
    ListenerTlsIR,
    PreRoutingIR,
    TlsMode,
)
from egressproxy.model.certificate import CertificateState, CertificateUse

#: Protocol -> the default kinds of routes.
_KINDS = {
    ListenerProtocol.HTTP: ("HTTPRoute", "GRPCRoute"),
    ListenerProtocol.HTTPS: ("HTTPRoute", "GRPCRoute"),
    ListenerProtocol.TLS: ("TLSRoute",),
    ListenerProtocol.TCP: ("TCPRoute",),
    ListenerProtocol.FORWARD_PROXY: ("HTTPRoute", "TLSRoute"),
    ListenerProtocol.SOCKS5: ("HTTPRoute", "TLSRoute"),
    ListenerProtocol.TRANSPARENT: ("HTTPRoute", "TLSRoute"),
    ListenerProtocol.DNS: ("HTTPRoute", "TLSRoute"),
}
#: Gateway API's CRD allows no hyphen after the slash.
_SPELLINGS = {"egressproxy.io/forwardproxy": "egressproxy.io/forward-proxy"}
#: Reasons that `Programmed` shares with the more specific condition; otherwise its reason is "Invalid".
_PROGRAMMED_REASONS = frozenset({"HostnameConflict", "ProtocolConflict", "PortUnavailable"})

#: Reasons for certificates outside of their validity.
OUT_OF_TIME = {
    CertificateState.EXPIRED: "CertificateExpired",
    CertificateState.NOT_YET_VALID: "CertificateNotYetValid",
}

#: The reasons for unusable CA certificates, in Gateway API's words for listeners.
_CA_REASONS = {"RefNotPermitted": "RefNotPermitted", "InvalidKind": "InvalidCACertificateKind"}


@dataclass(slots=True, eq=False)
class ListenerPlan:
    """One listener during compilation. `owner` is the Gateway, or the ListenerSet that added it.

    `protocol` is None if unsupported. `kinds` may attach; `attached` counts the attached routes. `problem` is why the
    listener is not programmed, "" if it is; `reason` is the reason of the condition `Programmed`.
    """

    gateway: Gateway
    owner: Gateway | ListenerSet
    listener: Listener
    conditions: Conditions
    protocol: ListenerProtocol | None = None
    kinds: tuple[str, ...] = ()
    tls: ListenerTlsIR | None = None
    attached: int = 0
    problem: str = ""
    reason: str = "Invalid"
    pre_routing: PreRoutingIR | None = None

    @property
    def name(self) -> str:
        """The name in logs: the section name, with the ListenerSet's name as prefix if there is one."""
        return self.listener.name if self.owner is self.gateway else f"{self.owner.full_name}/{self.listener.name}"

    @property
    def hostname(self) -> str:
        """The hostname or `*.suffix`, in lower case; "" for every host."""
        return self.listener.hostname or ""

    @property
    def passes_tls(self) -> bool:
        return self.protocol is ListenerProtocol.TLS and self.tls is not None and self.tls.mode is TlsMode.PASSTHROUGH

    def refuse(self, condition: str, reason: str, message: str) -> None:
        """Do not serve the listener, for the reason in the condition; the first reason stays in `Programmed`."""
        self.conditions.set(condition, condition == "Conflicted", reason, message)
        self.leave_out(reason if reason in _PROGRAMMED_REASONS else "Invalid", message)

    def leave_out(self, reason: str, message: str) -> None:
        """Do not serve the listener, for a fault of its Gateway."""
        if not self.problem:
            self.problem, self.reason = message, reason

    def to_status(self) -> Status:
        """The entry in `status.listeners` (Gateway API v1 ListenerStatus). Call it after `close`."""
        return {
            "name": self.listener.name,
            "attachedRoutes": self.attached,
            "supportedKinds": [{"group": GATEWAY_GROUP, "kind": kind} for kind in self.kinds],
            "conditions": self.conditions.to_list(),
        }

    def close(self) -> None:
        """State `Programmed`, once everything about the listener and its Gateway is known."""
        if self.problem:
            self.conditions.set("Programmed", False, self.reason, self.problem)
        else:
            self.conditions.set("Programmed", True, "Programmed", "the listener is served")


def plan_listener(
    gateway: Gateway, owner: Gateway | ListenerSet, listener: Listener, references: References, generation: int
) -> ListenerPlan:
    """Plan one listener, without the others of its port. `owner` is the Gateway, or the ListenerSet that adds it."""
    plan = ListenerPlan(gateway, owner, listener, Conditions(generation))
    plan.conditions.set("Accepted", True, "Accepted", "the listener is valid")
    plan.conditions.set("Conflicted", False, "NoConflicts", "no other listener is in its way")
    plan.conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")
    try:
        plan.protocol = ListenerProtocol(_SPELLINGS.get(listener.protocol, listener.protocol))
    except ValueError:
        message = f"protocol {listener.protocol} is not supported; {_nearest_protocol(listener.protocol)}"
        plan.refuse("Accepted", "UnsupportedProtocol", message)
        return plan
    if plan.protocol.is_forward and listener.hostname:
        remedy = "say which destinations are allowed in an EgressPolicy"
        short = plan.protocol.value.rpartition("/")[2]
        plan.refuse("Accepted", "UnsupportedValue", f"a {short} listener has no hostname: {remedy}")
    has_unix = any(address.unix for address in gateway.spec.addresses)
    if plan.protocol in (ListenerProtocol.TRANSPARENT, ListenerProtocol.DNS) and has_unix:
        what = "nothing can be redirected to a Unix socket"
        if plan.protocol is ListenerProtocol.DNS:
            what = "no DNS client asks at a Unix socket"
        message = f"{what}: put this listener into a Gateway with IP addresses alone"
        plan.refuse("Accepted", "UnsupportedValue", message)
    if listener.http_filters and plan.protocol not in (ListenerProtocol.HTTP, ListenerProtocol.HTTPS):
        message = f"httpFilters need protocol HTTP or HTTPS, and this listener has {listener.protocol}: remove them"
        plan.refuse("Accepted", "InvalidHTTPListenerFilter", message)
    _find_kinds(plan)
    _find_tls(plan, references)
    return plan


def _nearest_protocol(written: str) -> str:
    known = {protocol.value.lower(): protocol.value for protocol in ListenerProtocol}
    short = {name.rpartition("/")[2]: value for name, value in known.items()}
    near = difflib.get_close_matches(written.lower(), {**known, **short}, 1, 0.6)
    return f"did you mean {({**known, **short})[near[0]]}?" if near else f"supported are {', '.join(known.values())}"


def have_hosts_in_common(first: str, second: str) -> bool:
    """Whether two hostnames (names, `*.suffix`, or "" for every host) overlap."""
    return not first or not second or first == second or _is_below(first, second) or _is_below(second, first)


def _is_below(hostname: str, wildcard: str) -> bool:
    """Whether every host of `hostname` (a name or `*.suffix`) is one of `*.suffix`."""
    return wildcard.startswith("*.") and hostname.removeprefix("*").endswith(wildcard[1:])


def _find_kinds(plan: ListenerPlan) -> None:
    """Set the kinds of routes that may attach: the protocol's, or the listed ones of these."""
    assert plan.protocol is not None
    served = _KINDS[plan.protocol]
    mode = plan.listener.tls.mode if plan.listener.tls else None
    if plan.protocol is ListenerProtocol.TLS and mode is TlsMode.TERMINATE:
        served = ("TLSRoute", "TCPRoute")
    refs = plan.listener.allowed_routes.kinds
    if not refs:
        plan.kinds = _KINDS[plan.protocol]
        return
    plan.kinds = tuple(dict.fromkeys(ref.kind for ref in refs if ref.group == GATEWAY_GROUP and ref.kind in served))
    unknown = [ref.kind for ref in refs if ref.group != GATEWAY_GROUP or ref.kind not in served]
    if unknown:
        message = f"routes of kind {', '.join(unknown)} cannot be served by protocol {plan.listener.protocol}"
        plan.conditions.set("ResolvedRefs", False, "InvalidRouteKinds", message)


def _find_tls(plan: ListenerPlan, references: References) -> None:
    tls = plan.listener.tls
    if tls is None:
        if plan.protocol is ListenerProtocol.HTTPS:
            plan.refuse("ResolvedRefs", "InvalidCertificateRef", "protocol HTTPS needs tls.certificateRefs")
        return
    if plan.protocol is ListenerProtocol.DNS:
        plan.refuse("Accepted", "UnsupportedValue", "a listener of DNS has no tls: DNS over TLS is not served")
        return
    if plan.protocol is not None and plan.protocol.is_circuit_level:
        message = f"a listener of protocol {plan.protocol.value} has no tls: TLS of its clients is for their servers"
        plan.refuse("Accepted", "UnsupportedValue", message)
        return
    if tls.mode is TlsMode.PASSTHROUGH:
        if plan.protocol is ListenerProtocol.FORWARD_PROXY:
            plan.refuse("Accepted", "UnsupportedValue", "a forward-proxy listener cannot pass TLS through")
        plan.tls = ListenerTlsIR(TlsMode.PASSTHROUGH)
        return
    read = partial(references.key_pair, plan.owner, use=CertificateUse.LISTENER)
    certificates, problems = resolve_each(read, tls.certificate_refs)
    is_forbidden = bool(problems) and problems[0].reason == "RefNotPermitted"
    reason = "RefNotPermitted" if is_forbidden else "InvalidCertificateRef"
    if problems:
        message = "; ".join(problem.with_hint for problem in problems)
        plan.conditions.set("ResolvedRefs", False, reason, message)
    if not certificates:
        message = problems[0].with_hint if problems else "tls.certificateRefs names no certificate"
        plan.refuse("ResolvedRefs", reason, message)
    _check_certificates(plan, tls, certificates, references)
    if tls.options:
        plan.conditions.add_note("Accepted", f"tls.options are not supported and do nothing: {', '.join(tls.options)}.")
    plan.tls = ListenerTlsIR(TlsMode.TERMINATE, tuple(certificates), _find_clients(plan, references))


def _check_certificates(
    plan: ListenerPlan, tls: ListenerTls, certificates: Iterable[CertificateIR], references: References
) -> None:
    """State the faults of usable certificates. The listener is served anyway: its references are resolved, and clients
    decide whether to trust the certificate.
    """
    known = {certificate.name for certificate in certificates}
    path = f"spec.listeners[{plan.owner.spec.listeners.index(plan.listener)}].tls.certificateRefs"
    now_s = time.time()
    reason, problems = "", []
    for index, ref in enumerate(tls.certificate_refs):
        if f"{references.namespace_of(plan.owner, ref)}/{ref.name}" not in known:
            continue
        validity = references.validity(plan.owner, ref, CertificateUse.LISTENER)
        found = OUT_OF_TIME.get(validity.state(now_s), "")
        if found:
            reason = reason or found
            problems.append(f"{path}[{index}]: {validity.sentence(now_s)}")
    if known and plan.hostname and not any(covers(one.names, plan.hostname) for one in certificates):
        names = list(dict.fromkeys(name for one in certificates for name in one.names))
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        reason = reason or "HostnameNotCovered"
        whose = f"{', '.join(sorted(known))} {'are' if len(known) > 1 else 'is'} for {shown or 'no DNS name'}"
        problems.append(f"{path}: no certificate is for hostname {plan.hostname}: {whose}")
    if problems:
        plan.conditions.set("egressproxy.io/InvalidCertificate", True, reason, "; ".join(problems))


def _find_clients(plan: ListenerPlan, references: References) -> ClientCertificatesIR | None:
    validation = frontend_validation(plan.gateway, plan.listener.port)
    if validation is None:
        return None
    pem, problems = references.ca_bundles(plan.gateway, validation.ca_certificate_refs)
    message = "; ".join(problem.with_hint for problem in problems)
    if problems:
        reason = _CA_REASONS.get(problems[0].reason, "InvalidCACertificateRef")
        plan.conditions.set("ResolvedRefs", False, reason, f"client certificates: {message}")
    if not pem:
        plan.refuse("Accepted", "NoValidCACertificate", f"no client certificate could be verified: {message}")
    return ClientCertificatesIR(pem, takes_any=validation.mode == "AllowInsecureFallback")
