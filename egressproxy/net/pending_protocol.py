"""PendingProtocol: that of a transport until it has another, which gets what came (one read), or an early end."""

from __future__ import annotations

import asyncio
from typing import cast


class PendingProtocol(asyncio.Protocol):
    """Holds a transport for a moment."""

    __slots__ = ("_loss", "data", "has_ended", "is_lost", "transport")

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.has_ended = False
        self.is_lost = False
        self._loss: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data.append(data)
        self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.has_ended = True
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._loss = error

    def hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """The protocol gets `connection_made` and then everything that came, in order."""
        transport = self.transport
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        receiver = cast(asyncio.Protocol, protocol)
        data, self.data = self.data, []
        if data and not transport.is_closing():
            transport.resume_reading()  # before the protocol gets anything: it may want to pause again
        for piece in data:
            receiver.data_received(piece)
        if self.is_lost:
            receiver.connection_lost(self._loss)
        elif self.has_ended and not receiver.eof_received():
            transport.close()
