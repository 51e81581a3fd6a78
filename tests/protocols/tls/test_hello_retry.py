"""What follows a ClientHello, until no second one can be read any more."""

from __future__ import annotations

import ssl
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.protocols.tls.client_hello import BadClientHello
from egressproxy.protocols.tls.hello_retry import HelloRetry
from tests.protocols.tls.test_client_hello import message, records, server_name
from tests.support.pki import Pki
from tests.support.properties import examples

CHANGE = b"\x14\x03\x03\x00\x01\x01"
ALERT = b"\x15\x03\x03\x00\x02\x01\x70"
DATA = b"\x17\x03\x03\x00\x15early" + bytes(16)
SECOND = records(message(server_name(b"b.test")))
RETRY = bytes.fromhex("CF21AD74E59A6111BE1D8C021E65B891C2A211167ABB8C5E079E09E2C8A8339C")


def answer(random: bytes, kind: int = 2) -> bytes:
    body = b"\x03\x03" + random + b"\x00\x13\x01\x00"
    return bytes([kind]) + struct.pack("!I", len(body))[1:] + body


def flights(curve: str | None) -> tuple[list[bytes], list[bytes]]:
    """What a real client and a real server say in a handshake, each piece in its turn."""
    pki = Pki()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pki.issue("a.test").configure_cert(server)
    if curve is not None:
        server.set_ecdh_curve(curve)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_tls = pki.client_context().wrap_bio(to_client, out := ssl.MemoryBIO(), server_hostname="a.test")
    server_tls = server.wrap_bio(to_server, back := ssl.MemoryBIO(), server_side=True)
    said: tuple[list[bytes], list[bytes]] = ([], [])
    for _ in range(4):
        for tls, sent, other, pieces in ((client_tls, out, to_server, said[0]), (server_tls, back, to_client, said[1])):
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            if piece := sent.read():
                pieces.append(piece)
                other.write(piece)
    return said


def test_a_real_handshake_is_over_with_the_answer_of_its_server():
    _, (server, *_) = flights(None)
    watch = HelloRetry()
    watch.from_server(server)
    assert watch.is_over


def test_a_real_second_hello_is_read_and_ends_it():
    (_, second, *_), (retry, *_) = flights("secp521r1")
    watch = HelloRetry()
    watch.from_server(retry)
    assert not watch.is_over
    assert watch.from_client(second) == second
    assert watch.second is not None
    assert watch.second.sni == "a.test"
    assert watch.is_over


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 60), st.integers(1, 60))
def test_any_cutting_gives_the_same(record: int, segment: int):
    said = CHANGE + DATA + records(message(server_name(b"b.test")), record) + b"rest"
    watch, passed = HelloRetry(), b""
    for at in range(0, len(said), segment):
        if watch.is_over:
            passed += said[at:]
            break
        passed += watch.from_client(said[at : at + segment])
        assert watch.second is not None or len(passed) <= len(CHANGE + DATA)
    assert watch.second is not None
    assert watch.second.sni == "b.test"
    assert passed == said


@pytest.mark.parametrize("segment", [1, 3, 7, 1000])
@pytest.mark.parametrize("record", [1, 30, 1000])
@pytest.mark.parametrize(("random", "is_over"), [(bytes(32), True), (RETRY, False)])
def test_the_answer_of_a_server_is_read_however_it_is_cut(segment: int, record: int, random: bytes, is_over: bool):
    said = ALERT + records(answer(random), record)
    watch = HelloRetry()
    for at in range(0, len(said), segment):
        watch.from_server(said[at : at + segment])
    assert watch.is_over is is_over
    watch.from_server(records(answer(bytes(32))))
    assert watch.is_over is is_over, "there is one answer"


def test_a_hello_retry_request_of_the_drafts_is_one():
    watch = HelloRetry()
    watch.from_server(records(answer(bytes(32), kind=6)))
    assert not watch.is_over


def test_a_server_that_speaks_something_else_reads_no_hello():
    watch = HelloRetry()
    watch.from_server(b"HTTP/1.1 400 Bad Request\r\n")
    assert watch.is_over


def test_a_server_that_never_comes_to_the_point_ends_nothing_and_fills_no_memory():
    watch = HelloRetry()
    for _ in range(1000):
        watch.from_server(ALERT * 10)
    watch.from_server(records(answer(bytes(32))))
    assert not watch.is_over
    assert not watch._answer


class Counted(bytes):
    """Bytes that count how often somebody looks at some of them."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        type(self).looks += 1
        return super().__getitem__(key)


def test_empty_records_of_a_server_keep_nobody_busy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Counted, "looks", 0)
    HelloRetry().from_server(Counted(b"\x16\x03\x03\x00\x00" * 52_000))
    assert Counted.looks < 5_000
    watch = HelloRetry()
    for _ in range(800):
        watch.from_server(b"\x16\x03\x03\x00\x00")
        assert not watch._answer, "it would be read again with what follows"


@pytest.mark.parametrize("record", [b"\x17\x03\x03\x00\x00", b"\x15\x03\x03\x00\x02\x01\x00"])
def test_tiny_records_of_a_client_keep_nobody_busy(record: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Counted, "looks", 0)
    with pytest.raises(BadClientHello, match="more than 256 tiny records"):
        HelloRetry().from_client(Counted(record * 30_000))
    assert Counted.looks < 2_000


def test_a_hello_behind_early_data_is_read():
    """Such a server skips early data (RFC 8446 section 4.2.10), however much there is."""
    watch = HelloRetry()
    for _ in range(100):
        assert watch.from_client(DATA * 3) == DATA * 3
    assert watch.from_client(SECOND) == SECOND
    assert watch.second is not None


def test_octets_that_are_no_record_end_it():
    watch = HelloRetry()
    assert watch.from_client(b"early") == b"early"
    assert watch.is_over


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(records(b"\x10\x00\x00\x01x"), id="another handshake message"),
        pytest.param(SECOND[:1] + b"\x02" + SECOND[2:], id="an odd version of the record"),
        pytest.param(b"\x16\x03\x03\x00\x00", id="an empty record"),
        pytest.param(b"\x17\x03\x03\xff\xff", id="a record too large"),
        pytest.param(records(message(server_name(b"b.test")), 20)[:25] + CHANGE, id="another record inside"),
        pytest.param(records(message(server_name(b"b.test", b"c.test"))), id="two names"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(said: bytes):
    with pytest.raises(BadClientHello):
        HelloRetry().from_client(said)


def test_what_is_held_of_a_second_hello_is_bounded():
    watch = HelloRetry()
    said = records(b"\x01\x00\x9f\x00" + bytes(50_000), 100)
    with pytest.raises(BadClientHello, match="larger than"):
        watch.from_client(said)
    assert not watch.held
