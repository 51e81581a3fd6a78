"""Revocation lists for the certificates of clients: `identity.certificate.crlRefs` of EgressPolicies (RFC 5280)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.references import References, Unresolved
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
        lists: dict[str, None] = {}
        problems: dict[str, None] = {}
        for policy in dict.fromkeys(policy for listener in together for policy in policies_of(listener)):
            identity = policy.spec.identity
            for ref in (
                identity.certificate.crl_refs if identity is not None and identity.certificate is not None else ()
            ):
                try:
                    lists[references.crl(policy, ref)] = None
                except Unresolved as unresolved:
                    problems[f"identity.certificate.crlRefs of {policy}: {unresolved.message}"] = None
        for listener in together:
            if listener.tls is None or listener.tls.clients is None:
                continue
            if problems:
                listener.refuse("Accepted", "UnsupportedValue", "; ".join(problems))
            elif lists:
                clients = replace(listener.tls.clients, crl_pem="".join(lists))
                listener.tls = replace(listener.tls, clients=clients)
