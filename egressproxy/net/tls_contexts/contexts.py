"""TLS contexts from the IR, for upstreams and for clients.

Contexts are cached by their settings. Names, SNI and pins are checked per connection (`ClientTls.verify`), so backends
that trust the same roots share one context (some 150 system roots cost 17 ms and a megabyte each time).

Rules (RFC 9525, RFC 8996, RFC 5280): TLS 1.2 at least, subject alternative names only, one left-most wildcard label,
forward secrecy, no renegotiation, revocation lists that fail closed for the whole chain. `_trust` sets the trust
anchors, for servers and clients.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.ir.gateway import CertificateIR, ClientCertificatesIR, ListenerTlsIR
from egressproxy.model.secret import SecretBytes
from egressproxy.net.tls_contexts.key_log import log_keys_of
from egressproxy.net.tls_contexts.system_roots import in_force
from egressproxy.net.tls_peer import SERVER_NAME, VERIFIES

HTTP_1_1: Final[tuple[str, ...]] = ("http/1.1",)
#: ALPN of HTTP listeners, in order of preference.
HTTP_2_OR_1_1 = ("h2", "http/1.1")

#: Forward secrecy and no SHA-1; written out, since a distribution may have changed OpenSSL's own default.
_CIPHERS = "ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM:@SECLEVEL=2"
#: For clients also without CBC: only clients from before 2014 lack GCM in TLS 1.2.
_SERVER_CIPHERS = "ECDH+AESGCM:ECDH+CHACHA20:!aNULL:!eNULL:!aDSS:!AESCCM:@SECLEVEL=2"
_MAX_CONTEXTS = 256
#: The most contexts that are rebuilt before changed system roots come into force: a megabyte each.
_MAX_READY = 16
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
#: New in OpenSSL 3.
_IGNORE_TRUNCATION = getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
_UNSPECIFIED = 1  # X509_V_ERR_UNSPECIFIED
_HOSTNAME_MISMATCH = 62  # X509_V_ERR_HOSTNAME_MISMATCH
_APPLICATION_VERIFICATION = 50  # X509_V_ERR_APPLICATION_VERIFICATION
_OCSP_NEEDED = 73  # X509_V_ERR_OCSP_VERIFY_NEEDED
#: The id of the extension TLS Feature (RFC 7633), 1.3.6.1.5.5.7.1.24, as it stands in a certificate.
_TLS_FEATURE: Final = bytes.fromhex("06082b06010505070118")


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The TLS settings of one upstream connection. `server_hostname` is the SNI; an address is verified, not sent."""

    context: ssl.SSLContext
    server_hostname: str
    verify: Callable[[ssl.SSLObject], None]


def client_tls(spec: BackendTlsIR, host: str, alpn: tuple[str, ...] = HTTP_1_1) -> ClientTls:
    """The settings for a connection to `host` (a name, or an address as text). Raises like `client_context`."""

    def verify(peer: ssl.SSLObject) -> None:
        if not spec.insecure_skip_verify:
            if spec.trusted_pem:
                check_trusted(peer, spec.trusted_pem, has_others=spec.ca_pem != spec.trusted_pem)
            if spec.names:
                check_names(peer, spec.names)
            if not spec.crl_pem:
                check_features(peer)
        if spec.pins:
            check_pins(peer, spec.pins)

    return ClientTls(client_context(spec, alpn), spec.sni or host, verify)


def client_context(spec: BackendTlsIR, alpn: tuple[str, ...] = HTTP_1_1) -> ssl.SSLContext:
    """The context for connections to upstreams; `names` and `pins` are for `ClientTls.verify`. Raises ssl.SSLError or
    ValueError if certificates, keys or lists in the spec cannot be read.
    """
    if spec.min_version not in _VERSIONS:
        raise ValueError(f"minVersion {spec.min_version!r}: has to be one of {', '.join(_VERSIONS)}")
    arguments = (
        spec.ca_pem, spec.crl_pem, spec.client_certificate, spec.client_key, spec.min_version,
        spec.insecure_skip_verify, bool(spec.names) or spec.skip_names, alpn, spec.trusted_pem, spec.allow_expired,
    )  # fmt: skip
    return _context_of_own_roots(*arguments) if spec.ca_pem else _of_system_roots().context(arguments)


def make_ready(mark: str) -> None:
    """Rebuild the contexts in use with the system roots of this mark, before these come into force. Each reads the
    system's bundle, which takes 20 ms: call this in a thread.
    """
    global _next
    fresh = _OfSystemRoots(mark)
    for arguments in list(_present.made)[-_MAX_READY:]:
        with suppress(ssl.SSLError, ValueError, OSError):  # the next user of the context gets the error
            fresh.context(arguments)
    _next = fresh


class _OfSystemRoots:
    """The contexts that trust the system roots of one mark; the oldest is evicted first."""

    __slots__ = ("made", "mark")

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.made: dict[tuple[Any, ...], ssl.SSLContext] = {}

    def context(self, arguments: tuple[Any, ...]) -> ssl.SSLContext:
        """The context for these arguments of `_client_context`."""
        found = self.made.get(arguments)
        if found is None:
            if len(self.made) >= _MAX_CONTEXTS:
                del self.made[next(iter(self.made))]
            found = self.made[arguments] = _client_context(*arguments)
        return found


_present = _next = _OfSystemRoots("")


def _of_system_roots() -> _OfSystemRoots:
    """The contexts with the current system roots; contexts with former roots are dropped."""
    global _present, _next
    mark = in_force()
    if _present.mark != mark:
        _present = _next = _next if _next.mark == mark else _OfSystemRoots(mark)
    return _present


def _client_context(
    ca_pem: str, crl_pem: str, certificate: str, key: SecretBytes | None, min_version: str, skip_verify: bool,
    checks_names_itself: bool, alpn: tuple[str, ...], trusted_pem: str = "", allow_expired: bool = False,
) -> ssl.SSLContext:  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, _VERSIONS[min_version], alpn)
    if skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.check_hostname = not checks_names_itself
        context.hostname_checks_common_name = False
        _trust(context, ca_pem or None, crl_pem)
        if trusted_pem:
            context.load_verify_locations(cadata=trusted_pem)
        if allow_expired:
            from egressproxy.net.tls_contexts.verify_callbacks import accept_expired  # here: few backends ask

            accept_expired(context)
    if certificate:
        _load_identity(context, certificate, key or SecretBytes(b""))
    return context


def _trust(context: ssl.SSLContext, ca_pem: str | None, crl_pem: str, *, tells_root: bool = False) -> None:
    """Trust each of these certificates, or the system's for None, and check revocation lists for the whole chain.
    Raises ValueError for a bundle without a certificate.

    Each certificate is a trust anchor (RFC 5280 section 6.1.1 (d)): a root, an intermediate CA or the peer's own
    certificate. VERIFY_X509_STRICT stays off: it demands key identifiers, which many private CAs lack.

    A chain ends at its first anchor. With revocation lists it continues to a root, since OpenSSL verifies a CA's list
    with the CAs above. With `tells_root` it continues to a root if there is one, so that the caller finds its CAs in
    the chain.
    """
    if ca_pem is not None:
        context.load_verify_locations(cadata=ca_pem)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if crl_pem:
        with _as_file(crl_pem.encode()) as path:
            context.load_verify_locations(cafile=path)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    elif not (tells_root and any(each["issuer"] == each["subject"] for each in context.get_ca_certs())):
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


_context_of_own_roots = lru_cache(maxsize=_MAX_CONTEXTS)(_client_context)


@lru_cache(maxsize=_MAX_CONTEXTS)
def server_context(
    tls: ListenerTlsIR, alpn: tuple[str, ...] = HTTP_1_1, *, shares_port: bool = False
) -> ssl.SSLContext:
    """The context of a listener that terminates TLS. The certificate is chosen by SNI: exact name, wildcard, the first.

    Only the context that issued a session resumes it. With `shares_port` SNI chooses among several listeners, and TLS
    1.3 sessions are not resumed, since a client may then send an SNI other than the session's (in TLS 1.2 the SNI is
    the session's, RFC 6066 section 3).

    Raises ssl.SSLError or ValueError if there is no certificate, or one of them or its key cannot be read.
    """
    if not tls.certificates:
        raise ValueError("a listener that terminates TLS needs a certificate (tls.certificateRefs)")
    contexts = [_certificate_context(c, tls.clients, alpn) for c in tls.certificates]
    by_name: dict[str, ssl.SSLContext] = {}
    for certificate, context in zip(tls.certificates, contexts, strict=True):
        for name in certificate.names:
            by_name.setdefault(name.lower(), context)

    def choose(peer: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
        name = name.lower().removesuffix(".") if name is not None else ""
        if getattr(peer, SERVER_NAME, name) != name:
            # The second ClientHello, after a HelloRetryRequest, must have the same SNI (RFC 8446 section 4.1.2).
            return ssl.ALERT_DESCRIPTION_ILLEGAL_PARAMETER
        setattr(peer, SERVER_NAME, name)
        found = by_name.get(name) or by_name.get("*." + name.partition(".")[2])
        if found is not None:
            peer.context = found
        return None

    # A callback on a context that it can choose would be a reference cycle.
    front = _certificate_context(tls.certificates[0], tls.clients, alpn)
    front.sni_callback = choose
    if shares_port:
        front.num_tickets = 0
    return front


def leaf_context(certificate: CertificateIR, host: str) -> ssl.SSLContext:
    """The context for an intercepted tunnel to `host` (lower case), with a certificate for that name alone.

    Another SNI is refused (RFC 6066 section 3): the certificate would be wrong, and requests would go elsewhere. TLS
    1.3 sessions are not resumed: resumption costs as much as a handshake with an ECDSA key, and a session ticket a
    fifth of one more, for the few clients that resume.

    Raises ssl.SSLError or ValueError if the certificate or its key cannot be read.
    """

    def check(peer: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
        name = name.lower().removesuffix(".") if name is not None else ""
        setattr(peer, SERVER_NAME, name)
        return None if name in (host, "") else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context = _certificate_context(certificate, None, HTTP_2_OR_1_1)
    context.sni_callback = check
    context.num_tickets = 0
    return context


def _certificate_context(
    certificate: CertificateIR, clients: ClientCertificatesIR | None, alpn: tuple[str, ...]
) -> ssl.SSLContext:
    """The context of one certificate. Its sessions belong to the `server_context` in front."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, ssl.TLSVersion.TLSv1_2, alpn)
    context.set_ciphers(_SERVER_CIPHERS)
    _load_identity(context, certificate.chain_pem, certificate.key_pem)
    if clients is not None:
        has_two_sets = bool(clients.ca_pem and clients.identity_ca_pem)
        _trust(context, clients.ca_pem or clients.identity_ca_pem, clients.crl_pem, tells_root=has_two_sets)
        context.verify_mode = ssl.CERT_REQUIRED if clients.ca_pem else ssl.CERT_OPTIONAL
        setattr(context, VERIFIES, not clients.takes_any)
        if clients.takes_any:
            from egressproxy.net.tls_contexts.verify_callbacks import take_any_certificate  # here: rarely needed

            take_any_certificate(context)
        else:
            from egressproxy.net.tls_contexts.verify_callbacks import note_refused  # here: few listeners ask

            note_refused(context)
    return context


def _harden(context: ssl.SSLContext, minimum: ssl.TLSVersion, alpn: tuple[str, ...]) -> None:
    log_keys_of(context)
    context.minimum_version = minimum
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # Detect an end without close_notify: some versions of CPython, such as 3.11.2, ignore it by default.
    context.options &= ~_IGNORE_TRUNCATION
    if alpn:
        context.set_alpn_protocols(list(alpn))


def _load_identity(context: ssl.SSLContext, chain_pem: str, key: SecretBytes) -> None:
    with _as_file(chain_pem.encode() + b"\n" + key.reveal()) as path:
        # Without a callback OpenSSL would ask for the passphrase of an encrypted key at the terminal.
        context.load_cert_chain(path, password=_no_passphrase)


def _no_passphrase() -> str:
    raise ValueError("the private key is encrypted: give it without a passphrase")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A temporary path at which OpenSSL can read these bytes; no file stays behind, even after SIGKILL."""
    memory = os.memfd_create("egressproxy-tls", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(data)
        path = f"/proc/self/fd/{memory}"
        if os.path.exists(path):
            yield path
        else:  # no /proc in this container: a private file, for as long as it is read
            import tempfile  # here: it imports shutil and compression modules

            with tempfile.NamedTemporaryFile() as private:
                private.write(data)
                private.flush()
                yield private.name
    finally:
        os.close(memory)


def check_names(peer: ssl.SSLObject, names: tuple[str, ...]) -> None:
    """Require one of these names among the certificate's subject alternative names; the common name never counts.

    A name is a DNS name (a certificate's `*.` covers one label, RFC 9525 section 6.3), an address, or a URI, exactly.
    Raises ssl.SSLCertVerificationError.
    """
    certificate: dict[str, Any] = peer.getpeercert() or {}
    entries: tuple[tuple[str, str], ...] = certificate.get("subjectAltName", ())
    if not any(_matches(wanted, kind, value) for wanted in names for kind, value in entries):
        raise _refusal("none of the accepted names is in the certificate", _HOSTNAME_MISMATCH)


def _matches(wanted: str, kind: str, value: str) -> bool:
    if "://" in wanted:
        return kind == "URI" and value == wanted
    try:
        address = ip_address(wanted)
    except ValueError:
        return kind == "DNS" and _matches_dns(wanted.lower().removesuffix("."), value.lower())
    try:
        return kind == "IP Address" and ip_address(value) == address
    except ValueError:
        return False


def _matches_dns(wanted: str, presented: str) -> bool:
    if not presented.startswith("*."):
        return presented == wanted
    first, dot, rest = wanted.partition(".")
    # A wildcard below a top-level domain ("*.test") matches nothing.
    return bool(first and dot) and first != "*" and rest == presented[2:] and "." in rest


def check_trusted(peer: ssl.SSLObject, trusted_pem: str, *, has_others: bool) -> None:
    """Require one of these certificates, exactly; with `has_others` (CAs) also one for which none of these vouches: a
    self-signed certificate is often marked as a CA, and must not become one. Raises ssl.SSLCertVerificationError.
    """
    trusted = _fingerprints(trusted_pem)
    der = peer.getpeercert(binary_form=True) or b""
    if hashlib.sha256(der).digest() in trusted:
        return
    if has_others and peer.session_reused:
        return  # verified with the first handshake, of the same context
    chain = peer._sslobj.get_verified_chain() if has_others else None  # type: ignore[attr-defined]
    if not chain or any(hashlib.sha256(_der(each)).digest() in trusted for each in chain):
        raise _refusal("the certificate is not among the trusted certificates", _UNSPECIFIED)


def _der(certificate: Any) -> bytes:
    """The DER of a certificate of CPython's `_ssl` module."""
    made: bytes = certificate.public_bytes(2)  # _ssl.ENCODING_DER
    return made


@lru_cache(maxsize=_MAX_CONTEXTS)
def _fingerprints(pem: str) -> frozenset[bytes]:
    """The SHA-256 digests of these certificates."""
    end = "-----END CERTIFICATE-----"
    blocks = [f"{part}{end}" for part in pem.split(end) if part.strip()]
    return frozenset(hashlib.sha256(ssl.PEM_cert_to_DER_cert(block.strip())).digest() for block in blocks)


def check_features(peer: ssl.SSLObject) -> None:
    """Refuse a certificate that requires OCSP stapling (must-staple, RFC 7633): the ssl module requests no staple, so a
    revoked certificate would be accepted. Raises ssl.SSLCertVerificationError.

    Revocation lists replace the staple: with lists this check is skipped.
    """
    der = peer.getpeercert(binary_form=True)
    if der is None or _TLS_FEATURE not in der:
        return
    from cryptography import x509  # here: such certificates are rare, and it costs a worker 10 MB

    try:
        extension = x509.load_der_x509_certificate(der).extensions.get_extension_for_class(x509.TLSFeature)
        staples = {x509.TLSFeatureType.status_request, x509.TLSFeatureType.status_request_v2}
        is_asked = not staples.isdisjoint(extension.value)
    except x509.ExtensionNotFound:
        is_asked = False  # the bytes occur elsewhere in the certificate
    except ValueError:
        is_asked = True
    if is_asked:
        raise _refusal("the certificate asks for a stapled OCSP response, and none is there", _OCSP_NEEDED)


def check_pins(peer: ssl.SSLObject, pins: tuple[str, ...]) -> None:
    """Require one of these pins for the peer's key: "sha256/" and base64 of the SPKI's digest. Raises
    ssl.SSLCertVerificationError.
    """
    from cryptography import x509  # here: pins are rare, and it costs a worker 10 MB
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = peer.getpeercert(binary_form=True)
    if der is None:
        raise _refusal("the peer has no certificate to pin", _APPLICATION_VERIFICATION)
    try:
        key = x509.load_der_x509_certificate(der).public_key()
    except (ValueError, TypeError) as error:
        raise _refusal(f"the certificate's key cannot be read: {error}", _APPLICATION_VERIFICATION) from None
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    found = "sha256/" + base64.b64encode(digest).decode()
    if not any(hmac.compare_digest(found.encode(), pin.encode()) for pin in pins):
        raise _refusal(f"the certificate's key {found} is not pinned", _APPLICATION_VERIFICATION)


def _refusal(message: str, code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(ssl.SSL_ERROR_SSL, message)
    error.verify_code = code
    error.verify_message = message
    return error
