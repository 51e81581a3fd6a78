"""Watches over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from egressproxy.admin.server import AdminServer
from egressproxy.admin.write_access import WriteAccess
from egressproxy.kubeapi import kubernetes_api
from egressproxy.kubeapi.read import watches
from egressproxy.model.published_object import PublishedObject
from tests.admin.kit import Holder, State, admin_server, ask, entries, serving
from tests.support.waiting import WAIT_S

TEXT = """
{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: one, labels: {team: x}}, data: {x: "1"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: two}}
"""
A, B = entries(TEXT)
MAPS = "/api/v1/configmaps"


class Gateway:
    def __init__(self, admin: AdminServer, source: Holder) -> None:
        self.admin = admin
        self.source = source

    def put(self, *objects: PublishedObject) -> None:
        self.source.put(objects)
        self.admin.changed()

    async def version(self) -> str:
        return str((await ask(self.admin, MAPS)).json()["metadata"]["resourceVersion"])

    @asynccontextmanager
    async def watch(self, query: str, path: str = MAPS, fields: str = "") -> AsyncIterator[Watcher]:
        reader, writer = await asyncio.open_connection(self.admin.host, self.admin.port)
        writer.write(f"GET {path}?watch=true&{query} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)).decode()
        try:
            yield Watcher(head, reader)
        finally:
            writer.close()


class Watcher:
    """Reads a chunked answer, line by line."""

    def __init__(self, head: str, reader: asyncio.StreamReader) -> None:
        self.head = head
        self._reader = reader
        self._lines: list[bytes] = []

    async def event(self) -> dict[str, Any] | None:
        """The next one; None at the end."""
        while not self._lines:
            size = int(await asyncio.wait_for(self._reader.readline(), WAIT_S), 16)
            piece = await self._reader.readexactly(size + 2)
            if not size:
                return None
            self._lines += piece[:-2].splitlines()
        made: dict[str, Any] = json.loads(self._lines.pop(0))
        return made

    async def told(self) -> tuple[str, str]:
        event = await self.event()
        assert event is not None
        return event["type"], event["object"]["metadata"].get("name", "")


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    state = State()
    state.source = Holder([A])
    admin = admin_server(state, "127.0.0.1", 0)
    await admin.start()
    yield Gateway(admin, state.source)
    await admin.stop()


def changed(entry: PublishedObject, **labels: str) -> PublishedObject:
    manifest = json.loads(entry.manifest)
    manifest["metadata"]["labels"] = labels
    return dataclasses.replace(entry, manifest=json.dumps(manifest).encode())


async def test_changes_after_a_version_are_told_as_they_happen(gateway: Gateway):
    async with gateway.watch(f"resourceVersion={await gateway.version()}") as watcher:
        assert "200 OK" in watcher.head
        gateway.put(A, B)
        assert await watcher.told() == ("ADDED", "b")
        gateway.put(changed(A, team="y"), B)
        assert await watcher.told() == ("MODIFIED", "a")
        gateway.put(B)
        event = await watcher.event()
    assert event is not None
    assert (event["type"], event["object"]["metadata"]["name"]) == ("DELETED", "a")
    assert event["object"]["metadata"]["resourceVersion"] == str(
        int(await gateway.version()) - 1
    )  # namespace one, last


async def test_without_a_version_what_is_there_comes_first(gateway: Gateway):
    async with gateway.watch("") as watcher:
        assert await watcher.told() == ("ADDED", "a")
        gateway.put(A, B)
        assert await watcher.told() == ("ADDED", "b")


async def test_a_streamed_list_ends_with_a_bookmark_that_says_so(gateway: Gateway):
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with gateway.watch(query) as watcher:
        assert await watcher.told() == ("ADDED", "a")
        event = await watcher.event()
    assert event is not None
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert event["object"]["metadata"]["resourceVersion"] == await gateway.version()


async def test_a_watch_ends_after_its_time_with_a_bookmark(gateway: Gateway):
    query = f"resourceVersion={await gateway.version()}&allowWatchBookmarks=true&timeoutSeconds=1"
    async with gateway.watch(query) as watcher:
        assert (await watcher.told())[0] == "BOOKMARK"
        assert await watcher.event() is None


async def test_an_object_that_comes_into_the_selection_is_added_and_deleted_when_it_leaves(gateway: Gateway):
    async with gateway.watch(f"resourceVersion={await gateway.version()}&labelSelector=team%3Dy") as watcher:
        gateway.put(changed(A, team="y"))
        assert await watcher.told() == ("ADDED", "a")
        gateway.put(changed(A, team="z"))
        assert await watcher.told() == ("DELETED", "a")


async def test_another_namespace_or_kind_is_not_told(gateway: Gateway):
    version = await gateway.version()
    async with gateway.watch(f"resourceVersion={version}", "/api/v1/namespaces/two/configmaps") as watcher:
        gateway.put(changed(A, team="y"), B)
        assert await watcher.told() == ("ADDED", "b")


async def test_a_version_that_is_too_old_is_gone(gateway: Gateway):
    await gateway.version()
    answer = await ask(gateway.admin, f"{MAPS}?watch=true&resourceVersion=7")
    assert (answer.status, answer.json()["reason"]) == (410, "Expired")


async def test_a_watcher_that_falls_too_far_behind_is_told_to_list_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
):
    from egressproxy.kubeapi.read import objects

    version = await gateway.version()
    monkeypatch.setattr(objects, "MAX_CHANGES", 1)
    async with gateway.watch(f"resourceVersion={version}") as watcher:
        gateway.put(changed(A, team="y"), B)  # with its namespace three changes
        event = await watcher.event()
        assert event is not None
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        assert await watcher.event() is None


async def test_a_table_says_its_columns_once(gateway: Gateway):
    reader, writer = await asyncio.open_connection(gateway.admin.host, gateway.admin.port)
    accept = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"
    writer.write(f"GET {MAPS}?watch=1 HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    watcher = Watcher("", reader)
    first = await watcher.event()
    gateway.put(A, B)
    second = await watcher.event()
    writer.close()
    assert first is not None
    assert second is not None
    assert [column["name"] for column in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert second["object"]["columnDefinitions"] is None
    assert second["object"]["rows"][0]["cells"] == ["b", 0, "<unknown>"]


async def test_watches_are_bounded_in_number(gateway: Gateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watches, "MAX_WATCHES", 1)
    version = await gateway.version()
    async with gateway.watch(f"resourceVersion={version}"):
        answer = await ask(gateway.admin, f"{MAPS}?watch=true&resourceVersion={version}")
        assert (answer.status, answer.fields["retry-after"]) == (429, "5")
    # The place of a watcher that went away is free again.
    for _ in range(100):
        async with gateway.watch(f"resourceVersion={version}") as watcher:
            if "200 OK" in watcher.head:
                return
        await asyncio.sleep(0.02)
    raise AssertionError("the place is still taken")


async def test_watches_end_when_the_gateway_drains(gateway: Gateway):
    async with gateway.watch(f"resourceVersion={await gateway.version()}") as watcher:
        gateway.admin.end_watches()
        assert await watcher.event() is None


@pytest.mark.parametrize("is_quiet", [False, True])
async def test_a_watch_of_the_network_ends_with_the_token_of_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_quiet: bool
):
    monkeypatch.setattr(watches if is_quiet else kubernetes_api, "CHECK_S", 0.0)
    file = tmp_path / "token"
    file.write_text("0123456789abcdef")
    state = State()
    state.source = Holder([A])
    async with serving(admin_server(state, "0.0.0.0", access=WriteAccess(file))) as admin:
        gateway = Gateway(admin, state.source)
        async with gateway.watch("resourceVersion=0", fields="Authorization: Bearer 0123456789abcdef\r\n") as watcher:
            assert await watcher.told() == ("ADDED", "a")
            file.write_text("fedcba9876543210")
            if not is_quiet:
                gateway.put(A, B)
            assert await watcher.event() is None
