"""StreamTransport: a stream of HTTP/2 as a transport, for tunnels, and for HTTP/1 inside one. END_STREAM is the end of
a direction, and a reset an end that is no clean one (RFC 9113 section 8.5).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from h2.errors import ErrorCodes

from egressproxy.net.flow_control import HIGH_WATER, HTTP2_STREAM
from egressproxy.protocols.http2.stream import Http2Stream


class StreamTransport(asyncio.Transport):
    """The stream calls `data_came`, `end_came`, `all_sent` and `lost`. `below` is the transport of its connection."""

    __slots__ = ("_below", "_is_closing", "_is_lost", "_protocol", "_stream")

    def __init__(self, stream: Http2Stream, below: asyncio.Transport) -> None:
        super().__init__()
        self._stream = stream
        self._below = below
        self._protocol: asyncio.Protocol = asyncio.Protocol()
        self._is_closing = False
        self._is_lost = False
        stream.feed_from(_Gate(self))

    # --- called by the stream --------------------------------------------------------------------------------------
    def data_came(self, data: bytes) -> None:
        """Bytes of the peer."""
        if not self._is_closing:
            self._protocol.data_received(data)

    def end_came(self) -> None:
        """END_STREAM of the peer."""
        if not self._is_closing and not self._protocol.eof_received():
            self.close()
        elif self._is_closing:
            self.all_sent()

    def all_sent(self) -> None:
        """END_STREAM of ours is on its way."""
        if self._is_closing and self._stream.has_sent_all:
            self._end(None)

    def lost(self, error: Exception) -> None:
        """The stream was reset, or its connection is gone."""
        self._is_closing = True
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            asyncio.get_running_loop().call_soon(self._tell, error)

    def _tell(self, error: Exception | None) -> None:
        self._stream.feed_from(None)
        self._stream.transport_ended()
        protocol, self._protocol = self._protocol, asyncio.Protocol()
        protocol.connection_lost(error)

    # --- asyncio.Transport -----------------------------------------------------------------------------------------
    def write(self, data: Any) -> None:
        if data and not self._is_closing:
            self._stream.send_body(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._stream.is_ending:
            self._stream.end(None)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not self._stream.is_ending:
            self._stream.end(None)
        self.all_sent()

    def abort(self) -> None:
        """A reset: what was sent is not all."""
        self._is_closing = True
        self._stream.reset(ErrorCodes.CONNECT_ERROR)
        self._end(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._stream.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._stream.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._stream.unsent_size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return HIGH_WATER, HIGH_WATER

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: every stream has the same limits."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of the connection; its socket is not ours to set options of, or to break off. HTTP2_STREAM is ours."""
        if name == HTTP2_STREAM:
            return self._stream
        return default if name == "socket" else self._below.get_extra_info(name, default)


class _Gate:
    """What a stream pauses when it has more than enough to send: whoever writes to its transport."""

    __slots__ = ("_transport",)

    def __init__(self, transport: StreamTransport) -> None:
        self._transport = transport

    def pause_reading(self) -> None:
        self._transport._protocol.pause_writing()

    def resume_reading(self) -> None:
        self._transport._protocol.resume_writing()
