from __future__ import annotations

from ipaddress import ip_address, ip_network

from egressproxy.config.compile.gateways.addresses import AddressBook


def book(*bind: str, asked: tuple[str, ...] = ()) -> AddressBook:
    return AddressBook(bind, asked)


def choose(into: AddressBook, name: str, *ports: int) -> tuple[str, ...]:
    """Choose, and take the ports there."""
    chosen = into.choose(name, ports)
    for port in ports:
        for address in chosen:
            into.take(port, address, name)
    return chosen


def test_single_addresses_are_everybodys():
    shared = book("127.0.0.1", "::1")
    assert choose(shared, "default/a", 80) == ("127.0.0.1", "::1")
    assert choose(shared, "default/b", 80) == ("127.0.0.1", "::1")
    assert shared.holder(80, "::1") == "default/a"


def test_a_network_gives_every_gateway_an_address_of_its_own():
    net = book("127.0.1.0/24")
    chosen = [choose(net, f"default/{name}", 80) for name in "abcdefgh"]
    assert len(set(chosen)) == 8
    assert all(ip_address(one) in ip_network("127.0.1.0/24") for (one,) in chosen)


def test_neither_the_address_of_the_network_nor_its_broadcast_address_is_given():
    net = book("192.0.2.0/30")
    given = {choose(net, f"default/{name}", 80) for name in "ab"}
    assert given == {("192.0.2.1",), ("192.0.2.2",)}


def test_a_network_of_one_address_is_that_address():
    assert choose(book("192.0.2.7/32"), "default/a", 80) == ("192.0.2.7",)


def test_the_address_depends_on_the_name_and_on_older_gateways_alone():
    alone = choose(book("127.0.1.0/24"), "default/b", 80)
    beside = book("127.0.1.0/24")
    choose(beside, "default/a", 443)
    assert choose(beside, "default/b", 80, 443) == alone


def test_single_addresses_go_before_networks_until_a_port_is_taken():
    mixed = book("127.0.0.1", "127.0.1.0/24")
    assert choose(mixed, "default/a", 80) == ("127.0.0.1",)
    assert choose(mixed, "default/b", 81) == ("127.0.0.1",)
    (own,) = choose(mixed, "default/c", 80)
    assert own.startswith("127.0.1.")


def test_addresses_that_gateways_ask_for_are_not_given_to_others():
    asked = tuple(f"127.0.1.{host}" for host in range(1, 254))
    assert choose(book("127.0.1.0/24", asked=asked), "default/a", 80) == ("127.0.1.254",)


def test_where_every_address_is_given_the_ports_decide():
    small = book("192.0.2.1/32")
    assert choose(small, "default/a", 80) == ("192.0.2.1",)
    assert choose(small, "default/b", 81) == ("192.0.2.1",)
    assert choose(small, "default/c", 80) == ()


def test_networks_of_both_versions_give_an_address_of_each():
    first, second = choose(book("127.0.1.0/24", "fd00::/64"), "default/a", 80)
    assert (ip_address(first).version, ip_address(second).version) == (4, 6)


def test_every_address_overlaps_a_wildcard_of_its_version():
    taken = book("127.0.0.1")
    taken.take(80, "0.0.0.0", "default/a")
    assert taken.holder(80, "127.0.0.9") == "default/a"
    assert taken.holder(80, "::1") is None
    assert taken.holder(81, "127.0.0.9") is None


def test_a_wildcard_overlaps_every_address_of_its_version():
    taken = book("127.0.0.1")
    taken.take(80, "127.0.0.9", "default/a")
    assert taken.holder(80, "0.0.0.0") == "default/a"
    assert taken.holder(80, "::") is None
    assert taken.holder(80, "127.0.0.8") is None


def test_an_address_is_the_same_however_it_is_written():
    taken = book("127.0.0.1")
    taken.take(80, "fd00:0:0::1", "default/a")
    assert taken.holder(80, "fd00::1") == "default/a"
    assert taken.holder(80, "fd00::2") is None
