from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.errors import Denied, Reason
from egressproxy.ir.backend import EndpointAddress
from egressproxy.ir.policy import AddressAllowance, AddressBound, AddressDenial, AddressesIR, NameDenial
from egressproxy.model.addresses import METADATA, Resolved, aliases
from egressproxy.upstream.address_policy import MAX_KNOWN, AddressPolicy, classify, is_metadata
from egressproxy.upstream.own_sockets import OwnSockets

PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "1.1.1.1",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "11.0.0.1",
    "168.63.129.15",
    "168.63.129.17",
    "192.0.1.1",
    "198.17.255.255",
    "198.20.0.1",
    "223.255.255.255",
    "192.31.196.1",
    "2606:4700::1111",
    "2620:4f:8000::1",
    "2001:200::1",
    "2a00:1450::1",
    "3ffe::1",
    "2003::1",
]
SPECIAL = {
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "0.0.0.0": "this network",
    "0.1.2.3": "this network",
    "10.0.0.1": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "100.64.0.1": "carrier-grade NAT",
    "100.127.255.255": "carrier-grade NAT",
    "169.254.1.1": "link-local",
    "192.0.0.1": "protocol assignments",
    "192.0.2.1": "documentation",
    "198.51.100.1": "documentation",
    "203.0.113.9": "documentation",
    "198.18.0.1": "benchmarking",
    "198.19.255.255": "benchmarking",
    "192.88.99.1": "6to4 relay",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "broadcast",
    "::": "unspecified",
    "::1": "loopback",
    "::ffff:127.0.0.1": "IPv4-mapped",
    "::ffff:93.184.216.34": "IPv4-mapped",
    "::127.0.0.1": "IPv4-compatible",
    "::ffff:0:127.0.0.1": "IPv4-translated",
    "64:ff9b::7f00:1": "NAT64",
    "64:ff9b:1::a9fe:a9ff": "NAT64",
    "64:ff9b:1::a9fe:a9fe": "cloud metadata",
    "100::1": "discard-only",
    "2001::1": "Teredo",
    "2001:0:4136:e378:8000:63bf:8080:8080": "Teredo",
    "2001:10::1": "protocol assignments",
    "2001:20::1": "protocol assignments",
    "2001:db8::1": "documentation",
    "2002:7f00:1::": "6to4",
    "3fff::1": "documentation",
    "5f00::1": "segment routing",
    "fc00::1": "unique-local",
    "fd12::1": "unique-local",
    "fe80::1": "link-local",
    "fec0::1": "site-local",
    "ff02::1": "multicast",
    "ff0e::1": "multicast",
    "4000::1": "outside the global unicast range",
    "1000::1": "outside the global unicast range",
    "2606:4700::5efe:7f00:1": "ISATAP",
    "2606:4700::200:5efe:7f00:1": "ISATAP",
}


Places = tuple[tuple[str, int], ...]


def policy(*groups: tuple[AddressAllowance, ...], own: Places = (), admin: Places = ()) -> AddressPolicy:
    sockets = OwnSockets(
        ((ip_address(a), p) for a, p in own), ((ip_address(a), p) for a, p in admin), MACHINE.__contains__
    )
    return AddressPolicy(AddressesIR(allow=groups, policy="agents/egress"), sockets)


#: What this machine has beside loopback.
MACHINE = {ip_address("10.0.0.5"), ip_address("2001:db8::5")}
ANYWHERE = ("0.0.0.0/0", "::/0")


def allow(*cidrs: str, hosts: tuple[str, ...] = ()) -> AddressAllowance:
    return AddressAllowance(tuple(ip_network(c) for c in cidrs), hosts)


def may(made: AddressPolicy, host: str, address: str, port: int = 443) -> bool:
    try:
        return made.check(host, [ip_address(address)], port) == (ip_address(address),)
    except Denied:
        return False


@pytest.mark.parametrize("text", PUBLIC)
def test_public_unicast_has_no_special_name(text: str):
    assert classify(ip_address(text)) is None
    assert may(policy(), "a.test", text)


@pytest.mark.parametrize(("text", "name"), SPECIAL.items())
def test_a_special_address_is_named_and_denied(text: str, name: str):
    assert classify(ip_address(text)) == name
    assert not may(policy(), "a.test", text)


@pytest.mark.parametrize("address", sorted(METADATA, key=str))
def test_every_metadata_address_is_called_so_and_denied(address):
    assert classify(address) == "cloud metadata"
    assert not may(policy(), "a.test", str(address))


@given(st.integers(0, 2**32 - 1))
def test_no_ipv6_prefix_that_carries_ipv4_is_public(v4: int):
    for prefix in ("::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::"):
        assert classify(IPv6Address(int(IPv6Address(prefix)) | v4)) is not None
    assert classify(IPv6Address(0x2002 << 112 | v4 << 80)) is not None


@given(st.ip_addresses(v=6))
def test_what_is_outside_2000_3_is_never_public(address):
    if address not in ip_network("2000::/3"):
        assert classify(address) is not None


def test_a_mixed_answer_is_filtered_in_order():
    mixed = [ip_address(a) for a in ("10.0.0.5", "93.184.216.34", "127.0.0.1", "93.184.216.35")]
    assert [str(a) for a in policy().check("a.test", mixed, 443)] == ["93.184.216.34", "93.184.216.35"]


def test_a_denial_names_host_class_and_remedy_but_no_address():
    with pytest.raises(Denied) as caught:
        policy().check("db.test", [ip_address("10.1.2.3"), ip_address("fd00::7")], 5432)
    error = caught.value
    assert error.reason is Reason.ADDRESS_DENIED
    assert error.status == 403
    assert "db.test" in error.message
    assert "private" in error.message
    assert "unique-local" in error.message
    assert "addresses.allow" in error.remedy
    assert error.rule == "EgressPolicy agents/egress"
    for shown in (error.message, error.remedy):
        assert "10.1.2.3" not in shown
        assert "fd00::7" not in shown
    assert "10.1.2.3" in error.detail


def remedy(host: str, *addresses: str, port: int = 443, own: tuple[tuple[str, int], ...] = ()) -> str:
    with pytest.raises(Denied) as caught:
        policy(own=own).check(host, [ip_address(a) for a in addresses], port)
    return caught.value.remedy


def test_the_remedy_for_an_address_that_the_client_named_is_a_range_alone():
    assert "127.0.0.1 or its range under cidrs, without hostnames" in remedy("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "address"),
    [("169.254.169.254", "169.254.169.254"), ("meta.test", "fd00:ec2::254"), ("m.test", "::ffff:169.254.169.254")],
)
def test_the_remedy_for_cloud_metadata_is_a_warning(host: str, address: str):
    told = remedy(host, address)
    assert told.startswith("leave it closed")
    assert address not in told


def test_the_remedy_for_the_gateway_itself_is_another_destination():
    assert "not at this gateway" in remedy("me.test", "10.0.0.1", port=3128, own=(("10.0.0.1", 3128),))


def test_an_empty_answer_is_denied():
    with pytest.raises(Denied):
        policy().check("a.test", [], 443)


def test_a_range_opens_that_range_only():
    made = policy((allow("10.0.0.0/8"),))
    assert may(made, "a.test", "10.9.9.9")
    assert not may(made, "a.test", "192.168.0.1")


def test_a_range_for_hostnames_opens_it_for_these_only():
    made = policy((allow("10.0.0.0/8", hosts=("db.test", "*.corp.test")),))
    assert may(made, "db.test", "10.0.0.1")
    assert may(made, "a.b.corp.test", "10.0.0.1")
    assert not may(made, "corp.test", "10.0.0.1")
    assert not may(made, "xcorp.test", "10.0.0.1")
    assert not may(made, "other.test", "10.0.0.1")


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.3.4", "100.64.0.1", "fd00::1", "93.184.216.34"])
def test_hostnames_without_ranges_open_other_machines(address: str):
    assert may(policy((allow(hosts=("db.test",)),)), "db.test", address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "169.254.1.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "fe80::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "fd00:ec2::254",
        "100.100.100.200",
    ],
)
def test_hostnames_without_ranges_never_open_the_host_itself(address: str):
    assert not may(policy((allow(hosts=("db.test",)),)), "db.test", address)


def test_an_entry_without_ranges_and_hostnames_opens_nothing():
    assert not may(policy((allow(),)), "a.test", "10.0.0.1")


def test_levels_intersect():
    made = policy((allow("10.0.0.0/8"),), (allow("10.1.0.0/16"),))
    assert may(made, "a.test", "10.1.2.3")
    assert not may(made, "a.test", "10.2.2.3")


def test_an_empty_level_opens_nothing_but_public_stays():
    made = policy((allow("10.0.0.0/8"),), ())
    assert not may(made, "a.test", "10.1.2.3")
    assert may(made, "a.test", "93.184.216.34")


@pytest.mark.parametrize("wide", ["169.254.0.0/16", "169.254.169.0/24", "169.254.169.254/31", "0.0.0.0/0"])
def test_a_wide_range_does_not_open_metadata(wide: str):
    assert not may(policy((allow(wide),)), "a.test", "169.254.169.254")


#: Every way in which an IPv6 address carries 169.254.169.254, 10.0.0.9, 127.0.0.1 or a public address.
CARRIERS = [
    ("::ffff:0:0/96", "::ffff:{0}:{1}"),
    ("::ffff:0:0:0/96", "::ffff:0:{0}:{1}"),
    ("::/96", "::{0}:{1}"),
    ("64:ff9b::/96", "64:ff9b::{0}:{1}"),
    ("64:ff9b:1::/48", "64:ff9b:1::{0}:{1}"),
    ("2002::/16", "2002:{0}:{1}::1"),
    ("2a00::/16", "2a00::5efe:{0}:{1}"),
    ("fd00::/8", "fd00::5efe:{0}:{1}"),
]


def carried(form: str, text: str) -> str:
    number = int(ip_address(text))
    return str(ip_address(form.format(f"{number >> 16:x}", f"{number & 0xFFFF:x}")))


@pytest.mark.parametrize(("outer", "form"), CARRIERS)
def test_an_allowed_prefix_lets_through_what_is_public_inside(outer: str, form: str):
    assert may(policy((allow(outer),)), "a.test", carried(form, "93.184.216.34"))


@pytest.mark.parametrize(("outer", "form"), CARRIERS)
@pytest.mark.parametrize("range_", ["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16"])
def test_what_is_special_inside_has_to_be_allowed_itself(outer: str, form: str, range_: str):
    address = carried(form, range_.replace(".0.0/", ".0.9/").partition("/")[0])
    assert not may(policy((allow(outer, "::/0"),)), "a.test", address)
    assert not may(policy((allow(range_),)), "a.test", address)
    assert may(policy((allow(outer, range_),)), "a.test", address)
    assert not may(policy((allow(outer, hosts=("b.test",)), allow(range_))), "a.test", address)
    assert not may(policy((allow(outer), allow(range_, hosts=("b.test",)))), "a.test", address)
    assert not may(policy((allow(outer, range_),), (allow(outer),)), "a.test", address)


@pytest.mark.parametrize(("outer", "form"), CARRIERS)
def test_metadata_inside_opens_only_where_it_is_named_plainly(outer: str, form: str):
    address = carried(form, "169.254.169.254")
    assert is_metadata(ip_address(address))
    for opened in (("::/0", "0.0.0.0/0"), (outer, "169.254.0.0/16"), (f"{address}/128",), ("169.254.169.254/32",)):
        assert not may(policy((allow(*opened),)), "a.test", address)
    assert may(policy((allow(outer, "169.254.169.254/32"),)), "a.test", address)
    with pytest.raises(Denied):
        policy((allow(*ANYWHERE),)).check_operator(ip_address(address), 80)


def test_teredo_carries_its_server_and_its_client():
    made = policy((allow("2001::/32"),))
    assert may(made, "a.test", "2001:0:5db8:d822::a247:27dd")
    assert not may(made, "a.test", "2001:0:a00:1::a247:27dd")
    assert not may(made, "a.test", "2001:0:5db8:d822::5601:5601")


def test_a_denial_says_what_is_within():
    assert policy((allow("64:ff9b::/96"),)).verdict("a.test", ip_address("64:ff9b::a00:1"), 80) == (
        False,
        "private within NAT64: not allowed",
    )

    with pytest.raises(Denied) as caught:
        policy((allow("64:ff9b::/96"),)).check("a.test", [ip_address("64:ff9b::a00:1")], 80)
    assert "(private within NAT64)" in caught.value.message
    assert "the IPv4 address that it carries" in caught.value.remedy


def test_the_unspecified_address_needs_what_loopback_needs():
    assert not may(policy((allow("0.0.0.0/8", "::/128"),)), "a.test", "0.0.0.0")
    assert not may(policy((allow("0.0.0.0/8", "::/128"),)), "a.test", "::")
    assert may(policy((allow("0.0.0.0/8", "127.0.0.0/8"),)), "a.test", "0.0.0.0")


def test_metadata_opens_where_it_is_named_exactly():
    made = policy((allow("169.254.169.254/32", hosts=("metadata.test",)),))
    assert may(made, "metadata.test", "169.254.169.254")
    assert not may(made, "other.test", "169.254.169.254")


def test_a_mapped_address_needs_an_ipv6_range():
    assert not may(policy((allow("127.0.0.0/8", "0.0.0.0/0"),)), "a.test", "::ffff:127.0.0.1")
    assert may(policy((allow("::ffff:0:0/96", "127.0.0.0/8"),)), "a.test", "::ffff:127.0.0.1")


def test_own_listeners_are_denied_even_in_an_allowed_range():
    made = policy((allow("10.0.0.0/8"),), own=(("10.0.0.1", 3128),))
    assert not may(made, "me.test", "10.0.0.1", 3128)
    assert may(made, "me.test", "10.0.0.1", 3129)
    assert may(made, "me.test", "10.0.0.2", 3128)


def test_a_public_own_listener_is_denied():
    assert not may(policy(own=(("93.184.216.40", 443),)), "me.test", "93.184.216.40", 443)


#: How a client may name what listens on 127.0.0.1, on ::1, and on the machine's own addresses.
LOOPBACK = ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1"]
LOOPBACK_6 = ["::1", "::"]
MACHINES = ["10.0.0.5", "::ffff:10.0.0.5", "64:ff9b::a00:5", "2002:a00:5::", "2001:db8::5"]


@pytest.mark.parametrize("address", LOOPBACK)
def test_an_own_listener_is_seen_in_every_spelling(address: str):
    made = policy((allow(*ANYWHERE),), own=(("127.0.0.1", 3128),))
    assert not may(made, address, address, 3128)
    assert not may(made, "me.test", address, 3128)
    assert may(made, "me.test", address, 3129)


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
@pytest.mark.parametrize("address", [*LOOPBACK, *LOOPBACK_6, "127.9.9.9", *MACHINES])
def test_a_wildcard_bind_stands_for_every_address_of_the_machine(bound: str, address: str):
    made = policy((allow(*ANYWHERE),), own=((bound, 3128),))
    assert not may(made, "me.test", address, 3128)
    assert may(made, "me.test", address, 3129)


def test_an_address_that_the_machine_gets_later_is_seen():
    there = ip_address("10.0.0.77")
    made = policy((allow("10.0.0.0/8"),), own=(("0.0.0.0", 3128),))
    assert may(made, "me.test", str(there), 3128)
    MACHINE.add(there)
    try:
        assert not may(made, "me.test", str(there), 3128)
    finally:
        MACHINE.discard(there)


@pytest.mark.parametrize(
    ("bound", "address"),
    [
        *(("127.0.0.1", each) for each in LOOPBACK),
        *(("::1", each) for each in LOOPBACK_6),
        *(("10.0.0.5", each) for each in MACHINES[:-1]),
        *((bound, each) for bound in ("0.0.0.0", "::") for each in [*LOOPBACK, *LOOPBACK_6, *MACHINES]),
    ],
)
def test_nothing_opens_the_admin_address(bound: str, address: str):
    exactly = [f"{each}/{each.max_prefixlen}" for each in aliases(ip_address(address))]
    made = policy((allow(*exactly, *ANYWHERE),), admin=((bound, 15900),))
    assert not may(made, "me.test", address, 15900)
    assert not may(made, address, address, 15900)
    assert not made.verdict("me.test", ip_address(address), 15900)[0]
    with pytest.raises(Denied) as caught:
        made.check_operator(ip_address(address), 15900)
    assert caught.value.remedy == "point the client at the destination itself, not at this gateway"
    assert may(made, "me.test", address, 15901)
    made.check_operator(ip_address(address), 15901)


def test_an_own_listener_opens_where_it_is_named_exactly():
    made = policy((allow("10.0.0.1/32"),), own=(("10.0.0.1", 3128),))
    assert may(made, "me.test", "10.0.0.1", 3128)


def test_an_operators_address_is_dialled_as_written():
    for text in ("10.0.0.1", "127.0.0.1", "::1", "192.0.2.1"):
        policy().check_operator(ip_address(text), 80)


@pytest.mark.parametrize("text", ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "10.0.0.1"])
def test_an_operators_address_may_not_be_metadata_or_the_gateway(text: str):
    with pytest.raises(Denied):
        policy(own=(("10.0.0.1", 80),)).check_operator(ip_address(text), 80)


def test_an_operator_may_name_metadata_explicitly():
    policy((allow("169.254.169.254/32"),)).check_operator(ip_address("169.254.169.254"), 80)


def test_what_is_remembered_is_bounded_by_its_addresses():
    made = policy()
    many = [ip_address(f"93.184.216.{n}") for n in range(256)]
    for number in range(MAX_KNOWN // 256 + 10):
        assert made.check(f"{number}.test", many, 443) == tuple(many)
        assert sum(len(known) for known in made._known.values()) <= MAX_KNOWN


def test_what_is_remembered_of_the_latest_addresses_holds_for_their_host_and_port_alone():
    made = policy((allow("10.0.0.0/8", hosts=("in.test",)),), own=(("10.0.0.1", 3128),))
    same = Resolved([ip_address("10.0.0.1"), ip_address("93.184.216.34")])
    public = (same[1],)
    for _ in range(3):  # found out, known, and known to be the very same
        assert made.check("in.test", same, 80) == tuple(same)
        assert made.check("in.test", same, 3128) == public
        assert made.check("out.test", same, 80) == public
    assert made.check("in.test", Resolved(public), 80) == public


def test_what_names_led_to_addresses_is_not_kept():
    """A server of DNS chooses how much text that is."""
    made = policy()
    for _ in range(3):
        assert made.check("a.test", Resolved([ip_address("93.184.216.34")], ("\\255" * 250,)), 443)
    assert made._latest == {}


def test_of_a_list_that_changes_nothing_is_remembered():
    made, addresses = policy(), [ip_address("93.184.216.34")]
    for _ in range(3):
        assert len(made.check("a.test", addresses, 443)) == 1
    addresses[0] = ip_address("10.0.0.1")
    with pytest.raises(Denied):
        made.check("a.test", addresses, 443)


# --- what policies close ---------------------------------------------------------------------------------------------
def closing(*denials: AddressDenial, only: tuple[AddressBound, ...] = ()) -> AddressPolicy:
    wide = AddressAllowance((ip_network("0.0.0.0/0"), ip_network("::/0")))
    return AddressPolicy(AddressesIR(((wide,),), "agents/egress", denials, only))


def denied(*cidrs: str, **more: Any) -> AddressDenial:
    return AddressDenial(tuple(map(ip_network, cidrs)), policy="agents/closing", **more)


def test_of_several_addresses_the_denied_ones_are_left_out():
    found = [ip_address(a) for a in ("93.184.216.34", "203.0.113.7", "93.184.216.35")]
    assert closing(denied("203.0.113.0/24")).check("a.test", found, 443) == (found[0], found[2])


def test_no_allowance_opens_what_is_denied_and_the_denial_names_policy_and_remedy():
    with pytest.raises(Denied) as caught:
        closing(denied("10.0.0.0/8")).check("a.test", [ip_address("10.1.2.3"), ip_address("::ffff:10.1.2.4")], 443)
    error = caught.value
    assert error.message == (
        "a.test:443 resolves to an address that policy does not allow (denied by policy agents/closing)"
    )
    assert (error.reason, error.rule) == (Reason.ADDRESS_DENIED, "EgressPolicy agents/closing")
    assert error.remedy == "remove or narrow its range in addresses.deny of that policy"
    assert (
        '10.1.2.3 (denied by {cidrs: ["10.0.0.0/8"]} in addresses.deny of EgressPolicy agents/closing)' in error.detail
    )


def test_an_operators_address_is_closed_by_a_deny_and_not_by_only():
    policy = closing(denied("10.0.0.0/8", ports=(443,)), only=(AddressBound((ip_network("203.0.113.0/24"),)),))
    with pytest.raises(Denied):
        policy.check_operator(ip_address("10.1.2.3"), 443)
    policy.check_operator(ip_address("10.1.2.3"), 80)
    with pytest.raises(Denied):
        policy.check("a.test", [ip_address("10.1.2.3")], 80)


def test_the_endpoints_that_are_denied_are_left_out_and_all_of_them_are_a_denial():
    policy = closing(denied("10.0.0.0/8"))
    inside, outside = EndpointAddress(ip_address("10.1.2.3"), 80), EndpointAddress(ip_address("192.168.0.1"), 80)
    assert policy.open_endpoints((inside, outside)) == (outside,)
    assert policy.explicit_deny_of((inside, outside)) is None
    assert policy.explicit_deny_of(()) is None
    error = policy.explicit_deny_of((inside,))
    assert error is not None
    assert error.rule == "EgressPolicy agents/closing"


def test_in_report_mode_a_denied_range_closes_nothing_and_is_told():
    policy = closing(denied("10.0.0.0/8", reports=True))
    found = [ip_address("10.1.2.3"), ip_address("192.168.0.1")]
    assert policy.check("a.test", found, 443) == tuple(found)
    assert policy.reports
    assert not policy.would_deny(found, 443)
    assert policy.would_deny(found[:1], 443)


def test_a_verdict_names_the_entry():
    is_open, why = closing(denied("93.184.216.34/32")).verdict("a.test", ip_address("93.184.216.34"), 443)
    entry = '{cidrs: ["93.184.216.34/32"]}'
    assert (is_open, why) == (False, f"public: denied by {entry} in addresses.deny of EgressPolicy agents/closing")


def test_metadata_that_is_denied_as_well_is_not_told_how_to_open():
    with pytest.raises(Denied) as caught:
        closing(denied("169.254.0.0/16")).check("169.254.169.254", [ip_address("169.254.169.254")], 80)
    assert caught.value.remedy.startswith("leave it closed")


# --- names on the way --------------------------------------------------------------------------------------------
LED = Resolved([ip_address("93.184.216.34")], ("cdn.example", "x.evil.example"))


def test_a_name_that_leads_through_a_denied_one_has_no_address_that_may_be_dialled():
    policy = AddressPolicy(AddressesIR(denied_names=(NameDenial(("*.evil.example",), (443,), "agents/closing"),)))
    assert policy.check("a.test", tuple(LED), 443) == tuple(LED)  # which would be remembered
    assert policy.check("a.test", LED, 80) == tuple(LED)
    with pytest.raises(Denied) as caught:
        policy.check("a.test", LED, 443)
    error = caught.value
    assert (error.reason, error.policy, error.entry) == (Reason.ADDRESS_DENIED, "agents/closing", "*.evil.example")
    assert "x.evil.example" in error.detail
    assert "evil.example" not in error.message
    assert policy.verdict("a.test", LED[0], 443, LED.through)[0] is False
    assert policy.verdict("a.test", LED[0], 80, LED.through)[0] is True


def test_in_report_mode_a_denied_name_on_the_way_closes_nothing_and_is_told():
    policy = AddressPolicy(AddressesIR(denied_names=(NameDenial(("cdn.example",), reports=True),)))
    left = policy.check("a.test", LED, 443)
    assert policy.reports
    assert policy.would_deny(left, 443, LED)
    assert not policy.would_deny(left, 443, left)
