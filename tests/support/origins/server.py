"""OriginServer: an HTTP/1.1 server for tests, plain and TLS, in a thread with an event loop of its own.

It serves whatever route tables it is given (basic, git, packages, s3, ai) and records every request as it came.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

from aiohttp import web

from tests.support.net import can_bind_low_ports, loopback_address
from tests.support.waiting import WAIT_S

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the origin got it: names as they were spelled, the target as it was sent."""

    scheme: str
    method: str
    target: str
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str) -> list[str]:
        """Every value of a field, in order."""
        return [value for key, value in self.fields if key.lower() == name.lower()]


class OriginServer:
    """Listens on an address of its own: on 80 and 443 where this process may, else on free ports.

    `names` are the DNS names that resolve to `address` and that the certificate of `tls` (a context) is for.
    """

    def __init__(self, tables: Iterable[Iterable[web.AbstractRouteDef]], tls: ssl.SSLContext) -> None:
        self.address = loopback_address()
        self.plain_port = self.tls_port = 0
        self.seen: list[Seen] = []
        self._tables = [list(table) for table in tables]
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="origin")

    def url(self, name: str, path: str = "/", *, tls: bool = False) -> str:
        """The URL of a path under one of the names; a default port is left out, as clients expect it."""
        scheme, port, default = ("https", self.tls_port, 443) if tls else ("http", self.plain_port, 80)
        return f"{scheme}://{name}{'' if port == default else f':{port}'}{path}"

    def requests(self, path: str) -> list[Seen]:
        """The requests seen for a path (a query may follow)."""
        return [seen for seen in self.seen if seen.target.partition("?")[0] == path]

    def start(self) -> OriginServer:
        self._thread.start()
        if not self._ready.wait(WAIT_S) or self._failure is not None:
            raise RuntimeError(f"the origin did not start: {self._failure}")
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)

    def __enter__(self) -> OriginServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._application(), shutdown_timeout=0.1, handle_signals=False)
        try:
            self._loop.run_until_complete(self._listen(runner))
        except OSError as error:
            self._failure = error
        self._ready.set()
        if self._failure is None:
            self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._record], client_max_size=1 << 30)
        for table in self._tables:
            application.add_routes(table)
        return application

    @web.middleware
    async def _record(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers)
        self.seen.append(Seen(request.scheme, request.method, request.raw_path, fields))
        return await handler(request)

    async def _listen(self, runner: web.AppRunner) -> None:
        await runner.setup()
        low = can_bind_low_ports()
        await web.TCPSite(runner, self.address, 80 if low else 0).start()
        await web.TCPSite(runner, self.address, 443 if low else 0, ssl_context=self._tls).start()
        self.plain_port, self.tls_port = (address[1] for address in runner.addresses)
