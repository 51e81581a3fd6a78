"""BoundPort: a listening socket and what is accepted on it. The socket outlives every snapshot that has the same
address and port.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket

from egressproxy.gateway.client import ClientConnection
from egressproxy.gateway.conductor import Conductor
from egressproxy.gateway.listener_state import ListenerState
from egressproxy.gateway.live import Port
from egressproxy.gateway.streams import StreamConnection
from egressproxy.model.exchange import Answer
from egressproxy.protocols.http1.writer import answer_bytes
from egressproxy.telemetry.metrics import Metrics
from egressproxy.transport.tls import TlsStream

__all__ = ["BoundPort", "bind"]

log = logging.getLogger(__name__)

BACKLOG = 1024


def bind(address: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class BoundPort:
    """Accepts connections for whatever the current snapshot has at this address and port."""

    def __init__(self, sock: socket.socket, port: Port, conductor: Conductor, metrics: Metrics) -> None:
        self._sock = sock
        self._conductor = conductor
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._was_started = False  # the loop closes the socket of a server
        self.state = ListenerState(port)
        self.is_stream = port.is_stream

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._was_started = True
        self._server = await loop.create_server(self._accept, sock=self._sock, backlog=BACKLOG)

    def stop_accepting(self) -> None:
        """Connections that are open end with their exchange: what they may ask for is no longer configured."""
        self.state.is_closed = True
        if self._server is not None:
            self._server.close()
            self._server = None
        elif not self._was_started:
            self._sock.close()

    def _accept(self) -> asyncio.BaseProtocol:
        port = self.state.port
        if port.is_stream:
            return StreamConnection(self._conductor, self._metrics, self.state)
        client = CountedClient(self._conductor, self._metrics, self.state)
        if port.tls is None:
            return client
        return tls_front(port, client)

    @property
    def open_connections(self) -> int:
        return len(self.state.connections)

    def close_idle(self) -> None:
        """Ask connections without an exchange to go."""
        for connection in list(self.state.connections):
            connection.close_if_idle()

    def abort_all(self) -> None:
        for connection in list(self.state.connections):
            connection.abort()

    def __repr__(self) -> str:
        return f"BoundPort({self.state})"


class CountedClient(ClientConnection):
    """A client connection that counts against `limits.connections` and `limits.connectionsPerClient` of its
    listener.
    """

    __slots__ = ("metrics",)

    def __init__(self, conductor: Conductor, metrics: Metrics, state: ListenerState) -> None:
        super().__init__(conductor, conductor.wheel, state)
        self.metrics = metrics

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.state.admit(self, self.client):
            self.metrics.connection_rejected("connection_limit")
            answer = Answer(503, ((b"Retry-After", b"1"),), b"too many connections\n")
            self.is_request_read = True
            self.send(answer_bytes(answer, close=True))
            self.close()


def tls_front(port: Port, client: ClientConnection) -> TlsStream:
    """TLS with a client, in front of its connection, with a limit on the time of its handshake."""
    assert port.tls is not None

    def handshake_ended(_stream: TlsStream, error: Exception | None) -> None:
        timer.cancel()
        if error is not None:
            log.debug("a client's TLS handshake failed: %s", type(error).__name__)

    stream = TlsStream(port.tls, server_side=True, server_hostname=None, inner=client, on_handshake=handshake_ended)
    seconds = port.first.timeouts.tls_handshake_s or 60.0
    timer = asyncio.get_running_loop().call_later(seconds, stream.abort_handshake)
    return stream
