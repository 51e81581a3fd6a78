"""Which backends the data plane sends nothing to, for status."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

from egressproxy.errors import Reason
from egressproxy.ir.backend import BackendIR, Destination, EndpointAddress
from egressproxy.ir.policy import AddressDenial, AddressesIR, DestinationRule, DestinationsIR, Mode, PolicyIR
from egressproxy.processes.loader.denials import denials

POLICY = PolicyIR(
    destinations=DestinationsIR(deny=(DestinationRule(("b.test",), policy="ns/p"),)),
    addresses=AddressesIR(deny=(AddressDenial((ip_network("10.0.0.0/8"),), policy="ns/p"),)),
)


def fqdn(hostname: str, parent: BackendIR | None = None) -> BackendIR:
    return BackendIR("ns/f", Destination.FQDN, hostname, 443, parent=parent)


def ip(address: str) -> BackendIR:
    return BackendIR("ns/i", Destination.IP, endpoints=(EndpointAddress(ip_address(address), 3128),))


def test_a_backend_is_refused_by_its_name_its_addresses_and_those_of_its_parents():
    refuses = denials(POLICY)
    found = [
        error.reason if error is not None else None
        for error in map(refuses, (fqdn("a.test"), fqdn("b.test"), ip("10.0.0.7"), ip("11.0.0.7")))
    ]
    assert found == [None, Reason.DESTINATION_DENIED, Reason.ADDRESS_DENIED, None]
    assert refuses(fqdn("a.test", ip("10.0.0.7"))) is not None
    assert refuses(fqdn("a.test", fqdn("p.test", ip("10.0.0.7")))) is not None
    assert refuses(fqdn("a.test", ip("11.0.0.7"))) is None


def test_what_is_refused_is_told_before_what_is_only_reported():
    refuses = denials(replace(POLICY, mode=Mode.REPORT))
    closed, reported = refuses(fqdn("b.test", ip("10.0.0.7"))), refuses(fqdn("b.test", ip("11.0.0.7")))
    assert closed is not None
    assert closed.reason is Reason.ADDRESS_DENIED
    assert reported is not None
    assert reported.reason is Reason.DESTINATION_DENIED
