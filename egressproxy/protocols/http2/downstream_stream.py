"""DownstreamStream: one request on a client's HTTP/2 connection, and its answer.

It has what `DownstreamConnection` has for the handler, which is told of each request head and runs the exchange.

Sources: RFC 9113 sections 5.1 and 8.1, RFC 8441.
"""

from __future__ import annotations

from typing import Final

from h2.errors import ErrorCodes

from egressproxy.errors import BadRequest, ClientGone, LimitExceeded, Reason, UpstreamFault
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.timers import NEVER
from egressproxy.protocols.http1.downstream import LINGER_S, LINGER_SIZE
from egressproxy.protocols.http1.framing import Malformed
from egressproxy.protocols.http2.downstream import NO_DEADLINE, DownstreamHttp2
from egressproxy.protocols.http2.downstream_states import DETACHED, FINISHING, LOST, RECEIVING, RESPONDING
from egressproxy.protocols.http2.head_fields import (
    CONTINUE,
    TUNNEL_ESTABLISHED,
    Handshake,
    answer_fields,
    interim_fields,
)
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.request_stream import RequestStream
from egressproxy.protocols.http2.stream_transport import StreamTransport

#: In this time a client has to take so many bytes of the rest of a response whose exchange is over: a byte now and then
#: would keep a hundred responses here for days.
REST_S: Final = 10.0
REST_SIZE: Final = 4096


class DownstreamStream(RequestStream):
    """One request and its answer."""

    __slots__ = (
        "_handshake", "_reads_on_until", "_unsent_before", "client", "deadline", "idle_s", "request_headers_s", "wheel",
    )  # fmt: skip

    def __init__(self, downstream: DownstreamHttp2, stream_id: int) -> None:
        super().__init__(downstream, stream_id)
        self.wheel = downstream.wheel
        self.client = downstream.client
        self.request_headers_s = downstream.request_headers_s  # also for the first bytes of a tunnel
        self.idle_s = downstream.idle_s
        self.deadline = downstream.new_deadline(self._deadline_passed)
        self._unsent_before = 0
        self._handshake: Handshake | None = None
        self._reads_on_until = NEVER

    # --- the request ---------------------------------------------------------------------------------------------
    def take_request(self, fields: FieldList, *, ends_stream: bool) -> None:
        try:
            head = self.downstream.reader.read(fields, ends_stream=ends_stream)
        except Malformed as fault:
            self.refuse(fault, fields, ends_stream=ends_stream)
        else:
            self.begin(head, ends_stream=ends_stream)

    def begin(self, head: RequestHead, *, ends_stream: bool) -> None:
        self.is_whole = ends_stream
        if head.upgrade:
            self._handshake = Handshake(head)
        if head.method == b"CONNECT" or head.upgrade:
            self._state = RESPONDING
            self.has_ended = ends_stream
        else:
            self._left = head.body
            if head.body == 0:
                self._state = RESPONDING
        self.downstream.handler.on_request(self, head)

    def refuse(self, fault: Malformed, fields: FieldList, *, ends_stream: bool) -> None:
        """What came is no request: it is answered like one, and the stream is reset (RFC 9113 section 8.1.1)."""
        self.is_whole = ends_stream
        if ends_stream:
            self._state = RESPONDING
        kind = LimitExceeded if fault.status in (413, 414, 431) else BadRequest
        if kind is BadRequest:
            self._reset_code = ErrorCodes.PROTOCOL_ERROR
        self.downstream.handler.on_bad_request(self, kind(fault.reason, fault.message, status=fault.status, close=True))
        self.connection.stream_failed()

    # --- for the exchange ----------------------------------------------------------------------------------------
    @property
    def is_lost(self) -> bool:
        return self._state == LOST

    @property
    def unsent_bytes(self) -> int:
        return self.unsent_size

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
        self.connection.send_headers(self, block, is_last=body == b"")
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
        self._state = DETACHED
        self.deadline.close()
        self.feed_from(None)
        self.sink = None
        rest = b"".join(self._pieces)
        self._pieces.clear()
        self.transport = StreamTransport(self, self.connection.transport)
        self.is_reading_paused = False
        self.give_kept_back()
        return rest

    def transport_ended(self) -> None:
        self._state = LOST
        self.transport = self.connection.transport  # stream and transport hold each other: break the cycle
        if self.is_over:
            return
        if self.has_sent_all and self.is_whole:
            self.connection.forget(self)
        else:
            self.reset(ErrorCodes.NO_ERROR)  # the rest of the client's body is not read

    def tunnel_ended(self) -> None:
        self._state = LOST

    def finish(self, *, close: bool) -> None:
        """The exchange is over: what is unsent goes out as the windows allow, what is unread is not wanted. A body
        that still comes is read for a moment, as in HTTP/1: curl before 8.0, for one, reads no answer behind a reset.
        """
        if self._state == DETACHED or self._state == LOST:
            return
        if self._state == RECEIVING and self._reset_code is None:
            self.body_limit = self.body_size + self._left if self._left >= 0 else -1  # from now on: what was announced
            self._left = LINGER_SIZE
        else:
            self._left = 0
        self.sink = None
        self.feeder = None
        self._pieces.clear()
        self._state = FINISHING
        if not self.is_ending:
            self.end(None)  # a tunnel that came to nothing
        self.deadline.at = NEVER
        if self.has_sent_all:
            self._look_whether_over()
        else:
            self._unsent_before = self.unsent_size
            self.deadline.after(REST_S)

    def was_sent(self) -> None:
        if self._state == FINISHING:
            self._look_whether_over()
        elif self._state == DETACHED and isinstance(self.transport, StreamTransport):
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
                    self.is_reading_paused = False
                    self.give_kept_back()
                return
        self._over(code)

    def _over(self, code: ErrorCodes | None) -> None:
        """Nothing follows on this stream, but a reset with this code."""
        self._state = LOST
        deadline, self.deadline = self.deadline, NO_DEADLINE
        self.downstream.spare(deadline)
        if code is None:
            self.connection.forget(self)
        else:
            self.reset(code)

    def abort(self) -> None:
        """Break the stream off: what was sent is not a whole message, and must not look like one."""
        if self._state != LOST:
            self._state = LOST
            self.deadline.close()
            self.reset(ErrorCodes.INTERNAL_ERROR)

    def close_if_idle(self) -> bool:
        """A stream is there for its exchange alone."""
        return False

    # --- the end ---------------------------------------------------------------------------------------------------
    def was_reset(self, code: int) -> None:
        """The client has given the stream up, or what it sent made us. Raises Flood."""
        is_cut = self.driver.is_busy and self._state != FINISHING
        self._lose()
        if is_cut:
            self.downstream.gave_up()

    def connection_is_lost(self) -> None:
        self._lose()

    def _lose(self) -> None:
        was, self._state = self._state, LOST
        self.deadline.close()
        self.sink = None
        self.feeder = None
        self._pieces.clear()
        if was == DETACHED and isinstance(self.transport, StreamTransport):
            self.transport.lost(ConnectionResetError("the client has reset its stream"))
        elif self.driver.is_busy and was != FINISHING:
            self.driver.throw(ClientGone())

    def _deadline_passed(self) -> None:
        if self._state != FINISHING:
            self.downstream.handler.on_deadline(self)
        elif self.has_sent_all:
            self._left = 0
            self._look_whether_over()
        elif self.unsent_size <= self._unsent_before - REST_SIZE:
            self._unsent_before = self.unsent_size
            self.deadline.after(REST_S)
        else:
            self._over(ErrorCodes.CANCEL if self._reset_code is None else self._reset_code)
