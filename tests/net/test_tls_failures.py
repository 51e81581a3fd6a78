"""What is said of TLS failures. Every kind of them, with a real server, is in tests/e2e/tls_lab."""

from __future__ import annotations

import ssl

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.net.tls_failures import TlsExpectation, TlsTruncated, tls_fault


@pytest.mark.parametrize(
    ("error", "reason", "status"),
    [
        (TimeoutError(), Reason.TLS_TIMEOUT, 504),
        (ssl.SSLCertVerificationError("secret subject CN=x"), Reason.TLS_CERTIFICATE, 502),
        (ssl.SSLError("alert"), Reason.TLS_PROTOCOL, 502),
        (ssl.SSLEOFError(8, "eof"), Reason.TLS_PROTOCOL, 502),
        (ConnectionResetError(), Reason.TLS_PROTOCOL, 502),
        (TlsTruncated(), Reason.TLS_PROTOCOL, 502),
    ],
)
def test_every_error_becomes_a_fault_without_certificate_text(error: Exception, reason: Reason, status: int):
    fault = tls_fault(error)
    assert isinstance(fault, UpstreamFault)
    assert (fault.reason, fault.status, fault.retry) == (reason, status, RetrySafety.NEVER)
    assert "CN=x" not in fault.message


@pytest.mark.parametrize(("code", "has_remedy"), [(20, True), (10, False)])
def test_only_an_untrusted_certificate_has_a_bundle_as_its_remedy(code: int, has_remedy: bool):
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_code = code
    assert ("caBundleRef" in tls_fault(error).remedy) is has_remedy


def refusal(code: int, text: str = "") -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_code, error.verify_message = code, text
    return error


def test_every_refusal_says_what_is_at_fault_and_the_remedy():
    at_fault = (
        "is not trusted: ",
        "is for another ",
        "is for a name ",
        "has expired",
        "is not valid yet",
        "has a form ",
    )
    for code in range(1, 96):
        fault = tls_fault(refusal(code, "words of OpenSSL"))
        assert fault.message.removeprefix("the certificate of the upstream ").startswith(at_fault), code
        assert fault.remedy, code
    assert "a form that is not accepted: words of OpenSSL" in tls_fault(refusal(85, "words of OpenSSL")).message


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        (BackendTlsIR(), "in tls.caBundleRef of a Backend"),
        (
            BackendTlsIR(ca_pem="PEM", ca_source="ConfigMap a/b"),
            "its root, or the certificate itself into ConfigMap a/b",
        ),
        (BackendTlsIR(ca_pem="PEM"), "the certificate itself into the CAs of a policy"),
        (BackendTlsIR(ca_pem="PEM", crl_pem="PEM", ca_source="Secret a/b"), "the root of its chain, up to which"),
    ],
)
@pytest.mark.parametrize("code", [2, 18, 19, 20, 21])
def test_the_remedy_for_an_unknown_authority_is_of_the_bundle_that_is_named(spec: BackendTlsIR, remedy: str, code: int):
    told = tls_fault(refusal(code), expected=TlsExpectation("backend a/b", "b.test", spec)).remedy
    assert remedy in told
    assert not spec.ca_pem or "caBundleRef" not in told


def test_an_end_is_told_from_other_errors_where_python_has_no_class_for_it():
    """With OpenSSL 3, CPython 3.11.2 raises the general class for an end without close_notify."""
    end = ssl.SSLError(1, "unexpected eof while reading")
    end.reason = "UNEXPECTED_EOF_WHILE_READING"
    assert tls_fault(end).message == tls_fault(ssl.SSLEOFError(8, "eof")).message
    assert tls_fault(end).message != tls_fault(ssl.SSLError(1, "wrong version")).message


def test_a_fault_says_what_was_expected_and_shows_no_key():
    from egressproxy.model.secret import SecretBytes

    spec = BackendTlsIR(
        ca_pem="PEM", names=("a.test",), pins=("sha256/x",), crl_pem="PEM", client_certificate="PEM",
        client_key=SecretBytes(b"KEY"), client_source="Secret a/b",
    )  # fmt: skip
    fault = tls_fault(TimeoutError(), expected=TlsExpectation("backend a/b", "b.test", spec))
    assert fault.message == "the TLS handshake with backend a/b took too long"
    for words in ("name a.test", "the CAs of a policy", "sha256/x", "revocation list", "Secret a/b"):
        assert words in fault.detail
    assert "KEY" not in fault.detail
    unverified = TlsExpectation("the destination", "b.test", BackendTlsIR(insecure_skip_verify=True))
    assert (
        "expected: TLS 1.2 or later, shown no client certificate"
        in tls_fault(TimeoutError(), expected=unverified).detail
    )


def test_a_certificate_that_cannot_be_read_is_told_as_such():
    """As where the ssl module of another Python tells nothing before the handshake is done."""
    error = ssl.SSLCertVerificationError("certificate verify failed")
    peer = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a.test")
    assert tls_fault(error, peer=peer).detail.startswith("presented: no certificate that can be read; ")
