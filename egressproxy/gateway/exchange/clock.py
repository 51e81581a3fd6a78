"""ExchangeClock: how long the exchange in progress may take, and how long nothing may move in it.

One deadline serves all time limits. When it has passed, `ExchangeClock.look` says which limit was reached, if any.
"""

from __future__ import annotations

import asyncio
import random
from time import monotonic
from typing import Final, Protocol

from egressproxy.errors import BadRequest, GatewayError, GatewayFault, Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import HeldConnection, UpstreamCaller
from egressproxy.gateway.exchange.grpc_call import GrpcCall
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.ir.policy import LimitsIR
from egressproxy.model.fields import EVENT_STREAM, media_type
from egressproxy.net.timers import NEVER, Deadline, TimerWheel

#: How long a backend may think about an answer where no timeout says it: what the SDKs of AI providers wait.
ANSWER_S: Final = 600.0
#: Of the bases of a protocol's class, which has the slots for their attributes.
SLOTS_OF_PROTOCOL: Final[tuple[str, ...]] = ()


def no_room(message: str, remedy: str = "") -> GatewayFault:
    """The error for a body that has to be held, and cannot be."""
    after_s = random.randint(1, 3)  # noqa: S311 (no secret)
    return GatewayFault(
        Reason.OVERLOADED, message, status=503, remedy=remedy, retry_after_s=after_s, close=True
    )  # fmt: skip


def too_much_held(limits: LimitsIR) -> GatewayFault:
    """The error for a body for which no room has come."""
    return no_room(
        f"the gateway holds as much of this client's bodies as it may ({limits.buffered_bytes_per_client} bytes, and "
        f"{limits.buffered_bytes_per_connection} of a connection), and none of them has ended",
        "raise limits.bufferedBytesPerClient and bufferedBytesPerConnection, or find the requests that take long",
    )


class TimedClient(UpstreamCaller, Protocol):
    """Base of Client: what its clock looks at."""

    __slots__ = SLOTS_OF_PROTOCOL

    # of the protocol
    deadline: Deadline
    has_ended: bool
    bytes_in: int
    bytes_out: int
    wheel: TimerWheel
    # of the gateway
    call: GrpcCall | None
    own_clock: ExchangeClock | None  # used for one exchange after the other
    pipeline: Pipeline
    state: OpenConnections

    @property
    def awaits_bytes(self) -> bool:
        """Whether the exchange waits for what the client says behind its request: see `Client.listen`."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of the response that the client has not taken yet."""


class ExchangeClock:
    """The times of one exchange, in monotonic seconds: its end, the end of the attempt under way (NEVER: none), and for
    how long nothing may move (`idle_limit_s`; 0: as long as it likes). `seen_bytes` had moved at the last look; -1: all
    that has moved since counts. The clock has no reference to its client.
    """

    __slots__ = ("attempt_ends_at", "exchange_ends_at", "idle_limit_s", "seen_bytes")

    def __init__(self, exchange_ends_at: float, idle_limit_s: float, seen_bytes: int) -> None:
        self.exchange_ends_at = exchange_ends_at
        self.attempt_ends_at = NEVER
        self.idle_limit_s = idle_limit_s
        self.seen_bytes = seen_bytes

    def start_attempt(self, client: TimedClient, seconds: float) -> None:
        """Gateway API, HTTPRouteTimeouts.backendRequest: one request to a backend, until its answer is whole."""
        at = self.attempt_ends_at = client.wheel.now + seconds
        if at < client.deadline.at:
            client.deadline.set(at)

    def end_attempt(self, client: TimedClient) -> None:
        """Another attempt may follow: until then the exchange's own time holds, and nobody is expected to move."""
        self.attempt_ends_at = NEVER
        self._begin_anew(client)

    def leave_to_attempts(self, client: TimedClient) -> None:
        """Several attempts are under way, with a clock each: here the time of the whole request goes on alone."""
        self.attempt_ends_at = NEVER
        if not client.has_ended:  # else it may have left
            self.idle_limit_s = 0.0
        self._begin_anew(client)

    def take_back(self, client: TimedClient, attempt_ends_at: float, idle_s: float) -> None:
        """One of them goes on, until `attempt_ends_at` (monotonic seconds) at most."""
        self.attempt_ends_at = attempt_ends_at
        self.idle_limit_s = idle_s
        self._begin_anew(client)

    def look(self, client: TimedClient) -> GatewayError | None:
        """The deadline has passed: the fault that ends the exchange, or None (and a new deadline) if it goes on."""
        now, hold = client.wheel.now, client.pipeline.held_bytes
        if hold is not None and hold.is_waiting:
            if now >= min(self.exchange_ends_at, self.attempt_ends_at, hold.waits_since + ANSWER_S):
                return too_much_held(client.state.port.limits)
            self._begin_anew(client)
            return None
        if client.awaits_bytes:
            return BadRequest(Reason.CLIENT_TIMEOUT, "nothing came in the tunnel", status=408)
        if now >= self.exchange_ends_at:
            return late_request()
        if now >= self.attempt_ends_at:
            return late_attempt(client.pipeline)
        moved = client.bytes_in + client.bytes_out - client.unsent_bytes
        is_still = self.idle_limit_s > 0 and moved == self.seen_bytes
        if is_still and not (_waits_for_answer(client) or _may_be_quiet(client) or waits_for_people(client)):
            return UpstreamFault(Reason.RESPONSE_TIMEOUT, "nothing has moved for too long", status=504)
        self._begin_anew(client)
        self.seen_bytes = moved
        return None

    def _begin_anew(self, client: TimedClient) -> None:
        self.seen_bytes = -1
        at = client.wheel.now + self.idle_limit_s if self.idle_limit_s > 0 else NEVER
        client.deadline.set(min(at, self.exchange_ends_at, self.attempt_ends_at))


#: The clock between two exchanges, and until the request is admitted: it has no end.
STOPPED: Final = ExchangeClock(NEVER, 0.0, -1)


def started_clock(client: TimedClient, request_s: float, idle_s: float) -> ExchangeClock:
    """The clock of the client's exchange, which begins. One deadline serves it: the earliest of the exchange's time,
    its attempt's, and the next look at whether it moves. Raises GatewayError for a call whose own deadline has passed.
    """
    if client.call is not None:
        request_s = client.call.begin(request_s)
    now = client.wheel.now
    ends_at = at = now + request_s if request_s > 0 else NEVER
    if 0 < idle_s < at - now:
        at = now + idle_s
    client.deadline.set(at)
    moved, clock = client.bytes_in + client.bytes_out, client.own_clock
    if clock is None:
        clock = client.own_clock = ExchangeClock(ends_at, idle_s, moved)
    else:
        clock.exchange_ends_at, clock.attempt_ends_at = ends_at, NEVER
        clock.idle_limit_s, clock.seen_bytes = idle_s, moved
    return clock


def late_request() -> UpstreamFault:
    """The time for the whole request is over."""
    return UpstreamFault(Reason.REQUEST_TIMEOUT, "the request took too long", status=504)


def late_attempt(held: HeldConnection) -> UpstreamFault:
    """The time for the attempt under way is over, which has this connection."""
    retry = RetrySafety.SAFE if held.upstream is None else RetrySafety.IF_IDEMPOTENT
    return UpstreamFault(Reason.RESPONSE_TIMEOUT, "the backend took too long", status=504, retry=retry)


def _waits_for_answer(client: TimedClient) -> bool:
    """Whether the backend has the whole request and may still take its time: `request` and `backendRequest` bound that,
    and ANSWER_S where neither is set, since a client whose network is gone cannot be seen to have left. `idle` is for
    bodies that stall, and for clients that have ended their side, and so may have left.
    """
    upstream = client.pipeline.upstream
    if client.has_ended:
        return False
    if upstream is None or not upstream.has_sent_all or upstream.head is not None or upstream.is_write_blocked:
        return False
    return client.wheel.now - upstream.last_read < ANSWER_S


def _may_be_quiet(client: TimedClient) -> bool:
    """Whether an MCP server has begun events, which may rest for `tunnelIdle` while the client reads."""
    pipeline = client.pipeline
    upstream, backend, route = pipeline.upstream, pipeline.backend, pipeline.route
    if upstream is None or backend is None or route is None or client.has_ended or client.unsent_bytes:
        return False
    if upstream.head is None or not (backend.speaks_mcp and media_type(upstream.head.fields) == EVENT_STREAM):
        return False
    return route.tunnel_idle_s <= 0 or client.wheel.now - upstream.last_read < route.tunnel_idle_s


def waits_for_people(client: TimedClient) -> bool:
    """Whether the request waits for approval, which has a time limit of its own."""
    exchange = client.pipeline.exchange
    return exchange is not None and exchange.is_held_for_people and not client.has_ended


class AttemptTimer:
    """Ends an attempt that is late: after a `backendRequest` below a second (the wheel of timers may be late by all of
    it), and after `first_byte_s` without a first byte. While the rest of the body has to come from the client, nobody
    waits for that.
    """

    __slots__ = ("_body", "_client", "_first_byte_s", "_handle", "_rest")

    def __init__(
        self, client: TimedClient, backend: RouteBackend, first_byte_s: float, body: ReplayableBody | None
    ) -> None:
        self._client = client
        self._body = body
        self._first_byte_s = first_byte_s
        self._handle: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        if backend.is_brief:
            self._rest = loop.call_later(backend.backend_request_s, self._end)
        if first_byte_s:
            self._handle = loop.call_later(first_byte_s, self._look)

    def cancel(self) -> None:
        for handle in (self._handle, self._rest):
            if handle is not None:
                handle.cancel()

    def _look(self) -> None:
        body, upstream = self._body, self._client.pipeline.upstream
        left_s = 0.0
        if body is not None and upstream is not None:
            if body.is_flowing and not upstream.is_write_blocked:
                left_s = self._first_byte_s
            elif not body.is_flowing:
                left_s = body.whole_at + self._first_byte_s - monotonic()
        if left_s > 0:
            self._handle = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self._end()

    def _end(self) -> None:
        self._client.driver.throw(late_attempt(self._client.pipeline))
