"""What has ended is freed at once, without the garbage collector: nothing of it stands in a cycle."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest

from egressproxy.ai.cache.cache import Cache
from egressproxy.gateway.backends.endpoints import CircuitBreaker, EndpointMonitor, HostnameMonitor, HostSet
from egressproxy.gateway.backends.health_checks.health_checks import EndpointCheck, HealthChecks
from egressproxy.gateway.backends.mirror_request import MirrorRequest, MirrorRequests
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.client_stream import ClientHttp2, ClientStream
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.model.exchange import Exchange
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.tls import TlsStream
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.http2.state_machine import H2StateMachine
from egressproxy.protocols.http2.stream_transport import StreamTransport
from egressproxy.protocols.tunnel.socket_tunnel import SocketEnd
from egressproxy.protocols.tunnel.transport_tunnel import TransportEnd
from egressproxy.protocols.tunnel.tunnel import Tunnel
from egressproxy.upstream.endpoint_health import EndpointHealth
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import ESTABLISHED, GET, OK, TlsClient, certificate, connect, exchange, forward, https, reverse
from tests.support import manifests as m
from tests.support.conversation import conversation
from tests.support.http2 import Http2Origin
from tests.support.leftovers import Leftovers, leftovers_of
from tests.support.pki import Pki

left = leftovers_of(
    ClientConnection,
    ClientHttp2,
    ClientStream,
    StreamTransport,
    H2StateMachine,
    UpstreamConnection,
    Tunnel,
    TransportEnd,
    SocketEnd,
    SocketTransport,
    TlsStream,
    Pipeline,
    Exchange,
    MirrorRequests,
    MirrorRequest,
)


@pytest.mark.parametrize("ends_well", [True, False])
def test_nothing_is_left_of_a_request_that_was_mirrored(left: Leftovers, ends_well: bool):
    to_b = {"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "b"}}
    rule = m.prefix_rule("/", "a", filters=[{"type": "RequestMirror", "requestMirror": to_b}])
    talk = conversation(reverse(rule, objects=(m.backend("b", "b.example", 80),)), wire="sockets")
    talk.client >> b"POST / HTTP/1.1\r\nHost: front.example\r\nContent-Length: 2\r\n\r\na"
    origins = [talk.dialled("a.example", 80), talk.dialled("b.example", 80)]
    if ends_well:
        talk.client >> b"b"
        for origin in origins:
            origin >> OK
        talk.client.take(rb"HTTP/1.1 200 .*hi")
    else:
        talk.client.resets()
    for origin in origins:
        origin.leaves()
    talk.until(lambda: talk.open == 0)
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_a_client_that_was_served(left: Leftovers):
    talk = conversation(forward(), wire="sockets")
    exchange(talk)
    talk.origin.leaves()
    talk.until(lambda: talk.open == 0)
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_a_tunnel(left: Leftovers):
    talk = conversation(forward(), wire="sockets")
    talk.client >> connect("a.example:22")
    talk.dialled("a.example", 22)
    talk.client << ESTABLISHED
    talk.origin.leaves()
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_a_client_that_spoke_tls(left: Leftovers):
    pki = Pki()
    route = m.http_route("r", m.prefix_rule("/", "a"))
    objects = [https(""), m.policy(), certificate(pki, "a.example"), m.backend("a", "a.example", 80), route]
    talk = conversation(objects, wire="sockets")
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example").shakes_hands()
    tls >> b"GET /%2e HTTP/1.1\r\nHost: b..example\r\n\r\n"
    talk.until(lambda: bool(talk.records))
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_a_request_that_went_again(left: Leftovers):
    rule = m.prefix_rule("/", "a", retry={"attempts": 1, "codes": [503], "backoff": "0s"}, sessionPersistence={})
    talk = conversation(reverse(rule), wire="sockets")
    talk.client >> b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    for answer in (b"503 Failed", b"200 OK"):
        talk.dialled("a.example", 80).take(rb"POST / .*?\r\n\r\nhi")
        talk.origin >> b"HTTP/1.1 " + answer + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 OK\r\n")
    talk.until(lambda: talk.open == 0)
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_endpoints_that_a_reload_has_retired(left: Leftovers):
    check = {"type": "TCP", "interval": "10s"}
    health = {"passive": {"consecutive5XxErrors": 1}, "active": check}
    watched = reverse(traffic={"healthCheck": health, "circuitBreaker": {"maxConnections": 2}})
    talk = conversation(watched)
    try:
        exchange(talk)
        kinds = (HostSet, CircuitBreaker, HostnameMonitor, EndpointMonitor, HealthChecks, EndpointCheck, EndpointHealth)
        there = {type(found) for found in gc.get_objects() if isinstance(found, kinds)}
        assert there == {HostSet, CircuitBreaker, HostnameMonitor, HealthChecks, EndpointCheck, EndpointHealth}
        talk.reload(reverse(traffic={"timeouts": {"connect": "3s"}}))
        assert not [found for found in gc.get_objects() if isinstance(found, kinds)]
    finally:
        talk.close()


@pytest.mark.parametrize(
    "what", ["served", "denied", "malformed", "reset", "cut", "tunnel", "tunnel to port 80", "idle"]
)
def test_nothing_is_left_of_a_client_that_spoke_http2(left: Leftovers, what: str):
    talk = conversation(forward(), wire="sockets")
    client = speak_http2(talk)
    if what in ("served", "reset", "cut"):
        stream = client.ask()
        talk.dialled("a.example", 80)
        talk.origin.take(rb"GET .*?\r\n\r\n")
        if what == "served":
            talk.origin >> OK
            while not client.answer(stream).is_whole:
                pass
        elif what == "reset":
            client.resets(stream)
    elif what == "denied":
        client.ask(b"POST", b"/", b"b.example", ends=False)
    elif what == "malformed":
        client.ask(b"GET", b"nowhere")
    elif what == "tunnel":
        client.connects(b"a.example:22")
        talk.dialled("a.example", 22)
    elif what == "tunnel to port 80":
        client.says(client.connects(b"a.example:80"), b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n")
    client.settle()
    assert client.h2.streams or what == "idle"
    del client
    for origin in talk.origins:
        origin.leaves()
    talk.until(lambda: talk.open == 0)
    assert left.of(talk) == Counter()
    talk.close()


@pytest.mark.parametrize("ends", ["well", "denied", "cancelled", "lost"])
@pytest.mark.parametrize("has_auth", [False, True])
def test_nothing_is_left_of_a_call_of_grpc(left: Leftovers, ends: str, has_auth: bool):
    server = {"group": "egressproxy.io", "kind": "Backend", "name": "auth"}
    auth = {"type": "ExternalAuth", "externalAuth": {"protocol": "HTTP", "backendRef": server, "http": {}}}
    backends = [m.backend("a", "a.example", 80, protocol="GRPC"), m.backend("auth", "auth.example", 9000)]
    rule = m.prefix_rule("/", "a", **({"filters": [auth]} if has_auth else {}))
    objects = [m.gateway(m.http_listener(8080)), m.policy(), *backends, m.http_route("route", rule)]
    talk = conversation(objects, wire="sockets")
    client = speak_http2(talk)
    content = (b"content-type", b"application/grpc")
    stream = client.ask(b"POST", b"/a.B/C", b"x.example", content, (b"grpc-timeout", b"5S"), body=b"x", ends=False)
    if has_auth:
        talk.dialled("auth.example", 9000)
        talk.origin.take(rb"POST .*?\r\n\r\n")
        said = b"403 No" if ends == "denied" else b"200 OK"
        talk.origin >> b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % said
    if ends != "denied":
        origin = Http2Origin(talk, talk.dialled("a.example", 80))
        origin.waits_for(1)
        origin.responds(1, b"x", content, is_last=False)
        assert bytes(client.answer(stream).data) == b"x"
        if ends == "well":
            client.says(stream, b"y", ends=True)
            origin.goes_on()
            origin.server.h2.send_headers(1, [(b"grpc-status", b"0")], end_stream=True)
            origin.goes_on()
            assert client.answer(stream).trailers == [(b"grpc-status", b"0")]
        elif ends == "cancelled":
            client.resets(stream)
        origin.goes_on()
    client.settle()
    del client
    for each in talk.origins:
        each.leaves()
    talk.until(lambda: talk.open == 0)
    assert left.of(talk) == Counter()
    talk.close()


def test_nothing_is_left_of_a_filter_that_a_reload_has_replaced():
    """Not even until the next look for cycles, which are rare: what a filter keeps may be large."""

    def with_cache(size: int) -> list[m.Manifest]:
        spec = {"name": "c", "type": "egressproxy.io/Cache:v1", "phase": "request-headers"}
        return forward(extensions=[{**spec, "config": {"maxBytes": size}}])

    talk = conversation(with_cache(1024 * 1024))
    try:
        talk.client >> GET  # on a connection that stays
        talk.dialled("a.example", 80).take(rb"GET / .*?\r\n\r\n")
        talk.origin >> OK
        talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n.*")
        talk.until(lambda: bool(talk.records))
        gc.collect()
        gc.disable()
        old = [weakref.ref(found) for found in gc.get_objects() if isinstance(found, Cache)]
        assert old
        talk.reload(with_cache(2 * 1024 * 1024))
        assert not [each for each in old if each() is not None]
    finally:
        gc.enable()
        talk.close()
