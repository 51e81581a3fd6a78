"""Minting: a CA with its key, and the certificates that it signs for the names of opened tunnels, 0.1 ms each. Pure:
PEM in and out. Sources: RFC 5280 section 4.2, CA/Browser Forum Baseline Requirements section 7.1 (extensions, their
values).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from egressproxy.model.certificate import Leaf, why_not_a_ca
from egressproxy.model.secret import SecretBytes

#: How long a leaf is valid: clients that are told to distrust the CA keep none for long, and its key never lasts.
LEAF_S: Final = 24 * 3600.0
#: A leaf begins so long before it is minted, for clients whose clock is behind.
BACKDATED_S: Final = 3600.0
#: A DNS name in lower case, for which a CA may be constrained.
DNS_NAME: Final = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9_](?:[-a-z0-9_]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
)
#: Of a common name (RFC 5280, ub-common-name); what is longer stands in the subject alternative name alone.
_MAX_COMMON_NAME: Final = 64

#: Names that are permitted say nothing of addresses.
_EVERY_ADDRESS: Final = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))

_PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


class MintingError(ValueError):
    """A CA that cannot sign; the message says why, and holds nothing of its key."""


class SigningCa:
    """Signs leaves. All of them have one key, which is made here and is in no file: making one for each would double
    the work, and a process that has lost one has lost all.
    """

    __slots__ = ("_certificate", "_chain_pem", "_issuer_id", "_key", "_leaf_id", "_leaf_key", "_leaf_key_pem")

    def __init__(self, chain_pem: str, key_pem: SecretBytes) -> None:
        """`chain_pem`: the CA, and then those that have signed it, if it is not its own root. Raises MintingError."""
        try:
            chain = x509.load_pem_x509_certificates(chain_pem.encode())
            self._certificate = chain[0]
            key = load_pem_private_key(key_pem.reveal(), password=None)
        except (ValueError, TypeError, IndexError, UnsupportedAlgorithm):
            raise MintingError("the certificate or the key is not PEM, or the key is encrypted") from None
        if not isinstance(key, _PrivateKey):
            raise MintingError("the key is of a kind that signs no certificates: use ECDSA or RSA")
        why_not = why_not_a_ca(self._certificate)
        if why_not:
            raise MintingError(f"the certificate {why_not}")
        if key.public_key() != self._certificate.public_key():
            raise MintingError("the key does not belong to the certificate: clients believe nothing that it signs")
        self._key = key
        # Clients that trust a root have it: it would only make each handshake longer.
        shown = [each for each in chain if each.issuer != each.subject]
        self._chain_pem = "".join(each.public_bytes(Encoding.PEM).decode() for each in shown)
        try:
            own = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            self._issuer_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
        except x509.ExtensionNotFound:
            self._issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_id = x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key())
        self._leaf_key_pem = SecretBytes(_key_bytes(self._leaf_key))

    def mint(self, name: str, now_s: float) -> Leaf:
        """A leaf for this address or DNS name (lower case, no trailing dot), no longer valid than its CA. `now_s`:
        seconds since the epoch. Raises MintingError where the CA has ended.
        """
        now = datetime.fromtimestamp(now_s, UTC)
        ends = min(now + timedelta(seconds=LEAF_S), self._certificate.not_valid_after_utc)
        begins = max(now - timedelta(seconds=BACKDATED_S), self._certificate.not_valid_before_utc)
        if ends <= now:
            raise MintingError(f"the CA has expired on {ends:%Y-%m-%d}: `egressproxy ca rotate` makes another")
        if begins >= ends:
            raise MintingError(f"the CA is not valid before {begins:%Y-%m-%dT%H:%M:%SZ}: look at the clock")
        is_short = len(name) <= _MAX_COMMON_NAME
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if is_short else [])
        try:
            names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(name))])
        except ValueError:
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._certificate.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(names, critical=not is_short)  # RFC 5280 section 4.2.1.6, of an empty subject
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(self._leaf_id, critical=False)
            .add_extension(self._issuer_id, critical=False)
        )
        made = builder.sign(self._key, _digest(self._key)).public_bytes(Encoding.PEM).decode()
        return Leaf(made + self._chain_pem, self._leaf_key_pem, ends.timestamp())


def new_ca(
    name: str,
    now_s: float,
    days: float,
    permitted: Sequence[str] = (),
    excluded: Sequence[str] = (),
    path_length: int = 1,
) -> tuple[str, SecretBytes]:
    """A new root (ECDSA P-256): its certificate and its key, PEM. Below it may be one that follows it, unless
    `path_length` is 0, and leaves.

    `name` is its common name. `permitted`: DNS names (each stands for itself and what is below it) for which alone
    clients believe it, and for no address; `excluded`: for which they never do (RFC 5280 section 4.2.1.10). None: no
    constraint.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.fromtimestamp(now_s, UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    constraints = None
    if permitted or excluded:
        addresses = [x509.IPAddress(network) for network in _EVERY_ADDRESS] if permitted else []
        constraints = x509.NameConstraints(_subtrees(permitted), [*(_subtrees(excluded) or ()), *addresses] or None)
    builder = _ca_builder(subject, key.public_key(), path_length, constraints)
    builder = builder.issuer_name(subject).not_valid_before(now - timedelta(seconds=BACKDATED_S))
    builder = builder.not_valid_after(now + timedelta(days=days))
    made = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    return made, SecretBytes(_key_bytes(key))


def cross_signed(new_pem: str, old_pem: str, old_key: SecretBytes) -> str:
    """The CA `new_pem`, signed by the one that it follows, for clients that trust that one alone, until it ends; PEM.
    Raises MintingError where the old one may have no CA below it.
    """
    new, old = x509.load_pem_x509_certificate(new_pem.encode()), x509.load_pem_x509_certificate(old_pem.encode())
    if old.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0:
        raise MintingError("may have no other CA below it (pathlen:0)")
    key = load_pem_private_key(old_key.reveal(), password=None)
    assert isinstance(key, _PrivateKey)
    public = new.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        constraints = new.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        constraints = None
    old_id = old.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = _ca_builder(new.subject, public, 0, constraints).issuer_name(old.subject)
    builder = builder.not_valid_before(max(new.not_valid_before_utc, old.not_valid_before_utc))
    builder = builder.not_valid_after(min(new.not_valid_after_utc, old.not_valid_after_utc))
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(old_id)
    builder = builder.add_extension(issuer, critical=False)
    return builder.sign(key, _digest(key)).public_bytes(Encoding.PEM).decode()


def _ca_builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, path_length: int, constraints: x509.NameConstraints | None
) -> x509.CertificateBuilder:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    return builder if constraints is None else builder.add_extension(constraints, critical=True)


def _subtrees(names: Sequence[str]) -> list[x509.DNSName] | None:
    return [x509.DNSName(name) for name in names] or None


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=key_cert_sign, crl_sign=crl_sign,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _digest(key: _PrivateKey) -> hashes.SHA256 | hashes.SHA384 | None:
    """What a signature by this key is over: that of its own strength, and none where the kind of key says it."""
    if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey):
        return None
    is_large = isinstance(key, ec.EllipticCurvePrivateKey) and key.key_size > 256
    return hashes.SHA384() if is_large else hashes.SHA256()


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
