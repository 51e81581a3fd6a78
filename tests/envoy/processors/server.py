"""A processor behind a socket that a test speaks for: the gateway's own client of gRPC calls it."""

from __future__ import annotations

from typing import Any

from egressproxy.envoy.ext_proc.messages import MessagePart
from egressproxy.envoy.ext_proc.wire import read_request
from egressproxy.protocols.grpc.framing import GrpcMessageReader, framed
from tests.gateway.kit import reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Server

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
        self._has_begun = False
        self._send()

    def asked(self, part: MessagePart, times: int = 1) -> None:
        """Waits for a message about this part; `times`: for so many since the beginning."""
        assert self.talk.until(lambda: self._pump() and self.messages.count(part) >= times)

    def says(self, message: bytes) -> None:
        (call,) = self.http2.calls.values()
        if not self._has_begun:
            self._has_begun = True
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
