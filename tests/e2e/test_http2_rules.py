"""The rules of RFC 9113 and RFC 7541, one after the other, before the real process: over TLS and without.

What breaks a stream is told by RST_STREAM and ends nothing else; what breaks the connection by GOAWAY, and its end.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from h2.errors import ErrorCodes
from hpack import Encoder

from egressproxy.protocols.http2.frames import FrameSplitter
from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, terminate, tls_secret
from tests.support import manifests as m
from tests.support.http2_client import raw_frame
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ENDS, WHOLE, PADDED, WITH_PRIORITY = 0x1, 0x4, 0x8, 0x20
ALL = ENDS | WHOLE
PROTOCOL, FLOW, CLOSED, SIZE, REFUSED, CANCEL, COMPRESSION = (
    ErrorCodes.PROTOCOL_ERROR,
    ErrorCodes.FLOW_CONTROL_ERROR,
    ErrorCodes.STREAM_CLOSED,
    ErrorCodes.FRAME_SIZE_ERROR,
    ErrorCodes.REFUSED_STREAM,
    ErrorCodes.CANCEL,
    ErrorCodes.COMPRESSION_ERROR,
)
HOST, BODY = b"origin.test", b"hello"
LIMIT = 2**31 - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def u32(number: int) -> bytes:
    return struct.pack(">L", number)


def setting(code: int, value: int) -> bytes:
    return struct.pack(">HL", code, value)


def depends(on: int, weight: int = 15, *, alone: bool = False) -> bytes:
    return struct.pack(">LB", on | alone << 31, weight)


class Line:
    """A client's connection, which says frames of any kind."""

    def __init__(self, sock: socket.socket, host: bytes, settings: bytes = b"") -> None:
        self.sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host = host
        self.encoder = Encoder()
        self._splitter = FrameSplitter()
        self._frames: list[tuple[int, int, int, bytes]] = []
        self.say(PREFACE, raw_frame(SETTINGS, settings))
        self.await_frame(lambda kind, flags, *_: kind == SETTINGS and flags == 1)
        self.say(raw_frame(SETTINGS, flags=1))

    def say(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def hear(self) -> tuple[int, int, int, bytes] | None:
        """The next frame: type, flags, stream, payload. None at the end."""
        while not self._frames:
            try:
                said = self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not said:
                return None
            self._frames = [
                (kind, flags, number, whole[9:]) for kind, flags, number, whole in self._splitter.feed(said)
            ]
        return self._frames.pop(0)

    def await_frame(self, wanted: Callable[..., bool]) -> tuple[int, int, int, bytes]:
        """The first frame that is wanted. An error before it fails the test, unless it is wanted."""
        while True:
            frame = self.hear()
            assert frame is not None, "the connection ended"
            if wanted(*frame):
                return frame
            assert frame[0] not in (GOAWAY, RST_STREAM), frame

    def block(
        self, method: bytes = b"GET", *more: tuple[bytes, bytes], without: bytes = b"", path: bytes = b"/"
    ) -> bytes:
        first = [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", self.host)]
        return self.encoder.encode([pair for pair in first if pair[0] != without] + list(more), huffman=False)

    def get(self, number: int = 1, flags: int = ALL) -> bytes:
        return raw_frame(HEADERS, self.block(), number, flags)

    def post(self, number: int = 1, *more: tuple[bytes, bytes]) -> bytes:
        return raw_frame(HEADERS, self.block(b"POST", *more), number, WHOLE)

    def ends(self, number: int = 1) -> None:
        """A whole exchange: the stream is closed."""
        self.say(self.get(number))
        self.await_frame(lambda kind, flags, stream, _: stream == number and bool(flags & ENDS))


@dataclass
class Case:
    """What a client says, and what it hears. `before`: streams that it has used to their end; `settings`: its own."""

    name: str
    says: Callable[[Line], list[bytes]]
    hears: Callable[[Line], None]
    before: int = 0
    settings: bytes = field(default=b"")


def answered(line: Line) -> None:
    """The request on stream 1 has its answer."""
    frame = line.await_frame(lambda kind, _, stream, __: kind == HEADERS and stream == 1)
    assert frame[3]


def ping_answered(line: Line) -> None:
    """The PING that was said has its answer."""
    line.await_frame(lambda *frame: frame == (PING, 1, 0, b"12345678"))


def alive(line: Line) -> None:
    """The connection goes on."""
    line.say(raw_frame(PING, b"go on? ?"))
    line.await_frame(lambda *frame: frame == (PING, 1, 0, b"go on? ?"))


def reset(*codes: ErrorCodes, stream: int = 1) -> Callable[[Line], None]:
    """The stream is reset with one of these codes, and the connection goes on."""

    def check(line: Line) -> None:
        frame = line.await_frame(lambda kind, *_: kind == RST_STREAM)
        assert (frame[2], int.from_bytes(frame[3], "big")) in [(stream, code) for code in codes]
        alive(line)

    return check


def broken(*codes: ErrorCodes) -> Callable[[Line], None]:
    """GOAWAY with one of these codes, and the connection ends."""

    def check(line: Line) -> None:
        frame = line.await_frame(lambda kind, *_: kind == GOAWAY)
        assert int.from_bytes(frame[3][4:8], "big") in codes
        while line.hear() is not None:
            pass

    return check


def data_of(size: int) -> Callable[[Line], None]:
    """The first DATA has so many bytes."""

    def check(line: Line) -> None:
        frame = line.await_frame(lambda kind, *_: kind == DATA)
        assert len(frame[3]) == size

    return check


def grows(before: int, frames: list[bytes], after: int) -> Callable[[Line], None]:
    """So much comes; what is said then lets so much more come."""

    def check(line: Line) -> None:
        if before:
            data_of(before)(line)
        else:
            line.await_frame(lambda kind, *_: kind == HEADERS)
        line.say(*frames)
        data_of(after)(line)

    return check


def parts(line: Line, count: int) -> list[bytes]:
    """A GET in so many frames."""
    block = line.block(b"GET", *((b"x-%d" % number, b"v" * 50) for number in range(count)))
    cut = [block[at * len(block) // count : (at + 1) * len(block) // count] for at in range(count)]
    first, *middle, last = cut
    return [
        raw_frame(HEADERS, first, 1, ENDS),
        *(raw_frame(CONTINUATION, part, 1) for part in middle),
        raw_frame(CONTINUATION, last, 1, WHOLE),
    ]


def fields(line: Line, *pairs: tuple[bytes, bytes]) -> bytes:
    return line.encoder.encode(list(pairs), huffman=False)


X = (b"x-a", b"b")


def head(flags: int, before: bytes = b"", after: bytes = b"") -> Callable[[Line], list[bytes]]:
    """A GET in one frame, with these bytes around its block."""
    return lambda line: [raw_frame(HEADERS, before + line.block() + after, 1, flags)]


def promise(line: Line) -> bytes:
    return raw_frame(PUSH_PROMISE, u32(2) + line.block(), 1, WHOLE)


def more(line: Line, flags: int = WHOLE, stream: int = 1) -> bytes:
    return raw_frame(CONTINUATION, fields(line, X), stream, flags)


def get_with(code: bytes) -> Callable[[Line], list[bytes]]:
    """A GET with this behind its fields, in HPACK."""
    return head(ALL, after=code)


def malformed(*pairs: tuple[bytes, bytes], first: tuple[tuple[bytes, bytes], ...] = (), **block: Any) -> Any:
    """A GET whose fields break a rule."""
    return lambda line: [raw_frame(HEADERS, fields(line, *first) + line.block(b"GET", *pairs, **block), 1, ALL)]


def post_of(length: bytes, *pieces: bytes) -> Callable[[Line], list[bytes]]:
    def says(line: Line) -> list[bytes]:
        last = len(pieces) - 1
        datas = [raw_frame(DATA, piece, 1, ENDS if at == last else 0) for at, piece in enumerate(pieces)]
        return [line.post(1, (b"content-length", length)), *datas]

    return says


def one(kind: int, payload: bytes, stream: int = 0, flags: int = 0) -> Callable[[Line], list[bytes]]:
    """This frame alone."""
    return lambda _: [raw_frame(kind, payload, stream, flags)]


def behind(start: Callable[[Line], bytes], *frames: bytes) -> Callable[[Line], list[bytes]]:
    """These frames behind the begin of a request on stream 1."""
    return lambda line: [start(line), *frames]


SOME = raw_frame(DATA, b"test", 1)
UNKNOWN = raw_frame(0xFF, bytes(8))
END = raw_frame(DATA, b"test", 1, ENDS)
CUT = raw_frame(RST_STREAM, u32(CANCEL), 1)
GET: Callable[[Line], bytes] = Line.get
POST: Callable[[Line], bytes] = Line.post
OPEN: Callable[[Line], bytes] = lambda line: line.get(flags=ENDS)  # noqa: E731

CASES = [
    # 4: frames
    Case("4.1 a type that nobody knows", one(0x16, bytes(8)), alive),
    Case("4.1 flags that nobody knows", one(PING, b"12345678", 0, 0x16), ping_answered),
    Case("4.1 the reserved bit", one(PING, b"12345678", 1 << 31), ping_answered),
    Case("4.2 the longest frame", behind(POST, raw_frame(DATA, bytes(16384), 1, ENDS)), answered),
    Case("4.2 a longer one", behind(POST, raw_frame(DATA, bytes(16385), 1, ENDS)), broken(SIZE)),
    Case("4.2 a longer head", lambda line: [raw_frame(HEADERS, bytes(16385), 1, ALL)], broken(SIZE)),
    Case("4.3 a block that cannot be decoded", get_with(b"\xff" * 10), broken(COMPRESSION)),
    Case("4.3 PRIORITY inside a block", lambda line: [OPEN(line), raw_frame(PRIORITY, depends(0), 1), more(line)],
         broken(PROTOCOL)),
    Case("4.3 another stream inside a block", lambda line: [OPEN(line), line.get(3), more(line)], broken(PROTOCOL)),
    # 5.1: idle
    Case("5.1 DATA on an idle stream", one(DATA, b"test", 1, ENDS), broken(PROTOCOL)),
    Case("5.1 RST_STREAM on an idle stream", one(RST_STREAM, u32(CANCEL), 1), broken(PROTOCOL)),
    Case("5.1 WINDOW_UPDATE on an idle stream", one(WINDOW_UPDATE, u32(9), 1), broken(PROTOCOL)),
    Case("5.1 CONTINUATION on an idle stream", lambda line: [more(line)], broken(PROTOCOL)),
    Case("5.1 PRIORITY on an idle stream", one(PRIORITY, depends(0), 1), alive),
    # 5.1: half-closed (remote)
    Case("5.1 DATA behind the end", behind(GET, END), reset(CLOSED)),
    Case("5.1 HEADERS behind the end", lambda line: [line.get(), line.get()], reset(CLOSED)),
    Case("5.1 CONTINUATION behind the end", lambda line: [line.get(), more(line)], broken(PROTOCOL)),
    Case("5.1 WINDOW_UPDATE behind the end", behind(GET, raw_frame(WINDOW_UPDATE, u32(9), 1)), answered),
    Case("5.1 PRIORITY behind the end", behind(GET, raw_frame(PRIORITY, depends(0), 1)), answered),
    Case("5.1 RST_STREAM behind the end", behind(GET, CUT), alive),
    # 5.1: closed
    Case("5.1 DATA behind a reset", behind(POST, CUT, END), reset(CLOSED)),
    Case("5.1 HEADERS behind a reset", lambda line: [line.post(), CUT, line.get()], reset(CLOSED)),
    Case("5.1 CONTINUATION behind a reset", lambda line: [line.post(), CUT, more(line)], broken(PROTOCOL)),
    Case("5.1 DATA on a closed stream", lambda _: [END], broken(CLOSED), before=1),
    Case("5.1 HEADERS on a closed stream", lambda line: [line.get()], broken(CLOSED), before=1),
    Case("5.1 CONTINUATION on a closed stream", lambda line: [more(line)], broken(PROTOCOL), before=1),
    Case("5.1 PRIORITY on a closed stream", one(PRIORITY, depends(0), 1), alive, before=1),
    Case("5.1 WINDOW_UPDATE on a closed stream", one(WINDOW_UPDATE, u32(9), 1), alive, before=1),
    Case("5.1 RST_STREAM on a closed stream", one(RST_STREAM, u32(CANCEL), 1), alive, before=1),
    # 5.1.1, 5.1.2, 5.3, 5.5
    Case("5.1.1 a stream of an even number", lambda line: [line.get(2)], broken(PROTOCOL)),
    Case("5.1.1 a lower number", lambda line: [line.get(5), line.get(3)], broken(PROTOCOL)),
    Case("5.1.2 one stream too many", lambda line: [line.post(number) for number in range(1, 203, 2)],
         reset(REFUSED, stream=201)),
    Case("5.3.1 a head with a weight", head(ALL | WITH_PRIORITY, depends(0)),
         answered),
    Case("5.3.1 trees of streams", lambda line: [raw_frame(PRIORITY, depends(0), 1),
         raw_frame(PRIORITY, depends(1, 255, alone=True), 3), line.get()], answered),
    Case("5.5 a type that nobody knows inside a block", lambda line: [OPEN(line), UNKNOWN, more(line)],
         broken(PROTOCOL)),
    # 6.1 to 6.4
    Case("6.1 DATA in pieces", behind(POST, SOME, END), answered),
    Case("6.1 padding", behind(POST, raw_frame(DATA, b"\x03te" + bytes(3), 1, ENDS | PADDED)), answered),
    Case("6.1 more padding than there is", behind(POST, raw_frame(DATA, b"\x06t", 1, ENDS | PADDED)), broken(PROTOCOL)),
    Case("6.1 DATA of no stream", one(DATA, b"test", 0, ENDS), broken(PROTOCOL)),
    Case("6.2 padding", head(ALL | PADDED, b"\x03", bytes(3)), answered),
    Case("6.2 more padding than there is", head(ALL | PADDED, b"\xff"),
         broken(PROTOCOL)),
    Case("6.2 HEADERS of no stream", lambda line: [line.get(0)], broken(PROTOCOL)),
    Case("6.3 PRIORITY of no stream", one(PRIORITY, depends(0)), broken(PROTOCOL)),
    Case("6.4 RST_STREAM of no stream", one(RST_STREAM, u32(CANCEL)), broken(PROTOCOL)),
    Case("6.4 RST_STREAM of three bytes", behind(POST, raw_frame(RST_STREAM, bytes(3), 1)), broken(SIZE)),
    Case("6.4 a reset", behind(POST, CUT), alive),
    # 6.5 to 6.8
    Case("6.5 an ACK with a payload", one(SETTINGS, bytes(6), 0, 1), broken(SIZE)),
    Case("6.5 SETTINGS of a stream", one(SETTINGS, setting(3, 1), 1), broken(PROTOCOL)),
    Case("6.5 SETTINGS of three bytes", one(SETTINGS, bytes(3)), broken(SIZE)),
    Case("6.5.2 ENABLE_PUSH 2", one(SETTINGS, setting(2, 2)), broken(PROTOCOL)),
    Case("6.5.2 a window too large", one(SETTINGS, setting(4, LIMIT + 1)), broken(FLOW)),
    Case("6.5.2 frames too short", one(SETTINGS, setting(5, 16383)), broken(PROTOCOL)),
    Case("6.5.2 frames too long", one(SETTINGS, setting(5, 1 << 24)), broken(PROTOCOL)),
    Case("6.5.2 a setting that nobody knows", one(SETTINGS, setting(0xFF, 1)), alive),
    Case("6.5.3 the last value holds", lambda line: [raw_frame(SETTINGS, setting(4, 100) + setting(4, 1)), line.get()],
         data_of(1)),
    Case("6.6 a promise", lambda line: [promise(line)], broken(PROTOCOL)),
    Case("6.6 a promise on a stream", lambda line: [line.post(), promise(line)],
         broken(PROTOCOL)),
    Case("6.7 an answer to no PING", one(PING, bytes(8), 0, 1), alive),
    Case("6.7 PING of a stream", one(PING, bytes(8), 1), broken(PROTOCOL)),
    Case("6.7 PING of six bytes", one(PING, bytes(6)), broken(SIZE)),
    Case("6.8 GOAWAY of a stream", one(GOAWAY, u32(0) + u32(0), 1), broken(PROTOCOL)),
    # 6.9, 6.10
    Case("6.9 no room for the connection", one(WINDOW_UPDATE, u32(0)), broken(PROTOCOL)),
    Case("6.9 WINDOW_UPDATE of three bytes", one(WINDOW_UPDATE, bytes(3)), broken(SIZE)),
    Case("6.9.1 a window of one byte", lambda line: [line.get()], data_of(1), settings=setting(4, 1)),
    Case("6.9.1 too much room for the connection", lambda _: 2 * [raw_frame(WINDOW_UPDATE, u32(LIMIT))], broken(FLOW)),
    Case("6.9.1 too much room for a stream", behind(POST, *2 * [raw_frame(WINDOW_UPDATE, u32(LIMIT), 1)]), reset(FLOW)),
    Case("6.9.2 a window that grows", lambda line: [line.get()], grows(0, [raw_frame(SETTINGS, setting(4, 1))], 1),
         settings=setting(4, 0)),
    Case("6.9.2 a window below nothing", lambda line: [line.get()],
         grows(3, [raw_frame(SETTINGS, setting(4, 2)), raw_frame(WINDOW_UPDATE, u32(2), 1)], 1),
         settings=setting(4, 3)),
    Case("6.10 two frames", lambda line: parts(line, 2), answered),
    Case("6.10 five frames", lambda line: parts(line, 5), answered),
    Case("6.10 DATA inside", lambda line: [OPEN(line), more(line, 0), END], broken(PROTOCOL)),
    Case("6.10 CONTINUATION of no stream", lambda line: [OPEN(line), more(line, WHOLE, 0)], broken(PROTOCOL)),
    Case("6.10 behind the end of the block", lambda line: [line.post(), more(line)], broken(PROTOCOL)),
    Case("6.10 behind the last CONTINUATION", lambda line: [OPEN(line), more(line), more(line)], broken(PROTOCOL)),
    Case("6.10 behind DATA", lambda line: [line.post(), SOME, more(line)], broken(PROTOCOL)),
    # 7, 8
    Case("7 a reset with a code that nobody knows", behind(POST, raw_frame(RST_STREAM, u32(0xFF), 1)), alive),
    Case("8.1 trailers", lambda line: [line.post(), SOME, raw_frame(HEADERS, fields(line, X), 1, ALL)],
         answered),
    Case("8.2 capitals", malformed((b"X-A", b"b")), reset(PROTOCOL)),
    Case("8.2.2 Connection", malformed((b"connection", b"keep-alive")), reset(PROTOCOL)),
    Case("8.2.2 TE", malformed((b"te", b"trailers, deflate")), reset(PROTOCOL)),
    Case("8.3 a pseudo-field that nobody knows", malformed(first=((b":a", b"b"),)), reset(PROTOCOL)),
    Case("8.3 one of responses", malformed(first=((b":status", b"200"),)), reset(PROTOCOL)),
    Case("8.3 one behind fields", malformed(first=(X,)), reset(PROTOCOL)),
    Case("8.3 one in trailers", lambda line: [line.post(), SOME,
         raw_frame(HEADERS, fields(line, (b":method", b"GET")), 1, ALL)], reset(PROTOCOL)),
    Case("8.3.1 an empty path", malformed(path=b""), reset(PROTOCOL)),
    *(Case(f"8.3.1 no {name.decode()}", malformed(without=name), reset(PROTOCOL))
      for name in (b":method", b":scheme", b":path")),
    *(Case(f"8.3.1 two of {name.decode()}", malformed(first=((name, value),)), reset(PROTOCOL))
      for name, value in ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"))),
    Case("8.1.1 less content than announced", post_of(b"10", b"test"), reset(PROTOCOL)),
    Case("8.1.1 more content than announced", post_of(b"1", b"test"), reset(PROTOCOL)),
    Case("8.1.1 the same in pieces", post_of(b"5", b"test", b"test"), reset(PROTOCOL)),
    # RFC 7541
    Case("HPACK 2.3.3 an index beyond the table", get_with(b"\xc6"), broken(COMPRESSION)),
    Case("HPACK 2.3.3 a name beyond the table", get_with(b"\x7f\x40\x01a"), broken(COMPRESSION)),
    Case("HPACK 4.2 a new size behind fields", get_with(b"\x21"), broken(COMPRESSION)),
    Case("HPACK 4.2 a new size", head(ALL, b"\x3f\xe1\x1f"), answered),
    Case("HPACK 4.2 two new sizes", head(ALL, b"\x20\x3f\xe1\x1f"), answered),
    Case("HPACK 5.2 a byte of padding", get_with(b"\x00\x01x\x84\x49\x50\x9f\xff"), broken(COMPRESSION)),
    Case("HPACK 5.2 padding with zeros", get_with(b"\x00\x01x\x83\x49\x50\x90"), broken(COMPRESSION)),
    Case("HPACK 5.2 the end of strings", get_with(b"\x00\x01x\x87\x49\x51\xff\xff\xff\xfa\x7f"), broken(COMPRESSION)),
    Case("HPACK 6.1 index zero", get_with(b"\x80"), broken(COMPRESSION)),
    Case("HPACK 6.2 every kind of literal",
         get_with(b"\x90\x7a\x01a\x40\x03x-a\x01b\x0f\x2b\x01c\x00\x03x-d\x01e\x1f\x2b\x01f\x10\x03x-g\x83\x49\x50\x9f"),
         answered),
    Case("HPACK 6.3 a size that is too large", head(ALL, b"\x3f\xe2\x1f"),
         broken(COMPRESSION)),
]  # fmt: skip


@dataclass
class World:
    ports: dict[str, int]
    pki: Pki
    host: bytes

    def line(self, listener: str, settings: bytes = b"") -> Line:
        if listener == "plain":
            return Line(client(self.ports[listener]), self.host, settings)
        context = self.pki.client_context()
        context.set_alpn_protocols(["h2"])
        return Line(client(self.ports[listener], context, "proxy.test"), self.host, settings)


def serve(sock: socket.socket) -> None:
    """Answers each request when it is whole."""
    unread = b""
    while True:
        while not (whole := re.match(rb"(?s)(?!.*?chunked).*?\r\n\r\n|.*?\r\n\r\n(?:.*\r\n)?0\r\n.*?\r\n", unread)):
            said = sock.recv(65536)
            if not said:
                return
            unread += said
        unread = unread[whole.end() :]
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    pki = Pki()
    leaf = pki.issue("proxy.test")
    ports = {"plain": free_port(), "tls": free_port()}
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin(serve) as origin:
        objects = [
            m.gateway(
                m.forward_listener(ports["plain"], "plain"),
                m.forward_listener(ports["tls"], "tls", tls=terminate("front")),
            ),
            m.policy([HOST.decode()], dns=dns.address, cidrs=ALLOW_LOOPBACK),
            tls_secret("front", chain(leaf), leaf.private_key_pem.bytes()),
        ]
        with GatewayProcess(tmp_path_factory.mktemp("rules") / "gw", objects):
            yield World(ports, pki, b"%b:%d" % (HOST, origin.port))


@pytest.mark.parametrize("listener", ["plain", "tls"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rule(world: World, case: Case, listener: str):
    line = world.line(listener, case.settings)
    try:
        for at in range(case.before):
            line.ends(2 * at + 1)
        line.say(*case.says(line))
        case.hears(line)
    finally:
        line.sock.close()


def test_what_is_no_preface_is_no_http2(world: World):
    sock = client(world.ports["tls"], world.pki.client_context(), "proxy.test")
    sock.settimeout(WAIT_S)
    sock.sendall(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n")
    while sock.recv(65536):
        pass
    sock.close()
