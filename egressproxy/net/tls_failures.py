"""Errors of TLS connections to upstreams: the backend, the certificate presented, the expectation, and the remedy.

The message is for clients. Except for dates it has no text from the upstream, which could contain anything. `detail` is
for the log and `explain`: it has the certificate's subject, names, issuer, validity and fingerprint, in printable ASCII
and bounded.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.model.encoding import rfc3339

#: The name of a TlsStream's TlsExpectation in `get_extra_info`.
TLS_EXPECTATION: Final = "tls_expectation"
#: Limits of the upstream's text: characters of a value, names of a certificate, certificates of a chain.
_MAX_VALUE: Final = 120
_MAX_NAMES: Final = 8
_MAX_CHAIN: Final = 5
_PEM_TO_DER: Final = 2  # ENCODING_DER of CPython's _ssl


class TlsTruncated(ConnectionError):
    """The TCP connection ended without close_notify: what was received may be cut short."""


@dataclass(frozen=True, slots=True)
class TlsExpectation:
    """The expectation of an upstream connection. `who` names the upstream for people ("backend agents/o"), `host` is
    the dialled name or address. `ca_field` is the field with its CAs; `name_remedy` is the remedy for a certificate
    with another name. "": as for a Backend.
    """

    who: str
    host: str
    spec: BackendTlsIR
    ca_field: str = ""
    name_remedy: str = ""


#: The shown types of subject alternative names, by the ssl module's names.
_KINDS: Final = {"DNS": "", "URI": "", "IP Address": ""}

_CA_FIELDS: Final = "tls.caBundleRef of a Backend, or caCertificateRefs of a BackendTLSPolicy or token issuer"
_NAME_CA: Final = "for a private authority, name its certificates in "
_CA_REMEDY: Final = f"{_NAME_CA}{_CA_FIELDS}"
_BUNDLE_REMEDY: Final = "put the authority that signed it, its root, or the certificate itself into {}"
#: The remedy with revocation lists.
_ROOT_REMEDY: Final = "put the root of its chain, up to which revocation lists are checked, into {}"
_POLICY_CAS: Final = "the CAs of a policy"
_SERVER_REMEDY: Final = "the server needs another certificate"
_CRL_REMEDY: Final = "put the present revocation list of every authority of the chain into the object of tls.crlRefs"
_NAME_REMEDY: Final = "say the name that the certificate has: tls.sni, or tls.subjectAltNames"
_WEAK_KEY: Final = "the server needs a certificate with an RSA key of 2048 bits or more, or a P-256 key"
_NO_AUTHORITY: Final = "is not trusted: the authority that signed it is not known"
_LIST: Final = "is not trusted: the revocation list of its authority"
#: The field with the CAs of clients' certificates.
_CLIENT_CAS: Final = "the objects of caCertificateRefs"
#: Words about a server, and their replacement for a client.
_OF_CLIENTS: Final = (
    ("for servers", "for clients"), ("serverAuth", "clientAuth"), ("the server needs", "the client needs"),
    ("tls.crlRefs", "identity.certificate.crlRefs"),
)  # fmt: skip
_FORM: Final = "has a form that is not accepted"

#: OpenSSL's verify codes (x509_vfy.h) -> the fault of "the certificate of …", and the remedy. The fault is one of
#: trust, name, time, or, for all other codes, form.
_CERTIFICATE: Final[dict[int, tuple[str, str]]] = {
    1: (
        "is not trusted: it is none of trustedCertificates",
        "put the server's certificate into an object of trustedCertificates",
    ),
    2: (_NO_AUTHORITY, _CA_REMEDY),
    3: (f"{_LIST} is missing", _CRL_REMEDY),
    8: (f"{_LIST} has a wrong signature", _CRL_REMEDY),
    9: ("is not valid yet", "look at the clocks of both machines"),
    10: ("has expired", "the server needs a renewed certificate"),
    11: (f"{_LIST} is not valid yet", _CRL_REMEDY),
    12: (f"{_LIST} has expired", _CRL_REMEDY),
    18: ("is not trusted: it is self-signed", f"{_CA_REMEDY}; of a self-signed one this is the certificate itself"),
    19: ("is not trusted: its chain ends in a root that is not known", _CA_REMEDY),
    20: (_NO_AUTHORITY, _CA_REMEDY),
    21: (_NO_AUTHORITY, _CA_REMEDY),
    23: ("is not trusted: it has been revoked", _SERVER_REMEDY),
    27: ("is not trusted: the system marks its root as not for this use", _CA_REMEDY),
    28: ("is not trusted: the system marks its root as rejected", _CA_REMEDY),
    33: (f"{_LIST} cannot be verified", _CRL_REMEDY),
    47: ("is for a name that its authority may not vouch for (name constraints)", _SERVER_REMEDY),
    48: ("is for a name that its authority may not vouch for (name constraints)", _SERVER_REMEDY),
    50: (
        "is not trusted: its key is not pinned",
        "if the server has a new key, add its pin, which the log has, to tls.pins",
    ),
    62: ("is for another name", _NAME_REMEDY),
    64: ("is for another address", _NAME_REMEDY),
    73: (
        "is not trusted: it asks for a stapled response of OCSP (must-staple), which this gateway does not request",
        "the server needs a certificate without must-staple; or name revocation lists in tls.crlRefs of the Backend",
    ),
    **{
        code: (f"{_FORM}: {words}", remedy)
        for code, words, remedy in (
            (7, "its signature is wrong", _SERVER_REMEDY),
            (22, "its chain is too long", _SERVER_REMEDY),
            (25, "its chain is longer than one of its authorities allows (pathlen)", _SERVER_REMEDY),
            (26, "it is not for servers (extended key usage)", "the server needs a certificate with serverAuth"),
            (32, "it is signed with a certificate that may not sign others (key usage)", _SERVER_REMEDY),
            (34, "it has a critical extension that is not known", _SERVER_REMEDY),
            (66, "its key is too weak", _WEAK_KEY),
            (67, "the key of its authority is too weak", _WEAK_KEY),
            (68, "its digest is too weak, such as SHA-1", "the server needs one that is signed with SHA-256"),
            (79, "it is signed with a certificate that is no authority's", _SERVER_REMEDY),
        )
    },
}
_EXPIRED, _NO_ISSUER, _UNVERIFIED_LEAF, _OTHER_NAME = 10, 20, 21, 62
_NO_NAMES: Final = (
    "names no host: a common name does not count",
    "the server needs a certificate with subject alternative names",
)
_INTERMEDIATE: Final = "where that authority is trusted already, the server has to send its intermediate certificates"

_VERSION: Final = ("speaks no version of TLS that is allowed here", "have the server speak TLS {min_version} or later")
_CLIENT: Final = (
    "refuses our client certificate",
    "look at the Secret of tls.clientCertificateRef: its validity, and whether the server trusts its authority",
)
_NO_TLS: Final = ("does not speak TLS at this port", "look at the port; for plain text write tls.mode: None")
_IN_COMMON: Final = (
    "accepts none of our TLS versions and ciphers, or wants a client certificate",
    "have the server speak TLS {min_version} or later with AES-GCM or ChaCha20; or name tls.clientCertificateRef",
)
#: Reasons of OpenSSL's errors, most of them alerts of the upstream (RFC 8446 section 6.2), as "backend x …".
_PROTOCOL: Final[dict[str, tuple[str, str]]] = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "UNSUPPORTED_PROTOCOL": _VERSION,
    "UNSUPPORTED_SSL_VERSION": _VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": _VERSION,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": _IN_COMMON,
    "TLSV1_ALERT_INSUFFICIENT_SECURITY": _IN_COMMON,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("asks for a client certificate", "name its Secret: tls.clientCertificateRef"),
    "SSLV3_ALERT_BAD_CERTIFICATE": _CLIENT,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": _CLIENT,
    "SSLV3_ALERT_CERTIFICATE_REVOKED": _CLIENT,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": _CLIENT,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _CLIENT,
    "TLSV1_ALERT_UNKNOWN_CA": _CLIENT,
    "TLSV1_ALERT_ACCESS_DENIED": _CLIENT,
    "TLSV1_UNRECOGNIZED_NAME": ("knows no server of the name that it is asked for (SNI)", "say its name: tls.sni"),
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": (
        "speaks none of the protocols that it is offered (ALPN)", "look at protocol of the Backend's port",
    ),
    "DH_KEY_TOO_SMALL": ("agrees on keys that are too weak", "have the server speak ECDHE"),
    "EE_KEY_TOO_SMALL": ("has a certificate with a key that is too weak", _WEAK_KEY),
}  # fmt: skip
_OTHERWISE: Final = "it does not speak TLS, or refused our versions, ciphers or certificate"


def tls_fault(
    exc: BaseException,
    retry: RetrySafety = RetrySafety.NEVER,
    *,
    expected: TlsExpectation | None = None,
    peer: ssl.SSLObject | None = None,
) -> UpstreamFault:
    """Translate an error of a TLS connection to an upstream: TLS_TIMEOUT 504, TLS_CERTIFICATE or TLS_PROTOCOL 502. Safe
    to retry if the handshake failed for another reason than a certificate. `peer`: the connection so far; `detail` has
    the certificate presented, and OpenSSL's error.
    """
    who = expected.who if expected is not None else "the upstream"
    remedy = ""
    if isinstance(exc, TimeoutError):
        reason, status, message = Reason.TLS_TIMEOUT, 504, f"the TLS handshake with {who} took too long"
    elif isinstance(exc, ssl.SSLCertVerificationError):
        reason, status, retry = Reason.TLS_CERTIFICATE, 502, RetrySafety.NEVER
        words, remedy = _certificate_words(exc, _chain(peer))
        message = f"the certificate of {who} {words}"
        if expected is not None:
            remedy = remedy.replace(_CA_REMEDY, _ca_remedy(expected))
            remedy = remedy.replace(_NAME_REMEDY, expected.name_remedy or _NAME_REMEDY)
    elif isinstance(exc, ssl.SSLError) and not is_eof(exc):
        reason, status = Reason.TLS_PROTOCOL, 502
        openssl_reason = getattr(exc, "reason", None) or ""
        words, remedy = _PROTOCOL.get(openssl_reason, ("", ""))
        if openssl_reason == "NO_RENEGOTIATION":
            words = "wants to renegotiate, which is not allowed"
        message = f"{who} {words}" if words else f"TLS with {who} failed: {_OTHERWISE}"
        remedy = remedy.format(min_version=expected.spec.min_version if expected is not None else "1.2")
    else:
        reason, status, message = Reason.TLS_PROTOCOL, 502, f"{who} closed the connection during TLS"
    detail = f"{type(exc).__name__}: {exc}"
    if peer is not None and reason is Reason.TLS_CERTIFICATE:
        detail = f"presented: {presented_text(peer)}; {detail}"
    if expected is not None:
        detail = f"{detail}; expected: {expected_text(expected)}"
    return UpstreamFault(reason, message, status=status, remedy=remedy, detail=detail, retry=retry)


def is_eof(error: ssl.SSLError) -> bool:
    """Whether the connection ended without close_notify. CPython 3.11.2 has no separate class for it with OpenSSL 3."""
    return isinstance(error, ssl.SSLEOFError) or getattr(error, "reason", None) == "UNEXPECTED_EOF_WHILE_READING"


def client_refusal_text(error: Exception, peer: ssl.SSLObject) -> str:
    """The reason why a client's certificate was refused, the certificate, and the expectation, for the log. Call it
    immediately after the failure.
    """
    from egressproxy.net.tls_contexts.verify_callbacks import take_refused  # here: few listeners ask for certificates

    found = take_refused()
    checks_lists = bool(peer.context.verify_flags & ssl.VERIFY_CRL_CHECK_CHAIN)
    remedy = ""
    if isinstance(error, ssl.SSLCertVerificationError):
        words, remedy = _certificate_words(error, [])
        remedy = remedy.replace(_CA_REMEDY, (_ROOT_REMEDY if checks_lists else _BUNDLE_REMEDY).format(_CLIENT_CAS))
        for of_server, of_client in _OF_CLIENTS:
            words, remedy = words.replace(of_server, of_client), remedy.replace(of_server, of_client)
        why, shown = f"it {words} ({error.verify_message})", "a certificate that cannot be read"
        remedy = f"; remedy: {remedy}"
        if found is not None:
            shown = f"subject {found.subject}, issuer {found.issuer}, serial {found.serial}, sha256 {found.sha256}"
    else:
        why, shown = "none was shown", "no certificate"
    accepted: list[dict[str, Any]] = peer.context.get_ca_certs()
    authorities = [_name(each.get("subject", ())) for each in accepted]
    others = peer.context.cert_store_stats()["x509"] - len(accepted)
    listed = authorities[:_MAX_CHAIN] + ([f"{len(authorities) - _MAX_CHAIN} more"] if authorities[_MAX_CHAIN:] else [])
    signed = f", signed by {' or '.join(listed)}" if listed else ""
    itself = f", {'or ' if listed else ''}one of {others} certificates listed directly" if others else ""
    lists = ", in no revocation list" if checks_lists else ""
    return f"{why}; presented: {shown}; expected: a certificate for clients{signed}{itself}{lists}{remedy}"


def expected_text(expected: TlsExpectation) -> str:
    """The expected certificate of the upstream, and the client certificate it gets, for the log."""
    spec = expected.spec
    parts = []
    if not spec.insecure_skip_verify:
        names = spec.names or (spec.sni or expected.host,)
        parts += [] if spec.skip_names else [f"name {' or '.join(map(_shown, names[:_MAX_NAMES]))}"]
        ca = (spec.ca_source or _POLICY_CAS) if spec.ca_pem else "a CA of the system"
        parts.append(f"signed by {ca}")
    if spec.pins:
        parts.append(f"pinned to {', '.join(spec.pins[:_MAX_NAMES])}")
    if spec.crl_pem:
        parts.append("in no revocation list")
    parts.append(f"TLS {spec.min_version} or later")
    if spec.client_certificate:
        parts.append(f"shown the client certificate of {spec.client_source or 'its Gateway'}")
    else:
        parts.append("shown no client certificate")
    return ", ".join(parts)


def presented_text(peer: ssl.SSLObject) -> str:
    """The certificates that the upstream presented, verified or not, for the log."""
    chain = _chain(peer)
    if not chain:
        return "no certificate that can be read"
    (der, leaf), others = chain[0], chain[1:]
    parts = [_certificate_text(leaf), f"sha256 {hashlib.sha256(der).hexdigest()}"]
    parts += [f"then {_name(each.get('subject', ()))}" for _, each in others[:_MAX_CHAIN]]
    if not others:
        parts.append("no further certificate")
    elif len(others) > _MAX_CHAIN:
        parts.append(f"and {len(others) - _MAX_CHAIN} more")
    return ", ".join(parts)


def _ca_remedy(expected: TlsExpectation) -> str:
    spec = expected.spec
    if not spec.ca_pem:
        return f"{_NAME_CA}{expected.ca_field or _CA_FIELDS}"
    bundle = spec.ca_source or expected.ca_field or _POLICY_CAS
    return (_ROOT_REMEDY if spec.crl_pem else _BUNDLE_REMEDY).format(bundle)


def _certificate_words(
    error: ssl.SSLCertVerificationError, chain: list[tuple[bytes, dict[str, Any]]]
) -> tuple[str, str]:
    code = getattr(error, "verify_code", 0)
    # OpenSSL's own text for the code: no part of it comes from the certificate.
    other = f"{_FORM}: {getattr(error, 'verify_message', '') or 'OpenSSL does not say which part'}"
    words, remedy = _CERTIFICATE.get(code, (other, _SERVER_REMEDY))
    leaf = chain[0][1] if chain else {}
    if code in (_NO_ISSUER, _UNVERIFIED_LEAF) and len(chain) == 1:
        return words, f"{remedy}; {_INTERMEDIATE}"
    if code == _OTHER_NAME and chain and not leaf.get("subjectAltName"):
        return _NO_NAMES
    if code == _EXPIRED and (end := _seconds(leaf, "notAfter")) is not None:
        if end >= time.time():
            return "is signed by an authority whose own certificate has expired", "renew the authority's certificate"
        return f"{words} on {rfc3339(end)}", remedy
    if code == 9 and (begin := _seconds(leaf, "notBefore")) is not None and begin > time.time():
        return f"is not valid before {rfc3339(begin)}", remedy
    return words, remedy


def _chain(peer: ssl.SSLObject | None) -> list[tuple[bytes, dict[str, Any]]]:
    """The chain presented: each certificate as DER and as the ssl module's dict, leaf first. Before the end of the
    handshake only the private `_ssl` object provides it.
    """
    inner: Any = getattr(peer, "_sslobj", None)
    found: list[tuple[bytes, dict[str, Any]]] = []
    # Empty if this Python lacks the method, or OpenSSL cannot decode the certificate.
    with suppress(AttributeError, ValueError, ssl.SSLError, TypeError):
        for certificate in inner.get_unverified_chain() or ():
            found.append((certificate.public_bytes(_PEM_TO_DER), certificate.get_info()))
    return found


def _certificate_text(info: dict[str, Any]) -> str:
    names = [f"{_shown(value)}" for kind, value in info.get("subjectAltName", ()) if kind in _KINDS]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    shown = (", ".join(names[:_MAX_NAMES]) + more) or "none"
    begin, end = _seconds(info, "notBefore"), _seconds(info, "notAfter")
    span = (
        f"valid {rfc3339(begin)} to {rfc3339(end)}" if begin is not None and end is not None else "validity unreadable"
    )
    return f"subject {_name(info.get('subject', ()))}, names {shown}, issuer {_name(info.get('issuer', ()))}, {span}"


def _name(name: Iterable[Iterable[tuple[str, str]]]) -> str:
    """A distinguished name as `commonName=x/organizationName=y`; "(empty)" without parts."""
    return _shown("/".join(f"{key}={value}" for part in name for key, value in part)) or "(empty)"


def _shown(value: object) -> str:
    text = str(value).encode("ascii", "backslashreplace").decode()
    text = "".join(each if each.isprintable() and each not in ';,"' else "?" for each in text)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."


def _seconds(info: dict[str, Any], key: str) -> float | None:
    try:
        return float(ssl.cert_time_to_seconds(info[key]))
    except (KeyError, ValueError, OverflowError):
        return None
