"""An HTTP/2 server for tests: bytes in, calls out, by the h2 library in its role as a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes, Settings

__all__ = ["GrpcCall", "Http2Server"]


@dataclass
class GrpcCall:
    """What a client has sent on one stream."""

    stream: int
    headers: dict[bytes, bytes]
    data: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    reset: int | None = None

    @property
    def message(self) -> bytes:
        assert self.data[0] == 0
        assert int.from_bytes(self.data[1:5], "big") == len(self.data) - 5
        return bytes(self.data[5:])


class Http2Server:
    """One connection. What `take` and `answer` have to send stands in `outgoing` until it is fetched."""

    def __init__(self, window: int = 65535, max_streams: int = 100) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_CONCURRENT_STREAMS: max_streams}
        self.h2.local_settings = Settings(client=False, initial_values=settings)
        self.h2.initiate_connection()
        self.calls: dict[int, GrpcCall] = {}
        self.opens_windows = True

    def take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, RequestReceived):
                headers = {bytes(name): bytes(value) for name, value in event.headers or ()}
                self.calls[event.stream_id or 0] = GrpcCall(event.stream_id or 0, headers)
            elif isinstance(event, DataReceived):
                self.calls[event.stream_id or 0].data += event.data or b""
                if self.opens_windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
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

    def outgoing(self) -> bytes:
        return self.h2.data_to_send()
