"""Servers that filters ask, gone wrong on real sockets: they stall, reset, leave, do not read, flood, and die.

Each exchange ends in its time as `failOpen` says, others go on meanwhile, and a server that is well again is asked.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from h2.exceptions import H2Error

from egressproxy.envoy.ext_proc.messages import ProcessingResponse
from egressproxy.envoy.ext_proc.wire import read_request, response_bytes
from egressproxy.protocols.grpc.framing import GrpcMessageReader, framed
from tests.e2e.world import Origin, ask, client
from tests.support import manifests as m
from tests.support.http2 import GrpcCall, Http2Server
from tests.support.net import free_port
from tests.support.process import SharedGateway
from tests.support.protobuf_wire import field
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.timeout(120)

#: What the server may take, by configuration.
TIMEOUT = "300ms"
#: What an exchange takes at most where the server takes all of that.
AT_MOST_S = 5.0
HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
ALLOWED = field(1, b"") + field(3, b"")
#: More than a window.
BODY = b"x" * 200_000
#: By path: what a request gets while the server is unwell.
PATHS = {"/closed": {502}, "/open": {200}, "/auth": {502, 503, 504}}
AT_ONCE = ("leaves", "floods with empty messages", "floods with empty frames", "dies")
MOODS = [
    "opens no window", "trickles", "leaves", "floods with empty messages",
    "floods with empty frames", "dies",
]  # fmt: skip


class Server:
    """Speaks gRPC over HTTP/2: an ext_proc server and an ext_authz one. `mood` is what it does, also to connections."""

    def __init__(self, mood: str) -> None:
        self.mood = mood
        self.is_over = threading.Event()
        self.origin = Origin(self.serve)

    def serve(self, sock: socket.socket) -> None:
        mood = self.mood
        http2 = Http2Server()
        http2.opens_windows = mood != "opens no window"
        with suppress(H2Error):
            self.answer(sock, http2)

    def answer(self, sock: socket.socket, http2: Http2Server) -> None:
        readers: dict[int, tuple[GrpcMessageReader, int]] = {}
        while True:
            sock.sendall(http2.outgoing())
            piece = sock.recv(65536)
            if not piece:
                return
            http2.take(piece)
            for stream, call in list(http2.calls.items()):
                if call.reset is not None:
                    continue
                reader, read = readers.get(stream, (GrpcMessageReader(10**7), 0))
                readers[stream] = reader, len(call.data)
                for message in reader.feed(bytes(call.data[read:])):
                    if not read:
                        http2.h2.send_headers(stream, HEAD)
                    self.say(sock, http2, call, message)

    def say(self, sock: socket.socket, http2: Http2Server, call: GrpcCall, message: bytes) -> None:
        stream, h2 = call.stream, http2.h2
        if self.mood == "trickles":
            for byte in framed(ALLOWED):
                h2.send_data(stream, bytes([byte]))
                sock.sendall(http2.outgoing())
                if self.is_over.wait(1):
                    return
        elif self.mood == "leaves":
            goaway = b"\0\0\x08\x07\0\0\0\0\0" + stream.to_bytes(4, "big") + bytes(4)
            sock.sendall(http2.outgoing() + goaway)
            self.is_over.wait(WAIT_S)
            raise OSError
        elif self.mood == "floods with empty messages":
            for _ in range(5):
                h2.send_data(stream, bytes(5) * 2000)
        elif self.mood == "floods with empty frames":
            sock.sendall(http2.outgoing() + (bytes(5) + stream.to_bytes(4, "big")) * 100_000)
        elif self.mood == "opens no window":
            pass  # what fits into the first one is not answered
        elif self.mood == "dies":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise OSError
        elif call.headers[b":path"].endswith(b"/Check"):
            h2.send_data(stream, framed(ALLOWED))
            h2.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
        else:
            h2.send_data(stream, framed(response_bytes(ProcessingResponse(read_request(message).part))))


def of(made: m.Manifest, group: str, kind: str, name: str) -> m.Manifest:
    """The policy, on something else than the Gateway."""
    made["spec"]["targetRefs"] = [{"group": group, "kind": kind, "name": name}]
    return made


def objects(port: int, origin: int, server: int) -> list[m.Manifest]:
    ref = {"group": m.OURS, "kind": "Backend", "name": "server"}
    auth = {"protocol": "GRPC", "grpc": {}, "backendRef": ref, "forwardBody": {"maxSize": 60_000}}
    made = [
        m.gateway(m.http_listener(port)),
        m.ip_backend("origin", origin),
        m.ip_backend("server", server, protocol="GRPC"),
        of(m.policy(name="time", traffic={"timeouts": {"backendRequest": TIMEOUT}}), m.OURS, "Backend", "server"),
        m.http_route("free", m.prefix_rule("/free", "origin")),
        m.http_route(
            "auth", m.prefix_rule("/auth", "origin", filters=[{"type": "ExternalAuth", "externalAuth": auth}])
        ),
    ]
    for name in ("closed", "open"):
        extension = {
            "name": name, "type": "egressproxy.io/ExternalProcessor:v1", "phase": "request-headers",
            "timeout": TIMEOUT, "failOpen": name == "open",
            "config": {"backendRefs": [ref], "processingMode": {"requestBodyMode": "BUFFERED"}},
        }  # fmt: skip
        policy = of(m.policy(name=name, extensions=[extension]), m.GATEWAY_API, "HTTPRoute", name)
        made += [m.http_route(name, m.prefix_rule(f"/{name}", "origin")), policy]
    return made


def post(port: int, path: str) -> tuple[int, float]:
    """The status, and the seconds that it took."""
    begun = time.monotonic()
    body = BODY[: 50_000 if path == "/auth" else 1 if path == "/free" else None]
    with client(port) as sock:
        head = f"POST {path} HTTP/1.1\r\nHost: o.test\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        status, _ = ask(sock, head + body)
    return status, time.monotonic() - begun


@pytest.mark.parametrize("mood", MOODS)
def test_a_server_that_is_unwell_holds_nobody_up_and_is_asked_again_when_it_is_well(shared: SharedGateway, mood: str):
    port, server = free_port(), Server(mood)
    with Origin() as origin, shared.serving(objects(port, origin.port, server.origin.port)):
        with ThreadPoolExecutor(9) as pool:
            asked = [(path, pool.submit(post, port, path)) for path in list(PATHS) * 3]
            assert post(port, "/free")[0] == 200
            assert mood in AT_ONCE or not all(each.done() for _, each in asked), "that one was answered meanwhile"
            for path, each in asked:
                status, took_s = each.result()
                assert status in PATHS[path]
                assert took_s < AT_MOST_S
        server.mood = ""
        server.is_over.set()
        for path in PATHS:
            wait_until(lambda path=path: post(port, path)[0] == 200, f"{path} is served again")
