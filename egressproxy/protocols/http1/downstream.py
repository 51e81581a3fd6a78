"""DownstreamConnection: a client's HTTP/1 connection. Reads requests one at a time and in order; knows no policy.

The handler (the conductor) is told of each request head and runs the exchange; the connection feeds the request's
body to the
sink that it is given, and the driver is woken or ended when something happens that the exchange may wait for.
Pipelined requests stay unread until the exchange before them has ended (RFC 9112 section 9.3.2).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from egressproxy.errors import BadRequest, ClientGone, GatewayError, LimitExceeded, Reason
from egressproxy.model.message import RequestHead
from egressproxy.net.driver import Driver
from egressproxy.net.flow_control import HIGH_WATER, BodySink, FlowControl, reset
from egressproxy.net.timers import NEVER, Deadline, TimerWheel
from egressproxy.protocols.http1.codec import HeadLimits, RequestReader

__all__ = ["DownstreamConnection", "RequestHandler"]

#: How long, and how much, is still read from a client after our last word, so that it reads that word and no reset.
LINGER_S = 2.0
LINGER_OCTETS = 1024 * 1024

#: Heads and pieces of body in one turn. A request that was answered at once ends the turn: to refuse one may take some
#: milliseconds (expressions of routes), and a thousand that are pipelined keep nobody else waiting.
MAX_AT_ONCE = 16


class RequestHandler(Protocol):
    """What a connection needs of the gateway."""

    def on_request(self, client: DownstreamConnection, head: RequestHead) -> None:
        """A whole head is here. Starts the exchange on `client.driver`, which ends with `client.finish`."""

    def on_bad_request(self, client: DownstreamConnection, error: GatewayError) -> None:
        """What came is no request: answer and finish."""

    def on_deadline(self, client: DownstreamConnection) -> None:
        """The deadline that the exchange has set is over."""

    def on_lost(self, client: DownstreamConnection) -> None:
        """The connection is gone."""


class DownstreamConnection(FlowControl):
    """States: waiting for a request; in an exchange (head read; body read or not); lingering; gone."""

    __slots__ = (
        "_is_pumping",
        "awaits_octets",
        "body_limit",
        "body_octets",
        "client",
        "deadline",
        "driver",
        "handler",
        "has_ended",
        "idle_s",
        "in_exchange",
        "is_lingering",
        "is_lost",
        "is_request_read",
        "reader",
        "request_headers_s",
        "served",
        "sink",
        "unsent",
        "wheel",
    )

    def __init__(
        self,
        handler: RequestHandler,
        wheel: TimerWheel,
        limits: HeadLimits,
        request_headers_s: float,
        idle_s: float,
    ) -> None:
        super().__init__()
        self.handler = handler
        self.wheel = wheel
        self.request_headers_s = request_headers_s
        self.idle_s = idle_s
        self.reader = RequestReader(limits)
        self.driver = Driver(self._exchange_over)
        self.deadline = Deadline(wheel, self._deadline_passed)
        self.sink: BodySink | None = None
        self.client = "-"
        self.in_exchange = False
        self.is_request_read = False  # the current request's body is whole
        self.awaits_octets = False  # the exchange waits for what the client says behind its request
        self.has_ended = False  # the client has sent its FIN
        self.is_lingering = False
        self.is_lost = False
        self.unsent = 0  # while lingering: what the client had left to take when we last looked
        self.body_octets = 0
        self.body_limit = -1
        self.served = 0
        self._is_pumping = False

    # --- asyncio's callbacks -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client = self.peer_name()
        self.deadline.after(self.request_headers_s)  # a client that says nothing at all

    def data_received(self, data: bytes) -> None:
        if self.is_lingering:
            self.octets_in += len(data)
            if self.octets_in > LINGER_OCTETS:
                self.transport.abort()
            return
        self.octets_in += len(data)
        self.reader.feed(data)
        if not self._is_pumping:
            self._pump()

    def eof_received(self) -> bool:
        """A client may end its side and still wait for answers; `_pump` acts when what it has sent is used up."""
        self.has_ended = True
        if self.is_lingering or self.is_lost:
            return False
        if not self._is_pumping:
            self._pump()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self.deadline.close()
        if self.driver.is_busy:
            self.driver.throw(ClientGone())
        self.driver.on_idle = None
        self.sink = None
        self.feeder = None
        self.handler.on_lost(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.in_exchange and not self._is_pumping:
            self._pump()

    # --- for the exchange --------------------------------------------------------------------------------------
    @property
    def is_last(self) -> bool:
        """Nothing follows the current request: the client has ended its side, and nothing of it is left."""
        return self.has_ended and not self.reader.buffered

    def send_request_body_to(self, sink: BodySink | None) -> None:
        """From now on the request's body goes there (what is buffered goes at once)."""
        self.sink = sink
        if sink is not None:
            self.resume_reading()  # paused, perhaps, while nobody asked
            if not self._is_pumping:
                self._pump()

    def finish(self, *, close: bool) -> None:
        """The exchange is over and its last octet written. The next request follows when its coroutine has ended, or
        we close.
        """
        self.in_exchange = False
        self.sink = None
        self.feeder = None
        self.served += 1
        if self.is_lost:
            return
        if close or not self.is_request_read or (self.has_ended and self.is_last):
            self.close()
            return
        self.octets_in = self.reader.buffered
        self.octets_out = 0
        self.deadline.after(self.idle_s)
        if self.is_reading_paused:
            self.resume_reading()

    def close(self, *, lingers: bool = True) -> None:
        """Say no more; let the client read what was said before the connection goes (RFC 9112 section 9.6).

        `lingers` false: nothing was said that it still has to read.
        """
        if self.is_lost or self.is_lingering:
            return
        self.flush()
        self.unsent = self.transport.get_write_buffer_size()
        is_silent = self.has_ended or (self.is_request_read and not self.reader.buffered)
        if is_silent or not lingers or not self.transport.can_write_eof():
            self.deadline.after(LINGER_S * 5)  # a client that never reads its answer
            self.is_lingering = True
            self.transport.close()
            return
        self.is_lingering = True
        self.octets_in = 0
        self.transport.write_eof()
        self.deadline.after(LINGER_S)
        self.resume_reading()

    def abort(self) -> None:
        """Break the connection: what was sent is not a whole message, and must not look like one."""
        if not self.is_lost:
            self.flush()
            reset(self.transport)

    def detach(self) -> bytes:
        """Give the transport away, to a tunnel. Returns the octets that came behind the head."""
        self.flush()
        self.deadline.close()
        self.driver.on_idle = None
        rest = self.reader.take_rest()
        self.feed_from(None)
        self.resume_reading()
        return rest

    def enter_tunnel(self, limits: HeadLimits) -> None:
        """Read requests anew, inside a tunnel that we speak HTTP in; keeps octets that came early."""
        rest = self.reader.take_rest()
        self.reader = RequestReader(limits)
        self.reader.feed(rest)

    @property
    def passes_trailers(self) -> bool:
        """Whether the trailers of the current request go on with it."""
        return True

    def _exchange_over(self) -> None:
        if not self._is_pumping and not self.is_lost and (self.octets_in or self.has_ended):
            self._pump()

    # --- reading -----------------------------------------------------------------------------------------------
    def _pump(self) -> None:
        """Take from the reader whatever can be used now."""
        self._is_pumping = True
        is_unfinished = False
        try:
            for _ in range(MAX_AT_ONCE):
                if self.is_lost or self.is_lingering:
                    break
                if self.in_exchange:
                    if self.is_request_read or self.sink is None:
                        if not self.awaits_octets or not (self.reader.buffered or self.has_ended):
                            break
                        self.awaits_octets = False
                        self.driver.resume()
                        continue
                elif self.is_write_blocked or self.driver.is_busy:
                    break
                event = self.reader.next()
                if event is None:
                    if self.has_ended:
                        self._input_is_over()
                    elif not self.in_exchange and self.octets_in and self.reader.has_partial_head:
                        self._head_has_begun()
                    return
                if type(event) is RequestHead:
                    self.in_exchange = True
                    self.is_request_read = event.body == 0
                    self.body_octets = 0
                    self.body_limit = -1
                    self.sends_chunked = False
                    self.deadline.at = NEVER  # the exchange has a clock of its own
                    self.handler.on_request(self, event)
                    if not self.in_exchange and self.reader.buffered:
                        is_unfinished = True
                        break
                elif type(event) is bytes:
                    self._body(event)
                else:
                    self.is_request_read = True
                    sink, self.sink = self.sink, None
                    if sink is not None:
                        trailers = event.trailers  # type: ignore[union-attr]
                        sink.end_body(trailers.block if trailers is not None and self.passes_trailers else b"")
                    self.driver.resume()
            else:
                is_unfinished = True
            if is_unfinished:  # nobody else takes from the reader until we go on
                asyncio.get_running_loop().call_soon(self._pump)
            if self.reader.buffered > HIGH_WATER:
                self.pause_reading()
        except GatewayError as error:
            self._refuse(error)
        finally:
            self._is_pumping = is_unfinished

    def _body(self, data: bytes) -> None:
        self.body_octets += len(data)
        if 0 <= self.body_limit < self.body_octets:
            self.sink = None
            self.driver.throw(body_too_large(self.body_limit))
        elif self.sink is not None:
            self.sink.send_body(data)

    def _input_is_over(self) -> None:
        """Everything that the client will ever say is used up, and the message is not whole, or there is none."""
        if self.in_exchange:
            self.driver.throw(ClientGone("the client ended in the middle of its request"))
        elif self.reader.has_partial_head:
            self._refuse(BadRequest(Reason.BAD_REQUEST_LINE, "the request is not complete"))
        else:
            self.close()

    def _head_has_begun(self) -> None:
        """The head's deadline runs from its first octet; a trickle does not move it."""
        limit = self.wheel.now + self.request_headers_s
        if self.request_headers_s > 0 and self.deadline.at > limit:
            self.deadline.set(limit)

    def _refuse(self, error: GatewayError) -> None:
        if self.in_exchange:
            self.is_request_read = False
            self.driver.throw(error)
        else:
            self.in_exchange = True
            self.is_request_read = False
            self.handler.on_bad_request(self, error)

    def _deadline_passed(self) -> None:
        if self.is_lingering:
            self._linger_on()
        elif self.in_exchange:
            self.handler.on_deadline(self)
        elif self.reader.has_partial_head:
            self._refuse(BadRequest(Reason.CLIENT_TIMEOUT, "the request head took too long", status=408))
        else:
            self.is_request_read = True
            self.close()

    def _linger_on(self) -> None:
        """A client that still takes what we have said is waited for; one that takes nothing more is cut."""
        left = self.transport.get_write_buffer_size()
        if 0 < left < self.unsent:
            self.unsent = left
            self.deadline.after(LINGER_S * 5)
        else:
            self.transport.abort()

    def __repr__(self) -> str:
        state = (
            "lost"
            if self.is_lost
            else "lingering"
            if self.is_lingering
            else "exchange"
            if self.in_exchange
            else "waiting"
        )
        return f"DownstreamConnection({self.client}, {state}, served={self.served})"


def body_too_large(limit: int) -> GatewayError:
    """413 for a body that turned out longer than the limit (RFC 9110 section 15.5.14)."""
    message = f"the request body is longer than {limit} octets"
    return LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True)
