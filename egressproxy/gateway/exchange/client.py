"""Client: what the connection manager serves, whatever version of HTTP it speaks: a connection, or one of its streams.

The protocol's own class says how things are said; here is what the gateway knows beside it: the listener, and what the
exchange in progress holds and sends. How long it may take is in `clock`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar, Protocol

from egressproxy.errors import GatewayError, LimitExceeded, Reason
from egressproxy.gateway.backends.replayable_body import REPLAY_LIMIT
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.exchange.clock import SLOTS_OF_PROTOCOL, ExchangeClock, TimedClient, no_room, too_much_held
from egressproxy.gateway.exchange.error_responses import answer_for, error_of_call
from egressproxy.gateway.exchange.grpc_call import answer_to_call
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel, Redirection
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.identity.checked_credentials import Verdict
from egressproxy.gateway.open_connections import Connection, OpenConnections
from egressproxy.gateway.products import PRODUCTS
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.flow_control import BodySink, Reads
from egressproxy.net.held_bytes import HeldBytes
from egressproxy.protocols.grpc.statuses import grpc_trailers
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.request_connection import RequestHandler
from egressproxy.telemetry.series import BUCKETS_S, Series


class Client(TimedClient, Protocol):
    """A client of one listener, which is looked up in the current snapshot for every request.

    `idle_s` is how long the connection may wait for its next request. The attributes are those of the protocol's class,
    whose `__init__` sets them: if they were set here, compiled code would look up each of them by its name.
    """

    __slots__ = SLOTS_OF_PROTOCOL

    may_flow: ClassVar[bool] = True
    # of the protocol
    body_limit: int
    body_size: int
    client: str
    is_write_blocked: bool
    idle_s: float
    request_headers_s: float
    transport: asyncio.Transport
    # of the gateway
    clock: ExchangeClock  # STOPPED: no exchange is admitted
    identity: CallerIdentity  # of the connection: an exchange may know better
    identity_until: float  # seconds since 1970
    server_name: str  # what the client's ClientHello named, on a listener that terminates TLS
    state: OpenConnections
    tunnel: OpenedTunnel | Redirection | None  # that the requests come in
    verdict: Verdict | None  # who the client was of the latest request

    def remember(self, verdict: Verdict) -> None:
        """Keep who the client is for its next request, if that shows the same credential."""
        self.verdict = verdict

    @property
    def listener(self) -> ActiveListener:
        """The listener that accepted the connection, in the current snapshot."""
        return self.state.port.first

    @property
    def counted(self) -> Connection:
        """What counts with the listener for this connection."""
        return self

    def passable_of_request(self, trailers: bytes) -> bytes:
        """The trailers of a request that go on: none where a filter looks at the head and not at them, since some
        origins read them as fields; and none that show who a client is.
        """
        route, backend = self.pipeline.route, self.pipeline.backend
        if route is not None and route.chain.stops_request_trailers:
            return b""
        if backend is not None and backend.chain.stops_backend_trailers:
            return b""
        without_credentials = self.state.port.without_credentials
        return trailers if without_credentials is None else without_credentials(trailers)

    def passable_trailers(self, trailers: bytes) -> bytes:
        """The trailers of an answer that go on: none where a filter looks at its head and not at them."""
        backend = self.pipeline.backend
        if backend is None or (backend.chain.backend_response is None and backend.chain.response_headers is None):
            return trailers
        if backend.chain.lets_response_trailers and self.pipeline.response_filter is not None:
            return trailers  # filters have let them pass
        return grpc_trailers(trailers, with_text=backend.chain.ignores_trailers)  # without a status no call ends

    @property
    def handler_is_pressed(self) -> bool:
        """Whether the process is short of memory (it does not drain): nothing is begun that may be left undone."""
        handler = self.request_handler
        return bool(getattr(handler, "ends_connections", False) and not getattr(handler, "is_draining", False))

    @property
    def handler_has_no_memory(self) -> bool:
        """Whether the process has no memory left: no body that is held may grow."""
        return bool(getattr(self.request_handler, "has_no_memory", False))

    def may_keep(self, size: int) -> bool:
        """As of BodyClient."""
        hold = self.pipeline.held_bytes
        if hold is None:
            hold = self.pipeline.held_bytes = self.state.new_hold(self.client, self.held_of_connection)
        hold.add(size)
        return hold.has_room() and not self.handler_has_no_memory

    def note_progress(self) -> None:
        self.clock.seen_bytes = -1

    def hold_bytes(self, size: int, source: Reads | None = None, *, waits: bool = True) -> bool:
        """As of BodyClient. Ends the exchange where the process has no memory left (503), where waiting for room is of
        no use (503), and where its request is longer than `limits.maxBufferedBytes` (413).
        """
        state, hold = self.state, self.pipeline.held_bytes
        if hold is None:
            if size <= 0:
                return True
            hold = self.pipeline.held_bytes = state.new_hold(self.client, self.held_of_connection)
        hold.add(size)
        if source is not None:
            hold.of_answer += size
        if size <= 0:
            return True
        longest = state.port.limits.max_buffered_bytes
        of_this = hold.size - hold.of_answer if source is None else hold.of_answer
        if of_this > REPLAY_LIMIT and self.handler_has_no_memory:
            # requests that were admitted before must not take the memory that new ones are refused
            self.driver.throw(no_room("the gateway has no memory left for a body that it has to hold"))
        elif source is None and 0 < longest < self.body_size:
            message = f"the request body is longer than the {longest} bytes that are held (limits.maxBufferedBytes)"
            self.driver.throw(LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True))
        elif hold.has_room():
            return True
        elif hold.is_beyond:
            self.driver.throw(too_much_held(state.port.limits))
        elif waits:
            if source is None:
                self.hold_back()
            else:
                source.pause_reading()
            if hold.wait(self.go_on if source is None else source.resume_reading, self.wheel.now):
                hold.is_of_request = source is None
                state.clients.bodies_waited += 1
        return False

    @property
    def held_of_connection(self) -> HeldBytes | None:
        """What counts beside this exchange on a connection that has several."""
        return None

    @property
    def is_paused_for_room(self) -> bool:
        """Whether `hold_back` has paused reading, which only `go_on` may resume."""
        return False

    def hold_back(self) -> None:
        """Take no more of the request's body than is on its way, until `go_on`."""
        self.pause_reading()

    def go_on(self) -> None:
        self.resume_reading()

    def serving(self) -> tuple[Pipeline, ...]:
        """What is held by the exchange in progress."""
        return (self.pipeline,) if self.driver.is_busy else ()

    # --- the form of an answer -----------------------------------------------------------------------------------
    def error_answer(self, error: GatewayError, exchange: Exchange) -> LocalResponse:
        """What the client is told of an error."""
        if self.call is not None:
            return error_of_call(error, exchange.request_id)
        return answer_for(error, exchange.request_id, PRODUCTS.error_form(exchange, self.backends))

    @property
    def backends(self) -> Sequence[RouteBackend]:
        """Those of the route of the exchange in progress; none where it has none yet."""
        route = self.pipeline.route
        return route.backends if route is not None else ()

    def own_answer(self, answer: LocalResponse, exchange: Exchange) -> LocalResponse:
        """A response of our own, or of a filter, as this client understands it."""
        return answer if self.call is None else answer_to_call(exchange, answer)

    def break_off(self, error: GatewayError) -> None:
        """An error has come behind the head of the response."""
        self.abort()

    # --- UpstreamCaller ------------------------------------------------------------------------------------------
    def start_attempt(self) -> None:
        seconds = self.pipeline.backend.clock_s  # type: ignore[union-attr]  # it is chosen before
        if seconds > 0:
            self.clock.start_attempt(self, seconds)

    def count_attempt(self, result: str) -> None:
        """An attempt has ended without an answer; `result` is the reason of its failure."""
        self.pipeline.backend.series.attempt(result)  # type: ignore[union-attr]  # it is chosen before

    def count_answer(self, exchange: Exchange, seconds: float) -> None:
        """The head of an answer is here, so many seconds after its attempt began."""
        series: Series = exchange.series
        try:  # as `answered` does: a call would cost every request more than all that is counted here
            series.answers[bisect_left(BUCKETS_S, seconds)] += 1
            series.answer_sum_s += seconds
        except IndexError:
            series.answered(seconds)

    def pass_interim(self, head: ResponseHead, exchange: Exchange) -> None:
        """Interim responses are passed on to 1.1 clients."""
        backend, cluster = self.pipeline.backend, self.pipeline.cluster
        assert backend is not None
        assert cluster is not None
        if exchange.request.http_1_0 or (head.status == 100 and not exchange.request.expect_continue):
            return
        if backend.chain.backend_response is None and backend.chain.response_headers is None:
            self.send_interim(head, cluster.network.pseudonym)
        elif head.status == 100:
            self.send_continue()  # without its fields, which no filter would have seen

    # --- what a protocol does --------------------------------------------------------------------------------------
    @property
    def is_lost(self) -> bool:
        """The client is gone."""

    @property
    def is_request_read(self) -> bool:
        """Whether the body of the current request has been read to its end."""

    @property
    def is_last(self) -> bool:
        """Whether nothing follows the current request: the client has ended its side."""

    @property
    def request_handler(self) -> RequestHandler:
        """Who is told of requests: the connection manager."""

    def unread(self) -> int:
        """Bytes that are here behind the current request."""

    @property
    def first_byte(self) -> bytes:
        """The first of the bytes that are `unread`; b"" if there is none."""

    def listen(self) -> None:
        """Resume the driver as soon as the client has said something behind its request, or its end."""

    def stop_listening(self) -> None:
        """Undo `listen`."""

    def pause_reading(self) -> None:
        """Nothing more comes of the request's body until `resume_reading`."""

    def resume_reading(self) -> None:
        """Go on where `pause_reading` has stopped."""

    def feed_from(self, feeder: Reads | None) -> None:
        """From now on this source fills us."""

    def send_request_body_to(self, sink: BodySink | None) -> None:
        """From now on the request's body goes there."""

    def take_request_body(self) -> bytes | None:
        """The whole body of the request, if all of it is known to be here."""
        return None

    def send_response(
        self, head: ResponseHead, request: RequestHead, pseudonym: bytes, body: bytes | None, *, close: bool
    ) -> None:
        """The final head of a response to `request`, and its body; None: that follows, by `send_body`."""

    def send_answer(self, answer: LocalResponse, *, close: bool, with_body: bool = True) -> None:
        """A whole response of our own."""

    def send_interim(self, head: ResponseHead, pseudonym: bytes) -> None:
        """An interim response, or a 101."""

    def send_continue(self) -> None:
        """Ask for the request's body (RFC 9110 section 10.1.1)."""

    def send_body(self, data: bytes) -> None:
        """One piece of the response's body, never empty."""

    def end_body(self, trailers: bytes) -> None:
        """The response is whole."""

    def accept_tunnel(self) -> None:
        """Answer a CONNECT: from now on what is said is the tunnel's (RFC 9110 section 9.3.6)."""

    def send(self, data: bytes) -> None:
        """Bytes of a tunnel."""

    def detach(self) -> bytes:
        """Give the transport away, to a tunnel. Returns the bytes that came behind the head."""

    def tunnel_ended(self) -> None:
        """The tunnel that was given the transport has ended, and the transport with it."""

    def continued(self) -> None:
        """What was detached is served on, or has ended: this one has no more to do with it."""

    def enter_tunnel(self, tunnel: OpenedTunnel, limits: HeadLimits) -> None:
        """Read requests of HTTP/1 inside this tunnel."""

    def finish(self, *, close: bool) -> None:
        """The exchange is over and its last byte said."""

    def abort(self) -> None:
        """Break off: what was sent is not a whole message, and must not look like one."""

    def close_if_idle(self) -> bool:
        """Close unless an exchange is being served. Returns whether it closes."""
