"""`parent.noProxy` for backends whose destination the configuration names: they have a parent, or none."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from egressproxy.ir.backend import BackendIR, Destination, NoProxyRule


def is_direct(backend: BackendIR, rules: Iterable[NoProxyRule]) -> bool:
    """Whether this backend is reached past the parents: its name, or each of its addresses, is listed.

    Where a client names the destination (Dynamic), the data plane decides.
    """
    if backend.destination is Destination.DYNAMIC:
        return False
    if backend.destination is Destination.FQDN:
        return any(_has_port(rule, backend.port) and _has_name(rule, backend.hostname) for rule in rules)
    listed = tuple(rules)
    return bool(backend.endpoints) and all(
        any(_has_port(rule, each.port) and any(each.address in network for network in rule.cidrs) for rule in listed)
        for each in backend.endpoints
    )


def _has_port(rule: NoProxyRule, port: int) -> bool:
    return not rule.ports or port in rule.ports


def _has_name(rule: NoProxyRule, hostname: str) -> bool:
    labels = hostname.split(".")
    patterns = chain((hostname,), ("*." + ".".join(labels[index:]) for index in range(1, len(labels))))
    return not set(patterns).isdisjoint(rule.hostnames)
