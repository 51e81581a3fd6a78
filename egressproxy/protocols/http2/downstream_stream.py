"""DownstreamStream: one request on a client's HTTP/2 connection, and its answer.

It has what `DownstreamConnection` has for the handler, which is told of each request head and runs the exchange. What
breaks a rule of messages is answered where HTTP/1 would answer it, and its stream is reset; the others go on.

Sources: RFC 9113 sections 5.1 and 8.1, RFC 8441.
"""

from __future__ import annotations

import asyncio
from typing import Final

from h2.errors import ErrorCodes

from egressproxy.errors import BadRequest, ClientGone, GatewayError, LimitExceeded, Reason, UpstreamFault
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.byte_queue import keep
from egressproxy.net.driver import Driver
from egressproxy.net.flow_control import BodySink
from egressproxy.net.timers import NEVER
from egressproxy.protocols.http1.downstream import LINGER_S, LINGER_SIZE
from egressproxy.protocols.http1.framing import Malformed
from egressproxy.protocols.http2.downstream_states import StreamState
from egressproxy.protocols.http2.head_fields import (
    CONTINUE,
    TUNNEL_ESTABLISHED,
    Handshake,
    answer_fields,
    interim_fields,
)
from egressproxy.protocols.http2.heads import read_trailers
from egressproxy.protocols.http2.outbound_streams import OutboundStreams
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.stream import Http2Stream
from egressproxy.protocols.http2.stream_protocols import NO_DEADLINE, DownstreamStreamConnection
from egressproxy.protocols.http2.stream_transport import StreamTransport

#: In this time a client has to take so many bytes of the rest of a response whose exchange is over: a byte now and then
#: would keep a hundred responses here for days.
REST_S: Final = 10.0
REST_SIZE: Final = 4096


class DownstreamStream(Http2Stream):
    """One request and its answer. The states are in `downstream_states`."""

    __slots__ = (
        "_handshake", "_left", "_pieces", "_reads_on_until", "_request_trailers", "_reset_code", "_state",
        "_unsent_before", "body_limit", "body_size", "client", "deadline", "downstream", "driver", "has_ended",
        "idle_s", "is_whole", "request_headers_s", "sink", "transport", "wheel",
    )  # fmt: skip

    def __init__(self, connection: OutboundStreams, downstream: DownstreamStreamConnection, stream_id: int) -> None:
        """`downstream` is the connection again, in its role as a client's."""
        super().__init__(connection, stream_id)
        self.downstream = downstream
        self.wheel = connection.wheel
        self.client = downstream.client
        self.request_headers_s = downstream.request_headers_s  # also for the first bytes of a tunnel
        self.idle_s = downstream.idle_s
        self.driver = Driver()
        self.deadline = downstream.new_deadline(self._deadline_passed)
        self.transport: asyncio.Transport = connection.transport
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
        self._unsent_before = 0
        self._handshake: Handshake | None = None
        self._reads_on_until = NEVER
        self._state = StreamState.RECEIVING

    # --- the request ---------------------------------------------------------------------------------------------
    def begin(self, head: RequestHead, *, ends_stream: bool) -> None:
        self.is_whole = ends_stream
        if head.upgrade:
            self._handshake = Handshake(head)
        if head.method == b"CONNECT" or head.upgrade:
            self._state = StreamState.RESPONDING
            self.has_ended = ends_stream
        else:
            self._left = head.body
            if head.body == 0:
                self._state = StreamState.RESPONDING
        self.downstream.handler.on_request(self, head)

    def refuse(self, fault: Malformed, fields: FieldList, *, ends_stream: bool) -> None:
        """What came is no request: it is answered like one, and the stream is reset (RFC 9113 section 8.1.1)."""
        self.is_whole = ends_stream
        if ends_stream:
            self._state = StreamState.RESPONDING
        kind = LimitExceeded if fault.status in (413, 414, 431) else BadRequest
        if kind is BadRequest:
            self._reset_code = ErrorCodes.PROTOCOL_ERROR
        self.downstream.handler.on_bad_request(self, kind(fault.reason, fault.message, status=fault.status, close=True))
        self.connection.stream_failed()

    def take_data(self, data: bytes) -> None:
        state = self._state
        if state is StreamState.DETACHED:
            keep(self._pieces, data)
            self._deliver()
        elif state is StreamState.LISTENING:
            keep(self._pieces, data)
            self._state = StreamState.RESPONDING
            self.driver.resume()
        elif state is StreamState.RESPONDING:
            if self._left == 0:
                self._break("content, and a Content-Length of 0")
            else:
                keep(self._pieces, data)  # behind a CONNECT: the tunnel's
        elif state is StreamState.FINISHING:
            self.body_size += len(data)
            self._left -= len(data)
            if self._left <= 0:
                self._look_whether_over()
        elif state is StreamState.RECEIVING:
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
        if self._state is not StreamState.RECEIVING:
            return
        try:
            self._request_trailers = read_trailers(fields, self.connection.limits)
        except Malformed as fault:
            self._break(fault.message)

    def take_end(self) -> None:
        self.is_whole = True
        state = self._state
        if state is StreamState.RECEIVING:
            if self._left > 0 and self._reset_code is None:
                self._break("less content than Content-Length says")
            elif not self._pieces:
                self._end_request()
        elif state is StreamState.LISTENING:
            self.has_ended = True
            self._state = StreamState.RESPONDING
            self.driver.resume()
        elif state is StreamState.RESPONDING:
            self.has_ended = self._left < 0
        elif state is StreamState.DETACHED:
            self._deliver()
        elif state is StreamState.FINISHING:
            if self._left > 0 and 0 <= self.body_limit != self.body_size:
                self._reset_code = ErrorCodes.PROTOCOL_ERROR  # the answer was faster than the error
                self.connection.stream_failed()
            self._look_whether_over()

    def _end_request(self) -> None:
        """All of the body is here, and handed on if somebody has asked for it."""
        sink, self.sink = self.sink, None
        if sink is not None:  # without a sink the end waits for one
            self._state = StreamState.RESPONDING
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
            if self._state is StreamState.DETACHED:
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
        if self._state is StreamState.DETACHED:
            assert isinstance(self.transport, StreamTransport)
            if not self.has_ended:
                self.has_ended = True
                self.transport.end_came()
        elif self._state is StreamState.RECEIVING and self.sink is not None:
            self._end_request()

    def resume_reading(self) -> None:
        self.is_reading_paused = False
        if self._pieces or self.is_whole:
            self._deliver()
        if not self.is_reading_paused:
            super().resume_reading()

    def trailers_to_pass(self, trailers: bytes) -> bytes:
        """What goes on of the trailers of the request."""
        return trailers

    # --- for the exchange ----------------------------------------------------------------------------------------
    @property
    def is_lost(self) -> bool:
        return self._state is StreamState.LOST

    @property
    def is_request_read(self) -> bool:
        return self._state is not StreamState.RECEIVING

    @property
    def is_last(self) -> bool:
        """Others may follow on the connection, whatever this one does."""
        return False

    @property
    def awaits_bytes(self) -> bool:
        return self._state is StreamState.LISTENING

    @property
    def unread(self) -> int:
        return sum(map(len, self._pieces)) if self._pieces and self._state is StreamState.RESPONDING else 0

    @property
    def first_byte(self) -> bytes:
        return self._pieces[0][:1] if self._pieces else b""

    @property
    def unsent_bytes(self) -> int:
        return self.unsent_size

    def listen(self) -> None:
        if self._state is StreamState.RESPONDING:
            self._state = StreamState.LISTENING

    def stop_listening(self) -> None:
        if self._state is StreamState.LISTENING:
            self._state = StreamState.RESPONDING

    def send_request_body_to(self, sink: BodySink | None) -> None:
        self.sink = sink
        if sink is not None:
            self.resume_reading()

    def send_response(
        self, head: ResponseHead, request: RequestHead, pseudonym: bytes, body: bytes | None, *, close: bool
    ) -> None:
        status = head.status
        if self._handshake is not None and status < 300:
            message = (
                f"the upstream answered a request for a WebSocket with {status}"  # to the client that would be one
            )
            raise UpstreamFault(Reason.BAD_RESPONSE, message)
        has_body = status != 204 and status != 304 and request.method != b"HEAD"
        if self.is_over:
            return
        block = self.downstream.response_heads.code(head, pseudonym, has_body=has_body)
        self.connection.send_response_headers(self, block, is_last=body == b"")
        if body:
            self.send_last(body)

    def send_answer(self, answer: LocalResponse, *, close: bool, with_body: bool = True) -> None:
        body = answer.body if with_body and answer.status not in (204, 304) else b""
        self.send_fields(answer_fields(answer), is_last=not body)
        if body:
            self.send_last(body)

    def send_interim(self, head: ResponseHead, pseudonym: bytes) -> None:
        """An interim response; a 101 is the final one to an extended CONNECT. Raises UpstreamFault for a wrong one."""
        if head.status == 101 and self._handshake is not None:
            self._handshake.check(head)
            head.status = 200
        self.send_fields(interim_fields(head, pseudonym), is_last=False)

    def send_continue(self) -> None:
        self.send_fields(CONTINUE, is_last=False)

    def accept_tunnel(self) -> None:
        """Answer a CONNECT: from now on DATA is the tunnel's (RFC 9113 section 8.5)."""
        self.send_fields(TUNNEL_ESTABLISHED, is_last=False)

    def send(self, data: bytes) -> None:
        self.send_body(data)

    def end_body(self, trailers: bytes) -> None:
        super().end_body(self.trailers_to_send(trailers) if trailers else b"")

    def trailers_to_send(self, trailers: bytes) -> bytes:
        return trailers

    def detach(self) -> bytes:
        """What is sent from now on is a tunnel's, whose transport is `transport`. Returns what is here already."""
        self._state = StreamState.DETACHED
        self.deadline.close()
        self.feed_from(None)
        self.sink = None
        rest = b"".join(self._pieces)
        self._pieces.clear()
        self.transport = StreamTransport(self, self.connection.transport)
        super().resume_reading()
        return rest

    def transport_ended(self) -> None:
        self._state = StreamState.LOST
        self.transport = self.connection.transport  # stream and transport hold each other: break the cycle
        if self.is_over:
            return
        if self.has_sent_all and self.is_whole:
            self.connection.forget(self)
        else:
            self.reset(ErrorCodes.NO_ERROR)  # the rest of the client's body is not read

    def tunnel_ended(self) -> None:
        self._state = StreamState.LOST

    def finish(self, *, close: bool) -> None:
        """The exchange is over: what is unsent goes out as the windows allow, what is unread is not wanted. A body
        that still comes is read for a moment, as in HTTP/1: curl before 8.0, for one, reads no answer behind a reset.
        """
        if self._state is StreamState.DETACHED or self._state is StreamState.LOST:
            return
        if self._state is StreamState.RECEIVING and self._reset_code is None:
            self.body_limit = self.body_size + self._left if self._left >= 0 else -1  # from now on: what was announced
            self._left = LINGER_SIZE
        else:
            self._left = 0
        self.sink = None
        self.feeder = None
        self._pieces.clear()
        self._state = StreamState.FINISHING
        if not self.is_ending:
            self.end(None)  # a tunnel that came to nothing
        self.deadline.at = NEVER
        if self.has_sent_all:
            self._look_whether_over()
        else:
            self._unsent_before = self.unsent_size
            self.deadline.after(REST_S)

    def was_sent(self) -> None:
        if self._state is StreamState.FINISHING:
            self._look_whether_over()
        elif self._state is StreamState.DETACHED and isinstance(self.transport, StreamTransport):
            self.transport.all_sent()

    def _look_whether_over(self) -> None:
        """All is sent: the client need not send the rest of its request (RFC 9113 section 8.1)."""
        if not self.has_sent_all:
            return
        code = self._reset_code
        if code is None and not self.is_whole:
            code = ErrorCodes.NO_ERROR
            if self._left > 0:
                if self._reads_on_until == NEVER:
                    self._reads_on_until = self.wheel.now + LINGER_S
                    self.deadline.set(self._reads_on_until)
                    super().resume_reading()
                return
        self._over(code)

    def _over(self, code: ErrorCodes | None) -> None:
        """Nothing follows on this stream, but a reset with this code."""
        self._state = StreamState.LOST
        deadline, self.deadline = self.deadline, NO_DEADLINE
        self.downstream.spare(deadline)
        if code is None:
            self.connection.forget(self)
        else:
            self.reset(code)

    def abort(self) -> None:
        """Break the stream off: what was sent is not a whole message, and must not look like one."""
        if self._state is not StreamState.LOST:
            self._state = StreamState.LOST
            self.deadline.close()
            self.reset(ErrorCodes.INTERNAL_ERROR)

    def close_if_idle(self) -> bool:
        """A stream is there for its exchange alone."""
        return False

    # --- the end ---------------------------------------------------------------------------------------------------
    def was_reset(self, code: int) -> None:
        """The client has given the stream up, or what it sent made us. Raises Flood."""
        is_cut = self.driver.is_busy and self._state is not StreamState.FINISHING
        self._lose()
        if is_cut:
            self.downstream.gave_up()

    def connection_is_lost(self) -> None:
        self._lose()

    def _lose(self) -> None:
        was, self._state = self._state, StreamState.LOST
        self.deadline.close()
        self.sink = None
        self.feeder = None
        self._pieces.clear()
        if was is StreamState.DETACHED and isinstance(self.transport, StreamTransport):
            self.transport.lost(ConnectionResetError("the client has reset its stream"))
        elif self.driver.is_busy and was is not StreamState.FINISHING:
            self.driver.throw(ClientGone())

    def _deadline_passed(self) -> None:
        if self._state is not StreamState.FINISHING:
            self.downstream.handler.on_deadline(self)
        elif self.has_sent_all:
            self._left = 0
            self._look_whether_over()
        elif self.unsent_size <= self._unsent_before - REST_SIZE:
            self._unsent_before = self.unsent_size
            self.deadline.after(REST_S)
        else:
            self._over(ErrorCodes.CANCEL if self._reset_code is None else self._reset_code)
