"""ConnectedNameServer: the base of DNS servers whose clients connect: by TCP, TLS or HTTPS."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from typing import Self

from tests.support.dns import DnsServer


class ConnectedNameServer(ABC):
    """`names` answers. `connections` counts those that were accepted; `closes_after`: see the subclasses."""

    def __init__(self, names: DnsServer, context: ssl.SSLContext | None) -> None:
        self.names = names
        self.connections = 0
        self.closes_after = 0
        self.port = 0
        self._context = context
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, address: str = "127.0.0.1") -> Self:
        self._server = await asyncio.start_server(self._accept, address, 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()

    @property
    def open(self) -> int:
        """Connections that are open."""
        return len(self._writers)

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes on one connection, until it ends."""
