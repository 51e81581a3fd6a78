"""DNS over HTTPS to one server: connections of HTTP/2 that questions share, and that are kept for a while.

One is enough where the server answers. A question that finds it full, or silent, goes to another one: so names that
take the server long hold up no others.

Hand-made on h2: dnspython's `https` wants httpx, and opens a connection for each question unless it is given a client.

What a server sends is bounded: an answer in bytes, a head in fields, frames that bring no answer in number, and what
it does not read of ours in bytes. A server that keeps a connection busy without answering counts as silent.

Sources: RFC 8484 (POST, application/dns-message, Age), RFC 9113 (HTTP/2, section 10.5 on what a peer may cost).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.upstream.dns_reply import MAX_REPLY_BYTES
from egressproxy.upstream.dns_server import Server, open_connection

#: Connections to one server, and questions on one of them, where the server takes so many.
MAX_CONNECTIONS = 32
MAX_QUESTIONS = 100
#: A connection on which no answer came for so long, while a question waited, is given no other …
STALLED_S = 0.25
#: Connections that are tried for one question: it goes on only where the server has answered on the one that ended.
_MAX_TRIES = 4
#: How long a connection without a question is kept.
IDLE_S = 30.0
#: … and is closed where that question is given up after so long.
SILENCE_S = 1.0
CONNECT_S = 5.0
#: What a server may send (pings, settings, windows, pieces of answers) between one whole answer and the next.
MAX_EVENTS = 1024
#: As so many of them counts an interim response (1xx), whose fields are work, and of which servers of DNS have none.
EVENTS_OF_INTERIM = 64
#: What waits for a server that does not read.
MAX_UNSENT_BYTES = 64 * 1024
DNS_MESSAGE = "application/dns-message"


class HttpsFailure(Exception):
    """No answer; the text says why. `is_of_connection`: the connection has ended, and another one may answer."""

    def __init__(self, text: str, *, is_of_connection: bool = False) -> None:
        super().__init__(text)
        self.is_of_connection = is_of_connection


@dataclass(slots=True, eq=False)
class _HttpsQuestion:
    """One question. `stream` 0: it waits until the server takes another stream."""

    wire: bytes
    answer: asyncio.Future[tuple[bytes, int]]
    began: float
    stream: int = 0
    age_s: int = 0
    body: bytearray = field(default_factory=bytearray)


class _H2(H2Connection):
    """With bounds for a connection of small messages that lasts."""

    DEFAULT_MAX_HEADER_LIST_SIZE = 8 * 1024
    MAX_CLOSED_STREAMS = 128


class DnsHttps:
    """Asks one server. `tls` is how it is verified."""

    __slots__ = ("_authority", "_connections", "_is_retired", "_opening", "_server", "_tls")

    def __init__(self, server: Server, tls: BackendTlsIR) -> None:
        shown = f"[{server.name}]" if ":" in server.name else server.name
        self._authority = shown if server.port == 443 else f"{shown}:{server.port}"
        self._server, self._tls = server, tls
        self._is_retired = False
        self._connections: list[_HttpsConnection] = []
        self._opening: asyncio.Task[_HttpsConnection] | None = None

    async def ask(self, wire: bytes) -> tuple[bytes, int]:
        """The server's message, and for how many seconds a cache on the way has had it (Age).

        Raises HttpsFailure, OSError, DnsTlsFailure or TimeoutError.
        """
        for left in reversed(range(_MAX_TRIES)):
            connection = await self._choose()
            try:
                return await connection.ask(wire)
            except HttpsFailure as error:  # the server may close a connection at any time: RFC 9113 section 9.1
                if not error.is_of_connection or not connection.has_answered or not left:
                    raise
        raise AssertionError("the last try answers or raises")

    def close(self) -> None:
        """Close the connections; those who wait for an answer get HttpsFailure."""
        if self._opening is not None:
            self._opening.cancel()
        for connection in list(self._connections):
            connection.end("the resolver is closed")

    def retire(self) -> None:
        """Close each connection as soon as no question is on it."""
        self._is_retired = True
        for connection in list(self._connections):
            connection.retire()

    async def _choose(self) -> _HttpsConnection:
        """A connection for one more question: the fullest with room, so that the others become idle; or a new one."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            free = [each for each in self._connections if each.has_room(now)]
            if free:
                return max(free, key=lambda each: each.asked)
            if len(self._connections) >= MAX_CONNECTIONS:
                return min(self._connections, key=lambda each: (each.is_stalled(now), each.asked))
            if self._opening is None:
                self._opening = loop.create_task(self._open())
                self._opening.add_done_callback(_retrieve)
            opened = await asyncio.shield(self._opening)  # others wait for it as well
            if opened.is_gone:
                return opened  # it says why

    async def _open(self) -> _HttpsConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = _HttpsConnection(loop, self._authority, self._server.path, self._ended)
                await open_connection(self._server, self._tls, connection)
        finally:
            self._opening = None
        if not connection.is_gone:
            connection.is_retired = self._is_retired
            self._connections.append(connection)
        return connection

    def _ended(self, connection: _HttpsConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)

    def __repr__(self) -> str:
        return f"DnsHttps({self._authority}{self._server.path})"


def _retrieve(opening: asyncio.Task[_HttpsConnection]) -> None:
    """Take the error, or the loop would log it where all who wanted the connection have left."""
    if not opening.cancelled():
        opening.exception()


class _HttpsConnection(asyncio.Protocol):
    """One connection of HTTP/2."""

    def __init__(self, loop: asyncio.AbstractEventLoop, authority: str, path: str, on_end: OnEnd) -> None:
        self._loop = loop
        self._on_end = on_end
        self._head = [
            (":method", "POST"), (":scheme", "https"), (":authority", authority), (":path", path),
            ("accept", DNS_MESSAGE), ("content-type", DNS_MESSAGE),
        ]  # fmt: skip
        self._h2 = _H2(H2Configuration(client_side=True, header_encoding="latin-1"))
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _HttpsQuestion] = {}  # by stream
        self._waiting: dict[_HttpsQuestion, None] = {}  # the oldest first
        self._answered = 0.0  # when the latest answer was whole
        self._events = 0  # since then
        self.has_answered = False
        self._idle: asyncio.TimerHandle | None = None
        self.is_gone = False
        self.is_retired = False
        self._why = ""

    @property
    def asked(self) -> int:
        """Questions that wait for an answer."""
        return len(self._calls) + len(self._waiting)

    def has_room(self, now: float) -> bool:
        """Whether one more question goes out at once, and may be answered."""
        return self.asked < max(1, self._streams) and not self.is_stalled(now)

    def is_stalled(self, now: float) -> bool:
        """Whether a question waits for longer than the server is usually silent."""
        oldest = next(iter(self._calls.values()), None)
        return oldest is not None and now - max(self._answered, oldest.began) > STALLED_S

    @property
    def _streams(self) -> int:
        return min(MAX_QUESTIONS, self._h2.remote_settings.max_concurrent_streams)

    def ask(self, wire: bytes) -> asyncio.Future[tuple[bytes, int]]:
        """A future of the answer and its age. It raises HttpsFailure. Cancelling it takes the question back."""
        call = _HttpsQuestion(wire, self._loop.create_future(), self._loop.time())
        call.answer.add_done_callback(lambda _: self._done(call))
        if self.is_gone:
            call.answer.set_exception(HttpsFailure(self._why, is_of_connection=True))
            return call.answer
        self._stop_idling()
        self._waiting[call] = None
        try:
            self._send_waiting()
        except H2Error as error:
            self.end(f"HTTP/2: {error}")
        return call.answer

    def retire(self) -> None:
        """Take the questions that are here, and close behind them."""
        self.is_retired = True
        if not self._calls and not self._waiting:
            self.end("it was retired")

    def end(self, why: str) -> None:
        """Close the connection; what waits fails."""
        if self.is_gone:
            return
        self.is_gone, self._why = True, why
        self._stop_idling()
        self._on_end(self)
        if self._transport is not None:
            self._transport.abort()
        for call in (*self._calls.values(), *self._waiting):
            if not call.answer.done():
                call.answer.set_exception(HttpsFailure(why, is_of_connection=True))
        self._calls.clear()
        self._waiting.clear()

    # --- asyncio.Protocol ----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self.end("the server does not speak HTTP/2")
            return
        settings = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: _H2.DEFAULT_MAX_HEADER_LIST_SIZE}
        self._h2.local_settings = Settings(client=True, initial_values=settings)
        self._h2.initiate_connection()
        self._flush()
        self._rest()  # who has wanted it may have left

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
                if self.is_gone:
                    return
            self._send_waiting()
        except H2Error as error:
            self.end(f"the server breaks HTTP/2: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.end("the server closed the connection")

    # --- streams -------------------------------------------------------------------------------------------------
    def _send_waiting(self) -> None:
        """Send questions, as many as the server takes. Raises H2Error."""
        h2 = self._h2
        while self._waiting and h2.open_outbound_streams < self._streams:
            call = next(iter(self._waiting))
            size = len(call.wire)
            if size > min(h2.outbound_flow_control_window, h2.remote_settings.initial_window_size):
                break
            del self._waiting[call]
            call.stream = h2.get_next_available_stream_id()
            self._calls[call.stream] = call
            h2.send_headers(call.stream, [*self._head, ("content-length", str(size))])
            h2.send_data(call.stream, call.wire, end_stream=True)
        self._flush()

    def _take(self, event: Event) -> None:
        self._events += EVENTS_OF_INTERIM if isinstance(event, InformationalResponseReceived) else 1
        if isinstance(event, ConnectionTerminated):
            self.end("the server ended the connection")
            return
        if self._events > MAX_EVENTS:
            self.end("the server sends much, and no answer")
            return
        call = self._calls.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
            if call is not None and not call.answer.done():
                call.body += event.data or b""
                if len(call.body) > MAX_REPLY_BYTES:
                    self._fail(call, f"an answer of more than {MAX_REPLY_BYTES} bytes is not read")
        elif call is None:
            return
        elif isinstance(event, ResponseReceived):
            self._read_head(call, {str(name): str(value) for name, value in event.headers or ()})
        elif isinstance(event, StreamEnded):
            if not call.answer.done():
                self._note_answer()
                call.answer.set_result((bytes(call.body), call.age_s))
        elif isinstance(event, StreamReset):
            self._fail(call, "the server refused the stream")

    def _read_head(self, call: _HttpsQuestion, fields: dict[str, str]) -> None:
        status, said = fields.get(":status", ""), fields.get("content-type", "")
        if status != "200":
            self._fail(call, f"it answered with status {status[:3]}")
        elif said.partition(";")[0].strip().lower() != DNS_MESSAGE:
            self._fail(call, "it answered with another type than application/dns-message")
        elif fields.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            self._fail(call, "it answered in a content encoding, which nobody has asked for")
        else:
            age = fields.get("age", "")
            call.age_s = int(age[:9]) if age.isascii() and age.isdigit() else 0

    def _fail(self, call: _HttpsQuestion, why: str) -> None:
        if not call.answer.done():
            self._note_answer()
            call.answer.set_exception(HttpsFailure(why))

    def _note_answer(self) -> None:
        self._answered, self._events, self.has_answered = self._loop.time(), 0, True

    def _done(self, call: _HttpsQuestion) -> None:
        """A question has its answer, has failed or was given up."""
        known = self._calls.pop(call.stream, None)
        self._waiting.pop(call, None)
        if self.is_gone:
            return
        now = self._loop.time()
        if call.answer.cancelled() and self._answered < call.began and now - call.began > SILENCE_S:
            self.end("the server is silent")
            return
        try:
            if known is not None and not self._is_closed(call.stream):
                self._h2.reset_stream(call.stream, ErrorCodes.CANCEL)
            self._send_waiting()
        except H2Error as error:
            self.end(f"HTTP/2: {error}")
        if self.is_retired and not self._calls and not self._waiting:
            self.end("it was retired")
        self._rest()

    def _rest(self) -> None:
        """Without a question: close in a while."""
        if not self._calls and not self._waiting and not self.is_gone and self._idle is None:
            self._idle = self._loop.call_later(IDLE_S, self.end, "it was idle")

    def _is_closed(self, stream: int) -> bool:
        known = self._h2.streams.get(stream)
        return known is None or known.closed

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self.end("the server does not read")


#: Called with a connection that has ended.
OnEnd = Callable[[_HttpsConnection], None]
