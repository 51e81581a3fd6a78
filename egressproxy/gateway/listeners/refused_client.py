"""RefusedClient: a client without TLS that finds no room, and is told so in the version of HTTP that it speaks.

Which that is, its first bytes say, and it has a moment for them; one that waits longer, or comes while many others are
being told, is taken for a client of HTTP/1.
"""

from __future__ import annotations

import asyncio
import struct

from h2.errors import ErrorCodes

from egressproxy.gateway.open_connections import AllConnections
from egressproxy.model.local_response import LocalResponse
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.http1.writer import answer_bytes

#: For the first bytes of the client, and then for its end; in seconds.
WAIT_S = 0.5
#: Clients that are waited for.
MAX_WAITING = 64
#: How a client of HTTP/2 that knows us begins (RFC 9113 section 3.4), as far as no method of HTTP/1 does.
PREFACE = b"PRI * HTTP/2.0"
#: An empty SETTINGS frame, and GOAWAY: no stream was served, for no fault of the client (RFC 9113 sections 6.5, 6.8).
GOAWAY = (
    struct.pack(">I", 0)[1:] + bytes((4, 0)) + struct.pack(">I", 0)
    + struct.pack(">I", 8)[1:] + bytes((7, 0)) + struct.pack(">III", 0, 0, ErrorCodes.NO_ERROR)
)  # fmt: skip


class RefusedClient(asyncio.Protocol):
    """In place of the connection that was not admitted. Each has a descriptor, so `AllConnections` bounds them."""

    __slots__ = ("_answer", "_begin", "_clients", "_deadline", "_is_waiting", "_transport")

    def __init__(
        self, transport: asyncio.Transport, wheel: TimerWheel, answer: LocalResponse, clients: AllConnections
    ) -> None:
        self._clients = clients
        self._transport = transport
        self._answer = answer
        self._begin = b""
        self._deadline = Deadline(wheel, self._deadline_passed)
        clients.refused += 1
        self._is_waiting = False
        if clients.refused > clients.max_refused:
            transport.abort()
            return
        if clients.refused > MAX_WAITING:
            self._tell()
            return
        self._is_waiting = True
        self._deadline.after(WAIT_S)

    def data_received(self, data: bytes) -> None:
        if not self._is_waiting:
            return
        self._begin = (self._begin + data)[: len(PREFACE)]
        if self._begin == PREFACE or not PREFACE.startswith(self._begin):
            self._tell()

    def eof_received(self) -> bool:
        """It says no more, and may still read."""
        if self._is_waiting:
            self._tell()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.refused -= 1
        self._is_waiting = False
        self._deadline.close()

    def _deadline_passed(self) -> None:
        if self._is_waiting:
            self._tell()
        else:
            self._transport.abort()

    def _tell(self) -> None:
        """Answer, and end our side; the client's end is waited for, so that it reads the answer and no reset."""
        self._is_waiting = False
        is_http2 = self._begin == PREFACE
        self._transport.write(GOAWAY if is_http2 else answer_bytes(self._answer, close=True, with_body=True))
        self._transport.write_eof()
        self._deadline.after(WAIT_S)
