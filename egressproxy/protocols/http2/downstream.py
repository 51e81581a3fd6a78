"""DownstreamHttp2: a client's connection, each request a stream (RFC 9113 sections 5.1.2 and 6.8)."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from h2.errors import ErrorCodes

from egressproxy.net.timers import NEVER, Deadline, TimerWheel
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.request_connection import RequestHandler
from egressproxy.protocols.http2.connection import Http2Connection
from egressproxy.protocols.http2.frames import Flood
from egressproxy.protocols.http2.head_fields import ResponseHeads
from egressproxy.protocols.http2.heads import RequestFieldsReader
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.settings import MAX_STREAMS
from egressproxy.protocols.http2.stream_state import H2StreamState

#: How long streams that the client began before it read our GOAWAY are still served.
GRACE_S: Final = 1.0
LAST_STREAM: Final = 2**31 - 1
#: That of a stream which is over. It may be set, but never passes: nobody turns its wheel.
NO_DEADLINE: Final = Deadline(TimerWheel(), lambda: None)
#: Deadlines that wait for another stream.
MAX_SPARE: Final = 16

#: Exchanges that a client may cut on a connection, and how many more in each second, before it matters how many of its
#: requests these are: one half of them may always be cut. Servers bear 500 (Envoy) or 1000 (nghttp2) at once.
GIVEN_UP: Final = 200
GIVEN_UP_PER_SECOND: Final = 10.0


class DownstreamHttp2(Http2Connection):
    """A client's connection. It has no clock but that of heads and of idleness: each exchange has its own."""

    __slots__ = (
        "_awaits_head", "_begun_at", "_final_goaway", "_given_up", "_last_served", "_spare", "client", "deadline",
        "handler", "idle_s", "reader", "request_headers_s", "response_heads",
    )  # fmt: skip

    def __init__(
        self,
        handler: RequestHandler,
        wheel: TimerWheel,
        limits: HeadLimits,
        request_headers_s: float,
        idle_s: float,
        *,
        is_forward: bool,
        extended_connect: bool,
    ) -> None:
        super().__init__(wheel, limits, client_side=False, extended_connect=extended_connect)
        self.handler = handler
        self.request_headers_s = request_headers_s
        self.idle_s = idle_s
        self.client = "-"
        self.deadline = Deadline(wheel, self._deadline_passed)
        self.reader = RequestFieldsReader(limits, is_forward=is_forward, extended_connect=extended_connect)
        self.response_heads = ResponseHeads()
        self._awaits_head = False
        self._begun_at = wheel.now
        self._given_up = 0  # exchanges that the client has cut
        self._spare: list[Deadline] = []
        self._last_served = LAST_STREAM  # streams above this one are not looked at
        self._final_goaway: Deadline | None = None  # between the announcement and what it announces

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here. It has to begin a stream within `request_headers_s`."""
        super().connection_made(transport)
        self.client = self.peer_name()
        self.deadline.after(self.request_headers_s)

    def _take_frames(self) -> None:
        """A head that has begun has to be whole within `request_headers_s`."""
        super()._take_frames()
        if self.is_lost or self._is_unfinished:
            return
        if self.awaits_head:
            if not self._awaits_head:
                self._awaits_head = True
                self.deadline.after(self.request_headers_s)
        elif self._awaits_head:
            self._awaits_head = False
            self.deadline.after(0 if self.streams else self.idle_s)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.deadline.close()
        for deadline in self._spare:
            deadline.close()
        self._spare.clear()
        if self._final_goaway is not None:
            self._final_goaway.close()

    # --- streams ---------------------------------------------------------------------------------------------------
    def new_deadline(self, callback: Callable[[], None]) -> Deadline:
        """One for a stream: that of another which is over, where the wheel has its place already."""
        if not self._spare:
            return Deadline(self.wheel, callback)
        deadline = self._spare.pop()
        deadline.callback = callback
        return deadline

    def spare(self, deadline: Deadline) -> None:
        """The stream of this deadline is over."""
        if len(self._spare) < MAX_SPARE:
            deadline.at = NEVER
            deadline.callback = None
            self._spare.append(deadline)
        else:
            deadline.close()

    @abstractmethod
    def new_stream(self, stream_id: int) -> H2StreamState:
        """A stream for a request."""

    def take_request(self, stream_id: int, fields: FieldList, *, ends_stream: bool) -> None:
        if stream_id > self._last_served:
            self.reset_by_id(stream_id, ErrorCodes.REFUSED_STREAM)  # it may be asked elsewhere
            return
        if len(self.streams) >= MAX_STREAMS:
            self.refuse(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        stream = self.new_stream(stream_id)
        self._machine.open_request(stream)
        self.deadline.at = NEVER
        self._awaits_head = False  # a head that begins behind this one has a time of its own
        stream.take_request(fields, ends_stream=ends_stream)

    def forget(self, stream: H2StreamState) -> bool:
        if not super().forget(stream):
            return False
        if not self.streams and not self.is_lost:
            if self._last_served != LAST_STREAM:
                self.close()
            elif not self._awaits_head:
                self.deadline.after(self.idle_s)
        return True

    def gave_up(self) -> None:
        """The client has cut an exchange, and the backend's stream, if it has one, is reset with it. Raises Flood.

        A backend ends a connection on which too many streams are reset, and all clients whose requests are there lose
        them (CVE-2023-44487): who cuts more than GIVEN_UP, and most of all that it asks for, goes before that.
        """
        self._given_up += 1
        most = GIVEN_UP + GIVEN_UP_PER_SECOND * (self.wheel.now - self._begun_at)
        if self._given_up > most and 2 * self._given_up > (self.last_begun + 1) // 2:
            raise Flood("too many requests that were given up")

    # --- the end ---------------------------------------------------------------------------------------------------
    def leave(self, *, gently: bool) -> None:
        """Take no more streams, and end behind those that run. `gently`: streams that the client began before it can
        have read it are served, too (RFC 9113 section 6.8).
        """
        if self.is_lost or self._last_served != LAST_STREAM:
            return
        if gently and self._final_goaway is None:
            self.ping()  # first: to some clients (Python's h2) everything behind a GOAWAY is an error
            self.go_away(LAST_STREAM)
            self._final_goaway = Deadline(self.wheel, self._leave_now)
            self._final_goaway.after(GRACE_S)
        elif not gently:
            self._leave_now()

    def ping_answered(self) -> None:
        """The client has read that we leave, by what came right behind: what it began before is here."""
        if self._final_goaway is not None:
            self._leave_now()

    def _leave_now(self) -> None:
        if self.is_lost or self._last_served != LAST_STREAM:
            return
        self._last_served = self.last_begun
        self.go_away(self._last_served)
        if not self.streams:
            self.close()

    def peer_goes_away(self, last_stream: int) -> None:
        """The client begins nothing more: it ends when its streams have."""
        if self._last_served == LAST_STREAM:
            self._last_served = self.last_begun
            if not self.streams:
                self.close(lingers=True)  # a PING may be under way

    def _deadline_passed(self) -> None:
        if self.is_lost:
            return
        if self._awaits_head:
            self.break_off(ErrorCodes.ENHANCE_YOUR_CALM, "a head took too long")
        elif not self.streams:
            self.leave(gently=False)

    def __repr__(self) -> str:
        return f"DownstreamHttp2({self.client}, {len(self.streams)} streams)"
