"""The one grammar of hosts and ports: what is in it, and that everything else is refused and never repaired."""

from __future__ import annotations

import ipaddress
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.model import authority
from egressproxy.model.authority import MAX_TEXTS, Authority, AuthorityError, parse_authority, parse_host, text_of

LABEL = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=20).filter(
    lambda label: label.strip("-") == label
)
NAMES = (
    st.lists(LABEL, min_size=1, max_size=5)
    .map(".".join)
    .filter(lambda name: not name.rsplit(".", 1)[-1].isdigit() and not name.rsplit(".", 1)[-1].lower().startswith("0x"))
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (b"a.example:443", "a.example", 443),
        (b"A.Example.:443", "a.example", 443),
        (b"a_b-c.example:1", "a_b-c.example", 1),
        (b"127.0.0.1:80", "127.0.0.1", 80),
        (b"[::1]:65535", "::1", 65535),
        (b"[2001:DB8:0:0::1]:80", "2001:db8::1", 80),
        (b"[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80),
    ],
)
def test_a_host_has_one_canonical_form(text: bytes, host: str, port: int):
    found = parse_authority(text, None)
    assert (found.host.replace("::ffff:a00:1", "::ffff:10.0.0.1"), found.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        b"", b":80", b"a.example", b"a.example:", b"a.example:0", b"a.example:65536", b"a.example:080",
        b"a.example:+80",
        b"a.example:8_0", b"a.example:80 ", b" a.example:80", b"user@a.example:80", b"a.example:80:80",
        b"a..example:80",
        b".a.example:80", b"a.example..:80", b"-a.example:80", b"a-.example:80", b"a.exa mple:80", b"a\x00.example:80",
        b"a%2eexample:80", b"a\\.example:80", b"a/b:80", b"a?b:80", b"a#b:80", b"127.1:80", b"0x7f.1:80",
        b"0177.0.0.1:80",
        b"2130706433:80", b"0:80", b"127.0.0.1.:80", b"127.0.0.256:80", b"127.0.0.01:80", b"a.0x7f:80", b"a.1:80",
        b"[::1]80:80", b"[::1:80", b"::1:80", b"[fe80::1%25eth0]:80", b"[127.0.0.1]:80", b"[]:80", b"[::g]:80",
        "１27.0.0.1:80".encode(), "a。example:80".encode(), b"a" * 64 + b".example:80", b"a." * 130 + b"example:80",
    ],
)  # fmt: skip
def test_what_is_not_in_the_grammar_is_refused_and_not_repeated(text: bytes):
    with pytest.raises(AuthorityError) as caught:
        parse_authority(text, None)
    assert len(text) < 4 or text.decode("latin-1") not in str(caught.value)


def test_a_missing_port_is_the_default_or_an_error():
    assert parse_authority(b"a.example", 80) == Authority("a.example", 80)
    assert parse_authority(b"[::1]", 443).port == 443
    with pytest.raises(AuthorityError, match="port"):
        parse_authority(b"[::1]", None)


@given(NAMES, st.integers(1, 65535))
def test_every_name_of_the_grammar_is_read_and_stays_itself(name: str, port: int):
    found = parse_authority(f"{name}:{port}".encode(), None)
    assert found == Authority(name.lower(), port)
    assert parse_authority(str(found).encode(), None) == found


@given(st.ip_addresses())
def test_every_address_is_read_as_the_address_that_it_is(address: ipaddress.IPv4Address | ipaddress.IPv6Address):
    text = str(address) if address.version == 4 else f"[{address}]"
    host, found = parse_host(text.encode())
    assert found == address
    assert ipaddress.ip_address(host) == address


@given(st.binary(max_size=40))
def test_octets_are_an_authority_or_an_error_and_nothing_else(raw: bytes):
    try:
        found = parse_authority(raw, 80)
    except AuthorityError:
        return
    assert found.host == found.host.lower()
    assert all(c in string.ascii_lowercase + string.digits + "-_.:" for c in found.host)
    assert 1 <= found.port <= 65535
    if found.address is None:
        assert not found.host.rsplit(".", 1)[-1].isdigit()


def test_a_host_field_leaves_out_the_default_port():
    assert Authority("a.example", 443).host_field(443) == b"a.example"
    assert Authority("a.example", 80).host_field(443) == b"a.example:80"
    assert Authority("::1", 8080).host_field(80) == b"[::1]:8080"


# --- texts of addresses --------------------------------------------------------------------------------------------
@given(
    st.one_of(st.ip_addresses(), st.sampled_from([ipaddress.ip_address("fe80::1%eth0"), ipaddress.ip_address("::1")]))
)
def test_the_text_of_an_address_is_its_own_each_time(address: ipaddress.IPv4Address | ipaddress.IPv6Address):
    assert text_of(address) == text_of(type(address)(str(address))) == str(address)


def test_addresses_of_the_same_number_have_the_texts_of_their_versions():
    assert [text_of(ipaddress.IPv4Address(1)), text_of(ipaddress.IPv6Address(1))] == ["0.0.0.1", "::1"]


def test_texts_that_are_kept_are_bounded():
    for number in range(3 * MAX_TEXTS):
        assert text_of(ipaddress.IPv4Address(number)) == str(ipaddress.IPv4Address(number))
        assert len(authority._texts) <= MAX_TEXTS
