"""ClientHellos that are odd, on the wire of the real process: nothing of one that can be read in two ways goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, read_head
from tests.protocols.tls.test_client_hello import extension, message, real_hello, records, server_name
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess

PROXY_HEADER = b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 443\r\n"
ECH = extension(0xFE0D, b"\0\0\1\0\1\7\0\x20" + bytes(32) + b"\0\x40" + bytes(64))


def padded(size: int) -> bytes:
    return message(server_name(b"good.test") + extension(21, bytes(size)))


#: What no server may get a byte of, however it would read it.
REFUSED = {
    "two names": records(message(server_name(b"good.test", b"evil.test"))),
    "two extensions": records(message(server_name(b"good.test") + server_name(b"evil.test"))),
    "an unknown kind of name": records(message(server_name(b"good.test", kind=1))),
    "an address": records(message(server_name(b"127.0.0.1"))),
    "a NUL": records(message(server_name(b"good.test\0.evil.test"))),
    "another name": records(message(server_name(b"evil.test"))),
    "another outer name": records(message(server_name(b"evil.test") + ECH)),
    "64 KiB": records(padded(65_000)),
    "a record for each of too many bytes": records(padded(1200), size=1),
    "a hello behind the hello": records(message(server_name(b"good.test")) + message(server_name(b"evil.test"))),
    "a hello within the hello": records(message(server_name(b"good.test")))[:20]
    + records(message(server_name(b"evil.test"))),
}
#: Which hides the name that it is for: by its outer one it is led, and may be no other's tunnel.
HIDDEN = {"ECH": records(message(server_name(b"good.test") + ECH))}
#: What is one hello for one server, in whatever pieces.
TAKEN = {
    "small": records(message(server_name(b"good.test"))),
    "large letters and a dot": records(message(server_name(b"GOOD.test."))),
    "a record for each byte": records(padded(700), size=1),
    "40 KiB": records(padded(40_000)),
    "of OpenSSL": real_hello("good.test"),
}


class World:
    """A gateway before a server that says what it has got, with a listener that passes TLS on and a forward proxy."""

    def __init__(self, passing: int, forward: int, origin: int, header: bytes) -> None:
        self._passing, self._forward, self._origin, self._header = passing, forward, origin, header

    def connect(self, way: str, sends: int) -> socket.socket:
        """A connection on which a hello is next, behind a PROXY header where there is one, `sends` bytes at a time."""
        sock = client(self._passing if way == "passthrough" else self._forward)
        trickle(sock, self._header, sends)
        if way == "tunnel":
            sock.sendall(
                f"CONNECT good.test:{self._origin} HTTP/1.1\r\nHost: good.test:{self._origin}\r\n\r\n".encode()
            )
            assert read_head(sock).startswith(b"HTTP/1.1 200")
        return sock


def trickle(sock: socket.socket, data: bytes, sends: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(data), sends):
        sock.sendall(data[start : start + sends])


GOT: list[bytes] = []


def keep(sock: socket.socket) -> None:
    while piece := sock.recv(65536):
        GOT.append(piece)
        sock.sendall(b"%d." % len(piece))


@pytest.fixture(scope="module", params=[b"", PROXY_HEADER], ids=["plain", "proxy header"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    passing, forward = free_port(), free_port()
    sections = {"identity": {"proxyProtocol": {"from": ["127.0.0.0/8"]}}} if request.param else {}
    with NameServer({"*": ["127.0.0.1"]}) as names, Origin(keep) as origin:
        objects = [
            m.gateway(
                {"name": "tls", "port": passing, "protocol": "TLS", "tls": {"mode": "Passthrough"}},
                m.forward_listener(forward),
            ),
            m.policy(["good.test", "evil.test"], dns=names.address, cidrs=ALLOW_LOOPBACK, **sections),
            m.backend("good", "good.test", origin.port, protocol="TCP"),
            m.tls_route("t", "good", hostnames=["good.test"], section="tls"),
        ]
        with GatewayProcess(tmp_path_factory.mktemp("hellos"), objects):
            yield World(passing, forward, origin.port, request.param)


@pytest.mark.parametrize("sends", [1 << 20, 7], ids=["at once", "trickled"])
@pytest.mark.parametrize("way", ["passthrough", "tunnel"])
def test_a_hello_in_whatever_pieces_goes_on_as_it_came(world: World, way: str, sends: int):
    for what, hello in (TAKEN | HIDDEN if way == "passthrough" else TAKEN).items():
        GOT.clear()
        with world.connect(way, sends) as sock:
            trickle(sock, hello, sends)
            counted, text = 0, b""
            while counted < len(hello):
                piece = sock.recv(65536)
                assert piece, what
                assert piece[:1] != b"\x15", what
                text += piece
                counted = sum(map(int, text.split(b".")[:-1]))
        assert b"".join(GOT) == hello, what


@pytest.mark.parametrize("sends", [1 << 20, 7], ids=["at once", "trickled"])
@pytest.mark.parametrize("way", ["passthrough", "tunnel"])
def test_a_hello_that_can_be_read_in_two_ways_or_names_another_goes_nowhere(world: World, way: str, sends: int):
    GOT.clear()
    for what, hello in (REFUSED if way == "passthrough" else REFUSED | HIDDEN).items():
        with world.connect(way, sends) as sock:
            try:
                trickle(sock, hello, sends)
                while piece := sock.recv(65536):
                    assert piece[:1] == b"\x15", what  # an alert
            except ConnectionError:
                pass  # it was refused before it was whole
    assert GOT == []
