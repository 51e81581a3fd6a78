"""The Kubernetes-shaped API over HTTP: from a request to the functions that answer it.

Thousands of objects take long to decode and to encode: a thread does it, for one client at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web

from egressproxy.admin import api, discovery, openapi, protobuf
from egressproxy.admin.objects import Objects
from egressproxy.admin.questions import Options, form, resource
from egressproxy.admin.responses import HEADERS, encoded, json_response
from egressproxy.admin.state import AdminState
from egressproxy.admin.status import ApiError
from egressproxy.admin.watches import Watches

__all__ = ["KubernetesApi"]


class KubernetesApi:
    """That of one admin server; `address` gives its host:port, for discovery."""

    def __init__(self, state: AdminState, address: Callable[[], str]) -> None:
        self._state = state
        self._address = address
        self._objects = Objects(state.sources())
        self._watches = Watches(self._objects)
        self._encoding = asyncio.Lock()

    def changed(self) -> None:
        """A source of objects has changed: whoever watches is told."""
        self._objects.changed()

    def end_watches(self) -> None:
        """All watches end; there will be no more."""
        self._watches.end()

    async def answer(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        """`path` has no trailing slash; None where it is not one of ours. Raises ApiError."""
        if path in ("/openapi/v2", "/openapi/v3") or path.startswith("/openapi/v3/"):
            return await self._openapi(request, path)
        if not path.startswith(("/api/", "/apis/")) and path not in ("/api", "/apis"):
            return None
        accept = request.headers.get("Accept", "")
        found = self._discovered(path, accept)
        if found is not None:
            return found
        asked = resource(path)
        if asked is None:
            return None
        options = Options.of(request.query, asked.kind)
        shape = form(accept)
        if options.is_watch and not asked.name:
            with self._watches.place():
                return await self._watch(request, await self._watches.begin(asked, options, shape))
        make = api.get if asked.name else api.listing
        return await self._document(make, asked, options, shape, await self._objects.view())

    async def config(self, _request: web.BaseRequest) -> web.StreamResponse:
        """/config."""
        return await self._document(api.everything, await self._objects.view())

    def _discovered(self, path: str, accept: str) -> web.Response | None:
        body: Mapping[str, Any] | None
        match path.strip("/").split("/"):
            case ["api" | "apis" as root] if (content_type := discovery.aggregated_type(accept)) is not None:
                return json_response(200, discovery.aggregated(root == "api", content_type, False), content_type)
            case ["api"]:
                body = discovery.legacy_versions(self._address())
            case ["apis"]:
                body = discovery.group_list()
            case ["apis", group]:
                body = discovery.one_group(group)
            case ["api", version]:
                body = discovery.resource_list("", version, False)
            case ["apis", group, version]:
                body = discovery.resource_list(group, version, False)
            case _:
                return None
        return None if body is None else json_response(200, body)

    async def _watch(self, request: web.BaseRequest, pieces: AsyncGenerator[bytes, None]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", **HEADERS})
        await response.prepare(request)
        async with aclosing(pieces):
            async for piece in pieces:
                await response.write(piece)
        await response.write_eof()
        return response

    async def _openapi(self, request: web.BaseRequest, path: str) -> web.Response:
        version = self._state.metrics.version
        if path == "/openapi/v3":
            return json_response(200, openapi.paths_v3())
        try:
            schema = await self._state.schema()
        except OSError as error:
            raise ApiError(503, "ServiceUnavailable", str(error)) from None
        if path != "/openapi/v2":
            name = path.removeprefix("/openapi/v3/")
            return await self._document(openapi.document_v3, name, schema, version, False)
        if not any(each in request.headers.get("Accept", "") for each in protobuf.ACCEPTED):
            return await self._document(openapi.document_v2, schema, version, False)

        def packed() -> bytes:
            return protobuf.encode_document(openapi.document_v2(schema, version, False))

        return web.Response(body=await self._in_thread(packed), headers={"Content-Type": protobuf.CONTENT_TYPE})

    async def _document(self, make: Callable[..., Mapping[str, Any]], *arguments: Any) -> web.Response:
        body = await self._in_thread(lambda: encoded(make(*arguments)))
        return web.Response(body=body, content_type="application/json")

    async def _in_thread(self, make: Callable[[], bytes]) -> bytes:
        async with self._encoding:
            return await asyncio.to_thread(make)
