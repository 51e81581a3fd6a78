"""ServedTls: TLS with a client, in front of the connection that serves it in HTTP/1.1 or HTTP/2."""

from __future__ import annotations

import ssl
from abc import abstractmethod
from collections.abc import Callable, Iterable

from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.client_stream import ClientHttp2
from egressproxy.gateway.identity.authenticator import copy_identity
from egressproxy.gateway.open_connections import Holder, OpenConnections
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.net.loop import poller
from egressproxy.net.timers import TimerWheel
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_peer import server_name
from egressproxy.protocols.http1.request_connection import RequestHandler
from egressproxy.telemetry.metrics import Metrics

#: Makes the connection of a client that has agreed on HTTP/2.
Http2 = Callable[[RequestHandler, TimerWheel, OpenConnections, Metrics], ClientHttp2]


class ServedTls(TlsStream):
    """Counts with the listener in place of the connection behind it."""

    __deletable__ = ("_client",)

    def __init__(self, context: ssl.SSLContext, client: ClientConnection, metrics: Metrics) -> None:
        self._client: ClientConnection | ClientHttp2 = client
        self._metrics = metrics
        self._closes_later = False  # see `close_if_idle`
        super().__init__(
            context, server_side=True, server_hostname=None, inner=client, on_handshake=self._handshake_ended
        )

    @abstractmethod
    def _handshake_ended(self, _stream: TlsStream, error: Exception | None) -> None:
        """The handshake is over, well or not."""

    def _speak(self, peer: ssl.SSLObject, http2: Http2 = ClientHttp2) -> None:
        client = self._client
        assert not isinstance(client, ClientHttp2)
        if peer.selected_alpn_protocol() == "h2":
            client.discard()
            self._client = http2(client.handler, client.wheel, client.state, self._metrics)
            copy_identity(self._client, client)
            self.set_protocol(self._client)
        self._client.server_name = server_name(peer)

    def connection_lost(self, exc: Exception | None) -> None:
        state = self._client.state
        super().connection_lost(exc)
        state.leave(self)
        del self._client  # it holds us as its transport: let go

    def close_if_idle(self) -> bool:
        """True if it closes: no exchange is under way. It closes at the end of the turn: thousands may do together."""
        if self.is_lost:
            return True  # the caller has kept the connection
        self._closes_later = True
        try:
            return self._client.close_if_idle()
        finally:
            self._closes_later = False

    def close(self) -> None:
        if self._closes_later:
            poller().end_later(super().close)
        else:
            super().close()

    @property
    def identity(self) -> CallerIdentity:
        return self._client.identity

    def serving(self) -> Iterable[Holder]:
        return self._client.serving()
