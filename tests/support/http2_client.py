"""An HTTP/2 client for tests: bytes in, calls out, by h2 with its checks off, so that it can say anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from egressproxy.protocols.http2.frames import GOAWAY, RST_STREAM, FrameReader, frame_header

Fields = Iterable[tuple[bytes, bytes]]


def raw_frame(kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> bytes:
    """A frame, whatever h2 thinks of it."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@dataclass
class Answer:
    """What the server has said on one stream."""

    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    interim: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    trailers: list[tuple[bytes, bytes]] | None = None
    is_whole: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self[b":status"]) if self.fields else 0

    def __getitem__(self, name: bytes) -> bytes:
        return b", ".join(value for key, value in self.fields if key == name)


class Http2Client:
    """One connection. What it has to send stands in `outgoing` until it is fetched."""

    def __init__(self, window: int = 65535) -> None:
        config = H2Configuration(
            client_side=True,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            validate_inbound_headers=True,
        )
        self.h2 = H2Connection(config)
        self.h2.local_settings = Settings(
            client=True, initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.goaways: list[tuple[int, int, bytes]] = []  # last stream, code, debug data
        self.opens_windows = True
        self._frames = FrameReader()

    def request(self, fields: Fields, body: bytes | None = None, *, ends: bool = True) -> int:
        """Begin a stream. `body` and `ends`: as far as the windows go."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, list(fields), end_stream=ends and body is None)
        if body is not None:
            self.h2.send_data(stream, body, end_stream=ends)
        return stream

    def get(
        self, path: bytes = b"/", authority: bytes = b"a.example", *more: tuple[bytes, bytes], scheme: bytes = b"http"
    ) -> int:
        """Begin a GET."""
        return self.request(head(b"GET", path, authority, scheme) + list(more))

    def take(self, data: bytes) -> None:
        frames = self._frames
        frames.feed(data)
        while frames.next():
            kind, flags, number, payload = frames.kind, frames.flags, frames.stream_id, frames.payload
            if kind == GOAWAY:  # h2 would hear nothing more
                parsed = GoAwayFrame(number)
                parsed.parse_body(memoryview(payload))
                self.goaways.append((parsed.last_stream_id, parsed.error_code, parsed.additional_data))
                continue
            if kind == RST_STREAM:  # h2 hides those behind END_STREAM
                self.of(number).reset = int.from_bytes(payload, "big")
            for event in self.h2.receive_data(frame_header(kind, flags, number, len(payload)) + payload):
                if isinstance(event, ResponseReceived):
                    self.of(event.stream_id).fields = list(event.headers)
                elif isinstance(event, InformationalResponseReceived):
                    self.of(event.stream_id).interim.append(list(event.headers))
                elif isinstance(event, TrailersReceived):
                    self.of(event.stream_id).trailers = list(event.headers)
                elif isinstance(event, DataReceived):
                    self.of(event.stream_id).data += event.data
                    if self.opens_windows:
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    self.of(event.stream_id).is_whole = True

    def of(self, stream: int) -> Answer:
        """The answer of this stream, as far as it has come."""
        return self.answers.setdefault(stream, Answer())

    def outgoing(self) -> bytes:
        return self.h2.data_to_send()


def head(method: bytes, path: bytes, authority: bytes, scheme: bytes = b"http") -> list[tuple[bytes, bytes]]:
    """The pseudo-fields of a request."""
    return [(b":method", method), (b":scheme", scheme), (b":authority", authority), (b":path", path)]
