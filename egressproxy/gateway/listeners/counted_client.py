"""CountedClient: a client's connection without TLS, which counts with its listener from its first moment."""

from __future__ import annotations

import asyncio
from typing import Final

from egressproxy.errors import GatewayError
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.client_stream import ClientHttp2
from egressproxy.gateway.exchange.connection_manager import HttpConnectionManager
from egressproxy.gateway.listeners.refused_client import RefusedClient
from egressproxy.gateway.open_connections import OF_PROCESS, TOO_MANY, OpenConnections
from egressproxy.model.local_response import LocalResponse
from egressproxy.telemetry.metrics import Metrics

#: How a client of HTTP/2 that knows us begins; no request of HTTP/1 can.
PREFACE_LINE: Final = b"PRI * HTTP/2.0\r\n"


class CountedClient(ClientConnection):
    """A client's connection without TLS, which counts against its listener's limits of connections."""

    __slots__ = ("metrics",)

    def __init__(self, connection_manager: HttpConnectionManager, metrics: Metrics, state: OpenConnections) -> None:
        super().__init__(connection_manager, connection_manager.wheel, state)
        self.metrics = metrics

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answers 503 where the listener has its connections already."""
        super().connection_made(transport)
        if self.state.is_closed:  # accepted in the moment in which its listener went
            self.abort()
            return
        refused = self.state.admit(self, self.client, self.metrics)
        if refused is not None:
            is_of_all = refused is TOO_MANY or refused is OF_PROCESS
            says = b"too many connections\n" if is_of_all else b"too many connections of this client\n"
            self.refuse_connection(LocalResponse(503, ((b"Retry-After", b"1"),), says))

    def refuse_connection(self, answer: LocalResponse) -> None:
        """Tell the client that it finds no room."""
        transport = self.transport
        self.detach()
        transport.set_protocol(RefusedClient(transport, self.wheel, answer, self.state.clients))

    def refuse(self, error: GatewayError) -> None:
        """What is no request of HTTP/1 may be the preface of HTTP/2, which begins like one (RFC 9113 section 3.4)."""
        if self.reader.is_untouched and self.tunnel is None and self.reader.begins_with(PREFACE_LINE):
            self._speak_http2()
        else:
            super().refuse(error)

    def _speak_http2(self) -> None:
        transport, early = self.transport, self.detach()
        other = ClientHttp2(self.handler, self.wheel, self.state, self.metrics)
        self.state.replace(self, other)
        transport.set_protocol(other)
        other.connection_made(transport)
        other.data_received(early)
