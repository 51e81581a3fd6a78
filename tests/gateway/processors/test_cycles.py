"""What a processor was asked about an exchange is freed with it, without the garbage collector, however it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.errors import GatewayError
from egressproxy.gateway.backends.bidirectional_call import BidirectionalCall
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.held_resources import HeldResources
from egressproxy.gateway.processors.session import ProcessorSession
from egressproxy.model.exchange import Exchange
from egressproxy.protocols.ext_proc.messages import ImmediateResponse, MessagePart, ProcessingResponse
from egressproxy.protocols.ext_proc.wire import read_request, response_bytes
from egressproxy.protocols.grpc.framing import framed
from egressproxy.protocols.grpc.messages import GrpcMessageReader
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.http2.upstream import Http2Upstream
from egressproxy.protocols.http2.upstream_stream import UpstreamStream
from tests.gateway.kit import OK, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, conversation
from tests.support.http2 import Http2Server
from tests.support.leftovers import Leftovers, leftovers_of

left = leftovers_of(
    ClientConnection, UpstreamConnection, Http2Upstream, UpstreamStream, HeldResources, Exchange, ProcessorSession,
    BidirectionalCall, GatewayError,
)  # fmt: skip
POST = b"POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 2\r\n\r\nhi"
HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]


def processed(**config: Any) -> list[m.Manifest]:
    server = m.backend("guard", "guard.example", 9000, protocol="GRPC")
    written = {
        "backendRefs": [{"group": m.OURS, "kind": "Backend", "name": "guard"}],
        "processingMode": {"requestBodyMode": "BUFFERED"},
        "deferredCloseTimeout": "0s",
        **config,
    }
    extension = {
        "name": "guard", "type": "egressproxy.io/ExternalProcessor:v1", "phase": "request-headers", "config": written,
    }  # fmt: skip
    return reverse(objects=(server,), extensions=[extension])


class Processor:
    """The server: `asked` waits for a message, `says` sends one."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.peer = talk.dialled("guard.example", 9000)
        self.http2 = Http2Server()
        self.messages: list[MessagePart] = []
        self._reader = GrpcMessageReader(10**6)
        self._read = 0
        self._send()

    def asked(self, part: MessagePart) -> None:
        assert self.talk.until(lambda: self._pump() and part in self.messages)

    def says(self, message: bytes) -> None:
        (call,) = self.http2.calls.values()
        if not self.messages[1:]:
            self.http2.h2.send_headers(call.stream, HEAD)
        self.http2.h2.send_data(call.stream, framed(message))
        self._send()

    def ends(self, status: int) -> None:
        (call,) = self.http2.calls.values()
        self.http2.answer(call.stream, None, status)
        self._send()

    def _pump(self) -> bool:
        data, self.peer.received[:] = bytes(self.peer.received), b""
        if data:
            self.http2.take(data)
        for call in self.http2.calls.values():
            fresh, self._read = bytes(call.data[self._read :]), len(call.data)
            self.messages += [read_request(message).part for message in self._reader.feed(fresh)]
        return True

    def _send(self) -> None:
        outgoing = self.http2.outgoing()
        if outgoing:
            self.peer >> outgoing


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
])  # fmt: skip
def test_nothing_is_left_of_a_processor(left: Leftovers, config: Any, happens: Callable[[Conversation], None]):
    talk = conversation(processed(**config), wire="sockets")
    talk.counts_octets = False
    talk.client >> POST
    happens(talk)
    talk.until(lambda: bool(talk.records))
    assert left.of(talk) == Counter()
    talk.close()
