"""Player: a backend on loopback that sends recorded streams with their rhythm.

A filter answers whole. So with `--rhythm` the filter gives a stream a ticket, and lets the request go on to this
backend, the only one of the run's Gateway. Without a ticket of this process nothing is answered.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from egressproxy.model.local_response import LocalResponse

#: The field with the ticket.
TICKET: Final = b"x-egressproxy-tape"
_MAX_HEAD: Final = 256 * 1024
_HEAD_S: Final = 10.0

#: Seconds behind the head, and what is sent then.
Pieces = Sequence[tuple[float, bytes]]


class Player:
    """Serves on `port` of 127.0.0.1, from the first ticket on until `close`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._lock = asyncio.Lock()
        self._tickets: dict[bytes, tuple[LocalResponse, Pieces]] = {}

    async def ticket(self, head: LocalResponse, pieces: Pieces) -> bytes:
        """A ticket for one response. Raises OSError where the port is taken."""
        async with self._lock:
            self._server = self._server or await asyncio.start_server(
                self._serve, "127.0.0.1", self._port, limit=_MAX_HEAD
            )
        made = secrets.token_hex(16).encode()
        self._tickets[made] = head, pieces
        return made

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, KeyError):
            async with asyncio.timeout(_HEAD_S):
                lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            found = (line.split(b": ", 1)[1] for line in lines if line.lower().startswith(TICKET + b": "))
            head, pieces = self._tickets.pop(next(found, b""))
            fields = b"".join(b"%b: %b\r\n" % each for each in head.fields)
            writer.write(
                b"HTTP/1.1 %d \r\n%bconnection: close\r\ntransfer-encoding: chunked\r\n\r\n" % (head.status, fields)
            )
            began = asyncio.get_running_loop().time()
            for at, data in pieces:
                await asyncio.sleep(began + at - asyncio.get_running_loop().time())
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        writer.close()
