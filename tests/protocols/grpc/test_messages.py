from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.protocols.grpc.framing import framed
from egressproxy.protocols.grpc.messages import GrpcMessageReader, MessageTooLong


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
