"""UpstreamStream: one exchange on an HTTP/2 connection to a backend. It has what `UpstreamConnection` has; how it ends
concerns no other stream. Sources: RFC 9113 sections 5.4, 8.1 and 8.7, RFC 8441.
"""

from __future__ import annotations

import asyncio
from typing import Final

from h2.errors import ErrorCodes

from egressproxy.errors import GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.model.message import CHUNKED, RequestHead, ResponseHead
from egressproxy.net.byte_queue import keep
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.flow_control import BodySink
from egressproxy.protocols.http1.codec import MAX_INTERIM
from egressproxy.protocols.http1.framing import Malformed
from egressproxy.protocols.http1.writer import PHRASES
from egressproxy.protocols.http2.head_fields import request_code, websocket_accept
from egressproxy.protocols.http2.heads import read_response_fields, read_trailers
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.stream import Http2Stream
from egressproxy.protocols.http2.stream_transport import StreamTransport
from egressproxy.protocols.http2.upstream import CLOSED_TEXT, WEBSOCKET, Http2Upstream, unseen

_BROKE_OFF: Final = "the upstream's response broke off"


class UpstreamStream(Http2Stream):
    """One exchange: a place on the connection from the start, and a stream from `send_head` on."""

    __slots__ = (
        "_begun_at", "_expected", "_got", "_heads", "_interim", "_is_answered", "_is_complete", "_method", "_pieces",
        "_response_trailers", "_websocket_key", "driver", "error", "has_ended", "head", "last_read", "sent_at", "sink",
        "transport", "upstream", "was_reused",
    )  # fmt: skip

    #: As of `UpstreamConnection`: a stream is for one exchange, and in no pool.
    is_last = True
    is_idle = False
    served = 0

    def __init__(self, upstream: Http2Upstream) -> None:
        super().__init__(upstream, 0)
        self.upstream = upstream
        self.was_reused = upstream.take_place()
        self.is_reading_paused = True  # until there is a sink
        self.driver: Driver | None = None
        self.sink: BodySink | None = None
        self.head: ResponseHead | None = None
        self.error: GatewayError | None = None
        self.has_ended = False  # the response is whole, and handed on
        self.last_read = upstream.wheel.now
        self.sent_at = 0.0  # when a body was whole
        self._begun_at = 0.0
        self._method = b""
        self._heads: list[ResponseHead] = []  # heads that were not taken yet
        self._interim = 0
        self._pieces: list[bytes] = []
        self._expected = 0  # bytes of content; negative: any number
        self._got = 0
        self._is_answered = False  # its final head has come
        self._is_complete = False  # END_STREAM has come
        self._response_trailers = b""
        self._websocket_key = b""
        self.transport: StreamTransport | None = None  # of a tunnel

    # --- for the exchange ------------------------------------------------------------------------------------------
    @property
    def address(self) -> str:
        return self.upstream.address

    @property
    def is_lost(self) -> bool:
        return self.error is not None or self.connection.is_lost

    def is_reusable(self) -> bool:
        return False

    def is_leaving(self) -> bool:
        return self.connection.is_lost or self.connection.transport.is_closing()

    def begin(self, driver: Driver, request: RequestHead) -> None:
        self.driver = driver
        self._method = b"CONNECT" if request.upgrade else request.method
        self.last_read = self._begun_at = self.connection.wheel.now

    def send_whole(self, request: RequestHead, host: bytes, pseudonym: bytes, body: bytes) -> None:
        """The head, and all of the body."""
        self.send_head(request, host, pseudonym)
        self.send_body(body)
        self.end_body(b"")

    def send_head(self, request: RequestHead, host: bytes, pseudonym: bytes) -> None:
        """As of `UpstreamConnection`. A connection that has left meanwhile has not seen the request."""
        if self.upstream.begins_nothing:
            self.error = unseen("the upstream closes its connection")
        elif request.upgrade:
            self.error = self.upstream.upgrade_fault(request.upgrade)
            self._websocket_key = request.fields.get(b"sec-websocket-key") or b""
        if self.error is None:
            code = request_code(request, host, pseudonym, is_secure=self.upstream.is_secure)
            self.error = self.upstream.begin_stream(self, code, is_last=request.body == 0 and not request.upgrade)

    def end_body(self, trailers: bytes) -> None:
        super().end_body(trailers)
        self.sent_at = self.connection.wheel.now

    def next_head(self) -> ResponseHead | None:
        """The next head, interim ones too; None if it is not here yet. Raises UpstreamFault."""
        if self._heads:
            head = self._heads.pop(0)
            if not head.is_interim:
                self.head = head
            return head
        if self.error is not None:
            raise self.error
        if self.connection.is_lost:
            raise unseen(CLOSED_TEXT) if self.stream_id == 0 else self.upstream.loss_fault()
        return None

    async def first_byte(self) -> None:
        while not (self._pieces or self._is_complete or self.has_ended):
            if self.error is not None:
                raise self.error
            await PAUSE

    def settle_length(self) -> int:
        """The length of the body in bytes if all of it is here and no trailers follow, else -1. Takes nothing of it."""
        if not self._is_complete or self._response_trailers or self.error is not None:
            return -1
        return sum(map(len, self._pieces))

    def whole_body(self) -> bytes | None:
        """The body, if all is here and no trailers follow: the response ends, and a head without length gets one."""
        if not self._is_complete or self._response_trailers or self.error is not None:
            return None
        body = b"".join(self._pieces)
        self._pieces.clear()
        self.has_ended = True
        if self.head is not None and self.head.body == CHUNKED:
            self.head.body = len(body)
        return body

    def send_response_body_to(self, sink: BodySink) -> None:
        """Send the body to this sink from now on; what is here goes there at once."""
        self.sink = sink
        self.resume_reading()  # before the sink gets anything: it may want to pause us
        pieces, self._pieces = self._pieces, []
        try:
            for piece in pieces:
                sink.send_body(piece)
        except GatewayError as error:
            self._fail(error)
            return
        if self._is_complete and self.error is None:
            self._end_sink(sink)

    async def response_end(self) -> None:
        """Wait until the body is whole and handed on. Raises UpstreamFault if it breaks off."""
        while not self.has_ended:
            if self.error is not None:
                raise self.error
            await PAUSE

    def finish(self) -> None:
        """End the exchange: its place is free. A stream that is not over is reset."""
        connection = self.connection
        if self.stream_id and not self.is_over:
            if not self._is_complete:
                self.upstream.given_up(self._begun_at)
            if self._is_complete and self.has_sent_all:
                connection.forget(self)
            else:
                self.reset()
        self.driver = None
        self.sink = None
        self.head = None
        self.error = None  # its traceback holds us
        self.feeder = None
        self.transport = None
        self._pieces.clear()
        self.upstream.take_place_back(self)

    def detach(self) -> bytes:
        """Give the stream to a tunnel, as `transport`. Returns the bytes behind the head. Call `gone` in the end."""
        rest = b"".join(self._pieces)
        self._pieces.clear()
        self.transport = StreamTransport(self, self.connection.transport)
        self.resume_reading()
        if self._is_complete:
            asyncio.get_running_loop().call_soon(self.transport.end_came)
        return rest

    def transport_ended(self) -> None:
        if not (self._is_complete and self.has_sent_all):
            self.reset()

    def gone(self) -> None:
        self.finish()

    def close(self) -> None:
        if self.stream_id:
            self.reset()

    def abort(self) -> None:
        self.close()

    # --- what comes ------------------------------------------------------------------------------------------------
    def take_response(self, fields: FieldList, *, ends_stream: bool) -> None:
        self.last_read = self.connection.wheel.now
        if self._is_given_up:
            return
        try:
            head = read_response_fields(fields, self.connection.limits, self._method, ends_stream=ends_stream)
            if head.is_interim:
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise Malformed(Reason.BAD_RESPONSE, f"more than {MAX_INTERIM} interim responses")
        except Malformed as fault:
            self._break(fault)
            return
        if not head.is_interim:
            if self._method == b"CONNECT" and head.status < 300:
                self._switch(head)
            self._expected = head.body if head.status != 101 else CHUNKED
            self._is_answered = True
        self._heads.append(head)
        self._wake_later()

    def take_data(self, data: bytes) -> None:
        self.last_read = self.connection.wheel.now
        if self._is_given_up:
            return
        self._got += len(data)
        if 0 <= self._expected < self._got:
            self._break(Malformed(Reason.BAD_FRAMING, "more content than its head has announced"))
        elif self.transport is not None:
            self.transport.data_came(data)
        elif self.sink is None:
            keep(self._pieces, data)
            self._wake_later()  # the first byte may be waited for
        else:
            try:
                self.sink.send_body(data)
            except GatewayError as error:
                self._fail(error)

    def take_trailers(self, fields: FieldList) -> None:
        if self._is_given_up:
            return
        try:
            self._response_trailers = read_trailers(fields, self.connection.limits)
        except Malformed as fault:
            self._break(fault)

    def take_end(self) -> None:
        """END_STREAM: the response is whole, unless its length says otherwise."""
        if self._is_given_up:
            return
        if self._got < self._expected:
            self._fail(UpstreamFault(Reason.UPSTREAM_INCOMPLETE, _BROKE_OFF))
            return
        self._is_complete = True
        if self.transport is not None:
            self.transport.end_came()
        elif self.sink is not None:
            self._end_sink(self.sink)
        elif not self._pieces and not self._response_trailers:
            self.has_ended = True
        self._wake_later()

    def was_reset(self, code: int) -> None:
        """Behind its whole response a reset is the upstream's way to refuse the rest of the request (RFC 9113 8.1)."""
        if self._is_complete or self._is_given_up:
            return
        if self._is_answered:
            fault = UpstreamFault(Reason.UPSTREAM_INCOMPLETE, _BROKE_OFF, detail=name(code))
        elif code == ErrorCodes.REFUSED_STREAM and not self._interim:
            fault = unseen("the upstream refused the stream")
        elif code == ErrorCodes.HTTP_1_1_REQUIRED:
            self.upstream.http_1_is_required()
            fault = unseen("the upstream wants HTTP/1.1")
        else:
            message = f"the upstream reset the stream ({name(code)})"
            fault = UpstreamFault(Reason.UPSTREAM_RESET, message, retry=RetrySafety.IF_IDEMPOTENT)
        fault.reset_code = code
        self._fail(fault)
        del fault  # see `_fail`

    def connection_is_lost(self) -> None:
        if not (self._is_complete or self._is_given_up):
            fault = self.upstream.loss_fault()
            if self._is_answered and fault.reason is Reason.UPSTREAM_CLOSED:
                fault = UpstreamFault(Reason.UPSTREAM_INCOMPLETE, _BROKE_OFF)
            self._fail(fault)
            del fault  # see `_fail`

    def was_not_seen(self) -> None:
        """As of H2StreamState. A stream with an answer was looked at."""
        if self._is_complete or self._is_given_up:
            return
        if self._is_answered:
            self._fail(UpstreamFault(Reason.UPSTREAM_INCOMPLETE, _BROKE_OFF))
        elif self._interim:
            self._fail(UpstreamFault(Reason.UPSTREAM_CLOSED, CLOSED_TEXT, retry=RetrySafety.IF_IDEMPOTENT))
        else:
            fault = unseen("the upstream closes its connection")
            fault.is_left_out = True
            self._fail(fault)
            del fault  # see `_fail`

    def was_sent(self) -> None:
        if self.transport is not None:
            self.transport.all_sent()

    def _wake_later(self) -> None:
        if self.driver is not None:
            self.upstream.wake_later(self.driver)

    @property
    def _is_given_up(self) -> bool:
        return self.error is not None or self.driver is None

    def _switch(self, head: ResponseHead) -> None:
        """An extended CONNECT was accepted: in HTTP/1 that is a 101 (RFC 8441 section 5, RFC 6455 section 4.2.2)."""
        head.status, head.phrase, head.upgrade = 101, PHRASES[101], WEBSOCKET
        if self._websocket_key:
            head.fields.set(b"Sec-WebSocket-Accept", websocket_accept(self._websocket_key))

    def _end_sink(self, sink: BodySink) -> None:
        self.has_ended = True
        self.sink = None
        try:
            sink.end_body(self._response_trailers)
        except GatewayError as error:
            self._fail(error)
        self._wake_later()

    def _break(self, fault: Malformed) -> None:
        """The response breaks a rule: the stream's error, and nobody else's."""
        self.reset(ErrorCodes.PROTOCOL_ERROR)
        self._fail(UpstreamFault(Reason.BAD_RESPONSE, f"the upstream's response is malformed: {fault.message}"))
        self.connection.stream_failed()

    def _fail(self, error: GatewayError) -> None:
        self.error = error
        del error  # its traceback may lead to this frame, and to those that have called it: see Driver.throw
        self.sink = None
        self._heads.clear()
        if self.transport is not None:
            self.transport.lost(self.error)
        elif self.driver is not None:
            self.driver.throw(self.error)


def name(code: int) -> str:
    """An error code for people."""
    try:
        return ErrorCodes(code).name
    except ValueError:
        return f"code {code}"
