"""/explain, /decisions and /model: what would become of a request, what became of the latest ones, what is served."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from typing import Any, Final

from aiohttp import web

from egressproxy.admin.local import came_by_proxy, is_local
from egressproxy.admin.state import AdminState
from egressproxy.admin.status import ApiError, bad_request
from egressproxy.errors import NotAnswered

__all__ = ["Questions"]

#: Explanations at the same time: each may wait for a name server.
MAX_AT_ONCE: Final = 4
#: A header that a web page cannot send to another site without being allowed to.
MARK: Final = "X-Egressproxy"
JSON: Final = "application/json"


class Questions:
    """Asks the data plane. Nothing is sent to a backend, and nothing of a Secret but its name is in an answer."""

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    def handlers(self) -> dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]]:
        """The paths that are served, and by what."""
        return {"/explain": self._explain, "/decisions": self._decisions, "/model": self._model}

    async def _explain(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            async with self._places:
                body = await self._state.explain(list(request.query.items()))
        except NotAnswered as error:
            raise bad_request(str(error)) from None
        return web.Response(body=body, content_type=JSON)

    async def _decisions(self, _request: web.BaseRequest) -> web.StreamResponse:
        async with self._places:
            body = await asyncio.to_thread(_latest, await self._state.decisions())
        return web.Response(text=body, content_type=JSON)

    async def reload(self, request: web.BaseRequest, address: IPv4Address | IPv6Address) -> web.StreamResponse:
        """POST /reload: for this machine alone, and for no web page."""
        if not (address.is_loopback and is_local(request)):
            raise ApiError(403, "Forbidden", "a reload is asked for on loopback: --admin 127.0.0.1:15000")
        if came_by_proxy(request):
            raise ApiError(403, "Forbidden", "a reload is not asked for by way of a proxy")
        if MARK not in request.headers or "Origin" in request.headers:  # a page of any site can send a plain POST
            raise ApiError(403, "Forbidden", f"a reload is asked for with the header {MARK}, and by no web page")
        why = await self._state.reload(request.query.get("acknowledge", ""))
        if why:
            raise ApiError(409, "Conflict", why)
        return web.Response(text=json.dumps({"reloaded": True}), content_type=JSON)

    async def _model(self, _request: web.BaseRequest) -> web.StreamResponse:
        async with self._places:
            return web.Response(body=await self._state.model(), content_type=JSON)


def _latest(decisions: Iterable[bytes]) -> str:
    """Those of all workers, the latest first, as many as one of them keeps."""
    every: list[list[dict[str, Any]]] = [json.loads(each) for each in decisions]
    merged = heapq.merge(*every, key=lambda decision: decision["time"], reverse=True)
    return json.dumps({"decisions": list(islice(merged, max(map(len, every), default=0)))})
