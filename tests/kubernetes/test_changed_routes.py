"""Changed HTTPRoutes of a cluster on their way into service, and what is older and does not undo them."""

from __future__ import annotations

import asyncio
import json
import socket
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from egressproxy import reloads
from egressproxy.app import App
from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from egressproxy.kubernetes import cluster as cluster_module
from egressproxy.kubernetes import messages
from egressproxy.kubernetes import process as process_module
from egressproxy.kubernetes.cluster import Cluster
from egressproxy.kubernetes.object_store import StoredObject
from egressproxy.kubernetes.process import _SourceProcess
from egressproxy.kubernetes.saved_objects import saved
from egressproxy.model.published_object import Key
from egressproxy.processes.loader.process import LoadingFailed
from egressproxy.processes.workers.channel import FrameChannel
from egressproxy.processes.workers.worker import InProcess
from egressproxy.reloads import ConfigManager
from egressproxy.run_options import ClusterOptions, FilterListener, RunOptions
from egressproxy.telemetry.events import Events
from egressproxy.telemetry.metrics import Metrics
from tests.support import manifests as m
from tests.support.manifests import Manifest
from tests.support.net import free_port
from tests.support.waiting import until

ROUTE: Key = ("gateway.networking.k8s.io", "HTTPRoute", "agents", "r")


def stored(text: str) -> StoredObject:
    return StoredObject("1", text.encode(), b"")


class Source:
    """An API server that does not answer. One HTTPRoute has changed, and a policy with it, of which nobody knows."""

    client = None

    def __init__(self) -> None:
        self.changed_routes = {ROUTE}
        self.resource_version = "7"
        self.is_back = asyncio.Event()

    def want(self, _keys: object, *, and_others: bool) -> None: ...
    def why_not_ready(self) -> str:
        return "" if self.is_back.is_set() else "it is away"

    async def wait(self) -> None:
        await self.is_back.wait()

    def with_changed_routes(self, given: Any) -> list[tuple[Key, StoredObject]]:
        return [*(each for each in given if each[0] != ROUTE), (ROUTE, stored("new"))]

    def take_routes(self, _wanted: object) -> bytes:
        return b"part"

    def resource_versions(self) -> dict[str, str]:
        return {"httproutes.gateway.networking.k8s.io": self.resource_version, "egresspolicies.egressproxy.io": "8"}


async def test_what_was_given_last_has_the_routes_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_module, "STALE_S", 0.05)
    ours, theirs = socket.socketpair()
    told: list[Any] = []
    channel = FrameChannel(ours, lambda frame, _: told.append(messages.decode(frame)), lambda: None)
    process = _SourceProcess(theirs)
    process._source = source = Source()
    process._begun = messages.Begin(ClusterOptions(), tmp_path, "info", "text")
    process._given = [(ROUTE, stored("old")), (("", "ConfigMap", "agents", "c"), stored("kept"))]
    process._versions = {"egresspolicies.egressproxy.io": "5"}
    process._give_routes(process._source, messages.Ask(1, (), is_of_routes=True))
    process._on_frame(messages.encode(messages.RoutesInService()), [])
    await until(lambda: (tmp_path / ".cluster-objects").exists())
    kept = saved(tmp_path, None)
    assert kept is not None
    assert zlib.decompress(kept.packed) == b"kept\nnew"
    assert kept.resource_versions == {"httproutes.gateway.networking.k8s.io": "7", "egresspolicies.egressproxy.io": "5"}
    process._given = [(ROUTE, stored("old"))]
    source.resource_version = "9"
    process._on_frame(messages.encode(messages.Ask(2, ())), [])
    await until(lambda: len(told) == 2)
    assert told == [messages.Objects(1, b"part", ("agents/r",)), messages.Objects(2, told[1].packed, is_late=True)]
    assert zlib.decompress(told[1].packed) == b"new"
    assert process._versions["httproutes.gateway.networking.k8s.io"] == "9"
    source.is_back.set()  # what else has changed was told while nobody could have it
    await until(lambda: len(told) == 3)
    assert told[2] == messages.Changed()
    channel.close()
    process._channel.close()


async def test_objects_that_are_older_than_routes_in_service_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_module, "PATIENCE_S", 0.05)
    metrics = Metrics("")
    options = RunOptions(cluster=ClusterOptions())
    it = Cluster(options, metrics, Events(metrics, lambda: None, 0.0))
    answers: list[messages.Objects] = []

    def send(message: Any) -> None:
        if isinstance(message, messages.Ask) and answers:
            number, packed, *rest = (message.number, answers[0].packed, answers[0].routes, answers.pop(0).is_late)
            asyncio.get_running_loop().call_soon(
                it._on_frame, messages.encode(messages.Objects(number, packed, *rest)), []
            )

    monkeypatch.setattr(it, "_send", send)
    answers.append(messages.Objects(0, b"first"))
    assert await it.objects(()) == b"first"
    assert await it.objects(()) == b"first"  # nobody has answered
    answers.append(messages.Objects(0, b"second"))
    assert await it.objects(()) == b"second"
    it.endpoints["team/web", 80] = ()
    answers.append(messages.Objects(0, b"part", ("agents/r",)))
    assert await it.changed_routes(()) == (b"part", ("agents/r",))
    with pytest.raises(LoadingFailed, match="routes in service are newer"):
        await it.objects(())
    answers.append(messages.Objects(0, b"late", is_late=True))
    assert (await it.objects(()), it.endpoints) == (b"late", {("team/web", 80): ()})
    assert await it.objects(()) == b"late"
    assert await it.changed_routes(()) is None


async def test_changed_routes_are_not_asked_for_while_something_else_is_behind(monkeypatch: pytest.MonkeyPatch):
    """The question would take the place of the one that is still to be answered."""
    monkeypatch.setattr(cluster_module, "PATIENCE_S", 0.05)
    metrics = Metrics("")
    it = Cluster(RunOptions(cluster=ClusterOptions()), metrics, Events(metrics, lambda: None, 0.0))
    asked: list[messages.Ask] = []
    monkeypatch.setattr(it, "_send", asked.append)

    async def answered(is_late: bool = False) -> None:
        task = asyncio.create_task(it.objects(()))
        await until(lambda: len(asked) == 1)
        it._on_frame(messages.encode(messages.Objects(asked.pop().number, b"", is_late=is_late)), [])
        await task

    await answered()
    await it.objects(())  # nobody has answered
    asked.clear()
    for _ in range(2):
        assert await it.changed_routes(()) is None
        assert asked == []
        await answered(is_late=True)
    await answered()
    assert await it.changed_routes(()) is None
    assert len(asked) == 1


class Objects:
    """A cluster in memory. `asked` are the keys of each question about changed routes."""

    def __init__(self, *objects: Manifest) -> None:
        self.all = list(objects)
        self.changed: tuple[str, ...] = ()
        self.endpoints: dict[Any, Any] = {}
        self.asked: list[frozenset[Key]] = []
        self.are_saved = 0
        self.asked_whole = 0

    @property
    def latest(self) -> bytes:
        return packed(self.all)

    async def objects(self, _wanted: frozenset[Key]) -> bytes:
        self.asked_whole += 1
        self.changed = ()
        return packed(self.all)

    async def changed_routes(self, wanted: frozenset[Key]) -> tuple[bytes, tuple[str, ...]] | None:
        self.asked.append(wanted)
        names = {("", each[1], each[3]) for each in wanted}
        return packed(
            each
            for each in self.all
            if (each["kind"] != "HTTPRoute" or f"agents/{each['metadata']['name']}" in self.changed)
            and (each["kind"] != "Service" or ("", "Service", each["metadata"]["name"]) in names)
        ), self.changed

    def routes_in_service(self) -> None:
        self.are_saved += 1

    def catalogue(self, packed: bytes) -> None: ...
    def in_service(self, shown: bytes, rejection: str, reason: str) -> None: ...


def packed(objects: Any) -> bytes:
    return zlib.compress(b"\n".join(json.dumps(each).encode() for each in objects))


def http_route(name: str, service: str = "web") -> Manifest:
    return m.http_route(name, {"backendRefs": [{"name": service, "port": 80}]}, hostnames=[f"{name}.test"])


@pytest.fixture
async def live(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConfigManager]:
    monkeypatch.setattr(reloads, "LONG_S", 0.0)
    app = App(RunOptions(cluster=ClusterOptions(), admin=None, access_log="off"))
    made = app._live
    service = m.manifest("v1", "Service", "web", "agents", spec={"ports": [{"port": 80}]})
    made._cluster = Objects(m.gateway(m.http_listener(free_port())), m.policy(["*.test"]), service, http_route("a"))
    await app._data_plane.start()
    tasks = [asyncio.create_task(each) for each in (made.reload_when_asked(), made.update_when_asked())]
    await made.take()
    yield made
    for task in tasks:
        task.cancel()
    app._loader.close()
    await app._data_plane.drain(0)
    await app._data_plane.stop()


def served(live: ConfigManager) -> set[tuple[str, str]]:
    """The routes, each with the backends of its rules."""
    assert isinstance(live._data_plane, InProcess)
    snapshot = live._data_plane.worker.gateway.snapshot
    assert snapshot is not None
    (port,) = snapshot.ports.values()
    every = [route for _, route in port.first.http.every() if route.kind == "HTTPRoute"]
    return {
        (route.name, each.cluster.name if each.cluster else each.error) for route in every for each in route.backends
    }


async def test_changed_routes_are_in_force_and_a_whole_configuration_follows(
    live: ConfigManager, monkeypatch: pytest.MonkeyPatch
):
    cluster = live._cluster
    assert isinstance(cluster, Objects)
    assert served(live) == {("agents/a", "agents/web")}
    cluster.all += [http_route("b"), http_route("c", "missing")]
    cluster.changed = ("agents/b", "agents/c")
    monkeypatch.setattr(live, "_took_s", 0.1)
    asked_whole = cluster.asked_whole
    live.ask_for_routes()
    await until(lambda: cluster.are_saved == 1)
    assert {name for name, _ in served(live)} == {"agents/a", "agents/b", "agents/c"}
    assert ("agents/b", "agents/web") in served(live)
    assert (live._generation, cluster.asked_whole) == (1, asked_whole)
    assert cluster.asked[0] == frozenset()
    assert ("", "Service", "agents", "web") in cluster.asked[-1]
    await until(lambda: live._generation == 2)
    assert {name for name, _ in served(live)} == {"agents/a", "agents/b", "agents/c"}
    cluster.all = [each for each in cluster.all if each["metadata"]["name"] != "a"]
    cluster.changed = ("agents/a",)
    live.ask_for_routes()
    await until(lambda: cluster.are_saved == 2)
    assert {name for name, _ in served(live)} == {"agents/b", "agents/c"}


async def test_a_change_of_something_else_takes_a_whole_configuration(live: ConfigManager):
    cluster = live._cluster
    assert isinstance(cluster, Objects)
    cluster.all += [m.policy(["*.test"], name="more", mode="Report"), http_route("b")]
    cluster.changed = ("agents/b",)
    live.ask_for_routes()
    await until(lambda: live._generation == 2)
    assert cluster.are_saved == 0
    assert {name for name, _ in served(live)} == {"agents/a", "agents/b"}


@pytest.mark.parametrize("why", ["", "quick", "rejected", "guarded", "filters"])
async def test_where_a_whole_configuration_has_to_be_looked_at_it_is_read(why: str, monkeypatch: pytest.MonkeyPatch):
    filters = FilterListener("127.0.0.1", free_port()) if why == "filters" else None
    options = RunOptions(
        cluster=ClusterOptions(), admin=None, access_log="off", guarded=why == "guarded", filters=filters
    )
    live = App(options)._live
    live._cluster = cluster = Objects()
    live._generation, live._is_rejected, live._took_s = 1, why == "rejected", 0.1 if why == "quick" else 5.0
    assert await live._update_routes() is (why == "")
    assert len(cluster.asked) == (why == "")


async def test_a_defect_in_an_update_leads_to_a_whole_configuration(
    live: ConfigManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def broken(_changes: object) -> bool:
        raise KeyError("defect")

    monkeypatch.setattr(live._data_plane, "update_routes", broken)
    cluster = live._cluster
    assert isinstance(cluster, Objects)
    cluster.all.append(http_route("b"))
    cluster.changed = ("agents/b",)
    live.ask_for_routes()
    await until(lambda: live._generation == 2)
    assert "internal error in an update: the configuration is read again" in caplog.messages


async def test_changes_of_policies_are_proposed_without_taking_objects_from_the_next_load(live: ConfigManager):
    cluster = live._cluster
    assert isinstance(cluster, Objects)
    cluster.all[0] = m.gateway(m.forward_listener(3128))
    cluster.changed, asked_whole = ("agents/a",), cluster.asked_whole
    denied = RecentDecision(
        "CONNECT", "https", "new.example:443", "-", "agents/gw", "forward", "-", "-", "destination_not_allowed"
    )
    asked = json.dumps([("agents/default", denied._asdict()), ("agents/gone", denied._asdict())]).encode()
    change, none = await live.proposals(asked)
    assert change is not None
    assert (change["file"], "new.example" in change["diff"], none) == (None, True, None)
    assert (cluster.asked_whole, cluster.changed) == (asked_whole, ("agents/a",))
