"""Http2Upstream: an HTTP/2 connection to a backend, and UpstreamStream: one exchange on it.

A stream has what `UpstreamConnection` has for whoever calls an upstream. How it ends concerns no other: one that is
given up is reset, and a response that breaks a rule fails alone. A GOAWAY lets those streams go on that it spares; the
others may be asked elsewhere, as may those that were refused unseen. Sources: RFC 9113 sections 5.4, 6.8, 8.1, 8.7.

A connection takes exchanges; is leaving (what has begun ends, nothing begins); or is lost.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
from collections.abc import Callable

from h2.errors import ErrorCodes
from h2.events import Event, InformationalResponseReceived, RequestReceived, ResponseReceived, TrailersReceived
from h2.exceptions import H2Error

from egressproxy.errors import GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.model.message import CHUNKED, RequestHead, ResponseHead
from egressproxy.net.driver import Driver, pause
from egressproxy.net.flow_control import BodySink
from egressproxy.net.pieces import keep
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.net.tls import TlsStream, tls_fault
from egressproxy.protocols.http1.codec import MAX_INTERIM
from egressproxy.protocols.http1.framing import HeadLimits, Malformed
from egressproxy.protocols.http1.writer import PHRASES
from egressproxy.protocols.http2.connection import Http2Connection
from egressproxy.protocols.http2.field_coding import FieldList
from egressproxy.protocols.http2.frames import Frame, FrameError
from egressproxy.protocols.http2.heads import read_response_fields, read_trailers
from egressproxy.protocols.http2.request_fields import request_code
from egressproxy.protocols.http2.states import MAX_STREAMS, STREAM_WINDOW
from egressproxy.protocols.http2.stream import Http2Stream
from egressproxy.protocols.http2.stream_transport import StreamTransport

__all__ = ["Http2Upstream", "UpstreamStream"]

#: While a stream waits and nothing has come for so long, the backend is asked whether it is there; and again after the
#: second time. Servers of gRPC take more than two pings in five minutes without data for a flood.
SILENCE_S = 60.0
PING_AGAIN_S = 330.0
#: How long it may take to answer that.
PING_ANSWER_S = 20.0
#: A connection on which a stream was given up after this time, and nothing was heard meanwhile, gets no other.
DOUBT_S = 1.0
#: No stream begins behind this one: identifiers are 31 bits (RFC 9113 section 5.1.1).
LAST_STREAM = 2**31 - 1 - 4 * MAX_STREAMS

WEBSOCKET = b"websocket"
_WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

_CLOSED = "the upstream closed its connection"
_BROKE_OFF = "the upstream's response broke off"


class UpstreamStream(Http2Stream):
    """One exchange: a place on the connection from the start, and a stream from `send_head` on."""

    __slots__ = (
        "_begun_at",
        "_expected",
        "_got",
        "_heads",
        "_interim",
        "_is_answered",
        "_is_complete",
        "_method",
        "_pieces",
        "_response_trailers",
        "_websocket_key",
        "driver",
        "error",
        "has_ended",
        "head",
        "last_read",
        "sent_at",
        "sink",
        "transport",
        "was_reused",
    )

    connection: Http2Upstream

    #: As of `UpstreamConnection`: a stream is for one exchange, and in no pool.
    is_last = True
    is_reusable = False
    is_idle = False
    served = 0

    def __init__(self, connection: Http2Upstream, *, was_reused: bool) -> None:
        super().__init__(connection, 0)
        self.was_reused = was_reused
        self.is_reading_paused = True  # until there is a sink
        self.driver: Driver | None = None
        self.sink: BodySink | None = None
        self.head: ResponseHead | None = None
        self.error: GatewayError | None = None
        self.has_ended = False  # the response is whole, and handed on
        self.last_read = connection.wheel.now
        self.sent_at = 0.0  # when a body was whole
        self._begun_at = 0.0
        self._method = b""
        self._heads: list[ResponseHead] = []  # that nobody has taken yet
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
        """`address:port` of the other end."""
        return self.connection.address

    @property
    def is_lost(self) -> bool:
        """Whether the exchange cannot go on."""
        return self.error is not None or self.connection.is_lost

    @property
    def is_leaving(self) -> bool:
        """Whether the transport is gone or closing."""
        return self.connection.is_lost or self.connection.transport.is_closing()

    @property
    def has_sent_all(self) -> bool:
        """Whether the request is whole, and none of it waits."""
        return self.has_said_all

    def begin(self, driver: Driver, request: RequestHead) -> None:
        """Start the exchange. The caller then sends the head, and the body through `send_body` and `end_body`."""
        self.driver = driver
        self._method = b"CONNECT" if request.upgrade else request.method
        self.last_read = self._begun_at = self.connection.wheel.now

    def send_head(self, request: RequestHead, host: bytes, pseudonym: bytes) -> None:
        """As of `UpstreamConnection`. A connection that has left meanwhile has not seen the request."""
        connection = self.connection
        if connection.begins_nothing:
            self.error = unseen("the upstream closes its connection")
        elif request.upgrade:
            self.error = connection.upgrade_fault(request.upgrade)
            self._websocket_key = request.fields.get(b"sec-websocket-key") or b""
        if self.error is None:
            code = request_code(request, host, pseudonym, is_secure=connection.is_secure)
            self.error = connection.begin_stream(self, code, is_last=request.body == 0 and not request.upgrade)

    def end_body(self, trailers: bytes) -> None:
        """Send the end of the request's body, with these trailers: the request is whole."""
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
            raise unseen(_CLOSED) if self.number == 0 else self.connection.loss_fault()
        return None

    async def first_byte(self) -> None:
        """As of `UpstreamConnection`."""
        while not (self._pieces or self._is_complete or self.has_ended):
            if self.error is not None:
                raise self.error
            await pause()

    def whole_body(self) -> bytes | None:
        """The body, if all of it is here and no trailers follow: that ends the response. Else None.

        A head that had no length has one now.
        """
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
            await pause()

    def finish(self) -> None:
        """End the exchange: its place is free. A stream that is not over is reset."""
        connection = self.connection
        if self.number and not self.is_over:
            if not self._is_complete and max(connection.heard_at, self._begun_at) <= connection.wheel.now - DOUBT_S:
                connection.retire()  # nobody may be there any more
            if self._is_complete and self.has_said_all:
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
        connection.take_place_back(self)

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
        """Nobody reads or writes the tunnel any more."""
        if not (self._is_complete and self.has_said_all):
            self.reset()

    def gone(self) -> None:
        """The tunnel has ended."""
        self.finish()

    def close(self) -> None:
        """Give the stream up. Nothing, where it is finished."""
        if self.number:
            self.reset()

    abort = close

    # --- what comes ------------------------------------------------------------------------------------------------
    def take_response(self, fields: FieldList, *, has_ended: bool) -> None:
        """A head, interim or final."""
        self.last_read = self.connection.wheel.now
        if self._is_given_up:
            return
        try:
            head = read_response_fields(fields, self.connection.limits, self._method, has_ended=has_ended)
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
        self.connection.wake_later(self)

    def take_data(self, data: bytes) -> None:
        """A piece of the response's content."""
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
            self.connection.wake_later(self)  # the first byte may be waited for
        else:
            try:
                self.sink.send_body(data)
            except GatewayError as error:
                self._fail(error)

    def take_trailers(self, fields: FieldList) -> None:
        """Fields behind the content."""
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
        self.connection.wake_later(self)

    def was_reset(self, code: int) -> None:
        """The upstream has given the stream up; after its whole response that is its way to refuse the rest of the
        request (RFC 9113 section 8.1).
        """
        if self._is_complete or self._is_given_up:
            return
        if self._is_answered:
            fault = UpstreamFault(Reason.UPSTREAM_INCOMPLETE, _BROKE_OFF, detail=name(code))
        elif code == ErrorCodes.REFUSED_STREAM and not self._interim:
            fault = unseen("the upstream refused the stream")
        elif code == ErrorCodes.HTTP_1_1_REQUIRED:
            self.connection.http_1_is_required()
            fault = unseen("the upstream wants HTTP/1.1")
        else:
            message = f"the upstream reset the stream ({name(code)})"
            fault = UpstreamFault(Reason.UPSTREAM_RESET, message, retry=RetrySafety.IF_IDEMPOTENT)
        fault.reset_code = code
        self._fail(fault)

    def connection_is_lost(self) -> None:
        """The connection is gone, and what is missing with it."""
        if not (self._is_complete or self._is_given_up):
            fault = self.connection.loss_fault()
            if self._is_answered and fault.reason is Reason.UPSTREAM_CLOSED:
                fault = UpstreamFault(Reason.UPSTREAM_INCOMPLETE, _BROKE_OFF)
            self._fail(fault)

    def was_not_seen(self) -> None:
        """A GOAWAY says that the upstream has not looked at this stream. What it has answered, it has looked at."""
        if self._is_complete or self._is_given_up:
            return
        if self._is_answered:
            self._fail(UpstreamFault(Reason.UPSTREAM_INCOMPLETE, _BROKE_OFF))
        elif self._interim:
            self._fail(UpstreamFault(Reason.UPSTREAM_CLOSED, _CLOSED, retry=RetrySafety.IF_IDEMPOTENT))
        else:
            fault = unseen("the upstream closes its connection")
            fault.is_left_out = True
            self._fail(fault)

    def was_sent(self) -> None:
        """END_STREAM of ours is on its way."""
        if self.transport is not None:
            self.transport.all_sent()

    @property
    def _is_given_up(self) -> bool:
        return self.error is not None or self.driver is None

    def _switch(self, head: ResponseHead) -> None:
        """An extended CONNECT was accepted: in HTTP/1 that is a 101 (RFC 8441 section 5, RFC 6455 section 4.2.2)."""
        head.status, head.phrase, head.upgrade = 101, PHRASES[101], WEBSOCKET
        if self._websocket_key:
            digest = hashlib.sha1(self._websocket_key + _WEBSOCKET_GUID, usedforsecurity=False).digest()
            head.fields.set(b"Sec-WebSocket-Accept", base64.b64encode(digest))

    def _end_sink(self, sink: BodySink) -> None:
        self.has_ended = True
        self.sink = None
        try:
            sink.end_body(self._response_trailers)
        except GatewayError as error:
            self._fail(error)
        self.connection.wake_later(self)

    def _break(self, fault: Malformed) -> None:
        """The response breaks a rule: the stream's error, and nobody else's."""
        self.reset(ErrorCodes.PROTOCOL_ERROR)
        self._fail(UpstreamFault(Reason.BAD_RESPONSE, f"the upstream's response is malformed: {fault.message}"))
        self.connection.stream_failed()

    def _fail(self, error: GatewayError) -> None:
        self.error = error
        self.sink = None
        self._heads.clear()
        if self.transport is not None:
            self.transport.lost(error)
        elif self.driver is not None:
            self.driver.throw(error)

    def __repr__(self) -> str:
        state = "failed" if self.error is not None else "ended" if self.has_ended else "busy"
        return f"UpstreamStream({self.number} of {self.connection.address}, {state})"


class Http2Upstream(Http2Connection):
    """A connection to a backend. Its owner takes places on it (`reserve`), and is told when there may be more."""

    __slots__ = (
        "_awake",
        "_has_settings",
        "_loss",
        "_max_requests",
        "_pinged_at",
        "_settled",
        "_why",
        "active",
        "address",
        "age",
        "begins_nothing",
        "deadline",
        "heard_at",
        "idle_s",
        "is_leaving",
        "is_secure",
        "on_free",
        "on_http_1",
        "on_lost",
        "on_room",
        "served",
    )

    #: All that its streams may hold: whoever is slow to read keeps nobody else from reading.
    window = MAX_STREAMS * STREAM_WINDOW

    def __init__(
        self, wheel: TimerWheel, limits: HeadLimits, *, is_secure: bool, idle_s: float, max_requests: int = 0
    ) -> None:
        """`is_secure`: over TLS. `idle_s` (seconds) without a stream end it, and so do `max_requests`; 0: never."""
        super().__init__(wheel, limits, client_side=True)
        self.is_secure = is_secure
        self.idle_s = idle_s
        self.address = "-"
        self.active = 0  # places that are taken
        self.served = 0  # that ever were
        self.is_leaving = False
        self.begins_nothing = False  # not even in places that are taken
        self.heard_at = 0.0  # on the wheel's clock
        self.on_room: Callable[[], None] | None = None
        self.on_free: Callable[[UpstreamStream], None] | None = None  # a place was given back
        self.on_http_1: Callable[[], None] | None = None  # the upstream wants HTTP/1.1
        self.on_lost: Callable[[Http2Upstream], None] | None = None
        self.deadline = Deadline(wheel, self._look)  # idle, or silent
        self.age = Deadline(wheel, self.retire)
        self._max_requests = max_requests
        self._has_settings = False
        self._settled: asyncio.Future[None] | None = None
        self._pinged_at = 0.0  # 0: it was never asked
        self._awake: list[UpstreamStream] = []
        self._loss: Exception | None = None
        self._why = ""

    # --- for the owner ---------------------------------------------------------------------------------------------
    @property
    def room(self) -> int:
        """How many exchanges may begin now. One, until the upstream has said how many it takes."""
        if self.is_leaving:
            return 0
        return self.most - self.active

    @property
    def is_new(self) -> bool:
        """The upstream has not said yet how many streams it takes."""
        return not (self._has_settings or self.is_leaving)

    @property
    def most(self) -> int:
        """Exchanges at a time: what the upstream takes, and not more than MAX_STREAMS."""
        if not self._has_settings:
            return 1
        return min(MAX_STREAMS, self._h2.remote_settings.max_concurrent_streams)

    def reserve(self) -> UpstreamStream:
        """A place, where there is room. Give it back by the stream's `finish`."""
        was_reused = self.served > 0
        self.active += 1
        self.served += 1
        if self.active == 1:
            self.deadline.clear()
        if self.served == self._max_requests:
            self.is_leaving = True
        return UpstreamStream(self, was_reused=was_reused)

    def take_place_back(self, stream: UpstreamStream) -> None:
        """An exchange is over."""
        self.active -= 1
        if self.on_free is not None:
            self.on_free(stream)
        if not self.active and not self.is_lost:
            if self.is_leaving:
                self.close()
            else:
                self.deadline.after(self.idle_s)

    def retire(self) -> None:
        """Take no more exchanges, and close when those under way have ended."""
        self.is_leaving = True
        if not self.active:
            self.close()
        elif self.on_room is not None:
            self.on_room()

    def close(self) -> None:
        """Say goodbye, send what is unsent, then close."""
        self.is_leaving = self.begins_nothing = True
        if not (self.is_lost or self._why):
            self.go_away(0)
        super().close()

    # --- for streams -----------------------------------------------------------------------------------------------
    def begin_stream(self, stream: UpstreamStream, code: bytes, *, is_last: bool) -> UpstreamFault | None:
        """Send the head of a new stream, in HPACK. Gives a fault where that cannot be."""
        if self.is_lost:
            return unseen(_CLOSED)
        try:
            number = self._h2.get_next_available_stream_id()
            self.streams[number] = stream
            stream.number = number
            self.send_request(stream, code, is_last=is_last)
        except H2Error:  # it takes fewer by now, or the identifiers are used up
            self.streams.pop(stream.number, None)
            stream.number = 0
            return unseen("the upstream takes no more streams")
        if number >= LAST_STREAM:
            self.is_leaving = True
        self.deadline.set(min(self.deadline.at, self.wheel.now + SILENCE_S))
        return None

    def upgrade_fault(self, protocol: bytes) -> UpstreamFault | None:
        """Why a stream of this connection cannot become a tunnel for this protocol (RFC 8441); None: it can."""
        if protocol.lower() == WEBSOCKET and self._h2.remote_settings.enable_connect_protocol:
            return None
        return UpstreamFault(Reason.BAD_RESPONSE, "the upstream speaks HTTP/2 alone, and does not take this upgrade")

    async def settings(self) -> None:
        """Wait until the upstream has said what it takes, or is gone."""
        while self.is_new:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)

    def wake_later(self, stream: UpstreamStream) -> None:
        """Resume who waits for this stream when all that has come is taken."""
        self._awake.append(stream)

    def http_1_is_required(self) -> None:
        """The upstream does not serve a request over HTTP/2, as some that ask for a client's certificate late."""
        if self.on_http_1 is not None:
            self.on_http_1()
        self.retire()

    def stream_failed(self) -> None:
        """We have reset a stream because of what the upstream did. Raises Flood."""
        self._guard.stream_failed(self.wheel.now)

    def loss_fault(self) -> UpstreamFault:
        """Why streams end with the connection, those that the upstream may have seen."""
        if self._why:
            message = f"the upstream's connection failed: {self._why}"
            return UpstreamFault(Reason.BAD_RESPONSE, message, retry=RetrySafety.IF_IDEMPOTENT)
        error = self._loss
        if isinstance(error, ssl.SSLError):
            return tls_fault(error)
        if not self.heard_at and isinstance(self.transport, TlsStream):
            message = "the upstream ended the TLS connection before its first word"
            detail = type(error).__name__
            return UpstreamFault(Reason.TLS_PROTOCOL, message, detail=detail, retry=RetrySafety.IF_IDEMPOTENT)
        return UpstreamFault(Reason.UPSTREAM_CLOSED, _CLOSED, retry=RetrySafety.IF_REUSED)

    # --- asyncio's callbacks ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open: say what we allow."""
        super().connection_made(transport)
        self.address = self.peer_name()

    def data_received(self, data: bytes) -> None:
        """Frames of the upstream."""
        self.heard_at = self.wheel.now
        super().data_received(data)

    def _take_frames(self, frames: list[Frame]) -> None:
        """Who waits for them goes on when all are taken, so that a short response is seen whole."""
        super()._take_frames(frames)
        self._wake()

    def _wake(self) -> None:
        while self._awake:
            awake, self._awake = self._awake, []
            for stream in awake:
                if stream.driver is not None:
                    stream.driver.resume()

    def connection_lost(self, error: Exception | None) -> None:
        """Every stream fails; the owner is told."""
        self.is_leaving = self.begins_nothing = True
        if self._loss is None:
            self._loss = error
        super().connection_lost(error)
        self.deadline.close()
        self.age.close()
        self._settle()
        self._wake()
        self.on_room = None
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost(self)

    # --- what comes ------------------------------------------------------------------------------------------------
    def take_head(self, event: Event, stream: Http2Stream | None) -> None:
        """A response head, or trailers."""
        if isinstance(event, RequestReceived):
            raise FrameError("a stream that the upstream has begun")
        if stream is None:
            return
        assert isinstance(stream, UpstreamStream)
        if isinstance(event, TrailersReceived):
            stream.take_trailers(event.headers or [])
        elif isinstance(event, ResponseReceived | InformationalResponseReceived):
            has_ended = isinstance(event, ResponseReceived) and event.stream_ended is not None
            stream.take_response(event.headers or [], has_ended=has_ended)

    def settings_changed(self) -> None:
        """How many streams it takes may be known now, or another number."""
        self._has_settings = True
        self._settle()
        if self.on_room is not None:
            self.on_room()

    def _settle(self) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.set_result(None)

    def peer_goes_away(self, last_stream: int) -> None:
        """GOAWAY: what it has not looked at may be asked elsewhere (RFC 9113 section 6.8)."""
        self.is_leaving = self.begins_nothing = True
        for stream in list(self.streams.values()):
            if stream.number > last_stream:
                self.forget(stream)
                assert isinstance(stream, UpstreamStream)
                stream.was_not_seen()
        self.retire()

    def was_broken_off(self, code: ErrorCodes, why: str) -> None:
        """As of Http2Connection; the exchanges are told why."""
        super().was_broken_off(code, why)
        self._why = self._why or why

    # --- time ------------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """The deadline has passed: nobody has used it for long, or it has long said nothing."""
        if not self.active:
            self.close()
            return
        now = self.wheel.now
        if self._pinged_at > self.heard_at:
            if now - self._pinged_at >= PING_ANSWER_S:
                self._why = "it does not answer"
                self.abort()
                self._end_all()
                return
            self.deadline.set(self._pinged_at + PING_ANSWER_S)
            return
        at = max(self.heard_at + SILENCE_S, self._pinged_at + PING_AGAIN_S if self._pinged_at else 0.0)
        if at > now:
            self.deadline.set(at)
            return
        self._pinged_at = now
        self.ping()
        self.deadline.set(now + PING_ANSWER_S)

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "leaving" if self.is_leaving else "open"
        return f"Http2Upstream({self.address}, {state}, {self.active} active, served={self.served})"


def unseen(message: str) -> UpstreamFault:
    """The upstream has not looked at the request: it may be sent again, whatever it is (RFC 9113 section 8.7)."""
    return UpstreamFault(Reason.UPSTREAM_RESET, message, status=503, retry=RetrySafety.SAFE)


def name(code: int) -> str:
    """An error code for people."""
    try:
        return ErrorCodes(code).name
    except ValueError:
        return f"code {code}"
