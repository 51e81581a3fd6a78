"""List and watch: what the store holds, whatever the API server and the network do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from egressproxy.config.reading.deep_json import is_too_deep
from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubernetes import api_client
from egressproxy.kubernetes import reflector as reflecting
from egressproxy.kubernetes.api_client import ApiClient
from egressproxy.kubernetes.object_store import ObjectStore, Scope, stored
from egressproxy.kubernetes.reflector import Reflector
from tests.kubernetes.kit import client_of
from tests.support.api_server import ApiServer
from tests.support.waiting import until

ROUTES = next(kind for kind in CONFIGURED if kind.kind == "HTTPRoute")


def route(name: str, hostname: str = "a.example") -> dict[str, Any]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"hostnames": [hostname]},
    }


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflecting, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(reflecting, "FORBIDDEN_PAUSE_S", 0.01)
    monkeypatch.setattr(reflecting, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(reflecting, "CONFIRM_S", 0.01, raising=False)


class Watched:
    def __init__(self, server: ApiServer, client: ApiClient, place: str = "") -> None:
        self.server = server
        self.store = ObjectStore()
        self._changed = asyncio.Event()
        self.reflector = Reflector(client, self.store, Scope(ROUTES), "v1", place, self._changed.set)

    def hostnames(self) -> dict[str, str]:
        return {key[3]: json.loads(each.manifest)["spec"]["hostnames"][0] for key, each in self.store.objects()}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def watched(
    folder: Path, *names: str, place: str = "", server: ApiServer | None = None, lie: str = ""
) -> AsyncIterator[Watched]:
    server = server or ApiServer()
    server.lie(lie)
    for name in names:
        server.put(route(name))
    async with server.running():
        client = await client_of(folder, server)
        made = Watched(server, client, place)
        task = asyncio.create_task(made.reflector.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()


async def test_objects_are_listed_in_pages_and_then_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(reflecting, "PAGE", 2)
    async with watched(tmp_path, "r1", "r2", "r3") as it:
        await it.until(lambda: it.reflector.is_synced)
        assert set(it.hostnames()) == {"r1", "r2", "r3"}
        assert [path.count("continue") for path in it.server.asked("httproutes", "limit=2")] == [0, 1]
        it.server.put(route("r2", "b.example"))
        it.server.put(route("r4"))
        it.server.delete("httproutes", "team", "r1")
        await it.until(lambda: "r1" not in it.hostnames())
        assert it.hostnames() == {"r2": "b.example", "r3": "a.example", "r4": "a.example"}


async def test_a_watch_that_is_cut_in_an_event_goes_on_where_it_was(tmp_path):
    async with watched(tmp_path, "r1") as it:
        await it.until(lambda: it.reflector.is_synced)
        for number in range(5):
            it.server.put(route(f"n{number}"))
            it.server.cut()
            await it.until(lambda number=number: f"n{number}" in it.hostnames())
        assert len(it.server.asked("httproutes", "limit=")) == 1  # it was never listed again


async def test_a_place_that_the_server_has_forgotten_is_listed_again(tmp_path):
    async with watched(tmp_path, "r1", "r2") as it:
        await it.until(lambda: it.reflector.is_synced)
        it.server.delete("httproutes", "team", "r1")
        it.server.forget_history()
        await it.until(lambda: set(it.hostnames()) == {"r2"})


async def test_an_older_list_never_replaces_what_is_held(tmp_path):
    async with watched(tmp_path, "deny") as it:
        await it.until(lambda: it.reflector.is_synced)
        it.server.put(route("deny", "denied.example"))
        await it.until(lambda: it.hostnames() == {"deny": "denied.example"})
        del it.server.objects["httproutes", "team", "deny"]  # a replica that lags behind
        it.server.says = 50
        it.server.forget_history()
        await it.until(lambda: "was in force already" in it.reflector.problem)
        assert it.hostnames() == {"deny": "denied.example"}
        it.server.says = None
        await it.until(lambda: not it.hostnames())
        assert it.reflector.problem == ""


@pytest.mark.parametrize("lie", ["empty", "no-items", "other-kind"])
async def test_a_list_that_lies_takes_nothing_away(tmp_path, lie):
    """An empty one is believed when it says so twice."""
    async with watched(tmp_path, "deny") as it:
        await it.until(lambda: it.reflector.is_synced)
        it.server.lie(lie)
        it.server.forget_history()
        if lie == "empty":
            await until(lambda: len(it.server.asked("httproutes", "limit=")) == 3)
        else:
            await it.until(lambda: "is no list" in it.reflector.problem)
        assert set(it.hostnames()) == {"deny"}
        it.server.lie("")
        it.server.delete("httproutes", "team", "deny")
        it.server.forget_history()
        await it.until(lambda: not it.hostnames())
        assert not it.reflector.problem


async def test_an_empty_list_after_a_restart_is_asked_for_again(tmp_path):
    async with watched(tmp_path, "deny", place="50", lie="empty") as it:
        await it.until(lambda: it.reflector.is_synced)
        assert set(it.hostnames()) == {"deny"}


async def test_an_object_of_another_kind_is_none_of_the_scope(tmp_path):
    async with watched(tmp_path, "r1") as it:
        await it.until(lambda: it.reflector.is_synced)
        with pytest.raises(ValueError, match="another kind"):
            stored({"kind": "Secret", "metadata": {"name": "s"}}, Scope(ROUTES), "v1")


async def test_pages_that_expire_are_asked_for_from_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(reflecting, "PAGE", 2)
    async with watched(tmp_path, "r1", "r2", "r3", lie="expired") as it:
        await until(lambda: len(it.server.asked("httproutes", "limit=")) > 2)
        assert not it.hostnames()
        it.server.lie("")
        await it.until(lambda: set(it.hostnames()) == {"r1", "r2", "r3"})


async def test_a_server_that_is_slow_is_waited_for(tmp_path):
    async with watched(tmp_path, "r1") as it:
        await it.until(lambda: it.reflector.is_synced)
        it.server.latency_s, it.server.trickles = 0.1, True
        it.server.forget_history()
        it.server.put(route("r2"))
        await it.until(lambda: "r2" in it.hostnames())
        it.server.put(route("r3"))
        await it.until(lambda: "r3" in it.hostnames())
        assert not it.reflector.problem


async def test_what_was_in_force_before_a_restart_counts(tmp_path):
    async with watched(tmp_path, "r1", place="5000") as it:
        await it.until(lambda: "was in force already" in it.reflector.problem)
        assert not it.reflector.is_refused


async def test_a_missing_right_is_told_by_name_and_tried_again(tmp_path):
    async with watched(tmp_path, "r1") as it:
        it.server.forbidden.add("httproutes")
        it.server.cut()
        it.server.forgotten = 10**6
        await it.until(lambda: it.reflector.is_refused)
        assert it.reflector.problem.startswith(
            "cannot list httproutes.gateway.networking.k8s.io: add to the ClusterRole"
        )
        assert it.reflector.is_refused
        it.server.forbidden.clear()
        it.server.forgotten = 0
        await it.until(lambda: not it.reflector.problem)
        assert set(it.hostnames()) == {"r1"}


@pytest.mark.parametrize(
    "line", [b"[]", b'{"type": "ADDED"}', b'{"type": "NEWS", "object": {"metadata": {}}}', b"\xff"]
)
async def test_an_event_that_makes_no_sense_has_all_listed_again(tmp_path, monkeypatch, line):
    real, said = ApiClient.lines, []

    async def lines(self: ApiClient, path: str, params: Any, silent_s: float, accept: str) -> AsyncIterator[bytes]:
        if not said:
            said.append(line)
            yield line
        async for each in real(self, path, params, silent_s, accept):
            yield each

    monkeypatch.setattr(ApiClient, "lines", lines)
    async with watched(tmp_path, "r1") as it:
        await it.until(lambda: len(it.server.asked("httproutes", "limit=")) == 2)
        assert set(it.hostnames()) == {"r1"}


async def test_a_server_that_was_away_is_watched_again(tmp_path):
    async with watched(tmp_path, "r1") as it:
        await it.until(lambda: it.reflector.is_synced)
        await it.server.stop()
        await it.until(lambda: bool(it.reflector.problem))
        assert set(it.hostnames()) == {"r1"}
        it.server.put(route("r2"))
        await it.server.start()
        await it.until(lambda: set(it.hostnames()) == {"r1", "r2"})


async def test_a_server_that_was_away_is_no_problem_once_it_is_watched_again(tmp_path):
    """Nothing has to happen there before."""
    async with watched(tmp_path, "r1") as it:
        await it.until(lambda: it.reflector.is_synced)
        await it.server.stop()
        await it.until(lambda: "cannot be reached" in it.reflector.problem)
        await it.server.start()
        await it.until(lambda: not it.reflector.problem)


@pytest.mark.parametrize("code", [500, 400, 0])
async def test_a_watch_that_ends_with_an_error_is_listed_again(tmp_path, code):
    async with watched(tmp_path, "r1") as it:
        it.server.complains = code
        await it.until(lambda: it.reflector.is_synced)
        it.server.put(route("r2"))
        await it.until(lambda: "r2" in it.hostnames())
        it.server.complains = None
        await it.until(lambda: not it.reflector.problem)


@pytest.mark.parametrize("levels", [900, 5000])
async def test_an_object_that_is_nested_too_deeply_takes_no_other_with_it(tmp_path, monkeypatch, levels):
    """The fake cannot write it, either: its text stands for it."""
    deep = ('{"a":' * levels + "1" + "}" * levels).encode()
    real = api_client.deep_json.loads
    monkeypatch.setattr(api_client.deep_json, "loads", lambda data: real(data.replace(b'"DEEP"', deep)))
    async with watched(tmp_path, "r1") as it:
        it.server.put(route("first", "DEEP"))
        await it.until(lambda: it.reflector.is_synced)
        it.server.put(route("second", "DEEP"))
        it.server.put(route("r2"))
        await it.until(lambda: "r2" in {key[3] for key, _ in it.store.objects()})
        assert not it.reflector.problem
        assert {key[3] for key, each in it.store.objects() if is_too_deep(each.manifest)} == {"first", "second"}


async def test_a_watch_of_which_nothing_comes_is_begun_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reflecting, "SILENT_S", 0.3)
    async with watched(tmp_path, "r1") as it:
        it.server.is_stuck = True
        await it.until(lambda: it.reflector.is_synced)
        await until(lambda: bool(it.server.asked("httproutes", "watch=1")))
        it.server.is_stuck = False
        it.server.put(route("r2"))
        await it.until(lambda: "r2" in it.hostnames())
        assert not it.reflector.problem
        assert len(it.server.asked("httproutes", "limit=")) == 1


def listing(*items: Any, more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7", **({"continue": more} if more else {})}, "items": list(items)}


async def test_objects_that_are_too_many_for_one_answer_come_in_smaller_pages(tmp_path, monkeypatch):
    """Somebody who writes large routes holds up nobody's."""
    monkeypatch.setattr(api_client, "MAX_ANSWER", 20_000)
    server = ApiServer()
    for number in range(12):
        server.put({**route(f"r{number}"), "spec": {"hostnames": ["a.example"], "x": "y" * 4000}})
    async with watched(tmp_path, server=server) as it:
        await it.until(lambda: len(it.hostnames()) == 12)
        assert it.reflector.problem == ""


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        (lambda number: listing(more="same"), "pages without an end"),
        (lambda number: listing(route(f"r{number}"), route(f"s{number}"), more=str(number)), "more than 5 objects"),
    ],
)
async def test_pages_without_an_end_are_given_up(tmp_path, monkeypatch, pages, why):
    monkeypatch.setattr(reflecting, "MOST_OBJECTS", 5)
    count = iter(range(10_000))

    async def get(_self: ApiClient, _path: str, *_more: Any) -> dict[str, Any]:
        return pages(next(count))

    monkeypatch.setattr(ApiClient, "get", get)
    async with watched(tmp_path) as it:
        await it.until(lambda: why in it.reflector.problem)


@pytest.mark.parametrize("namespace", ["elsewhere", None, 5])
async def test_an_object_of_another_namespace_than_was_asked_for_is_not_taken(namespace):
    value = route("r")
    value["metadata"]["namespace"] = namespace
    with pytest.raises(ValueError, match="is of another namespace"):
        stored(value, Scope(ROUTES, "team"), "v1")


async def test_an_object_of_another_name_than_was_asked_for_is_not_taken():
    with pytest.raises(ValueError, match="has another name"):
        stored(route("r"), Scope(ROUTES, "team", "other"), "v1")


async def test_a_watch_that_the_server_does_not_end_is_begun_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reflecting, "WATCH_S", (0.0, 0.0))
    monkeypatch.setattr(reflecting, "LEEWAY_S", 0.05)
    server = ApiServer()
    async with watched(tmp_path, server=server) as it:
        await until(lambda: len(server.asked("httproutes", "watch=1")) > 2)
        assert it.reflector.problem == ""
