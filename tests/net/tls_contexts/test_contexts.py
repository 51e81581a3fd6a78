from __future__ import annotations

import gc
import math
import os
import ssl
import struct
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.ir.gateway import CertificateIR, ClientCertificatesIR, ListenerTlsIR
from egressproxy.model.secret import SecretBytes
from egressproxy.net.client_chains import is_for_identity
from egressproxy.net.tls_contexts import contexts
from egressproxy.net.tls_contexts.contexts import client_context, client_tls, server_context
from egressproxy.net.tls_peer import is_about_certificate, server_name, verified_fields, verified_until
from tests.e2e.tls_lab.authority import Certificate, issue
from tests.e2e.tls_lab.authority import server as authority_server
from tests.protocols.tls.test_client_hello import extension, records
from tests.protocols.tls.test_client_hello import server_name as named
from tests.support.pki import Pki, chain, pin

PKI = Pki()
OTHER = Pki()
TRUST = BackendTlsIR(ca_pem=PKI.ca_pem)


def verified_certificate(peer: ssl.SSLObject) -> bytes | None:
    return peer.getpeercert(binary_form=True) if verified_fields(peer) else None


class Ends:
    """What a handshake in memory gave."""

    def __init__(self, server: ssl.SSLContext, spec: BackendTlsIR, host: str, alpn: tuple[str, ...] = ("http/1.1",)):
        tls = client_tls(spec, host, alpn)
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.sni: str | None = "not seen"
        self.client = tls.context.wrap_bio(down, up, server_hostname=tls.server_hostname)
        self.server = server.wrap_bio(up, down, server_side=True)
        waiting = [self.client, self.server]
        for _ in range(10):
            for end in list(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
        assert not waiting
        if tls.verify:
            tls.verify(self.client)

    @property
    def certificate_names(self) -> list[str]:
        return [value for _kind, value in self.client.getpeercert()["subjectAltName"]]  # type: ignore[index,misc]


def handshake(spec: BackendTlsIR, host: str, *names: str, **server: object) -> Ends:
    return Ends(server_context(PKI.listener(*names, **server)), spec, host)  # type: ignore[arg-type]


def refused(spec: BackendTlsIR, host: str, *names: str, **server: object) -> int:
    """The verify code of the refusal."""
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(spec, host, *names, **server)
    return caught.value.verify_code


def test_a_good_certificate_is_accepted_with_http_1_1_by_alpn():
    ends = handshake(TRUST, "a.test", "a.test")
    assert ends.client.selected_alpn_protocol() == "http/1.1"
    assert ends.client.version() == "TLSv1.3"


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("a.test", ["b.test"]),
        ("a.b.test.example", ["*.test.example"]),
        ("127.0.0.1", ["a.test"]),
        ("a.test", ["127.0.0.1"]),
    ],
)
def test_another_name_is_refused(host: str, names: list[str]):
    assert refused(TRUST, host, *names) in (62, 64)


def test_the_common_name_never_counts():
    server = server_context(ListenerTlsIR(certificates=(PKI.certificate("other.test", cn="a.test"),)))
    with pytest.raises(ssl.SSLCertVerificationError):
        Ends(server, TRUST, "a.test")


def test_an_expired_certificate_is_refused():
    assert refused(TRUST, "a.test", "a.test", expired=True) == 10


MUST_STAPLE = (x509.TLSFeatureType.status_request,)


@pytest.mark.parametrize("feature", list(x509.TLSFeatureType))
@pytest.mark.parametrize(
    "spec", [TRUST, replace(TRUST, names=("a.test",)), replace(TRUST, sni="a.test")], ids=["bare", "names", "sni"]
)
def test_a_certificate_that_asks_for_a_staple_is_refused(spec: BackendTlsIR, feature: x509.TLSFeatureType):
    server = server_context(ListenerTlsIR(certificates=(PKI.identified("a.test", features=(feature,)),)))
    with pytest.raises(ssl.SSLCertVerificationError, match="stapled") as caught:
        Ends(server, spec, "a.test")
    assert caught.value.verify_code == 73


@pytest.mark.parametrize(
    "spec",
    [replace(TRUST, crl_pem=PKI.crl()), BackendTlsIR(insecure_skip_verify=True)],
    ids=["lists are checked", "nothing is verified"],
)
def test_a_certificate_that_asks_for_a_staple_is_taken_where_lists_or_nobody_speak_of_it(spec: BackendTlsIR):
    Ends(server_context(ListenerTlsIR(certificates=(PKI.identified("a.test", features=MUST_STAPLE),))), spec, "a.test")


def test_the_bytes_of_the_extensions_id_elsewhere_ask_for_nothing():
    certificate = PKI.identified("a.test", comment=bytes.fromhex("06082b06010505070118"))
    Ends(server_context(ListenerTlsIR(certificates=(certificate,))), TRUST, "a.test")


def test_a_foreign_root_is_refused():
    assert refused(BackendTlsIR(ca_pem=Pki().ca_pem), "a.test", "a.test") in (18, 19, 20)


def test_own_roots_replace_those_of_the_system_and_no_roots_mean_the_systems():
    assert len(client_context(TRUST).get_ca_certs()) == 1
    assert refused(BackendTlsIR(), "a.test", "a.test") in (18, 19, 20)


def test_an_address_is_verified_and_not_sent_as_sni():
    server = server_context(PKI.listener("127.0.0.1"))
    seen: list[str | None] = []
    server.sni_callback = lambda _peer, name, _context: seen.append(name)
    Ends(server, TRUST, "127.0.0.1")
    assert seen == [None]


def test_the_sni_of_the_spec_is_sent_and_verified_instead_of_the_host():
    server = server_context(PKI.listener("real.test"))
    seen: list[str | None] = []
    server.sni_callback = lambda _peer, name, _context: seen.append(name)
    Ends(server, replace(TRUST, sni="real.test"), "front.test")
    assert seen == ["real.test"]


@pytest.mark.parametrize(
    ("wanted", "presented"),
    [
        (("b.test", "a.test"), ["a.test"]),
        (("B.TEST.",), ["b.test"]),
        (("x.b.test",), ["*.b.test"]),
        (("10.0.0.1",), ["10.0.0.1"]),
        (("2001:DB8::1",), ["2001:db8::1"]),
    ],
)
def test_any_of_the_names_suffices(wanted: tuple[str, ...], presented: list[str]):
    handshake(replace(TRUST, names=wanted), "host.test", *presented)


@pytest.mark.parametrize(
    ("wanted", "presented"),
    [
        (("a.test",), ["b.test"]),
        (("x.y.b.test",), ["*.b.test"]),
        (("b.test",), ["*.b.test"]),
        (("x.test",), ["*.test"]),
        (("*.b.test",), ["*.b.test"]),
        (("10.0.0.1",), ["10.0.0.2"]),
        (("spiffe://x/y",), ["a.test"]),
    ],
)
def test_none_of_the_names_is_refused(wanted: tuple[str, ...], presented: list[str]):
    assert refused(replace(TRUST, names=wanted), "a.test", *presented) == 62


@pytest.mark.parametrize("wanted", [("spiffe://x/A",), ("c.test", "spiffe://x/A"), ("b.test", "spiffe://x/y")])
def test_a_uri_of_the_certificate_is_one_of_its_names(wanted: tuple[str, ...]):
    server = server_context(ListenerTlsIR(certificates=(PKI.identified("spiffe://x/A", "b.test"),)))
    Ends(server, replace(TRUST, names=wanted), "host.test")


@pytest.mark.parametrize("wanted", [("spiffe://x/a",), ("spiffe://x",), ("spiffe://x/A/b",), ("x",)])
def test_another_uri_is_refused(wanted: tuple[str, ...]):
    server = server_context(ListenerTlsIR(certificates=(PKI.identified("spiffe://x/A"),)))
    with pytest.raises(ssl.SSLCertVerificationError):
        Ends(server, replace(TRUST, names=wanted), "host.test")


def test_names_do_not_lift_the_check_of_the_chain():
    assert refused(BackendTlsIR(ca_pem=Pki().ca_pem, names=("a.test",)), "a.test", "a.test") in (18, 19, 20)


def test_a_pin_has_to_match_even_where_the_chain_is_not_verified():
    certificate = PKI.certificate("a.test")
    server = server_context(ListenerTlsIR(certificates=(certificate,)))
    good, bad = pin(certificate.chain_pem), pin(PKI.certificate("a.test").chain_pem)
    Ends(server, replace(TRUST, pins=(bad, good)), "a.test")
    for spec in (replace(TRUST, pins=(bad,)), BackendTlsIR(insecure_skip_verify=True, pins=(bad,))):
        with pytest.raises(ssl.SSLCertVerificationError):
            Ends(server, spec, "a.test")


def test_skip_verify_takes_any_certificate():
    handshake(BackendTlsIR(insecure_skip_verify=True), "a.test", "b.test", expired=True)


def test_a_revoked_certificate_is_refused_and_others_are_not():
    revoked, good = PKI.certificate("a.test"), PKI.certificate("a.test")
    spec = replace(TRUST, crl_pem=PKI.crl(revoked.chain_pem))
    Ends(server_context(ListenerTlsIR(certificates=(good,))), spec, "a.test")
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        Ends(server_context(ListenerTlsIR(certificates=(revoked,))), spec, "a.test")
    assert caught.value.verify_code == 23


def test_a_revocation_list_that_is_old_or_of_another_issuer_fails_closed():
    assert refused(replace(TRUST, crl_pem=PKI.crl(expired=True)), "a.test", "a.test") == 12
    assert refused(replace(TRUST, crl_pem=Pki().crl()), "a.test", "a.test") == 3


def test_a_client_certificate_is_shown_to_who_asks():
    leaf = PKI.issue("gateway.test")
    key = SecretBytes(leaf.private_key_pem.bytes())
    spec = replace(TRUST, client_certificate=chain(leaf), client_key=key)
    server = server_context(PKI.listener("127.0.0.1"))
    PKI.ca.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    ends = Ends(server, spec, "127.0.0.1")
    assert ("DNS", "gateway.test") in ends.server.getpeercert()["subjectAltName"]  # type: ignore[index,operator]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_old_peer_is_refused():
    server = server_context(PKI.listener("a.test"))
    server.minimum_version = ssl.TLSVersion.TLSv1
    server.maximum_version = ssl.TLSVersion.TLSv1_1
    server.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        Ends(server, TRUST, "a.test")
    newer = server_context(PKI.listener("a.test"))
    newer.maximum_version = ssl.TLSVersion.TLSv1_2
    Ends(newer, TRUST, "a.test")
    with pytest.raises(ssl.SSLError):
        Ends(newer, replace(TRUST, min_version="1.3"), "a.test")


def test_clients_are_offered_authenticated_encryption_alone():
    for cipher in server_context(PKI.listener("a.test")).get_ciphers():
        assert "GCM" in cipher["name"] or "CHACHA20" in cipher["name"]


def test_every_cipher_has_forward_secrecy():
    for context in (client_context(TRUST), server_context(PKI.listener("a.test"))):
        for cipher in context.get_ciphers():
            assert cipher["protocol"] == "TLSv1.3" or cipher["name"].startswith(("ECDHE-", "DHE-"))


def test_a_truncation_is_never_taken_for_an_end():
    """CPython 3.11.2 and its neighbours would, with OpenSSL 3."""
    ignored = getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    for context in (client_context(TRUST), server_context(PKI.listener("a.test"))):
        assert not context.options & ignored


def test_backends_with_the_same_trust_share_a_context():
    first = client_context(replace(TRUST, sni="a.test", pins=("sha256/x",)))
    assert client_context(replace(TRUST, sni="b.test")) is first
    assert client_context(replace(TRUST, min_version="1.3")) is not first
    assert client_context(TRUST, ("h2",)) is not first


def test_the_server_chooses_by_exact_name_then_wildcard_then_the_first():
    first, exact, wild = PKI.certificate("first.test"), PKI.certificate("x.wild.test"), PKI.certificate("*.wild.test")
    server = server_context(ListenerTlsIR(certificates=(first, wild, exact)))
    trusting = BackendTlsIR(ca_pem=PKI.ca_pem, names=("first.test", "x.wild.test", "y.wild.test"))
    assert Ends(server, trusting, "x.wild.test").certificate_names == ["x.wild.test"]
    assert Ends(server, trusting, "y.wild.test").certificate_names == ["*.wild.test"]
    assert Ends(server, trusting, "unknown.test").certificate_names == ["first.test"]
    assert Ends(server, trusting, "127.0.0.1").certificate_names == ["first.test"]
    assert Ends(server, trusting, "x.wild.test").server.selected_alpn_protocol() == "http/1.1"


def test_what_cannot_be_read_is_refused_and_no_descriptor_stays_open():
    good = PKI.certificate("a.test")
    other = PKI.certificate("a.test")
    gc.collect()  # descriptors of other tests
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ssl.SSLError):
        server_context(ListenerTlsIR(certificates=(CertificateIR("x", good.chain_pem, other.key_pem),)))
    with pytest.raises(ssl.SSLError):
        client_context(BackendTlsIR(ca_pem="no certificate"))
    with pytest.raises(ssl.SSLError):
        client_context(replace(TRUST, crl_pem="no list"))
    with pytest.raises(ValueError, match="needs a certificate"):
        server_context(ListenerTlsIR())
    with pytest.raises(ValueError, match="minVersion"):
        client_context(replace(TRUST, min_version="1.0"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_encrypted_key_is_refused_without_asking_for_its_passphrase():
    from cryptography.hazmat.primitives import serialization as s

    leaf = PKI.issue("a.test")
    key = s.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    locked = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret"))
    with pytest.raises(ValueError, match="passphrase"):
        server_context(ListenerTlsIR(certificates=(CertificateIR("x", chain(leaf), SecretBytes(locked)),)))


# --- what is trusted -----------------------------------------------------------------------------------------------
ROOT = issue("Root", is_ca=True)
INTERMEDIATE = issue("Intermediate", ROOT, is_ca=True)
LEAF = issue("a.test", INTERMEDIATE, usages=[ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
FOREIGN = issue("Foreign", is_ca=True)
LISTS = ROOT.crl() + INTERMEDIATE.crl()


def trusting(
    anchors: list[Certificate], *, by_system: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> BackendTlsIR:
    """A spec that trusts these, as its own bundle or as the system's roots."""
    pem = "".join(each.pem for each in anchors)
    if not by_system:
        return BackendTlsIR(ca_pem=pem)
    roots = tmp_path / "roots.pem"
    roots.write_text(pem, encoding="ascii")
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(contexts, "_present", contexts._OfSystemRoots(""))
    monkeypatch.setattr(contexts, "_next", contexts._present)
    return BackendTlsIR()


@pytest.mark.parametrize("by_system", [False, True])
@pytest.mark.parametrize(
    ("anchors", "is_good"),
    [
        ([ROOT], True),
        ([INTERMEDIATE], True),
        ([LEAF], True),
        ([ROOT, INTERMEDIATE], True),
        ([FOREIGN, LEAF], True),
        ([FOREIGN], False),
        ([issue("Intermediate", FOREIGN, is_ca=True, key=FOREIGN.key)], False),
    ],
    ids=["root", "intermediate", "leaf", "both", "foreign root and leaf", "foreign root", "of the same name"],
)
def test_each_certificate_that_is_named_is_a_trust_anchor(
    anchors: list[Certificate], is_good: bool, by_system: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    spec = trusting(anchors, by_system=by_system, monkeypatch=monkeypatch, tmp_path=tmp_path)
    if is_good:
        assert Ends(authority_server(LEAF), spec, "a.test").certificate_names == ["a.test"]
        return
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        Ends(authority_server(LEAF), spec, "a.test")
    assert caught.value.verify_code in (2, 7, 18, 19, 20, 21)


@pytest.mark.parametrize(
    ("host", "leaf", "code"),
    [("b.test", LEAF, 62), ("a.test", issue("a.test", INTERMEDIATE, days=(-9, -1)), 10)],
    ids=["name", "time"],
)
def test_an_anchor_is_still_judged_by_name_and_time(host: str, leaf: Certificate, code: int):
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        Ends(authority_server(leaf), BackendTlsIR(ca_pem=leaf.pem), host)
    assert caught.value.verify_code == code


@pytest.mark.parametrize("by_system", [False, True])
def test_a_ca_of_plain_openssl_is_taken_from_a_bundle_and_from_the_system(
    by_system: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """`openssl req -x509` and `openssl x509 -req` write no authority key identifier and no key usage."""
    run = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "san").write_text("subjectAltName=DNS:a.test\n", encoding="ascii")
    run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-subj",
            "/CN=R",
        ]
    )
    run(["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "s.key", "-out", "s.csr", "-subj", "/CN=a.test"])
    sign = ["openssl", "x509", "-req", "-in", "s.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    run([*sign, "-extfile", "san", "-out", "s.pem"])
    root = Certificate(load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes()), ROOT.key)
    spec = trusting([root], by_system=by_system, monkeypatch=monkeypatch, tmp_path=tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "s.pem", tmp_path / "s.key")
    assert Ends(context, spec, "a.test").certificate_names == ["a.test"]


@pytest.mark.parametrize(
    ("anchors", "is_good"), [([ROOT], True), ([ROOT, INTERMEDIATE], True), ([INTERMEDIATE], False), ([LEAF], False)]
)
def test_revocation_lists_are_checked_up_to_a_root(anchors: list[Certificate], is_good: bool):
    """OpenSSL verifies the list of an authority with the certificate above it, and would miss that of an anchor."""
    spec = BackendTlsIR(ca_pem="".join(each.pem for each in anchors), crl_pem=LISTS)
    if is_good:
        Ends(authority_server(LEAF), spec, "a.test")
        return
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        Ends(authority_server(LEAF), spec, "a.test")
    assert caught.value.verify_code in (2, 20)


@pytest.mark.parametrize("anchor", [ROOT, INTERMEDIATE, LEAF])
def test_each_certificate_that_a_listener_names_is_a_trust_anchor_of_its_clients(anchor: Certificate):
    clients = ClientCertificatesIR(anchor.pem)
    server = server_context(replace(PKI.listener("a.test"), clients=clients))
    shown = CertificateIR("x", LEAF.chain_pem(), SecretBytes(LEAF.key_pem.encode()))
    assert verified_certificate(Ends(server, showing(shown), "a.test").server) == ssl.PEM_cert_to_DER_cert(LEAF.pem)


def test_a_listener_never_lets_in_clients_of_the_systems_roots():
    with pytest.raises(ValueError, match="Empty certificate data"):
        server_context(replace(PKI.listener("a.test"), clients=ClientCertificatesIR("")))


@pytest.mark.parametrize("accepted", [[ROOT], [ROOT, INTERMEDIATE], [ROOT, LEAF]])
def test_where_the_cas_of_identities_are_named_apart_the_chain_is_known_up_to_its_root(accepted: list[Certificate]):
    clients = ClientCertificatesIR("".join(each.pem for each in accepted), identity_ca_pem=ROOT.pem)
    server = server_context(replace(PKI.listener("a.test"), clients=clients))
    shown = CertificateIR("x", LEAF.chain_pem(), SecretBytes(LEAF.key_pem.encode()))
    assert is_for_identity(Ends(server, showing(shown), "a.test").server, clients)


def test_the_only_ca_of_clients_and_of_their_identities_may_be_below_a_root():
    clients = ClientCertificatesIR(INTERMEDIATE.pem, identity_ca_pem=INTERMEDIATE.pem)
    server = server_context(replace(PKI.listener("a.test"), clients=clients))
    shown = CertificateIR("x", LEAF.chain_pem(), SecretBytes(LEAF.key_pem.encode()))
    assert is_for_identity(Ends(server, showing(shown), "a.test").server, clients)


@pytest.mark.parametrize("certificates", [("a.test",), ("*.test.example", "a.test")])
def test_the_name_that_a_client_asked_for_is_known_afterwards(certificates: tuple[str, ...]):
    """Whatever certificate was chosen by it, and though that one brings a context of its own."""
    server = server_context(ListenerTlsIR(certificates=tuple(PKI.certificate(name) for name in certificates)))
    assert server_name(Ends(server, replace(TRUST, sni="A.Test"), "x.test").server) == "a.test"
    assert server_name(Ends(server, replace(TRUST, insecure_skip_verify=True), "other.test").server) == "other.test"
    assert server_name(Ends(server, replace(TRUST, insecure_skip_verify=True), "127.0.0.1").server) == ""


def hello_of_a_retry(name: str | None, *, is_second: bool) -> bytes:
    """A ClientHello of TLS 1.3 for one group, without a key for it in the first place."""
    key = struct.pack("!HH", 29, 32) + os.urandom(32) if is_second else b""
    extensions = named(name.encode()) if name is not None else b""
    extensions += extension(10, b"\x00\x02\x00\x1d") + extension(13, b"\x00\x04\x04\x03\x08\x04")
    extensions += extension(43, b"\x02\x03\x04") + extension(51, struct.pack("!H", len(key)) + key)
    body = b"\x03\x03" + bytes(32) + b"\x20" + bytes(32) + b"\x00\x02\x13\x01\x01\x00"
    body += struct.pack("!H", len(extensions)) + extensions
    return records(b"\x01" + struct.pack("!I", len(body))[1:] + body)


@pytest.mark.parametrize("first", ["a.test", "other.test", None])
@pytest.mark.parametrize("second", ["a.test", "b.test", "other.test", None])
def test_a_second_hello_has_to_name_the_same_server(first: str | None, second: str | None):
    """The certificate, and the listener, were chosen by the first (HelloRetryRequest, RFC 8446 section 4.1.4)."""
    server = server_context(ListenerTlsIR(certificates=(PKI.certificate("a.test"), PKI.certificate("b.test"))))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    far = server.wrap_bio(up, down, server_side=True)
    up.write(hello_of_a_retry(first, is_second=False))
    with pytest.raises(ssl.SSLWantReadError):
        far.do_handshake()
    assert down.read()[5] == 2, "a HelloRetryRequest"
    up.write(hello_of_a_retry(second, is_second=True))
    with pytest.raises(ssl.SSLError) as caught:
        far.do_handshake()
    assert isinstance(caught.value, ssl.SSLWantReadError) is (first == second)
    if first != second:
        assert down.read()[-2:] == bytes([2, 47]), "illegal_parameter"


# --- certificates of clients ---------------------------------------------------------------------------------------
def asking(*pkis: Pki, takes_any: bool = False) -> ssl.SSLContext:
    """A listener that asks for a certificate of these authorities."""
    clients = ClientCertificatesIR("".join(pki.ca_pem for pki in pkis), takes_any)
    return server_context(replace(PKI.listener("a.test", "b.test"), clients=clients))


def showing(certificate: CertificateIR | None) -> BackendTlsIR:
    if certificate is None:
        return TRUST
    return replace(TRUST, client_certificate=certificate.chain_pem, client_key=certificate.key_pem)


@pytest.mark.parametrize("authorities", [(PKI,), (OTHER, PKI)])
def test_a_client_with_a_certificate_of_the_authorities_is_let_in_and_known(authorities: tuple[Pki, ...]):
    own = PKI.certificate("client.test")
    ends = Ends(asking(*authorities), showing(own), "a.test")
    leaf, end, _ = own.chain_pem.partition("-----END CERTIFICATE-----")
    assert verified_certificate(ends.server) == ssl.PEM_cert_to_DER_cert(leaf + end)


@pytest.mark.parametrize(
    "shown",
    [
        None,
        OTHER.certificate("client.test"),
        PKI.certificate("client.test", expired=True),
    ],
)
def test_any_other_client_fails_in_the_handshake(shown: CertificateIR | None):
    with pytest.raises(ssl.SSLError) as caught:
        Ends(asking(PKI), showing(shown), "a.test")
    assert is_about_certificate(caught.value)


@pytest.mark.parametrize(
    "shown",
    [
        None,
        PKI.certificate("client.test"),
        OTHER.certificate("client.test"),
        PKI.certificate("client.test", expired=True),
    ],
)
def test_where_any_certificate_will_do_it_is_asked_for_and_proves_nothing(shown: CertificateIR | None):
    ends = Ends(asking(PKI, takes_any=True), showing(shown), "a.test")
    assert bool(ends.server.getpeercert(binary_form=True)) is (shown is not None)
    assert verified_certificate(ends.server) is None


@pytest.mark.parametrize("takes_any", [False, True])
def test_what_is_asked_of_clients_does_not_depend_on_the_certificate_that_they_are_shown(takes_any: bool):
    """Whatever name a client asks for: with it, another context of the listener takes over."""
    asked = ClientCertificatesIR(PKI.ca_pem, takes_any)
    shown = (PKI.certificate("a.test"), PKI.certificate("b.test"))
    server = server_context(ListenerTlsIR(certificates=shown, clients=asked))
    own = PKI.certificate("client.test")
    for name in ("a.test", "b.test"):
        known = verified_certificate(Ends(server, showing(own), name).server)
        assert (known is None) is takes_any
        for wrong in (None, OTHER.certificate("client.test")):
            if takes_any:
                assert verified_certificate(Ends(server, showing(wrong), name).server) is None
                continue
            with pytest.raises(ssl.SSLError) as caught:
                Ends(server, showing(wrong), name)
            assert is_about_certificate(caught.value)


def test_a_listener_that_does_not_ask_knows_nobody():
    ends = Ends(server_context(PKI.listener("a.test")), showing(PKI.certificate("client.test")), "a.test")
    assert verified_certificate(ends.server) is None


def test_a_failure_of_another_kind_is_not_about_the_certificate():
    assert not is_about_certificate(ConnectionResetError())
    assert not is_about_certificate(ssl.SSLError(1, "something else"))


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None, name: str = "a.test"
) -> ssl.SSLObject:
    return both(server, client, session, name)[0]


def both(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None, name: str
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The client's and the server's end of a connection."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=name, session=session)
    far = server.wrap_bio(up, down, server_side=True)
    waiting = [near, far]
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    far.write(b"x")
    near.read(1)  # and with it the tickets of TLS 1.3
    return near, far


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_of_a_listener_that_does_not_ask_is_worth_nothing_at_one_that_does(version: ssl.TLSVersion):
    client = PKI.client_context()
    client.maximum_version = version
    session = shake(server_context(PKI.listener("a.test")), client).session
    with pytest.raises(ssl.SSLError) as caught:
        shake(asking(PKI), client, session)
    assert is_about_certificate(caught.value)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_that_one_authority_stood_for_is_worth_nothing_where_another_one_is_asked_for(
    version: ssl.TLSVersion,
):
    client = PKI.client_context(OTHER.issue("client.test"))
    client.maximum_version = version
    session = shake(asking(OTHER), client).session
    assert shake(asking(OTHER, takes_any=True), client, session).session_reused is False
    with pytest.raises(ssl.SSLError) as caught:
        shake(asking(PKI), client, session)
    assert is_about_certificate(caught.value)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_from_before_a_revocation_list_is_worth_nothing_behind_it(version: ssl.TLSVersion):
    client = PKI.client_context(OTHER.issue("client.test"))
    client.maximum_version = version
    before = replace(PKI.listener("a.test"), clients=ClientCertificatesIR(OTHER.ca_pem))
    session = shake(server_context(before), client).session
    assert shake(server_context(before), client, session).session_reused
    behind = replace(before, clients=ClientCertificatesIR(OTHER.ca_pem, crl_pem=OTHER.crl()))
    assert not shake(server_context(behind), client, session).session_reused


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_listener_that_has_its_port_for_itself_resumes_sessions(version: ssl.TLSVersion):
    client, server = PKI.client_context(), server_context(PKI.listener("a.test"))
    client.maximum_version = version
    session = shake(server, client).session
    assert shake(server, client, session).session_reused


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_the_systems_roots_are_those_that_openssl_is_told(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "ca.pem").write_text(PKI.ca_pem)
    command = ("openssl", "x509", "-hash", "-noout", "-in", str(tmp_path / "ca.pem"))
    name = subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    (tmp_path / f"{name}.0").write_text(PKI.ca_pem)
    assert refused(BackendTlsIR(), "a.test", "a.test")
    monkeypatch.setenv(variable, str(tmp_path / "ca.pem" if variable == "SSL_CERT_FILE" else tmp_path))
    contexts._present.made.clear()  # they are read once for each setting
    try:
        assert handshake(BackendTlsIR(), "a.test", "a.test").certificate_names == ["a.test"]
    finally:
        monkeypatch.undo()
        contexts._present.made.clear()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_that_is_resumed_has_the_certificate_of_the_first_and_its_end(version: ssl.TLSVersion):
    server, client = asking(PKI), PKI.client_context(PKI.issue("client.test", span_s=(-60, 3600)))
    client.maximum_version = version
    near, far = both(server, client, None, "a.test")
    assert 3500 < verified_until(far) - time.time() <= 3601
    again, resumed = both(server, client, near.session, "a.test")
    assert again.session_reused
    assert verified_until(resumed) == verified_until(far)
    assert verified_certificate(resumed) == verified_certificate(far)


def test_where_no_certificate_is_asked_for_none_ends():
    _, far = both(server_context(PKI.listener("a.test")), PKI.client_context(), None, "a.test")
    assert verified_until(far) == math.inf


# --- what a BackendTLSPolicy takes away (GEP-4152) -----------------------------------------------------------------
def of_leaf(leaf: CertificateIR) -> ssl.SSLContext:
    return server_context(ListenerTlsIR(certificates=(leaf,)))


def own(*names: str, expired: bool = False) -> CertificateIR:
    """A certificate of an unknown authority."""
    return OTHER.certificate(*names, expired=expired)


def test_a_trusted_certificate_is_accepted_without_an_authority_and_no_other():
    leaf, another = own("a.test"), own("a.test")
    spec = BackendTlsIR(ca_pem=leaf.chain_pem, trusted_pem=leaf.chain_pem)
    Ends(of_leaf(leaf), spec, "a.test")
    with pytest.raises(ssl.SSLCertVerificationError):
        Ends(of_leaf(another), spec, "a.test")


def test_a_trusted_certificate_still_has_its_name_and_its_time():
    leaf, old = own("a.test"), own("a.test", expired=True)
    for shown, host, code in ((leaf, "b.test", 62), (old, "a.test", 10)):
        spec = BackendTlsIR(ca_pem=shown.chain_pem, trusted_pem=shown.chain_pem)
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            Ends(of_leaf(shown), spec, host)
        assert caught.value.verify_code == code


@pytest.mark.parametrize("has_others", [False, True])
def test_a_trusted_certificate_that_is_a_ca_vouches_for_nobody(has_others: bool):
    """OpenSSL marks a self-signed certificate as a CA: whoever has its key must not be anybody else."""
    spec = BackendTlsIR(ca_pem=PKI.ca_pem if has_others else OTHER.ca_pem, trusted_pem=OTHER.ca_pem)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        Ends(of_leaf(own("a.test")), spec, "a.test")
    assert caught.value.verify_code == 1


def test_beside_a_trusted_certificate_the_authorities_still_count():
    leaf = own("a.test")
    spec = BackendTlsIR(ca_pem=PKI.ca_pem, trusted_pem=leaf.chain_pem)
    Ends(of_leaf(leaf), spec, "a.test")
    Ends(of_leaf(PKI.certificate("a.test")), spec, "a.test")


def test_an_expired_certificate_is_accepted_where_it_may_be_and_judged_by_the_rest():
    spec = replace(TRUST, allow_expired=True)
    handshake(spec, "a.test", "a.test", expired=True)
    handshake(spec, "a.test", "a.test")
    assert refused(spec, "b.test", "a.test", expired=True) == 62
    with pytest.raises(ssl.SSLCertVerificationError):
        Ends(of_leaf(own("a.test", expired=True)), spec, "a.test")
    begins_tomorrow = PKI.issue("a.test", span_s=(86400, 2 * 86400))
    early = CertificateIR("tests/cert", chain(begins_tomorrow), SecretBytes(begins_tomorrow.private_key_pem.bytes()))
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        Ends(of_leaf(early), spec, "a.test")
    assert caught.value.verify_code == 9


def test_without_names_the_authority_still_counts():
    spec = replace(TRUST, skip_names=True)
    handshake(spec, "b.test", "a.test")
    with pytest.raises(ssl.SSLCertVerificationError):
        Ends(of_leaf(own("b.test")), spec, "b.test")
    assert not spec.is_verified
