"""FilterServer: accepts connections of Envoy, and runs each call of ext_proc in a ProcessedExchange.

It also serves grpc.health.v1.Health/Check. A client gets the fields that filters add to requests, credentials included,
so protect the socket like these credentials.

Sources: Envoy API v3, service/ext_proc/v3/external_processor.proto; gRPC health checking protocol.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from time import monotonic
from typing import Final

from egressproxy.envoy.ext_proc.messages import PROCESS
from egressproxy.envoy.ext_proc_server.call import MalformedCall, StreamingCall
from egressproxy.envoy.ext_proc_server.conversation import EnvoyConversation
from egressproxy.envoy.ext_proc_server.envoy_messages import EnvoyMisconfigured
from egressproxy.envoy.ext_proc_server.exchange import ProcessedExchange
from egressproxy.envoy.ext_proc_server.gateways import GATEWAY_FIELD, LISTENER_FIELD, ServedGateways
from egressproxy.envoy.ext_proc_server.tls_files import TlsFiles
from egressproxy.errors import GatewayError
from egressproxy.gateway.gateway import GatewayServer
from egressproxy.model.grpc_status import GrpcStatus
from egressproxy.model.message import RequestHead
from egressproxy.net.loop import poller
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.tls import TlsStream
from egressproxy.net.watched_socket import Socket
from egressproxy.protocols.grpc import health
from egressproxy.protocols.grpc.statuses import is_grpc
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.downstream import DownstreamHttp2
from egressproxy.protocols.http2.downstream_stream import DownstreamStream
from egressproxy.run_options import FilterListener

log = logging.getLogger(__name__)

#: Connections taken in one turn at most.
_MAX_AT_ONCE: Final = 64
#: How long nothing is accepted where no descriptor is left.
_PAUSE_S: Final = 0.1
#: A peer that is gone without a word is noticed after a minute: it may have calls that wait for a slow upstream.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_HEAD_S: Final = 10.0
_DRAIN_POLL_S: Final = 0.05
#: Head of a call: Envoy adds few fields to it.
_LIMITS: Final = HeadLimits(max_head_bytes=16 * 1024)


class FilterServer:
    """Serves the filters of the snapshot that `gateway` has in service. Implements RequestHandler for its streams."""

    def __init__(self, gateway: GatewayServer, at: FilterListener, tls: TlsFiles | None) -> None:
        """`tls`: the files of `at`, None for a listener without TLS."""
        self._gateway = gateway
        self._at = at
        self._tls = tls
        self._served: ServedGateways | None = None
        self._sock: socket.socket | None = None
        self._reported: set[str] = set()
        self.misconfigured = 0  # requests that were refused because of how Envoy is configured
        self._connections: set[EnvoyConnection] = set()
        self.is_draining = False

    # --- its life ------------------------------------------------------------------------------------------------
    def start(self, sock: socket.socket) -> None:
        """Accept connections on this listening socket, which is closed when the server drains."""
        self._sock = sock
        self._poller = poller()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock.fileno(), self._accept)

    async def drain(self, timeout_s: float) -> int:
        """Accept no more calls, and wait for calls in flight. Returns the number of connections cut."""
        self.is_draining = True
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        for connection in list(self._connections):
            connection.leave(gently=True)
        ends_at = monotonic() + timeout_s
        while self._connections and monotonic() < ends_at:  # noqa: ASYNC110 (as the gateway's drain)
            await asyncio.sleep(_DRAIN_POLL_S)
        left = len(self._connections)
        self.hurry()
        await asyncio.sleep(0)
        return left

    def hurry(self) -> None:
        for connection in list(self._connections):
            connection.transport.abort()

    def _accept(self) -> None:
        for _ in range(_MAX_AT_ONCE):
            if self._sock is None:
                return
            try:
                fd, peer = self._sock._accept()  # type: ignore[attr-defined]  # as BoundPort
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                log.error("no connection can be accepted on %s: %s", self._at, error.strerror)
                self._loop.remove_reader(self._sock.fileno())
                self._loop.call_later(_PAUSE_S, self._go_on)
                return
            sock = Socket(self._sock.family, socket.SOCK_STREAM, 0, fd)
            sock.setblocking(False)
            if not self._at.path:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _KEEPALIVE:
                    sock.setsockopt(socket.IPPROTO_TCP, option, value)
            connection: asyncio.Protocol = EnvoyConnection(self, self._gateway)
            if self._tls is not None:
                connection = TlsStream(
                    self._tls.context(), server_side=True, server_hostname=None, inner=connection, on_handshake=_shaken
                )
            SocketTransport(self._poller, sock, connection, peer or None).start()

    def _go_on(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def joined(self, connection: EnvoyConnection) -> None:
        """Add an open connection."""
        self._connections.add(connection)
        if self.is_draining:
            connection.leave(gently=False)

    def left(self, connection: EnvoyConnection) -> None:
        self._connections.discard(connection)

    # --- calls ---------------------------------------------------------------------------------------------------
    def on_request(self, client: DownstreamStream, head: RequestHead) -> None:
        client.driver.start(self._serve(client, head))

    def on_bad_request(self, client: DownstreamStream, error: GatewayError) -> None:
        StreamingCall(client).end(GrpcStatus.INTERNAL, error.message)
        client.finish(close=False)

    def on_deadline(self, client: DownstreamStream) -> None:
        """RequestHandler: calls have none; each filter has its own."""

    def on_lost(self, client: DownstreamStream) -> None:
        """RequestHandler: the connection is gone, and its streams with it."""

    async def _serve(self, stream: DownstreamStream, head: RequestHead) -> None:
        call = StreamingCall(stream)
        try:
            if not is_grpc(head.fields.get(b"content-type")):
                call.end(GrpcStatus.INVALID_ARGUMENT, "this is a server of gRPC: content-type application/grpc")
            elif head.path == PROCESS:
                call.listen()
                fields = head.fields
                conversation = EnvoyConversation(call, self._gateway.connection_manager.accounting, stream.client)
                served = ProcessedExchange(
                    conversation, self._gateways, self._at.trust_domains, self._note_misconfigured
                )
                await served.serve(fields.get(GATEWAY_FIELD) or b"", fields.get(LISTENER_FIELD) or b"")
            elif head.path == health.CHECK:
                call.listen()
                await self._check(call)
            else:
                call.end(GrpcStatus.UNIMPLEMENTED, "the methods here are ExternalProcessor/Process and Health/Check")
        finally:
            stream.finish(close=False)

    async def _check(self, call: StreamingCall) -> None:
        try:
            asked = await call.next()
        except MalformedCall as fault:
            call.end(fault.status, str(fault))
            return
        except GatewayError:
            return  # it has gone
        if asked in (b"", health.check_message(_SERVICE)):
            call.send(health.NOT_SERVING if self.is_draining else health.SERVING)
            call.end()
        else:
            call.end(GrpcStatus.NOT_FOUND, f"the services here are {_SERVICE} and the server as a whole")

    def _note_misconfigured(self, error: EnvoyMisconfigured, peer: str) -> None:
        """Count the error, and log it once, since each request repeats it."""
        self.misconfigured += 1
        if error.message not in self._reported:
            self._reported.add(error.message)
            log.warning("Envoy at %s: %s; %s", peer, error.message, error.remedy)

    def _gateways(self) -> ServedGateways:
        """The Gateways of the snapshot in service."""
        snapshot = self._gateway.snapshot
        assert snapshot is not None, "no snapshot in service"
        if self._served is None or self._served.snapshot is not snapshot:
            self._served = ServedGateways(snapshot)
        return self._served


_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"


class EnvoyConnection(DownstreamHttp2):
    __slots__ = ("_server",)

    def __init__(self, server: FilterServer, gateway: GatewayServer) -> None:
        super().__init__(server, gateway.wheel, _LIMITS, _HEAD_S, 0, is_forward=False, extended_connect=False)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.joined(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._server.left(self)

    def gave_up(self) -> None:
        """Do not count resets as a flood: Envoy resets each call that it no longer needs."""


def _shaken(_stream: TlsStream, error: Exception | None) -> None:
    if error is not None:
        log.warning("a TLS handshake with an Envoy failed: %s", type(error).__name__)
