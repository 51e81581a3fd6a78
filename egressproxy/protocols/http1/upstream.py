"""UpstreamConnection: an HTTP/1.1 connection to a backend, one exchange at a time.

Anything that comes while no answer is awaited, and anything behind an answer, ends its use (RFC 9112 sections 6.3 and
9.2: never a second response). So does a request of which the upstream may not have read all: what it has left, it would
take for the next one. An end without the end of the message is passed on as an error, never as a clean end.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from egressproxy.errors import GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.model.message import CHUNKED, RequestHead, ResponseHead
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.flow_control import COPY_LIMIT, HIGH_WATER, BodySink, FlowControl
from egressproxy.net.timers import NEVER, Deadline, TimerWheel
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_failures import TLS_EXPECTATION, tls_fault
from egressproxy.protocols.http1.chunked import EndOfMessage
from egressproxy.protocols.http1.codec import ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.writer import request_bytes

#: Methods whose content has a meaning. Of the others some servers read none, GET and DELETE included (RFC 9110 sections
#: 9.3.1, 9.3.2, 9.3.5 and 9.3.7), or do not know them.
_WITH_CONTENT: Final = frozenset((b"POST", b"PUT", b"PATCH"))


class UpstreamConnection(FlowControl):
    """States: idle (in a pool); awaiting an answer; relaying its body; ended; lost."""

    __slots__ = (
        "_awaits_continue", "_has_body", "address", "age", "deadline", "driver", "error", "has_ended", "has_sent_all",
        "head", "is_idle", "is_last", "is_lost", "last_read", "on_lost", "reader", "sent_at", "served", "sink", "wheel",
    )  # fmt: skip

    def __init__(self, wheel: TimerWheel, limits: HeadLimits) -> None:
        super().__init__()
        self.wheel = wheel
        self.reader = ResponseReader(limits)
        self.driver: Driver | None = None
        self.sink: BodySink | None = None
        self.head: ResponseHead | None = None
        self.error: GatewayError | None = None
        self.address = "-"
        self.deadline = Deadline(wheel, self.close)  # how long it may be idle
        self.age: Deadline | None = None  # how long it may be used; its owner's
        self.on_lost: Callable[[UpstreamConnection], None] | None = None
        self.is_idle = True
        self.is_lost = False
        self.has_ended = False  # the current answer is whole
        self.has_sent_all = False  # the current request is whole
        self._has_body = False  # the current request has one
        self._awaits_continue = False  # and the upstream has not said that it wants it
        self.is_last = False  # no other exchange may follow the current one
        self.last_read = 0.0
        self.sent_at = 0.0  # when a body was whole, of this request or of an earlier one
        self.served = 0

    # --- asyncio's callbacks -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open; `address` is that of its other end."""
        super().connection_made(transport)
        self.address = self.peer_name()

    def data_received(self, data: bytes) -> None:
        """What the upstream says; while nothing is awaited it ends the connection's use."""
        if self.is_idle:
            self.close()  # nobody has asked
            return
        self.last_read = self.wheel.now
        self.bytes_in += len(data)
        self.reader.feed(data)
        if self.sink is not None:
            self._pump()
        elif self.has_ended:
            self.pause_reading()  # surplus: `is_reusable` looks at it, and nobody wants more
        else:
            if self.head is not None and self.reader.buffered() > HIGH_WATER:
                self.pause_reading()
            if self.driver is not None:
                self.driver.resume()

    def eof_received(self) -> bool:
        """The upstream sends no more: the end of a body, or an error."""
        self._end(None)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The transport is gone; an exchange that needs more of it fails."""
        if self.is_lost:
            return
        self.is_lost = True
        self.reader.forget()
        self._end(error)
        self.feeder = None
        self.gone()

    # --- for the exchange --------------------------------------------------------------------------------------
    @property
    def was_reused(self) -> bool:
        """Whether another exchange on this connection came before the current one."""
        return self.served > 1

    def is_leaving(self) -> bool:
        """Whether the transport is gone or closing; the loop may not have told us yet."""
        return self.is_lost or self.transport.is_closing()

    def is_reusable(self) -> bool:
        """After an exchange: whether another may follow on this connection, unless it is leaving."""
        head = self.head
        return (
            self.has_ended
            and not self.is_last
            and self.error is None
            and head is not None
            and not head.connection_close
            and not head.http_1_0
            and not self.reader.buffered()
            and not self.is_write_blocked
            and not self._unflushed  # an answer that came before the request was sent answers something else
        )

    def begin(self, driver: Driver, request: RequestHead) -> None:
        """Start an exchange; the caller sends head and body. Behind a refused upgrade no other one follows: a server
        further on may believe in it.
        """
        self.is_idle = False
        self.deadline.at = NEVER
        self.driver = driver
        self.sink = None
        self.error = None
        self.has_ended = False
        if request.upgrade:
            self.is_last = True
        if request.body:
            self._has_body = True
            self.has_sent_all = False
            self.sends_chunked = request.body == CHUNKED
            self._awaits_continue = request.expect_continue
            if request.method not in _WITH_CONTENT:
                self.is_last = True
        else:
            self._has_body = False
            self.has_sent_all = True
        self.bytes_in = 0
        self.bytes_out = 0
        self.served += 1
        self.last_read = self.wheel.now
        self.reader.expect(request.method)

    def send_head(self, request: RequestHead, host: bytes, pseudonym: bytes) -> None:
        """The head of the request that has begun. `host` is the Host value, `pseudonym` our name in Via."""
        self.send(request_bytes(request, host, pseudonym))

    def send_whole(self, request: RequestHead, host: bytes, pseudonym: bytes, body: bytes) -> None:
        """As `send_head`, `send_body` and `end_body` of a body whose length the head says."""
        head = request_bytes(request, host, pseudonym)
        if len(body) < COPY_LIMIT:
            self.send(head + body)
        else:
            self.send(head)
            self.send(body)
        self.has_sent_all = True
        self.sent_at = self.wheel.now

    def end_body(self, trailers: bytes) -> None:
        """Send the end of the request's body, with these trailers: the request is whole."""
        super().end_body(trailers)
        self.has_sent_all = True
        self.sent_at = self.wheel.now

    def next_head(self) -> ResponseHead | None:
        """The next head, interim ones too; None if it is not here yet. Raises UpstreamFault."""
        if self.error is not None:
            raise self.error
        head = self.reader.next()
        if head is None:
            if self.is_lost:
                raise UpstreamFault(
                    Reason.UPSTREAM_CLOSED, "the upstream closed its connection", retry=RetrySafety.IF_REUSED
                )
            return None
        assert type(head) is ResponseHead
        self.head = head
        if self._has_body:
            self._look_whether_all_is_read(head)
        if head.body == 0 and (head.status >= 200 or head.status == 101):
            self.has_ended = True
        return head

    async def first_byte(self) -> None:
        """Wait for a byte of the body, which is kept, or its end. Raises UpstreamFault where it breaks off."""
        while not self.has_ended:
            if self.error is not None:
                raise self.error
            if self.reader.has_begun_body():
                return
            await PAUSE

    def settle_length(self) -> int:
        """How many bytes a body without a length has, if the buffer holds all of it and nothing behind it, trailers
        neither: it has that length from now on. Else -1. To be called before any of it is taken.
        """
        return self.reader.settle_length()

    def whole_body(self) -> bytes | None:
        """The body, if the buffer holds all of it and nothing behind it: that ends the response. Else None."""
        body = self.reader.take_whole_body()
        if body is not None:
            self.has_ended = True
        return body

    def send_response_body_to(self, sink: BodySink) -> None:
        """Send the body to this sink from now on; what is buffered goes there at once."""
        self.sink = sink
        self.resume_reading()  # before the sink gets anything: it may want to pause us
        self._pump()

    async def response_end(self) -> None:
        """Wait until the body is whole and handed on. Raises UpstreamFault if it breaks off."""
        while not self.has_ended:
            if self.error is not None:
                raise self.error
            await PAUSE

    def finish(self) -> None:
        """End the exchange: the connection is idle, and holds nothing of the exchange any more."""
        self.driver = None
        self.sink = None
        self.head = None
        self.error = None  # its traceback holds us
        self.feeder = None
        self.is_idle = True
        if self.is_reading_paused:
            self.resume_reading()  # an end has to be seen in the pool, too

    def retire(self) -> None:
        """No other exchange follows. One that is idle has to be closed by its owner: it may be about to begin one."""
        self.is_last = True

    def close(self) -> None:
        if not self.is_lost:
            self.flush()
            self.transport.close()

    def abort(self) -> None:
        if not self.is_lost:
            self.forget_unflushed()
            self.transport.abort()

    def detach(self) -> bytes:
        self.flush()
        self.deadline.clear()
        self.driver = None
        self.sink = None
        self.head = None
        self.feed_from(None)
        rest = self.reader.take_rest()
        self.resume_reading()
        return rest

    def gone(self) -> None:
        """The transport has ended, here or where it was given to: the owner, who counts connections, is told."""
        self.is_lost = True
        self.deadline.close()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost(self)

    # --- reading -----------------------------------------------------------------------------------------------
    def _pump(self) -> None:
        sink, reader = self.sink, self.reader
        try:
            while sink is not None:
                event = reader.next()
                if event is None:
                    return
                if type(event) is bytes:
                    sink.send_body(event)
                    if reader.needs_more:
                        return
                elif isinstance(event, EndOfMessage):
                    self.has_ended = True
                    self.sink = None
                    sink.end_body(event.trailers.block if event.trailers is not None else b"")
                    if self.driver is not None:
                        self.driver.resume()
                    return
                sink = self.sink
        except GatewayError as error:
            self._fail(error)

    def _end(self, error: Exception | None) -> None:
        """The upstream sends no more: after this error of the transport, or cleanly."""
        if self.is_idle or self.has_ended or self.error is not None:
            return
        fault = self._fault_of(error) if error is not None else None
        if fault is not None:
            self._fail(fault)
            return
        self.reader.feed_eof(error is None)
        if self.sink is not None:
            self._pump()
        elif self.driver is not None:
            self.driver.resume()

    def _look_whether_all_is_read(self, head: ResponseHead) -> None:
        """Who answers before the body is there, or without having asked for one that was offered, may leave it unread
        (RFC 9110 section 10.1.1, RFC 9112 section 9.3).
        """
        if head.status == 100:
            self._awaits_continue = False
        elif head.status >= 200 and (
            self._awaits_continue or not self.has_sent_all or self._unflushed or self.transport.get_write_buffer_size()
        ):
            self.is_last = True

    def _fault_of(self, error: Exception) -> GatewayError | None:
        """What an error of the transport means; None where that depends on what was read. A TLS 1.3 server judges our
        certificate after our Finished: its alert comes this late, or never (RFC 8446 section 4.4.4, appendix E.1).
        """
        if isinstance(error, ssl.SSLError):
            return tls_fault(error, expected=self.transport.get_extra_info(TLS_EXPECTATION))
        if self.bytes_in:
            return None
        if self.served == 1 and isinstance(self.transport, TlsStream):
            message = "the upstream ended the TLS connection before its first word"
            detail = type(error).__name__
            return UpstreamFault(Reason.TLS_PROTOCOL, message, detail=detail, retry=RetrySafety.IF_IDEMPOTENT)
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            message = "the upstream reset its connection"
            return UpstreamFault(Reason.UPSTREAM_RESET, message, retry=RetrySafety.IF_REUSED)
        return None

    def _fail(self, error: GatewayError) -> None:
        self.error = error
        self.sink = None
        if self.driver is not None:
            self.driver.throw(error)

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "idle" if self.is_idle else "ended" if self.has_ended else "busy"
        return f"UpstreamConnection({self.address}, {state}, served={self.served})"
