"""Denied ranges, and `addresses.only`: the place counts, and not its spelling."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.ir.policy import AddressBound, AddressDenial, AddressesIR, NameDenial
from egressproxy.upstream.closed_places import ClosedNames, ClosedRanges, closed_by


def deny(*cidrs: str, ports: tuple[int, ...] = ()) -> AddressDenial:
    return AddressDenial(tuple(map(ip_network, cidrs)), ports, "ns/p", "destinations.deny")


def only(*cidrs: str) -> AddressBound:
    return AddressBound(tuple(map(ip_network, cidrs)), "ns/p")


@pytest.mark.parametrize(
    ("cidr", "address", "is_closed"),
    [
        ("203.0.113.0/24", "203.0.113.7", True),
        ("203.0.113.0/24", "203.0.114.7", False),
        ("203.0.113.7/32", "203.0.113.7", True),
        ("0.0.0.0/0", "8.8.8.8", True),
        ("0.0.0.0/0", "2001:4860::1", False),
        ("203.0.113.0/24", "::ffff:203.0.113.7", True),
        ("203.0.113.0/24", "64:ff9b::203.0.113.7", True),
        ("203.0.113.0/24", "2002:cb00:7107::", True),
        ("::ffff:203.0.113.0/120", "203.0.113.7", True),
        ("::ffff:203.0.113.0/120", "::ffff:203.0.113.7", True),
        ("::ffff:0:0/96", "8.8.8.8", True),
        ("::/0", "::ffff:203.0.113.7", True),
        ("::/0", "203.0.113.7", False),
        ("2001:db8::/32", "2001:db8::1", True),
        ("127.0.0.0/8", "0.0.0.0", True),
    ],
)
def test_a_denied_range(cidr: str, address: str, is_closed: bool):
    assert (ClosedRanges([deny(cidr)]).closing(ip_address(address), 443) is not None) is is_closed


def test_a_denied_range_of_some_ports():
    ranges = ClosedRanges([deny("203.0.113.0/24", ports=(443,)), deny("203.0.113.7/32", ports=(22,))])
    closed = [port for port in (22, 80, 443) if ranges.closing(ip_address("203.0.113.7"), port) is not None]
    assert closed == [22, 443]


@pytest.mark.parametrize(
    ("bounds", "address", "is_closed"),
    [
        ([only("203.0.113.0/24")], "203.0.113.7", False),
        ([only("203.0.113.0/24")], "203.0.114.7", True),
        ([only("203.0.113.0/24")], "2001:db8::1", True),
        ([only("203.0.113.0/24", "2001:db8::/32")], "2001:db8::1", False),
        ([only("203.0.113.0/24")], "::ffff:203.0.113.7", False),
        ([only("::ffff:203.0.113.0/120")], "203.0.113.7", False),
        ([only("64:ff9b::/96")], "64:ff9b::8.8.8.8", True),
        ([only("64:ff9b::/96", "8.8.8.0/24")], "64:ff9b::8.8.8.8", False),
        ([only("203.0.0.0/8"), only("203.0.113.0/24")], "203.0.113.7", False),
        ([only("203.0.0.0/8"), only("203.0.113.0/24")], "203.1.1.1", True),
        ([only()], "203.0.113.7", True),
    ],
)
def test_what_is_outside_of_only(bounds: list[AddressBound], address: str, is_closed: bool):
    assert (ClosedRanges([], bounds).closing(ip_address(address), 443) is not None) is is_closed


def test_what_an_operator_wrote_is_not_asked_of_only():
    assert ClosedRanges([], [only("203.0.113.0/24")]).explicit_deny(ip_address("8.8.8.8"), 443) is None


def test_a_deny_within_only_holds():
    ranges = ClosedRanges([deny("203.0.113.7/32")], [only("203.0.113.0/24")])
    closing = ranges.closing(ip_address("203.0.113.7"), 443)
    assert closing is not None
    assert closing.kind == "denied by policy ns/p"


def test_the_entry_is_named_in_the_detail_alone():
    closing = ClosedRanges([deny("::ffff:203.0.113.0/120", "10.0.0.0/8", ports=(443,))]).closing(
        ip_address("203.0.113.7"), 443
    )
    assert closing is not None
    text = ip_network("::ffff:203.0.113.0/120")  # Python 3.13 writes the IPv4 address in it
    entry = f'{{cidrs: ["{text}"], ports: [443]}}'
    assert closing.detail == f"denied by {entry} in destinations.deny of EgressPolicy ns/p"
    assert closing.remedy == "remove or narrow its range in destinations.deny of that policy"
    assert "203" not in closing.kind + closing.remedy


@given(st.ip_addresses(), st.lists(st.tuples(st.ip_addresses(), st.integers(0, 128)), max_size=8))
def test_a_look_up_finds_what_a_walk_over_the_list_finds(address, written):
    networks = [ip_network(f"{a}/{min(length, a.max_prefixlen)}", strict=False) for a, length in written]
    walked = any(address.version == n.version and address in n for n in networks)
    ranges = ClosedRanges([AddressDenial((network,)) for network in networks])
    if walked:
        assert ranges.explicit_deny(address, 1) is not None
    elif address.version == 4 and all(n.version == 4 for n in networks) and int(address):
        assert ranges.explicit_deny(address, 1) is None


def test_equal_rules_are_compiled_once():
    first, second = (AddressesIR(deny=(deny("203.0.113.0/24"),)) for _ in range(2))
    assert first is not second
    assert closed_by(first)[0] is closed_by(second)[0]
    assert closed_by(first)[1].closing(ip_address("203.0.113.7"), 443) is None, "nothing is only reported"
    assert closed_by(AddressesIR(deny=(deny("203.0.114.0/24"),)))[0] is not closed_by(first)[0]


@pytest.mark.parametrize(
    ("name", "port", "entry"),
    [
        ("evil.example", 443, "evil.example"),
        ("evil.example", 80, None),
        ("a.evil.example", 443, None),
        ("bad.example", 80, None),
        ("a.bad.example", 80, "*.bad.example"),
        ("b.a.bad.example", 80, "*.bad.example"),
        ("abad.example", 80, None),
        ("a.bad.example.test", 80, None),
    ],
)
def test_a_name_is_closed_as_a_client_that_names_it_is_denied(name: str, port: int, entry: str | None):
    closed = ClosedNames([NameDenial(("evil.example",), (443,), "ns/p"), NameDenial(("*.bad.example",), (), "ns/q")])
    found = closed.closing(("cdn.example", name), port)
    assert (found.entry if found is not None else None) == entry


def test_a_closing_says_which_name_to_the_log_alone():
    found = ClosedNames([NameDenial(("*.bad.example",), (443,), "ns/p")]).closing(("x.bad.example",), 443)
    assert found is not None
    assert found.policy == "ns/p"
    assert "bad.example" not in found.kind + found.remedy
    written = '{hostnames: ["*.bad.example"], ports: [443]}'
    assert found.detail == f"leads through x.bad.example, denied by {written} in destinations.deny of EgressPolicy ns/p"


def test_a_star_alone_is_every_name():
    closed = ClosedNames([NameDenial(("*",))])
    assert closed.closing(("a.example",), 1)
    assert not closed.closing((), 1)


def test_equal_rules_share_what_is_compiled_and_reported_entries_close_nothing():
    spec = AddressesIR(denied_names=(NameDenial(("a.example",)), NameDenial(("b.example",), reports=True)))
    assert closed_by(spec) is closed_by(AddressesIR(denied_names=spec.denied_names))
    _, _, closed, reported = closed_by(spec)
    assert [bool(each.closing((name,), 1)) for each in (closed, reported) for name in ("a.example", "b.example")] == [
        True, False, False, True,
    ]  # fmt: skip
