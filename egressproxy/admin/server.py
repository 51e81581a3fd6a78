"""The admin server: health, metrics and the Kubernetes-shaped API, on addresses of its own.

It shares the event loop with the traffic and must not slow it down: long work runs in a thread, the number of
connections is bounded, and idle or blocked connections are closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Protocol

from aiohttp import web

from egressproxy import __version__
from egressproxy.admin.admin_state import AdminState
from egressproxy.admin.connections import KEEPALIVE_S, AdminConnection, AdminConnections
from egressproxy.admin.introspection import Questions
from egressproxy.admin.status import HEADERS, ApiError, json_response, read_only, refusal
from egressproxy.admin.write_access import WriteAccess, is_of_other_page, names_loopback
from egressproxy.errors import NotAnswered
from egressproxy.net.listening import bind

logger = logging.getLogger(__name__)
#: aiohttp logs a traceback for every malformed request; the 400 says enough, and defects of ours are logged above.
_malformed = logging.getLogger(f"{__name__}.malformed")
_malformed.setLevel(logging.CRITICAL)

#: The time limit of a client that acknowledges no data, in milliseconds.
UNREAD_MS: Final = 30_000
STOP_TIMEOUT_S: Final = 1.0
#: Accepted in one turn of the loop: fewer than the reserve, so that no burst closes what came in it.
ACCEPTED_AT_ONCE: Final = 8
#: Connections that wait in the kernel to be accepted.
BACKLOG: Final = 512
ENCODED_SLASHES: Final = ("%2f", "%5c")
#: The paths that are served even at the limit of connections.
HEALTH: Final = frozenset({"/healthz", "/livez", "/readyz"})
#: The paths that need no token on a network, and that a page of another site may link to: those of probes and scrapers,
#: and the admin page, which shows nothing before its own requests have the token.
OPEN: Final = HEALTH | {"/metrics", "/ui", "/ui/", "/ui/page.js", "/ui/page.css", "/ui/oidc"}

_INDEX: Final = """egressproxy admin
/healthz /livez             the process answers
/readyz                     every listener is bound; 503 says what is missing
/metrics                    Prometheus or OpenMetrics text
"""
_INDEX_OF_QUESTIONS: Final = """\
/explain                    ?method=&url=&as=&header=&gateway=&listener=&dns=0: what would become of a request, and why
/dns                        ?name=&port=&gateway=&policy=&backend=: where a name leads, and what may be dialled
/decisions                  the latest decisions, without queries and headers
/live                       ?denied=1&namespace=&host=&status=&limit=: each exchange that ends, as server-sent events
/denials                    ?minutes=&namespace=: what was denied, why, and what would allow it
/history                    requests, denials and latency of each of the last 60 minutes
/configurations             the latest configurations, and what they have changed
/summary /backends          what is served; backends, their endpoints and health
/limits /certificates       what is left of limits; certificates and credentials by name
/model                      what is served, as egressproxy diff compares it
/cache                      what the caches keep, over all workers
/cache/purge                POST, ?route=&path=&identity= or ?all=1: what egressproxy cache purge sends
/holds                      what waits for approval; POST, ?approve= or ?deny=: what egressproxy holds sends
/kill-switch                who is out of service; POST, ?kill=&why= or ?restore=: what egressproxy kill-switch sends
/reload                     POST, on loopback: what egressproxy reload sends
/ui                         the admin page
/version                    the version of egressproxy, and of the Kubernetes that this API is like
"""

#: The Kubernetes version of the API, which kubectl compares.
_LIKE: Final = {"major": "1", "minor": "32", "platform": "python", "gitTreeState": "clean", "goVersion": ""}

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Surface(Enum):
    """The paths that an address serves."""

    FULL = "full"
    METRICS = "metrics"  # /metrics and health alone: what a scraper may reach


class AdminApi(Protocol):
    """The Kubernetes-shaped API, served on a FULL surface if the application has it."""

    @property
    def index(self) -> str: ...  # lines for the index, each with its end
    async def answer(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """The response for any method; None for a path of another handler. Raises ApiError."""

    def changed(self) -> None:
        """Tell watchers that a source of objects has changed."""

    def end_watches(self) -> None:
        """End all watches, and refuse new ones."""


class AdminServer:
    """One address: `host` is an IP literal, `port` 0 the system's choice. `start` raises OSError, `stop` closes all."""

    def __init__(
        self,
        state: AdminState,
        host: str,
        port: int,
        surface: Surface = Surface.FULL,
        api: Callable[[AdminServer], Awaitable[AdminApi]] | None = None,
        access: WriteAccess | None = None,
        bind: Callable[..., socket.socket] = bind,
    ) -> None:
        """`api` creates the API of a FULL surface at first use. `access`: the rights to purge caches; None: this
        machine. `bind` is that of ListeningSockets.
        """
        self._bind = bind
        self._socket: socket.socket | None = None
        self._state = state
        self._address = ipaddress.ip_address(host)
        self.host = host
        self.port = port
        self._web: web.Server | None = None
        self._listening: asyncio.Server | None = None
        self._connections = AdminConnections()
        self._scrape = asyncio.Lock()
        self._is_full = full = surface is Surface.FULL
        self._access = access or WriteAccess(None)
        self._make_api = api if full else None
        self._api: AdminApi | None = None
        self._making = asyncio.Lock()
        self._has_ended_watches = False
        self._questions = Questions(state, self._access, is_loopback=self._address.is_loopback)
        self._handlers: dict[tuple[str, str], _Handler] = {
            ("GET", "/healthz"): self._health,
            ("GET", "/livez"): self._health,
            ("GET", "/readyz"): self._ready,
            ("GET", "/metrics"): self._metrics,
            **({("GET", "/"): self._index, ("GET", "/version"): self._version} if full else {}),
            **(self._questions.handlers() if full else {}),
        }

    def bind(self) -> None:
        """Bind the address; connections wait until `start`. Raises OSError."""
        self._socket = self._bind(str(self._address), self.port, unread_ms=UNREAD_MS)
        self.port = self._socket.getsockname()[1]

    async def start(self) -> None:
        if self._socket is None:
            self.bind()
        listening, loop = self._socket, asyncio.get_running_loop()
        assert listening is not None
        self._web = web.Server(self._handle, handler_cancellation=True)  # ends the watch of a disconnected client
        # asyncio accepts up to `backlog` connections in one turn.
        self._listening = await loop.create_server(self._connection, sock=listening, backlog=ACCEPTED_AT_ONCE)
        listening.listen(BACKLOG)

    @property
    def unsent(self) -> int:
        return self._connections.unsent

    def changed(self) -> None:
        if self._api is not None:
            self._api.changed()

    def end_watches(self) -> None:
        self._has_ended_watches = True
        self._questions.end_streams()
        if self._api is not None:
            self._api.end_watches()

    async def stop(self) -> None:
        """Stop listening and close what is open, after at most a second for answers that are being sent."""
        if self._listening is not None:
            self._listening.close()
        elif self._socket is not None:
            self._socket.close()
        if self._web is not None:
            await self._web.shutdown(STOP_TIMEOUT_S)
        self._connections.stop()

    # connections

    def _connection(self) -> asyncio.BaseProtocol:
        assert self._web is not None
        return AdminConnection(
            self._connections,
            self._web,
            access_log=None,
            logger=_malformed,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=0,
            max_line_size=8190,
            auto_decompress=False,
        )

    # requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, AdminConnection)
        connection.begin()
        try:
            response = await self._answer(request, connection)
        except ApiError as error:
            response = refusal(error)
        except NotAnswered as error:
            response = refusal(ApiError(503, "ServiceUnavailable", f"not all workers have answered: {error}"))
        except Exception:
            logger.exception("admin: %s failed", request.path)
            response = refusal(ApiError(500, "InternalError", "a defect of the admin server; its log says more"))
        finally:
            connection.end()
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        if connection.is_reserve:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest, connection: AdminConnection) -> web.StreamResponse:
        if connection.is_reserve and request.path not in HEALTH:
            raise ApiError(503, "ServiceUnavailable", "too many connections are being answered", retry_after_s=5)
        if not self._is_our_name(_authority(request)):
            # A page whose name was rebound to our address asks with its own name (DNS rebinding).
            raise ApiError(403, "Forbidden", "this Host is not served here; ask by address or as localhost")
        if any(each in request.raw_path.partition("?")[0].lower() for each in ENCODED_SLASHES):
            # A proxy in front of us that judges paths may read another path than we do.
            raise ApiError(404, "NotFound", "a path has no encoded slash here")
        path, is_read = request.path, request.method in ("GET", "HEAD")
        is_link = is_read and path in OPEN and request.headers.get("Sec-Fetch-Mode") == "navigate"
        if not is_link and is_of_other_page(request):
            # A page cannot read the answer, but some questions do something (an explanation asks name servers).
            raise ApiError(403, "Forbidden", "a page of another site may not ask; type the address yourself")
        if self._is_full and path not in OPEN:
            await self.check_reader(request)
        if request.method == "POST" and (handler := self._handlers.get(("POST", path))) is not None:
            return await handler(request)
        if is_read and (handler := self._handlers.get(("GET", path))) is not None:
            return await handler(request)
        is_page = (is_read and f"{path}/".startswith("/ui/")) or (request.method, path) == ("POST", "/ui/oidc")
        if self._is_full and is_page:
            from egressproxy.admin.ui import page  # most gateways are never asked

            return await page(request, self._access, is_local=self._address.is_loopback)
        api = await self._made_api()
        if api is not None and (found := await api.answer(request)) is not None:
            return found
        if not is_read:
            return read_only(f"{path} is read-only: GET or HEAD")
        raise ApiError(404, "NotFound", f"nothing is served at {path}; / lists what is")

    async def check_reader(self, request: web.BaseRequest) -> None:
        """Raises ApiError(401, 403) for a client that may not read here, or no more."""
        await self._access.check_reader(request, is_loopback=self._address.is_loopback)

    def _is_our_name(self, host: str) -> bool:
        """Whether a Host is accepted: on loopback only loopback names; on a network any, as our names are unknown."""
        return not self._address.is_loopback or not host or names_loopback(host)

    async def _index(self, _request: web.BaseRequest) -> web.StreamResponse:
        api = await self._made_api()
        return web.Response(text=f"{_INDEX}{api.index if api is not None else ''}{_INDEX_OF_QUESTIONS}")

    async def _made_api(self) -> AdminApi | None:
        async with self._making:
            if self._api is None and self._make_api is not None:
                self._api = await self._make_api(self)
                if self._has_ended_watches:
                    self._api.end_watches()
        return self._api

    async def _health(self, _request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.BaseRequest) -> web.StreamResponse:
        why_not = self._state.why_not_ready()
        return web.Response(status=503, text=f"not ready: {why_not}\n") if why_not else web.Response(text="ok\n")

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        async with self._scrape:  # scrapers wait for each other, traffic for none of them
            body, content_type = await self._state.exposition(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _version(self, _request: web.BaseRequest) -> web.StreamResponse:
        return json_response(200, {**_LIKE, "gitVersion": f"v1.32.0+egressproxy.{__version__}"})


def _authority(request: web.BaseRequest) -> str:
    """The authority of the request: of an absolute target, else Host (RFC 9112 section 3.2.2)."""
    scheme, absolute, rest = request.raw_path.partition("://")
    if absolute and scheme.isalpha():
        return rest.partition("/")[0].partition("?")[0] or "-"
    return request.headers.get("Host", "")
