"""WebSocketEnd: one side of a WebSocket that the gateway reads: whole messages in, frames out.

Each side is a WebSocket of its own: pings are answered here, fragments and compression end here, and a side that breaks
the protocol is told so with the right code.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from egressproxy.model.work import Work
from egressproxy.net.flow_control import HIGH_WATER
from egressproxy.protocols.websocket.deflate import Inflater
from egressproxy.protocols.websocket.frames import (
    FrameReader,
    Opcode,
    WebSocketEvent,
    WebSocketFault,
    close_payload,
    frame,
    text_of,
)

#: The longest message, in bytes, and the longest event of a stream (`ai/apis/framing`).
MAX_MESSAGE: Final = 16 * 1024 * 1024
#: Messages of one side that wait, and their bytes, before nothing more is read of it.
MAX_WAITING: Final = 16
MAX_WAITING_BYTES: Final = 1024 * 1024


class WebSocketEnd(asyncio.Protocol):
    """`on_change` is called when a message, a Close frame, a fault or an end has come. `close_seen`: the payload of the
    Close frame; None: none has come. `fault`: how this side has broken the protocol.
    """

    __slots__ = (
        "_has_said_close", "_inflater", "_is_client", "_is_paused", "_on_change", "_reader", "_waiting_bytes",
        "bytes_in", "bytes_out", "close_seen", "fault", "has_ended", "is_lost", "is_write_blocked", "messages",
        "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, on_change: Callable[[], None], *, is_client: bool, deflates: bool) -> None:
        self._is_client = is_client
        self._is_paused = False
        self.bytes_in = self.bytes_out = 0
        self.is_write_blocked = False  # the other side takes nothing: what it is sent waits in the transport
        self._reader = FrameReader(is_masked=is_client, deflates=deflates, max_message=MAX_MESSAGE)
        self._inflater = Inflater(MAX_MESSAGE) if deflates else None
        self._on_change: Callable[[], None] | None = on_change
        self._waiting_bytes = 0
        self._has_said_close = False
        self.messages: deque[WebSocketEvent] = deque()
        self.close_seen: bytes | None = None
        self.fault: WebSocketFault | None = None
        self.has_ended = self.is_lost = False

    @property
    def held(self) -> int:
        """The bytes of messages that wait, or are not whole."""
        return self._waiting_bytes + self._reader.held

    @property
    def _is_full(self) -> bool:
        return len(self.messages) >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES

    @property
    def says_no_more(self) -> bool:
        return self.close_seen is not None or self.has_ended or self.is_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(HIGH_WATER)

    # --- what comes ------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        self.bytes_in += len(data)
        if self.fault is not None:
            return
        try:
            events = self._reader.feed(data)
        except WebSocketFault as fault:
            fault.__traceback__ = None  # its frame holds this end: no cycle
            self.fault, events = fault, []
        for event in events:
            if event.opcode == Opcode.PING:
                self._pong(event.data)
            elif event.opcode == Opcode.CLOSE:
                self.close_seen = event.data
            elif event.opcode != Opcode.PONG:
                self.messages.append(event)
                self._waiting_bytes += len(event.data)
        if self._is_full and not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()
        self._changed()

    def eof_received(self) -> bool:
        self.has_ended = True
        self._changed()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._changed()

    def pause_writing(self) -> None:
        self.is_write_blocked = True

    def resume_writing(self) -> None:
        self.is_write_blocked = False
        self._changed()

    def release(self) -> None:
        """Tell nobody any more: who is told knows this end."""
        self._on_change = None
        self.messages.clear()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _pong(self, data: bytes) -> None:
        if not self.is_write_blocked:  # of those that wait for an answer the latest is enough (RFC 6455 section 5.5.3)
            self._send(Opcode.PONG, data)

    # --- messages --------------------------------------------------------------------------------------------------
    def take(self) -> Work[bytes]:
        """The oldest message that waits, inflated, in turns. Raises WebSocketFault, also for one that is no text."""
        event = self.messages.popleft()
        self._waiting_bytes -= len(event.data)
        if self._is_paused and not self._is_full:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
        data = event.data
        if event.is_deflated and self._inflater is not None:
            data = yield from self._inflater.inflate(data)
        return text_of(data, event.opcode)

    def send_text(self, message: bytes) -> None:
        self._send(Opcode.TEXT, message)

    def say_close(self, payload: bytes) -> None:
        """Send a Close frame, unless one was sent."""
        if not self._has_said_close:
            self._has_said_close = True
            self._send(Opcode.CLOSE, payload)

    def fail(self, code: int, reason: str) -> None:
        """Say why this side is closed (RFC 6455 section 7.4)."""
        self.say_close(close_payload(code, reason))

    def _send(self, opcode: int, payload: bytes) -> None:
        if self.is_lost or (self._has_said_close and opcode != Opcode.CLOSE):
            return
        data = frame(opcode, payload, masks=not self._is_client)
        self.bytes_out += len(data)
        self.transport.write(data)
