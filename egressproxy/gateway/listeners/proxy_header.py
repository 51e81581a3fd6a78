"""ProxyHeaderFront: in front of a client's connection, where named senders say in a PROXY header whose it is.

A connection of such a sender without a header is closed; a connection of anybody else begins at once, and a header on
it is no more than bytes that its protocol does not know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from egressproxy.errors import Reason
from egressproxy.gateway.open_connections import OF_PROCESS, OpenConnections
from egressproxy.identity.peers import AddressTable
from egressproxy.net.flow_control import peer_name
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.proxy_protocol import BadProxyHeader, ProxyHeaderReader
from egressproxy.telemetry.event_aggregator import Refusal
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

#: For the whole header: it is the first thing that a sender says.
HEADER_S = 10.0
#: Connections that wait for one, in this process.
MAX_WAITING = 4096
NO_HEADER = Refusal(
    Reason.PROXY_HEADER,
    "a connection of a sender in identity.proxyProtocol.from has no valid PROXY header",
    remedy="switch the PROXY protocol on in the load balancer, or take its address out of identity.proxyProtocol.from",
)


class ProxyHeaderFront(asyncio.Protocol):
    """The connection counts when the header is there, as its client's: a load balancer is many clients."""

    __slots__ = ("_deadline", "_is_waiting", "_make", "_metrics", "_reader", "_senders", "_state", "_transport")

    waiting = 0  # of this process

    def __init__(
        self,
        senders: AddressTable,
        make: Callable[[], asyncio.BaseProtocol],
        wheel: TimerWheel,
        metrics: Metrics,
        state: OpenConnections,
    ) -> None:
        self._senders = senders
        self._make = make
        self._metrics = metrics
        self._state = state
        self._reader = ProxyHeaderReader()
        self._deadline = Deadline(wheel, self._refuse)
        self._transport: asyncio.Transport | None = None
        self._is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = peer_name(transport)
        if self._senders.find(peer) is None:
            self._begin()
            return
        if ProxyHeaderFront.waiting >= MAX_WAITING:
            self._state.count_refusal(self._metrics, OF_PROCESS)
            self._transport.abort()
            return
        ProxyHeaderFront.waiting += 1
        self._is_waiting = True
        self._deadline.after(HEADER_S)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            is_whole = self._reader.feed(data)
        except BadProxyHeader as error:
            log.debug("a connection of %s is closed: %s", peer_name(transport), error)
            self._refuse()
            return
        if is_whole and self._state.is_closed:  # a reload has come: it may be a sender no more
            transport.abort()
        elif is_whole:
            if self._reader.source is not None:
                cast(SocketTransport, transport).speak_for(self._reader.source)
            self._begin()

    def eof_received(self) -> bool:
        """A sender that only looks whether the port is open: close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ends_waiting()
        self._transport = None

    def _ends_waiting(self) -> None:
        self._deadline.close()
        if self._is_waiting:
            self._is_waiting = False
            ProxyHeaderFront.waiting -= 1

    def _begin(self) -> None:
        transport, rest = self._transport, self._reader.rest
        assert transport is not None
        self._ends_waiting()
        self._transport = None
        made = self._make()
        transport.set_protocol(made)
        made.connection_made(transport)
        if rest and not transport.is_closing():
            cast(asyncio.Protocol, transport.get_protocol()).data_received(rest)

    def _refuse(self) -> None:
        self._state.count_refusal(self._metrics, NO_HEADER)
        if self._transport is not None:
            self._transport.abort()
