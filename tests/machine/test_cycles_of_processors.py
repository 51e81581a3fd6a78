"""What a processor was asked about an exchange is freed with it, without the garbage collector, however it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.envoy.ext_proc.messages import ImmediateResponse, MessagePart, ProcessingResponse, StreamedBody
from egressproxy.envoy.ext_proc.wire import response_bytes
from egressproxy.envoy.processors.session import ProcessorSession
from egressproxy.errors import GatewayError
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.own_calls.bidirectional_call import BidirectionalCall
from egressproxy.model.exchange import Exchange
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.http2.upstream import Http2Upstream
from egressproxy.protocols.http2.upstream_stream import UpstreamStream
from tests.envoy.processors.server import Processor, processed
from tests.gateway.kit import OK
from tests.support.conversation import Conversation, conversation
from tests.support.leftovers import Leftovers, leftovers_of

left = leftovers_of(
    ClientConnection, UpstreamConnection, Http2Upstream, UpstreamStream, Pipeline, Exchange, ProcessorSession,
    BidirectionalCall, GatewayError,
)  # fmt: skip
POST = b"POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 2\r\n\r\nhi"


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DUPLEX = {"processingMode": {"responseBodyMode": "FULL_DUPLEX_STREAMED", "responseTrailerMode": "SEND"}}


def serve(talk: Conversation) -> None:
    talk.dialled("a.example", 80)
    talk.origin.take(rb".*?\r\n\r\n.*")
    talk.origin >> OK


def agrees(talk: Conversation) -> None:
    processor = Processor(talk)
    for part in (MessagePart.REQUEST_HEADERS, MessagePart.REQUEST_BODY):
        processor.asked(part)
        processor.says(response_bytes(ProcessingResponse(part)))
    serve(talk)
    processor.asked(MessagePart.RESPONSE_HEADERS)
    processor.says(response_bytes(ProcessingResponse(MessagePart.RESPONSE_HEADERS)))


def says(message: bytes) -> Callable[[Conversation], None]:
    def happens(talk: Conversation) -> None:
        processor = Processor(talk)
        processor.asked(MessagePart.REQUEST_HEADERS)
        processor.says(message)

    return happens


def ends(status: int) -> Callable[[Conversation], None]:
    def happens(talk: Conversation) -> None:
        processor = Processor(talk)
        processor.asked(MessagePart.REQUEST_HEADERS)
        processor.ends(status)
        if not status:
            serve(talk)

    return happens


def leaves(talk: Conversation) -> None:
    processor = Processor(talk)
    processor.asked(MessagePart.REQUEST_HEADERS)
    processor.peer.leaves()


def client_leaves(talk: Conversation) -> None:
    Processor(talk).asked(MessagePart.REQUEST_HEADERS)
    talk.client.resets()


def is_silent(talk: Conversation) -> None:
    Processor(talk).asked(MessagePart.REQUEST_HEADERS)


def streams(talk: Conversation) -> None:
    processor = Processor(talk)
    for part in (MessagePart.REQUEST_HEADERS, MessagePart.RESPONSE_HEADERS):
        processor.asked(part)
        processor.says(response_bytes(ProcessingResponse(part)))
        if part is MessagePart.REQUEST_HEADERS:
            talk.dialled("a.example", 80)
            talk.origin.take(rb".*?\r\n\r\n.*")
            talk.origin >> EVENTS + b"9\r\ndata: a\n\n\r\n"
    processor.asked(MessagePart.RESPONSE_BODY)
    processor.says(response_bytes(ProcessingResponse(MessagePart.RESPONSE_BODY, streamed=StreamedBody(b"A"))))
    talk.client.take(rb"HTTP/1.1 200.*A.*")
    processor.says(b"\xff")


@pytest.mark.parametrize(("config", "happens"), [
    ({}, agrees),
    ({}, says(response_bytes(ProcessingResponse(immediate=ImmediateResponse(403, body=b"no"))))),
    ({}, says(response_bytes(ProcessingResponse(MessagePart.RESPONSE_HEADERS)))),
    ({}, says(b"\xff")),
    ({}, ends(0)),
    ({}, ends(13)),
    ({}, leaves),
    ({}, client_leaves),
    ({"messageTimeout": "50ms"}, is_silent),
    (DUPLEX, streams),
])  # fmt: skip
def test_nothing_is_left_of_a_processor(left: Leftovers, config: Any, happens: Callable[[Conversation], None]):
    talk = conversation(processed(**config), wire="sockets")
    talk.counts_octets = False
    talk.client >> POST
    happens(talk)
    talk.until(lambda: bool(talk.records))
    assert left.of(talk) == Counter()
    talk.close()
