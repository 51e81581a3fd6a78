"""ClientStream: a stream of a client's HTTP/2 connection, which the conductor serves; and that connection."""

from __future__ import annotations

import logging

from h2.errors import ErrorCodes

from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.model.authority import Authority
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1.downstream import RequestHandler
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.downstream import DownstreamHttp2, DownstreamStream
from egressproxy.telemetry.metrics import Metrics

__all__ = ["ClientHttp2", "ClientStream"]

log = logging.getLogger(__name__)

#: How often a client that is told to calm down is worth a warning.
SILENCE_S = 1.0


class ClientStream(DownstreamStream, Client):
    """One exchange. `inner` is HTTP/1 inside the tunnel that a CONNECT to port 80 has made of it."""

    __slots__ = (
        "attempt_ends_at",
        "exchange_ends_at",
        "idle_limit_s",
        "inner",
        "resources",
        "seen_octets",
        "server_name",
        "state",
        "tunnel_authority",
    )

    connection: ClientHttp2

    def __init__(self, connection: ClientHttp2, number: int) -> None:
        super().__init__(connection, number)
        self.init_exchange(connection.state)
        self.server_name = connection.server_name
        self.inner: tuple[ClientConnection, bytes] | None = None

    @property
    def passes_trailers(self) -> bool:
        """Not where a filter looks at the head."""
        return self.may_pass_trailers()

    def trailers_to_send(self, trailers: bytes) -> bytes:
        """Those of an answer."""
        return self.passable_trailers(trailers)

    def enter_tunnel(self, authority: Authority, limits: HeadLimits) -> None:
        """From now on requests of HTTP/1 are read here, which begins when this exchange is over."""
        inner = ClientConnection(self.connection.handler, self.wheel, self.state)
        inner.server_name = self.server_name
        inner.tunnel_authority = authority
        self.inner = inner, self.detach()

    def finish(self, *, close: bool) -> None:
        """The exchange is over; inside a tunnel the first of others begins."""
        if self.inner is None:
            super().finish(close=close)
            return
        (inner, rest), self.inner = self.inner, None
        if close:
            self.transport.close()
            return
        self.transport.set_protocol(inner)
        inner.connection_made(self.transport)
        if rest:
            inner.data_received(rest)
        if self.has_ended and not self.transport.is_closing() and not inner.eof_received():
            self.transport.close()

    def close_if_idle(self) -> bool:
        """A stream is there for its exchange; only in a tunnel to port 80 may nobody ask for anything."""
        inner = self.transport.get_protocol() if self.transport is not self.connection.transport else None
        return isinstance(inner, ClientConnection) and inner.close_if_idle()


class ClientHttp2(DownstreamHttp2):
    """A client's connection, which counts with its listener like one of HTTP/1."""

    __slots__ = ("metrics", "server_name", "state")

    silent_until = 0.0  # of all: who floods us with requests shall not flood the log

    def __init__(self, handler: RequestHandler, wheel: TimerWheel, state: OpenConnections, metrics: Metrics) -> None:
        port, times = state.port, state.port.first.timeouts
        super().__init__(
            handler,
            wheel,
            port.head_limits,
            times.request_headers_s,
            times.idle_s,
            is_forward=port.first.is_forward,
            extended_connect=port.extended_connect,
        )
        self.state = state
        self.metrics = metrics
        self.server_name = ""

    def new_stream(self, number: int) -> DownstreamStream:
        """What the conductor serves."""
        return ClientStream(self, number)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection leaves its listener."""
        super().connection_lost(error)
        self.state.leave(self)

    def was_broken_off(self, code: ErrorCodes, why: str) -> None:
        """Count and log what ends the connection of a client that keeps to no rule."""
        name = code.name if isinstance(code, ErrorCodes) else "PROTOCOL_ERROR"
        self.metrics.http2_connection_broken(name.lower())
        level = logging.DEBUG
        if code is ErrorCodes.ENHANCE_YOUR_CALM and self.wheel.now >= ClientHttp2.silent_until:
            ClientHttp2.silent_until = self.wheel.now + SILENCE_S
            level = logging.WARNING
        log.log(level, "the HTTP/2 connection of %s is ended with %s: %s", self.client, name, why)

    def close_if_idle(self) -> bool:
        """True if it closes: no exchange is under way. Where its listener has gone, no other begins."""
        if not self.streams:
            self.leave(gently=False)
            return True
        for stream in list(self.streams.values()):
            assert isinstance(stream, ClientStream)
            stream.close_if_idle()
        if self.state.is_closed:
            self.leave(gently=self.may_leave_gently)
        return False

    @property
    def may_leave_gently(self) -> bool:
        """Whether what the client began before it heard of our leaving may still be served: not on former terms."""
        return bool(getattr(self.handler, "is_draining", False))
