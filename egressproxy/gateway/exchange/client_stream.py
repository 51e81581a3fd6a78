"""ClientStream: a stream of a client's HTTP/2 connection, which the connection manager serves; and that connection."""

from __future__ import annotations

import logging
from math import inf
from time import monotonic
from typing import Final, cast

from h2.errors import ErrorCodes

from egressproxy.errors import BadRequest, ClientGone, GatewayError, Reason, UpstreamFault
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend, on_the_wheel
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.error_responses import answer_of_call, error_of_call, last_fields
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel, Redirection
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.exchange.request_body import send_request
from egressproxy.gateway.identity.authenticator import copy_identity
from egressproxy.gateway.identity.checked_credentials import Verdict
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.model.exchange import ANONYMOUS, Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import CHUNKED, RequestHead, ResponseHead
from egressproxy.net.held_bytes import HeldBytes
from egressproxy.net.timers import NEVER, TimerWheel
from egressproxy.protocols.grpc.statuses import MalformedTimeout, is_grpc, parsed_status, parsed_timeout, timeout_value
from egressproxy.protocols.http1.downstream import RequestHandler
from egressproxy.protocols.http1.framing import HeadLimits, Malformed
from egressproxy.protocols.http2.downstream import DownstreamHttp2
from egressproxy.protocols.http2.downstream_stream import DownstreamStream
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.upstream import Upstream
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

#: How often a client that is told to calm down is worth a warning.
SILENCE_S: Final = 1.0


class ClientStream(DownstreamStream, Client):
    """`inner` is HTTP/1 inside the tunnel that a CONNECT to port 80 has made of it. Of a `call` of gRPC the deadline
    holds, and what goes wrong is told in its own words.
    """

    __slots__ = (
        "attempt_ends_at",
        "call",
        "exchange_ends_at",
        "http2",
        "identity",
        "identity_until",
        "idle_limit_s",
        "inner",
        "pipeline",
        "seen_bytes",
        "server_name",
        "state",
        "tunnel",
        "verdict",
    )

    def __init__(self, connection: ClientHttp2, number: int) -> None:
        super().__init__(connection, connection, number)
        self.state = connection.state
        self.server_name = connection.server_name
        self.identity = ANONYMOUS
        self.identity_until = inf
        self.verdict: Verdict | None = None
        self.pipeline = Pipeline()
        self.exchange_ends_at = NEVER
        self.attempt_ends_at = NEVER
        self.idle_limit_s = 0.0
        self.seen_bytes = 0
        self.tunnel: OpenedTunnel | Redirection | None = None
        copy_identity(self, connection)
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

    def begin(self, head: RequestHead, *, has_ended: bool) -> None:
        fields = head.fields
        if b"application/grpc" in fields.block and is_grpc(fields.get(b"content-type")):
            self.call = GrpcCall(fields.get_all(b"grpc-timeout"))
        super().begin(head, has_ended=has_ended)

    def refuse(self, fault: Malformed, fields: FieldList, *, has_ended: bool) -> None:
        """What came is no request. A client of gRPC is told so in its own words."""
        if any(name == b"content-type" and is_grpc(value) for name, value in fields):
            self.call = GrpcCall([])
        super().refuse(fault, fields, has_ended=has_ended)

    @property
    def request_handler(self) -> RequestHandler:
        return self.downstream.handler

    def trailers_to_pass(self, trailers: bytes) -> bytes:
        return self.passable_of_request(trailers)

    def trailers_to_send(self, trailers: bytes) -> bytes:
        passed = self.passable_trailers(trailers)
        if self.call is not None:
            self.call.note(parsed_status(passed))
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
        self._forget_exchange()
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
    def start_clock(self, request_s: float, idle_s: float) -> None:
        """As of Client; of a call's deadline and `request_s` the earlier one holds. Raises GatewayError."""
        if self.call is not None:
            seconds = self.call.begin()
            if seconds != NEVER:
                on_wheel = on_the_wheel(seconds)
                request_s = min(request_s, on_wheel) if request_s > 0 else on_wheel
        super().start_clock(request_s, idle_s)

    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        """As of UpstreamCaller. The backend of a call is told what is left of its time: its clock starts then."""
        call = self.call
        if call is not None:
            call.exchange = exchange
            fields = exchange.request.fields
            if call.ends_at != NEVER and b"grpc-timeout" in fields:
                ends_at = min(call.ends_at, self.exchange_ends_at, self.attempt_ends_at)
                fields.set(b"grpc-timeout", timeout_value(ends_at - monotonic()))
        backend: RouteBackend = self.pipeline.backend  # type: ignore[assignment]  # it is chosen before
        send_request(self, self.driver, backend.chain, exchange, upstream, body, pseudonym)

    def send_response(
        self, head: ResponseHead, request: RequestHead, pseudonym: bytes, body: bytes | None, *, close: bool
    ) -> None:
        super().send_response(head, request, pseudonym, body, close=close)
        call = self.call
        if call is not None:
            call.note(parsed_status(head.fields.block))
            call.is_open = body is None and head.body == CHUNKED and is_grpc(head.fields.get(b"content-type"))

    def error_answer(self, error: GatewayError, exchange: Exchange) -> LocalResponse:
        return super().error_answer(error, exchange) if self.call is None else error_of_call(error, exchange.request_id)

    def own_answer(self, answer: LocalResponse, exchange: Exchange) -> LocalResponse:
        call = self.call
        if call is None:
            return super().own_answer(answer, exchange)
        call.exchange = exchange
        made = answer_of_call(answer, exchange.reason)
        call.note(parsed_status(Fields.of(made.fields).block))
        return made

    def break_off(self, error: GatewayError) -> None:
        """As of Client. Trailers say how a call has ended, where nothing has said it and the client still listens."""
        call = self.call
        if call is None:
            super().break_off(error)
            return
        if isinstance(error, ClientGone) or not call.is_open or self.is_ending or self.is_lost:
            self.abort()
            return
        fields = last_fields(error, is_late=True)
        call.note(int(fields[0][1]))
        self.end(fields)

    def abort(self) -> None:
        self._forget_exchange()
        super().abort()

    def _lose(self) -> None:
        super()._lose()
        self._forget_exchange()

    def _forget_exchange(self) -> None:
        """It may lead back here, by what its filters keep."""
        if self.call is not None:
            self.call.exchange = None


class GrpcCall:
    """`timeout` is what the head of the call says of it, `ends_at` the deadline (monotonic seconds). `is_open`: the
    head of its response has gone, and trailers may say how it ends.
    """

    __slots__ = ("ends_at", "exchange", "is_open", "timeout")

    def __init__(self, timeout: list[bytes]) -> None:
        self.timeout = timeout
        self.ends_at = NEVER
        self.exchange: Exchange | None = None
        self.is_open = False

    def begin(self) -> float:
        """How many seconds it may take, NEVER: as long as it likes. Its deadline begins. Raises GatewayError."""
        if not self.timeout:
            return NEVER
        if len(self.timeout) > 1:
            raise BadRequest(Reason.BAD_FIELD, "grpc-timeout stands more than once", close=False)
        try:
            seconds = parsed_timeout(self.timeout[0])
        except MalformedTimeout as fault:
            raise BadRequest(Reason.BAD_FIELD, str(fault), close=False) from None
        if seconds <= 0:
            raise UpstreamFault(Reason.REQUEST_TIMEOUT, "the deadline of the call has passed", status=504)
        self.ends_at = monotonic() + seconds
        return seconds

    def note(self, status: int) -> None:
        """Keep the final gRPC status of the call; -1: the call has none yet."""
        if status >= 0 and self.exchange is not None:
            self.exchange.grpc_status = status


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

    def new_stream(self, number: int) -> DownstreamStream:
        self.reader.is_forward = self.state.port.first.is_forward  # after a reload it may be
        return ClientStream(self, number)

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
        """Whether what the client began before it heard of our leaving is still served: not on former terms."""
        return bool(getattr(self.handler, "is_draining", False))


class OpenedHttp2(ClientHttp2):
    """HTTP/2 in a tunnel: every request goes where the tunnel was opened to."""

    __slots__ = ("tunnel",)

    def __init__(
        self, handler: RequestHandler, wheel: TimerWheel, state: OpenConnections, metrics: Metrics, tunnel: OpenedTunnel
    ) -> None:
        super().__init__(handler, wheel, state, metrics)
        self.tunnel = tunnel

    def new_stream(self, number: int) -> ClientStream:
        made = super().new_stream(number)
        assert isinstance(made, ClientStream)
        made.tunnel = self.tunnel
        return made

    def exchange_over(self) -> None:
        """As of ClientHttp2. Where the server could not be verified, the next request begins anew, elsewhere."""
        super().exchange_over()
        if self.tunnel.fault is not None:
            self.leave(gently=True)
