"""Reading certificates, keys and revocation lists out of Secrets and ConfigMaps. Pure: PEM in, checked PEM out.

A message says what is wrong with which field; it never repeats what a key or a Secret holds. The library is imported
with the first certificate: a configuration without one is read a tenth faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from egressproxy.ir.gateway import CertificateIR
from egressproxy.model.secret import SecretBytes

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

__all__ = [
    "CertificateProblem",
    "Span",
    "common_ca",
    "covers",
    "read_ca_bundle",
    "read_crls",
    "read_key_pair",
]

#: From when until when something is valid, since the epoch.
Span = tuple[float, float]


class CertificateProblem(ValueError):
    """Certificate material that cannot be used; the message says why."""


def read_key_pair(name: str, chain: bytes, key: bytes) -> tuple[CertificateIR, Span]:
    """A certificate chain (leaf first) and its private key, both PEM, that belong together; and when the leaf is valid.

    Raises CertificateProblem where one is malformed, the key is encrypted, or it is not the certificate's.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    leaf = _certificates(chain, "tls.crt")[0]
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificateProblem("tls.key is not an unencrypted private key in PEM") from None
    if _is_weak(private):
        raise CertificateProblem("tls.key is too weak: use RSA with 2048 bits or more, or a P-256 key")
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise CertificateProblem("tls.key does not belong to the first certificate of tls.crt")
    return CertificateIR(name, _text(chain, "tls.crt"), SecretBytes(key), _dns_names(leaf)), _span(leaf)


def covers(names: Iterable[str], hostname: str) -> bool:
    """Whether a certificate for these DNS names (lower case) is one for a listener's hostname.

    A `*.` of a certificate stands for one label (RFC 9525 section 6.3). A listener for `*.suffix` is served by a
    certificate for this wildcard, or for any name below it: which names are asked for, its routes say.
    """
    if hostname.startswith("*."):
        return any(name.removeprefix("*").endswith(hostname[1:]) for name in names)
    return any(name in (hostname, "*." + hostname.partition(".")[2]) for name in names)


def read_ca_bundle(pem: bytes, field: str = "ca.crt") -> tuple[str, list[Span]]:
    """One CA certificate or more, PEM, and when each is valid. Raises CertificateProblem."""
    certificates = _certificates(pem, field)
    return _text(pem, field), list(map(_span, certificates))


def read_crls(pem: bytes, field: str = "crl.pem") -> tuple[str, Span]:
    """One revocation list or more, PEM, and when each issuer has one that holds.

    Infinity where none of them ends. Raises CertificateProblem.
    """
    text = _text(pem, field)
    begins: dict[bytes, float] = {}
    ends: dict[bytes, float] = {}
    for crl in _crls(text, field):
        issuer, end = crl.issuer.public_bytes(), crl.next_update_utc
        begins[issuer] = min(begins.get(issuer, float("inf")), crl.last_update_utc.timestamp())
        ends[issuer] = max(ends.get(issuer, 0.0), float("inf") if end is None else end.timestamp())
    return text, (max(begins.values()), min(ends.values()))


def _crls(text: str, field: str) -> list[x509.CertificateRevocationList]:
    from cryptography import x509

    begin, end = "-----BEGIN X509 CRL-----", "-----END X509 CRL-----"
    blocks = [begin + part.partition(end)[0] + end + "\n" for part in text.split(begin)[1:]]
    if not blocks:
        raise CertificateProblem(f"{field} holds no revocation list in PEM")
    try:
        return [x509.load_pem_x509_crl(block.encode()) for block in blocks]
    except ValueError:
        raise CertificateProblem(f"{field} holds a malformed revocation list") from None


def common_ca(first: str, second: str) -> str:
    """The certificates that both bundles hold, PEM; "" where they share none. An empty bundle stands for "any"."""
    if not first or not second:
        return first or second
    from cryptography.hazmat.primitives.serialization import Encoding

    wanted = {c.public_bytes(Encoding.DER) for c in _certificates(second.encode(), "ca.crt")}
    kept = [c for c in _certificates(first.encode(), "ca.crt") if c.public_bytes(Encoding.DER) in wanted]
    return "".join(c.public_bytes(Encoding.PEM).decode() for c in kept)


def _is_weak(key: PrivateKeyTypes) -> bool:
    """Whether OpenSSL refuses the key at security level 2 (112 bits): found here, it closes one listener, not all."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    if isinstance(key, rsa.RSAPrivateKey):
        return key.key_size < 2048
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.key_size < 224
    return not isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)


def _span(certificate: x509.Certificate) -> Span:
    return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()


def _certificates(pem: bytes, field: str) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise CertificateProblem(f"{field} is not a certificate in PEM") from None


def _text(pem: bytes, field: str) -> str:
    try:
        return pem.decode("ascii")
    except UnicodeDecodeError:
        pass
    from cryptography.hazmat.primitives.serialization import Encoding

    # Comments between PEM blocks may be in any language; only the blocks count.
    certificates = _certificates(pem, field)
    return "".join(c.public_bytes(Encoding.PEM).decode() for c in certificates)


def _dns_names(certificate: x509.Certificate) -> tuple[str, ...]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(name.lower() for name in names.get_values_for_type(x509.DNSName))
