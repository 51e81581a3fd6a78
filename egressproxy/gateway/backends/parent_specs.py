"""The connections that a backend behind parents needs, as ConnectionIR: one through each parent, one past them all, and
that to a parent itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from egressproxy.ir.backend import BackendIR, ConnectionIR, Destination
from egressproxy.ir.policy import AddressAllowance
from egressproxy.ir.resilience import NO_RESILIENCE


def specs_of_ways(spec: ConnectionIR) -> Iterator[tuple[BackendIR, ConnectionIR]]:
    """The backend through each of its parents alone, in their order, each with that parent. None without a parent."""
    backend = replace(spec.backend, other_parents=(), no_proxy=())
    if backend.parent is not None:
        yield backend.parent, replace(spec, backend=backend)
    for each in spec.backend.other_parents:
        way = replace(
            backend,
            parent=each.backend,
            parent_credentials=each.credentials,
            parent_dns=each.dns,
            parent_identity_key=each.identity_key,
        )
        yield each.backend, replace(spec, backend=way)


def direct_spec(spec: ConnectionIR) -> ConnectionIR:
    """The backend without a parent."""
    alone = replace(
        spec.backend,
        parent=None,
        parent_credentials=None,
        parent_dns=None,
        parent_identity_key=None,
        other_parents=(),
        no_proxy=(),
    )
    return replace(spec, backend=alone)


def parent_spec(spec: ConnectionIR) -> ConnectionIR:
    """The parent is reached under the same rules as the backend behind it, but that its name may lead into the network:
    an operator wrote it, and such proxies stand inside. Not to this machine, to metadata, nor to what is denied.
    """
    parent = spec.backend.parent
    assert parent is not None
    addresses = spec.addresses
    if parent.destination is Destination.FQDN:
        own = AddressAllowance(hostnames=(parent.hostname,))
        addresses = replace(addresses, allow=tuple((*group, own) for group in addresses.allow) or ((own,),))
    dns = spec.backend.parent_dns or spec.dns
    return replace(spec, backend=parent, addresses=addresses, dns=dns, resilience=NO_RESILIENCE)
