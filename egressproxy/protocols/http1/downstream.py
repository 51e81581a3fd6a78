"""DownstreamConnection: a client's HTTP/1 connection, with the responses to its requests, and its end. It knows no
policy.
"""

from __future__ import annotations

import asyncio
from typing import Final

from egressproxy.errors import BadRequest, ClientGone, Reason
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.states import state_name
from egressproxy.net.flow_control import reset
from egressproxy.net.timers import NEVER, TICK_S, TimerWheel
from egressproxy.protocols.http1 import downstream_states as states
from egressproxy.protocols.http1.downstream_states import (
    CLOSING,
    DETACHED,
    IDLE,
    LINGERING,
    LISTENING,
    LOST,
    RECEIVING,
    RESPONDING,
)
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.request_connection import RequestConnection, RequestHandler
from egressproxy.protocols.http1.writer import CONTINUE, TUNNEL_ESTABLISHED, answer_bytes, interim_bytes, response_bytes

#: Seconds, and bytes, for which a client is read after our last response, so that it gets the response instead of a
#: reset.
LINGER_S: Final = 2.0
LINGER_SIZE: Final = 1024 * 1024

#: Seconds after the last bytes of its request within which a client's FIN is a half-close, plus up to a tick of the
#: wheel, by which the recorded time may be early.
HALF_CLOSE_S: Final = 0.25

_SAYS_NO_MORE: Final = (LINGERING, CLOSING)
_OVER: Final = (LINGERING, CLOSING, LOST)


class DownstreamConnection(RequestConnection):
    """The connection: an exchange for each request."""

    __slots__ = ("client", "heard_at", "idle_s", "unsent")

    def __init__(
        self,
        handler: RequestHandler,
        wheel: TimerWheel,
        limits: HeadLimits,
        request_headers_s: float,
        idle_s: float,
    ) -> None:
        super().__init__(handler, wheel, limits, request_headers_s)
        self.idle_s = idle_s
        self.client = "-"
        self.heard_at = NEVER  # the time of the last input, on the clock of `wheel`
        self.unsent = 0  # while lingering: the unsent bytes at the last check

    # --- asyncio's callbacks -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here. It has to send a head within `request_headers_s`, also if it sends nothing at all."""
        super().connection_made(transport)
        self.client = self.peer_name()
        self.deadline.after(self.request_headers_s)

    def data_received(self, data: bytes) -> None:
        """Process the client's bytes, or buffer them; drop them while lingering."""
        self.bytes_in += len(data)
        self.heard_at = self.wheel.now
        if self._state == LINGERING:
            if self.bytes_in > LINGER_SIZE:
                self.transport.abort()
            return
        self.reader.feed(data)
        if not self._is_pumping:
            self._pump()

    def eof_received(self) -> bool:
        """A client may end its side and still wait for answers; `_pump` acts when what it has sent is used up. Whether
        it waits the subclass decides: see `may_have_left`.
        """
        self.has_ended = True
        if self._state in _OVER:
            return False
        if not self._is_pumping:
            self._pump()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """End the exchange with ClientGone."""
        if self._state == LOST:
            return
        self._state = LOST
        self.reader.forget()
        self.deadline.close()
        if self._line_deadline is not None:
            self._line_deadline.close()
        if self.driver.is_busy:
            self.driver.throw(ClientGone())
        self.driver.on_idle = None
        self.sink = None
        self.feeder = None
        self.handler.on_lost(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._state == IDLE and not self._is_pumping:
            self._pump()

    # --- for the exchange --------------------------------------------------------------------------------------
    @property
    def is_idle(self) -> bool:
        """Whether the client waits for no response: there is no request, or a tunnel waits for its first bytes."""
        return self._state == IDLE or self._state == LISTENING

    @property
    def is_lost(self) -> bool:
        return self._state == LOST

    @property
    def may_have_left(self) -> bool:
        """Whether a client that ends its side now does so later than with its request, and has asked for no more. An
        empty line behind the request is nothing (RFC 9112 section 2.2).
        """
        if self._state == RESPONDING:
            has_asked_for_more = self.reader.first_byte not in b"\r\n"
        else:
            has_asked_for_more = self._state != RECEIVING
        return not has_asked_for_more and self.wheel.moment() - self.heard_at > HALF_CLOSE_S + TICK_S

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def send_response(
        self, head: ResponseHead, request: RequestHead, pseudonym: bytes, body: bytes | None, *, close: bool
    ) -> None:
        """The final head of a response to `request`, and its body; None: that follows, by `send_body`. `pseudonym` is
        our name in Via. `close`: no other response follows on this connection.
        """
        status, http_1_0 = head.status, request.http_1_0
        has_body = status != 204 and status != 304 and request.method != b"HEAD"
        self.sends_chunked = head.body < 0 and not http_1_0
        data = response_bytes(head, pseudonym, close=close, http_1_0=http_1_0, has_body=has_body)
        self.send(data + body if body else data)

    def send_answer(self, answer: LocalResponse, *, close: bool, with_body: bool = True) -> None:
        """A whole response of our own. `with_body` false: its head alone, as for HEAD."""
        if not self._is_foreign:
            self.send(answer_bytes(answer, close=close, with_body=with_body))

    def send_interim(self, head: ResponseHead, pseudonym: bytes) -> None:
        """An interim response, or a 101 (RFC 9110 section 15.2); for clients of HTTP/1.1."""
        self.send(interim_bytes(head, pseudonym))

    def send_continue(self) -> None:
        self.send(CONTINUE)

    def accept_tunnel(self) -> None:
        """Answer a CONNECT: from now on what is said is the tunnel's (RFC 9110 section 9.3.6)."""
        self.send(TUNNEL_ESTABLISHED)

    def finish(self, *, close: bool) -> None:
        """The exchange is over, its last byte written. The next request follows when its coroutine ends."""
        self.sink = None
        self.feeder = None
        if close or self._state != RESPONDING or (self.has_ended and self.is_last):
            self.close()
            return
        self._state = IDLE
        self.bytes_in = self.reader.buffered()
        self.bytes_out = 0
        self.deadline.after(self.idle_s)
        if self.is_reading_paused:
            self.resume_reading()

    def close(self, *, lingers: bool = True) -> None:
        """Say no more; if it `lingers`, the client has something to read before the connection goes (RFC 9112 9.6)."""
        if self._state in _OVER:
            return
        self.flush()
        self.unsent = self.transport.get_write_buffer_size()
        is_silent = self.has_ended or (self._state != RECEIVING and not self.reader.buffered())
        if is_silent or not lingers or not self.transport.can_write_eof():
            self.deadline.after(LINGER_S * 5)  # a client that never reads its answer
            self._state = CLOSING
            self.transport.close()
            return
        self._state = LINGERING
        self.bytes_in = 0
        self.transport.write_eof()
        self.deadline.after(LINGER_S)
        self.resume_reading()

    def abort(self) -> None:
        """Break the connection: what was sent is not a whole message, and must not look like one."""
        if self._state != LOST:
            self.flush()
            reset(self.transport)

    def detach(self) -> bytes:
        self.flush()
        self._state = DETACHED
        self.deadline.close()
        if self._line_deadline is not None:
            self._line_deadline.close()
        self.driver.on_idle = None
        rest = self.reader.take_rest()
        self.feed_from(None)
        self.resume_reading()
        return rest

    def tunnel_ended(self) -> None:
        self._state = LOST

    def _deadline_passed(self) -> None:
        if self._state in _SAYS_NO_MORE:
            self._linger_on()
        elif self._state != IDLE:
            self.handler.on_deadline(self)
        elif self.reader.has_partial_head:
            self.refuse(BadRequest(Reason.CLIENT_TIMEOUT, "the request head took too long", status=408))
        else:
            self.close()

    def _linger_on(self) -> None:
        """Wait while the client still reads our response; close if it reads no more."""
        left = self.transport.get_write_buffer_size()
        if 0 < left < self.unsent:
            self.unsent = left
            self.deadline.after(LINGER_S * 5)
        else:
            self.transport.abort()

    def __repr__(self) -> str:
        return f"DownstreamConnection({self.client}, {state_name(states, self._state).lower()})"
