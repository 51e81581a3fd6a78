"""What a client of a `server_context` has shown in its handshake: a server name, a certificate."""

from __future__ import annotations

import ssl
from math import inf
from typing import Any, Final

#: The attribute in which the SNI callback stores the name; the ssl module passes the name to the callback alone.
SERVER_NAME: Final = "egressproxy_server_name"
#: The attribute of a context that verifies clients' certificates, if they present any.
VERIFIES: Final = "egressproxy_verifies"


def server_name(peer: ssl.SSLObject) -> str:
    """The SNI of a client of such a context, in lower case, "" without SNI."""
    return str(getattr(peer, SERVER_NAME, ""))


def has_said_hello(peer: ssl.SSLObject) -> bool:
    """Whether the ClientHello was read, so that the client gets the certificate."""
    return hasattr(peer, SERVER_NAME)


def verified_fields(peer: ssl.SSLObject) -> dict[str, Any]:
    """Subject, names and dates of the verified certificate of a client of a `server_context`, as `getpeercert` gives
    them; {} without one, or if unverified certificates are accepted.
    """
    return dict(peer.getpeercert() or {}) if getattr(peer.context, VERIFIES, False) else {}


def verified_uris(peer: ssl.SSLObject) -> list[str]:
    """The URIs (subject alternative names) of the verified certificate; [] where there is none."""
    return [value for kind, value in verified_fields(peer).get("subjectAltName", ()) if kind == "URI"]


def verified_until(peer: ssl.SSLObject) -> float:
    """The expiry of the verified certificate, in seconds since 1970; infinity without one. A resumed session has the
    certificate of the first handshake, whose dates are not checked again.
    """
    ends = verified_fields(peer).get("notAfter")
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else inf


def is_about_certificate(error: Exception) -> bool:
    """Whether a handshake with a client failed because its certificate was missing, or could not be verified."""
    return isinstance(error, ssl.SSLCertVerificationError) or (
        getattr(error, "reason", "") == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    )
