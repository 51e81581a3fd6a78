"""Whole exchanges through the data plane, between transports in memory: everything but the kernel.

The kit is that of the tests (tests/support/conversation): it is on the loop of asyncio, whose turns are subtracted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import cast

from benchmarks.micro.codec import GET, POST, RESPONSE, SMALL, SMALL_RESPONSE
from benchmarks.micro.stage import Stage
from egressproxy.model.fields import Fields
from tests.support.conversation import Conversation, MemoryPeer
from tests.support.http2 import Http2Server
from tests.support.http2_client import Http2Client, head, raw_frame

GROUP = "exchange"
#: In one call, so that entering and leaving the loop does not count.
SHARE = 50
#: The bytes of a message go out at the end of a turn, and are seen in the next.
TURNS = 2

PLAIN = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: egressproxy
  listeners: [{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}]
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: policy}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  destinations: {allow: [{hostnames: [api.example.com]}]}
"""
FILTERED = (
    PLAIN
    + """  limits:
    maxBodyBytes: 1048576
    connections: 10000
    connectionsPerClient: 0
    requests: [{per: Gateway, limit: 1000000000, window: 1s}]
  extensions:
  - name: request-fields
    type: egressproxy.io/HeaderPolicy:v1
    phase: request-headers
    config: {request: {set: [{name: X-Gateway, value: bench}], remove: [X-Custom]}}
  - name: response-fields
    type: egressproxy.io/HeaderPolicy:v1
    phase: response-headers
    config: {response: {set: [{name: X-Served-By, value: bench}], remove: [Age]}}
"""
)
CALLS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: egressproxy
  listeners: [{name: reverse, port: 8080, protocol: HTTP}]
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: calls}
spec:
  destination:
    type: Fqdn
    fqdn: {hostname: api.example.com}
    ports: [{number: 80, protocol: H2C, tls: {mode: None}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: calls}
spec:
  parentRefs: [{name: gw, sectionName: reverse}]
  hostnames: [api.example.com]
  rules:
  - matches: [{method: {service: bench.Echo, method: Say}}]
    backendRefs: [{group: egressproxy.io, kind: Backend, name: calls}]
"""
MESSAGE = bytes(4) + b"\x40" + b"m" * 64
CALL = [
    *head(b"POST", b"/bench.Echo/Say", b"api.example.com"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-python/1.66.0 grpc-c/43.0.0 (linux; chttp2)"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
    (b"grpc-timeout", b"20S"),
    (b"authorization", b"Bearer some-token"),
]
REPLY = [
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"date", b"Sun, 22 Nov 2026 15:43:40 GMT"),
    (b"server", b"bench"),
]
POST_ABSOLUTE = POST.replace(b"POST /", b"POST http://api.example.com/")
SMALL_GET = SMALL.replace(b"GET /a", b"GET http://api.example.com/a")


def stages() -> Iterator[Stage]:
    yield whole("2 request fields, 2 response fields, 1 KiB, allowed", PLAIN, SMALL_GET, SMALL_RESPONSE)
    yield whole("12 and 15 fields, 1 KiB, allowed", PLAIN, GET, RESPONSE)
    yield whole("the same, two header filters and three limits", FILTERED, GET, RESPONSE)
    yield whole_http2("12 and 15 fields, 1 KiB, allowed, from a client of HTTP/2", PLAIN, GET, RESPONSE)
    yield whole_http2("the same, each request with an id of its own", PLAIN, GET, RESPONSE, has_id=True)
    yield whole("13 and 15 fields, 1 KiB both ways, allowed", PLAIN, POST_ABSOLUTE, RESPONSE)
    yield whole_http2("the same, from a client of HTTP/2", PLAIN, POST_ABSOLUTE, RESPONSE)
    yield whole_call("a unary call of gRPC, HTTP/2 on both sides, 64 bytes both ways")


def whole(name: str, manifests: str, request: bytes, response: bytes) -> Stage:
    """Requests on one connection, and on one to the origin, from the first byte to the line of the access log."""
    talk = Conversation(manifests, {}, is_memory=True)
    client = cast(MemoryPeer, talk.client)
    talk.log_nothing()
    client >> request
    origin = cast(MemoryPeer, talk.dialled("api.example.com", 80))
    origin >> response
    assert client.received.startswith(b"HTTP/1.1 200"), bytes(client.received)

    return stage(name, talk, client, origin, lambda: request, lambda: response)


def whole_http2(name: str, manifests: str, request: bytes, response: bytes, *, has_id: bool = False) -> Stage:
    """The same exchanges, of streams on one connection. What the client says is made beforehand."""
    talk = Conversation(manifests, {}, is_memory=True)
    talk.counts_octets = False
    client = cast(MemoryPeer, talk.client)
    talk.log_nothing()
    start, _, body = request.partition(b"\r\n\r\n")
    fields = Fields(start[start.index(b"\r\n") :])
    method, target = start.split(b" ")[:2]
    host, _, path = target.removeprefix(b"http://").partition(b"/")
    asked = head(method, b"/" + path, host) + [pair for pair in fields if pair[0] not in (b"host", b"connection")]
    peer = Http2Client(2**31 - 1)
    peer.h2.increment_flow_control_window(2**31 - 1 - 65535)
    peer.request(asked, body or None)
    client >> peer.outgoing()
    origin = cast(MemoryPeer, talk.dialled("api.example.com", 80))
    origin >> response
    talk.settle()
    client.received.clear()
    last = peer.request(asked)
    block = peer.outgoing()[9:]  # every field is in the table by now
    streams = itertools.count(last, 2)

    def next_request() -> bytes:
        number = next(streams)
        own = b"\x00\x04x-id\x0a%010d" % number if has_id else b""
        if body:
            return raw_frame(1, block + own, number, 0x04) + raw_frame(0, body, number, 0x01)
        return raw_frame(1, block + own, number, 0x05)

    return stage(name, talk, client, origin, next_request, lambda: response)


def whole_call(name: str) -> Stage:
    """Calls on one connection, and on one to the backend. What both say is made beforehand."""
    talk = Conversation(CALLS, {}, is_memory=True)
    talk.counts_octets = False
    client = cast(MemoryPeer, talk.client)
    talk.log_nothing()
    peer, server = Http2Client(2**31 - 1), Http2Server()
    for each in (peer, server):
        each.h2.increment_flow_control_window(2**31 - 1 - 65535)
    origin: MemoryPeer | None = None
    for _ in range(2):  # the second time every field is in the tables
        asked = peer.request(CALL, MESSAGE)
        request = peer.outgoing()
        client >> request
        if origin is None:
            origin = cast(MemoryPeer, talk.dialled("api.example.com", 80))
            origin >> server.outgoing()
        server.take(bytes(origin.received))
        server.outgoing()
        origin.received.clear()
        answered = max(server.calls)
        server.respond(answered, REPLY, MESSAGE, [(b"grpc-status", b"0")])
        response = server.outgoing()
        origin >> response
        talk.settle()
        assert MESSAGE in client.received, bytes(client.received)
    assert origin is not None
    asks, answers = _renumbered(request, asked + 2), _renumbered(response, answered + 2)
    return stage(name, talk, client, origin, lambda: next(asks), lambda: next(answers))


def _renumbered(frames: bytes, first: int) -> Iterator[bytes]:
    """The same frames on one stream after the other."""
    parts, at = [], 0
    while at < len(frames):
        size = 9 + int.from_bytes(frames[at : at + 3], "big")
        parts.append((frames[at : at + 5], frames[at + 9 : at + size]))
        at += size
    for number in itertools.count(first, 2):
        yield b"".join(start + number.to_bytes(4, "big") + payload for start, payload in parts)


def stage(
    name: str,
    talk: Conversation,
    client: MemoryPeer,
    origin: MemoryPeer,
    request: Callable[[], bytes],
    response: Callable[[], bytes],
    group: str = GROUP,
) -> Stage:
    """`request` and `response` make the next ones."""

    def exchange() -> None:
        origin.received.clear()
        client.received.clear()
        client.transport.deliver(request())

    async def exchanges() -> None:
        for _ in range(SHARE):
            exchange()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert origin.received, "the request was not sent on"
            origin.transport.deliver(response())
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert client.received, "the response was not sent on"

    async def turns() -> None:
        for _ in range(SHARE):
            for _ in range(2 * TURNS):
                await asyncio.sleep(0)

    return Stage(group, name, runner(talk, exchanges), runner(talk, turns), SHARE)


def runner(talk: Conversation, work: Callable[[], object]) -> Callable[[], object]:
    return lambda: talk.loop.run_until_complete(work())  # type: ignore[arg-type]
