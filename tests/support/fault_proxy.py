"""FaultProxy: a provider whose connections and responses fail as they are told, in every state that the protocols have.

It speaks HTTP/1.1 or HTTP/2, plain or in TLS, on the loop of the test. `script` has a `Fault` for each connection or
request to come, in their order; what has none is answered as `expected` says, so that an answer to
another request, or to half a body, is seen. A fault is what is done, step by step, once its moment has come.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame, RstStreamFrame

from tests.support.http2 import GrpcCall, Http2Server

#: Between two steps: what was done before has arrived.
_STEP_S = 0.01
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def expected(name: str, body: bytes) -> bytes:
    """The body of the answer to a request with this one."""
    return f"{name} {hashlib.sha256(body).hexdigest()}".encode()


class When(Enum):
    """The moment of a fault."""

    ACCEPT = "a connection has come, and nothing is said on it: in TLS, before the handshake"
    HEAD = "the head of a request is here, and its body is not"
    WHOLE = "a request is here"


class Do(Enum):
    """What can be done to a connection of either version."""

    RESET = "a TCP reset"
    CLOSE = "the connection is closed in good order"
    END = "FIN, and what comes is read further (half-open)"
    STALL = "nothing more is said, and nothing more is read"
    PAUSE = "a moment passes"
    DRIP = "what is said from now on goes out byte by byte"


FilterStep = bytes | Do | Callable[[Any, GrpcCall], None]  # of an Http2Side; `ends` of either


@dataclass(frozen=True)
class Fault:
    """`steps` are done one after the other; bytes are sent as they are, a callable is told the HTTP/2 stream."""

    name: str
    steps: tuple[FilterStep, ...]
    when: When = When.WHOLE

    def __str__(self) -> str:
        return self.name


@dataclass
class FaultProxy:
    """Listens on a port of 127.0.0.1 of its own, from `start` to `close`.

    `fault` holds for what the script has nothing for, until it is changed; `down` and `up` are the death of it.
    """

    name: str
    is_http2: bool = False
    context: ssl.SSLContext | None = None
    script: list[Fault] = field(default_factory=list)
    fault: Fault | None = None
    harmed: int = 0  # connections and requests that have met a fault
    requests: list[bytes] = field(default_factory=list)  # the methods of those whose head has come
    resets: list[int] = field(default_factory=list)  # the codes of RST_STREAM that the gateway has sent
    accepted: int = 0

    def __post_init__(self) -> None:
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listen()
        self.open: set[_Side] = set()
        self._held: list[socket.socket] = []  # connections that nobody serves
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept, on the running loop."""
        if self.context is not None and self.is_http2:
            self.context.set_alpn_protocols(["h2"])
        self._loop = asyncio.get_running_loop()
        self.begin(self._accept())

    def up(self) -> None:
        """Listen again, on the same port."""
        self._listen()
        self.start()

    def down(self) -> None:
        """Refuse connections, and end those that are open."""
        self.close()

    def _listen(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]

    def close(self) -> None:
        """Everything ends."""
        for task in self._tasks:
            task.cancel()
        if self._loop is not None and not self._loop.is_closed() and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        for side in tuple(self.open):
            side.transport.abort()
        for sock in (self._socket, *self._held):
            sock.close()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside everything else, until `close`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def next_fault(self, when: When) -> Fault | None:
        """The next of the script, or that of all, if this is its moment."""
        found = self.script[0] if self.script else self.fault
        if found is None or found.when is not when:
            return None
        if self.script:
            del self.script[0]
        self.harmed += 1
        return found

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._socket)
            self.accepted += 1
            fault = self.next_fault(When.ACCEPT)
            if fault is not None:
                self.begin(self._spoil(sock, fault))
                continue
            kind = Http2Side if self.is_http2 else _Http1Side
            try:
                await loop.connect_accepted_socket(lambda kind=kind: kind(self), sock, ssl=self.context)  # type: ignore[misc]
            except OSError:
                sock.close()

    async def _spoil(self, sock: socket.socket, fault: Fault) -> None:
        """The steps of a fault of a connection that nobody serves."""
        for step in fault.steps:
            if isinstance(step, bytes):
                await asyncio.get_running_loop().sock_sendall(sock, step)
            elif step is Do.STALL:
                self._held.append(sock)
                return
            elif step is Do.RESET:
                _lingers_not(sock)
            await asyncio.sleep(_STEP_S)
        sock.close()


class _Side(asyncio.Protocol):
    """The provider's end of one connection."""

    transport: asyncio.Transport

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.is_deaf = False
        self._drips: bytearray | None = None
        self.is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.proxy.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True
        self.proxy.open.discard(self)

    def write(self, data: bytes) -> None:
        """Send these bytes."""
        if self._drips is None:
            self.transport.write(data)
        else:
            self._drips += data

    async def _drip(self) -> None:
        assert self._drips is not None
        while not self.is_gone:
            if self._drips:
                self.transport.write(bytes([self._drips.pop(0)]))
            await asyncio.sleep(0.0005)

    def says(self) -> None:
        """Send what was made."""

    def plays(self, fault: Fault, call: GrpcCall) -> None:
        """Do the steps of this fault, each a moment after the one before."""
        self.proxy.begin(self._play(fault, call))

    async def _play(self, fault: Fault, call: GrpcCall) -> None:
        for number, step in enumerate(fault.steps):
            if number:
                await asyncio.sleep(_STEP_S)
            if self.is_gone:
                return
            if isinstance(step, bytes):
                self.write(step)
            elif step is Do.DRIP:
                self._drips = bytearray()
                self.proxy.begin(self._drip())
            elif step is Do.RESET:
                _lingers_not(self.transport.get_extra_info("socket"))
                self.transport.abort()
            elif step is Do.CLOSE:
                self.transport.close()
            elif step is Do.END:
                self.transport.write_eof()
            elif step is Do.STALL:
                self.is_deaf = True
            elif not isinstance(step, Do):
                step(self, call)
                self.says()


class _Http1Side(_Side):
    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(proxy)
        self._data = b""
        self._call: GrpcCall | None = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        while not self.is_deaf:
            end = self._data.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            head = self._data[:end]
            if self._call is None:
                self._call = GrpcCall(0, {b":method": head.split(b" ")[0]})
                self.proxy.requests.append(head.split(b" ")[0])
                if self._is_spoilt(When.HEAD):
                    return
            if b"\r\ntransfer-encoding: chunked" in head.lower():
                whole = self._data.find(b"0\r\n\r\n", end) + 5
                if whole < end:
                    return
                body = _unchunked(self._data[end:whole])
            else:
                length = _LENGTH.search(head)
                whole = end + (int(length[1]) if length is not None else 0)
                if len(self._data) < whole:
                    return
                body = self._data[end:whole]
            self._data = self._data[whole:]
            self._call.data += body
            if self._is_spoilt(When.WHOLE):
                return
            self.answers(self._call)
            self._call = None

    def answers(self, call: GrpcCall) -> None:
        """All of the right answer."""
        answer = expected(self.proxy.name, bytes(call.data))
        self.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))

    def _is_spoilt(self, when: When) -> bool:
        fault = self.proxy.next_fault(when)
        if fault is not None:
            assert self._call is not None
            self.is_deaf = True  # whatever follows belongs to no request
            self.plays(fault, self._call)
        return fault is not None


class Http2Side(_Side):
    """The provider's end of an HTTP/2 connection, for the steps of a fault."""

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(proxy)
        self.server = Http2Server()
        self._met: set[int] = set()
        self._done: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.says()

    def says(self) -> None:
        """Send what h2 has made."""
        self.write(self.server.outgoing())

    def raw(self, frames: bytes) -> None:
        """Send frames that h2 knows nothing of, behind everything else."""
        self.write(self.server.outgoing() + frames)

    def data_received(self, data: bytes) -> None:
        if self.is_deaf:
            return
        try:
            self.server.take(data)
        except H2Error:
            return  # we have broken a rule, and are told so
        for number, call in list(self.server.calls.items()):
            if number not in self._met:
                self._met.add(number)
                self.proxy.requests.append(call.headers[b":method"])
                self._is_spoilt(When.HEAD, call)
            if call.reset is not None and number not in self._done:
                self._done.add(number)
                self.proxy.resets.append(call.reset)
            if call.is_whole and number not in self._done:
                self._done.add(number)
                if not self._is_spoilt(When.WHOLE, call):
                    self.answers(call)
        self.says()

    def answers(self, call: GrpcCall) -> None:
        """All of the right answer."""
        self.begins(call)
        answer = self.body(call)
        if is_call(call):
            self.server.h2.send_data(call.stream, answer)
            self.server.h2.send_headers(call.stream, [(b"grpc-status", b"0")], end_stream=True)
        else:
            self.server.h2.send_data(call.stream, answer, end_stream=True)

    def begins(self, call: GrpcCall) -> None:
        """The head of the right answer."""
        kind = b"application/grpc" if is_call(call) else b"text/plain"
        self.server.h2.send_headers(call.stream, [(b":status", b"200"), (b"content-type", kind)])

    def body(self, call: GrpcCall) -> bytes:
        """The content of the right answer."""
        answer = expected(self.proxy.name, bytes(call.data))
        return b"\0" + len(answer).to_bytes(4, "big") + answer if is_call(call) else answer

    def _is_spoilt(self, when: When, call: GrpcCall) -> bool:
        fault = self.proxy.next_fault(when)
        if fault is not None:
            self._done.add(call.stream)
            self.plays(fault, call)
        return fault is not None


def is_call(call: GrpcCall) -> bool:
    """Whether the request is one of gRPC."""
    return call.headers.get(b"content-type", b"").startswith(b"application/grpc")


# --- steps in HTTP/2 -----------------------------------------------------------------------------------------------
def begins(side: Http2Side, call: GrpcCall) -> None:
    """The head of the right answer."""
    side.begins(call)


def data(side: Http2Side, call: GrpcCall) -> None:
    """Some of the content."""
    side.server.h2.send_data(call.stream, side.body(call)[:10])


def ends(side: Http2Side | _Http1Side, call: GrpcCall) -> None:
    """What is missing behind a head, or all of the right answer; in HTTP/1 that."""
    if isinstance(side, _Http1Side):
        side.answers(call)
        return
    stream = side.server.h2.streams[call.stream]
    if not stream.state_machine.headers_sent:
        side.answers(call)
        return
    is_grpc = is_call(call)
    side.server.h2.send_data(call.stream, side.body(call), end_stream=not is_grpc)
    if is_grpc:
        side.server.h2.send_headers(call.stream, [(b"grpc-status", b"0")], end_stream=True)


def rst(code: ErrorCodes | int, stream: int = 0) -> FilterStep:
    """RST_STREAM with this code, of the stream of the request or of `stream` above it."""

    def step(side: Http2Side, call: GrpcCall) -> None:
        side.raw(RstStreamFrame(call.stream + stream, error_code=int(code)).serialize())

    return step


def goaway(below: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> FilterStep:
    """GOAWAY whose last stream is so far below that of the request; negative: above it."""

    def step(side: Http2Side, call: GrpcCall) -> None:
        last = min(max(call.stream - below, 0), 2**31 - 1)
        side.raw(GoAwayFrame(0, last_stream_id=last, error_code=int(code)).serialize())

    return step


def settings(**changes: int) -> FilterStep:
    """SETTINGS by the names of h2, in the middle of everything."""

    def step(side: Http2Side, call: GrpcCall) -> None:
        side.server.h2.update_settings({SettingCodes[name]: value for name, value in changes.items()})

    return step


# --- bytes ---------------------------------------------------------------------------------------------------------
def _lingers_not(sock: Any) -> None:
    """Closing it is a reset from now on."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _unchunked(rest: bytes) -> bytes:
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        body, rest = body + rest[:count], rest[count + 2 :]
    return body
