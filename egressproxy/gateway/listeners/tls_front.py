"""TlsFront: TLS with a client, in front of its connection: what an HTTPS listener accepts."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from typing import Final, cast

from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.client_stream import ClientHttp2
from egressproxy.gateway.exchange.served_tls import ServedTls
from egressproxy.gateway.open_connections import BAD_CERTIFICATE, OpenConnections
from egressproxy.net.flow_control import peer_name
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_failures import client_refusal_text
from egressproxy.net.tls_peer import is_about_certificate, verified_until
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

#: Clients can fail as fast as they like.
TELL_S: Final = 1.0


class TlsFront(ServedTls):
    """Counts from its first byte, and has a time for its handshake."""

    def __init__(self, context: ssl.SSLContext, client: ClientConnection, metrics: Metrics) -> None:
        super().__init__(context, client, metrics)
        self._timer: asyncio.TimerHandle | None = None
        self._is_shaking_hands = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Breaks off where the listener has its connections already; else the time for the handshake begins."""
        state = self._client.state
        if state.is_closed or state.admit(self, peer_name(transport), self._metrics) is not None:
            cast(asyncio.Transport, transport).abort()
            return
        seconds = state.port.first.timeouts.tls_handshake_s or 60.0
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort_handshake)
        super().connection_made(transport)

    def close_if_idle(self) -> bool:
        if self._is_shaking_hands:
            self.abort_handshake()
            return True
        return super().close_if_idle()

    def _handshake_ended(self, _stream: TlsStream, error: Exception | None) -> None:
        self._is_shaking_hands = False
        if self._timer is not None:
            self._timer.cancel()
        client = self._client
        if error is None:
            peer = self.get_extra_info("ssl_object")
            self._speak(peer)
            self._client.identity = client.state.port.identity_of(peer)
            self._client.identity_until = verified_until(peer)
        else:
            assert not isinstance(client, ClientHttp2)
            client.discard()
            log.debug("a client's TLS handshake failed: %s", type(error).__name__)
            if is_about_certificate(error):
                client.state.count_refusal(self._metrics, BAD_CERTIFICATE)
                self._tell_refused(client.state, error)

    def _tell_refused(self, state: OpenConnections, error: Exception) -> None:
        """Log whose certificate was refused, and why: one of a port in TELL_S seconds, and how many were not told."""
        now = time.monotonic()
        if now < state.told_refusal + TELL_S:
            state.untold_refusals += 1
            return
        untold, state.untold_refusals, state.told_refusal = state.untold_refusals, 0, now
        listener, peer = state.port.first, self.get_extra_info("ssl_object")
        log.warning(
            "listener %s/%s: the certificate of the client at %s is refused: %s%s",
            listener.gateway, listener.name, peer_name(self), client_refusal_text(error, peer),
            f"; {untold} more since the last of these lines" if untold else "",
        )  # fmt: skip
