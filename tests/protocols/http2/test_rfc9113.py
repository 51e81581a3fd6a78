"""RFC 9113 and RFC 7541, section by section, before the real process: a frame that breaks a rule, and what must follow.

Where only a stream may end, another stream of the same connection is asked for before, and answered behind it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from h2.errors import ErrorCodes
from hpack import Decoder, Encoder

from egressproxy.protocols.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    WITH_PRIORITY,
)
from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, read_head, terminate, tls_secret
from tests.support import manifests as m
from tests.support.http2_client import raw_frame
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

SETTINGS, PUSH_PROMISE, PING = 4, 5, 6
ACK = 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WHOLE = END_HEADERS | END_STREAM
BODY = b"twelve bytes"
GET = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "front.test")]
POST = [(":method", "POST"), *GET[1:]]
PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION = (
    ErrorCodes.PROTOCOL_ERROR,
    ErrorCodes.FLOW_CONTROL_ERROR,
    ErrorCodes.STREAM_CLOSED,
    ErrorCodes.FRAME_SIZE_ERROR,
    ErrorCodes.COMPRESSION_ERROR,
)


def serve(sock: socket.socket) -> None:
    while True:
        head = read_head(sock).lower()
        if b"transfer-encoding: chunked" in head:
            body = b""
            while not body.endswith(b"0\r\n\r\n") and b"\r\n0\r\n" not in body:
                piece = sock.recv(65536)
                assert piece
                body += piece
        sent = b"" if head.startswith(b"head ") else BODY
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), sent))


@dataclass(frozen=True)
class Ports:
    plain: int
    tls: int
    forward: int
    pki: Pki


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    made = Ports(free_port(), free_port(), free_port(), Pki())
    leaf = made.pki.issue("front.test")
    listeners = (
        m.http_listener(made.plain, "plain"),
        {"name": "tls", "port": made.tls, "protocol": "HTTPS", "tls": terminate("front")},
        m.forward_listener(made.forward),
    )
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin(serve) as origin:
        objects = [
            m.gateway(*listeners),
            m.policy(["origin.test", "front.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK),
            m.backend("origin", "origin.test", origin.port),
            m.http_route("all", m.prefix_rule("/", "origin")),
            tls_secret("front", chain(leaf), leaf.private_key_pem.bytes()),
        ]
        with GatewayProcess(Path(tmp_path_factory.mktemp("rfc9113")) / "gw", objects) as gateway:
            yield made
            assert gateway.stop() == 0


@pytest.fixture(params=["plain", "tls"])
def peer(request: pytest.FixtureRequest, ports: Ports) -> Iterator[Peer]:
    if request.param == "tls":
        context = ports.pki.client_context()
        context.set_alpn_protocols(["h2"])
        sock = client(ports.tls, context, "front.test")
    else:
        sock = client(ports.plain)
    with sock:
        yield Peer(sock)


class Peer:
    """A client that says frames one by one, and hears frames one by one. A reset of TCP is an error of the test."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(WAIT_S)
        self.sock = sock
        self.encoder = Encoder()
        self._unread = b""

    def say(self, kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> None:
        self.sock.sendall(raw_frame(kind, payload, stream, flags))

    def shake_hands(self, *settings: tuple[int, int]) -> None:
        """Both sides know the other's settings."""
        self.sock.sendall(PREFACE)
        self.say(SETTINGS, b"".join(struct.pack(">HL", *each) for each in settings))
        is_told = is_acknowledged = False
        while not (is_told and is_acknowledged):
            frame = self.hear()
            assert frame is not None
            if frame.kind == SETTINGS and frame.flags & ACK:
                is_acknowledged = True
            elif frame.kind == SETTINGS:
                self.say(SETTINGS, flags=ACK)
                is_told = True

    def head(self, stream: int, fields: list[tuple[str, str]], flags: int = WHOLE) -> None:
        self.say(HEADERS, self.encoder.encode(fields), stream, flags)

    def hear(self) -> Heard | None:
        """The next frame; None at the clean end of the connection."""
        header = self._read(9)
        if len(header) < 9:
            assert not header, "the connection ends within a frame"
            return None
        payload = self._read(int.from_bytes(header[:3], "big"))
        return Heard(header[3], header[4], int.from_bytes(header[5:], "big"), payload)

    def hear_until(self, is_it: Callable[[Heard], bool]) -> Heard:
        while True:
            frame = self.hear()
            assert frame is not None, "the connection has ended"
            if is_it(frame):
                return frame

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            piece = self.sock.recv(65536)
            if not piece:
                break
            self._unread += piece
        read, self._unread = self._unread[:size], self._unread[size:]
        return read


@dataclass(frozen=True)
class Heard:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload[:4], "big")


# --- what must follow ----------------------------------------------------------------------------------------------
def connection_ends(peer: Peer, code: ErrorCodes) -> None:
    """A GOAWAY with this code, and the clean end behind it (section 5.4.1)."""
    said = peer.hear_until(lambda frame: frame.kind == GOAWAY)
    assert ErrorCodes(said.code) is code
    while peer.hear() is not None:
        pass


def is_answered(peer: Peer, stream: int) -> None:
    peer.head(stream, GET)
    assert peer.hear_until(lambda frame: frame.kind == HEADERS and frame.stream == stream)
    peer.hear_until(lambda frame: frame.stream == stream and frame.flags & END_STREAM == END_STREAM)


def has_answer(peer: Peer, stream: int = 1) -> None:
    peer.hear_until(lambda frame: frame.kind == HEADERS and frame.stream == stream)


# --- errors of the connection ------------------------------------------------------------------------------------
def after(does: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A request without an end on stream 1, then this."""

    def both(peer: Peer) -> None:
        peer.head(1, POST, END_HEADERS)
        does(peer)

    return both


def frame(kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> Callable[[Peer], None]:
    return lambda peer: peer.say(kind, payload, stream, flags)


def block(tail: bytes, before: bytes = b"") -> Callable[[Peer], None]:
    """The block of a request, with these bytes behind it or before it."""
    return lambda peer: peer.say(HEADERS, before + peer.encoder.encode(GET) + tail, 1, WHOLE)


def within_head(*frames: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A head that has begun, then these."""

    def does(peer: Peer) -> None:
        peer.head(1, GET, END_STREAM)
        for each in frames:
            each(peer)

    return does


def setting(number: int, value: int) -> Callable[[Peer], None]:
    return frame(SETTINGS, struct.pack(">HL", number, value))


LITERAL = b"\x00\x85\xf2\xb2\x4a\x84\xff"  # x-test, without indexing
CONNECTION_ERRORS: dict[str, tuple[Callable[[Peer], object], ErrorCodes]] = {
    "4.2: HEADERS beyond the frame size": (frame(HEADERS, bytes(16385), 1, WHOLE), SIZE),
    "4.2: DATA beyond the frame size": (after(frame(DATA, bytes(16385), 1)), SIZE),
    "4.3: a field block that is cut short": (frame(HEADERS, b"\x40", 1, WHOLE), COMPRESSION),
    "4.3: PRIORITY within a field block": (within_head(frame(PRIORITY, bytes(5), 1)), PROTOCOL),
    "4.3: another stream within a field block": (within_head(lambda peer: peer.head(3, GET)), PROTOCOL),
    "5.1: DATA on an idle stream": (frame(DATA, b"x", 1), PROTOCOL),
    "5.1: RST_STREAM on an idle stream": (frame(RST_STREAM, bytes(4), 1), PROTOCOL),
    "5.1: WINDOW_UPDATE on an idle stream": (frame(WINDOW_UPDATE, b"\0\0\0\1", 1), PROTOCOL),
    "5.1: CONTINUATION on an idle stream": (frame(CONTINUATION, b"\x82", 1, END_HEADERS), PROTOCOL),
    "5.1.1: an even number": (lambda peer: peer.head(2, GET), PROTOCOL),
    "5.3: an idle stream depends on itself": (frame(PRIORITY, b"\0\0\0\1\xff", 1), PROTOCOL),
    "5.5: an unknown frame within a field block": (within_head(frame(0x16, bytes(8))), PROTOCOL),
    "6.1: DATA on stream 0": (frame(DATA, b"x"), PROTOCOL),
    "6.1: more padding than there is frame": (after(frame(DATA, b"\x06Test", 1, PADDED)), PROTOCOL),
    "6.2: HEADERS on stream 0": (lambda peer: peer.head(0, GET), PROTOCOL),
    "6.2: more padding than there is head": (frame(HEADERS, b"\x09\x82\x86", 1, WHOLE | PADDED), PROTOCOL),
    "6.3: PRIORITY on stream 0": (frame(PRIORITY, bytes(5)), PROTOCOL),
    "6.4: RST_STREAM on stream 0": (frame(RST_STREAM, bytes(4)), PROTOCOL),
    "6.4: RST_STREAM of three bytes": (after(frame(RST_STREAM, bytes(3), 1)), SIZE),
    "6.5: an acknowledgement with a payload": (frame(SETTINGS, b"\0", flags=ACK), SIZE),
    "6.5: SETTINGS on a stream": (frame(SETTINGS, b"\0\3\0\0\0\x64", 1), PROTOCOL),
    "6.5: SETTINGS of three bytes": (frame(SETTINGS, bytes(3)), SIZE),
    "6.5.2: ENABLE_PUSH is 2": (setting(2, 2), PROTOCOL),
    "6.5.2: INITIAL_WINDOW_SIZE is 2^31": (setting(4, 2**31), FLOW),
    "6.5.2: MAX_FRAME_SIZE is 16383": (setting(5, 16383), PROTOCOL),
    "6.5.2: MAX_FRAME_SIZE is 2^24": (setting(5, 2**24), PROTOCOL),
    "6.6: a client pushes": (frame(PUSH_PROMISE, b"\0\0\0\2\x82", 1, END_HEADERS), PROTOCOL),
    "6.7: PING on a stream": (frame(PING, bytes(8), 1), PROTOCOL),
    "6.7: PING of six bytes": (frame(PING, bytes(6)), SIZE),
    "6.8: GOAWAY on a stream": (frame(GOAWAY, bytes(8), 1), PROTOCOL),
    "6.9: WINDOW_UPDATE of 0": (frame(WINDOW_UPDATE, bytes(4)), PROTOCOL),
    "6.9: WINDOW_UPDATE of three bytes": (frame(WINDOW_UPDATE, b"\0\0\1"), SIZE),
    "6.9.1: the connection's window overflows": (frame(WINDOW_UPDATE, b"\x7f\xff\xff\xff"), FLOW),
    "6.10: DATA in the place of CONTINUATION": (within_head(frame(DATA, b"x", 1)), PROTOCOL),
    "6.10: CONTINUATION on stream 0": (within_head(frame(CONTINUATION, b"\x82", 0, END_HEADERS)), PROTOCOL),
    "6.10: CONTINUATION behind the end": (after(frame(CONTINUATION, b"\x82", 1, END_HEADERS)), PROTOCOL),
    "RFC 7541 2.3.3: an index behind the table": (block(b"\xfe"), COMPRESSION),
    "RFC 7541 4.2: a table size behind fields": (block(b"\x21"), COMPRESSION),
    "RFC 7541 5.2: eight bits of padding": (block(LITERAL + b"\x84\x49\x50\x9f\xff"), COMPRESSION),
    "RFC 7541 5.2: padding of zeros": (block(LITERAL + b"\x83\x49\x50\x90"), COMPRESSION),
    "RFC 7541 5.2: the end of the string in it": (block(b"\0\1x\x84\xff\xff\xff\xff"), COMPRESSION),
    "RFC 7541 6.1: index 0": (block(b"\x80"), COMPRESSION),
    "RFC 7541 6.3: a table larger than allowed": (block(b"", b"\x3f\xe2\x1f"), COMPRESSION),
}


@pytest.mark.parametrize(("does", "code"), CONNECTION_ERRORS.values(), ids=CONNECTION_ERRORS)
def test_what_breaks_the_connection_ends_it(peer: Peer, does: Callable[[Peer], object], code: ErrorCodes):
    peer.shake_hands()
    does(peer)
    connection_ends(peer, code)


def test_a_stream_that_is_older_than_the_last_ends_the_connection(peer: Peer):  # section 5.1.1
    peer.shake_hands()
    peer.head(5, GET)
    peer.head(3, GET)
    connection_ends(peer, PROTOCOL)


# --- errors of a stream -------------------------------------------------------------------------------------------
def prioritized(depends_on: int) -> Callable[[Peer], None]:
    def does(peer: Peer) -> None:
        payload = depends_on.to_bytes(4, "big") + b"\xff" + peer.encoder.encode(GET)
        peer.say(HEADERS, payload, 1, WHOLE | WITH_PRIORITY)

    return does


def request(fields: list[tuple[str, str]]) -> Callable[[Peer], None]:
    return lambda peer: peer.head(1, fields)


def post(*bodies: bytes, length: int) -> Callable[[Peer], None]:
    def does(peer: Peer) -> None:
        peer.head(1, [*POST, ("content-length", str(length))], END_HEADERS)
        for body in bodies[:-1]:
            peer.say(DATA, body, 1)
        peer.say(DATA, bodies[-1], 1, END_STREAM)

    return does


def twice(does: Callable[[Peer], None]) -> Callable[[Peer], None]:
    def both(peer: Peer) -> None:
        does(peer)
        does(peer)

    return both


def in_two_frames(fields: list[tuple[str, str]]) -> Callable[[Peer], None]:
    """Trailers without END_STREAM, whose block ends in a CONTINUATION."""

    def does(peer: Peer) -> None:
        coded = peer.encoder.encode(fields)
        peer.say(HEADERS, coded[:1], 1)
        peer.say(CONTINUATION, coded[1:], 1, END_HEADERS)

    return does


STREAM_ERRORS: dict[str, tuple[Callable[[Peer], object], ErrorCodes]] = {
    "5.1: DATA behind END_STREAM": (lambda peer: (peer.head(1, GET), peer.say(DATA, b"x", 1, END_STREAM)), CLOSED),
    "5.1: HEADERS behind END_STREAM": (twice(request(GET)), CLOSED),
    "5.1: DATA behind the client's reset": (
        after(lambda peer: (peer.say(RST_STREAM, b"\0\0\0\x08", 1), peer.say(DATA, b"x", 1, END_STREAM))),
        CLOSED,
    ),
    "5.3: a request that depends on itself": (prioritized(1), PROTOCOL),
    "5.3: a stream that depends on itself": (after(frame(PRIORITY, b"\0\0\0\1\xff", 1)), PROTOCOL),
    "6.3: PRIORITY of four bytes": (after(frame(PRIORITY, bytes(4), 1)), SIZE),
    "6.9: WINDOW_UPDATE of 0": (after(frame(WINDOW_UPDATE, bytes(4), 1)), PROTOCOL),
    "6.9: WINDOW_UPDATE of 0, reserved bit": (after(frame(WINDOW_UPDATE, b"\x80\0\0\0", 1)), PROTOCOL),
    "6.9.1: a stream's window overflows": (after(twice(frame(WINDOW_UPDATE, b"\x7f\xff\xff\xff", 1))), FLOW),
    "8.1: trailers without END_STREAM": (after(lambda peer: peer.head(1, [("x-a", "1")], END_HEADERS)), PROTOCOL),
    "8.1: the same, in two frames": (after(in_two_frames([("x-a", "1")])), PROTOCOL),
    "8.1.1: less content than announced": (post(b"test", length=9), PROTOCOL),
    "8.1.1: more content than announced": (post(b"test", b"test", length=5), PROTOCOL),
    "8.2.1: a name in upper case": (request([*GET, ("X-Test", "1")]), PROTOCOL),
    "8.2.2: a field of the connection": (request([*GET, ("connection", "keep-alive")]), PROTOCOL),
    "8.2.2: TE beside trailers": (request([*GET, ("te", "trailers, deflate")]), PROTOCOL),
    "8.3: an unknown pseudo-field": (request([*GET, (":test", "1")]), PROTOCOL),
    "8.3: a pseudo-field of responses": (request([*GET, (":status", "200")]), PROTOCOL),
    "8.3: a pseudo-field behind a field": (request([("x-a", "1"), *GET]), PROTOCOL),
    "8.3: a pseudo-field in trailers": (after(lambda peer: peer.head(1, [(":method", "GET")])), PROTOCOL),
    "8.3.1: an empty path": (request([*GET[:2], (":path", ""), GET[3]]), PROTOCOL),
    "8.3.1: no method": (request(GET[1:]), PROTOCOL),
    "8.3.1: no scheme": (request([GET[0], *GET[2:]]), PROTOCOL),
    "8.3.1: no path": (request([*GET[:2], GET[3]]), PROTOCOL),
    "8.3.1: two methods": (request([GET[0], *GET]), PROTOCOL),
    "8.3.1: two schemes": (request([*GET, GET[1]]), PROTOCOL),
    "8.3.1: two paths": (request([*GET, GET[2]]), PROTOCOL),
}


@pytest.mark.parametrize("name", STREAM_ERRORS)
def test_a_stream_that_breaks_a_rule_ends_alone(peer: Peer, name: str):
    does, code = STREAM_ERRORS[name]
    peer.shake_hands((4, 65535 if name[0] == "8" else 0))  # without a window no answer is whole before its time
    does(peer)
    said = peer.hear_until(lambda frame: frame.kind in (RST_STREAM, GOAWAY))
    if said.kind == RST_STREAM and ErrorCodes(said.code) is ErrorCodes.NO_ERROR:
        said = peer.hear_until(lambda frame: frame.kind in (RST_STREAM, GOAWAY))
    assert (said.kind, said.stream, ErrorCodes(said.code)) == (RST_STREAM, 1, code)
    peer.say(SETTINGS, struct.pack(">HL", 4, 65535))
    is_answered(peer, 41)


def test_a_malformed_call_of_grpc_is_told_so_by_a_status(peer: Peer):  # gRPC: HTTP/2 errors, Trailers-Only
    peer.shake_hands()
    peer.head(1, [*POST, ("content-type", "application/grpc"), ("te", "trailers"), ("connection", "close")])
    said = peer.hear_until(lambda frame: frame.kind == HEADERS)
    fields = dict(Decoder().decode(said.payload))
    assert (fields[":status"], fields["grpc-status"], said.flags & END_STREAM) == ("200", "13", END_STREAM)
    reset = peer.hear_until(lambda frame: frame.kind == RST_STREAM)
    assert ErrorCodes(reset.code) is PROTOCOL


def test_streams_beyond_the_limit_are_refused_alone(peer: Peer):  # section 5.1.2
    peer.shake_hands((4, 0))
    for number in range(1, 203, 2):
        peer.head(number, GET)
    said = peer.hear_until(lambda frame: frame.kind in (RST_STREAM, GOAWAY))
    assert (said.kind, said.stream, ErrorCodes(said.code)) == (RST_STREAM, 201, ErrorCodes.REFUSED_STREAM)


def test_what_comes_for_a_stream_that_is_over_ends_nothing(peer: Peer):  # section 5.1
    peer.shake_hands()
    is_answered(peer, 1)
    peer.say(WINDOW_UPDATE, bytes(4), 1)
    peer.say(PRIORITY, b"\0\0\0\1\xff", 1)
    peer.say(RST_STREAM, b"\0\0\0\x08", 1)
    is_answered(peer, 3)


# --- what is allowed -----------------------------------------------------------------------------------------------
def in_pieces(peer: Peer) -> None:
    coded = peer.encoder.encode(GET)
    peer.say(HEADERS, coded[:2], 1, END_STREAM)
    peer.say(CONTINUATION, coded[2:3], 1)
    peer.say(CONTINUATION, coded[3:], 1, END_HEADERS)


def padded(peer: Peer) -> None:
    peer.say(HEADERS, b"\x08" + peer.encoder.encode(POST) + bytes(8), 1, END_HEADERS | PADDED)
    peer.say(DATA, b"\x06test" + bytes(6), 1, END_STREAM | PADDED)


def with_trailers(peer: Peer) -> None:
    peer.head(1, [*POST, ("trailer", "x-a")], END_HEADERS)
    peer.say(DATA, b"test", 1)
    peer.head(1, [("x-a", "1")])


ALLOWED: dict[str, Callable[[Peer], object]] = {
    "4.1: an unknown type of frame": lambda peer: (peer.say(0x16, bytes(8)), peer.head(1, GET)),
    "4.2: a frame of 16384 bytes": after(frame(DATA, bytes(16384), 1, END_STREAM)),
    "5.1: PRIORITY on an idle stream": lambda peer: (peer.say(PRIORITY, bytes(4) + b"\xff", 3), peer.head(1, GET)),
    "5.3: a request with a priority": prioritized(0),
    "5.3: a request that depends on another": prioritized(9),
    "6.1: padding": padded,
    "6.5.2: an unknown setting": lambda peer: (peer.say(SETTINGS, b"\0\xff\0\0\0\1"), peer.head(1, GET)),
    "6.10: a head in three frames": in_pieces,
    "8.1: trailers": with_trailers,
    "8.3.1: HEAD": request([(":method", "HEAD"), *GET[1:]]),
    "RFC 7541 4.2: two table sizes": block(b"", b"\x20\x3f\xe1\x1f"),
    "RFC 7541 6.2.1: a literal that is indexed": block(b"\x40\x06x-test\x04test"),
    "RFC 7541 6.2.2: a literal without indexing": block(b"\x00\x06x-test\x04test"),
    "RFC 7541 6.2.3: a literal never indexed": block(b"\x10\x06x-test\x04test"),
}


@pytest.mark.parametrize("does", ALLOWED.values(), ids=ALLOWED)
def test_what_is_allowed_is_answered(peer: Peer, does: Callable[[Peer], object]):
    peer.shake_hands()
    does(peer)
    has_answer(peer)


def test_pings_are_answered_with_what_they_say_and_answers_are_not(peer: Peer):  # sections 4.1 and 6.7
    peer.shake_hands()
    peer.say(PING, b"answered", flags=ACK)
    peer.say(PING, b"question", flags=0x16)  # flags that mean nothing
    said = peer.hear_until(lambda frame: frame.kind == PING)
    assert (said.flags, said.payload) == (ACK, b"question")


def test_windows_hold_also_where_they_change(peer: Peer):  # sections 6.5.3, 6.9.1 and 6.9.2
    peer.shake_hands((4, 100), (4, 3))
    peer.head(1, GET)
    assert len(peer.hear_until(lambda frame: frame.kind == DATA).payload) == 3
    peer.say(SETTINGS, struct.pack(">HL", 4, 2))  # the window is -1
    peer.hear_until(lambda frame: frame.kind == SETTINGS and frame.flags == ACK)
    peer.say(WINDOW_UPDATE, b"\0\0\0\2", 1)
    assert len(peer.hear_until(lambda frame: frame.kind == DATA).payload) == 1


# --- the connection's begin and end --------------------------------------------------------------------------------
@pytest.mark.parametrize("port", ["plain", "forward"])
def test_what_is_neither_http_1_nor_the_preface_gets_a_clean_end(ports: Ports, port: str):  # section 3.4
    with client(getattr(ports, port)) as sock:
        sock.sendall(b"INVALID CONNECTION PREFACE\r\n\r\n")
        assert sock.recv(65536) == b""


def test_a_client_that_goes_away_hears_a_clean_end(peer: Peer):  # section 6.8
    peer.shake_hands()
    peer.say(GOAWAY, bytes(7) + b"\xff" + b"h2")
    peer.say(PING, bytes(8))
    while peer.hear() is not None:
        pass


def test_what_is_said_behind_an_error_does_not_take_its_name_away(peer: Peer):  # section 5.4.1
    peer.shake_hands()
    peer.say(PING, bytes(8), 3)
    connection_ends(peer, PROTOCOL)


def test_a_forward_proxy_is_as_strict(ports: Ports):
    with client(ports.forward) as sock:
        peer = Peer(sock)
        peer.shake_hands()
        peer.say(DATA, b"x", 1)
        connection_ends(peer, PROTOCOL)
