"""ClientConnection: a downstream connection and what the gateway knows of it: listener, exchange, clock."""

from __future__ import annotations

from egressproxy.errors import BadRequest, GatewayError, GatewayFault, Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.exchange.held_resources import HeldResources
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.authority import Authority
from egressproxy.net.timers import NEVER, TimerWheel
from egressproxy.protocols.http1.downstream import DownstreamConnection, RequestHandler

__all__ = ["ANSWER_S", "ClientConnection"]

#: How long a backend may think about an answer where no timeout says it: what the SDKs of AI providers wait.
ANSWER_S = 600.0


class ClientConnection(DownstreamConnection):
    """Asks its listener of the current snapshot anew for every request: a reload holds for the next one."""

    __slots__ = (
        "attempt_ends_at",
        "exchange_ends_at",
        "idle_limit_s",
        "life",
        "seen_octets",
        "server_name",
        "state",
        "tunnel_authority",
    )

    def __init__(self, handler: RequestHandler, wheel: TimerWheel, state: OpenConnections) -> None:
        port, times = state.port, state.port.first.timeouts
        super().__init__(handler, wheel, port.head_limits, times.request_headers_s, times.idle_s)
        self.state = state
        self.server_name = ""  # what the client's ClientHello named, on a listener that terminates TLS
        self.life = HeldResources()
        self.exchange_ends_at = NEVER
        self.attempt_ends_at = NEVER
        self.idle_limit_s = 0.0
        self.seen_octets = 0
        self.tunnel_authority: Authority | None = None

    @property
    def listener(self) -> ActiveListener:
        return self.state.port.first

    def listener_for(self, host: str) -> ActiveListener:
        """The listener of this port for this host (Gateway API, Listener.hostname).

        Raises GatewayFault: 404 where no listener has the host, 421 where the client's TLS was with another listener
        (RFC 9110 section 15.5.20): its certificate, and what it asks of clients, say nothing about this host.
        """
        port = self.state.port
        if len(port.listeners) == 1 and not port.first.spec.hostname:
            return port.first
        found = port.by_host.match(host)
        if found is None:
            raise GatewayFault(Reason.NO_ROUTE, f"no listener for {host}", status=404)
        if self.server_name and port.by_host.match(self.server_name) is not found:
            raise GatewayFault(Reason.MISDIRECTED, f"{host} is not served on this connection", status=421)
        return found

    @property
    def passes_trailers(self) -> bool:
        """Not where a filter looks at the head: it has not seen them, and some origins read them as fields that a
        filter, or the server that it asks, alone may set.
        """
        route, choice = self.life.route, self.life.choice
        return (route is None or route.chain.request_headers is None) and (
            choice is None or choice.chain.backend_request is None
        )

    def trailers_to_send(self, trailers: bytes) -> bytes:
        """Those of an answer: none where a filter looks at its head, as with those of requests."""
        choice = self.life.choice
        if choice is None or (choice.chain.backend_response is None and choice.chain.response_headers is None):
            return trailers
        return b""

    def close_if_idle(self) -> bool:
        if self.is_lingering or (self.in_exchange and not self.awaits_octets):
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

    def start_attempt(self, backend_request_s: float) -> None:
        """Gateway API, HTTPRouteTimeouts.backendRequest: one request to a backend, until its answer is whole."""
        if backend_request_s > 0:
            at = self.attempt_ends_at = self.wheel.now + backend_request_s
            if at < self.deadline.at:
                self.deadline.set(at)
        else:
            self.attempt_ends_at = NEVER

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
        if self.awaits_octets:
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
        retry = RetrySafety.SAFE if self.life.upstream is None else RetrySafety.IF_IDEMPOTENT
        return UpstreamFault(Reason.RESPONSE_TIMEOUT, "the backend took too long", status=504, retry=retry)

    def _waits_for_answer(self) -> bool:
        """Whether the backend has the whole request and may still take its time.

        That time is `request` and `backendRequest`, not `idle`, which is for bodies that stall. Where neither is set it
        is ANSWER_S, since a client that waits cannot be seen to have left; but one that has ended its side has left,
        nearly always: that `idle` is long enough for the few that have not.
        """
        upstream = self.life.upstream
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
