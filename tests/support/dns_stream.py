"""A DNS server over TCP or TLS with many questions on a connection, from the zone of a DnsServer."""

from __future__ import annotations

import asyncio
import ssl
import struct
from typing import Any

from tests.support.dns import DnsServer

__all__ = ["StreamNameServer"]


class StreamNameServer:
    """`names` answers, and counts under "tcp". `connections` counts those that were accepted.

    `closes_after`: answers after which a connection is closed. `in_order`: an answer waits for those before it.
    """

    def __init__(self, names: DnsServer, context: ssl.SSLContext | None = None) -> None:
        self.names = names
        self.connections = 0
        self.closes_after = 0
        self.in_order = False
        self.port = 0
        self._context = context
        self._server: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, address: str = "127.0.0.1") -> StreamNameServer:
        self._server = await asyncio.start_server(self._serve, address, 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def stop(self) -> None:
        self._server.close()
        self.hang_up()
        for task in self._tasks:
            task.cancel()

    @property
    def open(self) -> int:
        """Connections that are open."""
        return len(self._writers)

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        answered = 0

        async def answer(query: bytes) -> None:
            nonlocal answered
            for message in await self.names._answers(query, "tcp"):
                if writer.is_closing():
                    return
                writer.write(struct.pack("!H", len(message)) + message)
                answered += 1
                if answered == self.closes_after:
                    writer.close()

        try:
            while True:
                size = struct.unpack("!H", await reader.readexactly(2))[0]
                query = await reader.readexactly(size)
                if self.in_order:
                    await answer(query)
                else:
                    task = asyncio.create_task(answer(query))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        except (EOFError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
