"""WebSockets for tests: servers and clients of `websockets` and `wsproto`, over HTTP/1.1 and over HTTP/2 (RFC 8441).

Each server echoes what comes on /echo, a text `close` being answered by a close frame with 4002; it refuses /refused
with 403 and a body. It speaks the subprotocol `chat`, and permessage-deflate where it is offered.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as WebsocketsRequest
from websockets.http11 import Response
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection, ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.extensions import PerMessageDeflate

from tests.e2e.world import Origin
from tests.support.http2 import Http2Server
from tests.support.http2_client import Http2Client
from tests.support.waiting import WAIT_S

REFUSAL = b"no WebSockets here"
PIECE = 65536


# --- servers ---------------------------------------------------------------------------------------------------------
class WebSocketServer:
    """That of `websockets`, in a thread."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.closed: list[int | None] = []  # close codes that it has seen
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._start(context), self._loop).result(WAIT_S)

    async def _start(self, context: ssl.SSLContext | None) -> int:
        more: dict[str, Any] = {"subprotocols": ["chat"], "max_size": None, "ping_interval": None}
        self._server = await serve(
            self._talk, "127.0.0.1", 0, ssl=context, process_request=self._look, backlog=1000, **more
        )
        return int(next(iter(self._server.sockets)).getsockname()[1])

    def _look(self, _: ServerConnection, request: WebsocketsRequest) -> Response | None:
        if not request.path.endswith("/refused"):
            return None
        fields = Headers({"Content-Length": str(len(REFUSAL)), "Content-Type": "text/plain"})
        return Response(HTTPStatus.FORBIDDEN, "Forbidden", fields, REFUSAL)

    async def _talk(self, connection: ServerConnection) -> None:
        try:
            async for message in connection:
                if message == "close":
                    await connection.close(4002, "as you like")
                else:
                    half = len(message) // 2
                    await connection.send([message[:half], message[half:]])  # in fragments
        except ConnectionClosed:
            self.closed.append(connection.close_code)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        asyncio.run_coroutine_threadsafe(self._server.wait_closed(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class WsprotoServer(Origin):
    """That of `wsproto` over HTTP/1.1."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.closed: list[int | None] = []
        super().__init__(self._converse, context)

    def _converse(self, sock: socket.socket) -> None:
        connection = WSConnection(ConnectionType.SERVER)
        while connection.state is not ConnectionState.CLOSED:
            piece = sock.recv(PIECE)
            connection.receive_data(piece or None)
            for event in connection.events():
                if isinstance(event, Request):
                    if event.target.endswith("/refused"):
                        fields = [(b"content-length", b"%d" % len(REFUSAL))]
                        sock.sendall(connection.send(RejectConnection(headers=fields, status_code=403, has_body=True)))
                        sock.sendall(connection.send(RejectData(REFUSAL)))
                        return
                    chat = "chat" if "chat" in event.subprotocols else None
                    extension = PerMessageDeflate()
                    sock.sendall(connection.send(AcceptConnection(chat, [extension])))
                else:
                    if isinstance(event, CloseConnection):
                        self.closed.append(event.code)
                        if connection.state is ConnectionState.CLOSED:
                            return
                    for said in answers(event, pings=not extension.enabled()):
                        sock.sendall(connection.send(said))
            if not piece:
                return


class Http2WebSockets(Origin):
    """That of `wsproto` over HTTP/2: each stream of an extended CONNECT is a connection."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.closed: list[int | None] = []
        super().__init__(self._converse, context)

    def _converse(self, sock: socket.socket) -> None:
        server, streams = Http2Server(max_streams=1000, takes_upgrades=True), dict[int, _Stream]()
        while True:
            sock.sendall(server.outgoing())
            piece = sock.recv(PIECE)
            if not piece:
                return
            server.take(piece)
            for number, call in server.calls.items():
                stream = streams.get(number)
                if stream is None:
                    stream = streams[number] = _Stream(server, number, self.closed)
                stream.goes_on(call)


class _Stream:
    def __init__(self, server: Http2Server, number: int, closed: list[int | None]) -> None:
        self._server, self._number, self._closed = server, number, closed
        self._connection: Connection | None = None
        self._said = bytearray()
        self._is_over = self._has_ended = False

    def goes_on(self, call: Any) -> None:
        h2 = self._server.h2
        if self._is_over or call.reset is not None:
            return
        if self._connection is None:
            asked = call.headers
            assert (asked[b":method"], asked[b":protocol"]) == (b"CONNECT", b"websocket")
            if asked[b":path"].endswith(b"/refused"):
                self._server.respond(self._number, [(b":status", b"403")], REFUSAL)
                self._is_over = True
                return
            fields = [(b":status", b"200")]
            if b"chat" in asked.get(b"sec-websocket-protocol", b""):
                fields.append((b"sec-websocket-protocol", b"chat"))
            extension = PerMessageDeflate()
            offered = asked.get(b"sec-websocket-extensions", b"").decode()
            if offered.startswith("permessage-deflate"):
                told = extension.accept(offered)
                value = "permessage-deflate" + (f"; {told}" if isinstance(told, str) and told else "")
                fields.append((b"sec-websocket-extensions", value.encode()))
            h2.send_headers(self._number, fields)
            self._connection = Connection(ConnectionType.SERVER, [extension])
            self._pings = not extension.enabled()
        data, call.data = bytes(call.data), bytearray()
        if data:
            self._connection.receive_data(data)
        for event in self._connection.events():
            if isinstance(event, CloseConnection):
                self._closed.append(event.code)
                self._has_ended = True
                if self._connection.state is ConnectionState.CLOSED:
                    continue
            for said in answers(event, pings=self._pings):
                self._said += self._connection.send(said)
        while self._said and (room := min(h2.local_flow_control_window(self._number), 16384, len(self._said))):
            h2.send_data(self._number, bytes(self._said[:room]))
            del self._said[:room]
        if (self._has_ended or call.is_whole) and not self._said:
            h2.end_stream(self._number)
            self._is_over = True


def answers(event: Event, *, pings: bool) -> Iterator[Event]:
    """What a server of ours says to this: the content as it comes, a ping amid it, and its end.

    `pings` is false where messages are compressed: wsproto takes a ping amid one for its end.
    """
    if isinstance(event, Message):
        if event.data == "close":
            yield CloseConnection(4002, "as you like")
            return
        kind = TextMessage if isinstance(event, TextMessage) else BytesMessage
        half = len(event.data) // 2
        if half:  # wsproto compresses an empty fragment to what it cannot read
            yield kind(event.data[:half], message_finished=False)
        if pings:
            yield Ping(b"amid it")
        yield kind(event.data[half:], message_finished=event.message_finished)
    elif isinstance(event, Ping | CloseConnection):
        yield event.response()


# --- clients ---------------------------------------------------------------------------------------------------------
class SocketWire:
    """Bytes over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> bytes:
        return self.sock.recv(PIECE)

    def ends(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()


class Http2Wire:
    """Bytes over a stream of a CONNECT, extended (RFC 8441) or to a proxy. `fields` are those of its head."""

    def __init__(self, sock: socket.socket, fields: list[tuple[bytes, bytes]]) -> None:
        self.sock = sock
        self._client = Http2Client()
        self.is_extended = any(name == b":protocol" for name, _ in fields)
        while self.is_extended and self._client.h2.remote_settings.enable_connect_protocol != 1:
            self._turn()
        self.stream = self._client.request(fields, ends=False)
        while not self.answer.fields and self.answer.reset is None:
            self._turn()
        self._read = 0

    @property
    def answer(self) -> Any:
        return self._client.of(self.stream)

    def _turn(self) -> None:
        self.sock.sendall(self._client.outgoing())
        piece = self.sock.recv(PIECE)
        if not piece:
            raise ConnectionError("the connection has ended")
        self._client.take(piece)

    def send(self, data: bytes) -> None:
        while data:
            room = min(self._client.h2.local_flow_control_window(self.stream), 16384, len(data))
            if room:
                self._client.h2.send_data(self.stream, data[:room])
                data = data[room:]
            else:
                self._turn()
        self.sock.sendall(self._client.outgoing())

    def receive(self) -> bytes:
        while not self.answer.data and not self.answer.is_whole:
            if self.answer.reset is not None:
                raise ConnectionResetError(f"RST_STREAM {self.answer.reset}")
            self._turn()
        data = bytes(self.answer.data)
        self.answer.data.clear()
        return data

    def ends(self) -> None:
        self._client.h2.end_stream(self.stream)
        self.sock.sendall(self._client.outgoing())

    def close(self) -> None:
        self.sock.close()


class WsprotoClient:
    """That of `wsproto` over any wire. Over HTTP/1.1 it shakes hands itself; `refusal` is (status, body) then."""

    def __init__(
        self, wire: SocketWire | Http2Wire, host: str, target: str, *, subprotocols: list[str], deflates: bool = True
    ) -> None:
        self.wire = wire
        self._has_ended = False
        self.subprotocol: str | None = None
        self.extensions: list[str] = []
        self.refusal: tuple[int, bytes] | None = None
        self._events: list[Event] = []
        if isinstance(wire, Http2Wire) and wire.is_extended:
            self._shake_hands_over_http2(wire)
            return
        self.connection: Any = WSConnection(ConnectionType.CLIENT)
        extensions: list[Any] = [PerMessageDeflate()] if deflates else []
        asked = Request(host=host, target=target, extensions=extensions, subprotocols=subprotocols)
        wire.send(self.connection.send(asked))
        first = self.next()
        if isinstance(first, AcceptConnection):
            self.subprotocol = first.subprotocol
            self.extensions = [extension.name for extension in first.extensions]
        else:
            body, status = b"", first.status_code  # type: ignore[attr-defined]
            while isinstance(part := self.next(), RejectData):
                body += part.data
                if part.body_finished:
                    break
            self.refusal = status, body

    def _shake_hands_over_http2(self, wire: Http2Wire) -> None:
        answer = wire.answer
        if answer.status != 200:
            body = b""
            while not answer.is_whole or answer.data:
                body += wire.receive()
            self.refusal = answer.status, body
            return
        self.subprotocol = answer[b"sec-websocket-protocol"].decode() or None
        extension, told = PerMessageDeflate(), answer[b"sec-websocket-extensions"].decode()
        if told:
            extension.finalize(told)
            self.extensions = [extension.name]
        self.connection = Connection(ConnectionType.CLIENT, [extension] if told else [])

    def send(self, *events: Event) -> None:
        for event in events:
            self.wire.send(self.connection.send(event))

    def ends(self) -> None:
        """Say no more, and hear on."""
        self._has_ended = True
        self.wire.ends()

    def next(self) -> Event:
        """The next event. A ping is for the caller to answer."""
        while not self._events:
            piece = self.wire.receive()
            self.connection.receive_data(piece or None)
            self._events += self.connection.events()
        return self._events.pop(0)

    def message(self) -> tuple[str | bytes, int]:
        """A whole message, and how many pings came amid it."""
        parts: list[Any] = []
        pings = 0
        while True:
            event = self.next()
            if isinstance(event, Ping):
                pings += 1
                if not self._has_ended:
                    self.send(event.response())
            elif isinstance(event, Message):
                parts.append(event.data)
                if event.message_finished:
                    return parts[0][:0].join(parts), pings
            else:
                raise AssertionError(event)

    def closes(self, code: int) -> CloseConnection:
        """Close with this code; the answer of the server."""
        self.send(CloseConnection(code, "bye"))
        return self.closing()

    def closing(self) -> CloseConnection:
        """The close frame of the server, behind whatever pings and pongs."""
        while not isinstance(event := self.next(), CloseConnection):
            pass
        return event
