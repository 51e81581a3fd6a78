"""The PROXY protocol: whole headers, headers in pieces, and what only looks like one."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from egressproxy.protocols.proxy_protocol import BadProxyHeader, ProxyHeaderReader

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def block(source: str, port: int, *, command: int = 0x21, family: int | None = None, more: bytes = b"") -> bytes:
    address = ip_address(source)
    other = ip_address("127.0.0.1" if address.version == 4 else "::1")
    body = address.packed + other.packed + port.to_bytes(2, "big") + (443).to_bytes(2, "big") + more
    kind = family if family is not None else 0x11 if address.version == 4 else 0x21
    return SIGNATURE + bytes((command, kind)) + len(body).to_bytes(2, "big") + body


WHOLE = [
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n", ("192.0.2.7", 56324)),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 1 65535\r\n", ("2001:db8::7", 1)),
    (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 0 443\r\n", ("192.0.2.7", 0)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
    (block("192.0.2.7", 56324), ("192.0.2.7", 56324)),
    (block("2001:db8::7", 9, more=b"\x04\x00\x02ab"), ("2001:db8::7", 9)),
    (block("192.0.2.7", 56324, command=0x20), None),
    (block("192.0.2.7", 56324, family=0x12), None),
    (SIGNATURE + b"\x20\x00\x00\x00", None),
    (SIGNATURE + b"\x21\x31\x00\xd8" + b"/" * 216, None),
]


@pytest.mark.parametrize(("header", "source"), WHOLE, ids=range(len(WHOLE)))
def test_a_header_whole_in_pieces_and_with_what_is_behind(header: bytes, source: tuple[str, int] | None):
    for rest in (b"", b"GET / HTTP/1.1\r\n", b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", SIGNATURE):
        reader = ProxyHeaderReader()
        assert reader.feed(header + rest)
        assert (reader.source, reader.rest) == (source, rest)
    reader = ProxyHeaderReader()
    assert [reader.feed(header[at : at + 1]) for at in range(len(header))] == [False] * (len(header) - 1) + [True]
    assert (reader.source, reader.rest) == (source, b"")


WRONG = [
    b"GET / HTTP/1.1\r\n",
    b"\x16\x03\x01\x02\x00",
    b"PRI * HTTP/2.0\r\n",
    b"proxy TCP4 192.0.2.7 198.51.100.1 56324 443\r\n",
    b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\n",
    b"PROXY  TCP4 192.0.2.7 198.51.100.1 56324 443\r\n",
    b"PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n",
    b"PROXY TCP4 192.0.2.7 198.51.100.1 056324 443\r\n",
    b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 443\r\n",
    b"PROXY TCP4 192.0.2.07 198.51.100.1 1 443\r\n",
    b"PROXY TCP4 192.0.2 198.51.100.1 1 443\r\n",
    b"PROXY TCP4 ::1 ::1 1 443\r\n",
    b"PROXY TCP6 192.0.2.7 ::1 1 443\r\n",
    b"PROXY TCP6 fe80::1%eth0 ::1 1 443\r\n",
    b"PROXY UDP4 192.0.2.7 198.51.100.1 1 443\r\n",
    b"PROXY UNKNOWN " + b"a" * 100 + b"\r\n",
    b"PROXY " + b"a" * 102,
    b"PROXY UNKNOWN\0\r\n",
    SIGNATURE + b"\x11\x11\x00\x0c" + b"a" * 12,
    SIGNATURE + b"\x22\x11\x00\x0c" + b"a" * 12,
    SIGNATURE + b"\x21\x11\x00\x0b" + b"a" * 11,
    SIGNATURE + b"\x21\x21\x00\x0c" + b"a" * 12,
    SIGNATURE + b"\x21\x11\xff\xff",
    SIGNATURE[:-1] + b"X",
]


@pytest.mark.parametrize("header", WRONG, ids=range(len(WRONG)))
def test_what_is_no_header(header: bytes):
    with pytest.raises(BadProxyHeader):
        ProxyHeaderReader().feed(header)
