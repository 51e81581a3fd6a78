"""What has failed is freed at once, too: a reload freezes what there is, and would keep its garbage for good."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter

import pytest

from egressproxy.errors import GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.model.exchange import Exchange
from egressproxy.net.tls import TlsStream
from egressproxy.protocols.http1.upstream import UpstreamConnection
from tests.gateway.kit import GET, certificate, connect, forward, https, reverse
from tests.support import manifests as m
from tests.support.conversation import conversation
from tests.support.leftovers import Leftovers, leftovers_of
from tests.support.pki import Pki

left = leftovers_of(ClientConnection, UpstreamConnection, TlsStream, Pipeline, Exchange, GatewayError)


@pytest.mark.parametrize("request_", [GET.replace(b"a.example", b"b.example"), connect("b.example:443")])
def test_nothing_is_left_of_a_denial(left: Leftovers, request_: bytes):
    talk = conversation(forward(), wire="sockets")
    talk.client >> request_
    talk.until(lambda: bool(talk.records))
    assert talk.records[0]["status"] == 403
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_a_body_that_a_limit_refused(left: Leftovers):
    talk = conversation(reverse(limits={"maxBodyBytes": 10}), wire="sockets")
    talk.client >> b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 11\r\n\r\n"
    talk.until(lambda: bool(talk.records))
    assert talk.records[0]["status"] == 413
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_a_handshake_that_failed(left: Leftovers):
    pki = Pki()
    talk = conversation([https(""), m.policy(), certificate(pki, "a.example")], wire="sockets")
    talk.counts_octets = False
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.until(lambda: not talk.ports[0].state.connections)
    assert left.of(talk) == Counter()
    talk.close()


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("request_", [GET, connect("a.example:443")])
def test_nothing_is_left_of_a_connection_that_was_refused(left: Leftovers, request_: bytes):
    talk = conversation(forward(), wire="sockets")
    talk.dialer.port = refused_port()  # type: ignore[union-attr]
    talk.client >> request_
    talk.until(lambda: bool(talk.records))
    assert talk.records[0]["status"] == 503
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_attempts_at_several_backends(left: Leftovers):
    objects = [
        m.gateway(m.http_listener(8080)),
        *(m.backend(name, f"{name}.example", 80) for name in ("a", "b", "c", "d")),
        m.failover("any", "a", "b", "c", "d", firstByte="500ms", attemptsHeader=True),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]
    talk = conversation(objects)
    talk.client >> b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
    talk.refused("a.example", 80, UpstreamFault(Reason.CONNECT_REFUSED, "no", retry=RetrySafety.SAFE))
    talk.dialled("b.example", 80).take(rb"POST .*?\r\n\r\nbody")
    talk.origin >> b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("c.example", 80).take(rb"POST .*?\r\n\r\nbody")
    while not talk.dialer.dials:  # until the first byte is late, on a timer of the loop
        talk.run(asyncio.sleep(0.01))
    talk.dialled("d.example", 80).take(rb"POST .*?\r\n\r\nbody")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    talk.until(lambda: bool(talk.records))
    assert (talk.records[0]["status"], talk.records[0]["attempts"]) == (200, 4)
    found = left.of(talk)  # what the ends of these connections hold
    gc.collect()
    assert left.of(talk) == found
    talk.close()
