"""What a route to a Dynamic backend opens by itself."""

from __future__ import annotations

import pytest

from egressproxy.errors import Reason
from egressproxy.ir.policy import DestinationRule, DestinationsIR, Mode
from egressproxy.model.authority import parse_authority
from egressproxy.routing.destinations import DestinationPolicy, Permission, strictest

ALLOW_OK = DestinationsIR(allow=((DestinationRule(("ok.test",), policy="ns/p"),),))


def permission(
    *hostnames: str,
    spec: DestinationsIR = ALLOW_OK,
    mode: Mode = Mode.ENFORCE,
    ports: tuple[int, ...] | None = None,
) -> Permission:
    return Permission("HTTPRoute ns/r", hostnames, ports, DestinationPolicy(spec, ("ns/p",)), mode)


def reason(made: Permission, authority: bytes) -> Reason | None:
    refused = made.decide(parse_authority(authority, None))
    return refused.reason if refused is not None else None


@pytest.mark.parametrize("hostname", ["", "*", "*."])
def test_every_host_is_no_name(hostname: str):
    assert reason(permission(hostname), b"a.test:80") is Reason.DESTINATION_NOT_ALLOWED


def test_a_wildcard_stands_for_what_is_below_it_until_an_allow_list_says_which_part():
    nothing = DestinationsIR()
    assert permission("*.test", spec=nothing).names(parse_authority(b"*.test:80".replace(b"*", b"a"), None))
    assert not permission("*.test").names(parse_authority(b"a.test:80", None))
    assert reason(permission("*.test"), b"ok.test:80") is None


def test_a_refusal_says_what_the_route_permits():
    for ports, said in ((None, "names;"), ((80, 443), "names, on port 80, 443;"), ((), "names, on no port;")):
        refused = permission("a.test", ports=ports).decide(parse_authority(b"b.test:80", None))
        assert refused is not None
        assert f"permits by itself the hosts that it {said}" in refused.detail


def test_ports_of_the_backend_are_those_that_are_permitted():
    assert permission("a.test").names(parse_authority(b"a.test:22", None))
    assert permission("a.test", ports=(22,)).names(parse_authority(b"a.test:22", None))
    assert not permission("a.test", ports=(22,)).names(parse_authority(b"a.test:23", None))
    assert not permission("a.test", ports=()).names(parse_authority(b"a.test:22", None))


def test_the_strictest_mode_lets_the_least_pass():
    assert strictest(Mode.OPEN, Mode.REPORT) is Mode.REPORT
    assert strictest(Mode.REPORT, Mode.ENFORCE, Mode.OPEN) is Mode.ENFORCE
    assert strictest(Mode.OPEN, Mode.OPEN) is Mode.OPEN


def test_what_only_another_namespace_allows_is_not_served_by_a_route_that_does_not_name_it():
    """The route's filters, and the credentials that they send, are for what its own side permits."""
    spec = DestinationsIR(ALLOW_OK.allow, listed=(("tenant/p",),), is_delegated=True)
    route = permission("named.test", spec=spec)
    assert reason(route, b"named.test:443") is None
    refused = route.decide(parse_authority(b"ok.test:443", None))
    assert refused is not None
    assert refused.reason is Reason.DESTINATION_NOT_ALLOWED
    assert "only policies of another namespace have destinations.allow" in refused.detail
    assert refused.remedy.startswith("add the host to hostnames of the route")
    assert route.grounds(parse_authority(b"ok.test:443", None)) == ()
    below = permission("*.test", spec=spec, ports=(443,))
    no = Reason.DESTINATION_NOT_ALLOWED
    assert [reason(below, host) for host in (b"ok.test:443", b"other.test:443", b"ok.test:80")] == [None, no, no]
    assert reason(permission(spec=spec, mode=Mode.OPEN), b"other.test:443") is None
    denying = DestinationsIR(spec.allow, (DestinationRule(("ok.test",), policy="ns/p"),), is_delegated=True)
    assert reason(permission(spec=denying), b"ok.test:443") is Reason.DESTINATION_DENIED
