"""SniDispatch: a connection to a port that HTTPS shares with TLS listeners, until its ClientHello names the listener.

Source: Gateway API, Listener.hostname: listeners of protocol HTTPS and TLS on one port are told apart by SNI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from egressproxy.gateway.open_connections import Holder, OpenConnections
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.net.flow_control import peer_name
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.tls.client_hello import BadClientHello, ClientHelloReader, NotTls
from egressproxy.telemetry.metrics import Metrics


class SniDispatch(asyncio.Protocol):
    """Holds what a client says until its ClientHello is whole, then lets one of two protocols have all of it. Who names
    no host, or one that is nobody's, is answered in HTTP; of what is no ClientHello the streams say so.
    """

    __slots__ = ("_as_http", "_as_stream", "_deadline", "_metrics", "_reader", "_state", "_transport")

    _transport: asyncio.Transport

    def __init__(
        self,
        as_http: Callable[[], asyncio.Protocol],
        as_stream: Callable[[], asyncio.Protocol],
        wheel: TimerWheel,
        metrics: Metrics,
        state: OpenConnections,
    ) -> None:
        self._as_http = as_http
        self._as_stream = as_stream
        self._metrics = metrics
        self._state = state
        self._reader = ClientHelloReader()
        self._deadline = Deadline(wheel, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        state = self._state
        if state.is_closed or state.admit(self, peer_name(transport), self._metrics) is not None:
            self.abort()
            return
        self._deadline.after(state.port.first.timeouts.tls_handshake_s or 60.0)

    def data_received(self, data: bytes) -> None:
        try:
            hello = self._reader.feed(data)
        except (NotTls, BadClientHello):
            self._go_on(self._as_stream())
            return
        if hello is not None:
            port = self._state.port
            is_stream = port.is_mixed and hello.sni is not None and port.leads_to_stream(hello.sni)
            self._go_on(self._as_stream() if is_stream else self._as_http())

    def _go_on(self, protocol: asyncio.Protocol) -> None:
        """Whoever takes over counts the connection anew."""
        self._leave()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if not self._transport.is_closing():
            protocol.data_received(bytes(self._reader.data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self._deadline.close()
        self._state.leave(self)

    def abort(self) -> None:
        self._transport.abort()

    @property
    def identity(self) -> CallerIdentity:
        return ANONYMOUS

    def serving(self) -> tuple[Holder, ...]:
        return ()

    def close_if_idle(self) -> bool:
        """Until its ClientHello is there nothing is served."""
        self.abort()
        return True
