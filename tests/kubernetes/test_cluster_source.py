"""What is asked for, and what of it a compilation reads."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from egressproxy.config.served_kinds import CONFIGURED, READ_KINDS, ServedKind
from egressproxy.ir.backend import EndpointAddress
from egressproxy.kubernetes import cluster_source, discovery, messages, named_reflector, reflector, watched_scopes
from egressproxy.kubernetes.cluster_source import ClusterSource
from egressproxy.kubernetes.object_store import ALL_PODS
from egressproxy.processes.workers.data_plane import EndpointUpdates
from egressproxy.run_options import ClusterOptions
from tests.support.api_server import LEASE, ApiServer
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster_source, reflector):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
        monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(cluster_source, "DISCOVER_S", 0.05)
    monkeypatch.setattr(reflector, "FORBIDDEN_PAUSE_S", 0.05)


def core(kind: str, name: str, namespace: str = "team", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, **more}


def endpoints(service: str, namespace: str = "team") -> dict[str, Any]:
    made = core("EndpointSlice", f"{service}-1", namespace, addressType="IPv4", endpoints=[], ports=[])
    made["metadata"]["labels"] = {"kubernetes.io/service-name": service}
    return {**made, "apiVersion": "discovery.k8s.io/v1"}


class Sourced:
    def __init__(self, server: ApiServer, options: ClusterOptions, places: Mapping[str, str]) -> None:
        self.server = server
        self.changes = 0
        self.routes = 0
        self.endpoints: EndpointUpdates = {}
        self.source = ClusterSource(options, places, self._tell)

    def _tell(self, message: messages.Changed | messages.ChangedRoutes | messages.Endpoints) -> None:
        match message:
            case messages.Changed():
                self.changes += 1
            case messages.ChangedRoutes():
                self.routes += 1
            case messages.Endpoints(updates):
                self.endpoints = {**self.endpoints, **updates}

    async def take(self, *wanted: tuple[str, str, str, str]) -> list[str]:
        """The names of what a compilation would read, `Kind/name`."""
        self.source.want(wanted)
        async with asyncio.timeout(20):
            while self.source.why_not_ready():
                await self.source.wait()
        objects = map(json.loads, filter(None, zlib.decompress(self.source.take()).split(b"\n")))
        return sorted(f"{each['kind']}/{each['metadata']['name']}" for each in objects if each["kind"] != READ_KINDS)


@asynccontextmanager
async def sourced(
    tmp_path: Any, server: ApiServer, places: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[Sourced]:
    async with server.running():
        file = tmp_path / "kubeconfig"
        file.write_text(server.kubeconfig())
        made = Sourced(server, ClusterOptions(kubeconfig=file, **options), places or {})
        task = asyncio.create_task(made.source.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


SERVICE, SECRET = ("", "Service", "team", "web"), ("", "Secret", "team", "key")


async def test_only_the_secrets_are_asked_for_that_are_referred_to(tmp_path):
    server = ApiServer()
    for name in ("key", "other"):
        server.put(core("Secret", name))
    async with sourced(tmp_path, server) as it:
        assert await it.take() == []
        assert server.asked("secrets") == []
        assert await it.take(SECRET) == ["Secret/key"]
        paths = server.asked("secrets")
        assert paths
        assert all("/namespaces/team/secrets?" in path and "metadata.name%3Dkey" in path for path in paths)


async def test_secrets_by_label_are_those_with_the_label(tmp_path):
    server = ApiServer()
    server.put(core("Secret", "other"))
    labelled = core("Secret", "key")
    labelled["metadata"]["labels"] = {"egress": "yes"}
    server.put(labelled)
    async with sourced(tmp_path, server, secret_selector="egress=yes", namespaces=("team",)) as it:
        assert await it.take(("", "Secret", "team", "other")) == ["Secret/key"]
        assert all("labelSelector" in path for path in server.asked("secrets"))


async def test_endpoints_are_those_of_services_that_are_referred_to(tmp_path):
    server = ApiServer()
    for name in ("web", "other"):
        server.put(core("Service", name, spec={}))
        server.put(endpoints(name))
    server.put(endpoints("web", "elsewhere"))
    async with sourced(tmp_path, server) as it:
        assert await it.take() == []
        assert server.asked("endpointslices") == []
        assert await it.take(SERVICE) == ["EndpointSlice/web-1", "Service/web"]


async def test_other_namespaces_are_not_asked_for(tmp_path):
    server = ApiServer()
    async with sourced(tmp_path, server, namespaces=("team", "infra")) as it:
        await it.take(SECRET, ("", "Secret", "elsewhere", "key"))
        assert server.asked("/namespaces/elsewhere/") == []
        assert {path.split("?")[0] for path in server.asked("httproutes")} == {
            f"/apis/gateway.networking.k8s.io/v1/namespaces/{name}/httproutes" for name in ("team", "infra")
        }
        assert server.asked("/gatewayclasses")  # which have no namespace


async def test_a_status_alone_is_no_change(tmp_path):
    server = ApiServer()
    gateway = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "gw"}, "spec": {}}
    server.put(gateway)
    async with sourced(tmp_path, server) as it:
        assert await it.take() == ["Gateway/gw"]
        server.put({**gateway, "status": {"conditions": []}}, is_status=True)
        server.put(core("ConfigMap", "unrelated"))
        server.put({**gateway, "spec": {"gatewayClassName": "other"}})
        async with asyncio.timeout(20):
            while not it.changes:
                await it.source.wait()
        assert it.changes == 1
        assert it.source.take() == it.source.take()


async def test_kinds_that_come_later_are_found(tmp_path):
    kinds = tuple(each for each in CONFIGURED if each.kind != "EgressPolicy")
    server = ApiServer((*kinds, LEASE))
    policy = {"apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "p"}, "spec": {}}
    async with sourced(tmp_path, server) as it:
        assert await it.take() == []
        server.kinds = (*CONFIGURED, LEASE)
        server.put(policy)
        async with asyncio.timeout(20):
            while not it.changes:
                await it.source.wait()
        assert await it.take() == ["EgressPolicy/p"]


async def test_nothing_is_served_before_policies_can_be_read(tmp_path):
    server = ApiServer()
    server.forbidden |= {"egresspolicies", "referencegrants"}
    async with sourced(tmp_path, server) as it:
        async with asyncio.timeout(20):
            while "egresspolicies" not in it.source.why_not_ready():
                await it.source.wait()
        server.forbidden.discard("egresspolicies")
        assert await it.take() == []  # without the grants that cannot be read
        (problem,) = it.source.problems()
        assert problem.startswith("cannot list referencegrants.gateway.networking.k8s.io: add to the ClusterRole")


#: What a kind does that may not be listed. `tests/gateway/test_unread_kinds.py` shows that no row opens anything.
HOLDS_UP_START = ["GatewayClass", "Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute"]
HOLDS_UP_ALWAYS = ["EgressPolicy", "XAccessPolicy", "BackendTLSPolicy"]


@pytest.mark.parametrize(
    "kind", [each for each in CONFIGURED if each.kind != "ServiceAccount"], ids=lambda k: k.resource
)
async def test_a_kind_that_may_not_be_read_is_told_and_opens_nothing(tmp_path, kind):
    server = ApiServer()
    server.forbidden.add(kind.plural)
    wanted = (kind.group, kind.kind, "team" if kind.is_namespaced else "", "x")
    if kind.kind == "EndpointSlice":
        wanted = ("", "Service", "team", "x")
    if kind.kind == "Pod":
        wanted = (*wanted[:3], "app=x")
    async with sourced(tmp_path, server) as it:
        it.source.want([wanted])
        async with asyncio.timeout(20):
            while not any(f"cannot list {kind.resource}" in each for each in it.source.problems()):
                await it.source.wait()
        if kind.kind in HOLDS_UP_START + HOLDS_UP_ALWAYS:
            async with asyncio.timeout(20):
                while f"cannot list {kind.resource}" not in it.source.why_not_ready():
                    await it.source.wait()
            server.forbidden.clear()
        await it.take(wanted)
        server.forbidden.clear()  # once it may be read, it is
        await until(lambda: not it.source.problems())
        server.forbidden.add(kind.plural)
        server.forget_history()
        await until(lambda: bool(it.source.problems()))
        assert it.source.why_not_ready() == "", "what was read is in force still"


@pytest.mark.parametrize("kind", HOLDS_UP_START + HOLDS_UP_ALWAYS)
async def test_a_kind_that_is_new_and_may_not_be_read_holds_up_what_serves_where_it_restricts(tmp_path, kind):
    found = next(each for each in CONFIGURED if each.kind == kind)
    server = ApiServer(tuple(each for each in (*CONFIGURED, LEASE) if each != found))
    async with sourced(tmp_path, server) as it:
        await it.take()
        server.forbidden.add(found.plural)
        server.kinds = (*CONFIGURED, LEASE)
        await until(lambda: any(found.resource in each for each in it.source.problems()))
        assert bool(it.source.why_not_ready()) is (kind in HOLDS_UP_ALWAYS)


async def test_whether_pods_are_read_is_told_with_the_objects(tmp_path):
    server = ApiServer()
    server.forbidden.add("pods")
    pods = ("", "Pod", "", "")

    def read() -> Any:
        (marker,) = [each for key, each in it.source.relevant() if key[1] == READ_KINDS]
        return json.loads(marker.manifest)["read"]

    async with sourced(tmp_path, server) as it:
        await it.take()
        assert read() == []
        await it.take(pods)
        assert read() == []
        server.forbidden.clear()
        await until(lambda: it.changes == 1)  # although there is none
        await it.take(pods)
        assert read() == [["", "Pod"]]
        server.put({**core("Pod", "p"), "spec": {}})
        await until(lambda: it.changes == 2)
        await it.take()
        assert read() == [], "nobody asks for them any more"


async def test_pods_are_those_with_the_labels_that_a_configuration_selects(tmp_path, monkeypatch):
    server = ApiServer()

    def put(name: str, app: str, namespace: str = "team", ready: str = "True", **more: Any) -> None:
        made = core("Pod", name, namespace, spec={"nodeName": "n"}, **more)
        made["metadata"]["labels"] = {"app": app, "tier": "x"}
        conditions = [{"type": "Ready", "status": ready}, {"type": "Initialized", "status": "True"}]
        server.put({**made, "status": {"podIP": "10.0.0.1", "hostIP": "10.1.0.1", "conditions": conditions}})

    put("one", "web")
    put("two", "other")
    put("three", "web", "elsewhere")
    web, other = (("", "Pod", "team", f"app={app},tier=x") for app in ("web", "other"))
    async with sourced(tmp_path, server) as it:
        await it.take()
        assert await it.take(web) == ["Pod/one"]
        (marker,) = [each for key, each in it.source.relevant() if key[1] == READ_KINDS]
        assert json.loads(marker.manifest)["read"] == [], "whose an address is cannot be said"
        selected = ("team app=web,tier=x", 0)
        put("one", "web", ready="False")
        await until(lambda: it.endpoints == {selected: ()})
        put("two", "other")  # nobody asks for it
        put("four", "web")
        await until(lambda: it.endpoints == {selected: (EndpointAddress(ip_address("10.0.0.1"), 0),)})
        assert it.source.every_endpoint() == it.endpoints
        assert it.changes == 0, "it needs no reload"
        assert await it.take(web) == ["Pod/four", "Pod/one"]
        assert await it.take(web, other) == ["Pod/four", "Pod/one", "Pod/two"]
        monkeypatch.setattr(watched_scopes, "FEW_NAMES", 1)
        assert await it.take(web, other, ("", "Pod", "other", "a=b")) == ["Pod/four", "Pod/one", "Pod/two"]
        assert it.source.figures()[0] == len({str(scope) for scope in it.source._reflectors}), "one watch for team"
        assert await it.take(web, ALL_PODS) == ["Pod/four", "Pod/one", "Pod/three", "Pod/two"]


@pytest.mark.parametrize(
    "key", [("t,a", "app=a"), ("", "app=a"), ("team", "app in (a)"), ("team", "app"), ("team", "")]
)
async def test_what_is_no_selector_is_never_sent(key):
    scopes, _ = watched_scopes.watched_scopes(ClusterOptions(), {("", "Pod")}, [("", "Pod", *key)])
    assert not scopes


async def test_policies_of_experiments_that_nobody_reads_are_given_and_no_other_unknown_kind(tmp_path, monkeypatch):
    group = "agentic.networking.x-k8s.io"
    limit = ServedKind(group, "XLimitPolicy", ("v1alpha1",))
    others = (
        ServedKind(group, "XThing", ("v1alpha1",)),
        ServedKind("gateway.networking.x-k8s.io", "XBackendTrafficPolicy", ("v1alpha1",)),
        ServedKind("vendor.example", "LimitPolicy", ("v1",)),
    )
    server = ApiServer((*CONFIGURED, LEASE, limit, *others))
    for kind in (limit, *others):
        made = core(kind.kind, "one")
        server.put({**made, "apiVersion": kind.api_version(kind.versions[0]), "spec": {"targetRefs": []}})
    monkeypatch.setattr(cluster_source, "DISCOVER_S", 0.01)
    async with sourced(tmp_path, server) as it:
        assert await it.take() == ["XLimitPolicy/one"]
        server.kinds = (*CONFIGURED, LEASE)  # an API server that starts
        asked = len(server.asked("GET /apis"))
        await until(lambda: len(server.asked("GET /apis")) > asked + 9)
        assert await it.take() == ["XLimitPolicy/one"]


async def test_a_policy_of_experiments_that_may_not_be_read_is_told(tmp_path):
    limit = ServedKind("agentic.networking.x-k8s.io", "XLimitPolicy", ("v1alpha1",))
    server = ApiServer((*CONFIGURED, LEASE, limit))
    server.forbidden.add(limit.plural)
    async with sourced(tmp_path, server) as it:
        await it.take()
        (problem,) = it.source.problems()
        assert problem.startswith("cannot list xlimitpolicies.agentic.networking.x-k8s.io: add to")


async def test_endpoints_stay_while_others_are_asked_for(tmp_path):
    server = ApiServer()
    for name in ("web", "more"):
        server.put(core("Service", name, spec={}))
        server.put(endpoints(name))
    async with sourced(tmp_path, server) as it:
        await it.take(SERVICE)
        server.forbidden.add("endpointslices")
        it.source.want({SERVICE, ("", "Service", "team", "more")})
        assert "EndpointSlice/web-1" in [f"{key[1]}/{key[3]}" for key, _ in it.source.relevant()]


async def test_other_addresses_of_a_service_need_no_reload(tmp_path):
    server = ApiServer()
    server.put(core("Service", "web", spec={"ports": [{"port": 80, "name": "http"}]}))
    server.put(endpoints("web"))
    async with sourced(tmp_path, server) as it:
        await it.take(SERVICE)
        server.put(core("Service", "unrelated", spec={}))
        there = [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}, {"addresses": ["10.0.0.2"]}]
        server.put({**endpoints("web"), "endpoints": there, "ports": [{"name": "http", "port": 8080}]})
        async with asyncio.timeout(20):
            while not it.endpoints:
                await it.source.wait()
                await asyncio.sleep(0.1)
        addresses = tuple(EndpointAddress(ip_address(f"10.0.0.{last}"), 8080) for last in (1, 2))
        assert it.endpoints == {("team/web", 80): addresses}
        server.delete("endpointslices", "team", "web-1")
        async with asyncio.timeout(20):
            while it.endpoints["team/web", 80]:
                await it.source.wait()
                await asyncio.sleep(0.1)
        assert it.changes == 0


def http_route(name: str, backend: str = "web") -> dict[str, Any]:
    spec = {"rules": [{"backendRefs": [{"name": backend, "port": 80}]}]}
    return {**core("HTTPRoute", name, spec=spec), "apiVersion": "gateway.networking.k8s.io/v1"}


async def test_changed_routes_are_given_without_the_others(tmp_path):
    server = ApiServer()
    for each in (core("Service", "web", spec={}), endpoints("web"), POLICY, *map(http_route, "abc")):
        server.put(each)
    async with sourced(tmp_path, server) as it:
        assert await it.take(SERVICE) == [
            "EgressPolicy/p", "EndpointSlice/web-1", "HTTPRoute/a", "HTTPRoute/b", "HTTPRoute/c", "Service/web",
        ]  # fmt: skip
        given = list(it.source.relevant())
        server.put(http_route("a", "other"))
        server.put(http_route("d"))
        server.delete("httproutes", "team", "b")
        keys = {("gateway.networking.k8s.io", "HTTPRoute", "team", name) for name in "abd"}
        await until(lambda: it.source.changed_routes == keys)
        assert (it.changes, it.routes > 0) == (0, True)
        for wanted, found in (((), []), ((SERVICE,), ["EndpointSlice/web-1", "Service/web"])):
            lines = zlib.decompress(it.source.take_routes(wanted)).split(b"\n")
            objects = [each for each in map(json.loads, lines) if "metadata" in each]
            names = sorted(f"{each['kind']}/{each['metadata']['name']}" for each in objects)
            assert names == sorted(["EgressPolicy/p", "HTTPRoute/a", "HTTPRoute/d", *found])
        assert it.source.with_changed_routes(given) == list(it.source.relevant())
        server.put({**POLICY, "spec": {"mode": "Report"}})
        server.put(http_route("c", "other"))
        await until(lambda: it.changes > 0)
        await it.take(SERVICE)
        assert not it.source.changed_routes


async def test_addresses_go_on_changing_where_changed_routes_want_another_service(tmp_path):
    server = ApiServer()
    for name in ("web", "more"):
        server.put(core("Service", name, spec={"ports": [{"port": 80, "name": "http"}]}))
        server.put(endpoints(name))
    async with sourced(tmp_path, server) as it:
        await it.take(SERVICE)
        it.source.want({("", "Service", "team", "more")}, and_others=True)
        async with asyncio.timeout(20):
            while it.source.why_not_ready():
                await it.source.wait()
        it.source.take_routes({SERVICE})
        there = [{"addresses": ["10.0.0.1"]}]
        server.put({**endpoints("web"), "endpoints": there, "ports": [{"name": "http", "port": 8080}]})
        address = EndpointAddress(ip_address("10.0.0.1"), 8080)
        await until(lambda: it.endpoints.get(("team/web", 80)) == (address,))
        assert it.changes == 0


POLICY = {"apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "p"}, "spec": {}}
WITHOUT_OURS = tuple(each for each in CONFIGURED if each.group != "egressproxy.io")


async def test_an_api_server_that_starts_without_our_kinds_takes_nothing_away(tmp_path, monkeypatch):
    server = ApiServer()
    server.put(POLICY)
    async with sourced(tmp_path, server) as it:
        assert await it.take() == ["EgressPolicy/p"]
        server.kinds = WITHOUT_OURS
        server.forget_history()
        before = len(server.asked("/apis"))
        await until(lambda: len(server.asked("/apis")) > before + 20)
        assert [key[3] for key, _ in it.source.relevant() if key[3]] == ["p"]
        monkeypatch.setattr(discovery, "GONE_S", 0.0)
        async with asyncio.timeout(20):
            while not it.changes:
                await it.source.wait()
        assert await it.take() == []


async def test_kinds_that_were_there_before_a_restart_are_waited_for(tmp_path, monkeypatch):
    server = ApiServer(WITHOUT_OURS)
    async with sourced(tmp_path, server, {"egresspolicies.egressproxy.io": "1"}) as it:
        async with asyncio.timeout(20):
            while "EgressPolicy" not in it.source.why_not_ready():
                await it.source.wait()
        monkeypatch.setattr(discovery, "GONE_S", 0.0)
        assert await it.take() == []


@pytest.mark.parametrize("name", ["a=b", "a,b", "UPPER", "a/../b", "x" * 254])
async def test_names_that_no_object_has_hold_up_nothing(tmp_path, name):
    server = ApiServer()
    server.put(core("Secret", "key"))
    async with sourced(tmp_path, server) as it:
        assert await it.take(SECRET, ("", "Secret", "team", name)) == ["Secret/key"]
        assert len({path.split("&watch")[0] for path in server.asked("secrets", "limit=")}) == 1


async def test_names_that_no_service_has_are_in_no_selector(tmp_path):
    server = ApiServer()
    async with sourced(tmp_path, server) as it:
        await it.take(SERVICE, ("", "Service", "team", "a)"), ("", "Service", "team", "-a"))
        assert all("in+(web)" in path for path in server.asked("endpointslices", "limit="))
        assert server.asked("endpointslices")


async def test_what_the_server_refuses_holds_up_nothing(tmp_path):
    server = ApiServer()
    server.invalid.add("secrets")
    async with sourced(tmp_path, server) as it:
        assert await it.take(SECRET) == []
        assert any("secrets key" in each for each in it.source.problems())


async def test_of_one_namespace_only_so_many_secrets_are_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_scopes, "MOST_NAMES", 3)
    server = ApiServer()
    async with sourced(tmp_path, server) as it:
        await it.take(SECRET, *(("", "Secret", "greedy", f"n{number}") for number in range(9)))
        assert len(set(server.asked("secrets", "limit="))) == 4
        assert any("9 Secrets of namespace greedy" in each for each in it.source.problems())


MANY = [("", "Secret", "team", f"n{number}") for number in range(20)]


def put_many(server: ApiServer) -> list[str]:
    for *_, name in MANY:
        server.put(core("Secret", name))
    server.put(core("Secret", "other"))
    return sorted(f"Secret/{key[3]}" for key in MANY)


async def test_many_secrets_of_a_namespace_have_one_watch_of_metadata(tmp_path):
    server = ApiServer()
    names = put_many(server)
    async with sourced(tmp_path, server) as it:
        assert await it.take(*MANY) == names
        await until(lambda: len(server.asked("secrets", "watch=1")) == 1)
        assert len(server.asked("secrets")) == 22, "each is read once"
        server.put(core("Secret", "n5", data={"a": "b"}))
        server.put(core("Secret", "other", data={"a": "b"}))
        await until(lambda: it.changes == 1)
        assert any(b'"b"' in each.manifest for key, each in it.source.relevant() if key[3] == "n5")
        assert len(server.asked("secrets/n5")) == 2
        assert server.asked("secrets/other") == []
        server.delete("secrets", "team", "n6")
        await until(lambda: it.changes == 2)
        assert await it.take(*MANY) == [each for each in names if each != "Secret/n6"]
        before = len(server.asked("secrets"))
        assert "Secret/other" in await it.take(*MANY, ("", "Secret", "team", "other"))
        assert len(server.asked("secrets")) == before + 1, "only the one that is new"
        server.forget_history()
        await until(lambda: len(server.asked("secrets", "watch=1")) == 2)
        assert await it.take(*MANY[1:]) == [each for each in names if each not in ("Secret/n0", "Secret/n6")]
        await until(lambda: not it.source.problems())


async def test_an_object_of_many_that_makes_no_sense_is_told_and_read_again(tmp_path, monkeypatch):
    server = ApiServer()
    names = put_many(server)
    real = named_reflector.stored

    def stored(value: Any, *more: Any) -> Any:
        if value["metadata"]["name"] == "n3" and "fine" not in value["metadata"].get("labels", {}):
            raise AttributeError("a defect")
        return real(value, *more)

    monkeypatch.setattr(named_reflector, "stored", stored)
    async with sourced(tmp_path, server) as it:
        it.source.want(MANY)
        await until(lambda: any("internal error (AttributeError)" in each for each in it.source.problems()))
        fine = core("Secret", "n3")
        fine["metadata"]["labels"] = {"fine": "yes"}
        server.put(fine)
        assert await it.take(*MANY) == names


async def test_names_in_many_namespaces_have_one_watch_in_each(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_scopes, "FEW_NAMES_IN_ALL", 5)
    server = ApiServer()
    wanted = [("", "Secret", f"ns{number % 3}", f"n{number}") for number in range(6)]
    for _, _, namespace, name in wanted:
        server.put(core("Secret", name, namespace))
    async with sourced(tmp_path, server) as it:
        assert len(await it.take(*wanted, ("", "Secret", "../../api/v1/namespaces/x", "n"))) == 6
        await until(lambda: len(server.asked("secrets", "watch=1")) == 3)
        assert server.asked("..") == []


async def test_secrets_that_may_be_read_by_name_alone_are_read_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(named_reflector, "READ_S", 0.05)
    server = ApiServer()
    server.named_only.add("secrets")
    names = put_many(server)
    async with sourced(tmp_path, server) as it:
        assert await it.take(*MANY) == names
        assert it.source.problems() == []
        server.put(core("Secret", "n5", data={"a": "b"}))
        server.delete("secrets", "team", "n6")
        await until(lambda: it.changes > 0)
        await until(lambda: "n6" not in {key[3] for key, _ in it.source.relevant()})
        server.named_only.clear()
        await until(lambda: len(server.asked("secrets", "watch=1")) == 1)


async def test_names_of_many_that_may_not_be_read_are_told(tmp_path):
    server = ApiServer()
    put_many(server)
    server.forbidden.add("secrets")
    async with sourced(tmp_path, server) as it:
        assert await it.take(*MANY) == []
        problem = next(each for each in it.source.problems() if "secrets" in each)
        assert "cannot get secrets n7 in namespace team: add to a Role of namespace team" in problem
        server.forbidden.clear()
        await until(lambda: not it.source.problems())
        assert len(await it.take(*MANY)) == 20


async def test_a_kind_that_is_served_in_another_version_is_watched_in_that(tmp_path):
    old, new = "v1alpha3", "v1"
    (kind,) = [each for each in CONFIGURED if each.kind == "BackendTLSPolicy"]
    others = tuple(each for each in CONFIGURED if each is not kind)
    server = ApiServer((*others, replace(kind, versions=(old,)), LEASE))
    async with sourced(tmp_path, server) as it:
        assert await it.take() == []
        server.kinds = (*others, replace(kind, versions=(new,)), LEASE)
        server.cut()
        server.put({
            "apiVersion": kind.api_version(new), "kind": kind.kind, "metadata": {"name": "p"}, "spec": {},
        })  # fmt: skip
        async with asyncio.timeout(5):
            while not it.changes:
                await it.source.wait()
        assert await it.take() == ["BackendTLSPolicy/p"]


async def test_a_defect_in_what_tells_of_changes_ends_the_source(tmp_path, monkeypatch):
    def defect(_slices: object, _port: str) -> None:
        raise LookupError("defect")

    monkeypatch.setattr(cluster_source, "ready_endpoints", defect)
    server = ApiServer()
    server.put(core("Service", "web", spec={"ports": [{"port": 80, "name": "http"}]}))
    async with server.running():
        file = tmp_path / "kubeconfig"
        file.write_text(server.kubeconfig())
        it = Sourced(server, ClusterOptions(kubeconfig=file), {})
        running = asyncio.create_task(it.source.run())
        await it.take(SERVICE)
        server.put(endpoints("web"))
        async with asyncio.timeout(5):
            with pytest.raises(BaseException, match="unhandled errors"):
                await running
