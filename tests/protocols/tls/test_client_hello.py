from __future__ import annotations

import ssl
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.protocols.tls import client_hello
from egressproxy.protocols.tls.client_hello import (
    ACCESS_DENIED,
    MISSING_EXTENSION,
    UNRECOGNIZED_NAME,
    BadClientHello,
    ClientHello,
    ClientHelloReader,
    NotTls,
)
from tests.support.builds import of_sources


def extension(number: int, data: bytes) -> bytes:
    return struct.pack("!HH", number, len(data)) + data


def server_name(*names: bytes, kind: int = 0) -> bytes:
    entries = b"".join(bytes([kind]) + struct.pack("!H", len(n)) + n for n in names)
    return extension(0, struct.pack("!H", len(entries)) + entries)


def records(message: bytes, size: int = 16384, content: int = 22) -> bytes:
    pieces = [message[i : i + size] for i in range(0, len(message), size)]
    return b"".join(bytes([content]) + b"\x03\x01" + struct.pack("!H", len(p)) + p for p in pieces)


def message(
    extensions: bytes | None, *, version: bytes = b"\x03\x03", suites: bytes = b"\x13\x01", tail: bytes = b""
) -> bytes:
    body = version + bytes(32) + b"\x00" + struct.pack("!H", len(suites)) + suites + b"\x01\x00"
    if extensions is not None:
        body += struct.pack("!H", len(extensions)) + extensions
    body += tail
    return b"\x01" + struct.pack("!I", len(body))[1:] + body


def read(data: bytes, size: int = 0) -> ClientHello | None:
    reader = ClientHelloReader()
    found = None
    for start in range(0, len(data), size or len(data)):
        found = reader.feed(data[start : start + (size or len(data))])
    return found


def real_hello(name: str | None = "a.test", alpn: tuple[str, ...] = ("h2", "http/1.1")) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(list(alpn))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


GOOD = message(server_name(b"a.test"))


def test_the_hello_of_a_real_client_is_read():
    found = read(real_hello())
    assert found is not None
    assert found.sni == "a.test"
    assert found.alpn == (b"h2", b"http/1.1")
    assert 0x0304 in found.versions
    assert not found.has_ech


def test_without_server_name_there_is_none():
    assert read(records(message(b""))) == ClientHello(None, (), (0x0303,), False)
    assert read(records(message(None))) == ClientHello(None, (), (0x0303,), False)
    found = read(real_hello(name=None))
    assert found is not None
    assert found.sni is None


def test_case_and_a_trailing_dot_do_not_matter():
    found = read(records(message(server_name(b"ALLOWED.Test."))))
    assert found is not None
    assert found.sni == "allowed.test"


def test_ech_is_flagged():
    found = read(records(message(server_name(b"a.test") + extension(0xFE0D, bytes(64)))))
    assert found is not None
    assert found.has_ech


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(range(16)))
def test_grease_is_read_over_wherever_a_browser_puts_it(record: int, segment: int, number: int):
    """RFC 8701: values that no server knows, among suites, extensions (the first and the last), versions and ALPN."""
    value = 0x0A0A + number * 0x1010
    grease = struct.pack("!H", value)
    extensions = (
        extension(value, b"")
        + server_name(b"a.test")
        + extension(10, b"\x00\x04" + grease + b"\x00\x1d")  # groups
        + extension(43, b"\x06" + grease + b"\x03\x04\x03\x03")  # versions
        + extension(16, b"\x00\x06\x02" + grease + b"\x02h2")
        + extension(51, b"\x00\x05" + grease + b"\x00\x01\x00")  # key shares
        + extension((value + 0x1010) & 0xFFFF, b"\x00")
    )
    hello = message(extensions, suites=grease + b"\x13\x01")
    found = read(records(hello, record), segment)
    assert found == ClientHello("a.test", (grease, b"h2"), (value, 0x0304, 0x0303), False)


@given(st.integers(1, 300), st.integers(1, 300))
def test_any_split_into_records_and_segments_gives_the_same(record: int, segment: int):
    hello = message(server_name(b"a.test") + extension(16, b"\x00\x03\x02h2") + extension(21, bytes(300)))
    assert read(records(hello, record), segment) == ClientHello("a.test", (b"h2",), (0x0303,), False)


def test_a_hello_over_16_kib_is_read():
    found = read(records(message(server_name(b"a.test") + extension(21, bytes(35_000)))))
    assert found is not None
    assert found.sni == "a.test"


def test_a_hello_beyond_the_limit_is_refused_at_its_length():
    hello = records(message(server_name(b"a.test") + extension(21, bytes(60_000))))
    with pytest.raises(BadClientHello, match="larger than"):
        ClientHelloReader().feed(hello[:17_000])


@of_sources
def test_many_tiny_records_do_not_go_beyond_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_hello, "MAX_BYTES", 1000)
    reader = ClientHelloReader()
    with pytest.raises(BadClientHello, match="larger than"):
        reader.feed(records(message(extension(21, bytes(900))), 1)[:2000])


def test_the_records_that_a_hello_stands_in_are_bounded():
    """Each takes its time, and 40,000 of them may come at once."""
    reader = ClientHelloReader()
    with pytest.raises(BadClientHello, match="more than 1024 records"):
        reader.feed(records(message(extension(21, bytes(40_000))), 1))
    assert reader.size == 1024 * 6


def test_all_octets_are_kept_and_what_follows_the_record_is_left_alone():
    reader = ClientHelloReader()
    octets = records(GOOD) + b"\x14\x03\x03\x00\x01\x01"
    assert reader.feed(octets) is not None
    assert reader.data == octets


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n", b"\x80\x2e\x01\x00\x02", b"\x16\x10", b"\x17\xff", b"\x19", b"\x00"],
)  # fmt: skip
def test_what_cannot_be_tls_is_told_at_once(data: bytes):
    with pytest.raises(NotTls):
        ClientHelloReader().feed(data)


def test_nothing_is_not_enough():
    assert ClientHelloReader().feed(b"") is None
    assert ClientHelloReader().feed(b"\x16") is None
    assert ClientHelloReader().feed(b"\x15") is None
    assert ClientHelloReader().feed(b"\x80\x2e\x01") is None


@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(records(b"\x02" + GOOD[1:]), id="server hello"),
        pytest.param(records(b"\x02" + GOOD[1:])[:6], id="server hello, its first octet"),
        pytest.param(records(message(server_name(b"a.test", b"b.test"))), id="two names"),
        pytest.param(records(message(server_name(b"a.test") + server_name(b"b.test"))), id="two extensions"),
        pytest.param(records(message(server_name(b"a.test", kind=1))), id="unknown kind of name"),
        pytest.param(records(message(server_name())), id="empty list"),
        pytest.param(records(message(server_name(b""))), id="empty name"),
        pytest.param(records(message(extension(0, b""))), id="empty extension"),
        pytest.param(records(message(server_name(b"a.test\x00.b.test"))), id="nul"),
        pytest.param(records(message(server_name(b"93.184.216.34"))), id="IPv4"),
        pytest.param(records(message(server_name(b"[::1]"))), id="IPv6"),
        pytest.param(records(message(server_name(b"127.1"))), id="short IPv4"),
        pytest.param(records(message(server_name("ä.test".encode()))), id="not ASCII"),
        pytest.param(records(message(server_name(b"a..test"))), id="empty label"),
        pytest.param(records(message(extension(0, b"\x00\x09\x00\x00\x06a.testX"))), id="bytes after the list"),
        pytest.param(records(message(server_name(b"a.test"), tail=b"x")), id="bytes after the extensions"),
        pytest.param(records(message(b"\x00\x00\x00\xff")), id="length beyond the end"),
        pytest.param(records(message(b"", version=b"\x02\x00")), id="version"),
        pytest.param(records(message(b"", suites=b"")), id="no suites"),
        pytest.param(records(message(b"", suites=b"\x13")), id="half a suite"),
        pytest.param(records(message(extension(16, b"\x00\x01\x00"))), id="empty ALPN name"),
        pytest.param(records(message(extension(43, b"\x01\x03"))), id="half a version"),
        pytest.param(records(GOOD + GOOD), id="a second message in the record"),
        pytest.param(records(GOOD[:20]) + records(GOOD[20:], content=23), id="another record type inside"),
        pytest.param(records(GOOD[:20]) + b"\x16\x03\x01\x00\x00", id="an empty record inside"),
        pytest.param(b"\x16\x03\x01\x00\x00" + records(GOOD), id="an empty record before"),  # OpenSSL reads on
        pytest.param(b"\x15\x03\x03\x00\x02\x01\x70" + records(GOOD), id="an alert before"),  # Go reads on
        pytest.param(b"\x14\x03\x03\x00\x01\x01" + records(GOOD), id="a change of ciphers before"),
        pytest.param(b"\x16\x02" + records(GOOD)[2:], id="an odd version of the record"),  # Go reads on
        pytest.param(b"\x16\x03\x01\xff\xff", id="a record too large"),
        pytest.param(b"\x17\x03", id="application data"),
        pytest.param(b"\x80\x2e\x01\x03\x01", id="the form of SSLv2"),  # OpenSSL reads on
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(octets: bytes):
    with pytest.raises(BadClientHello):
        ClientHelloReader().feed(octets)


@given(st.binary(max_size=400))
def test_random_octets_raise_nothing_else(data: bytes):
    for octets in (data, b"\x16\x03\x01" + data, records(b"\x01\x00\x00" + bytes([len(data) % 256]) + data)):
        with suppress(NotTls, BadClientHello):
            ClientHelloReader().feed(octets)


@given(st.data())
def test_a_damaged_hello_raises_nothing_else(data: st.DataObject):
    octets = bytearray(records(message(server_name(b"a.test") + extension(16, b"\x00\x03\x02h2"))))
    for _ in range(data.draw(st.integers(1, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    with suppress(NotTls, BadClientHello):
        ClientHelloReader().feed(bytes(octets))


@pytest.mark.parametrize(
    ("alert", "reason"),
    [
        (ACCESS_DENIED, "ACCESS_DENIED"),
        (UNRECOGNIZED_NAME, "UNRECOGNIZED_NAME"),
        (MISSING_EXTENSION, "MISSING_EXTENSION"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_says_what_it_was_told(alert: bytes, reason: str, version: ssl.TLSVersion):
    context = ssl.create_default_context()
    context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(alert)
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert reason in caught.value.reason
