from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from egressproxy.config.compile.certificates import (
    CertificateProblem,
    common_ca,
    covers,
    read_ca_bundle,
    read_crls,
    read_key_pair,
)
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.ir.gateway import ClientCertificatesIR, ListenerTlsIR
from egressproxy.net.tls_contexts.contexts import client_context, server_context
from tests.support.pki import Pki


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


def test_a_key_pair_knows_the_names_of_its_certificate(pki: Pki):
    made = pki.certificate("A.example", "*.b.example")
    found, _ = read_key_pair("ns/name", made.chain_pem.encode(), made.key_pem.reveal())
    assert found.names == ("a.example", "*.b.example")
    assert found.name == "ns/name"
    assert found.key_pem == made.key_pem


def test_a_key_of_another_certificate_is_refused(pki: Pki):
    one, two = pki.certificate("a.example"), pki.certificate("b.example")
    with pytest.raises(CertificateProblem, match="does not belong"):
        read_key_pair("x", one.chain_pem.encode(), two.key_pem.reveal())


@pytest.mark.parametrize(
    "key", [b"", b"top secret text", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_malformed_key_is_refused_without_showing_it(pki: Pki, key: bytes):
    with pytest.raises(CertificateProblem) as caught:
        read_key_pair("x", pki.certificate("a.example").chain_pem.encode(), key)
    assert "top secret" not in str(caught.value)


def test_text_that_is_no_certificate_is_refused(pki: Pki):
    with pytest.raises(CertificateProblem, match=r"ca\.crt"):
        read_ca_bundle(b"hello")


def test_a_bundle_may_hold_comments_in_any_language(pki: Pki):
    bundle = "# Zertifizierungsstelle für uns\n" + pki.ca_pem
    assert "BEGIN CERTIFICATE" in read_ca_bundle(bundle.encode())[0]
    assert "BEGIN CERTIFICATE" in read_ca_bundle(bundle.encode("latin-1"))[0]


def test_revocation_lists_are_checked(pki: Pki):
    assert read_crls(pki.crl().encode())[0].count("BEGIN X509 CRL") == 1
    for bad in (b"", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"):
        with pytest.raises(CertificateProblem):
            read_crls(bad)


def test_revocation_lists_hold_while_each_issuer_has_one_that_does(pki: Pki):
    old, new, other = pki.crl(expired=True), pki.crl(), Pki().crl(expired=True)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    _, (begin, end) = read_crls((old + new).encode())
    assert begin < now < end
    assert (begin, end) == read_crls((new + old).encode())[1] == read_crls(new.encode())[1]
    assert read_crls(old.encode())[1][1] < now
    assert read_crls((new + other).encode())[1][1] < now


def test_common_cas_are_those_of_both_bundles(pki: Pki):
    other = Pki()
    assert common_ca("", pki.ca_pem) == pki.ca_pem
    assert common_ca(pki.ca_pem, "") == pki.ca_pem
    assert common_ca(pki.ca_pem + other.ca_pem, other.ca_pem).strip() == other.ca_pem.strip()
    assert common_ca(pki.ca_pem, other.ca_pem) == ""


def test_a_weak_key_is_refused_before_openssl_does():
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a.example")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with pytest.raises(CertificateProblem, match="too weak"):
        read_key_pair("x", made.public_bytes(serialization.Encoding.PEM), key.private_bytes(*form))


@pytest.mark.parametrize(
    ("names", "hostname", "expected"),
    [
        (("a.example",), "a.example", True),
        (("*.example",), "a.example", True),
        (("*.example",), "b.a.example", False),
        (("b.example",), "a.example", False),
        ((), "a.example", False),
        (("*.a.example",), "*.a.example", True),
        (("www.a.example",), "*.a.example", True),
        (("a.example",), "*.a.example", False),
        (("*.example",), "*.a.example", False),
        (("xa.example",), "*.a.example", False),
    ],
)
def test_a_wildcard_of_a_certificate_stands_for_one_label(names: tuple[str, ...], hostname: str, expected: bool):
    assert covers(names, hostname) is expected


def signed(subject: str, key: rsa.RSAPrivateKey, issuer: str, by: rsa.RSAPrivateKey, *, sha1: bool = False) -> bytes:
    """A certificate in PEM. The library does not sign with SHA-1, so that the name of the algorithm is exchanged."""
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in (subject, issuer)]
    builder = x509.CertificateBuilder(*reversed(names), key.public_key(), x509.random_serial_number(), now, now)
    made = builder.sign(by, hashes.SHA256())
    if not sha1:
        return made.public_bytes(serialization.Encoding.PEM)
    der = made.public_bytes(serialization.Encoding.DER)
    der = der.replace(bytes.fromhex("2a864886f70d01010b"), bytes.fromhex("2a864886f70d010105"))
    return x509.load_der_x509_certificate(der).public_bytes(serialization.Encoding.PEM)


def pem_of(key: rsa.RSAPrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def test_a_chain_that_openssl_would_not_serve_is_refused_where_it_is_read():
    good, weak = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 1024)
    with pytest.raises(CertificateProblem, match=r"certificate 1 of tls\.crt is signed with SHA1"):
        read_key_pair("x", signed("a.test", good, "ca", good, sha1=True), pem_of(good))
    chain = signed("a.test", good, "mid", good) + signed("mid", good, "ca", good, sha1=True)
    with pytest.raises(CertificateProblem, match=r"certificate 2 of tls\.crt is signed with SHA1"):
        read_key_pair("x", chain, pem_of(good))
    with pytest.raises(CertificateProblem, match=r"certificate 2 of tls\.crt has a key that is too weak"):
        read_key_pair("x", signed("a.test", good, "mid", weak) + signed("mid", weak, "ca", good), pem_of(good))
    own = signed("a.test", good, "a.test", good, sha1=True)  # nobody relies on the signature
    server_context(ListenerTlsIR(certificates=(read_key_pair("x", own, pem_of(good))[0],)))


@pytest.mark.parametrize("indent", [b"  ", b"\t", b""])
@pytest.mark.parametrize("end", [b"\n", b"  \n", b"\r\n"])
def test_blanks_around_lines_of_pem_do_no_harm(pki: Pki, indent: bytes, end: bytes):
    def blanks(text: str) -> bytes:
        return b"".join(indent + line + end for line in text.encode().splitlines())

    made = pki.certificate("a.example")
    found, _ = read_key_pair("x", blanks(made.chain_pem), blanks(made.key_pem.reveal().decode()))
    ca, crl = read_ca_bundle(blanks(pki.ca_pem))[0], read_crls(blanks(pki.crl()))[0]
    server_context(ListenerTlsIR(certificates=(found,), clients=ClientCertificatesIR(ca_pem=ca)))
    client_context(BackendTlsIR(ca_pem=ca, crl_pem=crl, client_certificate=found.chain_pem, client_key=found.key_pem))
