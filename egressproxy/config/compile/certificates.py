"""Reading certificates, keys and revocation lists out of Secrets and ConfigMaps. Pure: PEM in, checked PEM out.

A message says what is wrong with which field; it never repeats what a key or a Secret holds. The library is imported
with the first certificate: a configuration without one is read a tenth faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from egressproxy.ir.gateway import CertificateIR
from egressproxy.model.certificate import why_not_a_ca
from egressproxy.model.secret import SecretBytes

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

#: SHA-224, 112 bits.
_MIN_DIGEST_BYTES: Final = 28
#: From when until when something is valid, since the epoch.
Span = tuple[float, float]


class CertificateProblem(ValueError):
    """Certificate material that cannot be used; the message says why."""


def read_key_pair(name: str, chain: bytes, key: bytes) -> tuple[CertificateIR, Span]:
    """A chain (leaf first) and its key, PEM, and when the leaf is valid. Raises CertificateProblem, if weak, too."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    certificates = _certificates(chain, "tls.crt")
    leaf = certificates[0]
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificateProblem("tls.key is not an unencrypted private key in PEM") from None
    if _is_weak(private):
        raise CertificateProblem("tls.key is too weak: use RSA with 2048 bits or more, or a P-256 key")
    for number, each in enumerate(certificates, 1):
        if weakness := _weakness(each):
            raise CertificateProblem(f"certificate {number} of tls.crt {weakness}")
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise CertificateProblem("tls.key does not belong to the first certificate of tls.crt")
    lines = b"".join(line.strip() + b"\n" for line in key.splitlines())  # OpenSSL knows no blanks before them
    return CertificateIR(name, _text(certificates), SecretBytes(lines), _dns_names(leaf)), _span(leaf)


def ca_problem(pair: CertificateIR) -> str:
    """Why the first certificate of this pair signs nothing that clients believe, for people; "" where it does."""
    why_not = why_not_a_ca(_certificates(pair.chain_pem.encode(), "tls.crt")[0])
    return f"the first certificate of tls.crt {why_not}: `egressproxy ca init` makes one" if why_not else ""


def outside_constraints(pair: CertificateIR, hostnames: Iterable[str]) -> list[str]:
    """Names, also `*` and `*.suffix`, that the CA leaves out, if only in part, by its name constraints (RFC 5280
    section 4.2.1.10).
    """
    found = dns_constraints(_certificates(pair.chain_pem.encode(), "tls.crt")[0])
    permitted, excluded = ([each.lower().removeprefix(".") for each in names] for names in found)
    outside = []
    for hostname in hostnames:
        host = hostname.removeprefix("*.")
        is_permitted = not permitted or any(_is_below(host, each) for each in permitted)
        is_excluded = any(_is_below(host, each) or (host != hostname and _is_below(each, host)) for each in excluded)
        if not is_permitted or is_excluded or (hostname == "*" and excluded):
            outside.append(hostname)
    return outside


def dns_constraints(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    """The DNS names that a CA is permitted to sign for, and those that are excluded (RFC 5280 section 4.2.1.10)."""
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return [], []
    permitted, excluded = (
        [each.value for each in subtrees or () if isinstance(each, x509.DNSName)]
        for subtrees in (found.permitted_subtrees, found.excluded_subtrees)
    )
    return permitted, excluded


def _is_below(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f".{suffix}")


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
    return _text(certificates), list(map(_span, certificates))


def read_crls(pem: bytes) -> tuple[str, Span]:
    """Revocation lists, PEM, and when each issuer has one that holds (to infinity). Raises CertificateProblem."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    begin, end = "-----BEGIN X509 CRL-----", "-----END X509 CRL-----"
    blocks = [begin + part.partition(end)[0] + end + "\n" for part in pem.decode("latin-1").split(begin)[1:]]
    if not blocks:
        raise CertificateProblem("crl.pem holds no revocation list in PEM")
    try:
        lists = [x509.load_pem_x509_crl(block.encode()) for block in blocks]
    except ValueError:
        raise CertificateProblem("crl.pem holds a malformed revocation list") from None
    begins: dict[bytes, float] = {}
    ends: dict[bytes, float] = {}
    for crl in lists:
        issuer, until = crl.issuer.public_bytes(), crl.next_update_utc
        begins[issuer] = min(begins.get(issuer, float("inf")), crl.last_update_utc.timestamp())
        ends[issuer] = max(ends.get(issuer, 0.0), float("inf") if until is None else until.timestamp())
    text = "".join(crl.public_bytes(Encoding.PEM).decode() for crl in lists)
    return text, (max(begins.values()), min(ends.values()))


def common_ca(first: str, second: str) -> str:
    """The certificates that both bundles hold, PEM; "" where they share none. An empty bundle stands for "any"."""
    if not first or not second:
        return first or second
    from cryptography.hazmat.primitives.serialization import Encoding

    allowed = {c.public_bytes(Encoding.DER) for c in _certificates(second.encode(), "ca.crt")}
    return _text([c for c in _certificates(first.encode(), "ca.crt") if c.public_bytes(Encoding.DER) in allowed])


def _is_weak(key: PrivateKeyTypes | PublicKeyTypes) -> bool:
    """Whether OpenSSL refuses the key at security level 2 (112 bits): found here, it closes one listener, not all."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return key.key_size < 2048
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return key.key_size < 224
    edwards = ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey | ed448.Ed448PrivateKey | ed448.Ed448PublicKey
    return not isinstance(key, edwards)


def _weakness(certificate: x509.Certificate) -> str:
    """Why OpenSSL refuses it in a chain at security level 2 (but for the signature of a self-signed one), or ""."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        if _is_weak(certificate.public_key()):
            return "has a key that is too weak: use RSA with 2048 bits or more, or a P-256 key"
        digest = certificate.signature_hash_algorithm
    except (ValueError, UnsupportedAlgorithm):
        return "has a key or a signature of a kind that is not supported"
    is_its_own = certificate.issuer == certificate.subject
    if digest is not None and digest.digest_size < _MIN_DIGEST_BYTES and not is_its_own:
        return f"is signed with {digest.name.upper()}, which is too weak: have it issued anew, with SHA-256"
    return ""


def _span(certificate: x509.Certificate) -> Span:
    return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()


def _certificates(pem: bytes, field: str) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise CertificateProblem(f"{field} is not a certificate in PEM") from None


def _text(certificates: Iterable[x509.Certificate]) -> str:
    """In PEM as OpenSSL reads it: without blanks before the lines, and what stands between the blocks."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return "".join(c.public_bytes(Encoding.PEM).decode() for c in certificates)


def _dns_names(certificate: x509.Certificate) -> tuple[str, ...]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(name.lower() for name in names.get_values_for_type(x509.DNSName))
