"""RequestStream: a request on a client's HTTP/2 connection, as it comes in. `DownstreamStream` adds the answer.

What breaks a rule of messages is answered where HTTP/1 would answer it, and its stream is reset; the others go on.

Sources: RFC 9113 sections 5.1 and 8.1.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from h2.errors import ErrorCodes

from egressproxy.errors import BadRequest, GatewayError, LimitExceeded, Reason
from egressproxy.net.byte_queue import keep
from egressproxy.net.driver import Driver
from egressproxy.net.flow_control import BodySink
from egressproxy.protocols.http1.framing import Malformed
from egressproxy.protocols.http2.downstream import DownstreamHttp2
from egressproxy.protocols.http2.downstream_states import DETACHED, FINISHING, LISTENING, RECEIVING, RESPONDING
from egressproxy.protocols.http2.heads import read_trailers
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.stream import Http2Stream
from egressproxy.protocols.http2.stream_transport import StreamTransport


class RequestStream(Http2Stream):
    """The content of one request. The states are in `downstream_states`."""

    __slots__ = (
        "_left", "_pieces", "_request_trailers", "_reset_code", "_state", "body_limit", "body_size", "downstream",
        "driver", "has_ended", "is_whole", "sink", "transport",
    )  # fmt: skip

    def __init__(self, downstream: DownstreamHttp2, stream_id: int) -> None:
        super().__init__(downstream, stream_id)
        self.downstream = downstream
        self.driver = Driver()
        self.transport: asyncio.Transport = downstream.transport
        self.sink: BodySink | None = None
        self.is_reading_paused = True  # until somebody asks for the body
        self.body_size = 0
        self.body_limit = -1
        self.has_ended = False  # a tunnel's end is here
        self.is_whole = False  # END_STREAM is here
        self._left = -1  # bytes of content that Content-Length still promises; -1: it does not say
        self._pieces: list[bytes] = []  # content before a sink is there
        self._request_trailers = b""
        self._reset_code: ErrorCodes | None = None  # goes out behind our last word
        self._state = RECEIVING

    # --- what comes ------------------------------------------------------------------------------------------------
    def take_data(self, data: bytes) -> None:
        state = self._state
        if state == DETACHED:
            keep(self._pieces, data)
            self._deliver()
        elif state == LISTENING:
            keep(self._pieces, data)
            self._state = RESPONDING
            self.driver.resume()
        elif state == RESPONDING:
            if self._left == 0:
                self._break("content, and a Content-Length of 0")
            else:
                keep(self._pieces, data)  # behind a CONNECT: the tunnel's
        elif state == FINISHING:
            self.body_size += len(data)
            self._left -= len(data)
            if self._left <= 0:
                self._look_whether_over()
        elif state == RECEIVING:
            self.body_size += len(data)
            if self._left >= 0:
                self._left -= len(data)
                if self._left < 0:
                    self._break("more content than Content-Length says")
                    return
            if 0 <= self.body_limit < self.body_size:
                self._is_too_long()
            elif self.sink is None or self.is_reading_paused:
                self.is_reading_paused = True
                keep(self._pieces, data)
            else:
                self._hand_on(self.sink, data)

    def take_trailers(self, fields: FieldList) -> None:
        if self._state != RECEIVING:
            return
        try:
            self._request_trailers = read_trailers(fields, self.connection.limits)
        except Malformed as fault:
            self._break(fault.message)

    def take_end(self) -> None:
        self.is_whole = True
        state = self._state
        if state == RECEIVING:
            if self._left > 0 and self._reset_code is None:
                self._break("less content than Content-Length says")
            elif not self._pieces:
                self._end_request()
        elif state == LISTENING:
            self.has_ended = True
            self._state = RESPONDING
            self.driver.resume()
        elif state == RESPONDING:
            self.has_ended = self._left < 0
        elif state == DETACHED:
            self._deliver()
        elif state == FINISHING:
            if self._left > 0 and 0 <= self.body_limit != self.body_size:
                self._reset_code = ErrorCodes.PROTOCOL_ERROR  # the answer was faster than the error
                self.connection.stream_failed()
            self._look_whether_over()

    def _end_request(self) -> None:
        """All of the body is here, and handed on if somebody has asked for it."""
        sink, self.sink = self.sink, None
        if sink is not None:  # without a sink the end waits for one
            self._state = RESPONDING
            try:
                sink.end_body(self.trailers_to_pass(self._request_trailers) if self._request_trailers else b"")
            except GatewayError as error:
                self.driver.throw(error)

    def _hand_on(self, sink: BodySink, data: bytes) -> None:
        try:
            sink.send_body(data)
        except GatewayError as error:
            self.sink = None
            self.driver.throw(error)

    def _is_too_long(self) -> None:
        """The body is beyond its limit: nobody gets more of it (RFC 9110 section 15.5.14)."""
        self.sink = None
        message = f"the request body is longer than {self.body_limit} bytes"
        self.driver.throw(LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True))

    def _break(self, message: str) -> None:
        """The request breaks a rule behind its head."""
        self.sink = None
        self._left = -1
        self._pieces.clear()
        self._reset_code = ErrorCodes.PROTOCOL_ERROR
        self.driver.throw(BadRequest(Reason.BAD_FRAMING, message, close=True))
        self.connection.stream_failed()
        self.downstream.gave_up()  # as good as

    def _deliver(self) -> None:
        """Hand on what is here, as far as it is taken, and the end behind it."""
        pieces = self._pieces
        while pieces and not self.is_reading_paused:
            if self._state == DETACHED:
                assert isinstance(self.transport, StreamTransport)
                self.transport.data_came(pieces.pop(0))
            elif self.sink is None:
                return
            elif 0 <= self.body_limit < self.body_size:  # the limit is younger than what was kept
                self._is_too_long()
                return
            else:
                self._hand_on(self.sink, pieces.pop(0))
        if pieces or not self.is_whole or self.is_reading_paused:
            return
        if self._state == DETACHED:
            assert isinstance(self.transport, StreamTransport)
            if not self.has_ended:
                self.has_ended = True
                self.transport.end_came()
        elif self._state == RECEIVING and self.sink is not None:
            self._end_request()

    def resume_reading(self) -> None:
        self.is_reading_paused = False
        if self._pieces or self.is_whole:
            self._deliver()
        if not self.is_reading_paused:
            self.give_kept_back()

    def trailers_to_pass(self, trailers: bytes) -> bytes:
        """What goes on of the trailers of the request."""
        return trailers

    @abstractmethod
    def _look_whether_over(self) -> None:
        """Called where all of the content has come, or none is wanted any more, behind the exchange."""

    # --- for the exchange ------------------------------------------------------------------------------------------
    @property
    def is_request_read(self) -> bool:
        return self._state != RECEIVING

    @property
    def is_last(self) -> bool:
        """Others may follow on the connection, whatever this one does."""
        return False

    @property
    def awaits_bytes(self) -> bool:
        return self._state == LISTENING

    def unread(self) -> int:
        return sum(map(len, self._pieces)) if self._pieces and self._state == RESPONDING else 0

    @property
    def first_byte(self) -> bytes:
        return self._pieces[0][:1] if self._pieces else b""

    def listen(self) -> None:
        if self._state == RESPONDING:
            self._state = LISTENING

    def stop_listening(self) -> None:
        if self._state == LISTENING:
            self._state = RESPONDING

    def send_request_body_to(self, sink: BodySink | None) -> None:
        self.sink = sink
        if sink is not None:
            self.resume_reading()
