"""Server-sent events through the real process: without delay, over reloads, and what a client sees when it stops."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, read_head
from tests.support import manifests as m
from tests.support.http2 import Http2Server
from tests.support.http2_client import Http2Client
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

KIND = b"text/event-stream"
VERSIONS = ("http1", "http2")


class Events(Origin):
    """Answers every request with a stream on which `say` sends the next event."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._streams: list[tuple[socket.socket, Http2Server | None, int]] = []
        super().__init__(self._serve_http1 if version == "http1" else self._serve_http2)

    @property
    def streams(self) -> int:
        return len(self._streams)

    def say(self, event: bytes) -> None:
        for sock, server, stream in self._streams:
            if server is None:
                sock.sendall(b"%x\r\n%b\r\n" % (len(event), event))
            else:
                server.h2.send_data(stream, event)
                sock.sendall(server.outgoing())

    def _serve_http1(self, sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % KIND)
        self._streams.append((sock, None, 0))
        while sock.recv(4096):
            pass

    def _serve_http2(self, sock: socket.socket) -> None:
        server, begun = Http2Server(), set[int]()
        sock.sendall(server.outgoing())
        while piece := sock.recv(65536):
            server.take(piece)
            for number in server.calls.keys() - begun:
                begun.add(number)
                server.h2.send_headers(number, [(b":status", b"200"), (b"content-type", KIND)])
                self._streams.append((sock, server, number))
            sock.sendall(server.outgoing())


class Listener:
    """A client that hears events. `next` waits for the next bytes of content and gives them."""

    def __init__(self, version: str, port: int, path: str) -> None:
        self.sock = client(port)
        self.http2 = Http2Client() if version == "http2" else None
        if self.http2 is None:
            self.sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = read_head(self.sock).lower()
            assert b"transfer-encoding: chunked" in head
            assert KIND in head
            return
        self.stream = self.http2.get(path.encode(), b"x")
        self.answer = self.http2.of(self.stream)
        while not self.answer.fields:
            self._turn()
        assert self.answer[b"content-type"] == KIND

    def _turn(self) -> None:
        assert self.http2 is not None
        self.sock.sendall(self.http2.outgoing())
        piece = self.sock.recv(65536)
        if not piece:
            raise ConnectionError("the connection has ended")
        self.http2.take(piece)
        if self.answer.reset is not None:
            raise ConnectionError(f"RST_STREAM {self.answer.reset}")

    def next(self, size: int) -> bytes:
        if self.http2 is None:
            line = b"%x\r\n" % size
            expected, got = len(line) + size + 2, b""
            while len(got) < expected:
                piece = self.sock.recv(expected - len(got))
                if not piece:
                    return got  # a clean end: no event
                got += piece
            assert got.startswith(line)
            return got[len(line) : -2]
        while len(self.answer.data) < size:
            if self.answer.is_whole:
                return bytes(self.answer.data)
            self._turn()
        data = bytes(self.answer.data)
        self.answer.data.clear()
        return data


@pytest.fixture
def origins() -> Iterator[dict[str, Events]]:
    made = {version: Events(version) for version in VERSIONS}
    yield made
    for origin in made.values():
        origin.close()


def config(port: int, origins: dict[str, Events], *more: m.Manifest) -> list[m.Manifest]:
    backends = []
    for version, origin in origins.items():
        protocol = "HTTP11" if version == "http1" else "H2C"
        backends.append(m.ip_backend(version, origin.port, protocol=protocol))
    return [
        m.gateway(m.http_listener(port)),
        m.policy(cidrs=ALLOW_LOOPBACK),
        *backends,
        m.http_route("r", *(m.prefix_rule(f"/{version}", version) for version in origins)),
        *more,
    ]


def test_events_pass_one_by_one_over_reloads_and_break_off_on_stop(origins: dict[str, Events], tmp_path: Path):
    """Each event is said when the one before has arrived: none waits for another, in any mapping of versions."""
    port = free_port()
    with GatewayProcess(tmp_path, config(port, origins), arguments=["--drain-timeout", "1"]) as gateway:
        listeners = [Listener(ours, port, f"/{theirs}") for ours in VERSIONS for theirs in VERSIONS]
        wait_until(lambda: all(origin.streams == len(VERSIONS) for origin in origins.values()))

        def all_hear(event: bytes) -> None:
            for origin in origins.values():
                origin.say(event)
            assert [listener.next(len(event)) for listener in listeners] == [event] * len(listeners)

        for number in range(20):
            all_hear(b"id: %d\ndata: %b\n\n" % (number, b"x" * (number * 100)))
        for reload in range(2):
            generation = gateway.metric("egress_config_generation")
            gateway.replace(config(port, origins, m.config_map(f"other{reload}", {"a": "b"})))
            gateway.wait_for_metric("egress_config_generation", generation + 1)
            all_hear(b"data: behind a reload\n\n")
        since = len(gateway.records)
        assert gateway.stop() == 0
        for listener in listeners:
            with pytest.raises(ConnectionError):  # a clean end would look as if the server had meant it
                listener.next(1)
        assert [record["reason"] for record in gateway.records[since:]] == ["drained"] * len(listeners)
