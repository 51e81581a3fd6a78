"""A certificate authority for tests: certificates as specs, as PEM, and as TLS contexts for servers and clients."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ssl
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from egressproxy.ir.gateway import CertificateIR, ListenerTlsIR
from egressproxy.model.secret import SecretBytes


class Pki:
    """One root. `certificate` issues a server certificate as a CertificateIR.

    With a folder, the root also lies there as `ca.crt`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.ca_pem = self.ca.cert_pem.bytes().decode()
        self.ca_file: Path | None = None
        if folder is not None:
            self.ca_file = folder / "ca.crt"
            self.ca_file.write_text(self.ca_pem, encoding="ascii")

    def issue(
        self, *names: str, cn: str | None = None, expired: bool = False, span_s: tuple[float, float] | None = None
    ) -> trustme.LeafCert:
        """`span_s`: from when until when it is valid, in seconds from now."""
        now = datetime.datetime.now(datetime.UTC)
        begin, end = span_s or ((-9 * 86400, -86400) if expired else (0, 0))
        span = {name: now + datetime.timedelta(seconds=s) for name, s in (("not_before", begin), ("not_after", end))}
        span = span if begin or end else {}
        return self.ca.issue_cert(*names, common_name=cn, key_type=trustme.KeyType.ECDSA, **span)

    def certificate(self, *names: str, cn: str | None = None, expired: bool = False) -> CertificateIR:
        leaf = self.issue(*names, cn=cn, expired=expired)
        return CertificateIR(
            "tests/cert",
            chain(leaf),
            SecretBytes(leaf.private_key_pem.bytes()),
            tuple(n for n in names if "://" not in n),
        )

    def identified(
        self, *identities: str, features: tuple[x509.TLSFeatureType, ...] = (), comment: bytes = b""
    ) -> CertificateIR:
        """A server certificate with these subject alternative names: a URI where it has a scheme, else a DNS name.
        `features`: of TLS (RFC 7633); `comment`: what stands in another extension.
        """
        now = datetime.datetime.now(datetime.UTC)
        days = datetime.timedelta(days=1)
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.UniformResourceIdentifier(i) if "://" in i else x509.DNSName(i) for i in identities]
        root = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(root.subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - days).not_valid_after(now + days)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        # the default context of Python 3.13 wants to see by which key it was signed (RFC 5280 section 4.2.1.1)
        issuer = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
        builder = builder.add_extension(signed_by, critical=False)
        if features:
            builder = builder.add_extension(x509.TLSFeature(features), critical=False)
        if comment:
            oid = x509.ObjectIdentifier("2.16.840.1.113730.1.13")
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, comment), critical=False)
        signer = load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        made = builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return CertificateIR("tests/cert", made.decode(), SecretBytes(private))

    def listener(self, *names: str, expired: bool = False) -> ListenerTlsIR:
        return ListenerTlsIR(certificates=(self.certificate(*names, expired=expired),))

    def server_context(self, *names: str) -> ssl.SSLContext:
        """A context for a server that shows a certificate for these names."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.issue(*names).configure_cert(context)
        return context

    def client_context(self, shows: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """A context that trusts this root and no other, and shows this certificate to servers that ask for one."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        if shows is not None:
            shows.configure_cert(context)
        return context

    def crl(self, *revoked_pem: str, expired: bool = False) -> str:
        """A revocation list of the root."""
        now = datetime.datetime.now(datetime.UTC)
        days = datetime.timedelta(days=1)
        root = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        builder = x509.CertificateRevocationListBuilder().issuer_name(root.subject)
        builder = builder.last_update(now - 9 * days).next_update(now - days if expired else now + 9 * days)
        for pem in revoked_pem:
            serial = x509.load_pem_x509_certificate(pem.encode()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - days).build()
            builder = builder.add_revoked_certificate(entry)
        key = load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()  # type: ignore[arg-type]


def chain(leaf: trustme.LeafCert) -> str:
    return b"".join(blob.bytes() for blob in leaf.cert_chain_pems).decode()


def pin(chain_pem: str) -> str:
    """The SPKI pin of the first certificate."""
    key = x509.load_pem_x509_certificate(chain_pem.encode()).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return "sha256/" + base64.b64encode(hashlib.sha256(spki).digest()).decode()
