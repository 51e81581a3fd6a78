"""Objects, sources and requests for the tests of the admin API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from egressproxy.admin.server import AdminServer, Surface
from egressproxy.admin.write_access import WriteAccess
from egressproxy.config.reading.load import load_text
from egressproxy.config.resources.meta import Resource
from egressproxy.kubeapi.kubernetes_api import KubernetesApi
from egressproxy.kubeapi.read.objects import Objects, ObjectSource, View
from egressproxy.model.published_object import PublishedObject
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.metrics import Metrics
from tests.support.waiting import WAIT_S


def entry(resource: Resource, status: Any = None, generation: int = 1) -> PublishedObject:
    """An object as the API is given it."""
    manifest = json.dumps(resource.to_manifest()).encode()
    return PublishedObject(*resource.key, manifest, generation, None if status is None else json.dumps(status).encode())


def entries(text: str) -> list[PublishedObject]:
    return [entry(resource) for resource in load_text(text).objects]


class Holder:
    """A source that has what it is told to."""

    def __init__(self, objects: Sequence[PublishedObject] = ()) -> None:
        self.version = 0
        self._objects = tuple(objects)

    def objects(self) -> Iterable[PublishedObject]:
        return self._objects

    def put(self, objects: Iterable[PublishedObject]) -> None:
        self._objects = tuple(objects)
        self.version += 1


async def view_of(objects: Iterable[PublishedObject], start: int = 100) -> View:
    return await Objects([Holder(tuple(objects))], start).view()


def admin_server(
    state: Any,
    host: str = "127.0.0.1",
    port: int = 0,
    surface: Surface = Surface.FULL,
    access: WriteAccess | None = None,
) -> AdminServer:
    """With the Kubernetes-shaped API; `state` is an AdminState, and an ApiService for tests."""

    async def api(server: AdminServer) -> KubernetesApi:
        return KubernetesApi(state, server, access)

    return AdminServer(state, host, port, surface, api, access)


SECRET = "{apiVersion: v1, kind: Secret, metadata: {name: key}, stringData: {token: CANARY}}"


class State:
    def __init__(self) -> None:
        self.metrics = Metrics("1.2.3")
        self.why = ""
        self.source = Holder(entries(SECRET))

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        return Exposition("1.2.3").render(self.metrics.gather(), accept=accept)

    def why_not_ready(self) -> str:
        return self.why

    @property
    def sources(self) -> Sequence[ObjectSource]:
        return (self.source,)

    async def schema(self) -> bytes:
        raise OSError("no schema today")


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    admin: AdminServer,
    path: str,
    method: str = "GET",
    host: str = "localhost",
    extra: str = "",
    body: str = "",
) -> Answer:
    reader, writer = await asyncio.open_connection(admin.host, admin.port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{extra}Connection: close\r\n\r\n{body}".encode())
    raw = await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()
    return Answer(raw)


@asynccontextmanager
async def serving(made: AdminServer) -> AsyncIterator[AdminServer]:
    """The server, started; one on all addresses is asked on loopback."""
    await made.start()
    made.host = "127.0.0.1"
    yield made
    await made.stop()
