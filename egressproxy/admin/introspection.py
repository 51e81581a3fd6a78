"""The queries /explain, /dns, /decisions, /model, /cache, /holds and /kill-switch, and the actions by POST: /reload,
/cache/purge, /holds and /kill-switch.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web

from egressproxy.admin.admin_state import AdminState
from egressproxy.admin.status import ApiError, bad_request
from egressproxy.admin.write_access import MARK, WriteAccess, came_by_proxy
from egressproxy.errors import NotAnswered
from egressproxy.gateway.identity.killed_identities import KillChange, NotKilled
from egressproxy.model.admin_requests import CachePurge, HoldDecision, HoldPage, HoldPlace

if TYPE_CHECKING:
    from egressproxy.admin.live import LiveFeed
    from egressproxy.admin.views import Views

#: What `views` answers.
VIEWS: Final = ("/denials", "/history", "/configurations", "/summary", "/limits", "/certificates", "/backends")
#: The most parallel explanations: each may wait for a name server.
MAX_AT_ONCE: Final = 4
JSON: Final = "application/json"
#: The members of a held request that only approvers see.
CONTENT: Final = ("query", "calls", "body", "isCut")
_T = TypeVar("_T")
_SUMMED: Final = ("entries", "bytes", "hits", "purged")


class Questions:
    """Queries the data plane, without requests to backends. Of Secrets, responses have only names."""

    def __init__(self, state: AdminState, access: WriteAccess, *, is_loopback: bool) -> None:
        """`is_loopback`: the admin server has an address of loopback."""
        self._is_loopback = is_loopback
        self._state = state
        self._access = access
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._feed: LiveFeed | None = None
        self._views: Views | None = None
        self._view_slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._has_ended_streams = False

    def handlers(self) -> dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]]:
        """The handlers by method and path."""
        return {
            ("GET", "/explain"): self._explain,
            ("GET", "/dns"): self._dns,
            ("GET", "/decisions"): self._decisions,
            ("GET", "/live"): self._live,
            **{("GET", path): self._view for path in VIEWS},
            ("GET", "/model"): self._model,
            ("GET", "/cache"): lambda _request: self._caches(None),
            ("POST", "/cache/purge"): self._purge,
            ("GET", "/holds"): self._holds,
            ("POST", "/holds"): self._decide,
            ("GET", "/kill-switch"): self._killed,
            ("POST", "/kill-switch"): self._kill,
            ("POST", "/reload"): self._reload,
        }

    async def _explain(self, request: web.BaseRequest) -> web.StreamResponse:
        if "name" in request.query:
            raise bad_request("unknown parameter 'name'; /dns takes it")
        return await self._found("explain", request)

    async def _dns(self, request: web.BaseRequest) -> web.StreamResponse:
        if "name" not in request.query:
            raise bad_request("name is missing: /dns?name=api.example.com")
        return await self._found("look_up", request)

    async def _found(self, name: str, request: web.BaseRequest) -> web.StreamResponse:
        try:
            async with self._slots:
                body = await self._state.ask_one(name, tuple(request.query.items()))
        except NotAnswered as error:
            raise bad_request(str(error)) from None
        return _json(body)

    async def _decisions(self, request: web.BaseRequest) -> web.StreamResponse:
        if request_id := request.query.get("request"):
            about = map(json.loads, await self._state.ask_some("shown", "decision", request_id))
            return _json(json.dumps(next(filter(None, about), {"decisions": [], "denial": None})))
        async with self._slots:
            found = await self._state.ask_some("decisions")
            body = await asyncio.to_thread(_latest, found, request.query.get("all") == "1")
        return _json(body)

    async def _view(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._views is None:
            from egressproxy.admin.views import Views

            self._views = Views(self._state, lambda: self._feed.readers if self._feed is not None else 0)
        async with self._view_slots:
            try:
                found = await self._views.answer(request.path, request.query)
            except ValueError as error:
                raise bad_request(str(error)) from None
            return _json(json.dumps(found))

    async def _live(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._has_ended_streams:
            raise ApiError(503, "ServiceUnavailable", "draining", retry_after_s=5)
        from egressproxy.admin.live import LiveFeed, LiveFilter

        if self._feed is None:
            self._feed = LiveFeed(self._state)
        check = partial(self._access.check_reader, request, is_loopback=self._is_loopback)
        return await self._feed.serve(request, _read(LiveFilter.of, request), check)

    def end_streams(self) -> None:
        """End the streams of /live, and refuse new ones."""
        self._has_ended_streams = True
        if self._feed is not None:
            self._feed.end()

    async def _reload(self, request: web.BaseRequest) -> web.StreamResponse:
        """POST /reload: for this machine alone, and for no web page."""
        if not self._is_loopback or came_by_proxy(request):
            message = "a reload is asked for on loopback, and not by way of a proxy: --admin 127.0.0.1:15900"
            raise ApiError(403, "Forbidden", message)
        if MARK not in request.headers or "Origin" in request.headers:  # a page of any site can send a plain POST
            raise ApiError(403, "Forbidden", f"a reload is asked for with the header {MARK}, and by no web page")
        why = await self._state.reload(request.query.get("acknowledge", ""))
        if why:
            raise ApiError(409, "Conflict", why)
        return _json(json.dumps({"reloaded": True}))

    async def _purge(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._access.check_marked(request, "a purge")
        return await self._caches(_read(CachePurge.of, request))

    async def _decide(self, request: web.BaseRequest) -> web.StreamResponse:
        person = await self._access.check_marked(request, "an approval")
        decision = _read(HoldDecision.of, request)
        if person:  # nobody decides in the name of another
            decision = replace(decision, by=person)
        found = await self._held(decision, HoldPage())
        if not found["decided"]:
            raise ApiError(404, "NotFound", f"nothing with the id {decision.id[:80]} waits (any more)")
        return _json(json.dumps(found))

    async def _holds(self, request: web.BaseRequest) -> web.StreamResponse:
        found = await self._held(None, _read(HoldPage.of, request))
        try:
            await self._access.check(request)
        except ApiError:  # a reader of the content could replay the request
            for hold in found["holds"]:
                for name in CONTENT:
                    hold.pop(name, None)
        return _json(json.dumps(found))

    async def _held(self, decision: HoldDecision | None, page: HoldPage) -> dict[str, Any]:
        """Of all workers: this page of `holds`, how many `waiting`, `decided`, where to `continue` ("" at the end)."""
        answers = [json.loads(each) for each in await self._state.ask_all("holds", decision, page)]
        every = sorted((hold for each in answers for hold in each["holds"]), key=_position)
        shown = every[: page.limit]
        is_last = len(shown) == len(every) and not any(each["behind"] for each in answers)
        following = page.following(_position(shown[-1])) if shown and not is_last else ""
        for hold in shown:
            del hold["deadline"]
        waiting, decided = (sum(each[name] for each in answers) for name in ("waiting", "decided"))
        return {"holds": shown, "waiting": waiting, "continue": following, "decided": decided}

    async def _kill(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._access.check_marked(request, "the kill switch")
        change = _read(KillChange.of, request)
        try:
            return _json(await self._state.kill_switch(change))
        except ValueError as error:  # too many
            raise bad_request(str(error)) from None
        except NotKilled as error:
            raise ApiError(404, "NotFound", str(error)) from None
        except OSError as error:
            raise ApiError(500, "InternalError", str(error)) from None

    async def _killed(self, _request: web.BaseRequest) -> web.StreamResponse:
        return _json(await self._state.kill_switch(None))

    async def _caches(self, purge: CachePurge | None) -> web.StreamResponse:
        async with self._slots:
            return _json(_summed(await self._state.ask_all("caches", purge)))

    async def _model(self, _request: web.BaseRequest) -> web.StreamResponse:
        async with self._slots:
            return _json(await self._state.model())


def _json(body: str | bytes) -> web.Response:
    """The response with this JSON and a line end, so that a shell's prompt does not follow it."""
    data = body.encode() if isinstance(body, str) else body
    return web.Response(body=data.rstrip(b"\n") + b"\n", content_type=JSON)


def _read(of: Callable[[Iterable[tuple[str, str]]], _T], request: web.BaseRequest) -> _T:
    """The parsed parameters of this request. Raises ApiError."""
    try:
        return of(request.query.items())
    except ValueError as error:
        raise bad_request(str(error)) from None


def _position(hold: dict[str, Any]) -> HoldPlace:
    return hold["deadline"], hold["id"]


def _latest(decisions: Iterable[bytes], has_all: bool) -> str:
    """The decisions of all workers, the latest first; all of them, or as many as one worker keeps."""
    every: list[list[dict[str, Any]]] = [json.loads(each) for each in decisions]
    merged = heapq.merge(*every, key=lambda decision: decision["time"], reverse=True)
    most = None if has_all else max(map(len, every), default=0)
    return json.dumps({"decisions": list(islice(merged, most))})


def _summed(workers: Iterable[bytes]) -> str:
    """The caches of all workers, summed by filter: entries, bytes, hits and purged responses."""
    caches: dict[tuple[str, str], dict[str, Any]] = {}
    for worker in workers:
        for each in json.loads(worker):
            named = {"filter": each["filter"], "from": each["from"]}
            known = caches.setdefault((each["from"], each["filter"]), {**named, **dict.fromkeys(_SUMMED, 0)})
            for name in _SUMMED:
                known[name] += each[name]
    totals = {name: sum(each[name] for each in caches.values()) for name in _SUMMED}
    return json.dumps({**totals, "caches": [caches[key] for key in sorted(caches)]})
