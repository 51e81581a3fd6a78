"""DNS over HTTPS to one server: a connection of HTTP/2 that all questions share, and that is kept for a while.

Hand-made on h2: dnspython's `https` wants httpx, and opens a connection for each question unless it is given a client.

What a server sends is bounded: an answer in bytes, a head in fields, frames that bring no answer in number, and what
it does not read of ours in bytes. A server that keeps a connection busy without answering counts as silent.

Sources: RFC 8484 (POST, application/dns-message, Age), RFC 9113 (HTTP/2, section 10.5 on what a peer may cost).
"""

from __future__ import annotations

import asyncio
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

__all__ = ["DnsHttps", "HttpsFailure"]

#: How long a connection without a question is kept.
IDLE_S = 30.0
#: A connection on which no answer came for so long, while a question waited, is not used again.
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

    __slots__ = ("_authority", "_connection", "_is_retired", "_opening", "_server", "_tls")

    def __init__(self, server: Server, tls: BackendTlsIR) -> None:
        shown = f"[{server.name}]" if ":" in server.name else server.name
        self._authority = shown if server.port == 443 else f"{shown}:{server.port}"
        self._server, self._tls = server, tls
        self._is_retired = False
        self._connection: _HttpsConnection | None = None
        self._opening: asyncio.Task[_HttpsConnection] | None = None

    async def ask(self, wire: bytes) -> tuple[bytes, int]:
        """The server's message, and for how many seconds a cache on the way has had it (Age).

        Raises HttpsFailure, OSError, DnsTlsFailure or TimeoutError.
        """
        kept = self._connection
        if kept is not None and not kept.is_gone:
            try:
                return await kept.ask(wire)
            except HttpsFailure as error:  # the server may close a connection at any time: RFC 9113 section 9.1
                if not error.is_of_connection:
                    raise
        return await (await self._connected()).ask(wire)

    def close(self) -> None:
        """Close the connection; those who wait for an answer get HttpsFailure."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.end("the resolver is closed")

    def retire(self) -> None:
        """Close the connection as soon as no question is on it."""
        self._is_retired = True
        if self._connection is not None:
            self._connection.retire()

    async def _connected(self) -> _HttpsConnection:
        if self._connection is not None and not self._connection.is_gone:
            return self._connection
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(_retrieve)
        return await asyncio.shield(self._opening)  # others wait for it as well

    async def _open(self) -> _HttpsConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = _HttpsConnection(loop, self._authority, self._server.path)
                connection.is_retired = self._is_retired
                await open_connection(self._server, self._tls, connection)
        finally:
            self._opening = None
        self._connection = connection
        return connection

    def __repr__(self) -> str:
        return f"DnsHttps({self._authority}{self._server.path})"


def _retrieve(opening: asyncio.Task[_HttpsConnection]) -> None:
    """Take the error, or the loop would log it where all who wanted the connection have left."""
    if not opening.cancelled():
        opening.exception()


class _HttpsConnection(asyncio.Protocol):
    """One connection of HTTP/2."""

    def __init__(self, loop: asyncio.AbstractEventLoop, authority: str, path: str) -> None:
        self._loop = loop
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
        self._idle: asyncio.TimerHandle | None = None
        self.is_gone = False
        self.is_retired = False
        self._why = ""

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
        while self._waiting and h2.open_outbound_streams < h2.remote_settings.max_concurrent_streams:
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
        self._answered, self._events = self._loop.time(), 0

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
        if not self._calls and not self._waiting and not self.is_gone:
            if self.is_retired:
                self.end("it was retired")
            else:
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
