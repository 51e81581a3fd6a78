"""Denials: which backends the data plane will send nothing to, whatever their clients ask for; for status."""

from __future__ import annotations

from egressproxy.config.compile.interface import RefusesBackends
from egressproxy.errors import Denied
from egressproxy.ir.backend import BackendIR
from egressproxy.ir.policy import PolicyIR
from egressproxy.routing.destinations import DestinationPolicy
from egressproxy.upstream.address_policy import AddressPolicy


def denials(policy: PolicyIR) -> RefusesBackends:
    """What refuses backends under this policy, by name or by address: it gives the error that a request would meet."""
    destinations, addresses = DestinationPolicy(policy.destinations), AddressPolicy(policy.addresses)

    def denied(backend: BackendIR) -> Denied | None:
        denial = destinations.explicit_deny_of(backend)
        if denial is not None and denial.holds(policy.mode):
            return denial.error()
        for on_the_way in (backend, *backend.parents()):
            error = addresses.explicit_deny_of(on_the_way.endpoints) or addresses.metadata_deny_of(on_the_way.endpoints)
            if error is not None:
                return error
        return denial.error() if denial is not None else None

    return denied
