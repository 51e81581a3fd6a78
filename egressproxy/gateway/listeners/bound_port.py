"""BoundPort: a listening socket and what is accepted on it. The socket outlives every snapshot that has the same
address and port.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.connection_manager import HttpConnectionManager
from egressproxy.gateway.listeners.counted_client import CountedClient
from egressproxy.gateway.listeners.proxy_header import ProxyHeaderFront
from egressproxy.gateway.listeners.sni_dispatch import SniDispatch
from egressproxy.gateway.listeners.socks_connection import SocksConnection
from egressproxy.gateway.listeners.stream_connection import StreamConnection
from egressproxy.gateway.listeners.tls_front import TlsFront
from egressproxy.gateway.listeners.transparent_connection import TransparentConnection
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.gateway.snapshot import Port
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.net.listener_watch import ListenerWatch
from egressproxy.net.listening import BACKLOG, accepting_unix
from egressproxy.net.loop import poller
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.watched_socket import Socket
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_STREAM: Final[int] = int(socket.SOCK_STREAM)
#: Connections taken in one turn at most.
MAX_AT_ONCE: Final = 64
#: After so many, it is another process's turn.
TURN_CONNECTIONS: Final = 8
#: The connections of circuit-level protocols.
_CIRCUIT_LEVEL: Final[dict[ListenerProtocol, type[CountedClient]]] = {
    ListenerProtocol.SOCKS5: SocksConnection,
    ListenerProtocol.TRANSPARENT: TransparentConnection,
}
#: Without descriptors or memory: how long nothing is accepted, and how often it is said.
PAUSE_S: Final = 0.1
SILENCE_S: Final = 10.0


class BoundPort:
    """Accepts connections for whatever the current snapshot has at this address and port. `dns` makes those of DNS;
    `receive`, if not None, reads datagrams from the socket instead.
    """

    def __init__(
        self, sock: socket.socket, port: Port, connection_manager: HttpConnectionManager, metrics: Metrics,
        dns: Callable[[OpenConnections], asyncio.BaseProtocol], receive: Callable[[OpenConnections], None] | None,
    ) -> None:  # fmt: skip
        self._sock = sock
        self._connection_manager = connection_manager
        self._metrics = metrics
        self._dns = dns
        self._receive = receive
        self._watch: ListenerWatch | None = None  # while connections are accepted
        self._pause: asyncio.TimerHandle | None = None
        self._silent_until = 0.0
        self._is_held = False  # see `pause_accepting`
        self._accept_one = sock._accept  # type: ignore[attr-defined]    # without the Python class around the result
        if sock.family == socket.AF_UNIX:
            self._accept_one = accepting_unix(self._accept_one)
        self._family = int(sock.family)
        self._at_once = 1  # how many connections are taken in one turn
        self._taken = 0  # since we joined the end of the queue of processes
        self.state = OpenConnections(port, self._connection_manager.clients)
        self._former: list[OpenConnections] = []  # of connections that came on other terms

    def start(self) -> None:
        """Accept connections. Of the processes that share the socket each wakes the first that has nothing to do."""
        self._sock.setblocking(False)
        self._poller = poller()
        self._watch = ListenerWatch(self._poller, self._sock.fileno(), self)
        self._taken = 0

    def serve(self, port: Port) -> None:
        """Serve this port from now on. If its `terms` differ, open connections end with their exchange, since they were
        accepted without a certificate or limit that holds now. Tunnels go on, and count.
        """
        if port.terms == self.state.port.terms:
            self.state.port = port
            return
        before = self.state
        before.is_closed = True
        self._former = [state for state in (*self._former, before) if state.connections]
        self.state = OpenConnections(port, self._connection_manager.clients, before.tunnels_of)
        before.close_idle()

    def begin_drain(self, *, takes_waiting: bool) -> None:
        """Accept no more; open connections are served. `takes_waiting`: first accept what waits in the kernel, which
        resets it when the last copy of the socket is closed.
        """
        if takes_waiting and self._watch is not None:
            self._at_once = BACKLOG + 1
            self._poller.serve_one(self._sock.fileno(), select.EPOLLIN, self)
        self._stop_watching()
        self._sock.close()

    @property
    def states(self) -> tuple[OpenConnections, ...]:
        """The open connections, those of former terms first, which are older."""
        return (*self._former, self.state)

    def pause_accepting(self) -> None:
        """Leave connections where they wait: another process may take them, or we, after `resume_accepting`."""
        self._is_held = self._watch is not None or self._pause is not None
        self._stop_watching()

    def resume_accepting(self) -> None:
        """Undo `pause_accepting`; nothing, where the socket is closed."""
        is_held, self._is_held = self._is_held, False
        if is_held and self._sock.fileno() >= 0:
            self._go_on()

    def stop_accepting(self) -> None:
        """Connections that are open end with their exchange: what they may ask for is no longer configured."""
        self.state.is_closed = True
        self._stop_watching()
        self._sock.close()

    def _stop_watching(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def ready(self, _fd: int, _events: int) -> None:
        """Connections wait: take as many as the last time, and more where there were more. Asking for one that is not
        there costs as much as taking one, so a single one is taken without asking again.
        """
        if self._receive is not None:
            self._receive(self.state)
            return
        for _ in range(self._at_once):
            try:
                fd, peer = self._accept_one()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                self._at_once = max(1, self._at_once // 2)
                break
            except OSError as error:
                if self._watch is not None:  # else what was just accepted has closed it
                    self._cannot_accept(error)
                return
            sock = Socket(self._family, _STREAM, 0, fd)
            sock.setblocking(False)
            self._taken += 1
            SocketTransport(self._poller, sock, self._accept(), peer).start()
        else:
            self._at_once = min(self._at_once * 2, MAX_AT_ONCE)
        if self._taken >= TURN_CONNECTIONS and self._watch is not None:
            self._taken = 0
            self._watch.let_others_first()

    def failed(self, error: Exception) -> None:
        """One connection could not be taken; the next may be."""

    def unwatched(self, error: OSError) -> None:
        """There is no memory to watch for connections with."""
        self._cannot_accept(error)

    def _cannot_accept(self, error: OSError) -> None:
        """No descriptor or no memory is left: the connections wait where they are, and so do we for a moment."""
        reason = "no_descriptor" if error.errno in (errno.EMFILE, errno.ENFILE) else "no_memory"
        self._metrics.connections_rejected[reason] += 1
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + SILENCE_S
            log.error("no connection can be accepted on %s: %s", self.state.port, error.strerror)
        self._stop_watching()
        self._go_on_later()

    def _go_on_later(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        try:
            self.start()
        except OSError:  # there is no memory to watch it with, either
            self._go_on_later()

    def _accept(self) -> asyncio.BaseProtocol:
        state = self.state
        if state.port.senders is None:
            return self._accept_client()
        return ProxyHeaderFront(
            state.port.senders, self._accept_client, self._connection_manager.wheel, self._metrics, state
        )

    def _accept_client(self) -> asyncio.BaseProtocol:
        port = self.state.port
        if port.is_dns:
            return self._dns(self.state)
        if port.is_stream:
            return StreamConnection(self._connection_manager, self._metrics, self.state)
        if port.tls is None:
            kind = CountedClient if port.circuit_level is None else _CIRCUIT_LEVEL[port.circuit_level]
            return kind(self._connection_manager, self._metrics, self.state)
        if not port.is_mixed:
            return self._secured(self.state)
        stream = partial(StreamConnection, self._connection_manager, self._metrics, self.state)
        secured = partial(self._secured, self.state)
        return SniDispatch(secured, stream, self._connection_manager.wheel, self._metrics, self.state)

    def _secured(self, state: OpenConnections) -> TlsFront:
        assert state.port.tls is not None
        return TlsFront(
            state.port.tls,
            ClientConnection(self._connection_manager, self._connection_manager.wheel, state),
            self._metrics,
        )

    @property
    def open_connections(self) -> int:
        return sum(len(state.connections) for state in self.states)

    def close_idle(self) -> None:
        """Ask connections without an exchange to go."""
        for state in (self.state, *self._former):
            state.close_idle()

    def abort_all(self) -> None:
        """Break off every connection: the time of the drain is over."""
        for state in (self.state, *self._former):
            for connection in list(state.connections):
                connection.abort()
