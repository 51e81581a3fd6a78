"""The DNS server of tests/support/dns.py in a thread of its own, for tests that start programs and run no loop.

with NameServer({"origin.test": ["127.0.0.2"], "*": ["127.0.0.3"]}) as names:
    ...  # names.address is "127.0.0.1:PORT", as an EgressPolicy's `dns.servers` wants it
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from tests.support.dns import DnsServer, Rule
from tests.support.dns_stream import StreamNameServer
from tests.support.waiting import WAIT_S


class NameServer:
    """`zone` holds the rules and may be changed while it runs. Without "*", other names do not exist. With a `context`
    it also answers over TLS, at `streams.port`.
    """

    def __init__(self, names: Mapping[str, Sequence[str]], context: ssl.SSLContext | None = None) -> None:
        self.zone = {name: Rule(tuple(addresses)) for name, addresses in names.items()}
        self._server = DnsServer(self.zone)
        self.streams = StreamNameServer(self._server, context)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="name-server")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    def asked(self, name: str) -> int:
        """How many queries there were for this name, of any type and transport."""
        return sum(count for (asked, _, _), count in self._server.queries.items() if asked == name)

    def call(self, callback: Callable[[], object]) -> None:
        """Call something in the server's loop: for the `gate` of a rule."""
        self._loop.call_soon_threadsafe(callback)

    def start(self) -> NameServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(WAIT_S)
        asyncio.run_coroutine_threadsafe(self.streams.start(), self._loop).result(WAIT_S)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._server.stop)
        self._loop.call_soon_threadsafe(self.streams.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def __enter__(self) -> NameServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
