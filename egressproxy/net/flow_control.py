"""FlowControl: reading that can be paused, and writing that pauses its source.

Back-pressure is a high-water mark of 64 KiB of unsent bytes per direction: the transport calls `pause_writing`, and
the connection that feeds this one stops reading until the buffer has drained. Both are flags beside the state of the
connection: reading may be paused, and writing blocked, in each of its states.

The pieces of one turn of the event loop go out in one write at its end: separate writes would each cost a system call,
and wake the peer (measured: W1 77 against 60 us).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, cast

from egressproxy.net.loop import poller
from egressproxy.net.poller import Poller
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.watched_socket import break_off

HIGH_WATER: Final = 64 * 1024
#: Pieces up to this size together are copied into one buffer; larger ones are written as they are, and at once.
COPY_LIMIT: Final = 16 * 1024
#: The extra of a transport that is a stream of HTTP/2: that stream.
HTTP2_STREAM: Final = "http2_stream"


def reset(transport: asyncio.Transport) -> None:
    """Reset a connection: RST in place of FIN is the only sign that a close-delimited body, or a tunnel, is incomplete
    (RFC 9112 section 8).
    """
    sock = None if transport.is_closing() else transport.get_extra_info("socket")
    if sock is not None:
        break_off(sock)
    transport.abort()


def peer_name(transport: asyncio.BaseTransport) -> str:
    name: Any = transport.get_extra_info("peername")
    if not isinstance(name, tuple) or len(name) < 2:
        return "-"
    return address_text(*name[:2])


def address_text(address: str, port: int) -> str:
    """`address:port`, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def peer_address(transport: asyncio.BaseTransport) -> str:
    """The address of the other end ("-" if it is gone already)."""
    name: Any = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else "-"


class Reads(Protocol):
    """A source that can be paused."""

    def pause_reading(self) -> None:
        """Stop delivering until `resume_reading`."""

    def resume_reading(self) -> None:
        """Continue after `pause_reading`."""


class BodySink(Protocol):
    """The receiver of a body. `trailers` is a field block (each line preceded by CRLF), b"" for none."""

    def send_body(self, data: bytes) -> None:
        """Take one piece of a body, never empty."""

    def end_body(self, trailers: bytes) -> None:
        """End the body."""


class FlowControl(asyncio.Protocol):
    """One side of a relay: a transport, its reading state, its source, and the framing of the body it sends."""

    __slots__ = (
        "_poller", "_unflushed", "_unflushed_size", "bytes_in", "bytes_out", "feeder", "is_reading_paused",
        "is_write_blocked", "sends_chunked", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.feeder: Reads | None = None  # paused while our write buffer is full
        self.is_write_blocked = False
        self.is_reading_paused = False
        self.sends_chunked = False
        self.bytes_in = 0  # of the current exchange
        self.bytes_out = 0
        self._unflushed: list[bytes] = []
        self._unflushed_size = 0
        self._poller: Poller | None = None  # kept: to ask for the running loop is a system call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if isinstance(transport, SocketTransport):
            self._poller = transport.poller
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(HIGH_WATER)

    # --- reading -----------------------------------------------------------------------------------------------
    def pause_reading(self) -> None:
        if not self.is_reading_paused and not self.transport.is_closing():
            self.is_reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_reading_paused:
            self.is_reading_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # --- writing -----------------------------------------------------------------------------------------------
    def pause_writing(self) -> None:
        self.is_write_blocked = True
        if self.feeder is not None:
            self.feeder.pause_reading()

    def resume_writing(self) -> None:
        self.is_write_blocked = False
        if self.feeder is not None:
            self.feeder.resume_reading()

    def feed_from(self, feeder: Reads | None) -> None:
        """Set the source, which is paused at once if writing is blocked."""
        self.feeder = feeder
        if self.is_write_blocked and feeder is not None:
            feeder.pause_reading()

    def send(self, data: bytes) -> None:
        """Send at the end of this turn of the loop, together with later pieces of the turn."""
        size = len(data)
        self.bytes_out += size
        pieces = self._unflushed
        if pieces:
            size += self._unflushed_size
        else:
            turn = self._poller
            if turn is None:
                turn = self._poller = poller()
            if not turn.is_due:  # as `flush_later`, of which each request has two calls
                turn.fall_due()
            turn.flushing.append(self)
        pieces.append(data)
        self._unflushed_size = size
        if size > COPY_LIMIT:
            self.flush()  # back-pressure also within a turn

    def send_body(self, data: bytes) -> None:
        size = len(data)
        if not self.sends_chunked:
            self.send(data)
        elif size <= COPY_LIMIT:
            self.send(b"%x\r\n%b\r\n" % (size, data))
        else:
            self.send(b"%x\r\n" % size)
            self.send(data)
            self.send(b"\r\n")

    def end_body(self, trailers: bytes) -> None:
        """End the body. Trailers exist only in a chunked body (RFC 9112 section 7.1.2)."""
        if self.sends_chunked:
            self.send(b"0%b\r\n\r\n" % self.trailers_to_send(trailers) if trailers else b"0\r\n\r\n")

    def trailers_to_send(self, trailers: bytes) -> bytes:
        return trailers

    def flush(self) -> None:
        """Pass the pieces of this turn to the transport; called before a close or a handover."""
        pieces = self._unflushed
        if not pieces:
            return
        if len(pieces) == 1:
            self.transport.write(pieces.pop())  # ignored by a closing transport
            return
        self._unflushed = []
        if self._unflushed_size <= COPY_LIMIT:
            self.transport.write(b"".join(pieces))
        else:
            self.transport.writelines(pieces)

    def forget_unflushed(self) -> None:
        """Drop the pieces of this turn, since the connection is reset."""
        self._unflushed = []

    # --- the peer, for logs --------------------------------------------------------------------------------------
    def peer_name(self) -> str:
        """`address:port` of the other end ("-" if it is gone already)."""
        return peer_name(self.transport)
