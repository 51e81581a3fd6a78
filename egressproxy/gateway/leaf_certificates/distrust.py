"""Why a client has refused the certificate that it was shown, or has spoken no TLS, as an error."""

from __future__ import annotations

import ssl
from typing import Final

from egressproxy.errors import BadRequest, ClientGone, Denied, GatewayError, Reason
from egressproxy.model.authority import Authority
from egressproxy.net.tls_peer import has_said_hello, server_name

#: What OpenSSL calls the alerts of clients that do not believe a certificate (RFC 8446 section 6.2): who does not know
#: the CA, and who pins another key, say one of these, as their library has it.
DISTRUST: Final = frozenset(
    {
        "TLSV1_ALERT_UNKNOWN_CA",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "TLSV1_BAD_CERTIFICATE_STATUS_RESPONSE",
    }
)


def handshake_denial(error: Exception, peer: ssl.SSLObject, authority: Authority) -> GatewayError:
    """Why the client's TLS in the tunnel has not come about."""
    reason, host = getattr(error, "reason", None), authority.host
    detail = f"{type(error).__name__}: {error}"
    named = server_name(peer)
    if named not in ("", host):
        message = f"the ClientHello in the tunnel to {authority} names another server (SNI)"
        return Denied(Reason.SNI_MISMATCH, message, detail=f"SNI {named}")
    if isinstance(error, TimeoutError):
        return BadRequest(Reason.CLIENT_TIMEOUT, f"the TLS handshake in the tunnel to {authority} took too long")
    has_left = not isinstance(error, ssl.SSLError) or reason == "UNEXPECTED_EOF_WHILE_READING"
    if reason in DISTRUST or (has_left and has_said_hello(peer)):
        return distrust(authority, error)
    if has_left:
        return ClientGone("the client left in the TLS handshake of its tunnel")
    return Denied(Reason.NOT_TLS, f"the tunnel to {authority} has to carry TLS that can be opened", detail=detail)


def distrust(authority: Authority, error: Exception | None) -> Denied:
    """The client has seen the certificate, and has refused it, or has left without a word."""
    host = authority.host
    message = f"a client does not trust the certificate that it is shown for {host}: it lacks the CA, or pins a key"
    remedy = f"give the client the CA (`egressproxy ca trust`), or take {host} out of intercept.hostnames"
    detail = f"{type(error).__name__}: {error}" if isinstance(error, ssl.SSLError) else "it left without an alert"
    return Denied(Reason.INTERCEPTION_REFUSED, message, remedy=remedy, detail=detail)
