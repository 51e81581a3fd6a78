from __future__ import annotations

import click
import pytest

from egressproxy.cli.addresses import address, address_and_port, address_or_network


@pytest.mark.parametrize(
    ("text", "value"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1"), ("2001:DB8::0", "2001:db8::")]
)
def test_an_address_becomes_its_canonical_text(text: str, value: str):
    assert address(text) == value


@pytest.mark.parametrize(
    "text", ["", "localhost", "127.1", "0127.0.0.1", "1.2.3.4:80", "[1.2.3.4", "10.0.0.0/8", "256.1.1.1"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str):
    with pytest.raises(click.BadParameter, match=r"127\.0\.0\.1"):
        address(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("127.0.0.1:15000", ("127.0.0.1", 15000)),
        ("[::1]:9090", ("::1", 9090)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("off", None),
    ],
)
def test_address_and_port_are_split(text: str, value: tuple[str, int] | None):
    assert address_and_port(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1",
        "15000",
        ":15000",
        "::1:15000",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:１",
        "localhost:15000",
        "[::1]",
    ],
)
def test_anything_else_is_refused(text: str):
    with pytest.raises(click.BadParameter):
        address_and_port(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("127.0.1.0/24", "127.0.1.0/24"), ("FD00::/64", "fd00::/64"), ("192.0.2.7/32", "192.0.2.7/32"), ("::1", "::1")],
)
def test_a_network_is_taken_where_addresses_are_given_out(text: str, value: str):
    assert address_or_network(text) == value


@pytest.mark.parametrize(
    ("text", "remedy"),
    [("127.0.1.5/24", "give the network 127.0.1.0/24"), ("10.0.0.0/99", "such as 127.0.1.0/24"), ("a/8", "such as")],
)
def test_what_is_no_network_is_refused_with_what_to_write(text: str, remedy: str):
    with pytest.raises(click.BadParameter, match=remedy):
        address_or_network(text)
