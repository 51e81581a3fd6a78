"""ClientConnection: a client's connection of HTTP/1, which the connection manager serves."""

from __future__ import annotations

from math import inf

from egressproxy.errors import ClientGone
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.clock import STOPPED, ExchangeClock, waits_for_people
from egressproxy.gateway.exchange.grpc_call import GrpcCall
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel, Redirection
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.exchange.request_body import send_request
from egressproxy.gateway.identity.checked_credentials import Verdict
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.model.caller_identity import ANONYMOUS
from egressproxy.model.exchange import Exchange
from egressproxy.net.flow_control import HTTP2_STREAM
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1.downstream import DownstreamConnection
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.request_connection import RequestHandler
from egressproxy.protocols.upstream import Upstream


class ClientConnection(DownstreamConnection, Client):
    """One exchange after the other."""

    __slots__ = (
        "call", "clock", "identity", "identity_until", "own_clock", "pipeline", "server_name", "state", "tunnel",
        "verdict",
    )  # fmt: skip

    def __init__(self, handler: RequestHandler, wheel: TimerWheel, state: OpenConnections) -> None:
        port, times = state.port, state.port.first.timeouts
        super().__init__(handler, wheel, port.head_limits, times.request_headers_s, times.idle_s)
        self.state = state
        self.server_name = ""
        self.identity = ANONYMOUS
        self.identity_until = inf
        self.verdict: Verdict | None = None
        self.pipeline = Pipeline()
        self.call: GrpcCall | None = None  # only of HTTP/2
        self.clock = STOPPED
        self.own_clock: ExchangeClock | None = None
        self.tunnel: OpenedTunnel | Redirection | None = None

    @property
    def request_handler(self) -> RequestHandler:
        return self.handler

    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        head, pipeline = exchange.request, self.pipeline
        if body is None and head.body == 0 and pipeline.mirror_requests is None:  # most requests: nothing to decide
            upstream.begin(self.driver, head)
            upstream.send_head(head, exchange.upstream_host, pseudonym)
        else:
            send_request(self, self.driver, pipeline.backend, exchange, upstream, body, pseudonym)

    def trailers_to_pass(self, trailers: bytes) -> bytes:
        return self.passable_of_request(trailers)

    def trailers_to_send(self, trailers: bytes) -> bytes:
        return self.passable_trailers(trailers)

    def eof_received(self) -> bool:
        """A client that ends its side while it waits has left: nobody is to work, or to approve, for nobody. One that
        ends it with its request may wait (RFC 9112 section 9.6), unless a person is asked. Halves of tunnels may end.
        """
        has_left = waits_for_people(self) or self._has_left()
        goes_on = super().eof_received()
        if has_left and goes_on:
            self.driver.throw(ClientGone("the client ended its side while it waited (see traffic.halfClose)"))
        return goes_on

    def _has_left(self) -> bool:
        exchange, route = self.pipeline.exchange, self.pipeline.route
        if exchange is None or exchange.is_tunnel or not self.may_have_left:
            return False
        return not (route.policy if route is not None else self.listener.spec.policy).half_close

    @property
    def is_paused_for_room(self) -> bool:
        hold = self.pipeline.held_bytes
        if hold is None or not hold.is_waiting or not hold.is_of_request:
            return False
        return self.transport.get_extra_info(HTTP2_STREAM) is None

    def hold_back(self) -> None:
        """As of Client. In a tunnel of HTTP/2 the stream is held back, and no other of its connection with it."""
        stream, hold = self.transport.get_extra_info(HTTP2_STREAM), self.pipeline.held_bytes
        if stream is None or hold is None:
            self.pause_reading()
        else:
            stream.hold_back()
            hold.undo = stream.go_on

    def go_on(self) -> None:
        stream = self.transport.get_extra_info(HTTP2_STREAM)
        if stream is None:
            self.resume_reading()
        else:
            stream.go_on()

    def continued(self) -> None:
        self.tunnel_ended()

    def enter_tunnel(self, tunnel: OpenedTunnel, limits: HeadLimits) -> None:
        self.tunnel = tunnel
        self.read_anew(limits)

    def discard(self) -> None:
        """Drop a client that had no transport: neither `connection_made` nor `connection_lost` will be called."""
        self.deadline.close()
        self.driver.on_idle = None

    def close_if_idle(self) -> bool:
        if not self.is_idle or 0 < getattr(self.handler, "last_idle_s", 0.0) == self.idle_s:
            return False  # of one whose answer has outlasted the begin of a drain the time runs
        self.close(lingers=False)  # whoever makes way for another is counted no more: its descriptor goes, too
        return True


def is_connection(client: Client) -> bool:
    return isinstance(client, ClientConnection)
