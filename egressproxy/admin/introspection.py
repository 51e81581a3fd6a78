"""/explain, /decisions, /model and /cache: what would become of a request, what became of the latest ones, what is
served, what is kept; and what is asked for by POST: /reload and /cache/purge.
"""

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
from egressproxy.admin.write_access import WriteAccess
from egressproxy.errors import NotAnswered
from egressproxy.model.cache_purge import CachePurge

__all__ = ["Questions"]

#: Explanations at the same time: each may wait for a name server.
MAX_AT_ONCE: Final = 4
#: A header that a web page cannot send to another site without being allowed to.
MARK: Final = "X-Egressproxy"
JSON: Final = "application/json"
_SUMMED: Final = ("entries", "bytes", "hits", "purged")


class Questions:
    """Asks the data plane. Nothing is sent to a backend, and nothing of a Secret but its name is in an answer."""

    def __init__(self, state: AdminState, access: WriteAccess) -> None:
        self._state = state
        self._access = access
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    def handlers(self) -> dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]]:
        """The paths that are served, and by what."""
        return {"/explain": self._explain, "/decisions": self._decisions, "/model": self._model, "/cache": self._caches}

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

    async def purge(self, request: web.BaseRequest, address: IPv4Address | IPv6Address) -> web.StreamResponse:
        """POST /cache/purge: for those who may write, and for no web page."""
        if not (address.is_loopback or self._access.needs_token):
            raise ApiError(403, "Forbidden", "a purge is asked for on loopback, or with --api-token-file")
        await self._access.check(request)
        if MARK not in request.headers:  # a page of any site can send a plain POST
            raise ApiError(403, "Forbidden", f"a purge is asked for with the header {MARK}, and by no web page")
        try:
            purge = CachePurge.of(request.query.items())
        except ValueError as error:
            raise bad_request(str(error)) from None
        return await self._told(purge)

    async def _caches(self, _request: web.BaseRequest) -> web.StreamResponse:
        return await self._told(None)

    async def _told(self, purge: CachePurge | None) -> web.StreamResponse:
        try:
            async with self._places:
                found = await self._state.caches(purge)
        except NotAnswered as error:
            raise ApiError(503, "ServiceUnavailable", f"not all workers have answered: {error}") from None
        return web.Response(text=_summed(found), content_type=JSON)

    async def _model(self, _request: web.BaseRequest) -> web.StreamResponse:
        async with self._places:
            return web.Response(body=await self._state.model(), content_type=JSON)


def _latest(decisions: Iterable[bytes]) -> str:
    """Those of all workers, the latest first, as many as one of them keeps."""
    every: list[list[dict[str, Any]]] = [json.loads(each) for each in decisions]
    merged = heapq.merge(*every, key=lambda decision: decision["time"], reverse=True)
    return json.dumps({"decisions": list(islice(merged, max(map(len, every), default=0)))})


def _summed(workers: Iterable[bytes]) -> str:
    """The caches of all workers, those of one filter together: its entries, bytes, hits and purged answers."""
    caches: dict[tuple[str, str], dict[str, Any]] = {}
    for worker in workers:
        for each in json.loads(worker):
            named = {"filter": each["filter"], "from": each["from"]}
            known = caches.setdefault((each["from"], each["filter"]), {**named, **dict.fromkeys(_SUMMED, 0)})
            for name in _SUMMED:
                known[name] += each[name]
    totals = {name: sum(each[name] for each in caches.values()) for name in _SUMMED}
    return json.dumps({**totals, "caches": [caches[key] for key in sorted(caches)]})
