"""Connections to an admin server: who has a place, who has to go, and for how long one may say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from egressproxy.admin import connections
from egressproxy.admin.connections import AdminConnection, AdminConnections
from egressproxy.admin.server import AdminServer
from egressproxy.kubeapi import kubernetes_api
from tests.admin.kit import State, admin_server, ask, entries
from tests.support.waiting import WAIT_S

GET = b"GET /apis HTTP/1.1\r\nHost: localhost\r\n\r\n"
WATCH = b"GET /api/v1/secrets?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def admin() -> AsyncIterator[AdminServer]:
    made = admin_server(State(), "127.0.0.1", 0)
    await made.start()
    yield made
    await made.stop()


class Peer:
    """A client that keeps its connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, admin: AdminServer, limit: int = 65536) -> Peer:
        return cls(*await asyncio.open_connection(admin.host, admin.port, limit=limit))

    async def get(self, request: bytes = GET) -> int:
        self.writer.write(request)
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)
        if b"content-length: " in head.lower():
            await self.reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        return int(head.split(b" ")[1])

    async def ended(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(), WAIT_S) == b""
        except ConnectionError:
            return True


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_CONNECTIONS", 3), ("RESERVE", 2)):
        monkeypatch.setattr(connections, name, value)


@pytest.mark.usefixtures("small")
async def test_a_newcomer_takes_the_place_of_who_has_waited_longest(admin: AdminServer):
    peers = [await Peer.of(admin) for _ in range(3)]
    for peer in peers:
        assert await peer.get() == 200
    assert await peers[0].get() == 200  # so the second has waited longest
    newcomer = await Peer.of(admin)
    assert await newcomer.get() == 200
    assert await peers[1].ended()
    for peer in (peers[0], peers[2], newcomer):
        assert await peer.get() == 200


@pytest.mark.usefixtures("small")
async def test_where_all_are_being_answered_health_is_and_nothing_else(admin: AdminServer):
    watchers = [await Peer.of(admin) for _ in range(3)]
    for watcher in watchers:
        assert await watcher.get(WATCH) == 200
    for path in ("/livez", "/healthz", "/readyz"):
        answer = await ask(admin, path)
        assert (answer.status, answer.fields["connection"]) == (200, "close")
    refused = await ask(admin, "/apis")
    assert (refused.status, refused.fields["retry-after"]) == (503, "5")
    idle = [await Peer.of(admin) for _ in range(5)]  # the reserve has two places
    assert (await ask(admin, "/livez")).status == 200
    assert await idle[0].ended()
    admin._api._objects._sources[0].put(entries("{apiVersion: v1, kind: Secret, metadata: {name: new}}"))  # type: ignore[attr-defined]
    admin.changed()
    for watcher in watchers:
        while b'"new"' not in await asyncio.wait_for(watcher.reader.readline(), WAIT_S):
            pass


async def test_a_connection_that_asks_nothing_is_closed(admin: AdminServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 0.05)
    assert await (await Peer.of(admin)).ended()


@pytest.mark.parametrize("has_asked", [False, True])
async def test_a_head_that_does_not_end_is_closed_however_its_bytes_come(
    admin: AdminServer, monkeypatch: pytest.MonkeyPatch, has_asked: bool
):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    peer = await Peer.of(admin)
    if has_asked:
        assert await peer.get() == 200
    ended = asyncio.create_task(peer.ended())
    for byte in (GET[:-2] + b"X-Long: " + b"a" * 2000).decode():
        if ended.done():
            break
        peer.writer.write(byte.encode())
        await asyncio.sleep(0.02)
    assert await ended


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came to hold")


@pytest.fixture
async def large() -> AsyncIterator[AdminServer]:
    """More than the kernel takes for a reader that reads nothing."""
    state = State()
    each = "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: m{}}}, data: {{a: {}}}}}"
    state.source.put(entries("\n---\n".join(each.format(number, "x" * 75_000) for number in range(200))))
    made = admin_server(state, "127.0.0.1", 0)
    await made.start()
    yield made
    await made.stop()


async def test_an_answer_that_is_not_taken_ends(large: AdminServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "ANSWER_S", 0.3)
    peer = await Peer.of(large, limit=1024)
    peer.writer.write(GET.replace(b"/apis", b"/config"))
    await until(lambda: len(large._connections) == 1)
    await until(lambda: len(large._connections) == 0)


async def test_a_watcher_that_takes_nothing_is_watched_no_more(
    large: AdminServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(kubernetes_api, "UNREAD_S", 0.2)
    peer = await Peer.of(large, limit=1024)
    assert await peer.get(WATCH.replace(b"secrets", b"configmaps")) == 200
    await until(lambda: len(large._connections) == 0)
    assert caplog.text == ""


class Fake(AdminConnection):
    """One that is nowhere."""

    def __init__(self, peer: str, since: float | None) -> None:
        self.peer = peer
        self.is_reserve = False
        self.since = since

    @property
    def waits_since(self) -> float | None:
        return self.since


def test_one_peer_does_not_take_all_places():
    held = AdminConnections()
    one = [Fake("192.0.2.1", float(number)) for number in range(connections.MAX_OF_PEER)]
    held._open = dict.fromkeys(one)
    assert list(held.room_for(Fake("192.0.2.2", 99.0))) == []
    assert list(held.room_for(Fake("192.0.2.1", 99.0))) == [one[0]]
    local = [Fake("127.0.0.1", float(number)) for number in range(connections.MAX_OF_PEER)]
    held._open = dict.fromkeys(local)
    assert list(held.room_for(Fake("127.0.0.1", 99.0))) == []


def test_who_finds_everybody_busy_gets_a_place_of_the_reserve_as_long_as_there_is_one():
    held = AdminConnections()
    held._open = dict.fromkeys(Fake("127.0.0.1", None) for _ in range(connections.MAX_CONNECTIONS))
    reserve = [Fake("127.0.0.1", None) for _ in range(connections.RESERVE)]
    for each in reserve:
        assert list(held.room_for(each)) == []
        assert each.is_reserve
        held._open[each] = None
    late = Fake("127.0.0.1", 1.0)
    assert list(held.room_for(late)) == [late]
    reserve[3].since = 0.5
    assert list(held.room_for(late)) == [reserve[3]]


async def test_what_is_not_taken_is_bounded_over_all_readers(large: AdminServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kubernetes_api, "MAX_UNSENT", 1_000_000)
    peer = await Peer.of(large, limit=1024)
    peer.writer.write(GET.replace(b"/apis", b"/config"))
    await until(lambda: large._connections.unsent > 1_000_000)
    refused = await ask(large, "/api/v1/configmaps")
    assert (refused.status, refused.fields["retry-after"]) == (503, "5")
    assert (await ask(large, "/livez")).status == 200
    peer.writer.transport.abort()
    await until(lambda: large._connections.unsent == 0)
    assert (await ask(large, "/api/v1/configmaps")).status == 200
