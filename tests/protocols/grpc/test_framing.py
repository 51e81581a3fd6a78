from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.protocols.grpc.framing import GrpcMessageReader, MessageTooLong, call_fields, framed, reply

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


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_messages_are_found_however_the_stream_is_cut(messages, data):
    stream = b"".join(framed(message) for message in messages)
    reader = GrpcMessageReader(40)
    found = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += reader.feed(stream[at : at + size])
        at += size
    assert found == messages
    assert reader.is_between


def test_a_message_that_has_begun_is_known():
    reader = GrpcMessageReader(10)
    assert reader.feed(framed(b"abc")[:-1]) == []
    assert not reader.is_between


def test_a_long_message_is_refused_before_it_has_come():
    with pytest.raises(MessageTooLong, match="has 11 bytes; at most 10"):
        GrpcMessageReader(10).feed(b"\0\0\0\0\x0b")


def test_a_compressed_message_is_refused():
    with pytest.raises(ValueError, match="compressed"):
        GrpcMessageReader(10).feed(b"\1\0\0\0\1x")
