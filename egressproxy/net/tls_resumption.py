"""TLS sessions that connections to one destination are resumed with (RFC 8446 section 2.2, RFC 5077): without the
server's certificate and signature, a handshake takes a fifth of the time.

A resumed handshake looks at no certificate chain. So a session comes from a handshake that did, ends with the server's
certificate and after an hour at most, and is never taken over from a session that was resumed itself. Names and pins
are checked again (`ClientTls.verify`). Whoever looks revocation lists up resumes nothing: the list may end meanwhile.

One TlsResumption belongs to one target of one cluster, as a pool does: other trust, another client certificate, other
names, pins or versions are another cluster. A session is of its context, too, which has what ALPN offers.
"""

from __future__ import annotations

import ssl
import time
from typing import Any, Final

#: From the handshake in which the certificate was verified to the last one that is resumed, in seconds.
MAX_AGE_S: Final = 3600.0


class TlsResumption:
    """The session of the latest whole handshake with one destination."""

    __slots__ = ("_context", "_newest", "_session", "_until")

    def __init__(self) -> None:
        self._session: ssl.SSLSession | None = None
        self._context: ssl.SSLContext | None = None
        self._newest: ssl.SSLObject | None = None  # a connection whose session has not been taken yet
        self._until = 0.0  # seconds since the epoch

    def session(self, context: ssl.SSLContext) -> ssl.SSLSession | None:
        """What the next connection of this context may be resumed with; None for a whole handshake."""
        if self._newest is not None and self._newest.context is context:
            self._take(self._newest)
        if self._session is None or self._context is not context:
            return None
        if time.time() >= self._until:
            self._session = None
        return self._session

    def opened(self, peer: ssl.SSLObject) -> None:
        """A handshake is done, and the server verified."""
        if peer.session_reused:
            return
        shown: dict[str, Any] = dict(peer.getpeercert() or {})
        self._until = time.time() + MAX_AGE_S
        if "notAfter" in shown:
            self._until = min(self._until, ssl.cert_time_to_seconds(shown["notAfter"]))
        self._session, self._newest = None, peer

    def ended(self, peer: ssl.SSLObject) -> None:
        """This connection is over. In TLS 1.3 its sessions came behind the handshake (RFC 8446 section 4.6.1)."""
        if peer is self._newest:
            self._take(peer)
            self._newest = None

    def failed(self) -> None:
        """A connection failed in a fatal way: the next handshake is a whole one (RFC 5246 section 7.2.2)."""
        self._session = self._newest = None

    def _take(self, peer: ssl.SSLObject) -> None:
        session = peer.session
        if session is None or not (session.has_ticket or (session.id and peer.version() == "TLSv1.2")):
            return  # it may still come
        self._session, self._context, self._newest = session, peer.context, None
