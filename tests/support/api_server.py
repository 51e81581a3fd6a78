"""A small API server of Kubernetes in memory: list with pages, watch with history, writes with resource versions.

Faults are set by attributes: what is forbidden, a history that is forgotten, watches that are cut, a server that lies.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from egressproxy.config.served_kinds import CONFIGURED, ServedKind

LEASE = ServedKind("coordination.k8s.io", "Lease", ("v1",))
EVENT = ServedKind("events.k8s.io", "Event", ("v1",))


class ApiServer:
    """`objects` by (plural, namespace, name). `url` is there once it is started."""

    def __init__(self, kinds: tuple[ServedKind, ...] = (*CONFIGURED, LEASE, EVENT)) -> None:
        self.kinds = kinds
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.version = 100
        self.forbidden: set[str] = set()  # plurals
        self.named_only: set[str] = set()  # plurals that may be read by name alone
        self.invalid: set[str] = set()  # plurals for which requests are no good
        self.fields: dict[str, tuple[str, str]] = {}  # by plural: the list that its status has, and a field in it
        self.forgotten = 0  # watches from before this version get 410
        self.requests: list[tuple[str, str]] = []  # method, path with query
        self.is_stuck = False  # watches that begin are told nothing
        self.complains: int | None = None  # the code of what watches are told in place of events
        self.says: int | None = None  # a version that lists claim to be of
        self.lies = (
            ""  # how lists lie: `empty` (each once, since `lie` was called), `no-items`, `other-kind`, `expired`
        )
        self.latency_s = 0.0  # before an answer, and again between two pieces of it where it trickles
        self.trickles = False
        self.url = ""
        self._lied: set[str] = set()
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._changed = asyncio.Event()
        self._cut = 0
        self._runner: web.AppRunner | None = None
        self._port = 0

    # --- what tests do to it
    def put(self, value: dict[str, Any], *, is_status: bool = False) -> dict[str, Any]:
        """Create or replace an object; `generation` counts specs."""
        kind = self._kind_of(value)
        metadata = value["metadata"]
        key = (kind.plural, metadata.get("namespace", "default") if kind.is_namespaced else "", metadata["name"])
        before = self.objects.get(key)
        made = copy.deepcopy(value)
        if before is not None and not is_status and "status" in before:
            made.setdefault("status", before["status"])
        was = before["metadata"]["generation"] if before else 0
        is_same = before is not None and before.get("spec") == made.get("spec")
        self.version += 1
        made["metadata"] |= {
            "resourceVersion": str(self.version),
            "generation": was + (not is_same),
            "uid": before["metadata"]["uid"] if before else f"uid-{self.version}",
            **({"namespace": key[1]} if kind.is_namespaced else {}),
        }
        self.objects[key] = made
        self._note("MODIFIED" if before else "ADDED", made)
        return made

    def delete(self, plural: str, namespace: str, name: str) -> None:
        gone = copy.deepcopy(self.objects.pop((plural, namespace, name)))
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._note("DELETED", gone)

    def forget_history(self) -> None:
        """What was watched until now cannot be watched on from there (etcd was compacted)."""
        self.version += 1
        self.forgotten = self.version
        self._history.clear()
        self.cut()

    def cut(self) -> None:
        """End every watch in the midst of an event."""
        self._cut += 1
        self._changed.set()

    def lie(self, how: str) -> None:
        """Have lists lie from now on; "" for no more."""
        self.lies = how
        self._lied.clear()

    def asked(self, *words: str) -> list[str]:
        """The requests with all of these words."""
        return [path for method, path in self.requests if all(word in f"{method} {path}" for word in words)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ApiServer]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self) -> str:
        """The text of a kubeconfig for it."""
        return json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "token"}}],
        })  # fmt: skip

    # --- how it answers
    def _kind_of(self, value: dict[str, Any]) -> ServedKind:
        group, _, _ = value["apiVersion"].rpartition("/")
        return next(each for each in self.kinds if (each.group, each.kind) == (group, value["kind"]))

    def _note(self, what: str, value: dict[str, Any]) -> None:
        self._history.append((self.version, what, copy.deepcopy(value)))
        self._changed.set()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        parts = request.path.strip("/").split("/")
        if request.path == "/apis":
            groups: dict[str, dict[str, None]] = {}
            for each in self.kinds:
                groups.setdefault(each.group, {}).update(dict.fromkeys(each.versions))
            listed = [
                {"name": group, "versions": [{"version": each} for each in found]}
                for group, found in groups.items()
                if group
            ]
            return web.json_response({"kind": "APIGroupList", "groups": listed})
        group, version, *rest = ("", *parts[1:]) if parts[0] == "api" else parts[1:]
        if not rest:
            names = [
                {
                    "name": each.plural, "kind": each.kind, "namespaced": each.is_namespaced,
                    "verbs": ["list", "watch"],
                }
                for each in self.kinds
                if each.group == group and version in each.versions
            ]  # fmt: skip
            return web.json_response({"kind": "APIResourceList", "resources": names})
        namespace = rest[1] if rest[0] == "namespaces" and len(rest) > 2 else ""
        plural, *more = rest[2:] if namespace else rest
        kind = next((each for each in self.kinds if (each.group, each.plural) == (group, plural)), None)
        if kind is None or version not in kind.versions:
            return _error(404, "NotFound")
        is_one = bool(more) or "metadata.name" in request.query.get("fieldSelector", "")
        if plural in self.forbidden or (plural in self.named_only and not is_one):
            return _error(403, "Forbidden")
        if plural in self.invalid:
            return _error(400, "BadRequest")
        if request.method == "GET" and not more:
            watches = request.query.get("watch")
            return await (self._watch if watches else self._list)(request, kind, version, namespace)
        return await self._one(request, kind, version, namespace, more)

    def _matches(self, request: web.Request, kind: ServedKind, namespace: str, value: dict[str, Any]) -> bool:
        metadata = value["metadata"]
        group, _, _ = value["apiVersion"].rpartition("/")
        if (group, value["kind"]) != (kind.group, kind.kind) or (namespace and metadata.get("namespace") != namespace):
            return False
        field = request.query.get("fieldSelector", "")
        if field and metadata["name"] != field.removeprefix("metadata.name="):
            return False
        labels, selector = metadata.get("labels") or {}, request.query.get("labelSelector", "")
        if among := re.fullmatch(r"(\S+) in \((.*)\)", selector):
            return labels.get(among[1]) in among[2].split(",")
        asked = [part.partition("=") for part in filter(None, selector.split(","))]
        return all(labels.get(name) == wanted if equals else name in labels for name, equals, wanted in asked)

    async def _list(self, request: web.Request, kind: ServedKind, version: str, namespace: str) -> web.StreamResponse:
        if re.search(r"[=,].*[=,]", request.query.get("fieldSelector", "")):
            return _error(400, "BadRequest")
        found = [
            each
            for (plural, _, _), each in sorted(self.objects.items())
            if plural == kind.plural and self._matches(request, kind, namespace, each)
        ]
        start, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or 500)
        metadata = {"resourceVersion": str(self.version if self.says is None else self.says)}
        if start + limit < len(found):
            metadata["continue"] = str(start + limit)
        items = [_without_type(each) for each in found[start : start + limit]]
        answer = {"kind": f"{kind.kind}List", "metadata": metadata, "items": items}
        if self.lies == "empty" and request.path_qs not in self._lied:
            self._lied.add(request.path_qs)
            answer["items"] = []
        elif self.lies == "no-items":
            del answer["items"]
        elif self.lies == "other-kind":
            answer["kind"] = "WidgetList"
        elif self.lies == "expired" and (start or start + limit < len(found)):
            return _error(410, "Expired")
        if not self.latency_s:
            return web.json_response(answer)
        return await self._slowly(request, json.dumps(answer).encode())

    async def _slowly(self, request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.sleep(self.latency_s)
        answer = web.StreamResponse()
        await answer.prepare(request)
        size = -(-len(body) // 20) if self.trickles else len(body)
        for at in range(0, len(body), size):
            await answer.write(body[at : at + size])
            await asyncio.sleep(self.latency_s / 20)
        return answer

    async def _watch(self, request: web.Request, kind: ServedKind, version: str, namespace: str) -> web.StreamResponse:
        place = int(request.query["resourceVersion"])
        answer = web.StreamResponse()
        await answer.prepare(request)
        if place < self.forgotten:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return answer
        if self.complains is not None:
            status = {"kind": "Status", "code": self.complains, "reason": "InternalError", "message": "no"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return answer
        cut = self._cut
        if self.is_stuck:
            await asyncio.sleep(60)
        while True:
            self._changed.clear()
            for at, what, value in [each for each in self._history if each[0] > place]:
                place = at
                if self._matches(request, kind, namespace, value):
                    line = json.dumps({"type": what, "object": value}).encode() + b"\n"
                    for piece in (line[:20], line[20:]) if self.trickles else (line,):
                        await answer.write(piece)
                        await asyncio.sleep(self.latency_s)
            if self._cut != cut:
                await answer.write(b'{"type": "ADDED", "object": {"meta')
                assert request.transport is not None
                request.transport.close()
                return answer
            waiting = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait((waiting,), timeout=0.05)
            waiting.cancel()

    def _undeclared(self, plural: str, status: dict[str, Any]) -> str:
        """The field of a status that the definition of its kind lacks, as server-side apply names it."""
        section, reference = self.fields.get(plural, ("", ""))
        for name, entries in status.items() if section else ():
            if name != section:
                return f".status.{name}"
            for number, each in enumerate(entries):
                if wrong := each.keys() - {reference, "controllerName", "conditions"}:
                    return f".status.{name}[{number}].{min(wrong)}"
        return ""

    async def _one(
        self, request: web.Request, kind: ServedKind, version: str, namespace: str, more: list[str]
    ) -> web.Response:
        body = await request.json() if request.can_read_body else None
        if request.method == "POST":
            key = (kind.plural, namespace, body["metadata"]["name"])
            if key in self.objects:
                return _error(409, "AlreadyExists")
            return web.json_response(self.put(body), status=201)
        key = (kind.plural, namespace, more[0])
        is_applied = request.content_type == "application/apply-patch+yaml" and len(more) == 1
        if key not in self.objects and not is_applied:
            return _error(404, "NotFound")
        if is_applied and key in self.objects and request.query.get("force") != "true":
            return _error(409, "Conflict")  # somebody else's fields
        if is_applied:
            return web.json_response(self.put(body))
        held = self.objects[key]
        if request.method == "DELETE":
            self.delete(*key)
            return web.json_response({"kind": "Status", "status": "Success"})
        if request.content_type == "application/merge-patch+json":
            return web.json_response(self.put({**held, **body}))
        if request.method in ("PUT", "PATCH"):
            wanted = body["metadata"].get("resourceVersion")
            if wanted not in (None, held["metadata"]["resourceVersion"]):
                return _error(409, "Conflict")
            if more[1:] == ["status"]:
                if undeclared := self._undeclared(kind.plural, body["status"]):
                    return _error(500, "", f"{undeclared}: field not declared in schema")
                fresh = {**held, "status": {**(held.get("status") or {}), **body["status"]}}
                return web.json_response(self.put(fresh, is_status=True))
            return web.json_response(self.put(body))
        return web.json_response(held)


def _without_type(value: dict[str, Any]) -> dict[str, Any]:
    """As an API server lists the items of built-in kinds."""
    return {name: part for name, part in value.items() if name not in ("apiVersion", "kind")}


def _error(status: int, reason: str, message: str = "") -> web.Response:
    message = message or f"{reason.lower()} here"
    value = {"kind": "Status", "code": status, "reason": reason, "message": message}
    return web.json_response(value, status=status)
