"""SOCKS5 as a client: what is sent byte by byte, and every way in which a proxy may refuse or break the rules."""

from __future__ import annotations

import pytest

from egressproxy.model.authority import Authority, parse_authority
from egressproxy.model.secret import SecretBytes
from egressproxy.protocols.socks5.client import (
    LoginRefused,
    NoCommonMethod,
    NotSocks,
    Refused,
    SocksClient,
    SocksError,
)
from egressproxy.protocols.socks5.messages import MAX_VIA, ReplyCode

NAME = Authority("a.example", 443)
CONNECT_NAME = b"\x05\x01\x00\x03\x09a.example\x01\xbb"
CONNECTED = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x1f\x90"
LOGIN = SecretBytes(b"\x01\x05robot\x04word")


def at_reply(authority: Authority = NAME) -> SocksClient:
    client = SocksClient(authority)
    assert client.greeting() == b"\x05\x01\x00"
    assert client.feed(b"\x05\x00")
    return client


@pytest.mark.parametrize(
    ("authority", "packed"),
    [
        (b"a.example:443", CONNECT_NAME[3:]),
        (b"93.184.216.1:80", b"\x01\x5d\xb8\xd8\x01\x00\x50"),
        (b"[2001:db8::1]:65535", b"\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x01\xff\xff"),
    ],
)
def test_names_are_left_to_the_proxy_and_addresses_sent_as_such(authority: bytes, packed: bytes):
    client = SocksClient(parse_authority(authority))
    client.greeting()
    assert client.feed(b"\x05\x00") == b"\x05\x01\x00" + packed
    assert not client.is_connected


def test_a_proxy_that_chooses_via_is_told_once_by_whom_we_were_asked():
    client = SocksClient(NAME, LOGIN, b"1.1 one, 1.1 two")
    assert client.greeting() == b"\x05\x03\x02\x00\xe6"
    assert client.feed(b"\x05\xe6") == b"\x01\x00\x101.1 one, 1.1 two"
    with pytest.raises(NotSocks):
        client.feed(b"\x05\xe6")


def test_of_a_long_way_the_latest_gateways_are_told():
    client = SocksClient(NAME, via=b", ".join(b"1.1 gateway-%d" % number for number in range(1000)))
    client.greeting()
    said = client.feed(b"\x05\xe6")
    assert len(said) == 3 + int.from_bytes(said[1:3], "big") <= 3 + MAX_VIA
    assert said[3:].startswith(b"1.1 gateway-")
    assert said.endswith(b"1.1 gateway-999")


@pytest.mark.parametrize(
    "bound", [b"\x01" + bytes(4), b"\x04" + bytes(16), b"\x03\x07b.local", b"\x03\x00"], ids=["v4", "v6", "name", ""]
)
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_what_follows_the_reply_is_the_destinations(bound: bytes, piece: int):
    client = at_reply()
    reply = b"\x05\x00\x00" + bound + b"\x1f\x90" + b"220 hello"
    for start in range(0, len(reply), piece):
        assert client.feed(reply[start : start + piece]) == b""
    assert client.is_connected
    assert client.take_rest() == b"220 hello"
    assert client.take_rest() == b""


def test_username_and_password_are_shown_to_a_proxy_that_asks():
    client = SocksClient(NAME, LOGIN)
    assert client.greeting() == b"\x05\x02\x02\x00"
    assert client.feed(b"\x05") == b""
    assert client.feed(b"\x02") == b"\x01\x05robot\x04word"
    assert client.feed(b"\x01\x00") == CONNECT_NAME
    client.feed(CONNECTED)
    assert client.is_connected


def test_they_are_not_shown_to_one_that_does_not():
    client = SocksClient(NAME, LOGIN)
    client.greeting()
    assert client.feed(b"\x05\x00") == CONNECT_NAME


def test_a_password_that_is_wrong():
    client = SocksClient(NAME, LOGIN)
    client.feed(b"\x05\x02")
    with pytest.raises(LoginRefused):
        client.feed(b"\x01\x01")


@pytest.mark.parametrize("credentials", [None, LOGIN])
def test_a_proxy_that_takes_none_of_the_methods(credentials: SecretBytes | None):
    with pytest.raises(NoCommonMethod):
        SocksClient(NAME, credentials).feed(b"\x05\xff")


@pytest.mark.parametrize("code", list(ReplyCode))
def test_each_code_of_a_refusal_needs_no_more_than_two_bytes(code: ReplyCode):
    with pytest.raises(Refused) as refused:
        at_reply().feed(bytes((5, code)))
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        ([b"H"], "first byte is 0x48"),
        ([b"\x04\x00"], "first byte is 0x04"),
        ([b"\x05\x02"], "method 0x02, which was not offered"),
        ([b"\x05\x01"], "method 0x01, which was not offered"),
        ([b"\x05\x00\x05"], "more than it was asked for"),
        ([b"\x05\x00", b"\x04"], "version 4"),
        ([b"\x05\x00", b"\x05\x09"], "unassigned code 0x09"),
        ([b"\x05\x00", b"\x05\x00\x01"], "reserved byte"),
        ([b"\x05\x00", b"\x05\x00\x00\x02\x00"], "address type 0x02"),
    ],
)
def test_what_is_no_socks5_is_refused_at_the_first_wrong_byte(talk: list[bytes], said: str):
    client = SocksClient(NAME)
    *before, wrong = talk
    for piece in before:
        client.feed(piece)
    with pytest.raises(NotSocks, match=said):
        client.feed(wrong)


@pytest.mark.parametrize(
    ("talk", "said"), [(b"\x05\x00", "version 5"), (b"\x01\x00\x05", "more than it was asked for")]
)
def test_the_answer_to_a_password_is_read_as_strictly(talk: bytes, said: str):
    client = SocksClient(NAME, LOGIN)
    client.feed(b"\x05\x02")
    with pytest.raises(NotSocks, match=said):
        client.feed(talk)


def test_no_bytes_lead_to_anything_but_a_state_or_an_error():
    """Every reply of up to two bytes at each step, and what is kept is bounded by the longest message."""
    for first in range(256):
        for second in range(256):
            client = SocksClient(NAME)
            try:
                client.feed(bytes((first, second)))
                client.feed(bytes((first, second)))
            except SocksError:
                continue
            assert not client.is_connected
