"""Who may write, and what is asked for, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from egressproxy.admin.server import AdminServer, Surface
from egressproxy.admin.write_access import WriteAccess
from egressproxy.kubeapi import kubernetes_api
from egressproxy.kubeapi.write import http_request
from egressproxy.kubeapi.write.write import Verb, Write, WriteRefused, Written
from tests.admin.kit import Answer, State, admin_server, entries
from tests.support.waiting import WAIT_S

MAP = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"
PATH = "/api/v1/namespaces/default/configmaps"


class Writable(State):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Write] = []
        self.refusal: WriteRefused | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def write(self, writes: Sequence[Write]) -> Sequence[Written | WriteRefused | None]:
        (write,) = writes
        self.seen.append(write)
        await self.may_end.wait()
        if self.refusal is not None:
            return [self.refusal]
        self.source.put(entries(MAP) if write.verb is not Verb.DELETE else [])
        return [Written("a", "u", entries(MAP)[0].manifest, write.verb is Verb.CREATE, "file")]


@pytest.fixture
def state() -> Writable:
    return Writable()


@pytest.fixture
async def admin(state: Writable) -> AsyncIterator[AdminServer]:
    made = admin_server(state, "127.0.0.1", 0, access=WriteAccess(None))
    await made.start()
    yield made
    await made.stop()


async def send(admin: AdminServer, method: str, path: str, body: str = "{}", **fields: str) -> Answer:
    reader, writer = await asyncio.open_connection(admin.host, admin.port)
    named = {"Host": "localhost", "Content_Type": "application/json", "Content_Length": str(len(body)), **fields}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n{body}".encode())
    raw = await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()
    return Answer(raw)


async def test_a_write_is_answered_with_the_object_in_service(admin: AdminServer, state: Writable):
    answer = await send(admin, "POST", f"{PATH}?fieldManager=me&dryRun=", MAP)
    assert answer.status == 400  # dryRun is All or nothing
    answer = await send(admin, "POST", f"{PATH}?fieldManager=me", MAP)
    assert answer.status == 201
    assert answer.json()["metadata"]["name"] == "a"
    assert answer.json()["metadata"]["resourceVersion"]
    (write,) = state.seen
    assert (write.verb, write.kind, write.namespace, write.name, write.manager) == (
        Verb.CREATE, "ConfigMap", "default", "", "me",
    )  # fmt: skip
    assert write.body == MAP.encode()


async def test_a_deletion_is_answered_with_a_status(admin: AdminServer, state: Writable):
    state.source.put(entries(MAP))
    answer = await send(admin, "DELETE", f"{PATH}/a")
    assert (answer.status, answer.json()["status"], answer.json()["details"]["name"]) == (200, "Success", "a")
    assert state.seen[0].resource_version


async def test_a_refusal_is_a_status_with_causes(admin: AdminServer, state: Writable):
    state.refusal = WriteRefused(422, "Invalid", "no", [("FieldValueInvalid", "bad", "data.x")])
    answer = await send(admin, "PUT", f"{PATH}/a")
    assert answer.status == 422
    assert answer.json()["details"]["causes"] == [{"reason": "FieldValueInvalid", "message": "bad", "field": "data.x"}]


@pytest.mark.parametrize(
    ("content_type", "verb"),
    [
        ("application/json-patch+json", Verb.JSON_PATCH),
        ("application/merge-patch+json", Verb.MERGE_PATCH),
        ("application/strategic-merge-patch+json", Verb.STRATEGIC_PATCH),
        ("application/apply-patch+yaml", Verb.APPLY),
    ],
)
async def test_a_patch_is_what_its_content_type_says(
    admin: AdminServer, state: Writable, content_type: str, verb: Verb
):
    await send(admin, "PATCH", f"{PATH}/a?fieldManager=x", Content_Type=content_type)
    assert state.seen[0].verb is verb


async def test_a_client_that_names_no_manager_is_its_program(admin: AdminServer, state: Writable):
    await send(admin, "PUT", f"{PATH}/a", User_Agent="kubectl/v1.32.4 (linux/amd64)")
    assert state.seen[0].manager == "kubectl"


async def test_a_body_that_is_too_large_is_refused(admin: AdminServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_request, "MAX_BODY", 10)
    answer = await send(admin, "POST", PATH, "x" * 11)
    assert (answer.status, answer.json()["reason"]) == (413, "RequestEntityTooLarge")


async def test_writes_that_wait_are_bounded_in_number(
    admin: AdminServer, state: Writable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kubernetes_api, "MAX_WRITES", 1)
    state.may_end.clear()
    first = asyncio.create_task(send(admin, "POST", PATH, MAP))
    while not state.seen:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    assert (await send(admin, "POST", PATH, MAP)).status == 429
    state.may_end.set()
    assert (await first).status == 201


async def test_a_write_goes_on_when_its_client_leaves(admin: AdminServer, state: Writable):
    state.may_end.clear()
    _, writer = await asyncio.open_connection(admin.host, admin.port)
    head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(MAP)}\r\n\r\n{MAP}"
    writer.write(f"POST {PATH} HTTP/1.1\r\n{head}".encode())
    while not state.seen:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    writer.close()
    await writer.wait_closed()
    before = state.source.version
    state.may_end.set()
    while state.source.version == before:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_token_is_asked_for_and_read_anew(state: Writable, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("first-token-of-some-length\n")
    admin = admin_server(state, "127.0.0.1", 0, access=WriteAccess(file))
    await admin.start()
    try:
        assert (await send(admin, "POST", PATH, MAP)).status == 401
        assert (await send(admin, "POST", PATH, MAP, Authorization="Basic first-token-of-some-length")).status == 401
        assert (await send(admin, "POST", PATH, MAP, Authorization="Bearer first-token-of-some-length")).status == 201
        file.write_text("second-token-of-some-length")
        assert (await send(admin, "POST", PATH, MAP, Authorization="Bearer first-token-of-some-length")).status == 401
        file.write_text("short")
        assert (await send(admin, "POST", PATH, MAP, Authorization="Bearer short")).status == 403
        file.unlink()
        answer = await send(admin, "POST", PATH, MAP, Authorization="Bearer ")
        assert answer.status == 403
        assert answer.json()["message"] == "--api-token-file: the token file cannot be read: no such file or directory"
    finally:
        await admin.stop()


async def test_the_metrics_surface_is_never_written(state: Writable):
    admin = admin_server(state, "127.0.0.1", 0, Surface.METRICS, WriteAccess(None))
    await admin.start()
    try:
        assert (await send(admin, "POST", PATH, MAP)).status == 405
    finally:
        await admin.stop()


async def test_what_may_be_written_is_discovered(admin: AdminServer):
    resources = (await send(admin, "GET", "/api/v1")).json()["resources"]
    verbs = {each["name"]: each["verbs"] for each in resources}
    assert "patch" in verbs["secrets"]
    assert verbs["events"] == ["get", "list", "watch"]
