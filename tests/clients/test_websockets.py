"""WebSockets of real libraries, every way: both kinds of proxy, HTTP/1.1 and HTTP/2 on either side, plain and TLS."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.world import Require
from tests.e2e.world import client, terminate, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

pytest.importorskip("websockets")
if os.environ.get("EGRESSPROXY_CLIENTS") != "required":
    pytest.importorskip("wsproto")

from websockets.asyncio.client import connect as connect_async
from wsproto.events import BytesMessage, Ping, Pong, TextMessage

from tests.clients.websocket_ends import (
    REFUSAL,
    Http2WebSockets,
    Http2Wire,
    SocketWire,
    WebSocketServer,
    WsprotoClient,
    WsprotoServer,
)

NAME = "ws.test"
BIG = bytes(range(256)) * 40_000  # 10 MB
SERVERS = ("websockets", "websockets-tls", "wsproto", "wsproto-tls", "h2c", "h2")


class WebSocketWorld:
    """A gateway before all servers: `/SERVER` on the reverse listener, `ws.test:PORT` through the forward proxy."""

    def __init__(self, folder: Path) -> None:
        pki = Pki()
        context, http2 = pki.server_context(NAME), pki.server_context(NAME)
        http2.set_alpn_protocols(["h2"])
        self.dns = NameServer({"*": ["127.0.0.1"]})
        self.servers: dict[str, Any] = {
            "websockets": WebSocketServer(),
            "websockets-tls": WebSocketServer(context),
            "wsproto": WsprotoServer(),
            "wsproto-tls": WsprotoServer(context),
            "h2c": Http2WebSockets(),
            "h2": Http2WebSockets(http2),
        }
        self.forward, self.reverse, self.https = free_port(), free_port(), free_port()
        self.stack = ExitStack()
        for server in self.servers.values():
            self.stack.callback(server.close)
        self.stack.enter_context(self.dns)
        self.ca = pki.ca_pem
        leaf = pki.issue("front.test")
        self.listener = tls_secret("front", chain(leaf), leaf.private_key_pem.bytes())
        self.trust = {alpn: pki.client_context() for alpn in ("http/1.1", "h2")}
        for alpn, trusting in self.trust.items():
            trusting.set_alpn_protocols([alpn])
        self.gateway = self.stack.enter_context(
            GatewayProcess(folder, self.objects(), arguments=["--drain-timeout", "1"])
        )

    def objects(self, *more: m.Manifest) -> list[m.Manifest]:
        backends = []
        for name, server in self.servers.items():
            is_http2 = name.startswith("h2")
            is_tls = name.endswith("tls") or name == "h2"
            protocol = ("HTTP2" if is_tls else "H2C") if is_http2 else "HTTP11"
            trust = {"tls": True, "ca": "ca"} if is_tls else {}
            backends.append(m.backend(name, NAME, server.port, protocol=protocol, **trust))
        rules = [m.prefix_rule(f"/{name}", name, rewrite="/") for name in self.servers]
        return [
            m.gateway(
                m.forward_listener(self.forward), m.http_listener(self.reverse),
                {"name": "https", "port": self.https, "protocol": "HTTPS", "tls": terminate("front")},
            ),
            self.listener,
            m.policy(
                dns=self.dns.address, cidrs=["127.0.0.0/8"], traffic={"http2": {"extendedConnect": True}},
                destinations={"allow": [{"hostnames": [NAME], "ports": [each.port for each in self.servers.values()]}]},
            ),
            m.config_map("ca", {"ca.crt": self.ca}),
            *backends,
            m.http_route("r", *rules, section="http"),
            m.http_route("s", *rules, section="https"),
            *more,
        ]  # fmt: skip

    def host(self, server: str) -> str:
        return f"{NAME}:{self.servers[server].port}"

    def open(self, way: str, server: str, path: str = "/echo", *, deflates: bool = True) -> WsprotoClient:
        """A WebSocket of wsproto. `way`: one of WAYS."""
        how: dict[str, Any] = {"subprotocols": ["other", "chat"], "deflates": deflates}
        if way == "CONNECT":
            sock = client(self.forward)
            host = self.host(server)
            sock.sendall(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += sock.recv(1)
            assert b" 200 " in head, head
            return WsprotoClient(SocketWire(sock), host, path, **how)
        if way == "absolute":
            host = self.host(server)
            wire = SocketWire(client(self.forward))
            return WsprotoClient(wire, host, f"http://{host}{path}", **how)
        if way == "reverse":
            wire = SocketWire(client(self.reverse))
            return WsprotoClient(wire, "front.test", f"/{server}{path}", **how)
        if way == "wss":
            return WsprotoClient(SocketWire(self.in_tls("http/1.1")), "front.test", f"/{server}{path}", **how)
        if way == "CONNECT over HTTP/2":
            host = self.host(server)
            fields = [(b":method", b"CONNECT"), (b":authority", host.encode())]
            return WsprotoClient(Http2Wire(client(self.forward), fields), host, path, **how)
        is_tls = way == "HTTP/2 in TLS"
        fields = [
            (b":method", b"CONNECT"), (b":protocol", b"websocket"), (b":scheme", b"https" if is_tls else b"http"),
            (b":authority", b"front.test"), (b":path", f"/{server}{path}".encode()),
            (b"sec-websocket-version", b"13"), (b"sec-websocket-protocol", b"other, chat"),
        ]  # fmt: skip
        if deflates:
            fields.append((b"sec-websocket-extensions", b"permessage-deflate"))
        sock = self.in_tls("h2") if is_tls else client(self.reverse)
        return WsprotoClient(Http2Wire(sock, fields), "", "", subprotocols=[])

    def in_tls(self, alpn: str) -> ssl.SSLSocket:
        """A connection to the HTTPS listener, on which an end without close_notify is an error."""
        return self.trust[alpn].wrap_socket(
            client(self.https), server_hostname="front.test", suppress_ragged_eofs=False
        )

    def url(self, way: str, server: str, path: str = "/echo") -> tuple[str, str | None]:
        """The URL, and the proxy, for a client of `websockets`."""
        if way == "reverse":
            return f"ws://127.0.0.1:{self.reverse}/{server}{path}", None
        return f"ws://{self.host(server)}{path}", f"http://127.0.0.1:{self.forward}"


WAYS = [
    *(("CONNECT", server) for server in ("websockets", "wsproto")),
    *(("absolute", server) for server in ("websockets", "wsproto")),
    *(("reverse", server) for server in SERVERS),
    *(("HTTP/2", server) for server in SERVERS),
    *(("wss", server) for server in ("websockets", "h2")),
    *(("HTTP/2 in TLS", server) for server in ("wsproto", "h2")),
    ("CONNECT over HTTP/2", "websockets"),
]
#: TLS of asyncio, and of Python's sockets, has no half of a connection.
HALF_OPEN = [(way, server) for way, server in WAYS if way != "wss" and server != "websockets-tls"]


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSocketWorld]:
    made = WebSocketWorld(tmp_path_factory.mktemp("websockets"))
    yield made
    made.stack.close()


@pytest.fixture(autouse=True)
def libraries(require: Require) -> None:
    require("python:websockets")
    require("python:wsproto")


@pytest.mark.parametrize("deflates", [True, False], ids=["compressed", "plain"])
@pytest.mark.parametrize(("way", "server"), WAYS)
def test_wsproto_says_everything_that_a_websocket_may(sockets: WebSocketWorld, way: str, server: str, deflates: bool):
    seen = sockets.servers[server].closed
    one = sockets.open(way, server, deflates=deflates)
    assert (one.subprotocol, one.extensions) == ("chat", ["permessage-deflate"] * deflates)
    one.send(TextMessage("a text"))
    assert one.message()[0] == "a text"
    if not deflates:  # wsproto takes a ping amid a compressed message for its end
        one.send(TextMessage("three ", message_finished=False), Ping(b"amid"))
        while not isinstance(pong := one.next(), Pong):
            pass
        assert pong.payload == b"amid"
        one.send(TextMessage("words"))
        assert one.message()[0].endswith("words")  # type: ignore[arg-type]
    one.send(BytesMessage(BIG[:1_000_000]))
    assert one.message()[0] == BIG[:1_000_000]
    before = len(seen)
    assert one.closes(4001).code == 4001
    one.wire.close()
    wait_until(lambda: seen[before:] == [4001], "the server has not seen the code")
    other = sockets.open(way, server, deflates=deflates)
    other.send(TextMessage("close"))
    closing = other.closing()
    assert (closing.code, closing.reason) == (4002, "as you like")
    other.wire.close()


@pytest.mark.parametrize(("way", "server"), WAYS)
def test_a_refusal_and_its_body_come_as_they_are(sockets: WebSocketWorld, way: str, server: str):
    one = sockets.open(way, server, "/refused")
    assert one.refusal == (403, REFUSAL)
    one.wire.close()


@pytest.mark.parametrize(("way", "server"), HALF_OPEN)
def test_a_client_that_has_sent_all_hears_the_rest(sockets: WebSocketWorld, way: str, server: str):
    """Half of the connection is closed while an answer of 10 MB is on its way."""
    one = sockets.open(way, server)
    one.send(BytesMessage(BIG))
    one.send(TextMessage("close"))
    one.ends()
    assert one.message()[0] == BIG
    assert one.closing().code == 4002
    one.wire.close()


@pytest.mark.parametrize("server", SERVERS)
def test_several_hundred_at_a_time(sockets: WebSocketWorld, server: str):
    url, _ = sockets.url("reverse", server)
    count = 100 if server.startswith("wsproto") else 300  # a thread for each, or not
    how: dict[str, Any] = {"proxy": None, "open_timeout": WAIT_S, "ping_interval": None}

    async def talk(number: int, all_open: asyncio.Barrier) -> None:
        async with connect_async(url, subprotocols=["chat"], **how) as one:
            await all_open.wait()
            for turn in range(3):
                await one.send(f"{number} {turn}")
                assert await one.recv() == f"{number} {turn}"

    async def talk_all() -> None:
        all_open = asyncio.Barrier(count)
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(talk(number, all_open) for number in range(count)))

    asyncio.run(talk_all())
    sockets.gateway.mark()  # no tunnel is left


def test_several_hundred_of_http2(sockets: WebSocketWorld):
    """Ten clients at a time, of ten WebSockets each way, one after the other."""

    def talk(number: int) -> None:
        one = sockets.open("HTTP/2", SERVERS[number % len(SERVERS)])
        one.send(TextMessage(f"{number}"))
        assert one.message()[0] == f"{number}"
        one.closes(1000)
        one.wire.close()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(talk, range(200)))
    sockets.gateway.mark()


def test_they_survive_reloads_and_end_visibly_on_stop(tmp_path: Path):
    world = WebSocketWorld(tmp_path / "stopping")
    try:
        talks = [world.open(way, server) for way, server in WAYS]
        generation = world.gateway.metric("egress_config_generation")
        world.gateway.replace(world.objects(m.config_map("other", {"a": "b"})))
        world.gateway.wait_for_metric("egress_config_generation", generation + 1)
        for number, one in enumerate(talks):
            one.send(TextMessage(f"behind the reload {number}"))
            assert one.message()[0] == f"behind the reload {number}"
        since = len(world.gateway.records)
        assert world.gateway.stop() == 0
        for one in talks:
            # a reset, TLS without close_notify, or a connection of HTTP/2 that ends amid its stream
            with pytest.raises((ConnectionError, ssl.SSLEOFError)):
                one.wire.receive()
        assert [record["reason"] for record in world.gateway.records[since:]] == ["drained"] * len(WAYS)
    finally:
        world.stack.close()
