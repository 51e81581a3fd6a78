"""UnaryConnection: an HTTP/2 connection to a server, for calls of one message each way, many at a time.

Calls beyond what the server allows at once wait. Flow control holds in both directions, and what a server may send is
bounded. A GOAWAY lets the calls that it spares end; the others may be made again elsewhere, as may those that a server
has refused unseen (RFC 9113 sections 6.8 and 8.7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from egressproxy.errors import LimitExceeded, Reason, RetrySafety, UpstreamFault
from egressproxy.model.shares import FairQueue, most_of
from egressproxy.net.flow_control import FlowControl
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.http2.frames import GOAWAY, FrameSplitter, goaway_last_stream

__all__ = ["UnaryAnswer", "UnaryCall", "UnaryConnection"]

Headers = list[tuple[bytes, bytes]]

#: What a server may send: a head, and a message with its prefix.
MAX_HEAD_SIZE = 64 * 1024
MAX_MESSAGE_SIZE = 1024 * 1024 + 5
#: Calls of one connection at a time, whatever the server would take, and those that wait for their turn. One client has
#: three quarters of each.
MAX_CALLS = 100
MAX_WAITING = 4096
#: A connection on which a call was given up after this time, and nothing was heard meanwhile, gets no other.
SILENCE_S = 1.0
#: The last identifier that a client may use for a stream (RFC 9113 section 5.1.1).
LAST_STREAM = 2**31 - 1


class UnaryAnswer(NamedTuple):
    """What has come of a call. `trailers` are empty where the head was all."""

    head: Headers
    data: bytes
    trailers: Headers


@dataclass(slots=True, eq=False, repr=False)
class UnaryCall:
    """One call. `result` gives its answer, or raises UpstreamFault; cancelling it cancels the call."""

    headers: Headers
    unsent: memoryview
    client: str
    result: asyncio.Future[UnaryAnswer]
    stream: int = 0  # not begun
    begun_at: float = 0.0
    head: Headers = field(default_factory=list)
    trailers: Headers = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    size: int = 0

    def __repr__(self) -> str:
        return f"UnaryCall(stream {self.stream}, {len(self.unsent)} bytes unsent)"  # never the headers


class _Streams(H2Connection):
    """h2 remembers how the last 65,536 streams ended (8 MiB); what comes late is for one of the last few."""

    MAX_CLOSED_STREAMS = 256


class UnaryConnection(FlowControl):
    """States: taking calls; leaving (what has begun ends, and nothing new begins); lost."""

    __slots__ = (
        "_age", "_calls", "_deadline", "_frames", "_h2", "_heard_at", "_idle_s", "_max_calls", "_waiting", "_wheel",
        "is_leaving", "is_lost", "on_lost", "served",
    )  # fmt: skip

    def __init__(self, wheel: TimerWheel, idle_s: float, max_age_s: float = 0.0, max_calls: int = 0) -> None:
        """`idle_s` without a call, `max_age_s` and `max_calls` end it; 0: never."""
        super().__init__()
        config = H2Configuration(client_side=True, header_encoding=None)
        self._h2 = _Streams(config)
        self._h2.local_settings = Settings(
            client=True,
            initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_SIZE},
        )
        self._frames = FrameSplitter()
        self._idle_s = idle_s
        self._wheel = wheel
        self._heard_at = 0.0
        self._deadline = Deadline(wheel, self.close)  # how long it may be without a call
        self._age = Deadline(wheel, self.leave)  # how long calls may begin
        self._age.after(max_age_s)
        self._max_calls = max_calls
        self._calls: dict[int, UnaryCall] = {}
        self._waiting: FairQueue[UnaryCall] = FairQueue(MAX_WAITING, most_of(MAX_WAITING))
        self.on_lost: Callable[[UnaryConnection], None] | None = None
        self.is_leaving = False
        self.is_lost = False
        self.served = 0

    # --- for callers ---------------------------------------------------------------------------------------------
    @property
    def active(self) -> int:
        """How many calls are under way."""
        return len(self._calls)

    def call(self, headers: Headers, body: bytes, client: str) -> asyncio.Future[UnaryAnswer]:
        """Begin a call with this head and this body, or have it wait for its turn. The future gives the answer.

        `client` is for whom we call: clients take turns, and one of them has neither all calls nor all places.
        Raises LimitExceeded (503) if too many wait, UpstreamFault if the connection takes no more calls. The future
        raises UpstreamFault; with RetrySafety.SAFE the server has not looked at the call.
        """
        if self.is_leaving:
            raise UpstreamFault(Reason.UPSTREAM_CLOSED, "the connection is leaving", retry=RetrySafety.SAFE)
        call = UnaryCall(headers, memoryview(body), client, asyncio.get_running_loop().create_future())
        if not self._waiting.add(client, call):
            message = "too many calls are waiting for this server"
            raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        call.result.add_done_callback(lambda _result: self._is_given_up(call))
        self._deadline.clear()
        self._go_on()
        return call.result

    def leave(self) -> None:
        """Begin no more calls, and close when those under way have ended. Waiting ones fail, and may go elsewhere."""
        self._goes_away(LAST_STREAM, "the connection is leaving")
        self._rest()

    retire = leave

    def close(self) -> None:
        """Take no more calls, and close behind what was sent."""
        self.is_leaving = True
        if not self.is_lost:
            self.flush()
            self.transport.close()

    # --- asyncio's callbacks -------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open: send the preface (RFC 9113 section 3.4)."""
        super().connection_made(transport)
        self._h2.initiate_connection()
        self._write()
        self._rest()

    def data_received(self, data: bytes) -> None:
        """Take frames from the server, then begin and continue what they allow."""
        self._heard_at = self._wheel.now
        try:
            for kind, frame in self._frames.feed(data):
                if kind == GOAWAY:
                    self._goes_away(goaway_last_stream(frame))
                    continue
                for event in self._h2.receive_data(frame):
                    self._take(event)
        except (H2Error, ValueError) as error:
            self._break(f"the server broke the rules of HTTP/2 ({type(error).__name__})")
            return
        self._go_on()
        self._rest()

    def connection_lost(self, error: Exception | None) -> None:
        """Every call under way fails."""
        if self.is_lost:
            return
        self.is_lost = self.is_leaving = True
        self._deadline.close()
        self._age.close()
        for call in self._waiting:  # they were never sent; of the others nobody knows
            self._fail(call, "the server closed its connection", RetrySafety.SAFE)
        for call in self._calls.values():
            self._fail(call, "the server closed its connection", RetrySafety.IF_REUSED)
        self._waiting.clear()
        self._calls.clear()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost(self)

    def resume_writing(self) -> None:
        """The transport has drained: what waits goes out."""
        super().resume_writing()
        if not self.is_lost:
            self._go_on()

    # --- what comes ------------------------------------------------------------------------------------------------
    def _take(self, event: Event) -> None:
        if isinstance(event, WindowUpdated | RemoteSettingsChanged):
            return  # `_go_on` looks at the windows
        call = self._calls.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
            if call is not None:
                call.size += len(event.data or b"")
                call.data.append(event.data or b"")
                if call.size > MAX_MESSAGE_SIZE:
                    self._reset(call)
                    self._fail(call, f"the answer is longer than {MAX_MESSAGE_SIZE} bytes")
        elif call is None:
            return  # given up already
        elif isinstance(event, ResponseReceived):
            call.head = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
        elif isinstance(event, TrailersReceived):
            call.trailers = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
        elif isinstance(event, StreamEnded):
            self._end(call)
            if not call.result.done():
                call.result.set_result(UnaryAnswer(call.head, b"".join(call.data), call.trailers))
            if call.unsent:
                self._reset(call)  # it has answered before it has heard us to the end
        elif isinstance(event, StreamReset):
            self._end(call)
            retry = RetrySafety.SAFE if event.error_code == ErrorCodes.REFUSED_STREAM else RetrySafety.NEVER
            self._fail(call, f"the server reset the call (code {int(event.error_code or 0)})", retry)

    def _goes_away(self, last_stream: int, why: str = "the server goes away") -> None:
        self.is_leaving = True
        for call in [*self._waiting, *(call for call in self._calls.values() if call.stream > last_stream)]:
            self._end(call)
            self._fail(call, why, RetrySafety.SAFE)
        self._waiting.clear()

    # --- what goes -------------------------------------------------------------------------------------------------
    def _go_on(self) -> None:
        """Begin calls that wait, and send what the windows allow."""
        try:
            while self._waiting and not self.is_leaving and len(self._calls) < self._most():
                call = self._waiting.next(self._may_begin)
                if call is None:
                    break
                call.stream = self._h2.get_next_available_stream_id()
                self._calls[call.stream] = call
                call.begun_at = self._wheel.now
                self.served += 1
                self._h2.send_headers(call.stream, call.headers)
                if call.stream == LAST_STREAM or self.served == self._max_calls:
                    self._goes_away(LAST_STREAM, "the connection is leaving")
            for call in self._calls.values():
                if call.unsent and not self.is_write_blocked:
                    self._send_body(call)
        except H2Error as error:
            self._break(f"HTTP/2 does not go on ({type(error).__name__})")
            return
        self._write()

    def _most(self) -> int:
        return min(MAX_CALLS, self._h2.remote_settings.max_concurrent_streams)

    def _may_begin(self, client: str) -> bool:
        """Whether this client has less than its share of the calls under way."""
        share = most_of(self._most())
        if len(self._calls) < share:
            return True
        return sum(call.client == client for call in self._calls.values()) < share

    def _send_body(self, call: UnaryCall) -> None:
        while call.unsent:
            size = min(
                len(call.unsent), self._h2.local_flow_control_window(call.stream), self._h2.max_outbound_frame_size
            )
            if size <= 0:
                return
            piece, call.unsent = call.unsent[:size], call.unsent[size:]
            self._h2.send_data(call.stream, bytes(piece), end_stream=not call.unsent)

    def _write(self) -> None:
        data = self._h2.data_to_send()
        if data and not self.is_lost:
            self.send(data)

    # --- how calls end -----------------------------------------------------------------------------------------------
    def _is_given_up(self, call: UnaryCall) -> None:
        """The result is there; if it was cancelled, the server may stop."""
        if not call.result.cancelled() or self.is_lost:
            return
        if not self._waiting.remove(call.client, call) and call.stream in self._calls:
            self._reset(call)
            if self._heard_at < call.begun_at <= self._wheel.now - SILENCE_S:
                self.is_leaving = True  # nobody may be there any more: the next call finds out on a new connection
            self._go_on()
        self._rest()

    def _reset(self, call: UnaryCall) -> None:
        self._end(call)
        try:
            self._h2.reset_stream(call.stream, ErrorCodes.CANCEL)
        except H2Error:
            return  # it is over
        self._write()

    def _end(self, call: UnaryCall) -> None:
        self._calls.pop(call.stream, None)

    def _fail(self, call: UnaryCall, message: str, retry: RetrySafety = RetrySafety.NEVER) -> None:
        if not call.result.done():
            call.result.set_exception(UpstreamFault(Reason.UPSTREAM_RESET, message, retry=retry))

    def _break(self, message: str) -> None:
        self.is_leaving = True
        for call in self._calls.values():
            self._fail(call, message)
        self._calls.clear()
        if not self.is_lost:
            self.forget_unflushed()
            self.transport.abort()

    def _rest(self) -> None:
        """Without a call it waits for the next one, or goes."""
        if self._calls or self._waiting or self.is_lost:
            return
        if self.is_leaving:
            self.close()
        else:
            self._deadline.after(self._idle_s)

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "leaving" if self.is_leaving else "open"
        return f"UnaryConnection({self.peer_name()}, {state}, {len(self._calls)} calls, {len(self._waiting)} wait)"
