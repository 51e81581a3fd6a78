from __future__ import annotations

import ssl

import pytest

from egressproxy.net import any_certificate
from egressproxy.net.any_certificate import can_take_any_certificate, take_any_certificate


def test_a_context_asks_and_does_not_insist():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert can_take_any_certificate()
    take_any_certificate(context)
    assert context.verify_mode is ssl.CERT_OPTIONAL


def test_an_openssl_that_cannot_be_reached_is_an_error_and_no_open_door(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(any_certificate, "openssl_library", lambda: None)
    assert not can_take_any_certificate()
    with pytest.raises(ValueError, match="cannot ask"):
        take_any_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
