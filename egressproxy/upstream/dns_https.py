"""DNS over HTTPS: one HTTP/2 connection to a server, with many queries in parallel.

Hand-made on h2: dnspython's `https` needs httpx, and opens a connection for each query unless the caller passes a
client.

A server's input is bounded: bytes of an answer, fields of a head, frames without an answer, and our bytes that the
server does not read. A server that keeps a connection busy without an answer counts as silent.

Sources: RFC 8484 (POST, application/dns-message, Age), RFC 9113 (HTTP/2, section 10.5 on what a peer may cost).
"""

from __future__ import annotations

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
from egressproxy.upstream.dns_message import MAX_REPLY_BYTES, is_reply, is_truncated
from egressproxy.upstream.dns_server import Call, DnsConnection, NoAnswer, OnEnd, Server

#: The most frames (pings, settings, windows, parts of answers) between two complete answers.
MAX_EVENTS = 1024
#: The weight of an interim response (1xx) in that count: its fields are work, and DNS servers send none.
EVENTS_OF_INTERIM = 64
#: The most unsent bytes for a server that does not read.
MAX_UNSENT_BYTES = 64 * 1024
DNS_MESSAGE = "application/dns-message"


class _H2(H2Connection):
    """H2Connection with bounds for a long-lived connection of small messages."""

    DEFAULT_MAX_HEADER_LIST_SIZE = 8 * 1024
    MAX_CLOSED_STREAMS = 128


class DnsHttps(DnsConnection):
    """The HTTP/2 connection; the `number` of a call is its stream id."""

    max_connections = 32
    max_questions = 100

    def __init__(self, server: Server, tls: BackendTlsIR, on_end: OnEnd) -> None:
        super().__init__(server, tls, on_end)
        shown = f"[{server.name}]" if ":" in server.name else server.name
        self._head = [
            (":method", "POST"), (":scheme", "https"),
            (":authority", shown if server.port == 443 else f"{shown}:{server.port}"), (":path", server.path),
            ("accept", DNS_MESSAGE), ("content-type", DNS_MESSAGE),
        ]  # fmt: skip
        self._h2 = _H2(H2Configuration(client_side=True, header_encoding="latin-1"))
        self._events = 0  # since the latest answer

    @property
    def takes(self) -> int:
        return min(self.max_questions, self._h2.remote_settings.max_concurrent_streams)

    def _begin(self) -> None:
        assert self._transport is not None
        if self._transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self.end("the server does not speak HTTP/2")
            return
        settings = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: _H2.DEFAULT_MAX_HEADER_LIST_SIZE}
        self._h2.local_settings = Settings(client=True, initial_values=settings)
        self._h2.initiate_connection()
        self._send_waiting()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
                if self.is_gone:
                    return
        except H2Error as error:
            self.end(f"the server breaks HTTP/2: {error}")
            return
        self._send_waiting()

    # --- streams -------------------------------------------------------------------------------------------------
    def _send_waiting(self) -> None:
        try:
            self._send_questions()
        except H2Error as error:
            self.end(f"HTTP/2: {error}")

    def _send_questions(self) -> None:
        h2 = self._h2
        while self._waiting and h2.open_outbound_streams < self.takes:
            call = next(iter(self._waiting))
            wire = call.question.wire
            if len(wire) > min(h2.outbound_flow_control_window, h2.remote_settings.initial_window_size):
                break
            del self._waiting[call]
            call.number = h2.get_next_available_stream_id()
            self._calls[call.number] = call
            h2.send_headers(call.number, [*self._head, ("content-length", str(len(wire)))])
            h2.send_data(call.number, wire, end_stream=True)
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
            message = bytes(call.body)
            if not is_reply(message, call.question) or is_truncated(message):
                self._fail(call, "the answer is truncated or for another question")
            elif not call.answer.done():
                self._note_answer()
                call.answer.set_result((message, call.age_s))
        elif isinstance(event, StreamReset):
            self._fail(call, "the server refused the stream")

    def _read_head(self, call: Call, fields: dict[str, str]) -> None:
        status, content_type = fields.get(":status", ""), fields.get("content-type", "")
        if status != "200":
            self._fail(call, f"it answered with status {status[:3]}")
        elif content_type.partition(";")[0].strip().lower() != DNS_MESSAGE:
            self._fail(call, "it answered with another type than application/dns-message")
        elif fields.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            self._fail(call, "it answered in a content encoding, which nobody has asked for")
        else:
            age = fields.get("age", "")
            call.age_s = int(age[:9]) if age.isascii() and age.isdigit() else 0

    def _fail(self, call: Call, why: str) -> None:
        if not call.answer.done():
            self._note_answer()
            call.answer.set_exception(NoAnswer(why))

    def _note_answer(self) -> None:
        self._heard, self._events = self._loop.time(), 0
        self.answered += 1

    def _forget(self, call: Call) -> None:
        stream = self._h2.streams.get(call.number)
        try:
            if stream is not None and not stream.closed:
                self._h2.reset_stream(call.number, ErrorCodes.CANCEL)
        except H2Error as error:
            self.end(f"HTTP/2: {error}")
            return
        self._send_waiting()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self.end("the server does not read")
