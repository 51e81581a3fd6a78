"""Which sessions are resumed, and for how long."""

from __future__ import annotations

import ssl
import time

import pytest

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.net.tls_contexts.contexts import client_context
from egressproxy.net.tls_resumption import MAX_AGE_S, TlsResumption
from tests.support.pki import Pki

PKI = Pki()
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
CONTEXT = client_context(BackendTlsIR(ca_pem=PKI.ca_pem))


def server(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, *, left_s: float = 9e6) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    PKI.issue("a.test", span_s=(-60, left_s)).configure_cert(context)
    context.maximum_version = version
    return context


def connect(
    resumption: TlsResumption, to: ssl.SSLContext, context: ssl.SSLContext = CONTEXT, *, hears: bool = True
) -> ssl.SSLObject:
    """A handshake; `hears`: what the server sends behind it, too."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = context.wrap_bio(down, up, server_hostname="a.test", session=resumption.session(context))
    there = to.wrap_bio(up, down, server_side=True)
    undone = [peer, there]
    while undone:
        for each in list(undone):
            try:
                each.do_handshake()
                undone.remove(each)
            except ssl.SSLWantReadError:
                pass
    resumption.opened(peer)
    if hears:
        there.write(b"x")
        assert peer.read(1) == b"x"
    return peer


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_over", [False, True])
def test_the_session_of_a_connection_is_resumed_while_it_lives_and_afterwards(version: ssl.TLSVersion, is_over: bool):
    resumption, to = TlsResumption(), server(version)
    first = connect(resumption, to)
    assert not first.session_reused
    if is_over:
        resumption.ended(first)
    again = connect(resumption, to)
    assert again.session_reused
    assert (again.getpeercert() or {})["subjectAltName"] == (("DNS", "a.test"),), "names and pins can be checked"
    resumption.ended(again)
    assert connect(resumption, to).session_reused


def test_a_session_that_comes_later_is_resumed():
    """In TLS 1.3 the server sends it when it likes."""
    resumption, to = TlsResumption(), server()
    first = connect(resumption, to, hears=False)
    assert not connect(resumption, to, hears=False).session_reused
    connect(resumption, to)
    assert connect(resumption, to).session_reused
    assert not first.session_reused


def test_another_context_resumes_nothing():
    resumption, to = TlsResumption(), server()
    connect(resumption, to)
    other = client_context(BackendTlsIR(ca_pem=PKI.ca_pem, min_version="1.3"))
    assert not connect(resumption, to, other).session_reused


@pytest.mark.parametrize(("left_s", "limit_s"), [(9e6, MAX_AGE_S), (600, 600)])
def test_it_ends_with_the_certificate_and_after_an_hour(left_s: float, limit_s: float, monkeypatch: pytest.MonkeyPatch):
    """Resuming it makes it no younger."""
    resumption, to, begun = TlsResumption(), server(left_s=left_s), time.time()
    connect(resumption, to)
    monkeypatch.setattr(time, "time", lambda: begun + limit_s - 30)
    assert connect(resumption, to).session_reused
    monkeypatch.setattr(time, "time", lambda: begun + limit_s + 30)
    assert resumption.session(CONTEXT) is None


def test_behind_a_failure_the_handshake_is_a_whole_one():
    resumption, to = TlsResumption(), server()
    connect(resumption, to)
    resumption.failed()
    assert resumption.session(CONTEXT) is None
    assert not connect(resumption, to).session_reused
