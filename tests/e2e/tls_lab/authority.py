"""The laboratory's authorities: certificates that are right but for one thing."""

from __future__ import annotations

import datetime
import os
import ssl
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)


@cache
def key_of(name: str) -> ec.EllipticCurvePrivateKey:
    """The same key for the same name."""
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class Certificate:
    """A certificate with its key, and what it was issued by (None: by itself)."""

    made: x509.Certificate
    key: Key
    issuer: Certificate | None = None

    @property
    def pem(self) -> str:
        return self.made.public_bytes(Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def chain_pem(self, *, with_intermediates: bool = True) -> str:
        """Itself and, unless they are left out, what stands between it and its root."""
        text, at = self.pem, self.issuer
        while with_intermediates and at is not None and at.issuer is not None:
            text, at = text + at.pem, at.issuer
        return text

    def crl(self, *revoked: Certificate, days: tuple[int, int] = (-1, 9)) -> str:
        """A revocation list of this authority, from when until when it holds."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.made.subject)
        builder = builder.last_update(NOW + days[0] * DAY).next_update(NOW + days[1] * DAY)
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.made.serial_number).revocation_date(NOW - DAY)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def issue(
    name: str,
    issuer: Certificate | None = None,
    *,
    names: Sequence[str] | None = None,
    is_ca: bool = False,
    key: Key | None = None,
    days: tuple[int, int] = (-1, 9),
    usages: Sequence[x509.ObjectIdentifier] | None = (ExtendedKeyUsageOID.SERVER_AUTH,),
    path_length: int | None = None,
    extensions: Sequence[tuple[x509.ExtensionType, bool]] = (),
) -> Certificate:
    """A certificate whose common name is `name`. `names`: its subject alternative names (None: `name` itself)."""
    key = key or key_of(name)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = issuer.key if issuer is not None else key
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    builder = builder.issuer_name(issuer.made.subject if issuer is not None else subject)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(NOW + days[0] * DAY).not_valid_after(NOW + days[1] * DAY)
    builder = builder.add_extension(x509.BasicConstraints(is_ca, path_length), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(above, critical=False)
    if not is_ca:
        if usages is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        wanted = [name] if names is None else names
        if wanted:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_general, wanted))), critical=False)
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return Certificate(builder.sign(signer, hashes.SHA256()), key, issuer)


def with_sha1(name: str, issuer: Certificate) -> Certificate:
    """A certificate for this name that is signed with SHA-1, which the library does no more: OpenSSL's tool does."""
    key = key_of(name)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        plain = Certificate(issuer.made, key)
        (at / "leaf.key").write_text(plain.key_pem, encoding="ascii")
        (at / "ca.key").write_text(issuer.key_pem, encoding="ascii")
        (at / "ca.pem").write_text(issuer.pem, encoding="ascii")
        (at / "ext").write_text(f"subjectAltName=DNS:{name}\nextendedKeyUsage=serverAuth\n", encoding="ascii")
        request = ["openssl", "req", "-new", "-key", "leaf.key", "-subj", f"/CN={name}", "-out", "leaf.csr"]
        sign = ["openssl", "x509", "-req", "-sha1", "-in", "leaf.csr", "-CA", "ca.pem", "-CAkey", "ca.key"]
        sign += ["-CAcreateserial", "-days", "9", "-extfile", "ext", "-out", "leaf.pem"]
        for command in (request, sign):
            subprocess.run(command, cwd=at, check=True, capture_output=True, env={"PATH": os.environ["PATH"]})
        return Certificate(x509.load_pem_x509_certificate((at / "leaf.pem").read_bytes()), key, issuer)


def server(
    certificate: Certificate,
    *,
    with_intermediates: bool = True,
    maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    clients: str = "",
    setup: Callable[[ssl.SSLContext], object] | None = None,
) -> ssl.SSLContext:
    """A server that shows this certificate and takes everything that OpenSSL still can, weak keys and old versions
    included. `clients`: the authorities (PEM) that its clients' certificates have to be of.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of old versions: that is the point
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = maximum
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
        file.write(certificate.chain_pem(with_intermediates=with_intermediates) + certificate.key_pem)
        file.flush()
        context.load_cert_chain(file.name)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients)
    if setup is not None:
        setup(context)
    return context


def _general(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
