"""Objects and sources for the tests of the admin API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from egressproxy.admin.server import AdminServer, Surface
from egressproxy.admin.write_access import WriteAccess
from egressproxy.config.reading.load import load_text
from egressproxy.config.resources.meta import Resource
from egressproxy.kubeapi.kubernetes_api import KubernetesApi
from egressproxy.kubeapi.read.objects import Objects, View
from egressproxy.model.published_object import PublishedObject


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
