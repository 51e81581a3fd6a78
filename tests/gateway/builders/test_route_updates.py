"""HTTPRoutes that change in what is in service, without the rest being built again."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

import egressproxy.gateway.server.gateway_server as module
from egressproxy.filters.catalog import Catalog
from egressproxy.gateway.builders.route_updates import updating
from egressproxy.gateway.builders.snapshot_builder import SnapshotBuilder
from egressproxy.gateway.route import Route
from egressproxy.gateway.server.gateway_server import GatewayServer
from egressproxy.gateway.snapshot import Snapshot, replace_endpoints
from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.authority import Authority
from egressproxy.model.fields import Fields
from egressproxy.model.work import BlockingWork, at_once
from egressproxy.net.cooperative import in_turns
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics
from tests.gateway.backends.test_retries import pods
from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation, compiled_spec
from tests.support.manifests import Manifest

HOSTS = ("a.test", "b.test", "*.test", "*.a.test", "")
PATHS = ("/", "/x", "/x/y")
ASKED = [(host, path) for host in ("a.test", "b.test", "c.test", "d.a.test", "other") for path in PATHS]
OWNERS = [
    m.gateway(m.forward_listener(3128), m.http_listener(8080)),
    m.policy(["a.test", "*.test"], destinations={"allow": [{"hostnames": ["a.test"], "ports": [80, 443]}]}),
    m.backend("one", "one.test", 443, tls=True), m.backend("two", "two.test", 80), m.dynamic(),
    m.policy(name="of-route", target="r3", traffic={"timeouts": {"request": "7s"}}) | {"spec": {
        "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r3"}],
        "traffic": {"timeouts": {"request": "7s"}},
    }},
]  # fmt: skip


def route(number: int, chosen: random.Random) -> Manifest:
    def rule() -> Manifest:
        made = m.prefix_rule(chosen.choice(PATHS), chosen.choice(("one", "two", "any", "missing")))
        if chosen.random() < 0.3:
            made["matches"][0]["headers"] = [{"name": "x-team", "value": chosen.choice("ab")}]
        if chosen.random() < 0.3:
            header = {"name": "x-set", "value": str(chosen.randrange(3))}
            made["filters"] = [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [header]}}]
        return made

    hostnames = [each for each in chosen.sample(HOSTS, chosen.randrange(1, 3)) if each]
    made = m.http_route(f"r{number}", *(rule() for _ in range(chosen.randrange(1, 3))), hostnames=hostnames)
    made["spec"]["parentRefs"] = [{"name": "gw", "sectionName": name} for name in chosen.sample(("http", "forward"), 1)]
    made["metadata"]["creationTimestamp"] = f"2026-01-0{chosen.randrange(1, 5)}T00:00:00Z"
    return made


def described(found: Route) -> tuple[Any, ...]:
    targets = [(each.weight, each.cluster and each.cluster.spec, each.error) for each in found.backends]
    filters = [[step.spec for step in steps or ()] for steps in (found.chain.request_headers,)]
    permitted = found.permission and [found.permission.names(Authority(host, 80)) for host, _ in ASKED]
    return found.name, found.policy, permitted, found.only_reports, targets, filters


def behaviour(snapshot: Snapshot) -> Iterator[tuple[Any, ...]]:
    """What each listener does with each request, and for which hosts plain http is permitted."""
    for port in snapshot.ports.values():
        for listener in port.listeners:
            for host, path in ASKED:
                for team in (b"a", b"-"):
                    found = listener.http.matches(host, b"GET", path.encode(), Fields.of([(b"x-team", team)]))
                    rules = [(*described(each.payload), each.rank) for each in found]
                    yield listener.name, host, path, listener.hosts.match(host), rules


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayServer]:
    made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
    yield made
    await made.drain(0)


@pytest.mark.parametrize("seed", range(25))
async def test_changed_routes_are_what_a_whole_configuration_has(seed: int, gateway: GatewayServer):
    chosen = random.Random(seed)
    before = {f"r{number}": route(number, chosen) for number in range(6)}
    after = dict(before)
    for number in chosen.sample(range(8), 3):
        after[f"r{number}"] = route(number, chosen)
    for name in chosen.sample(sorted(before), 1):
        del after[name]
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    gateway.snapshot = await gateway.prepare(compiled_spec([*OWNERS, *before.values()]))
    gateway.snapshot.filters.seal()
    part = compiled_spec([*OWNERS, *(each for name, each in after.items() if name in names)])
    assert await gateway.update_routes(part, {f"agents/{name}" for name in names})
    updated = list(behaviour(gateway.snapshot))
    whole = await gateway.prepare(compiled_spec([*OWNERS, *after.values()]))
    assert updated == list(behaviour(whole))
    assert len(updated) > 20


@pytest.mark.parametrize(
    "more",
    [
        [m.policy(["other.test"], name="another")],
        [m.manifest("gateway.networking.k8s.io/v1", "GRPCRoute", "calls", "agents", spec={
            "parentRefs": [{"name": "gw"}], "hostnames": ["g.test"],
            "rules": [{"backendRefs": [{"group": m.OURS, "kind": "Backend", "name": "one"}]}],
        })],
        [m.policy(name="some", subjects=[{"namespace": "x"}], traffic={"timeouts": {"request": "9s"}})],
        [m.gateway(m.http_listener(8081), name="second")],
    ],
)  # fmt: skip
async def test_anything_else_takes_a_whole_configuration(more: list[Manifest], gateway: GatewayServer):
    routes = [route(number, random.Random(number)) for number in range(3)]
    gateway.snapshot = await gateway.prepare(compiled_spec([*OWNERS, *routes]))
    before = list(behaviour(gateway.snapshot))
    assert not await gateway.update_routes(compiled_spec([*OWNERS, *more, routes[0]]), {"agents/r0", "agents/r1"})
    assert list(behaviour(gateway.snapshot)) == before
    gateway.snapshot = await gateway.prepare(compiled_spec([*OWNERS, *more, *routes]))
    is_served = "another" in str(more) or "second" in str(more)
    assert await gateway.update_routes(compiled_spec([*OWNERS, *more, routes[0]]), {"agents/r1"}) is is_served


def one_route(host: str, backend: str) -> list[Manifest]:
    return [*OWNERS, m.http_route("r", m.prefix_rule("/", backend), hostnames=[host])]


def backend_of(snapshot: Snapshot | None, host: str) -> str:
    assert snapshot is not None
    found = [port.first.http.sole(host) for port in snapshot.ports.values()]
    return next((each.backends[0].cluster.name for each in found if each is not None), "")


async def test_updates_come_into_service_in_their_order(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch):
    gateway.snapshot = await gateway.prepare(compiled_spec(one_route("a.test", "one")))
    pauses = [0.05, 0.0]

    async def slowly(work: BlockingWork[Any]) -> Any:
        pause_s = pauses.pop(0)
        found = await in_turns(work)
        await asyncio.sleep(pause_s)
        return found

    monkeypatch.setattr(module, "in_turns", slowly)
    parts = [compiled_spec(one_route("a.test", "two")), compiled_spec(one_route("b.test", "two"))]
    assert await asyncio.gather(*(gateway.update_routes(part, {"agents/r"}) for part in parts)) == [True, True]
    assert (backend_of(gateway.snapshot, "a.test"), backend_of(gateway.snapshot, "b.test")) == ("", "agents/two")


async def test_an_update_is_for_one_configuration(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch):
    first, part = compiled_spec(one_route("a.test", "one")), compiled_spec(one_route("a.test", "two"))
    assert not await gateway.update_routes(part, {"agents/r"})
    fresh = await gateway.prepare(first)
    assert await gateway.update_routes(part, {"agents/r"})  # before anybody is served
    assert backend_of(fresh, "a.test") == "agents/two"
    gateway.snapshot = await gateway.prepare(first)
    assert not await gateway.update_routes(replace(part, generation=7), {"agents/r"})
    other = await gateway.prepare(first)

    async def swapped(work: BlockingWork[Any]) -> Any:
        found = await in_turns(work)
        gateway.snapshot = other
        return found

    monkeypatch.setattr(module, "in_turns", swapped)
    assert not await gateway.update_routes(part, {"agents/r"})
    assert backend_of(other, "a.test") == "agents/one"


@pytest.mark.parametrize("more", [[], [m.policy(["other.test"], name="another")]])
async def test_an_update_leaves_no_garbage(
    more: list[Manifest], gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
):
    """What is garbage when a reload freezes the heap stays for good."""
    gateway.snapshot = await gateway.prepare(compiled_spec(one_route("a.test", "one")))
    gateway.snapshot.filters.seal()
    builders: list[weakref.ref[SnapshotBuilder]] = []

    def noted(*arguments: Any) -> SnapshotBuilder:
        made = SnapshotBuilder(*arguments)
        builders.append(weakref.ref(made))
        return made

    monkeypatch.setattr(module, "SnapshotBuilder", noted)
    gc.disable()
    try:
        part = compiled_spec([*one_route("a.test", "two"), *more])
        assert await gateway.update_routes(part, {"agents/r"}) is (not more)
        assert [each() for each in builders] == [None]
    finally:
        gc.enable()


def change(talk: Conversation, routes: list[Manifest], *names: str) -> None:
    builder = SnapshotBuilder(talk.catalog, talk.network, talk.metrics, talk.snapshot)
    config = compiled_spec([*BACKENDS, *routes])

    def act() -> None:
        update = at_once(updating(builder, talk.snapshot, config, names))
        assert update is not None
        update.put_into_service(talk.snapshot)

    talk.act(act)


BACKENDS = [m.gateway(m.http_listener(8080)), m.backend("one", "one.test", 80), m.backend("two", "two.test", 80)]
ASK = b"GET /%s HTTP/1.1\r\nHost: a.test\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
PASSED = b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\n\r\n"


def test_requests_meet_the_routes_as_they_are_by_then(converse: Start):
    first = m.http_route("r", m.prefix_rule("/", "one"), hostnames=["a.test"])
    talk = converse([*BACKENDS, first])
    talk.client >> ASK % b"1"
    talk.dialled("one.test", 80)
    one = talk.origin
    one << b"GET /1 HTTP/1.1\r\nHost: one.test\r\nVia: 1.1 gw\r\n\r\n"
    one >> ANSWER + b"h"
    talk.client << PASSED + b"h"
    change(talk, [m.http_route("r", m.prefix_rule("/", "two"), hostnames=["a.test"])], "agents/r")
    one >> b"i"
    talk.client << b"i"
    talk.client >> ASK % b"2"
    talk.dialled("two.test", 80)
    talk.origin << b"GET /2 HTTP/1.1\r\nHost: two.test\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> ANSWER + b"hi"
    talk.client << PASSED + b"hi"
    change(talk, [], "agents/r")
    talk.client >> ASK % b"3"
    assert talk.client.answer()[0] == 404
    change(talk, [first], "agents/r")
    talk.client >> ASK % b"4"
    one << b"GET /4 HTTP/1.1\r\nHost: one.test\r\nVia: 1.1 gw\r\n\r\n"
    one >> ANSWER + b"hi"
    talk.client << PASSED + b"hi"
    assert len(talk.origins) == 2


def test_a_filter_of_a_changed_route_goes_on_counting(converse: Start):
    def routes(value: str) -> list[Manifest]:
        header = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x", "value": value}]}}
        return [m.http_route("r", m.prefix_rule("/", "missing", filters=[header]), hostnames=["a.test"])]

    talk = converse([*BACKENDS, *routes("1")])
    for number in (1, 2):
        talk.client >> ASK % b"1"
        assert talk.client.answer()[0] == 500
        (stats,) = {id(each): each for each in talk.snapshot.filters.stats()}.values()
        assert stats.runs == number
        change(talk, routes("2"), "agents/r")


def test_a_changed_route_has_the_connector_of_its_service_whatever_addresses_that_had_before(converse: Start):
    def objects(address: str, *names: str) -> list[Manifest]:
        rule = {"backendRefs": [{"name": "pods", "port": 80}]}
        return [*pods(address), *(m.http_route(name, rule, hostnames=[f"{name}.test"]) for name in names)]

    talk = converse([*BACKENDS, *objects("10.0.0.1", "a")])
    (cluster,) = talk.snapshot.clusters.values()
    change(talk, objects("10.0.0.2", "b"), "agents/b")
    assert list(talk.snapshot.clusters.values()) == [cluster]
    fresh = (EndpointAddress(ip_address("10.0.0.2"), 8080),)
    talk.act(lambda: replace_endpoints(talk.snapshot.clusters, {("agents/pods", 80): fresh}))
    assert talk.snapshot.clusters == {cluster.spec: cluster}
    assert cluster.spec.backend.endpoints == fresh
    for name in (b"a", b"b"):
        talk.client >> b"GET / HTTP/1.1\r\nHost: %s.test\r\n\r\n" % name
        if name == b"a":
            talk.dialled("10.0.0.2", 8080)
        talk.origin << b"GET / HTTP/1.1\r\nHost: %s.test\r\nVia: 1.1 gw\r\n\r\n" % name
        talk.origin >> ANSWER + b"hi"
        talk.client << PASSED + b"hi"
