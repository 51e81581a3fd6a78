"""`identity.certificate` of EgressPolicies: the CAs of identifying client certificates, revocation (RFC 5280), and
accepted SPIFFE trust domains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from egressproxy.config.compile.certificates import common_ca
from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.references import References
from egressproxy.config.resources.identity import CertificateClient, CertificateIdentity
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.ir.gateway import ClientCertificatesIR, TlsMode
from egressproxy.ir.identity import CertificateClientIR

_FIELD: Final = "identity.certificate.caCertificateRefs"
_ANY_WILL_DO: Final = (
    f"{_FIELD} does nothing here: with mode AllowInsecureFallback of spec.tls.frontend no certificate says who a "
    "client is; write AllowValidOnly, or leave validation out"
)


def add_certificate_rules(
    listeners: Iterable[ListenerPlan],
    policies_of: Callable[[ListenerPlan], Iterable[EgressPolicy]],
    references: References,
) -> None:
    """Add the policies' `identity.certificate` to all listeners of a port of a Gateway, since a client sends its
    certificate before a listener is chosen. An unreadable list closes them.
    """
    by_port: dict[int, list[ListenerPlan]] = defaultdict(list)
    for listener in listeners:
        by_port[listener.listener.port].append(listener)
    for together in by_port.values():
        problems: dict[str, None] = {}
        policies = dict.fromkeys(policy for listener in together for policy in policies_of(listener))
        certificates = [
            (policy, policy.spec.identity.certificate)
            for policy in policies
            if policy.spec.identity is not None and policy.spec.identity.certificate is not None
        ]
        refs = ((policy, ref) for policy, each in certificates for ref in each.crl_refs)
        pem = references.crls(refs, "identity.certificate.crlRefs", problems)
        ca_pem = _authorities(certificates, references, problems)
        domains = _trust_domains(certificates, problems)
        known = _known(each for _, each in certificates)
        asks_itself = any(each.ca_certificate_refs for _, each in certificates)
        for listener in together:
            tls = listener.tls
            if tls is None or tls.mode is not TlsMode.TERMINATE or not (tls.clients or asks_itself):
                continue
            if problems:
                listener.refuse("Accepted", "UnsupportedValue", "; ".join(problems))
            elif pem or domains or known or ca_pem:
                asked = tls.clients or ClientCertificatesIR("")
                if ca_pem and asked.takes_any:
                    listener.conditions.add_note("Accepted", _ANY_WILL_DO)
                clients = replace(asked, crl_pem=pem, trust_domains=domains, known=known, identity_ca_pem=ca_pem)
                listener.tls = replace(tls, clients=clients)


def _authorities(
    certificates: Iterable[tuple[EgressPolicy, CertificateIdentity]], references: References, problems: dict[str, None]
) -> str:
    """The CAs that all policies with CAs have in common, PEM; "" for none. `problems` gets the unreadable ones."""
    shared, named = "", []
    for policy, written in certificates:
        if not written.ca_certificate_refs:
            continue
        pem, unresolved = references.ca_bundles(policy, written.ca_certificate_refs)
        for each in unresolved:
            problems[f"{_FIELD} of {policy}: {each.with_hint}"] = None
        if problems:
            return ""
        named.append(str(policy))
        shared = common_ca(shared, pem)
        if not shared:
            names = " and ".join(named)
            problems[f"{_FIELD} of {names} have no CA in common, and this port is for both: list one in both"] = None
            return ""
    return shared


def _known(certificates: Iterable[CertificateIdentity]) -> tuple[CertificateClientIR, ...]:
    """The certificate clients that all policies with such clients have in common, in the order of the first."""
    lists = [[_client(client) for client in each.clients] for each in certificates if each.clients]
    return tuple(client for client in lists[0] if all(client in other for other in lists)) if lists else ()


def _client(written: CertificateClient) -> CertificateClientIR:
    kinds = {"subject": written.subject, "DNS": written.dns_name, "URI": written.uri, "email": written.email}
    kind, value = next((kind, value) for kind, value in kinds.items() if value is not None)
    return CertificateClientIR(kind, value, written.namespace, written.service_account)


def _trust_domains(
    certificates: Iterable[tuple[EgressPolicy, CertificateIdentity]], problems: dict[str, None]
) -> tuple[str, ...]:
    """The trust domains that all policies with trust domains have in common. The first is the gateway's own; a
    difference between the lists' first domains is added to `problems`.
    """
    lists = [(policy, each.trust_domains) for policy, each in certificates if each.trust_domains]
    if not lists:
        return ()
    policy, first = lists[0]
    for other, listed in lists[1:]:
        if listed[0] != first[0]:
            names = f"{policy} ({first[0]}) and of {other} ({listed[0]})"
            problems[
                f"identity.certificate.trustDomains of {names} begin with different domains, and this port is for both:"
                " the first is the gateway's own, so list the same one first"
            ] = None
    return tuple(domain for domain in first if all(domain in listed for _, listed in lists))
