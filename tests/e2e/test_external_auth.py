"""Authorization servers beside the real process: aiohttp for the HTTP way, gRPC over TLS for the other."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get
from tests.support import manifests as m
from tests.support.dns import Rule
from tests.support.http2 import Http2Server
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.protobuf_wire import field, fields, number, text

AUTH = "auth.test"


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def guard(prefix: str, protocol: str, **more: Any) -> m.Manifest:
    block: m.Manifest = {"http": {"path": "/check"}} if protocol == "HTTP" else {"grpc": {}}
    ref = {"group": m.OURS, "kind": "Backend", "name": protocol.lower()}
    written = {"protocol": protocol, "backendRef": ref, **block, **more}
    return m.prefix_rule(prefix, "o", filters=[{"type": "ExternalAuth", "externalAuth": written}])


def answer_grpc(sock: socket.socket) -> None:
    """Allows what has "yes" in its path, and says which."""
    server = Http2Server()
    answered: set[int] = set()
    while True:
        sock.sendall(server.outgoing())
        piece = sock.recv(65536)
        if not piece:
            return
        server.take(piece)
        for stream, call in server.calls.items():
            if call.is_whole and stream not in answered:
                answered.add(stream)
                request = dict(fields(dict(fields(dict(fields(call.message))[1]))[4]))  # type: ignore[arg-type]
                path = {tag: value for tag, value in fields(request[2]) if tag == 4}[4]  # type: ignore[arg-type]
                assert isinstance(path, bytes)
                allowed = field(1, b"") + field(3, field(2, field(1, text(1, b"x-user") + text(2, b"42"))))
                denied = field(1, number(1, 7)) + field(2, field(3, b"not " + path))
                server.answer(stream, allowed if b"yes" in path else denied)


async def answer_http(request: web.Request) -> web.Response:
    if "yes" in request.path:
        return web.Response(headers={"X-User": "42"})
    return web.Response(status=401, text=f"not {request.path}", headers={"WWW-Authenticate": "Basic"})


def serve(seen: list[bytes]) -> Any:
    def run(sock: socket.socket) -> None:
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                octet = sock.recv(1)
                if not octet:
                    return
                head += octet
            seen.append(head)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    return run


def test_both_kinds_of_servers_decide_and_a_client_cannot_speak_for_them(dns: NameServer, tmp_path: Path):
    pki, port, seen = Pki(), free_port(), list[bytes]()
    context = pki.server_context(AUTH)
    context.set_alpn_protocols(["h2"])
    table = [web.route("*", "/{path:.*}", answer_http)]
    with (
        Origin(serve(seen)) as origin,
        Origin(answer_grpc, context) as grpc,
        OriginServer([table], pki.server_context(AUTH)) as http,
    ):
        dns.zone["http.test"] = Rule((http.address,))
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK),
            m.backend("o", "o.test", origin.port),
            m.backend("http", "http.test", http.plain_port),
            m.backend("grpc", AUTH, grpc.port, tls=True, ca="ca", protocol="GRPC"),
            m.config_map("ca", {"ca.crt": pki.ca_pem}),
            m.http_route("r", guard("/h", "HTTP"), guard("/g", "GRPC", forwardBody={"maxSize": 10})),
        ]
        with GatewayProcess(tmp_path / "gw", objects) as gateway:
            for prefix in ("/h", "/g"):
                with client(port) as sock:
                    request = get("app.test", port, f"{prefix}/yes", absolute=False)
                    assert ask(sock, request.replace(b"\r\n\r\n", b"\r\nX-User: 1\r\n\r\n")) == (200, b"ok")
                    assert (b"x-user: 42" in seen[-1], b": 1\r\n" in seen[-1]) == (True, False)
                    status, body = ask(sock, get("app.test", port, f"{prefix}/no", absolute=False))
                    asked = "/check/h/no" if prefix == "/h" else "/g/no"
                    assert (status, body) == (401 if prefix == "/h" else 403, b"not " + asked.encode())
            with client(port) as sock:
                long = b"POST /g/yes HTTP/1.1\r\nHost: app.test\r\nContent-Length: 11\r\n\r\n" + b"x" * 11
                assert ask(sock, long)[0] == 413
            assert len(seen) == 2
            gateway.wait_for_record(status=401, reason="ext_auth_denied", rule="HTTPRoute agents/r")
            for server, denied in (("http", 1.0), ("grpc", 1.0)):
                labels = {"route": "agents/r", "backend": f"agents/{server}", "result": "denied"}
                assert gateway.metric("egress_external_auth_total", **labels) == denied
