"""What the first bytes of a client say, in whatever pieces they come."""

from __future__ import annotations

import pytest

from egressproxy.gateway.listeners.redirection import MAX_LINE, Spoken, spoken
from tests.gateway.exchange.test_connect import client_hello

HELLO = client_hello("a.example")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"", None),
        (HELLO[:1], Spoken.TLS),
        (b"\x80\x2e\x01\x03\x01", Spoken.TLS),  # a ClientHello in the form of SSLv2
        (b"GET / HTTP/1.1\r\n", Spoken.HTTP),
        (b"M-SEARCH * HTTP/1.1\r\nHost: a.example\r\n\r\n", Spoken.HTTP),
        (b"GET / HTTP/1.1\n", Spoken.HTTP),
        (b"CONNECT a.example:443 HTTP/1.1\r\n", Spoken.HTTP),
        (b"GET " + b"a" * MAX_LINE, Spoken.HTTP),  # its reader says that it is too long
        (b"G", None),
        (b"GET /a b", None),
        (b"PRI * HTTP/2.0\r\n", Spoken.OPAQUE),
        (b"GET /\r\n", Spoken.OPAQUE),  # HTTP/0.9
        (b"get / HTTP/1.1\r\n", Spoken.OPAQUE),
        (b"EHLO a.example\r\n", Spoken.OPAQUE),
        (b"SSH-2.0-OpenSSH\r\n", Spoken.OPAQUE),
        (b"\x00\x00", Spoken.OPAQUE),
        (b" GET / HTTP/1.1\r\n", Spoken.OPAQUE),
        (b"A" * 33, Spoken.OPAQUE),
    ],
)
def test_what_is_spoken(said: bytes, found: Spoken | None):
    assert spoken(said) is found


@pytest.mark.parametrize(
    ("said", "found"), [(b"OPTIONS * HTTP/1.0\r\n", Spoken.HTTP), (b"HELO a HTTP\r\n", Spoken.OPAQUE)]
)
def test_nothing_is_decided_before_the_line_is_whole(said: bytes, found: Spoken):
    decided = [spoken(said[:end]) for end in range(len(said) + 1)]
    assert decided == [None] * len(said) + [found]
