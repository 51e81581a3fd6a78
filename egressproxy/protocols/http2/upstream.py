"""Http2Upstream: an HTTP/2 connection to a backend, which takes exchanges, is leaving (nothing begins), or is lost.
Streams that a GOAWAY does not spare, or that were refused unseen, may be asked elsewhere. Sources: RFC 9113 sections
5.1.1, 6.5, 6.7 and 6.8.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, ClassVar, Final

from h2.errors import ErrorCodes

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.net.driver import Driver
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_failures import TLS_EXPECTATION, tls_fault
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.connection import Http2Connection
from egressproxy.protocols.http2.frames import LocalProtocolError, RemoteProtocolError
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.settings import MAX_STREAMS, STREAM_WINDOW
from egressproxy.protocols.http2.stream_state import H2StreamState

#: While a stream waits and nothing has come for so long, the backend is asked whether it is there; and again after the
#: second time. Servers of gRPC take more than two pings in five minutes without data for a flood.
SILENCE_S: Final = 60.0
PING_AGAIN_S: Final = 330.0
#: A connection on which streams were given up after so long in all, and no frame came meanwhile, gets no other.
DOUBT_S: Final = 1.0
#: How long it may take to answer that.
PING_ANSWER_S: Final = 20.0
#: No stream begins behind this one: identifiers are 31 bits (RFC 9113 section 5.1.1).
LAST_STREAM: Final = 2**31 - 1 - 4 * MAX_STREAMS
WEBSOCKET: Final = b"websocket"
CLOSED_TEXT: Final = "the upstream closed its connection"


class Http2Upstream(Http2Connection):
    """A connection to a backend. Its owner takes places on it (UpstreamStream), and is told when there may be more."""

    __slots__ = (
        "_awake", "_has_settings", "_in_vain_s", "_last_frame_before", "_loss", "_max_requests", "_pinged_at",
        "_settled", "_why", "active", "address", "age", "begins_nothing", "deadline", "idle_s", "is_leaving",
        "is_secure", "on_free", "on_http_1", "on_lost", "on_room", "served",
    )  # fmt: skip

    #: The windows of all streams together: a slow reader of one stream keeps no other stream from reading.
    window: ClassVar[int] = MAX_STREAMS * STREAM_WINDOW

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
        self.on_room: Callable[[], None] | None = None
        self.on_free: Callable[[Any], None] | None = None  # a place was given back
        self.on_http_1: Callable[[], None] | None = None  # the upstream wants HTTP/1.1
        self.on_lost: Callable[[Http2Upstream], None] | None = None
        self.deadline = Deadline(wheel, self._look)  # idle, or silent
        self.age = Deadline(wheel, self.retire)
        self._max_requests = max_requests
        self._has_settings = False
        self._last_frame_before = self._in_vain_s = 0.0
        self._settled: asyncio.Future[None] | None = None
        self._pinged_at = 0.0  # 0: it was never asked
        self._awake: list[Driver] = []
        self._loss: Exception | None = None
        self._why = ""

    # --- for the owner ---------------------------------------------------------------------------------------------
    @property
    def room(self) -> int:
        """How many exchanges may begin now. One, until the upstream has announced how many it takes."""
        if self.is_leaving:
            return 0
        return self.most - self.active

    @property
    def is_new(self) -> bool:
        """The upstream has not announced yet how many streams it takes."""
        return not (self._has_settings or self.is_leaving)

    @property
    def most(self) -> int:
        """Exchanges at a time: what the upstream takes, and not more than MAX_STREAMS."""
        if not self._has_settings:
            return 1
        return min(MAX_STREAMS, self._machine.peer.max_streams)

    def take_place(self) -> bool:
        """Count an exchange on this connection, which has room. Returns whether there were others before."""
        was_reused = self.served > 0
        self.active += 1
        self.served += 1
        if self.active == 1:
            self.deadline.clear()
        if self.served == self._max_requests:
            self.is_leaving = True
        return was_reused

    def take_place_back(self, stream: H2StreamState) -> None:
        """The exchange is over."""
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

    def close(self, *, lingers: bool = False) -> None:
        """Say goodbye, send what is unsent, then close. A backend reads on, or not: we do not linger for it."""
        self.is_leaving = self.begins_nothing = True
        if not (self.is_lost or self._why):
            self.go_away(0)
        super().close()

    # --- for streams -----------------------------------------------------------------------------------------------
    def begin_stream(self, stream: H2StreamState, code: bytes, *, is_last: bool) -> UpstreamFault | None:
        """Send the head of a new stream, in HPACK. Gives a fault where that cannot be."""
        if self.is_lost:
            return unseen(CLOSED_TEXT)
        try:
            self.send_request_headers(stream, code, is_last=is_last)
        except LocalProtocolError:  # it takes fewer by now, or the identifiers are used up
            return unseen("the upstream takes no more streams")
        if stream.stream_id >= LAST_STREAM:
            self.is_leaving = True
        self.deadline.set(min(self.deadline.at, self.wheel.now + SILENCE_S))
        return None

    def upgrade_fault(self, protocol: bytes) -> UpstreamFault | None:
        """Why a stream of this connection cannot become a tunnel for this protocol (RFC 8441); None: it can."""
        if protocol.lower() == WEBSOCKET and self._machine.peer.enables_connect_protocol:
            return None
        return UpstreamFault(Reason.BAD_RESPONSE, "the upstream speaks HTTP/2 alone, and does not take this upgrade")

    async def settings(self) -> None:
        """Wait until the upstream has announced what it takes, or is gone."""
        while self.is_new:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)

    def wake_later(self, driver: Driver) -> None:
        """Resume this exchange when all that has come is taken."""
        self._awake.append(driver)

    def given_up(self, begun_at: float) -> None:
        """A stream without a whole answer, begun at this time of the wheel, is given up. Such attempts may be short:
        what they have waited adds up until a frame comes.
        """
        if self._last_frame_before != self.last_frame_at:
            self._last_frame_before, self._in_vain_s = self.last_frame_at, 0.0
        self._in_vain_s += self.wheel.now - max(self.last_frame_at, begun_at)
        if self._in_vain_s >= DOUBT_S:
            self.retire()  # nobody may be there any more

    def http_1_is_required(self) -> None:
        """The upstream does not serve a request over HTTP/2, as some that ask for a client's certificate late."""
        if self.on_http_1 is not None:
            self.on_http_1()
        self.retire()

    def loss_fault(self) -> UpstreamFault:
        """Why streams end with the connection, those that the upstream may have seen."""
        if self._why:
            message = f"the upstream's connection failed: {self._why}"
            return UpstreamFault(Reason.BAD_RESPONSE, message, retry=RetrySafety.IF_IDEMPOTENT)
        error = self._loss
        if isinstance(error, ssl.SSLError):
            return tls_fault(error, expected=self.transport.get_extra_info(TLS_EXPECTATION))
        if not self.last_frame_at and isinstance(self.transport, TlsStream):
            message = "the upstream ended the TLS connection before its first word"
            detail = type(error).__name__
            return UpstreamFault(Reason.TLS_PROTOCOL, message, detail=detail, retry=RetrySafety.IF_IDEMPOTENT)
        return UpstreamFault(Reason.UPSTREAM_CLOSED, CLOSED_TEXT, retry=RetrySafety.IF_REUSED)

    # --- asyncio's callbacks ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = self.peer_name()

    def _take_frames(self) -> None:
        """Who waits for them goes on when all are taken, so that a short response is seen whole."""
        super()._take_frames()
        self._wake()

    def _wake(self) -> None:
        while self._awake:
            awake, self._awake = self._awake, []
            for driver in awake:
                driver.resume()

    def connection_lost(self, error: Exception | None) -> None:
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
    def take_request(self, stream_id: int, fields: FieldList, *, ends_stream: bool) -> None:
        raise RemoteProtocolError("a stream that the upstream has begun")

    def settings_changed(self) -> None:
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
            if stream.stream_id > last_stream:
                self.forget(stream)
                stream.was_not_seen()
        self.retire()

    def was_broken_off(self, code: ErrorCodes, why: str) -> None:
        super().was_broken_off(code, why)
        self._why = self._why or why

    # --- time ------------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """The deadline has passed: nobody has used it for long, or no frame has come for long."""
        if not self.active:
            self.close()
            return
        now = self.wheel.now
        if self._pinged_at > self.last_frame_at:
            if now - self._pinged_at >= PING_ANSWER_S:
                self._why = "it does not answer"
                self.abort()
                self._end_all()
                return
            self.deadline.set(self._pinged_at + PING_ANSWER_S)
            return
        at = max(self.last_frame_at + SILENCE_S, self._pinged_at + PING_AGAIN_S if self._pinged_at else 0.0)
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
