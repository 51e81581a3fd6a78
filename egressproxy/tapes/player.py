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
            if self._server is None:
                self._server = await asyncio.start_server(
                    self._serve, "127.0.0.1", self._port, limit=_MAX_HEAD
                )  # fmt: skip
        made = secrets.token_hex(16).encode()
        self._tickets[made] = head, pieces
        return made

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            lines = (line.partition(b":")[::2] for line in head.split(b"\r\n"))
            ticket = next((value.strip() for name, value in lines if name.lower() == TICKET), b"")
            found = self._tickets.pop(ticket, None)
            if found is not None:
                await self._play(writer, *found)
        writer.close()

    async def _play(self, writer: asyncio.StreamWriter, head: LocalResponse, pieces: Pieces) -> None:
        fields = b"".join(b"%b: %b\r\n" % each for each in head.fields)
        writer.write(
            b"HTTP/1.1 %d \r\n%bconnection: close\r\ntransfer-encoding: chunked\r\n\r\n" % (head.status, fields)
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        for at, data in pieces:
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            if data:
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
