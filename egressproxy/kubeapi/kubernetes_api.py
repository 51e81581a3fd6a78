"""The Kubernetes-shaped API over HTTP: it finds the function that answers a request.

Thousands of objects take long to decode and to encode: a thread does it, for one client at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from aiohttp import web

from egressproxy.admin.server import AdminServer
from egressproxy.admin.status import HEADERS, ApiError, Cause, json_response, read_only, success
from egressproxy.admin.write_access import CHECK_S, WriteAccess
from egressproxy.kubeapi import openapi, openapi_protobuf
from egressproxy.kubeapi.issued_cas import PATH as ISSUED_CAS
from egressproxy.kubeapi.issued_cas import IssuedCas
from egressproxy.kubeapi.list_options import ApiResource, Form, Options, form, resource
from egressproxy.kubeapi.read import discovery, documents
from egressproxy.kubeapi.read.objects import Objects, View
from egressproxy.kubeapi.read.watches import Watches
from egressproxy.kubeapi.service import ApiService
from egressproxy.kubeapi.write.http_request import METHODS, asked_write, read_body
from egressproxy.kubeapi.write.write import Verb, Write, WriteRefused, Written
from egressproxy.kubeapi.write.write_queue import WriteQueue
from egressproxy.model.encoding import line

#: What the index of the admin server says of it.
INDEX: Final = """\
/api /apis                  the configuration in service with its status, as Kubernetes shapes it: for kubectl --server
/openapi/v2 /openapi/v3     what these objects may say
/config                     all of it in one List
/intercept/cas              the CAs of egressproxy ca list; POST, ?policy=&new=&… or &revoke=: ca new, ca revoke
"""
WRITES_ARE_OFF: Final = (
    "this gateway was started without --api-writes, so nothing can be changed through this API: change the files of"
    " --config, or start it with --state-dir DIR --api-writes"
)
WRITE_TO_THE_CLUSTER: Final = (
    "this gateway reads its configuration from an API server, so nothing can be changed through this API: write to that"
    " API server"
)
#: Of answers, in all: slow readers of large lists would hold as many of them as there are connections.
MAX_UNSENT: Final = 64 * 1024 * 1024
#: For a watcher to take what it is told.
UNREAD_S: Final = 30.0
#: Their bodies are held meanwhile.
MAX_WRITES: Final = 64
#: Where kubectl asks whether a kind that it does not find in discovery has a definition, before it applies one. Without
#: a list there it tells of the list, and not of the kind (kubectl's QueryParamVerifier).
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NO_DEFINITIONS: Final = {
    "kind": "CustomResourceDefinitionList", "apiVersion": "apiextensions.k8s.io/v1",
    "metadata": {"resourceVersion": "1"}, "items": [],
}  # fmt: skip


class KubernetesApi:
    """The paths of the API on `server`. `access` decides which clients may write; without it none may, and writes are
    refused with `why_not_writable`.
    """

    index = INDEX

    def __init__(
        self, service: ApiService, server: AdminServer, access: WriteAccess | None = None,
        why_not_writable: str = WRITES_ARE_OFF,
    ) -> None:  # fmt: skip
        self._service = service
        self._server = server
        self._objects = Objects(service.sources)
        self._watches = Watches(self._objects)
        self._encoding = asyncio.Lock()
        self._access = access
        self._why_not = why_not_writable
        self._is_writable = access is not None
        self._writes = WriteQueue(service, self._objects)
        self._cas = IssuedCas(service, self._writes)

    def changed(self) -> None:
        """A source of objects has changed: watchers are told."""
        self._objects.changed()

    def end_watches(self) -> None:
        """All watches end; there will be no more."""
        self._watches.end()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """The response; None where the path is none of this API's. Raises ApiError."""
        path = request.path.rstrip("/")
        if path == ISSUED_CAS and request.method in ("GET", "HEAD", "POST"):
            return read_only(self._why_not) if self._access is None else await self._cas.answer(request, self._access)
        if request.method in METHODS and request.path.startswith(("/api/", "/apis/")):
            return read_only(self._why_not) if self._access is None else await self._write(request, path, self._access)
        if request.method not in ("GET", "HEAD"):
            return None
        if request.path == "/config":
            return await self._document(documents.everything, await self._objects.view())
        if path in ("/openapi/v2", "/openapi/v3") or path.startswith("/openapi/v3/"):
            return await self._openapi(request, path)
        if not path.startswith(("/api/", "/apis/")) and path not in ("/api", "/apis"):
            return None
        accept = request.headers.get("Accept", "")
        found = self._discovered(path, accept)
        if found is not None:
            return found
        if path == _DEFINITIONS:
            return json_response(200, _NO_DEFINITIONS)
        asked = resource(path)
        if asked is None:
            return None
        options = Options.of(request.query, asked.kind)
        shape = form(accept)
        if options.is_watch:
            with self._watches.slot():
                return await self._watch(request, await self._watches.begin(asked, options, shape))
        make = documents.get if asked.name else documents.listing
        return await self._document(make, asked, options, shape, await self._objects.view())

    async def _write(self, request: web.BaseRequest, path: str, access: WriteAccess) -> web.StreamResponse:
        """Raises ApiError."""
        await access.check(request)
        asked = resource(path)
        if asked is None:
            raise ApiError(404, "NotFound", f"nothing is served at {path}; /apis lists what is")
        if len(self._writes) >= MAX_WRITES:
            raise ApiError(429, "TooManyRequests", f"{MAX_WRITES} writes are waiting; try later", retry_after_s=1)
        body = await read_body(request)
        asked_for = await asyncio.to_thread(asked_write, request, asked, body)
        try:
            # Not this task's: one who goes away meanwhile has written all the same.
            write, written = await asyncio.shield(self._writes.put(asked_for))
        except WriteRefused as refused:
            causes = tuple(Cause(*cause) for cause in refused.causes)
            name = refused.name or asked.name
            raise ApiError(refused.code, refused.reason, str(refused), asked.kind, name, causes) from None
        if write.verb is Verb.DELETE:
            details = {"name": written.name, "group": asked.kind.group, "kind": asked.kind.plural, "uid": written.uid}
            return json_response(200, success(details))
        response = await self._shown(asked, write, written)
        for warning in written.warnings:
            response.headers.add("Warning", f"299 - {json.dumps(warning)}")  # ASCII in one line, whatever a field is
        return response

    async def _shown(self, asked: ApiResource, write: Write, written: Written) -> web.Response:
        status = 201 if written.is_new else 200
        if write.is_dry_run:
            made = json.loads(written.manifest)
            if write.resource_version:
                made["metadata"]["resourceVersion"] = write.resource_version
                made = {**made, **await asyncio.to_thread(_status, asked, await self._objects.view())}
            return json_response(status, {**made, "apiVersion": asked.api_version})
        one = replace(asked, name=written.name)
        return await self._document(
            documents.get, one, Options(), Form.PLAIN, await self._objects.view(), status=status
        )

    def _discovered(self, path: str, accept: str) -> web.Response | None:
        body: Mapping[str, Any] | None
        match path.strip("/").split("/"):
            case ["api" | "apis" as root] if (content_type := discovery.aggregated_type(accept)) is not None:
                return json_response(
                    200, discovery.aggregated(root == "api", content_type, self._is_writable), content_type
                )
            case ["api"]:
                body = discovery.legacy_versions(f"{self._server.host}:{self._server.port}")
            case ["apis"]:
                body = discovery.group_list()
            case ["apis", group]:
                body = discovery.one_group(group)
            case ["api", version]:
                body = discovery.resource_list("", version, self._is_writable)
            case ["apis", group, version]:
                body = discovery.resource_list(group, version, self._is_writable)
            case _:
                return None
        return None if body is None else json_response(200, body)

    async def _watch(self, request: web.BaseRequest, pieces: AsyncGenerator[bytes, None]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", **HEADERS})
        await response.prepare(request)
        checked_at = monotonic()
        async with aclosing(pieces):
            async for piece in pieces:
                if not piece or monotonic() - checked_at >= CHECK_S:
                    try:
                        await self._server.check_reader(request)
                    except ApiError:  # its token has ended
                        break
                    checked_at = monotonic()
                try:
                    async with asyncio.timeout(UNREAD_S):
                        await response.write(piece)
                except TimeoutError:
                    if request.transport is not None:
                        request.transport.abort()
                    return response
        await response.write_eof()
        return response

    async def _openapi(self, request: web.BaseRequest, path: str) -> web.Response:
        if path == "/openapi/v3":
            return json_response(200, openapi.paths_v3())
        try:
            schema = await self._service.schema()
        except OSError as error:
            raise ApiError(503, "ServiceUnavailable", str(error)) from None
        accept = request.headers.get("Accept", "")
        is_packed = path == "/openapi/v2" and any(each in accept for each in openapi_protobuf.ACCEPTED)

        def made() -> bytes:
            if path != "/openapi/v2":
                return line(openapi.document_v3(path.removeprefix("/openapi/v3/"), schema, self._is_writable))
            document = openapi.document_v2(schema, self._is_writable)
            return openapi_protobuf.encode_document(document) if is_packed else line(document)

        content_type = openapi_protobuf.CONTENT_TYPE if is_packed else "application/json"
        return web.Response(body=await self._in_thread(made), headers={"Content-Type": content_type})

    async def _document(self, make: Callable[..., bytes], *arguments: Any, status: int = 200) -> web.Response:
        body = await self._in_thread(lambda: make(*arguments))
        return web.Response(status=status, body=body, content_type="application/json")

    async def _in_thread(self, make: Callable[[], bytes]) -> bytes:
        async with self._encoding:
            if self._server.unsent > MAX_UNSENT:
                message = "too much of what was answered is not taken by those who asked"
                raise ApiError(503, "ServiceUnavailable", message, retry_after_s=5)
            return await asyncio.to_thread(make)


def _status(asked: ApiResource, view: View) -> dict[str, Any]:
    """The status of the object as it is: a dry run does not change it."""
    with suppress(ApiError):
        found = json.loads(documents.get(asked, Options(), Form.PLAIN, view))
        return {"status": found["status"]} if "status" in found else {}
    return {}
