"""Revocation lists for the certificates of clients: `identity.certificate.crlRefs` of EgressPolicies (RFC 5280)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.references import References
from egressproxy.config.resources.policy import EgressPolicy

__all__ = ["add_revocations"]


def add_revocations(
    listeners: Iterable[ListenerPlan],
    policies_of: Callable[[ListenerPlan], Iterable[EgressPolicy]],
    references: References,
) -> None:
    """EgressPolicy `identity.certificate.crlRefs`: they hold for all listeners of a port of a Gateway, since a client
    has shown its certificate before one of them is chosen. A list that cannot be read closes them.
    """
    by_port: dict[int, list[ListenerPlan]] = defaultdict(list)
    for listener in listeners:
        by_port[listener.listener.port].append(listener)
    for together in by_port.values():
        problems: dict[str, None] = {}
        policies = dict.fromkeys(policy for listener in together for policy in policies_of(listener))
        certificates = ((policy, policy.spec.identity.certificate) for policy in policies if policy.spec.identity)
        refs = ((policy, ref) for policy, each in certificates if each is not None for ref in each.crl_refs)
        pem = references.crls(refs, "identity.certificate.crlRefs", problems)
        for listener in together:
            if listener.tls is None or listener.tls.clients is None:
                continue
            if problems:
                listener.refuse("Accepted", "UnsupportedValue", "; ".join(problems))
            elif pem:
                clients = replace(listener.tls.clients, crl_pem=pem)
                listener.tls = replace(listener.tls, clients=clients)
