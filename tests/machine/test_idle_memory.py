"""What is idle keeps nothing large of what was said before: a client may send 60 KB of fields on each connection."""

from __future__ import annotations

import gc
import itertools

import pytest

from egressproxy.filters.base import Filter
from egressproxy.model.exchange import Exchange
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import CHANGE, SWITCHED, UPGRADE
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import ESTABLISHED, GET, OK, OK_PASSED, TlsClient, certificate, connect, forward
from tests.gateway.listeners.test_bound_port import proxy_over_tls
from tests.gateway.listeners.test_stream_connection import by_name
from tests.protocols.tls.test_client_hello import extension, message, records, server_name
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter
from tests.support.pinned import pinned
from tests.support.pki import Pki

HEAD = rb".*?\r\n\r\n"
#: Fields of this hop, which a connection may remember, and fields that go on.
REQUEST_FIELDS = ["Proxy-Authorization", "Keep-Alive", "X-Big", "Cookie"]
RESPONSE_FIELDS = ["Proxy-Authenticate", "Keep-Alive", "X-Big", "Set-Cookie"]
NUMBERS = itertools.count(1000)


@pytest.fixture
def mark() -> bytes:
    """What to look for: in each test another, since pytest keeps what a failed one had in hand."""
    return b"Mark%dx" % next(NUMBERS)


def swollen(head: bytes, field: str, mark: bytes) -> bytes:
    """The head with 60 KB more."""
    return b"%b%b: %b\r\n\r\n" % (head[:-2], field.encode(), mark * 6000)


def keeps_nothing(talk: Conversation, mark: bytes) -> None:
    for peer in (*talk.clients, *talk.origins):
        peer.is_open()
        peer.received.clear()
    assert pinned(mark) == []


@pytest.mark.parametrize("field", REQUEST_FIELDS)
def test_a_client_that_waits_for_its_next_request(converse: Start, field: str, mark: bytes):
    talk = converse(forward())
    for _ in range(2):
        talk.client >> swollen(GET, field, mark)
        if not hasattr(talk, "origin"):
            talk.dialled("a.example", 80)
        talk.origin.take(HEAD)
        talk.origin >> OK
        talk.client << OK_PASSED
    keeps_nothing(talk, mark)


@pytest.mark.parametrize("field", [b"proxy-authorization", b"x-big", b"cookie", b"via"])
@pytest.mark.parametrize("what", ["served", "refused", "tunnel", "answer"])
def test_a_client_of_http2(converse: Start, field: bytes, what: str, mark: bytes):
    talk = converse(forward())
    client = speak_http2(talk)
    big = (field, mark * 5000)
    if what == "tunnel":
        stream = client.connects(b"a.example:443", big)
        talk.dialled("a.example", 443)
        assert client.answer(stream).status == 200
    elif what == "refused":
        for _ in range(2):
            assert client.answer(client.ask(b"GET", b"/", b"b.example", big)).status == 403
    else:
        for _ in range(2):
            stream = client.ask(b"GET", b"/", b"a.example", *([big] if what == "served" else []))
            if not hasattr(talk, "origin"):
                talk.dialled("a.example", 80)
            talk.origin.take(HEAD)
            talk.origin >> (OK if what == "served" else swollen(OK[:-2], "X-Big", mark) + b"hi")
            assert client.answer(stream).status == 200
    talk.client.is_open()
    for peer in (*talk.clients, *talk.origins):
        peer.received.clear()
    del client, big
    gc.collect()
    assert pinned(mark) == []


@pytest.mark.parametrize("field", REQUEST_FIELDS)
def test_a_client_that_was_refused(converse: Start, field: str, mark: bytes):
    talk = converse(forward())
    talk.client >> swollen(GET.replace(b"a.example", b"b.example"), field, mark)
    assert talk.client.answer()[0] == 403
    keeps_nothing(talk, mark)


@pytest.mark.parametrize("field", RESPONSE_FIELDS)
@pytest.mark.parametrize("body", ["", "whole", "chunked"])
def test_an_upstream_that_waits_for_its_next_request(converse: Start, field: str, body: str, mark: bytes):
    talk = converse(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin.take(HEAD)
    end = body.encode()
    framing = b"Transfer-Encoding: chunked" if body == "chunked" else b"Content-Length: %d" % len(body)
    talk.origin >> swollen(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n", field, mark)
    if body == "chunked":
        end = b"2\r\nhi\r\n0\r\n\r\n"
    talk.origin >> end
    talk.client.take(HEAD + end)
    assert talk.idle == 1
    keeps_nothing(talk, mark)


@pytest.mark.parametrize("field", REQUEST_FIELDS)
def test_a_tunnel_that_is_read_as_http(converse: Start, field: str, mark: bytes):
    talk = converse(forward())
    request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.client >> swollen(connect("a.example:80"), field, mark)
    talk.client << ESTABLISHED
    talk.client >> swollen(request, field, mark)
    talk.dialled("a.example", 80)
    talk.origin.take(HEAD)
    talk.origin >> OK
    talk.client << OK_PASSED
    keeps_nothing(talk, mark)


class Noting(Filter):
    """Keeps state of each exchange, and looks at its head in the end."""

    def __init__(self) -> None:
        self.ended: list[bytes] = []

    def request_headers(self, x: Exchange) -> None:
        x.note("noting", 1)

    def complete(self, x: Exchange) -> None:
        self.ended.append(x.request.method)


@pytest.mark.parametrize("field", REQUEST_FIELDS)
@pytest.mark.parametrize("has_notes", [False, True])
def test_a_tunnel(converse_on: Start, field: str, has_notes: bool, mark: bytes):
    noting = Noting()
    extensions = {"extensions": [scripted_filter("n")]} if has_notes else {}
    talk = converse_on(forward(**extensions), filters={"n": noting})
    talk.client >> swollen(connect("a.example:443"), field, mark)
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    keeps_nothing(talk, mark)
    talk.client.leaves()
    talk.origin.leaves()
    talk.until(lambda: bool(talk.records))
    assert noting.ended == ([b"CONNECT"] if has_notes else [])


def test_a_tunnel_from_a_client_whose_tls_ends_here(converse: Start, mark: bytes):
    pki = Pki()
    talk = converse(proxy_over_tls(pki))
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example").shakes_hands()
    tls >> swollen(connect("a.example:22"), "X-Big", mark)
    talk.dialled("a.example", 22)
    assert tls.reads() == ESTABLISHED
    keeps_nothing(talk, mark)


@pytest.mark.parametrize("field", REQUEST_FIELDS)
def test_an_upgraded_connection(converse: Start, field: str, mark: bytes):
    talk = converse(forward())
    talk.client >> swollen(UPGRADE.replace(b"/ HTTP", b"/?" + b"q" * 5000 + b" HTTP"), field, mark)
    talk.dialled("a.example", 80)
    talk.origin.take(HEAD)
    talk.origin >> swollen(SWITCHED, "X-Big", mark)
    talk.client.take(HEAD)
    keeps_nothing(talk, mark)
    assert pinned(b"qqqqqqqqqq") == []
    assert talk.open == 1


@pytest.mark.parametrize("way", ["stream", "tunnel"])
def test_a_hello_of_a_tunnel(converse_on: Start, way: str, mark: bytes):
    hello = records(message(server_name(b"a.example") + extension(21, mark * 3000)))
    talk = converse_on(by_name() if way == "stream" else forward())
    if way == "stream":
        talk.client >> hello
        talk.dialled("a.example", 443)
    else:
        talk.client >> connect("a.example:443")
        talk.dialled("a.example", 443)
        talk.client << ESTABLISHED
        talk.client >> hello
    del hello
    talk.origin.take(rb"\x16\x03")
    talk.client >> CHANGE
    talk.settle()
    keeps_nothing(talk, mark)


def test_a_hello_of_a_stream_that_ends_here(converse: Start, mark: bytes):
    pki = Pki()
    listener = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"certificateRefs": [{"name": "front"}]}}
    listener["tls"]["mode"] = "Terminate"
    talk = converse([m.gateway(listener), m.policy(), certificate(pki, "a.example"), *by_name()[2:]])
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example")
    hello = tls.hello()
    talk.client >> hello
    random = bytes(hello[11:43])
    del hello
    talk.client >> tls.last_flight()
    talk.dialled("a.example", 443)
    talk.client.received.clear()
    assert pinned(random, 100) == []
