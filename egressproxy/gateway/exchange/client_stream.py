"""ClientStream: a stream of a client's HTTP/2 connection, which the connection manager serves; and that connection."""

from __future__ import annotations

import logging
from math import inf
from typing import Final, cast

from h2.errors import ErrorCodes

from egressproxy.errors import ClientGone, GatewayError
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.clock import STOPPED, ExchangeClock
from egressproxy.gateway.exchange.grpc_call import GrpcCall, ending_of_call, note_status
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel, Redirection
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.exchange.request_body import send_request
from egressproxy.gateway.identity.authenticator import copy_identity
from egressproxy.gateway.identity.checked_credentials import Verdict
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.model.caller_identity import ANONYMOUS
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import RequestHead
from egressproxy.net.held_bytes import HeldBytes
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.grpc.statuses import is_grpc
from egressproxy.protocols.http1.framing import HeadLimits, Malformed
from egressproxy.protocols.http1.request_connection import RequestHandler
from egressproxy.protocols.http2.downstream import DownstreamHttp2
from egressproxy.protocols.http2.downstream_stream import DownstreamStream
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.upstream import Upstream
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

#: How often a client that is told to calm down is worth a warning.
SILENCE_S: Final = 1.0


class ClientStream(DownstreamStream, Client):
    """`inner` is HTTP/1 inside the tunnel that a CONNECT to port 80 has made of it. `call`: one of gRPC."""

    __slots__ = (
        "call", "clock", "http2", "identity", "identity_until", "inner", "own_clock", "pipeline", "server_name",
        "state", "tunnel", "verdict",
    )  # fmt: skip

    def __init__(self, connection: ClientHttp2, stream_id: int) -> None:
        super().__init__(connection, stream_id)
        self.state = connection.state
        self.server_name = connection.server_name
        self.identity = connection.identity
        self.identity_until = connection.identity_until
        self.verdict = connection.verdict
        self.pipeline = Pipeline()
        self.clock = STOPPED
        self.own_clock: ExchangeClock | None = None
        self.tunnel: OpenedTunnel | Redirection | None = None
        self.inner: tuple[ClientConnection, bytes] | None = None
        self.call: GrpcCall | None = None
        self.http2 = connection

    @property
    def held_of_connection(self) -> HeldBytes:
        if self.http2.held is None:
            self.http2.held = HeldBytes()
        return self.http2.held

    def remember(self, verdict: Verdict) -> None:
        self.verdict = self.http2.verdict = verdict

    def begin(self, head: RequestHead, *, ends_stream: bool) -> None:
        fields = head.fields
        if head.method == b"POST" and b"application/grpc" in fields.block and is_grpc(fields.get(b"content-type")):
            self.call = GrpcCall(fields.get_all(b"grpc-timeout"))
        super().begin(head, ends_stream=ends_stream)

    def refuse(self, fault: Malformed, fields: FieldList, *, ends_stream: bool) -> None:
        """What came is no request. A client of gRPC is told so in its own words."""
        if any(name == b"content-type" and is_grpc(value) for name, value in fields):
            self.call = GrpcCall([])
        super().refuse(fault, fields, ends_stream=ends_stream)

    @property
    def request_handler(self) -> RequestHandler:
        return self.downstream.handler

    def trailers_to_pass(self, trailers: bytes) -> bytes:
        return self.passable_of_request(trailers)

    def trailers_to_send(self, trailers: bytes) -> bytes:
        passed = self.passable_trailers(trailers)
        if self.call is not None and self.pipeline.exchange is not None:
            note_status(self.pipeline.exchange, passed)
        return passed

    def continued(self) -> None:
        """See Client. The stream goes on until its transport has ended."""

    def enter_tunnel(self, tunnel: OpenedTunnel, limits: HeadLimits) -> None:
        """From now on requests of HTTP/1 are read here, which begins when this exchange is over."""
        inner = ClientConnection(self.downstream.handler, self.wheel, self.state)
        inner.server_name = self.server_name
        copy_identity(inner, self)
        inner.tunnel = tunnel
        self.inner = inner, self.detach()

    def finish(self, *, close: bool) -> None:
        if self.inner is None:
            super().finish(close=close)
            if close:
                self.http2.exchange_over()
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
        """A stream is there for its exchange; only in a tunnel that we read may nobody ask for anything."""
        close_if_idle = getattr(self.in_tunnel, "close_if_idle", None)  # of HTTP, or of TLS in front of it
        return close_if_idle is not None and bool(close_if_idle())

    @property
    def in_tunnel(self) -> object:
        """What reads in the tunnel that this stream has become; None where it is none."""
        inner = self.transport.get_protocol() if self.transport is not self.connection.transport else None
        return inner if cast(object, inner) is not self else None

    def serving(self) -> tuple[Pipeline, ...]:
        serving = getattr(self.in_tunnel, "serving", None)
        return super().serving() if serving is None else tuple(serving())

    # --- a call of gRPC --------------------------------------------------------------------------------------------
    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        if self.call is not None:
            self.call.tell_time_left(exchange.request, self.clock.exchange_ends_at, self.clock.attempt_ends_at)
        send_request(self, self.driver, self.pipeline.backend, exchange, upstream, body, pseudonym)

    def break_off(self, error: GatewayError) -> None:
        """As of Client. Trailers say how a call has ended, where nothing has said it and the client still listens."""
        exchange, is_gone = self.pipeline.exchange, isinstance(error, ClientGone) or self.is_ending or self.is_lost
        if self.call is None or not self.call.is_open or is_gone or exchange is None:
            self.abort()
        else:
            self.end(ending_of_call(exchange, error))


class ClientHttp2(DownstreamHttp2):
    """A client's connection, which counts with its listener like one of HTTP/1."""

    __slots__ = ("held", "identity", "identity_until", "metrics", "server_name", "state", "verdict")

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
        self.held: HeldBytes | None = None  # of the bodies of its streams
        self.server_name = ""
        self.identity = ANONYMOUS
        self.identity_until = inf
        self.verdict: Verdict | None = None

    def new_stream(self, stream_id: int) -> ClientStream:
        self.reader.is_forward = self.state.port.first.is_forward  # after a reload it may be
        return ClientStream(self, stream_id)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.state.leave(self)

    def was_broken_off(self, code: ErrorCodes, why: str) -> None:
        name = code.name if isinstance(code, ErrorCodes) else "PROTOCOL_ERROR"
        self.metrics.http2_connections_broken[name.lower()] += 1
        level = logging.DEBUG
        now = self.wheel.now
        if code is ErrorCodes.ENHANCE_YOUR_CALM and now >= self.state.told_flood + SILENCE_S:
            self.state.told_flood = now  # who floods us with requests shall not flood the log
            level = logging.WARNING
        log.log(level, "the HTTP/2 connection of %s is ended with %s: %s", self.client, name, why)

    def close_if_idle(self) -> bool:
        """True if it closes: no exchange is under way. Where its listener has gone, no other begins."""
        if not self.streams:
            self.leave(gently=self.may_leave_gently)
            return True
        for stream in list(self.streams.values()):
            assert isinstance(stream, ClientStream)
            stream.close_if_idle()
        if self.state.is_closed or self.may_leave_gently:
            self.leave(gently=self.may_leave_gently)
        return False

    def exchange_over(self) -> None:
        """An exchange has ended: if the gateway drains, or is short of memory, say GOAWAY (RFC 9113 section 6.8)."""
        if getattr(self.handler, "ends_connections", False):
            self.leave(gently=True)

    def serving(self) -> list[Pipeline]:
        streams = list(self.streams.values())
        return [held for each in streams if isinstance(each, ClientStream) for held in each.serving()]

    @property
    def may_leave_gently(self) -> bool:
        """Whether streams that the client began before it read our GOAWAY are still served."""
        return bool(getattr(self.handler, "is_draining", False))


class OpenedHttp2(ClientHttp2):
    """HTTP/2 in a tunnel: every request goes where the tunnel was opened to."""

    __slots__ = ("tunnel",)

    def __init__(
        self, handler: RequestHandler, wheel: TimerWheel, state: OpenConnections, metrics: Metrics, tunnel: OpenedTunnel
    ) -> None:
        super().__init__(handler, wheel, state, metrics)
        self.tunnel = tunnel

    def new_stream(self, stream_id: int) -> ClientStream:
        made = super().new_stream(stream_id)
        made.tunnel = self.tunnel
        return made

    def exchange_over(self) -> None:
        """As of ClientHttp2. Where the server could not be verified, the next request begins anew, elsewhere."""
        super().exchange_over()
        if self.tunnel.fault is not None:
            self.leave(gently=True)
