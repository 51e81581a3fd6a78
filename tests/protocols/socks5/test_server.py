"""SOCKS5 as a server: what each client is told, in whatever pieces it speaks, and every way to break the rules."""

from __future__ import annotations

import base64

import pytest

from egressproxy.model.authority import parse_authority
from egressproxy.model.secret import SecretBytes
from egressproxy.protocols.socks5.client import SocksClient
from egressproxy.protocols.socks5.messages import ReplyCode
from egressproxy.protocols.socks5.server import (
    CommandNotServed,
    LoginMalformed,
    NoAcceptableMethod,
    NotSocksClient,
    RequestRefused,
    SocksServer,
    SocksServerError,
    ViaMalformed,
    reply,
)

CONNECT_NAME = b"\x05\x01\x00\x03\x09a.example\x01\xbb"


def server(*, asks_login: bool = False, may_be_nobody: bool = True) -> SocksServer:
    return SocksServer(asks_login=asks_login, may_be_nobody=may_be_nobody)


@pytest.mark.parametrize("authority", [b"a.example:443", b"93.184.216.1:80", b"[2001:db8::1]:65535"])
@pytest.mark.parametrize("login", [None, b"\x01\x05robot\x04word"])
@pytest.mark.parametrize("via", [b"", b"1.1 one", b"1.1 one, 1.0 two"])
def test_it_understands_our_own_client(authority: bytes, login: bytes | None, via: bytes):
    client = SocksClient(parse_authority(authority), SecretBytes(login) if login is not None else None, via)
    proxy = server(asks_login=True)
    said = client.greeting()
    while said:
        answer = proxy.feed(said)
        said = client.feed(answer) if answer else b""
    assert (proxy.target, proxy.via) == (authority, via)
    shown = b"Basic " + base64.b64encode(b"robot:word") if login is not None else b""
    assert proxy.credentials == shown
    assert not client.is_connected
    client.feed(reply(None))
    assert client.is_connected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_gateway_says_by_whom_it_was_asked_in_any_pieces(size: int):
    proxy = server(asks_login=True)
    said = b"\x05\x03\x02\x00\xe6" + b"\x01\x00\x071.1 one" + b"\x01\x05robot\x00" + CONNECT_NAME
    answers = b"".join(proxy.feed(said[at : at + size]) for at in range(0, len(said), size))
    assert answers == b"\x05\xe6" + b"\x05\x02" + b"\x01\x00"
    assert (proxy.target, proxy.via) == (b"a.example:443", b"1.1 one")


@pytest.mark.parametrize(
    "said",
    [
        b"\x02\x00\x071.1 one",
        b"\x01\x00\x00",
        b"\x01\x00\x091.1 one\r\n",
        b"\x01\x00\x081.1 one ",
        b"\x01\x00\x071.1 on\xc3",
        b"\x01\x10\x01",
    ],
)
def test_what_is_no_via_is_refused(said: bytes):
    with pytest.raises(ViaMalformed):
        server().feed(b"\x05\x02\x00\xe6" + said)


def test_who_has_said_via_has_to_offer_another_method_too():
    with pytest.raises(NoAcceptableMethod):
        server().feed(b"\x05\x01\xe6" + b"\x01\x00\x071.1 one")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_client_may_speak_in_any_pieces_and_all_at_once(size: int):
    proxy = server(asks_login=True)
    said = b"\x05\x02\x00\x02" + b"\x01\x05robot\x00" + CONNECT_NAME + b"early"
    answers, rest = b"", b""
    for at in range(0, len(said), size):
        if proxy.target:
            rest += said[at : at + size]
        else:
            answers += proxy.feed(said[at : at + size])
    assert answers == b"\x05\x02\x01\x00"
    assert (proxy.target, proxy.take_rest() + rest) == (b"a.example:443", b"early")


@pytest.mark.parametrize(
    ("methods", "asks_login", "may_be_nobody", "chosen"),
    [
        (b"\x00", False, True, 0),
        (b"\x00\x02", False, True, 0),
        (b"\x02", False, True, 2),  # it shows what nobody asks for
        (b"\x00\x01\x02", True, True, 2),
        (b"\x00", True, True, 0),
        (b"\x00\x02", True, False, 2),
    ],
)
def test_which_method_is_chosen(methods: bytes, asks_login: bool, may_be_nobody: bool, chosen: int):
    proxy = server(asks_login=asks_login, may_be_nobody=may_be_nobody)
    assert proxy.feed(bytes((5, len(methods))) + methods) == bytes((5, chosen))


@pytest.mark.parametrize(
    ("methods", "is_for_want_of_login"), [(b"\x00", True), (b"\x00\x01", True), (b"\x01", False), (b"", False)]
)
def test_a_client_without_a_method_that_is_taken(methods: bytes, is_for_want_of_login: bool):
    with pytest.raises(NoAcceptableMethod) as raised:
        server(asks_login=True, may_be_nobody=False).feed(bytes((5, len(methods))) + methods)
    assert raised.value.answer == b"\x05\xff"
    assert raised.value.is_for_want_of_login is is_for_want_of_login


GENERAL, COMMAND, TYPE = (reply(ReplyCode(code)) for code in (1, 7, 8))


@pytest.mark.parametrize(
    ("said", "error", "answer"),
    [
        (b"\x04\x01\x00\x50", NotSocksClient, b""),  # SOCKS4
        (b"CONNECT a.example:443 HTTP/1.1\r\n", NotSocksClient, b""),
        (b"\x05\x01\x00\x04", NotSocksClient, GENERAL),
        (b"\x05\x01\x00\x05\x02", CommandNotServed, COMMAND),  # BIND
        (b"\x05\x01\x00\x05\x03", CommandNotServed, COMMAND),  # UDP ASSOCIATE
        (b"\x05\x01\x00\x05\x09", CommandNotServed, COMMAND),
        (b"\x05\x01\x00\x05\x01\x01", NotSocksClient, GENERAL),
        (b"\x05\x01\x00\x05\x01\x00\x02", RequestRefused, TYPE),
        (b"\x05\x01\x02\x05", LoginMalformed, b"\x01\x01"),
        (b"\x05\x01\x02\x01\x03a:b\x01c", LoginMalformed, b"\x01\x01"),
    ],
)
def test_what_breaks_the_rules(said: bytes, error: type[SocksServerError], answer: bytes):
    with pytest.raises(error) as raised:
        server().feed(said)
    assert raised.value.answer == answer


def test_an_unserved_command_is_named():
    with pytest.raises(CommandNotServed, match="UDP ASSOCIATE is not served, only CONNECT"):
        server().feed(b"\x05\x01\x00\x05\x03\x00")
    assert reply(None) == b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
