"""A client's connection of HTTP/2, with many exchanges at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

import h2.connection
import h2.events
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

PIECE = 65536


class Http2Peer:
    """Asks, and gathers the answers. An answer is (status, body); (0, …) where its stream was reset."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._connection = h2.connection.H2Connection(H2Configuration(header_encoding="utf-8"))
        self._connection.initiate_connection()
        self._status: dict[int, int] = {}
        self._bodies: dict[int, list[bytes]] = {}
        self._open: set[int] = set()

    @classmethod
    async def open(cls, port: int, context: ssl.SSLContext, name: str) -> Http2Peer:
        """The context has to offer h2 by ALPN. Raises ConnectionError where the server does not choose it."""
        peer = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name))
        if peer.writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            peer.writer.close()
            raise ConnectionError("HTTP/2 was not agreed on")
        return peer

    async def __aenter__(self) -> Http2Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def ask(self, host: str, path: str, body: bytes = b"") -> int:
        """Begin an exchange: a POST where there is a body, which has to fit into the first window. Its stream."""
        stream = self._connection.get_next_available_stream_id()
        head = [(":method", "POST" if body else "GET"), (":scheme", "https"), (":authority", host), (":path", path)]
        more = [
            ("accept", "*/*"),
            ("user-agent", "soak/1"),
            ("x-debug", "yes"),
            ("authorization", "Bearer of-the-client"),
        ]
        if body:
            more.append(("content-length", str(len(body))))
        self._connection.send_headers(stream, head + more, end_stream=not body)
        if body:
            self._connection.send_data(stream, body, end_stream=True)
        self._open.add(stream)
        self._flush()
        return stream

    def reset(self, stream: int) -> None:
        """Leave an exchange (CANCEL), unless it has ended."""
        if stream in self._open:
            self._connection.reset_stream(stream, ErrorCodes.CANCEL)
            self._open.discard(stream)
            self._flush()

    async def answers(self, streams: Sequence[int]) -> list[tuple[int, bytes]]:
        """When all of these have ended. Raises EOFError for an early end, ConnectionError for what is no HTTP/2."""
        while not self._open.isdisjoint(streams):
            data = await self._reader.read(PIECE)
            if not data:
                raise EOFError("the connection has ended before its answers")
            try:
                for event in self._connection.receive_data(data):
                    self._take(event)
            except ProtocolError as error:
                raise ConnectionError(f"this is no HTTP/2: {error}") from None
            self._flush()
        return [(self._status.pop(each, 0), b"".join(self._bodies.pop(each, ()))) for each in streams]

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self._status[event.stream_id] = int(dict(event.headers)[":status"])
        elif isinstance(event, h2.events.DataReceived):
            self._bodies.setdefault(event.stream_id, []).append(event.data)
            self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self._open.discard(event.stream_id)
            if isinstance(event, h2.events.StreamReset):
                self._status[event.stream_id] = 0

    def _flush(self) -> None:
        self.writer.write(self._connection.data_to_send())
