from __future__ import annotations

from ipaddress import IPv6Address, ip_address

import pytest

from egressproxy.model.authority import IPAddress
from egressproxy.upstream.own_sockets import OwnSockets

MACHINE = {ip_address("10.0.0.5"), ip_address("2001:db8::5")}


def own(address: str, port: int = 15900) -> OwnSockets:
    return OwnSockets(admin=[(ip_address(address), port)], is_local=MACHINE.__contains__)


def arrives(at: str, dialled: str, port: int = 15900) -> bool:
    return own(at).has_admin(ip_address(dialled), port)


@pytest.mark.parametrize(
    "spelling",
    ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"],
)
def test_loopback_is_found_in_every_spelling(spelling: str):
    assert arrives("127.0.0.1", spelling)
    assert not arrives("127.0.0.1", spelling, 15901)


@pytest.mark.parametrize("spelling", ["::1", "::"])
def test_ipv6_loopback_is_found_in_every_spelling(spelling: str):
    assert arrives("::1", spelling)


@pytest.mark.parametrize(
    ("at", "dialled"), [("127.0.0.1", "127.0.0.2"), ("10.0.0.5", "10.0.0.6"), ("::1", "127.0.0.1")]
)
def test_a_socket_is_at_its_own_address_alone(at: str, dialled: str):
    assert not arrives(at, dialled)


def test_a_socket_may_itself_be_spelled_otherwise():
    assert arrives("::ffff:10.0.0.5", "10.0.0.5")
    assert arrives("::ffff:0.0.0.0", "10.0.0.5")
    assert OwnSockets([(IPv6Address("fe80::1%eth0"), 80)]).has_listener(ip_address("fe80::1"), 80)


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
@pytest.mark.parametrize(
    "dialled",
    ["10.0.0.5", "::ffff:10.0.0.5", "64:ff9b::a00:5", "2001:db8::5", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::"],
)
def test_a_socket_on_every_address_is_at_those_of_the_machine(everywhere: str, dialled: str):
    assert arrives(everywhere, dialled)
    assert not arrives(everywhere, dialled, 15901)
    assert not arrives(everywhere, "10.0.0.6")


def test_the_machine_is_asked_each_time_and_only_for_a_port_that_is_open_everywhere():
    asked: list[IPAddress] = []

    def is_local(address: IPAddress) -> bool:
        asked.append(address)
        return len(asked) > 1

    made = OwnSockets([(ip_address("0.0.0.0"), 3128)], [(ip_address("127.0.0.1"), 15900)], is_local)
    there = ip_address("10.0.0.9")
    assert not made.has_admin(there, 15900)
    assert not made.has_admin(there, 3128)
    assert not asked
    assert not made.has_listener(there, 3128)
    assert made.has_listener(there, 3128)
    assert made.everywhere == {3128}


def test_listeners_and_the_admin_address_are_told_apart():
    made = OwnSockets([(ip_address("10.0.0.5"), 3128)], [(ip_address("10.0.0.5"), 15900)])
    there = ip_address("10.0.0.5")
    assert (made.has_listener(there, 3128), made.has_admin(there, 3128)) == (True, False)
    assert (made.has_listener(there, 15900), made.has_admin(there, 15900)) == (False, True)
