"""What a real client makes of these records."""

from __future__ import annotations

import ssl

import pytest

from egressproxy.protocols.tls.alerts import ACCESS_DENIED, MISSING_EXTENSION, UNRECOGNIZED_NAME


@pytest.mark.parametrize(
    ("alert", "reason"),
    [
        (ACCESS_DENIED, "ACCESS_DENIED"),
        (UNRECOGNIZED_NAME, "UNRECOGNIZED_NAME"),
        (MISSING_EXTENSION, "MISSING_EXTENSION"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_says_what_it_was_told(alert: bytes, reason: str, version: ssl.TLSVersion):
    context = ssl.create_default_context()
    context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(alert)
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert reason in caught.value.reason
