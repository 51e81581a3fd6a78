"""FULL_DUPLEX_STREAMED on a stream of events: what the processor sends goes on at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from egressproxy.envoy.ext_proc.messages import ImmediateResponse, MessagePart, ProcessingResponse, StreamedBody
from egressproxy.envoy.ext_proc.wire import response_bytes
from tests.envoy.processors.server import Processor, processed
from tests.support.conversation import Conversation, conversation

MODE = {"responseBodyMode": "FULL_DUPLEX_STREAMED", "responseTrailerMode": "SEND"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def said(data: bytes, *, is_last: bool = False) -> bytes:
    return response_bytes(ProcessingResponse(MessagePart.RESPONSE_BODY, streamed=StreamedBody(data, is_last)))


@pytest.fixture
def begun() -> Iterator[tuple[Conversation, Processor]]:
    """A stream of whose first event the processor knows."""
    talk = conversation(processed(processingMode=MODE))
    talk.counts_octets = False
    talk.client >> b"GET /x HTTP/1.1\r\nHost: app.example\r\n\r\n"
    processor = Processor(talk)
    processor.asked(MessagePart.REQUEST_HEADERS)
    processor.says(response_bytes(ProcessingResponse(MessagePart.REQUEST_HEADERS)))
    talk.dialled("a.example", 80)
    talk.origin.take(rb".*?\r\n\r\n")
    talk.origin >> HEAD + b"9\r\ndata: a\n\n\r\n"
    processor.asked(MessagePart.RESPONSE_HEADERS)
    processor.says(response_bytes(ProcessingResponse(MessagePart.RESPONSE_HEADERS)))
    processor.asked(MessagePart.RESPONSE_BODY)
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    yield talk, processor
    talk.close()


def test_each_piece_goes_on_when_it_comes_back(begun: tuple[Conversation, Processor]):
    talk, processor = begun
    for piece in (b"one", b"two", b"three"):
        processor.says(said(piece))
        talk.client.take(rb"%x\r\n%s\r\n" % (len(piece), piece))


def test_pieces_of_the_server_do_not_wait_for_answers(begun: tuple[Conversation, Processor]):
    talk, processor = begun
    talk.origin >> b"9\r\ndata: b\n\n\r\n"
    processor.asked(MessagePart.RESPONSE_BODY, times=2)
    talk.origin >> b"9\r\ndata: c\n\n\r\n"
    processor.asked(MessagePart.RESPONSE_BODY, times=3)
    processor.says(said(b"all three"))
    talk.client.take(rb"9\r\nall three\r\n")
    talk.origin >> b"0\r\n\r\n"
    processor.asked(MessagePart.RESPONSE_BODY, times=4)
    processor.says(said(b"end", is_last=True))
    talk.client.take(rb"3\r\nend\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "message", [b"\xff", response_bytes(ProcessingResponse(immediate=ImmediateResponse(403, body=b"no")))]
)
def test_a_failure_ends_the_stream_at_once(begun: tuple[Conversation, Processor], message: bytes):
    talk, processor = begun
    processor.says(said(b"one"))
    talk.client.take(rb"3\r\none\r\n")
    processor.says(message)
    assert talk.until(lambda: talk.client.is_closed)
    assert not bytes(talk.client.received).endswith(b"0\r\n\r\n")


def test_what_came_back_before_the_processor_ends_its_stream_goes_on(begun: tuple[Conversation, Processor]):
    talk, processor = begun
    processor.says(said(b"one"))
    processor.ends(0)
    talk.client.take(rb"3\r\none\r\n")
