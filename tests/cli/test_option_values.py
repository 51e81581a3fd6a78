from __future__ import annotations

import click
import pytest

from egressproxy.cli.option_values import (
    address,
    address_and_port,
    address_or_network,
    memory_size,
    seconds,
    whole_number,
)


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
        ("127.0.0.1:15900", ("127.0.0.1", 15900)),
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
        "15900",
        ":15900",
        "::1:15900",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:１",
        "localhost:15900",
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


@pytest.mark.parametrize(("text", "value"), [("1", 1), (" 7", 7), ("256", 256), (1, 1)])
def test_a_whole_number_in_its_range_is_taken(text: object, value: int):
    assert whole_number(1, 256)(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("abc", "'abc' is not a whole number"),
        ("", "'' is not a whole number"),
        ("1.5", "'1.5' is not a whole number"),
        ("0", "0 is too small"),
        ("-1", "-1 is too small"),
        ("257", "257 is too large"),
    ],
)
def test_another_is_refused_with_its_range(text: str, why: str):
    with pytest.raises(click.BadParameter, match=f"^{why}; give one from 1 to 256$"):
        whole_number(1, 256)(text)


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("2.5", 2.5), (10.0, 10.0), ("86400", 86400.0)])
def test_seconds_are_taken_with_a_fraction_or_without(text: object, value: float):
    assert seconds(86_400)(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10s", "'10s' is not a number"),
        ("", "'' is not a number"),
        ("nan", "'nan' is not a number"),
        ("-0.5", "-0.5 is too small"),
        ("inf", "inf is too large"),
        ("1e400", "1e400 is too large"),
        ("86401", "86401 is too large"),
    ],
)
def test_other_seconds_are_refused_with_an_example(text: str, why: str):
    with pytest.raises(click.BadParameter, match=f"^{why}; give seconds from 0 to 86,400, such as 10 or 2.5"):
        seconds(86_400)(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("67108864", 64 << 20), ("64Mi", 64 << 20), ("2Gi", 2 << 30), ("70000k", 70_000_000), ("1G", 10**9)],
)
def test_a_size_of_memory_is_read_as_kubernetes_writes_it(text: str, size: int):
    assert memory_size(64 << 20)(text) == size


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("much", "'much' is no size of memory; give bytes, or a size such as 512Mi or 2Gi"),
        ("1.5Gi", "'1.5Gi' is no size"),
        ("-1", "'-1' is no size"),
        ("512MB", "'512MB' is no size"),
        ("\u0665Gi", "is no size"),
        ("1Mi", "1Mi is too small; give 64Mi or more, or 0 for no limit"),
        ("512", "512 is too small"),
    ],
)
def test_another_size_is_refused_with_what_is_one(text: str, why: str):
    with pytest.raises(click.BadParameter, match=why):
        memory_size(64 << 20)(text)
