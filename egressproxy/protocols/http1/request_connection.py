"""RequestConnection: the requests on a client's HTTP/1 connection, one at a time and in order.

`DownstreamConnection` adds the responses, and has the handler (the connection manager) run an exchange for each head.
The body goes to the exchange's sink, and events that the exchange may wait for wake or end its driver. Pipelined
requests stay unread until the exchange before them has ended (RFC 9112 section 9.3.2).

`downstream_states` has the states. Other flags are independent of the state: the client has ended its side
(`has_ended`), before, amid or after a request; reading is paused and writing is blocked (net/flow_control); `_pump` is
running.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any, Final, Protocol

from egressproxy.errors import BadRequest, ClientGone, GatewayError, LimitExceeded, Reason
from egressproxy.model.message import RequestHead
from egressproxy.net.driver import Driver
from egressproxy.net.flow_control import HIGH_WATER, BodySink, FlowControl
from egressproxy.net.timers import NEVER, Deadline, TimerWheel
from egressproxy.protocols.http1.codec import RequestReader
from egressproxy.protocols.http1.downstream_states import IDLE, LISTENING, RECEIVING, RESPONDING
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.request_head import NOT_HTTP

#: The most heads and pieces of body in one turn. A request with an immediate response ends the turn: a refusal may take
#: milliseconds (expressions of routes), and a thousand pipelined requests must not delay other connections.
MAX_AT_ONCE: Final = 16


class RequestHandler(Protocol):
    """The gateway's interface for a client: an HTTP/1 connection, or an HTTP/2 stream."""

    def on_request(self, client: Any, head: RequestHead) -> None:
        """Start the exchange of a complete head on `client.driver`; it ends with `client.finish`."""

    def on_bad_request(self, client: Any, error: GatewayError) -> None:
        """Respond to invalid input, and finish."""

    def on_deadline(self, client: Any) -> None:
        """Handle the deadline of the exchange."""

    def on_lost(self, client: Any) -> None:
        """Handle the loss of the connection."""


class RequestConnection(FlowControl):
    """The connection as it reads, with the states of `downstream_states`."""

    __slots__ = (
        "_is_foreign", "_is_pumping", "_line", "_line_deadline", "_state", "body_limit", "body_size", "deadline",
        "driver", "handler", "has_ended", "reader", "request_headers_s", "sink", "wheel",
    )  # fmt: skip

    def __init__(
        self, handler: RequestHandler, wheel: TimerWheel, limits: HeadLimits, request_headers_s: float
    ) -> None:
        super().__init__()
        self.handler = handler
        self.wheel = wheel
        self.request_headers_s = request_headers_s
        self.reader = RequestReader(limits)
        self.driver = Driver(self._exchange_over)
        self.deadline = Deadline(wheel, self._deadline_passed)
        self.sink: BodySink | None = None
        self._state = IDLE
        self.has_ended = False  # the client has sent its FIN
        self._is_foreign = False
        self.body_size = 0
        self.body_limit = -1
        self._is_pumping = False
        self._line = -1  # of those of the body that were not whole when they came: the last one, by `reader.open_line`
        self._line_deadline: Deadline | None = None  # for the rest of it

    # --- for the exchange --------------------------------------------------------------------------------------
    @property
    def is_request_read(self) -> bool:
        return self._state != RECEIVING

    @property
    def awaits_bytes(self) -> bool:
        """Whether the exchange waits for bytes after the request: see `listen`."""
        return self._state == LISTENING

    def unread(self) -> int:
        return self.reader.buffered()

    @property
    def first_byte(self) -> bytes:
        return self.reader.first_byte

    def serve_head(self, head: RequestHead, rest: bytes) -> None:
        """Begin the exchange of a bodiless head that did not come as HTTP/1; `rest` are the bytes after it."""
        self.reader.feed(rest)
        self._state = RESPONDING
        self.deadline.at = NEVER  # the exchange has a clock of its own
        self.handler.on_request(self, head)

    def listen(self) -> None:
        if self._state == RESPONDING:
            self._state = LISTENING

    def stop_listening(self) -> None:
        if self._state == LISTENING:
            self._state = RESPONDING

    @property
    def is_last(self) -> bool:
        """Whether nothing follows the current request: the client has ended its side, and all of it is read."""
        return self.has_ended and not self.reader.buffered()

    def send_request_body_to(self, sink: BodySink | None) -> None:
        self.sink = sink
        if sink is not None:
            self.resume_reading()  # paused, perhaps, while nobody asked
            if not self._is_pumping:
                self._pump()

    def take_request_body(self) -> bytes | None:
        """The body of the request, if all of it is here and went nowhere: it is read then. Else None."""
        if self.sink is not None or self.body_size:
            return None
        body = self.reader.take_whole_body(self.body_limit)
        if body is not None:
            self._state = RESPONDING
            self.body_size = len(body)
            if self.is_reading_paused:
                self.resume_reading()
        return body

    def read_anew(self, limits: HeadLimits) -> None:
        """Read requests inside a tunnel that we speak HTTP in; bytes that came early are read first."""
        rest = self.reader.take_rest()
        self.reader = RequestReader(limits)
        self.reader.feed(rest)

    def trailers_to_pass(self, trailers: bytes) -> bytes:
        """The trailers of the current request to forward."""
        return trailers

    def _exchange_over(self) -> None:
        if not self._is_pumping and self._state == IDLE and (self.bytes_in or self.has_ended):
            self._pump()

    # --- reading -----------------------------------------------------------------------------------------------
    def _pump(self) -> None:
        self._is_pumping = True
        is_unfinished = False
        try:
            for _ in range(MAX_AT_ONCE):
                state = self._state
                if state == IDLE:
                    if self.is_write_blocked or self.driver.is_busy:
                        break
                elif state == RESPONDING:
                    break
                elif state == RECEIVING:
                    if self.sink is None:
                        break
                elif state == LISTENING and (self.reader.buffered() or self.has_ended):
                    self._state = RESPONDING
                    self.driver.resume()
                    continue
                else:
                    break
                event = self.reader.next()
                if event is None:
                    if self.has_ended:
                        self._input_is_over()
                    elif state == IDLE and self.bytes_in and self.reader.has_partial_head:
                        self._head_has_begun()
                    elif self.reader.open_line != self._line:
                        self._line_has_begun()
                    return
                if type(event) is RequestHead:
                    self._state = RESPONDING if event.body == 0 else RECEIVING
                    self.body_size = 0
                    self.body_limit = -1
                    self.sends_chunked = False
                    self.deadline.at = NEVER  # the exchange has a clock of its own
                    self.handler.on_request(self, event)
                    if self._state == RESPONDING:
                        break  # the usual case
                    if self._state == IDLE and self.reader.buffered():
                        is_unfinished = True
                        break
                elif type(event) is bytes:
                    self._body(event)
                else:
                    self._state = RESPONDING
                    self._line = -1
                    sink, self.sink = self.sink, None
                    if sink is not None:
                        trailers = event.trailers  # type: ignore[union-attr]
                        sink.end_body(self.trailers_to_pass(trailers.block) if trailers is not None else b"")
            else:
                is_unfinished = True
            if is_unfinished:  # nobody else takes from the reader until we go on
                asyncio.get_running_loop().call_soon(self._pump)
            if self.bytes_in > HIGH_WATER and self.reader.buffered() > HIGH_WATER:
                self.pause_reading()
        except GatewayError as error:
            self.refuse(error)
        finally:
            self._is_pumping = is_unfinished

    def _body(self, data: bytes) -> None:
        self.body_size += len(data)
        if 0 <= self.body_limit < self.body_size:
            self.sink = None
            message = f"the request body is longer than {self.body_limit} bytes"  # RFC 9110 section 15.5.14
            self.driver.throw(LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True))
        elif self.sink is not None:
            self.sink.send_body(data)

    def _input_is_over(self) -> None:
        """Handle the end of input with an incomplete message, or without one."""
        if self._state != IDLE:
            self.driver.throw(ClientGone("the client ended in the middle of its request"))
        elif self.reader.has_partial_head:
            self.refuse(BadRequest(Reason.BAD_REQUEST_LINE, "the request is not complete"))
        else:
            self.close()

    def _head_has_begun(self) -> None:
        """The head's deadline runs from its first byte; a trickle does not move it."""
        limit = self.wheel.now + self.request_headers_s
        if self.request_headers_s > 0 and self.deadline.at > limit:
            self.deadline.set(limit)

    def _line_has_begun(self) -> None:
        """A chunk's line, or the trailers, hold nothing that anybody waits for: they have as long as a head."""
        self._line = self.reader.open_line
        if self._line >= 0 and self.request_headers_s > 0:
            if self._line_deadline is None:
                self._line_deadline = Deadline(self.wheel, self._line_is_late)
            self._line_deadline.after(self.request_headers_s)

    def _line_is_late(self) -> None:
        if self._state != RECEIVING or self._line < 0 or self.reader.open_line != self._line:
            return
        if self.is_reading_paused and self._line_deadline is not None:  # it may be here
            self._line_deadline.after(self.request_headers_s)
            return
        message = "the trailers of the request, or the extensions of a chunk, took too long"
        self.driver.throw(BadRequest(Reason.CLIENT_TIMEOUT, message, status=408))

    def refuse(self, error: GatewayError) -> None:
        """Respond to input that is no request, or no rest of one."""
        if self._state != IDLE:
            self.driver.throw(error)
        else:
            self._state = RECEIVING
            self._is_foreign = error.message == NOT_HTTP  # it would not understand an answer (RFC 9113 section 3.4)
            self.handler.on_bad_request(self, error)

    @abstractmethod
    def close(self, *, lingers: bool = True) -> None:
        """Say no more, and end the connection."""

    @abstractmethod
    def _deadline_passed(self) -> None:
        """The time of `deadline` has come."""
