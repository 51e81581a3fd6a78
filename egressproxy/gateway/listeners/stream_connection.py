"""StreamConnection: a connection to a TLS or TCP listener: one tunnel, whose route the ClientHello chooses.

Source: Gateway API, TLSRoute and TCPRoute. A TLS connection whose name matches no route is closed, as the API says.
"""

from __future__ import annotations

import asyncio
import ssl
from math import inf
from time import monotonic

from egressproxy.errors import ClientGone, Denied, GatewayError, Reason
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.admission import name_stream, of_client, route_of_stream, stream_certificates
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.connect import dial, refuse_answer
from egressproxy.gateway.exchange.connection_manager import HttpConnectionManager
from egressproxy.gateway.exchange.error_responses import internal_fault
from egressproxy.gateway.exchange.identification import identify, identify_stream
from egressproxy.gateway.exchange.interception import intercept
from egressproxy.gateway.exchange.pipeline import (
    ADMIT_AGAIN,
    ENTER_GATE,
    FILTER,
    IDENTIFY,
    INTERCEPT,
    NOTE_ECH,
    REFUSE,
    TERMINATE,
    TUNNEL,
    Pipeline,
)
from egressproxy.gateway.exchange.readmission import changed, take_over
from egressproxy.gateway.exchange.relay import hand_over, relay
from egressproxy.gateway.open_connections import Connection, OpenConnections
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.model.per_client_quota import client_of
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.flow_control import HIGH_WATER, FlowControl
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.timers import Deadline
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_failures import client_refusal_text
from egressproxy.net.tls_peer import is_about_certificate, server_name, verified_until
from egressproxy.protocols.tls.client_hello import (
    ACCESS_DENIED,
    BadClientHello,
    ClientHello,
    ClientHelloReader,
    NotTls,
    name_alert,
)
from egressproxy.protocols.tunnel.guard import SniGuard
from egressproxy.telemetry.metrics import Metrics


class _HoldingConnection(FlowControl):
    """One side of a stream. Bytes are held until the tunnel takes them."""

    __slots__ = ("driver", "has_ended", "held", "is_lost", "request_headers_s")

    def __init__(self, driver: Driver, request_headers_s: float) -> None:
        super().__init__()
        self.driver = driver
        self.request_headers_s = request_headers_s
        self.held = ByteQueue()
        self.has_ended = False
        self.is_lost = False

    def tunnel_ended(self) -> None:
        self.is_lost = True

    def take_held(self) -> bytes:
        """What the client has said so far; nothing is held afterwards."""
        held, self.held = self.held, ByteQueue()
        self.resume_reading()
        return held.joined()


class StreamConnection(_HoldingConnection):
    """A client's connection to a TLS or TCP listener."""

    __slots__ = (
        "accounting", "client", "deadline", "error", "handler", "hello", "hello_size", "metrics", "pipeline", "reader",
        "state",
    )  # fmt: skip

    def __init__(self, connection_manager: HttpConnectionManager, metrics: Metrics, state: OpenConnections) -> None:
        first = state.port.first
        super().__init__(Driver(), first.timeouts.request_headers_s)
        self.handler = connection_manager
        accounting = self.accounting = connection_manager.accounting
        self.metrics = metrics
        self.state = state
        self.pipeline = Pipeline()
        self.deadline = Deadline(accounting.wheel, self._too_late)
        self.reader = None if first.spec.protocol is ListenerProtocol.TCP else ClientHelloReader()
        self.hello: ClientHello | None = None
        self.hello_size = 0  # so many of the bytes are its own
        self.error: GatewayError | None = None
        self.client = "-"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client = self.peer_name()
        if self.state.admit(self, self.client, self.metrics) is not None:
            self.transport.abort()
            return
        self.deadline.after(self.request_headers_s)
        self.driver.start(serve_stream(self.accounting, self))

    def data_received(self, data: bytes) -> None:
        self.bytes_in += len(data)
        self.held.append(data)
        if self.reader is not None and self.hello is None and self.error is None:
            try:
                self.hello = self.reader.feed(data)
            except NotTls:
                self.error = Denied(Reason.NOT_TLS, "the connection has to begin with a ClientHello")
            except BadClientHello as error:
                self.error = Denied(Reason.NOT_TLS, "malformed ClientHello", detail=str(error))
            if self.hello is not None or self.error is not None:
                self.hello_size = self.reader.size
                self.reader.forget()
                self.driver.resume()
        elif self.bytes_in > HIGH_WATER:
            self.pause_reading()

    def eof_received(self) -> bool:
        """The client has ended its side: a tunnel may begin with that, a ClientHello can not."""
        self.has_ended = True
        return self.driver.is_busy and (self.reader is None or self.hello is not None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self.driver.is_busy:
            self.driver.throw(ClientGone())
        self.gone()

    def gone(self) -> None:
        """The connection no longer counts with its listener."""
        self.deadline.close()
        self.state.leave(self)

    def abort(self) -> None:
        self.transport.abort()

    def close_if_idle(self) -> bool:
        """Until its ClientHello is there nothing is served; a TCP stream is served from the start."""
        if self.reader is None or self.hello is not None:
            return False
        self.abort()
        return True

    @property
    def identity(self) -> CallerIdentity:
        return self.pipeline.identity

    def serving(self) -> tuple[Pipeline, ...]:
        return (self.pipeline,) if self.driver.is_busy else ()

    def refuse(self, error: GatewayError) -> None:
        """Tell a client that waits for the answer to its ClientHello, where policy is the reason. One whose name nobody
        serves here is told nothing: the conformance cases of TLSRoute want to see FIN or RST, and no alert.
        """
        hello = self.hello if error.reason is not Reason.NO_ROUTE else None
        alert = alert_for(error, hello) if hello is not None and self.transport.get_protocol() is self else b""
        if alert:
            self.send(alert)
            self.flush()

    def _too_late(self) -> None:
        self.driver.throw(Denied(Reason.NOT_TLS, "no ClientHello came in time"))


async def serve_stream(accounting: Accounting, client: StreamConnection) -> None:
    """The life of one stream, to its end."""
    port = client.state.port
    exchange = client.pipeline.exchange = accounting.new_exchange(client.client, port.first, ANONYMOUS)
    exchange.is_tunnel = True
    exchange.request = RequestHead(b"CONNECT", b"-", Fields())  # what filters see of a stream: no fields, no body
    try:
        await tunnel_stream(accounting, exchange, client)
    except BaseException as error:  # GeneratorExit of a filter, too: whatever happens, the stream ends here
        fail_stream(accounting, exchange, client, error)
    finally:
        if not client.pipeline.is_handed_over:
            exchange.bytes_in = exchange.bytes_in or client.bytes_in
            accounting.account(exchange, client.pipeline)
            client.pipeline.reset()
            client.gone()


def fail_stream(accounting: Accounting, exchange: Exchange, client: StreamConnection, failure: BaseException) -> None:
    """An error ends the stream, as `Pipeline.end` says."""
    error = failure if isinstance(failure, GatewayError) else internal_fault(failure, f"stream {exchange.request_id}")
    pipeline = client.pipeline
    accounting.record_error(exchange, pipeline, error)
    action = pipeline.end(exchange, error, is_lost=client.is_lost)
    pipeline.release(reusable=False)
    if action == REFUSE:
        client.refuse(error)
    client.transport.abort()
    exchange.bytes_out = exchange.bytes_out or client.bytes_out


async def tunnel_stream(accounting: Accounting, exchange: Exchange, client: StreamConnection) -> None:
    """Until the tunnel is over, or has the exchange and completes it (`client.pipeline.is_handed_over`)."""
    pipeline = client.pipeline
    while client.reader is not None and client.hello is None:
        if client.error is not None:
            error, client.error = client.error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: no cycle
        await PAUSE
    client.deadline.clear()
    client.state.check_open()
    inner, certified, until = None, ANONYMOUS, inf
    named: ActiveListener | None = None  # the listener as it is for everybody
    for action in pipeline.stream(exchange, client.state, client.hello):
        route, listener = pipeline.route, pipeline.listener
        assert listener is not None
        if action == TUNNEL:
            await open_tunnel(accounting, exchange, client, inner)
        elif action == IDENTIFY:
            named = listener
            identify_stream(exchange, listener, certified, until)
        elif action == ENTER_GATE:
            assert route is not None
            if accounting.gate is not None:
                pipeline.tenant = accounting.gate.admit(exchange, route.priority)
        elif action == FILTER:
            assert pipeline.steps is not None
            await refuse_answer(pipeline.steps, exchange)
        elif action == ADMIT_AGAIN:
            assert route is not None
            pipeline.route, pipeline.listener = admit_stream_again(exchange, client, route, inner)
        elif action == TERMINATE:
            inner = await terminate(client, listener)
            peer = inner.transport.get_extra_info("ssl_object")
            certified, until = client.state.port.identity_of(peer), verified_until(peer)
        elif action == NOTE_ECH:
            assert client.hello is not None
            accounting.note_ech(exchange, client.hello.sni or "-")
        elif action == INTERCEPT:
            assert named is not None
            await open_stream(accounting, exchange, client, named, listener)


async def open_tunnel(
    accounting: Accounting, exchange: Exchange, client: StreamConnection, inner: _Inner | None
) -> None:
    """TUNNEL: dial and relay. `inner`: the client's plaintext, where its TLS ends here. Raises GatewayError."""
    pipeline = client.pipeline
    backend, route, listener = pipeline.backend, pipeline.route, pipeline.listener
    assert backend is not None
    assert route is not None
    assert listener is not None
    pipeline.when_complete(client.state.take_tunnel(listener, client_of(exchange)))
    if inner is not None:
        upstream = await dial(exchange, backend, pipeline, terminated=True)
        exchange.status, exchange.first_byte_at = 200, monotonic()
        await relay(accounting, exchange, inner, upstream, inner.take_held(), b"", None, route.tunnel_idle_s)
        client.tunnel_ended()
        return
    # TLS that a client has begun is its own to the end; bytes of a TCP listener are plain, as far as we know.
    upstream = await dial(exchange, backend, pipeline, terminated=client.reader is None and backend.originates_tls)
    exchange.status, exchange.first_byte_at = 200, monotonic()
    held, guard = client.take_held(), None
    if client.hello is not None and exchange.authority is not None:
        guard = SniGuard(
            exchange.authority, must_be_tls=True, only_reports=route.only_reports,
            is_opened=None if listener.certificate_caches is None else listener.certificates_for,
        )  # fmt: skip
        guard.knows(client.hello, client.hello_size)
    if hand_over(accounting, exchange, client, upstream, held, guard, route.tunnel_idle_s):
        client.deadline.close()
        return
    relaying = relay(accounting, exchange, client, upstream, held, b"", guard, route.tunnel_idle_s)
    del held
    await relaying


def admit_stream_again(
    exchange: Exchange, client: StreamConnection, route: Route, inner: _Inner | None
) -> tuple[Route, ActiveListener]:
    """As `readmission.admit_again`, of a stream that was approved. `inner`: its plaintext, where its TLS ends here."""
    client.state.check_open()
    again, port = exchange.copy(), client.state.port
    listener = name_stream(again, port, client.hello)
    certified, until = ANONYMOUS, inf
    if inner is not None:
        peer = inner.transport.get_extra_info("ssl_object")
        certified, until = port.identity_of(peer), verified_until(peer)
    identify_stream(again, listener, certified, until)
    if again.identity != exchange.identity:
        raise Denied(Reason.CREDENTIALS_REFUSED, "its client would be somebody else by now: connect again")
    own = of_client(exchange, listener)
    found, noted = route_of_stream(own, again.authority)
    certificates = stream_certificates(port, own, again.authority)
    if (listener.terminate is None) is not (inner is None) or certificates is not None:
        raise changed(found)
    take_over(exchange, route, found, noted)
    return found, own


async def open_stream(
    accounting: Accounting,
    exchange: Exchange,
    client: StreamConnection,
    listener: ActiveListener,
    own: ActiveListener,
) -> None:
    """End the client's TLS, and serve what it asks inside, as in a CONNECT (`exchange/interception`). `own`: the
    listener as it is for this client. Raises as `intercept` and `identify`.
    """
    outer = OpenedStream(client, listener)
    try:
        await identify(accounting, exchange, outer, listener, exchange.request)  # for the requests inside
        if accounting.gate is not None:
            client.pipeline.tenant = accounting.gate.admit(exchange, own.spec.policy.priority)
        assert exchange.authority is not None
        cas = own.certificates_for(exchange.authority.host)
        assert cas is not None
        certificates = cas.for_client(exchange.identity)
        await intercept(accounting, exchange, outer, exchange.authority, own, certificates)
    finally:
        outer.discard()


class OpenedStream(ClientConnection):
    """A stream as `intercept` sees it: a client whose tunnel begins with the ClientHello that is here."""

    __slots__ = ("_listener", "_stream")

    def __init__(self, stream: StreamConnection, listener: ActiveListener) -> None:
        super().__init__(stream.handler, stream.accounting.wheel, stream.state)
        self._stream = stream
        self._listener = listener
        self.transport = stream.transport
        self.client = stream.client
        self.pipeline = stream.pipeline

    @property
    def listener(self) -> ActiveListener:
        """That of the name in the ClientHello."""
        return self._listener

    @property
    def counted(self) -> Connection:
        return self._stream

    def accept_tunnel(self) -> None:
        """It has never asked."""

    def detach(self) -> bytes:
        super().detach()
        self.has_ended = self._stream.has_ended
        return self._stream.take_held()

    def continued(self) -> None:
        super().continued()
        self._stream.tunnel_ended()


def alert_for(error: GatewayError, hello: ClientHello) -> bytes:
    """The alert for a client that is refused with its first ClientHello; b"" where the reason is none of its own."""
    if error.reason in (Reason.NO_ROUTE, Reason.SNI_MISMATCH):
        return name_alert(hello)
    return ACCESS_DENIED if isinstance(error, Denied) else b""


class _Inner(_HoldingConnection):
    """The plaintext side of a terminated stream, until the tunnel takes it."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        self.held.append(data)
        self.pause_reading()

    def eof_received(self) -> bool:
        self.has_ended = True
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The client has left before the tunnel was there, while the upstream is dialled for one."""
        self.is_lost = True
        self.driver.throw(ClientGone())


async def terminate(client: StreamConnection, listener: ActiveListener) -> _Inner:
    """TLS with the client: the ClientHello that chose the route is the first that the handshake reads."""
    assert listener.terminate is not None
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def on_handshake(stream: TlsStream, error: Exception | None) -> None:
        if done.done():
            return
        peer = stream.get_extra_info("ssl_object")
        if error is not None:
            done.set_exception(handshake_denial(error, peer))
        elif client.hello is not None and server_name(peer) != client.hello.sni:
            # A session of TLS 1.2 for another name was resumed, which chose neither this route nor this listener.
            done.set_exception(Denied(Reason.SNI_MISMATCH, "the TLS session is one for another name"))
        else:
            done.set_result(None)

    inner = _Inner(client.driver, 0.0)
    tls = TlsStream(listener.terminate, server_side=True, server_hostname=None, inner=inner, on_handshake=on_handshake)
    timer = loop.call_later(listener.timeouts.tls_handshake_s or 60.0, tls.abort_handshake)
    parked = PendingProtocol()
    parked.transport = client.transport
    held = client.take_held()
    parked.hand_over(tls)
    tls.data_received(held)
    try:
        await done
    finally:
        timer.cancel()
    if tls.is_closing():  # the client has left in the same moment: nobody joins `inner` any more
        raise ClientGone
    return inner


def handshake_denial(error: Exception, peer: ssl.SSLObject) -> Denied:
    """Why the client's TLS handshake has failed, as a denial."""
    if is_about_certificate(error):
        detail = client_refusal_text(error, peer)
        return Denied(Reason.CLIENT_CERTIFICATE, "the client's certificate is missing or not valid", detail=detail)
    return Denied(Reason.NOT_TLS, "the TLS handshake failed", detail=type(error).__name__)
