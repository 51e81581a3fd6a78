"""An HTTP/2 server for tests: bytes in, calls out, by the h2 library in its role as a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    PingReceived,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.settings import SettingCodes, Settings

from tests.support.conversation import Conversation, Peer


@dataclass
class GrpcCall:
    """What a client has sent on one stream."""

    stream: int
    headers: dict[bytes, bytes]
    data: bytearray = field(default_factory=bytearray)
    trailers: dict[bytes, bytes] = field(default_factory=dict)
    is_whole: bool = False
    reset: int | None = None
    lines: list[tuple[bytes, bytes]] = field(default_factory=list)  # the headers as they came, repeated ones too

    @property
    def message(self) -> bytes:
        assert self.data[0] == 0
        assert int.from_bytes(self.data[1:5], "big") == len(self.data) - 5
        return bytes(self.data[5:])


class Http2Server:
    """One connection. What `take` and `answer` have to send stands in `outgoing` until it is fetched."""

    def __init__(self, window: int = 65535, max_streams: int = 100, *, takes_upgrades: bool = False) -> None:
        lax = {"validate_outbound_headers": False, "normalize_outbound_headers": False}
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None, **lax))
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_CONCURRENT_STREAMS: max_streams}
        if takes_upgrades:
            settings[SettingCodes.ENABLE_CONNECT_PROTOCOL] = 1
        self.h2.local_settings = Settings(client=False, initial_values=settings)
        self.h2.initiate_connection()
        self.calls: dict[int, GrpcCall] = {}
        self.opens_windows = True
        self.is_gone = False  # for whoever carries the bytes
        self.pings = 0
        self._unsent: dict[int, int] = {}

    def take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, RequestReceived):
                lines = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
                self.calls[event.stream_id or 0] = GrpcCall(event.stream_id or 0, dict(lines), lines=lines)
            elif isinstance(event, DataReceived):
                self.calls[event.stream_id or 0].data += event.data or b""
                if self.opens_windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
            elif isinstance(event, TrailersReceived):
                self.calls[event.stream_id or 0].trailers = {bytes(n): bytes(v) for n, v in event.headers or ()}
            elif isinstance(event, PingReceived):
                self.pings += 1
            elif isinstance(event, WindowUpdated):
                for stream in list(self._unsent):
                    self.send_all(stream, 0)
            elif isinstance(event, StreamEnded):
                self.calls[event.stream_id or 0].is_whole = True
            elif isinstance(event, StreamReset):
                self.calls[event.stream_id or 0].reset = int(event.error_code or 0)

    def answer(self, stream: int, message: bytes | None, status: int = 0, text: bytes = b"") -> None:
        """A message and its trailers; without a message the trailers alone."""
        trailers = [(b"grpc-status", b"%d" % status), (b"grpc-message", text)]
        head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
        if message is None:
            self.h2.send_headers(stream, head + trailers, end_stream=True)
            return
        self.h2.send_headers(stream, head)
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        for at in range(0, len(framed), 16000):
            self.h2.send_data(stream, framed[at : at + 16000])
        self.h2.send_headers(stream, trailers, end_stream=True)

    def respond(
        self,
        stream: int,
        head: list[tuple[bytes, bytes]],
        body: bytes | None,
        trailers: list[tuple[bytes, bytes]] | None = None,
        *,
        is_last: bool = True,
    ) -> None:
        """A response of any kind, right or wrong; without `is_last` its end is missing."""
        self.h2.send_headers(stream, head, end_stream=is_last and body is None and trailers is None)
        if body is not None:
            self.h2.send_data(stream, body, end_stream=is_last and trailers is None)
        if trailers is not None:
            self.h2.send_headers(stream, trailers, end_stream=True)

    def send_all(self, stream: int, size: int) -> None:
        """So many bytes and the end, as the windows allow."""
        left = self._unsent.pop(stream, 0) + size
        while left:
            now = min(left, self.h2.local_flow_control_window(stream), 16384)
            if now <= 0:
                self._unsent[stream] = left
                return
            self.h2.send_data(stream, bytes(now), end_stream=now == left)
            left -= now

    def outgoing(self) -> bytes:
        return self.h2.data_to_send()


class Http2Origin:
    """An origin of a conversation that speaks HTTP/2: what has come is taken, and what there is to say is said."""

    def __init__(self, talk: Conversation, peer: Peer, **settings: int) -> None:
        self.talk = talk
        self.peer = peer
        self.server = Http2Server(**settings)

    def goes_on(self) -> None:
        """Until neither side has anything to say."""
        quiet = 0
        while quiet < 2:
            self.talk.settle()
            said = bytes(self.peer.received)
            self.peer.received.clear()
            if said:
                self.server.take(said)
            answer = self.server.outgoing()
            if answer and not self.peer.is_gone:
                self.peer >> answer
            quiet = 0 if said or answer else quiet + 1

    def waits_for(self, count: int) -> dict[int, GrpcCall]:
        """So many requests in all; the calls by stream."""
        for _ in range(200):
            self.goes_on()
            if len(self.server.calls) >= count:
                return self.server.calls
        raise AssertionError(f"{len(self.server.calls)} of {count} requests came")

    def responds(
        self, stream: int, body: bytes | None = b"hi", *more: tuple[bytes, bytes], status: bytes = b"200", **how: Any
    ) -> None:
        self.server.respond(stream, [(b":status", status), *more], body, **how)
        self.goes_on()
