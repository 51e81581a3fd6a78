"""Leaves of a CA, as OpenSSL and Python's strict verification see them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from time import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from egressproxy.gateway.leaf_certificates.minting import (
    BACKDATED_S,
    LEAF_S,
    MintingError,
    SigningCa,
    cross_signed,
    new_ca,
)
from egressproxy.model.certificate import Leaf
from egressproxy.model.secret import SecretBytes
from tests.support.pki import Pki, chain

LONG = f"{'a' * 60}.{'b' * 60}.example"


def first_of(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificates(pem.encode())[0]


def openssl_verifies(folder: Path, ca_pem: str, leaf: Leaf, name: str) -> subprocess.CompletedProcess[str]:
    (folder / "ca.pem").write_text(ca_pem, encoding="ascii")
    (folder / "leaf.pem").write_text(leaf.chain_pem, encoding="ascii")
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", name]
    return subprocess.run(
        [*command, "-CAfile", str(folder / "ca.pem"), str(folder / "leaf.pem")],
        capture_output=True,
        text=True,
        check=False,
    )


def handshake(ca_pem: str, leaf: Leaf, name: str, folder: Path) -> None:
    """Between a server with the leaf and a client that is strict. Raises ssl.SSLCertVerificationError."""
    both = folder / "both.pem"
    both.write_bytes(leaf.chain_pem.encode() + leaf.key_pem.reveal())
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(both)
    client_context = ssl.create_default_context(cadata=ca_pem)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(up, down, server_side=True)
    client = client_context.wrap_bio(down, up, server_hostname=name)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["api.example.com", "_a.example", LONG, "xn--bcher-kva.example"])
def test_openssl_believes_a_leaf_for_its_name_alone(name: str, tmp_path: Path):
    ca_pem, key = new_ca("tests", time(), 30)
    leaf = SigningCa(ca_pem, key).mint(name, time())
    found = openssl_verifies(tmp_path, ca_pem, leaf, name)
    assert found.returncode == 0, found.stdout + found.stderr
    assert openssl_verifies(tmp_path, ca_pem, leaf, "other.example").returncode != 0
    handshake(ca_pem, leaf, name, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ca_pem, leaf, "other.example", tmp_path)


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_clients_believe_a_leaf_for_an_address(address: str, tmp_path: Path):
    ca_pem, key = new_ca("tests", time(), 30)
    leaf = SigningCa(ca_pem, key).mint(address, time())
    handshake(ca_pem, leaf, address, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ca_pem, leaf, "192.0.2.8", tmp_path)


def test_a_leaf_lives_a_day_and_has_begun_an_hour_ago():
    now = 1_800_000_000.0
    ca_pem, key = new_ca("tests", now, 30)
    leaf = SigningCa(ca_pem, key).mint("a.example", now)
    made = first_of(leaf.chain_pem)
    assert made.not_valid_before_utc.timestamp() == now - BACKDATED_S
    assert made.not_valid_after_utc.timestamp() == now + LEAF_S == leaf.expires_at


def test_a_leaf_ends_with_its_ca_and_one_that_has_ended_signs_nothing():
    now = 1_800_000_000.0
    ca_pem, key = new_ca("tests", now, 1)
    ca = SigningCa(ca_pem, key)
    assert ca.mint("a.example", now + 3600).expires_at == now + 86400
    with pytest.raises(MintingError, match="expired"):
        ca.mint("a.example", now + 86401)
    with pytest.raises(MintingError, match="not valid before"):
        ca.mint("a.example", now - 86400 * 2)


def test_no_two_leaves_have_one_serial_number():
    ca = SigningCa(*new_ca("tests", time(), 30))
    assert len({first_of(ca.mint("a.example", time()).chain_pem).serial_number for _ in range(50)}) == 50


def test_clients_believe_a_ca_with_constraints_for_permitted_names_alone(tmp_path: Path):
    ca_pem, key = new_ca("tests", time(), 30, permitted=["example.com"], excluded=["bank.example.com"])
    ca = SigningCa(ca_pem, key)
    for name in ("example.com", "api.example.com"):
        assert openssl_verifies(tmp_path, ca_pem, ca.mint(name, time()), name).returncode == 0
    for name in ("example.org", "badexample.com", "bank.example.com", "a.bank.example.com"):
        found = openssl_verifies(tmp_path, ca_pem, ca.mint(name, time()), name)
        assert found.returncode != 0, name
        assert "subtree violation" in found.stderr + found.stdout


@pytest.mark.parametrize("kind", ["rsa", "p384"])
def test_a_ca_of_another_kind_of_key_signs_as_well(kind: str, tmp_path: Path):
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP384R1())
    now = time()
    template = first_of(new_ca("tests", now, 30)[0])
    builder = (
        x509.CertificateBuilder()
        .subject_name(template.subject)
        .issuer_name(template.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(template.not_valid_before_utc)
        .not_valid_after(template.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(template.extensions.get_extension_for_class(x509.KeyUsage).value, critical=True)
    )
    from cryptography.hazmat.primitives import hashes

    ca_pem = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    leaf = SigningCa(ca_pem, SecretBytes(pem)).mint("a.example", now)
    found = openssl_verifies(tmp_path, ca_pem, leaf, "a.example")
    assert found.returncode == 0, found.stdout + found.stderr


def test_what_is_no_ca_signs_nothing():
    leaf = Pki().issue("a.example")
    with pytest.raises(MintingError, match="is none of a CA"):
        SigningCa(chain(leaf), SecretBytes(leaf.private_key_pem.bytes()))
    with pytest.raises(MintingError, match="not PEM") as error:
        SigningCa("x", SecretBytes(b"hidden"))
    assert "hidden" not in str(error.value)
    with pytest.raises(MintingError, match="does not belong to the certificate"):
        SigningCa(new_ca("one", time(), 30)[0], new_ca("other", time(), 30)[1])


def test_clients_of_the_old_ca_and_of_the_new_one_believe_a_leaf_of_one_that_is_cross_signed(tmp_path: Path):
    old_pem, old_key = new_ca("old", time(), 30)
    new_pem, new_key = new_ca("new", time(), 60, permitted=["example.com"])
    crossed = cross_signed(new_pem, old_pem, old_key)
    leaf = SigningCa(crossed, new_key).mint("a.example.com", time())
    assert leaf.chain_pem.endswith(crossed)
    for ca_pem in (old_pem, new_pem):
        handshake(ca_pem, leaf, "a.example.com", tmp_path)
    assert first_of(crossed).not_valid_after_utc == first_of(old_pem).not_valid_after_utc
    with pytest.raises(MintingError, match="pathlen:0"):
        cross_signed(new_pem, crossed, new_key)
