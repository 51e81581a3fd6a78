"""ClientConnection: a downstream connection and what the gateway knows of it: listener, exchange, clock."""

from __future__ import annotations

from egressproxy.errors import BadRequest, GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.upstream_call import UpstreamCaller
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.exchange.held_resources import HeldResources
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import CHUNKED, ResponseHead
from egressproxy.net.flow_control import BodySink
from egressproxy.net.timers import NEVER, TimerWheel
from egressproxy.protocols.http1.downstream import DownstreamConnection, RequestHandler
from egressproxy.protocols.http1.upstream import UpstreamConnection

__all__ = ["ANSWER_S", "ClientConnection"]

#: How long a backend may think about an answer where no timeout says it: what the SDKs of AI providers wait.
ANSWER_S = 600.0


class ClientConnection(DownstreamConnection, UpstreamCaller):
    """Asks its listener of the current snapshot anew for every request: a reload holds for the next one.

    `state` is not that of the connection (`_state` is): it is the open connections of its port, and leads to the port.
    `idle_s` is how long the connection may wait for its next request, `idle_limit_s` how long nothing may move in the
    exchange under way; the first is the listener's, the second the route's.
    """

    __slots__ = (
        "attempt_ends_at",
        "exchange_ends_at",
        "idle_limit_s",
        "resources",
        "seen_octets",
        "server_name",
        "state",
        "tunnel_authority",
    )

    resources: HeldResources

    def __init__(self, handler: RequestHandler, wheel: TimerWheel, state: OpenConnections) -> None:
        port, times = state.port, state.port.first.timeouts
        super().__init__(handler, wheel, port.head_limits, times.request_headers_s, times.idle_s)
        self.state = state
        self.server_name = ""  # what the client's ClientHello named, on a listener that terminates TLS
        self.resources = HeldResources()
        self.exchange_ends_at = NEVER
        self.attempt_ends_at = NEVER
        self.idle_limit_s = 0.0
        self.seen_octets = 0
        self.tunnel_authority: Authority | None = None

    @property
    def listener(self) -> ActiveListener:
        return self.state.port.first

    @property
    def passes_trailers(self) -> bool:
        """Not where a filter looks at the head: it has not seen them, and some origins read them as fields that a
        filter, or the server that it asks, alone may set.
        """
        route, backend = self.resources.route, self.resources.backend
        return (route is None or route.chain.request_headers is None) and (
            backend is None or backend.chain.backend_request is None
        )

    def trailers_to_send(self, trailers: bytes) -> bytes:
        """Those of an answer: none where a filter looks at its head, as with those of requests."""
        backend = self.resources.backend
        if backend is None or (backend.chain.backend_response is None and backend.chain.response_headers is None):
            return trailers
        return b""

    def close_if_idle(self) -> bool:
        if not self.is_idle:
            return False
        self.close(lingers=False)  # whoever makes way for another is counted no more: its descriptor goes, too
        return True

    # --- the exchange's clock ------------------------------------------------------------------------------------
    def start_clock(self, request_s: float, idle_s: float) -> None:
        """One deadline per exchange: the earliest of its whole time, its attempt's, and the next look at whether it
        moves.
        """
        now = self.wheel.now
        self.exchange_ends_at = at = now + request_s if request_s > 0 else NEVER
        self.attempt_ends_at = NEVER
        self.idle_limit_s = idle_s
        self.seen_octets = self.octets_in + self.octets_out
        if 0 < idle_s < at - now:
            at = now + idle_s
        self.deadline.set(at)

    def start_attempt(self) -> None:
        """Gateway API, HTTPRouteTimeouts.backendRequest: one request to a backend, until its answer is whole."""
        backend_request_s = self.resources.backend.clock_s  # type: ignore[union-attr]  # it is chosen before
        if backend_request_s > 0:
            at = self.attempt_ends_at = self.wheel.now + backend_request_s
            if at < self.deadline.at:
                self.deadline.set(at)
        else:
            self.attempt_ends_at = NEVER

    def count_attempt(self, result: str) -> None:
        self.resources.backend.series.attempt(result)  # type: ignore[union-attr]  # it is chosen before

    def send_request(self, x: Exchange, upstream: UpstreamConnection, body: bytes | ReplayableBody | None) -> None:
        """The head, and the body: at once where we have it, else as the client sends it."""
        head, resources = x.request, self.resources
        plan = None
        if body is not None:
            head.body = len(body) if isinstance(body, bytes) else body.length
        elif head.body != 0 and resources.route is not None:
            plan = resources.route.chain.request_body
            if plan is not None and not plan.keeps_length:
                head.body = CHUNKED
        has_body = head.body != 0
        upstream.begin(self.driver, head)
        upstream.send_head(head, x.upstream_host, resources.connector.network.pseudonym)  # type: ignore[union-attr]
        sink: BodySink = upstream
        if resources.copies is not None:
            sink, resources.copies = resources.copies, None
            sink.begin(head, body if isinstance(body, ReplayableBody) else upstream)
            if has_body:
                resources.on_complete = sink.end
        if not has_body:
            return
        if body is not None:
            if isinstance(body, bytes):
                sink.send_body(body)
                sink.end_body(b"")
            else:
                body.send_to(upstream, body if sink is upstream else sink)
            return
        if plan is None:
            upstream.feed_from(self)
            self.send_request_body_to(sink)
        else:
            body_filter = resources.request_filter = BodyFilter(x, plan.begin(x), sink, self, self.driver)
            upstream.feed_from(body_filter)
            self.send_request_body_to(body_filter)

    def pass_interim(self, head: ResponseHead, x: Exchange) -> None:
        """Interim responses are passed on to 1.1 clients."""
        backend, connector = self.resources.backend, self.resources.connector
        assert backend is not None
        assert connector is not None
        if x.request.http_1_0 or (head.status == 100 and not x.request.expect_continue):
            return
        if backend.chain.backend_response is None and backend.chain.response_headers is None:
            self.send_interim(head, connector.network.pseudonym)
        elif head.status == 100:
            self.send_continue()  # without its fields, which no filter would have seen

    def end_attempt(self) -> None:
        """Another attempt may follow: until then the exchange's own time holds, and nobody is expected to move."""
        self.attempt_ends_at = NEVER
        self.seen_octets = -1
        self._set_deadline(self.wheel.now)

    def end_late_attempt(self) -> None:
        """The time for the attempt under way is over."""
        self.driver.throw(self._late())

    def end_late_request(self) -> None:
        """The time for the whole request is over."""
        self.driver.throw(UpstreamFault(Reason.REQUEST_TIMEOUT, "the request took too long", status=504))

    def look_at_clock(self) -> GatewayError | None:
        """The deadline has passed: the fault that ends the exchange, or None (and a new deadline) if it goes on."""
        now = self.wheel.now
        if self.awaits_bytes:
            return BadRequest(Reason.CLIENT_TIMEOUT, "nothing came in the tunnel", status=408)
        if now >= self.exchange_ends_at:
            return UpstreamFault(Reason.REQUEST_TIMEOUT, "the request took too long", status=504)
        if now >= self.attempt_ends_at:
            return self._late()
        octets = self.octets_in + self.octets_out - self.transport.get_write_buffer_size()
        if octets == self.seen_octets and not self._waits_for_answer():
            return UpstreamFault(Reason.RESPONSE_TIMEOUT, "nothing has moved for too long", status=504)
        self.seen_octets = octets
        self._set_deadline(now)
        return None

    def _late(self) -> UpstreamFault:
        retry = RetrySafety.SAFE if self.resources.upstream is None else RetrySafety.IF_IDEMPOTENT
        return UpstreamFault(Reason.RESPONSE_TIMEOUT, "the backend took too long", status=504, retry=retry)

    def _waits_for_answer(self) -> bool:
        """Whether the backend has the whole request and may still take its time.

        That time is `request` and `backendRequest`, not `idle`, which is for bodies that stall. Where neither is set it
        is ANSWER_S, since a client that waits cannot be seen to have left; but one that has ended its side has left,
        nearly always: that `idle` is long enough for the few that have not.
        """
        upstream = self.resources.upstream
        if self.has_ended:
            return False
        if upstream is None or not upstream.has_sent_all or upstream.head is not None or upstream.is_write_blocked:
            return False
        return self.wheel.now - upstream.last_read < ANSWER_S

    def _set_deadline(self, now: float) -> None:
        at = now + self.idle_limit_s if self.idle_limit_s > 0 else NEVER
        if self.exchange_ends_at < at:
            at = self.exchange_ends_at
        if self.attempt_ends_at < at:
            at = self.attempt_ends_at
        self.deadline.set(at)
