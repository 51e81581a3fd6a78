"""What is known of a client's certificate that was refused."""

from __future__ import annotations

import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from egressproxy.net.tls_contexts import verify_callbacks
from egressproxy.net.tls_contexts.verify_callbacks import (
    can_take_any_certificate,
    note_refused,
    take_any_certificate,
    take_refused,
)
from tests.support.pki import Pki, chain


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> Exception | None:
    """The error of the server's handshake."""
    read, write, there, back = (ssl.MemoryBIO() for _ in range(4))
    front = server.wrap_bio(read, write, server_side=True)
    other = client.wrap_bio(there, back, server_hostname="web.test")
    for _ in range(6):
        for peer, outgoing, incoming in ((other, back, read), (front, write, there)):
            try:
                peer.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                if peer is front:
                    return error
            incoming.write(outgoing.read())
    return None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_subject_issuer_and_serial_are_told_of_the_one_that_was_refused_and_of_no_other(version: ssl.TLSVersion):
    take_refused()  # of another test
    pki, other = Pki(), Pki()
    server, client = pki.server_context("web.test"), ssl.create_default_context(cadata=pki.ca_pem)
    server.load_verify_locations(cadata=pki.ca_pem)
    server.verify_mode = ssl.CERT_REQUIRED
    server.minimum_version = server.maximum_version = version
    note_refused(server)
    assert server.verify_mode is ssl.CERT_REQUIRED
    assert shake(server, client) is not None  # it shows none
    assert take_refused() is None
    leaf = other.issue("client.test")
    leaf.configure_cert(client)
    assert isinstance(shake(server, client), ssl.SSLCertVerificationError)
    found = take_refused()
    assert found is not None
    shown = x509.load_pem_x509_certificate(chain(leaf).encode())
    assert int(found.serial, 16) == shown.serial_number
    assert found.sha256 == shown.fingerprint(SHA256()).hex()
    assert "/O=trustme" in found.subject
    assert "Testing CA" in found.issuer
    assert take_refused() is None
    good = ssl.create_default_context(cadata=pki.ca_pem)
    pki.issue("client.test").configure_cert(good)
    assert shake(server, good) is None
    assert take_refused() is None


def test_a_context_asks_and_does_not_insist():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert can_take_any_certificate()
    take_any_certificate(context)
    assert context.verify_mode is ssl.CERT_OPTIONAL


def test_an_openssl_that_cannot_be_reached_is_an_error_and_no_open_door(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verify_callbacks, "openssl_library", lambda: None)
    assert not can_take_any_certificate()
    with pytest.raises(ValueError, match="cannot ask"):
        take_any_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
