"""A DNS server over TCP or TLS with many questions on a connection, from the zone of a DnsServer."""

from __future__ import annotations

import asyncio
import ssl
import struct

from tests.support.dns import DnsServer
from tests.support.dns_connections import ConnectedNameServer


class StreamNameServer(ConnectedNameServer):
    """`names` counts what it answers under "tcp".

    `closes_after`: answers after which a connection is closed. `in_order`: an answer waits for those before it.
    """

    def __init__(self, names: DnsServer, context: ssl.SSLContext | None = None) -> None:
        super().__init__(names, context)
        self.in_order = False
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        super().stop()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
