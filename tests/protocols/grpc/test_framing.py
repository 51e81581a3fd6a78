from __future__ import annotations

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.protocols.grpc.framing import call_fields, framed, reply

HEAD = [(b"content-type", b"application/grpc+proto")]
OK = [(b"grpc-status", b"0")]


def test_a_call_tells_its_time():
    assert dict(call_fields(1.5))[b"grpc-timeout"] == b"1500m"
    assert dict(call_fields(0.0001))[b"grpc-timeout"] == b"1m"
    assert dict(call_fields(1e9))[b"grpc-timeout"] == b"99999999m"


def test_a_message_is_read_behind_its_prefix():
    assert reply(200, HEAD, framed(b"abc"), OK) == b"abc"
    assert reply(200, HEAD, framed(b""), OK) == b""


@pytest.mark.parametrize(
    ("head", "data", "trailers", "status", "reason"),
    [
        ([(b"content-type", b"text/html")], b"<html>", [], 502, Reason.BAD_RESPONSE),
        (HEAD, framed(b"abc"), [], 502, Reason.BAD_RESPONSE),  # no status
        (HEAD, framed(b"abc"), [(b"grpc-status", b"x")], 502, Reason.BAD_RESPONSE),
        (HEAD, b"", OK, 502, Reason.BAD_RESPONSE),
        (HEAD, framed(b"abc") + framed(b"d"), OK, 502, Reason.BAD_RESPONSE),
        (HEAD, framed(b"abc")[:-1], OK, 502, Reason.BAD_RESPONSE),
        (HEAD, b"\1" + framed(b"abc")[1:], OK, 502, Reason.BAD_RESPONSE),  # compressed
        ([*HEAD, (b"grpc-status", b"14")], b"", [], 503, Reason.BAD_RESPONSE),
        ([*HEAD, (b"grpc-status", b"4")], b"", [], 504, Reason.RESPONSE_TIMEOUT),
        (HEAD, framed(b"abc"), [(b"grpc-status", b"7")], 502, Reason.BAD_RESPONSE),
    ],
)
def test_a_call_that_failed_has_no_message(head, data, trailers, status, reason):
    with pytest.raises(UpstreamFault) as failed:
        reply(200, head, data, trailers)
    assert (failed.value.status, failed.value.reason) == (status, reason)


def test_a_status_of_http_is_a_failure():
    with pytest.raises(UpstreamFault, match="does not speak gRPC: status 503"):
        reply(503, HEAD, framed(b"abc"), OK)


def test_what_a_server_says_of_a_failure_is_for_the_log_and_bounded():
    with pytest.raises(UpstreamFault) as failed:
        reply(200, [*HEAD, (b"grpc-status", b"13"), (b"grpc-message", b"na%C3%AFve%20" + b"x" * 5000)], b"", [])
    assert failed.value.detail.startswith("grpc-status 13: naïve x")
    assert len(failed.value.detail) < 250
    assert "ve" not in failed.value.message
