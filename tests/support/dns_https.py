"""A DNS server over HTTPS, by the h2 library, that answers from the zone of a DnsServer (tests/support/dns.py)."""

from __future__ import annotations

import asyncio
import ssl

from tests.support.dns import DnsServer
from tests.support.dns_connections import ConnectedNameServer
from tests.support.http2 import Http2Server

OK = ((b":status", b"200"), (b"content-type", b"application/dns-message"))


class HttpsNameServer(ConnectedNameServer):
    """`names` counts what it answers under "https". `heads` are those of all requests; `head` is sent before each
    answer. `closes_after`: questions after which a connection is closed.
    """

    def __init__(self, names: DnsServer, context: ssl.SSLContext, *, alpn: tuple[str, ...] = ("h2",)) -> None:
        context.set_alpn_protocols(list(alpn))
        super().__init__(names, context)
        self.head: tuple[tuple[bytes, bytes], ...] = OK
        self.body: bytes | None = None
        self.heads: list[dict[bytes, bytes]] = []
        self.max_streams = 100

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        h2 = Http2Server(max_streams=self.max_streams)
        served: set[int] = set()
        tasks = []
        writer.write(h2.outgoing())
        try:
            while data := await reader.read(65536):
                h2.take(data)
                for stream, call in h2.calls.items():
                    if call.is_whole and stream not in served:
                        served.add(stream)
                        self.heads.append(call.headers)
                        tasks.append(asyncio.create_task(self._answer(h2, stream, bytes(call.data), writer)))
                writer.write(h2.outgoing())
                if self.closes_after and len(served) >= self.closes_after:
                    await asyncio.gather(*tasks)
                    await writer.drain()
                    break
        except OSError:
            pass

    async def _answer(self, h2: Http2Server, stream: int, wire: bytes, writer: asyncio.StreamWriter) -> None:
        for answer in await self.names._answers(wire, "https"):
            if h2.calls[stream].reset is None and not writer.transport.is_closing():
                h2.respond(stream, list(self.head), answer if self.body is None else self.body)
                writer.write(h2.outgoing())
