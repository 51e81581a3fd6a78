"""A client of HTTP/2 in a conversation: what it says with h2 goes over the connection of a Peer."""

from __future__ import annotations

from tests.gateway.kit import TlsClient
from tests.support.conversation import Conversation, Peer
from tests.support.http2_client import Answer, Fields, Http2Client, head


class Http2Peer(Http2Client):
    """`>>` of raw bytes goes behind everything that was said by h2. `wire` is a Peer, or TLS over one."""

    def __init__(self, wire: Peer | TlsClient, window: int = 65535) -> None:
        super().__init__(window)
        self.wire = wire
        self.settle()

    def _heard(self) -> bytes:
        if isinstance(self.wire, TlsClient):
            return self.wire.reads()
        self.wire.talk.settle()
        heard = bytes(self.wire.received)
        self.wire.received.clear()
        return heard

    def settle(self) -> None:
        """Until nobody has anything to say."""
        while True:
            said = self.outgoing()
            if said:
                self.wire >> said
            heard = self._heard()
            self.take(heard)
            if not said and not heard:
                return

    def __rshift__(self, data: bytes) -> Http2Peer:
        self.settle()
        self.wire >> data
        self.settle()
        return self

    def ask(
        self, method: bytes = b"GET", path: bytes = b"/", authority: bytes = b"a.example", *more: tuple[bytes, bytes],
        body: bytes | None = None, ends: bool = True, scheme: bytes = b"http",
    ) -> int:  # fmt: skip
        """A request, and what follows from it. Returns its stream."""
        return self.asks(head(method, path, authority, scheme) + list(more), body, ends=ends)

    def asks(self, fields: Fields, body: bytes | None = None, *, ends: bool = True) -> int:
        """A request with these fields, and what follows from it. Returns its stream."""
        stream = self.request(fields, body, ends=ends)
        self.settle()
        return stream

    def connects(self, authority: bytes, *more: tuple[bytes, bytes]) -> int:
        """A CONNECT, which stays open."""
        return self.asks([(b":method", b"CONNECT"), (b":authority", authority), *more], ends=False)

    def says(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """DATA."""
        self.h2.send_data(stream, data, end_stream=ends)
        self.settle()

    def resets(self, stream: int, code: int = 8) -> None:
        """RST_STREAM."""
        self.h2.reset_stream(stream, code)
        self.settle()

    def answer(self, stream: int) -> Answer:
        """What has come on this stream."""
        self.settle()
        return self.of(stream)


def speak_http2(talk: Conversation, window: int = 65535) -> Http2Peer:
    """The first client of a conversation speaks HTTP/2, and knows that the gateway does."""
    talk.counts_octets = False
    return Http2Peer(talk.client, window)
