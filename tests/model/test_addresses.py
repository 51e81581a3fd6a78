"""Every RFC that puts an IPv4 address into an IPv6 one, with its own examples where it has some."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.model.addresses import aliases


def inner(text: str) -> list[str]:
    first, *others = aliases(ip_address(text))
    assert first == ip_address(text)
    return [str(each) for each in others]


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "127.0.0.1", "::1", "2606:4700::1111", "fe80::1", "fd00::a9fe:a9fe", "64:ff9b:2::a9fe:a9fe"]
)
def test_an_address_that_carries_none_is_alone(text: str):
    assert inner(text) == []


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("0.0.0.0", ["127.0.0.1"]),
        ("::", ["::1"]),
        ("::ffff:169.254.169.254", ["169.254.169.254"]),
        ("::ffff:0.0.0.0", ["0.0.0.0", "127.0.0.1"]),
        ("::ffff:0:169.254.169.254", ["169.254.169.254"]),
        ("::169.254.169.254", ["169.254.169.254"]),
        ("64:ff9b::a9fe:a9fe", ["169.254.169.254"]),
        ("64:ff9b::", ["0.0.0.0", "127.0.0.1"]),
        ("2002:a9fe:a9fe::1", ["169.254.169.254"]),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", ["65.54.227.120", "192.0.2.45"]),  # RFC 4380 section 4
        ("2606:4700::5efe:a9fe:a9fe", ["169.254.169.254"]),
        ("fe80::200:5efe:10.0.0.1", ["10.0.0.1"]),
        ("2002:a00:1::5efe:127.0.0.1", ["10.0.0.1", "127.0.0.1"]),
    ],
)
def test_what_an_address_carries(text: str, carried: list[str]):
    assert inner(text) == carried


@pytest.mark.parametrize(
    "text",  # 192.0.2.33 as in RFC 6052 section 2.4, under the prefixes of RFC 8215
    ["64:ff9b:1:c000:2:2100::", "64:ff9b:1:c0:0:221::", "64:ff9b:1::c0:2:2100:0", "64:ff9b:1::192.0.2.33"],
)
def test_each_form_of_local_use_nat64_is_read(text: str):
    assert "192.0.2.33" in inner(text)


def test_a_suffix_hides_no_form_of_local_use_nat64():
    assert "169.254.169.254" in inner("64:ff9b:1:a9fe:a9:fe00:808:808")


def test_local_use_nat64_that_carries_nothing_leads_to_this_network():
    assert inner("64:ff9b:1::") == ["0.0.0.0", "127.0.0.1"]


def test_a_zone_is_no_part_of_an_address():
    assert aliases(IPv6Address("fe80::1%eth0")) == (IPv6Address("fe80::1"),)


@given(st.ip_addresses())
def test_the_first_is_the_address_and_the_others_are_simple(address):
    first, *others = aliases(address)
    assert first == address
    assert all(isinstance(each, IPv4Address) for each in others) or int(address) == 0
